"""The record of a writer on one stream and key: its last mark, when it was accepted, and the writer's state."""

import enum
from dataclasses import dataclass, field, replace

from floodmark._util.ints import check_int64, check_watermark
from floodmark._util.times import past_time
from floodmark.errors import InvalidValue, WriterClosed, WriterSuperseded
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, check_position, furthest_position


class WriterState(enum.Enum):
    """The state of a writer."""

    ALIVE = "alive"
    IDLE = "idle"
    """The writer declared itself idle. A mark makes it alive again."""
    CLOSED = "closed"
    """The writer was closed. A mark, or opening it again, makes it alive again."""
    TIMED_OUT = "timed out"
    """The writer sent no mark for longer than its timeout. A mark makes it alive again."""


class MarkOutcome(enum.Enum):
    """Whether a mark was accepted, and if not, why."""

    ACCEPTED = "accepted"
    TIME_WENT_BACK = "time went back"
    """The time is below that of the writer's last mark; the mark was ignored."""
    POSITION_WENT_BACK = "position went back"
    """In some segment the offset is below that of the writer's last mark; the mark was ignored."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A writer's promise: its events before this position are written, and later ones have at least this time.

    >>> Mark(100, {0: 10})
    Mark(time=100, position={0: 10})
    """

    time: int
    position: Position


@dataclass(frozen=True, slots=True)
class NotedMark:
    """The outcome of a mark, and the record after it (unchanged if the mark was refused)."""

    outcome: MarkOutcome
    record: "WriterRecord"


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """What the store keeps of a writer for one stream and key. It is immutable: each method returns a new record.

    >>> layout = Layout.create(1)
    >>> opened = WriterRecord.open("w1", now=0)
    >>> noted = opened.note(100, {0: 10}, layout=layout, now=5)
    >>> noted.outcome.value, noted.record.mark
    ('accepted', Mark(time=100, position={0: 10}))
    >>> noted.record.note(99, {0: 12}, layout=layout, now=6).outcome.value
    'time went back'
    """

    writer: str
    instance: int
    """Incremented each time the writer is opened again; older instances are fenced."""
    state: WriterState
    heard_at: int
    """When its last mark was accepted, or when it was opened if it has none. Its timeout counts from here."""
    time: int | None = None
    """The time of its last mark."""
    position: Position = field(default_factory=dict)
    """The position up to which it is known to have written."""
    marked_since: int | None = None
    """When its first mark was accepted."""
    ahead_since: int | None = None
    """Since when it has been alive and above the watermark without interruption."""
    set_aside: bool = False
    """The watermark does not wait for it until it is ahead again: it fell behind, timed out or took too long."""

    @property
    def mark(self) -> Mark | None:
        """The time of its last mark, with its newest position; None without a mark."""
        return None if self.time is None else Mark(self.time, self.position)

    @classmethod
    def open(cls, writer: str, *, now: int) -> "WriterRecord":
        """Return the record of a new writer. It has no mark yet, so the watermark waits for it, up to its timeout."""
        return cls(_check_writer(writer), 1, WriterState.ALIVE, check_int64(now, "now"))

    def open_again(self, *, now: int) -> "WriterRecord":
        """Open the writer as a new instance that continues from its last mark.

        A closed writer becomes alive. An idle or timed-out writer stays so until its next mark.

        >>> WriterRecord.open("w1", now=0).open_again(now=9).instance
        2
        """
        reopened = replace(self, instance=self.instance + 1)
        if self.state is not WriterState.CLOSED:
            return reopened
        return replace(reopened, state=WriterState.ALIVE, heard_at=check_int64(now, "now"))

    def note(
        self,
        time: int,
        position: Position,
        *,
        layout: Layout,
        now: int,
        watermark: int | None = None,
        instance: int | None = None,
    ) -> NotedMark:
        """Accept or refuse a mark. `watermark` is the last `lower` in the marks log.

        A mark is refused if its time, or its offset in any segment, is below that of the last mark. Equal values are
        accepted, so sending a mark again is idempotent. Segments that the mark does not name keep their offset. A
        refused mark changes nothing and does not extend the writer's timeout.

        >>> record = WriterRecord.open("w1", now=0)
        >>> record = record.note(100, {0: 10, 1: 7}, layout=Layout.create(2), now=5).record
        >>> record.note(100, {1: 8}, layout=Layout.create(2), now=6).record.mark
        Mark(time=100, position={0: 10, 1: 8})
        >>> record.note(101, {0: 9}, layout=Layout.create(2), now=6).outcome.value
        'position went back'
        """
        self.check_instance(instance)
        time, now = check_watermark(time, "time of the mark"), check_int64(now, "now")
        reached = check_position(layout, position)
        if self.time is not None and time < self.time:
            return NotedMark(MarkOutcome.TIME_WENT_BACK, self)
        stored = self.position
        if any(offset < stored.get(number, 0) for number, offset in reached.items()):
            return NotedMark(MarkOutcome.POSITION_WENT_BACK, self)
        if reached.keys() != stored.keys():
            reached = furthest_position(layout, [stored, reached])
        is_ahead = watermark is None or time > watermark
        was_ahead = (
            self.state is WriterState.ALIVE and self.time is not None and (watermark is None or self.time > watermark)
        )
        is_behind = watermark is not None and time < watermark
        return NotedMark(
            MarkOutcome.ACCEPTED,
            replace(
                self,
                state=WriterState.ALIVE,
                heard_at=now,
                time=time,
                position=reached,
                marked_since=now if self.marked_since is None else self.marked_since,
                ahead_since=self.ahead_since if was_ahead else now if is_ahead else None,
                set_aside=self.set_aside or is_behind,
            ),
        )

    def moved(self, position: Position, *, layout: Layout) -> "WriterRecord":
        """Return the record at a later position without a new mark, as when a writer closes or becomes idle.

        >>> record = WriterRecord.open("w1", now=0).note(100, {0: 10}, layout=Layout.create(1), now=5).record
        >>> record.moved({0: 15}, layout=Layout.create(1)).close().mark
        Mark(time=100, position={0: 15})
        """
        reached = furthest_position(layout, [self.position, check_position(layout, position)])
        return replace(self, position=reached)

    def rewound(self, *, now: int) -> "WriterRecord":
        """Return the record after the clock was set back: times in the future count as now; see `past_time`.

        >>> WriterRecord.open("w1", now=3_700).rewound(now=100).heard_at
        100
        """
        if self.latest_time <= now:
            return self
        marked, ahead = self.marked_since, self.ahead_since
        return replace(
            self,
            heard_at=past_time(self.heard_at, now),
            marked_since=None if marked is None else past_time(marked, now),
            ahead_since=None if ahead is None else past_time(ahead, now),
        )

    @property
    def latest_time(self) -> int:
        """The latest time by the store's clock in the record. It is in the future if the clock was set back."""
        return max(self.heard_at, self.marked_since or self.heard_at, self.ahead_since or self.heard_at)

    def idle(self, *, instance: int | None = None) -> "WriterRecord":
        """Return the record of an idle writer. Idempotent.

        >>> WriterRecord.open("w1", now=0).idle().state.value
        'idle'
        """
        self.check_instance(instance)
        if self.state is WriterState.CLOSED:
            raise WriterClosed(
                f"The writer {self.writer!r} is closed.",
                rule="Only an open writer can be idle.",
                remedy="Open it again with stream.writer(id) before mark_idle().",
                writer=self.writer,
            )
        return replace(self, state=WriterState.IDLE)

    def close(self, *, instance: int | None = None) -> "WriterRecord":
        """Return the record of a closed writer. Idempotent.

        >>> WriterRecord.open("w1", now=0).close().state.value
        'closed'
        """
        self.check_instance(instance)
        return replace(self, state=WriterState.CLOSED)

    def check_instance(self, instance: int | None) -> None:
        """Raise `WriterSuperseded` if `instance` is given and is not the newest instance (fencing).

        >>> WriterRecord.open("w1", now=0).open_again(now=9).check_instance(1)
        Traceback (most recent call last):
        floodmark.errors.WriterSuperseded: Instance 1 of the writer 'w1' was superseded ... [writer-superseded]
        """
        if instance is not None and instance != self.instance:
            raise WriterSuperseded(
                f"Instance {instance} of the writer {self.writer!r} was superseded by instance {self.instance}.",
                rule="A writer id is used by one writer at a time, the one opened last.",
                remedy="Stop this writer, or give each process its own writer id; to continue here, open it again.",
                writer=self.writer,
                instance=instance,
                newest=self.instance,
            )


def _check_writer(writer: object) -> str:
    if isinstance(writer, str) and writer:
        return writer
    raise InvalidValue(
        f"The writer id is {writer!r}.",
        rule="It is a non-empty string.",
        remedy="Use a name that stays the same when the writer is restarted, for example 'till-3'.",
        writer=writer,
    )
