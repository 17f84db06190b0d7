"""How far time has come over the partitions of a topic: the least of those that are not idle. No clock, no I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

from floodmark.progress import BoundedDisorder


@dataclass(frozen=True, slots=True)
class TimeRule:
    """How the time of a partition follows from its records. Durations and times are in microseconds.

    >>> TimeRule(delay=5_000_000).watermark_of(7_000_000)
    2000000
    """

    key: str = "timestamp"
    """The time key: the name of a column of the values, or "timestamp" for Kafka's own."""
    is_read: bool = False
    """Whether times are in the values, so that only who reads them knows."""
    delay: int = 0
    idle: int | None = None
    """After how long a partition that has nothing new, and nothing unread, is waited for no more; None for never."""
    future: int | None = None
    """How far ahead of the clock a time may be and still count; None for any."""

    def latest(self, now: int) -> int | None:
        """Return the latest time that counts.

        >>> TimeRule(future=60).latest(1000)
        1060
        """
        return None if self.future is None else now + self.future

    def watermark_of(self, newest: int | None) -> int | None:
        """Return the watermark of a partition whose greatest time is `newest`."""
        return BoundedDisorder(self.delay).watermark(newest, now=0)


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """What is known of a partition. `read_to` is None where its time is known without reading it."""

    name: str
    newest: int | None
    end: int
    bound: int
    read_to: int | None
    moved_at: int

    @property
    def is_caught_up(self) -> bool:
        """Whether all that is there is bound and, where it matters, read.

        >>> PartitionTime("orders-0", 7, end=5, bound=5, read_to=4, moved_at=0).is_caught_up
        False
        """
        return self.bound >= self.end and (self.read_to is None or self.read_to >= self.end)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What a partition says of its time, and whether it holds the others. It last grew at `since`."""

    name: str
    watermark: int | None
    is_idle: bool
    is_caught_up: bool
    since: int
    holds: bool

    def __str__(self) -> str:
        """Return one line for a person."""
        where = "no row yet" if self.watermark is None else f"at {self.watermark}"
        state = "idle" if self.is_idle else "active"
        unread = "" if self.is_caught_up else ", has unread rows"
        return f"{self.name}: {state}, {where}, last grew at {self.since}{unread}{', holds' if self.holds else ''}"


@dataclass(frozen=True, slots=True)
class TopicTime:
    """How far time has come over all partitions, and what each of them says."""

    watermark: int | None
    is_idle: bool
    partitions: tuple[PartitionView, ...]

    @property
    def holders(self) -> tuple[str, ...]:
        """The partitions without which time would have come further."""
        return tuple(view.name for view in self.partitions if view.holds)

    def __str__(self) -> str:
        """Return the answer in one line, and the partitions below it."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        who = "all partitions are idle" if self.is_idle else f"held by {', '.join(self.holders) or 'nobody'}"
        return "\n".join([f"{where}, {who}", *(f"  {view}" for view in self.partitions)])


def coalesced(partitions: Iterable[PartitionTime], now: int, rule: TimeRule) -> TopicTime:
    """Return how far time has come: the least watermark of those that are not idle, the greatest if all are.

    A partition without any row holds the others until it is idle. It is idle if it has not grown for as long as the
    rule says, and has nothing that waits to be bound or read. What was told before may be later: a watermark that was
    given is never taken back, which is for the caller to see to.

    >>> known = [PartitionTime("a", 70, 5, 5, None, moved_at=0), PartitionTime("b", 40, 5, 5, None, moved_at=60)]
    >>> coalesced(known, 100, TimeRule()).watermark, coalesced(known, 150, TimeRule(idle=100)).watermark
    (40, 40)
    >>> found = coalesced(known, 120, TimeRule(idle=50))
    >>> found.watermark, found.is_idle, coalesced(known[:1], 0, TimeRule(delay=10)).holders
    (70, True, ('a',))
    """
    told = [(one, rule.watermark_of(one.newest), _is_idle(one, now, rule)) for one in partitions]
    active = [watermark for _, watermark, is_idle in told if not is_idle]
    known = [watermark for watermark in active if watermark is not None]
    if active:
        least = min(known) if len(known) == len(active) else None
    else:
        least = max((watermark for _, watermark, _ in told if watermark is not None), default=None)
    views = (
        PartitionView(one.name, watermark, is_idle, one.is_caught_up, one.moved_at, not is_idle and watermark == least)
        for one, watermark, is_idle in told
    )
    return TopicTime(least, bool(told) and not active, tuple(views))


def _is_idle(partition: PartitionTime, now: int, rule: TimeRule) -> bool:
    return rule.idle is not None and now - partition.moved_at >= rule.idle and partition.is_caught_up
