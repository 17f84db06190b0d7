"""Offsets and progress in few words, for the tests of sinks."""

from floodmark.bindings import SourceOffset
from floodmark.bindings.offsets import QueryPosition
from floodmark.sinks.gate import Batch
from floodmark.sinks.progress import Progress

Spot = tuple[int | None, int]
"""A timestamp, and how far partition 0 was read."""

START: Spot = (None, 0)


def at(ts: int | None, end: int, step: int = 0) -> SourceOffset:
    return SourceOffset("q", ts, {0: end} if end else {}, {}, step)


def place(**spots: Spot) -> QueryPosition:
    return {source: at(*spot) for source, spot in spots.items()}


def progress(
    starts: QueryPosition,
    ends: QueryPosition,
    *,
    stateful: bool,
    query_id: str = "q1",
    version: int = 1,
    total: int = 20,
) -> Progress:
    return Progress("K", "out", "t1", version, query_id, starts, ends, stateful, rows=10, total=total)


def batch(
    starts: QueryPosition, ends: QueryPosition, *, stateful: bool, query_id: str = "q1", is_first: bool = False
) -> Batch:
    return Batch(query_id, starts, ends, stateful, is_first=is_first)
