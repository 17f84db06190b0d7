"""Partitions of topics: their numbers in a source, offsets as users write them, and the watermark over all of them.

Pure rules: no clock, no I/O.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark.errors import InvalidOption
from floodmark.progress import BoundedDisorder

MAX_PARTITIONS: Final = 1_000_000
"""Stride between the partition numbers of two topics; no topic has more partitions."""

EARLIEST: Final = -2
LATEST: Final = -1


def join_partition(index: int, partition: int) -> int:
    """Return the number in a source of a partition of the topic at `index` in the sorted list of topics.

    >>> join_partition(0, 3), join_partition(2, 3)
    (3, 2000003)
    """
    return index * MAX_PARTITIONS + partition


def split_partition(part: int) -> tuple[int, int]:
    """Return the index of the topic, and the partition in it.

    >>> split_partition(join_partition(2, 3))
    (2, 3)
    """
    return divmod(part, MAX_PARTITIONS)


def parse_offsets(text: str, option: str, topics: Sequence[str], counts: Mapping[str, int]) -> dict[int, int]:
    """Return offsets from JSON in the format of Spark's Kafka source: -2 is earliest, -1 is latest.

    >>> parse_offsets('{"orders": {"0": 23, "1": -2}}', "startingOffsets", ["orders"], {"orders": 2})
    {0: 23, 1: -2}
    """
    try:
        by_topic = {
            str(topic): {int(partition): _check_offset(offset) for partition, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _offsets_refused(
            option, text, "It must be earliest, latest, or JSON: {topic: {partition: offset}}."
        ) from error
    partitions = {topic: set(range(counts[topic])) for topic in topics}
    if {topic: set(offsets) for topic, offsets in by_topic.items()} != partitions:
        shown = ", ".join(f"{topic} 0 to {counts[topic] - 1}" for topic in topics)
        raise _offsets_refused(
            option, text, f"It must name each partition of each topic that is read, and no other: {shown}."
        )
    return {
        join_partition(index, partition): offset
        for index, topic in enumerate(topics)
        for partition, offset in sorted(by_topic[topic].items())
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
    """How the watermark of a partition follows from its records. Durations and times are in microseconds.

    >>> TimeRule(delay=5_000_000).watermark_of(7_000_000)
    2000000
    """

    key: str = "timestamp"
    """The time key: a column of the values, or "timestamp" for the timestamp of the Kafka record."""
    is_read: bool = False
    """Whether times are in the values, so that only readers know them."""
    delay: int = 0
    idle: int | None = None
    """After this long without new or unread records a partition is idle; None: never."""
    future: int | None = None
    """How far ahead of the clock a time may be and still count; None: any."""

    def latest(self, now: int) -> int | None:
        """Return the latest time that counts at `now`; None if there is no limit.

        >>> TimeRule(future=60).latest(1000)
        1060
        """
        return None if self.future is None else now + self.future

    def watermark_of(self, newest: int | None) -> int | None:
        """Return the watermark of a partition whose greatest time is `newest`."""
        return BoundedDisorder(self.delay).watermark(newest, now=0)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress of one partition. `read_to` is None if its time is known without reading its values."""

    name: str
    newest: int | None
    end: int
    bound: int
    read_to: int | None
    moved_at: int

    @property
    def is_caught_up(self) -> bool:
        """Whether all records are bound and, if times are in the values, read.

        >>> PartitionProgress("orders-0", 7, end=5, bound=5, read_to=4, moved_at=0).is_caught_up
        False
        """
        return self.bound >= self.end and (self.read_to is None or self.read_to >= self.end)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The watermark of a partition, and whether it holds back the watermark of the source; it last grew at `since`."""

    name: str
    watermark: int | None
    is_idle: bool
    is_caught_up: bool
    since: int
    holds: bool

    def __str__(self) -> str:
        """Return one line of text."""
        where = "no row yet" if self.watermark is None else f"at {self.watermark}"
        state = "idle" if self.is_idle else "active"
        unread = "" if self.is_caught_up else ", has unread rows"
        return f"{self.name}: {state}, {where}, last grew at {self.since}{unread}{', holds' if self.holds else ''}"


@dataclass(frozen=True, slots=True)
class TopicWatermark:
    """The watermark over all partitions, and the status of each."""

    watermark: int | None
    is_idle: bool
    partitions: tuple[PartitionStatus, ...]

    @property
    def holders(self) -> tuple[str, ...]:
        """The partitions that hold back the watermark."""
        return tuple(status.name for status in self.partitions if status.holds)

    def __str__(self) -> str:
        """Return one line for the watermark, and one below it for each partition."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        holders = "all partitions are idle" if self.is_idle else f"held by {', '.join(self.holders) or 'nothing'}"
        return "\n".join([f"{where}, {holders}", *(f"  {status}" for status in self.partitions)])


def coalesce_partitions(partitions: Iterable[PartitionProgress], now: int, rule: TimeRule) -> TopicWatermark:
    """Return the watermark over partitions: the minimum of those that are not idle, the maximum if all are idle.

    A partition without records holds back the others until it is idle. It is idle if it has not grown for as long as
    the rule says and has no unbound or unread records. The result may lie below an earlier one: the caller must not
    take back a watermark.

    >>> progress = [
    ...     PartitionProgress("a", 70, 5, 5, None, moved_at=0),
    ...     PartitionProgress("b", 40, 5, 5, None, moved_at=60),
    ... ]
    >>> (
    ...     coalesce_partitions(progress, 100, TimeRule()).watermark,
    ...     coalesce_partitions(progress, 150, TimeRule(idle=100)).watermark,
    ... )
    (40, 40)
    >>> result = coalesce_partitions(progress, 120, TimeRule(idle=50))
    >>> result.watermark, result.is_idle, coalesce_partitions(progress[:1], 0, TimeRule(delay=10)).holders
    (70, True, ('a',))
    """
    states = [
        (partition, rule.watermark_of(partition.newest), _is_idle(partition, now, rule)) for partition in partitions
    ]
    active = [watermark for _, watermark, is_idle in states if not is_idle]
    times = [watermark for watermark in active if watermark is not None]
    if active:
        least = min(times) if len(times) == len(active) else None
    else:
        least = max((watermark for _, watermark, _ in states if watermark is not None), default=None)
    statuses = (
        PartitionStatus(
            partition.name,
            watermark,
            is_idle,
            partition.is_caught_up,
            partition.moved_at,
            not is_idle and watermark == least,
        )
        for partition, watermark, is_idle in states
    )
    return TopicWatermark(least, bool(states) and not active, tuple(statuses))


def _is_idle(partition: PartitionProgress, now: int, rule: TimeRule) -> bool:
    return rule.idle is not None and now - partition.moved_at >= rule.idle and partition.is_caught_up
