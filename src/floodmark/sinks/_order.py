"""The order of places: they come before one another in every source, or not at all."""

from floodmark.bindings import Place, SourceOffset, compare
from floodmark.errors import SinkBatchInvalid


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
