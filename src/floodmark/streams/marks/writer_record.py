"""What is known of a writer on one stream and key: its last mark, when it was taken, and the writer's state."""

import enum
from dataclasses import dataclass, field, replace

from floodmark._util.ints import check_int64, check_watermark
from floodmark.errors import InvalidValue, WriterClosed, WriterSuperseded
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, check_position, furthest


class WriterState(enum.Enum):
    """What a writer does, as far as anybody knows."""

    ALIVE = "alive"
    IDLE = "idle"
    """It said that nothing comes for now. A mark makes it alive again."""
    CLOSED = "closed"
    """It said that nothing comes any more. A mark, or opening it again, makes it alive again."""
    TIMED_OUT = "timed out"
    """It was silent for too long while others waited. A mark makes it alive again."""


class MarkOutcome(enum.Enum):
    """What became of a mark."""

    ACCEPTED = "accepted"
    TIME_WENT_BACK = "time went back"
    """The time is below that of the writer's last mark; nothing was changed."""
    POSITION_WENT_BACK = "position went back"
    """In some segment the offset is below that of the writer's last mark; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A writer's claim: all my events before this position are written, and those after it have at least this time.

    >>> Mark(100, {0: 10})
    Mark(time=100, position={0: 10})
    """

    time: int
    position: Position


@dataclass(frozen=True, slots=True)
class NotedMark:
    """What became of a mark, and the record after it: the same one if the mark was refused."""

    outcome: MarkOutcome
    record: "WriterRecord"


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """What the store keeps of a writer for one stream and key. It does not change: each step returns the next one.

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
    """Raised whenever the writer is opened again; only the newest instance is heard."""
    state: WriterState
    heard_at: int
    """When its last mark was accepted or, without one, when it was opened. Its timeout counts from here."""
    time: int | None = None
    """The time of its last mark."""
    position: Position = field(default_factory=dict)
    """How far it is known to have written."""
    marked_since: int | None = None
    """When its first mark was accepted."""
    ahead_since: int | None = None
    """When a mark first took it, alive, above the watermark of that time."""
    set_aside: bool = False
    """It came behind the watermark, timed out or took too long: nobody waits for it until it is ahead again."""

    @property
    def mark(self) -> Mark | None:
        """Its last mark, at the position it has come to since."""
        return None if self.time is None else Mark(self.time, self.position)

    @classmethod
    def open(cls, writer: str, *, now: int) -> "WriterRecord":
        """Return the record of a new writer. It has no time yet, so the watermark waits for it, up to its timeout."""
        return cls(_check_writer(writer), 1, WriterState.ALIVE, check_int64(now, "now"))

    def open_again(self, *, now: int) -> "WriterRecord":
        """Take the writer over: go on from its mark, as the newest instance.

        Only a closed one is made alive by that; one that is idle or timed out comes back with its next mark.

        >>> WriterRecord.open("w1", now=0).open_again(now=9).instance
        2
        """
        newest = replace(self, instance=self.instance + 1)
        if self.state is not WriterState.CLOSED:
            return newest
        return replace(newest, state=WriterState.ALIVE, heard_at=check_int64(now, "now"))

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
        """Take a mark, or say why not. `watermark` is the last `lower` in the marks log.

        Neither the time nor a segment that both positions have may go back; to stand still is no error, so that a
        mark can be sent twice. Segments that are not named keep their place: what the writer wrote there is still
        there. A mark that is refused changes nothing, and does not count as being heard.

        >>> record = WriterRecord.open("w1", now=0)
        >>> record = record.note(100, {0: 10, 1: 7}, layout=Layout.create(2), now=5).record
        >>> record.note(100, {1: 8}, layout=Layout.create(2), now=6).record.mark
        Mark(time=100, position={0: 10, 1: 8})
        >>> record.note(101, {0: 9}, layout=Layout.create(2), now=6).outcome.value
        'position went back'
        """
        self.check_instance(instance)
        time, now = check_watermark(time, "time of the mark"), check_int64(now, "now")
        fresh = check_position(layout, position)
        if self.time is not None and time < self.time:
            return NotedMark(MarkOutcome.TIME_WENT_BACK, self)
        stored = self.position
        if any(offset < stored.get(number, 0) for number, offset in fresh.items()):
            return NotedMark(MarkOutcome.POSITION_WENT_BACK, self)
        if fresh.keys() != stored.keys():
            fresh = furthest(layout, [stored, fresh])
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
                position=fresh,
                marked_since=now if self.marked_since is None else self.marked_since,
                ahead_since=self.ahead_since if was_ahead else now if is_ahead else None,
                set_aside=self.set_aside or is_behind,
            ),
        )

    def moved(self, position: Position, *, layout: Layout) -> "WriterRecord":
        """Take where a writer has come to since its last mark, before it closes or goes idle: it has no new time.

        >>> record = WriterRecord.open("w1", now=0).note(100, {0: 10}, layout=Layout.create(1), now=5).record
        >>> record.moved({0: 15}, layout=Layout.create(1)).close().mark
        Mark(time=100, position={0: 15})
        """
        reached = furthest(layout, [self.position, check_position(layout, position)])
        return replace(self, position=reached)

    def idle(self, *, instance: int | None = None) -> "WriterRecord":
        """Take the writer's word that nothing comes for now; to say so twice is no error.

        >>> WriterRecord.open("w1", now=0).idle().state.value
        'idle'
        """
        self.check_instance(instance)
        if self.state is WriterState.CLOSED:
            raise WriterClosed(
                f"The writer {self.writer!r} is closed.",
                rule="Only an open writer can be idle.",
                remedy="Open it again first.",
                writer=self.writer,
            )
        return replace(self, state=WriterState.IDLE)

    def close(self, *, instance: int | None = None) -> "WriterRecord":
        """Take the writer's word that nothing comes any more; to say so twice is no error.

        >>> WriterRecord.open("w1", now=0).close().state.value
        'closed'
        """
        self.check_instance(instance)
        return replace(self, state=WriterState.CLOSED)

    def check_instance(self, instance: int | None) -> None:
        """Refuse what an older instance of this writer says.

        >>> WriterRecord.open("w1", now=0).open_again(now=9).check_instance(1)
        Traceback (most recent call last):
        floodmark.errors.WriterSuperseded: Instance 1 of the writer 'w1' was superseded ... [writer-superseded]
        """
        if instance is not None and instance != self.instance:
            raise WriterSuperseded(
                f"Instance {instance} of the writer {self.writer!r} was superseded by instance {self.instance}.",
                rule="A writer id is used by one writer at a time, the one opened last.",
                remedy="Stop this one; to go on here, open the writer again.",
                writer=self.writer,
                instance=instance,
                newest=self.instance,
            )


def _check_writer(writer: object) -> str:
    if isinstance(writer, str) and writer:
        return writer
    raise InvalidValue(
        f"The writer id is {writer!r}.",
        rule="It is a string that is not empty.",
        remedy="Use a name that stays the same when the writer is started again.",
        writer=writer,
    )
