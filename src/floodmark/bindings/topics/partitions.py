"""Partitions of topics: their numbers in a source, offsets as users write them, and the watermark over all of them.

There is no clock and no I/O here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark.errors import InvalidOption
from floodmark.progress import BoundedDisorder

MAX_PARTITIONS: Final = 1_000_000
"""More than any topic has."""

EARLIEST: Final = -2
LATEST: Final = -1


def join_partition(place: int, partition: int) -> int:
    """Return the number of a partition of the topic at this place in the sorted list of topics.

    >>> join_partition(0, 3), join_partition(2, 3)
    (3, 2000003)
    """
    return place * MAX_PARTITIONS + partition


def split_partition(part: int) -> tuple[int, int]:
    """Return the place of the topic, and the partition in it.

    >>> split_partition(join_partition(2, 3))
    (2, 3)
    """
    return divmod(part, MAX_PARTITIONS)


def parse_offsets(text: str, option: str, topics: Sequence[str], counts: Mapping[str, int]) -> dict[int, int]:
    """Return offsets that were written as JSON, as Spark's own source takes them: -2 is earliest, -1 is latest.

    >>> parse_offsets('{"orders": {"0": 23, "1": -2}}', "startingOffsets", ["orders"], {"orders": 2})
    {0: 23, 1: -2}
    """
    try:
        given = {
            str(topic): {int(partition): _check_offset(offset) for partition, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _offsets_refused(
            option, text, "It is earliest, latest, or JSON: {topic: {partition: offset}}."
        ) from error
    wanted = {topic: set(range(counts[topic])) for topic in topics}
    if {topic: set(offsets) for topic, offsets in given.items()} != wanted:
        shown = ", ".join(f"{topic} 0 to {counts[topic] - 1}" for topic in topics)
        raise _offsets_refused(
            option, text, f"It names each partition of each topic that is read, and no other: {shown}."
        )
    return {
        join_partition(place, partition): offset
        for place, topic in enumerate(topics)
        for partition, offset in sorted(given[topic].items())
    }


def _check_offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError("no offset")
    return value


def _offsets_refused(option: str, text: str, rule: str) -> InvalidOption:
    return InvalidOption(
        f"{option} is {text!r:.100}.",
        rule=rule,
        remedy="""Write for example {"orders": {"0": 23, "1": -2}}; -2 is earliest and -1 is latest.""",
        option=option,
        value=text,
    )


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
class PartitionProgress:
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

        >>> PartitionProgress("orders-0", 7, end=5, bound=5, read_to=4, moved_at=0).is_caught_up
        False
        """
        return self.bound >= self.end and (self.read_to is None or self.read_to >= self.end)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
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
class TopicWatermark:
    """How far time has come over all partitions, and what each of them says."""

    watermark: int | None
    is_idle: bool
    partitions: tuple[PartitionStatus, ...]

    @property
    def holders(self) -> tuple[str, ...]:
        """The partitions without which time would have come further."""
        return tuple(view.name for view in self.partitions if view.holds)

    def __str__(self) -> str:
        """Return the answer in one line, and the partitions below it."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        who = "all partitions are idle" if self.is_idle else f"held by {', '.join(self.holders) or 'nobody'}"
        return "\n".join([f"{where}, {who}", *(f"  {view}" for view in self.partitions)])


def coalesce_partitions(partitions: Iterable[PartitionProgress], now: int, rule: TimeRule) -> TopicWatermark:
    """Return how far time has come: the least watermark of those that are not idle, the greatest if all are.

    A partition without any row holds the others until it is idle. It is idle if it has not grown for as long as the
    rule says, and has nothing that waits to be bound or read. What was told before may be later: a watermark that was
    given is never taken back, which is for the caller to see to.

    >>> known = [
    ...     PartitionProgress("a", 70, 5, 5, None, moved_at=0),
    ...     PartitionProgress("b", 40, 5, 5, None, moved_at=60),
    ... ]
    >>> (
    ...     coalesce_partitions(known, 100, TimeRule()).watermark,
    ...     coalesce_partitions(known, 150, TimeRule(idle=100)).watermark,
    ... )
    (40, 40)
    >>> found = coalesce_partitions(known, 120, TimeRule(idle=50))
    >>> found.watermark, found.is_idle, coalesce_partitions(known[:1], 0, TimeRule(delay=10)).holders
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
        PartitionStatus(
            one.name, watermark, is_idle, one.is_caught_up, one.moved_at, not is_idle and watermark == least
        )
        for one, watermark, is_idle in told
    )
    return TopicWatermark(least, bool(told) and not active, tuple(views))


def _is_idle(partition: PartitionProgress, now: int, rule: TimeRule) -> bool:
    return rule.idle is not None and now - partition.moved_at >= rule.idle and partition.is_caught_up
