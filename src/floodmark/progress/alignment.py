"""Alignment: how far ahead of the slowest input a source, or one of its partitions, may read."""

from dataclasses import dataclass

from floodmark._util.ints import INT64_MAX, check_watermark
from floodmark._util.names import Name
from floodmark.errors import UnknownInput
from floodmark.progress.generators import check_duration


@dataclass(frozen=True, slots=True)
class _Member:
    """The last report of a source or partition."""

    time: int
    is_idle: bool = False


class Alignment:
    """Limits fast inputs: each may read up to the lowest reported time of any active input, plus a drift.

    >>> group = Alignment(drift=1000)
    >>> group.report("orders", 42)
    1042
    >>> group.report("payments", 5000)
    1042
    >>> group.is_held("payments"), group.is_held("orders")
    (True, False)

    A source may report for itself or for each of its partitions; the lowest counts. A source that has not reported, is
    idle, or was removed does not hold back others. Unlike a watermark, the allowed time may fall, when a lagging input
    becomes active again. An input is held if its time is strictly above the allowed time.
    """

    __slots__ = ("_drift", "_members")

    def __init__(self, drift: int) -> None:
        """Allow `drift` ahead of the slowest input."""
        self._drift = check_duration("drift", drift)
        self._members: dict[tuple[Name, Name | None], _Member] = {}

    def report(self, source: Name, time: int, *, partition: Name | None = None) -> int | None:
        """Report the time of an input, which makes it active; return the allowed time."""
        self._members[source, partition] = _Member(check_watermark(time))
        return self.allowed

    def idle(self, source: Name, *, partition: Name | None = None) -> int | None:
        """Ignore an input until it reports again; return the allowed time.

        >>> group = Alignment(drift=10)
        >>> _ = group.report("orders", 1), group.report("payments", 500)
        >>> group.idle("orders")
        510
        """
        self._members[source, partition] = _Member(self._member(source, partition).time, is_idle=True)
        return self.allowed

    def remove(self, source: Name, *, partition: Name | None = None) -> int | None:
        """Remove an input; return the allowed time."""
        self._member(source, partition)
        del self._members[source, partition]
        return self.allowed

    @property
    def allowed(self) -> int | None:
        """The time up to which inputs may read; None if there is no limit."""
        active = [member.time for member in self._members.values() if not member.is_idle]
        return min(min(active) + self._drift, INT64_MAX) if active else None

    def is_held(self, source: Name, *, partition: Name | None = None) -> bool:
        """Return whether an input must wait; a source without `partition` is judged by its slowest partition."""
        allowed = self.allowed
        if partition is not None:
            members = [self._member(source, partition)]
        else:
            members = [member for (name, _), member in self._members.items() if name == source]
            if not members:
                members = [self._member(source, None)]
        active = [member.time for member in members if not member.is_idle]
        return bool(active) and allowed is not None and min(active) > allowed

    def held(self) -> tuple[tuple[Name, Name | None], ...]:
        """Return all inputs that must wait, as (source, partition).

        >>> group = Alignment(drift=1)
        >>> _ = group.report("orders", 3, partition=0), group.report("orders", 12, partition=1)
        >>> group.held()
        (('orders', 1),)
        """
        allowed = self.allowed
        return tuple(
            name
            for name, member in self._members.items()
            if allowed is not None and not member.is_idle and member.time > allowed
        )

    def slowest(self) -> tuple[tuple[Name, Name | None], ...]:
        """Return the inputs that hold back the others, as (source, partition).

        >>> group = Alignment(drift=1)
        >>> _ = group.report("orders", 3), group.report("payments", 12)
        >>> group.slowest()
        (('orders', None),)
        """
        active = {name: member.time for name, member in self._members.items() if not member.is_idle}
        lowest = min(active.values(), default=None)
        return tuple(name for name, time in active.items() if time == lowest)

    def _member(self, source: Name, partition: Name | None) -> _Member:
        member = self._members.get((source, partition))
        if member is None:
            where = "" if partition is None else f", partition {partition!r},"
            raise UnknownInput(
                f"The source {source!r}{where} has not reported.",
                rule="An input is known after its first report.",
                remedy=f"Call report({source!r}, ...) first, or check the name.",
                input=source,
                partition=partition,
            )
        return member
