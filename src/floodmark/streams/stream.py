"""A stream as programs use it: writers, scaling, reading segments, lookups by time, and its watermark."""

import time as clock
from collections.abc import Iterator, Sequence
from typing import Any

from floodmark._util.ints import check_int64
from floodmark._util.times import Duration, Time, duration_micros, time_in_unit
from floodmark.errors import OffsetOutOfRange, StateError
from floodmark.streams.definition import StreamInfo, StreamSettings, check_writer_id
from floodmark.streams.events import schema_of
from floodmark.streams.layout.layout import KeyRange, Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.layout.retention import RetentionStatus, head_cut
from floodmark.streams.marks.log import MarkEntry, MarksLookup, cut_at, ending_at, starting_at, time_at
from floodmark.streams.marks.watermark import WatermarkExplanation
from floodmark.streams.ports import Backend, Chunk, MarksPages
from floodmark.streams.writers.writer import RefusalPolicy, TransactionalWriter, Writer

_POLL_SECONDS = 0.005
_DEFAULT_MAX_ENTRIES = 1_000


class Stream:
    """A stream: ordered segments of events that divide a key space, with a log of watermarks.

    Get one from `StreamHome.create_stream` or `StreamHome.stream`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/orders", schema="id BIGINT, at TIMESTAMP", time_columns="at")
    ...     stream.split(0)
    ...     print(stream.layout)
    epoch 1: 1 [0, 0.5), 2 [0.5, 1)
    """

    __slots__ = ("_backend", "_info")

    def __init__(self, backend: Backend, info: StreamInfo) -> None:
        """Use a `StreamHome`."""
        self._backend = backend
        self._info = info

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._info.name

    @property
    def info(self) -> StreamInfo:
        """The current definition of the stream."""
        self._info = self._backend.catalog.refresh(self._info)
        return self._info

    @property
    def settings(self) -> StreamSettings:
        """The current settings."""
        return self.info.settings

    @property
    def layout(self) -> Layout:
        """The current layout: all segments, open and sealed."""
        return self.info.layout

    @property
    def schema(self) -> Any:
        """The Arrow schema of the batches that `read` returns; key and payload as bytes without a schema."""
        return schema_of(self._info)

    def alter(self, **changes: Any) -> None:
        """Change settings, or add columns; see `StreamHome.create_stream` for what each setting means.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders", schema="id BIGINT")
        ...     stream.alter(schema="id BIGINT, note STRING", writer_timeout="5 seconds", retention="7 days")
        ...     stream.settings.ddl
        'id BIGINT, note STRING'

        All durations, `retention` and `retention_bytes` can be changed at any time, and take effect at once. `unit` and
        time keys can be changed or removed only before time was noted in them.

        `schema` is the present schema with nullable columns added at its end. Events written before have null in them.
        Writers that are open continue with the columns they know, and write null; open them again to fill the new
        columns. Readers see the columns with the events that have them, Spark queries when they are started again,
        also from an existing checkpoint. Any other change of the schema is refused with `SchemaChangeRefused`: create
        another stream, and copy the events.
        """
        self._info = self._backend.catalog.alter(self._info, changes)

    def scale(self, seal: Sequence[int], ranges: Sequence[KeyRange]) -> None:
        """Seal segments and replace them with new ones that cover exactly the same keys.

        Open writers and readers continue without changes.

        Args:
            seal: The ids of the segments to replace.
            ranges: The key ranges of the new segments, for example [(0, 0.5), (0.5, 1)].
        """
        self._info = self._backend.log.scale(self._info, lambda layout: layout.replace(seal, ranges))

    def split(self, segment: int, parts: int = 2) -> None:
        """Seal a segment and replace it with `parts` equally wide ones."""
        self._info = self._backend.log.scale(self._info, lambda layout: layout.split(segment, parts))

    def merge(self, segments: Sequence[int]) -> None:
        """Seal adjacent segments and replace them with one."""
        self._info = self._backend.log.scale(self._info, lambda layout: layout.merge(segments))

    def seal(self) -> None:
        """Seal the stream: it takes no more events. This cannot be undone."""
        self._info = self._backend.log.seal(self._info)

    def delete(self) -> None:
        """Delete the stream with its events and marks."""
        self._backend.catalog.delete(self._info)

    def writer(
        self,
        id: str | None = None,  # noqa: A002
        *,
        automatic: bool | Duration = False,
        refused_marks: str = "warn",
    ) -> Writer:
        """Open a writer.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     with stream.writer("till-3") as writer:
        ...         writer.write({"paid": 7})
        ...     stream.tail()
        {0: 1}

        Args:
            id: Identifies the writer across restarts. Needed to note time. A new writer with the same id continues
                where the earlier one stopped, and fences it. Without an id the writer is anonymous.
            automatic: Note the wall clock time in the background: True for every 5 seconds, or an interval.
            refused_marks: What to do when a mark is refused because its time went back: "warn" logs a warning once per
                writer, "raise" raises `MarkRefused`, "ignore" only returns the outcome.
        """
        writer = None if id is None else check_writer_id(id)
        interval = None
        if automatic is not False:
            every: Duration = "5 seconds" if automatic is True else automatic
            interval = duration_micros(every, "automatic", least=1) / 1e6
            writer = check_writer_id(id)
        refusals = RefusalPolicy(refused_marks, self.name, str(id))
        info = self.info
        opened = self._backend.registry.open(info, writer, info.settings.keys)
        if writer is not None:
            self._backend.wake()
        # The next mark must also cover the events of earlier instances, whose positions are not known: use the tail.
        position = self.tail() if opened.next_number else {}
        return Writer(self._backend, info, opened, position, interval, refusals)

    def transactional_writer(self, id: str, *, refused_marks: str = "warn") -> TransactionalWriter:  # noqa: A002
        """Open a transactional writer.

        Transactions that an earlier writer with the same id left open are aborted, and commits that it requested are
        finished; see `TransactionalWriter`. `refused_marks` is that of `writer`; a refused mark does not undo a commit.
        """
        refusals = RefusalPolicy(refused_marks, self.name, check_writer_id(id))
        info = self.info
        opened = self._backend.registry.open(info, id, info.settings.keys)
        self._backend.wake()
        return TransactionalWriter(self._backend, info, opened, refusals)

    def head(self) -> Position:
        """Return the cut before the first event. It moves forward when retention removes events."""
        info = self.info
        starts = self._backend.log.starts(info)
        return head_cut(info.layout, starts, self._backend.log.ends(info) if starts else {})

    def tail(self) -> Position:
        """Return the cut after the last event that is committed now."""
        info = self.info
        ends = self._backend.log.ends(info)
        return {segment.id: ends[segment.id] for segment in info.layout.current}

    def ends(self) -> Position:
        """Return the end of every segment, sealed ones included."""
        return self._backend.log.ends(self._info)

    def starts(self) -> Position:
        """Return the start of each segment from which retention has removed events."""
        return self._backend.log.starts(self._info)

    def read(
        self, segment: int, start: int = 0, end: int | None = None, *, max_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Return the events of a segment from offset `start` to before `end`, as Arrow batches with their offsets.

        Without `end` it reads to the current end of the segment. It does not wait for new events. Events that
        retention has removed are left out: a read that starts before them starts at the first event that is left.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders", schema="id BIGINT")
        ...     with stream.writer() as writer:
        ...         writer.write_batch([{"id": number} for number in range(10)])
        ...     [(chunk.first, chunk.batch["id"].to_pylist()) for chunk in stream.read(0, 3, max_rows=2)]
        [(3, [3, 4])]
        """
        info = self._backend.catalog.newest_known(self._info)
        if isinstance(segment, int) and segment >= len(info.layout.segments):
            info = self.info
        info.layout.segment(segment)
        stop = self._backend.log.ends(info)[segment] if end is None else check_int64(end, "end")
        start = check_int64(start, "start")
        if max_rows is not None:
            stop = min(stop, start + check_int64(max_rows, "max_rows"))
        if not start >= 0 or (end is not None and end < start) or (max_rows is not None and max_rows < 0):
            raise OffsetOutOfRange(
                f"read() of segment {segment} was called for the offsets {start} to {stop}.",
                rule="The start is at least 0, and the end is not before the start.",
                remedy="Take offsets from head(), tail(), a cut, or a chunk that was read.",
                segment=segment,
                start=start,
                end=end,
            )
        return self._backend.log.read(info, segment, start, stop)

    def marks(self, key: str | None = None, *, after: int = 0, most: int = _DEFAULT_MAX_ENTRIES) -> list[MarkEntry]:
        """Return at most `most` entries of the marks log in order, starting after the number `after`."""
        return self.marks_index(key).page(check_int64(after, "after"), check_int64(most, "most"))

    def marks_index(self, key: str | None = None) -> MarksPages:
        """Return the marks log of a time key, for lookups such as `floodmark.streams.marks.log.cut_at`."""
        info = self.info
        return self._backend.marks(info, info.settings.key(key))

    def cut_at(self, time: Time, key: str | None = None) -> MarksLookup:
        """Return the cut of a time: that of the newest watermark with `lower` <= `time`."""
        return cut_at(self.marks_index(key), self._time(time))

    def starting_at(self, time: Time, key: str | None = None) -> MarksLookup:
        """Return where to start reading so that no event from `time` on is missed."""
        return starting_at(self.marks_index(key), self._time(time))

    def ending_at(self, time: Time, key: str | None = None) -> MarksLookup:
        """Return where to stop reading so that all events below `time` were read."""
        return ending_at(self.marks_index(key), self._time(time))

    def time_at(self, cut: Position, key: str | None = None) -> MarksLookup:
        """Return the event time at a cut: the newest entry of the marks log that the cut has passed."""
        index = self.marks_index(key)
        return time_at(index, cut, self._info.layout)

    def await_mark(self, time: Time, key: str | None = None, timeout: Duration = "10 seconds") -> MarkEntry:
        """Wait until the watermark has reached a time, and return the first entry that has."""
        index = self.marks_index(key)
        target_time = self._time(time)
        deadline = clock.monotonic() + duration_micros(timeout, "timeout") / 1e6
        while True:
            entry = index.oldest_with_lower_at_least(target_time)
            if entry is not None:
                return entry
            if clock.monotonic() > deadline:
                raise StateError(
                    f"The watermark of {self.name!r} has not reached {target_time}: {self.why(key)}.",
                    rule="The watermark advances when every writer that it waits for has noted a later time.",
                    remedy="Let the writers that hold it note time, call mark_idle() or close(); or raise the timeout.",
                    stream=self.name,
                    time=target_time,
                )
            clock.sleep(_POLL_SECONDS)

    def why(self, key: str | None = None) -> WatermarkExplanation:
        """Return why the watermark is where it is: which writers hold it and until when, and which it ignores."""
        info = self.info
        return self._backend.explain(info, info.settings.key(key))

    def retention(self) -> RetentionStatus:
        """Return what retention has removed, what is due, and which readers it waits for.

        >>> with connect(clock=lambda: 60_000_000) as home:
        ...     stream = home.create_stream("shop/orders", retention="7 days")
        ...     print(stream.retention())
        shop/orders begins at {0: 0}, keeps 604800 s

        The controller removes the oldest events once they are older than `retention`, or while at least
        `retention_bytes` of newer ones are left: whole batches, and a segment only after those it replaced. It never
        removes what may still be read by

        - a reader group, from its position and from its stored checkpoints on, until the group has finished or is
          deleted;
        - a Spark query or a sink that holds timestamps of the stream (`floodmark bindings holds` lists them).

        A group or query that would start before the head starts at the head. Lookups by time (`cut_at`, `starting_at`,
        `ending_at`) and by cut (`time_at`) answer from the marks log, which has its own `marks_retention`: their cuts
        may lie before the head. A query whose hold was released and that continues at removed events fails with
        `EventsRemoved`.
        """
        return self._backend.retention(self.info)

    def _time(self, time: Time) -> int:
        return time_in_unit(time, self._info.settings.unit)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"
