"""Places in sources: which of two comes first, and at which of them batches must end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floodmark.bindings._source_offset import SourceOffset

Place = Mapping[str, SourceOffset]
"""Where a query is, in all of its sources: {source: offset}."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A place at which a batch must end, in all sources at once: one that is there first waits for the others."""

    place: Place
    in_one: bool
    """Whether one batch goes there from the stop before, however large it is; else it may take any number."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"place": save_place(self.place), "in_one": self.in_one}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Stop":
        """Return what was saved."""
        return cls(load_place(saved["place"]), bool(saved["in_one"]))


def compare(one: SourceOffset, other: SourceOffset) -> int | None:
    """Return -1, 0 or 1 if `one` lies before, at or behind `other`, and None if neither can be said.

    A partition that is not named was not read. Empty steps at one place count. Of which query an offset is does not.

    >>> inside, whole = SourceOffset("q", 2, {0: 7}), SourceOffset("q", 2, {0: 9})
    >>> compare(inside, whole), compare(whole, SourceOffset("r", 2, {0: 9})), compare(whole, inside)
    (-1, 0, 1)
    >>> compare(SourceOffset("q", 2, {0: 7, 1: 1}), SourceOffset("q", 2, {0: 5, 1: 3})) is None
    True
    """
    partitions = one.cut.keys() | other.cut.keys()
    behind = any(one.cut.get(partition, 0) < other.cut.get(partition, 0) for partition in partitions)
    ahead = any(one.cut.get(partition, 0) > other.cut.get(partition, 0) for partition in partitions)
    if behind and ahead:
        return None
    by_rows = ahead - behind
    # Time goes on also where no row comes; but whoever is later has not read less.
    by_ts = _sign(_number(one.ts), _number(other.ts))
    if by_ts:
        return by_ts if by_rows in (0, by_ts) else None
    return by_rows or _sign(one.step, other.step)


def before_stop(source: str, stops: Sequence[Stop], start: SourceOffset, wanted: SourceOffset) -> SourceOffset:
    """Return where a batch of a source ends that would go from `start` to `wanted`, if it must not pass a stop.

    A source that has come to the first of the stops waits there, until that is none any more.

    >>> at = lambda end: SourceOffset("q", 1, {0: end})
    >>> stops = (Stop({"s": at(5)}, in_one=False), Stop({"s": at(9)}, in_one=True))
    >>> before_stop("s", stops, at(0), at(3)).cut, before_stop("s", stops, at(3), at(7)).cut
    ({0: 3}, {0: 5})
    >>> before_stop("s", stops, at(5), at(7)).cut, before_stop("s", stops[1:], at(5), at(7)).cut
    ({0: 5}, {0: 9})
    """
    stop = next((stop for stop in stops if source in stop.place), None)
    if stop is None:
        return wanted
    end = replace(stop.place[source], incarnation=start.incarnation)
    if compare(start, end) != -1:
        return start
    is_on_the_way = compare(start, wanted) == -1 and compare(wanted, end) == -1
    return wanted if is_on_the_way and not stop.in_one else end


def save_place(place: Place) -> dict[str, Any]:
    """Return a place as JSON values."""
    return {source: offset.save() for source, offset in sorted(place.items())}


def load_place(saved: Mapping[str, Any]) -> dict[str, SourceOffset]:
    """Return a place that was saved."""
    return {str(source): SourceOffset.load(offset) for source, offset in saved.items()}


def _number(ts: int | None) -> float | int:
    return float("-inf") if ts is None else ts


def _sign(one: float, other: float) -> int:
    return (one > other) - (one < other)
