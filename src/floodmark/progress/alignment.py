"""Alignment: how far ahead of the slowest a source, or one partition of it, may read."""

from dataclasses import dataclass

from floodmark._util.ints import INT64_MAX, check_watermark
from floodmark._util.names import Name
from floodmark.errors import UnknownInput
from floodmark.progress.generators import check_duration


@dataclass(frozen=True, slots=True)
class _Member:
    """What was last heard of one partition of a source."""

    time: int
    is_idle: bool = False


class Alignment:
    """Holds fast inputs back: each may read up to the lowest time that any active one reported, plus a drift.

    >>> group = Alignment(drift=1000)
    >>> group.report("orders", 42)
    1042
    >>> group.report("payments", 5000)
    1042
    >>> group.is_held("payments"), group.is_held("orders")
    (True, False)

    A source may report for itself or for each of its partitions; what counts is the lowest. A source that has not
    reported yet, is idle, has finished or was removed, holds nobody back. Unlike a watermark, the allowed time may
    fall: when an input comes back that lags. Held means strictly above it.
    """

    __slots__ = ("_drift", "_members")

    def __init__(self, drift: int) -> None:
        """Allow `drift` ahead of the slowest input."""
        self._drift = check_duration("drift", drift)
        self._members: dict[tuple[Name, Name | None], _Member] = {}

    def report(self, source: Name, time: int, *, partition: Name | None = None) -> int | None:
        """Take how far an input has come, which makes it active; return what is allowed now."""
        self._members[source, partition] = _Member(check_watermark(time))
        return self.allowed

    def idle(self, source: Name, *, partition: Name | None = None) -> int | None:
        """Let an input hold nobody back until it reports again; return what is allowed now.

        >>> group = Alignment(drift=10)
        >>> _ = group.report("orders", 1), group.report("payments", 500)
        >>> group.idle("orders")
        510
        """
        self._members[source, partition] = _Member(self._member(source, partition).time, is_idle=True)
        return self.allowed

    def remove(self, source: Name, *, partition: Name | None = None) -> int | None:
        """Forget an input, because it has finished or was taken out; return what is allowed now."""
        self._member(source, partition)
        del self._members[source, partition]
        return self.allowed

    @property
    def allowed(self) -> int | None:
        """The time up to which all may read; None if nobody holds anybody back."""
        active = [member.time for member in self._members.values() if not member.is_idle]
        return min(min(active) + self._drift, INT64_MAX) if active else None

    def is_held(self, source: Name, *, partition: Name | None = None) -> bool:
        """Return whether an input must wait: the partition, or without one the source by its slowest partition."""
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
            place
            for place, member in self._members.items()
            if allowed is not None and not member.is_idle and member.time > allowed
        )

    def slowest(self) -> tuple[tuple[Name, Name | None], ...]:
        """Return the inputs that hold the others back, as (source, partition).

        >>> group = Alignment(drift=1)
        >>> _ = group.report("orders", 3), group.report("payments", 12)
        >>> group.slowest()
        (('orders', None),)
        """
        active = {place: member.time for place, member in self._members.items() if not member.is_idle}
        lowest = min(active.values(), default=None)
        return tuple(place for place, time in active.items() if time == lowest)

    def _member(self, source: Name, partition: Name | None) -> _Member:
        member = self._members.get((source, partition))
        if member is None:
            where = "" if partition is None else f", partition {partition!r},"
            raise UnknownInput(
                f"The source {source!r}{where} has not reported.",
                rule="An input is known from its first report on.",
                remedy="Report first, or correct the name.",
                input=source,
                partition=partition,
            )
        return member
