"""The order of offsets: first by timestamp, then by how far inside it was read."""

from collections.abc import Mapping

from floodmark.bindings import SourceOffset
from floodmark.errors import SinkBatchInvalid

Place = Mapping[str, SourceOffset]
"""Where a query is, in all of its sources: {source: offset}."""


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


def is_at_most(one: Place, other: Place) -> bool:
    """Return whether `one` lies at or before `other` in every source; both have the same.

    >>> is_at_most({"a": SourceOffset("q", 1, {0: 5})}, {"a": SourceOffset("q", 2, {0: 5})})
    True
    """
    return all(order_in(source, offset, other[source]) <= 0 for source, offset in one.items())


def is_same(one: Place, other: Place) -> bool:
    """Return whether two places are the same in every source."""
    return all(order_in(source, offset, other[source]) == 0 for source, offset in one.items())


def order_in(source: str, one: SourceOffset, other: SourceOffset) -> int:
    """Return how two offsets of a source lie, or refuse those that cannot be compared."""
    found = compare(one, other)
    if found is None:
        raise SinkBatchInvalid(
            f"The source {source!r} is at {_shown(one)} in a batch, neither before nor behind {_shown(other)}.",
            rule="Everybody reads a source in the order of its timestamps, and so passes the same places.",
            remedy="Start the query at a timestamp, not at a cut of its own; see that the home is the same one.",
            source=source,
            offset=one.save(),
            other=other.save(),
        )
    return found


def _shown(offset: SourceOffset) -> str:
    return f"{offset.ts} {dict(sorted(offset.cut.items()))}"


def _number(ts: int | None) -> float | int:
    return float("-inf") if ts is None else ts


def _sign(one: float, other: float) -> int:
    return (one > other) - (one < other)
