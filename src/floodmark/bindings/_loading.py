"""Histories from rows that were read from the store: the whole of one, or what came since it was last read."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from floodmark.bindings._columns import Column
from floodmark.bindings._history import BindingHistory

K = TypeVar("K", int, str)


def extended(
    history: BindingHistory,
    since: int,
    upper: int,
    pairs: Iterable[tuple[int, int, int]],
    steps: Iterable[tuple[str, int, int]],
) -> BindingHistory:
    """Return a history to which others have appended, and which they may have compacted.

    The rows are (partition, ts, end) and (key, ts, watermark), those of a partition or key together and in order.

    >>> known = BindingHistory.start(500).append(500, {0: 5}, upper=2000)
    >>> extended(known, 500, 3000, [(0, 2000, 8), (1, 2000, 3)], [("at", 2000, 70)]).cut_at(2000)
    {0: 8, 1: 3}
    """
    longer = replace(history, upper=upper, columns=_grown(history.columns, pairs), steps=_grown(history.steps, steps))
    return longer.compact(since)


def _grown(columns: Mapping[K, Column], rows: Iterable[tuple[K, int, int]]) -> dict[K, Column]:
    grown = dict(columns)
    for name, group in groupby(rows, key=itemgetter(0)):
        _, ts, values = zip(*group, strict=True)
        known = grown.get(name)
        grown[name] = Column.of(list(ts), list(values)) if known is None else known.extend(list(ts), list(values))
    return grown
