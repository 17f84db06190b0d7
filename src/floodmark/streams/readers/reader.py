"""A reader of a group: it reads its segments in turn, keeps its membership alive, and computes the time window."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from floodmark._util.ticker import Ticker
from floodmark._util.times import Duration, duration_micros
from floodmark.errors import (
    FloodmarkError,
    GroupDeleted,
    GroupReset,
    HomeClosed,
    ReaderClosed,
    ReaderExpelled,
    StreamDeleted,
)
from floodmark.streams.definition import StreamInfo
from floodmark.streams.events import BatchFunction, time_filter
from floodmark.streams.groups.requests import GroupRef, News, Report, StreamSubscription, Subscription
from floodmark.streams.groups.state import GroupState, ReaderRecord, SegmentRef, find_group_stream, instance_id
from floodmark.streams.groups.transitions import stop_offset
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.marks.windows import MovingWindow, StreamWindow, TimeWindow
from floodmark.streams.ports import Backend, Chunk, EventLog

_SYNC_SECONDS: Final = 1.0
"""A reader reports to its group at least this often."""
_CAUGHT_UP_SECONDS: Final = 0.1
"""A reader that has read everything reports what it has acknowledged, but not more often than this."""
_POLL_SECONDS: Final = 0.05
"""A reader that has events to read checks this often for requests of the group."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Consecutive events of one segment. `batch` is a pyarrow.RecordBatch with the columns of the stream.

    The events have the offsets from `first` to before `end`. Rows outside the time bounds of the group are left out.
    """

    stream: str
    segment: int
    first: int
    end: int
    batch: Any

    def __len__(self) -> int:
        return int(self.batch.num_rows)


class SegmentCursor:
    """The cursor of a reader in one segment. `offset` is the next offset to read, `acked` the acknowledged one."""

    __slots__ = ("_chunks", "_read_end", "_rest", "acked", "end", "offset", "ref", "stop", "window")

    def __init__(self, ref: SegmentRef, offset: int, window: MovingWindow) -> None:
        """Start at an offset. The end of the segment is not known yet."""
        self.ref = ref
        self.offset = self.acked = self.end = offset
        self.stop: int | None = None
        """The offset at which the group stops in this segment, if any."""
        self.window = window
        """The time window of this segment alone."""
        self._read_end = offset
        self._chunks: Iterator[Chunk] | None = None
        self._rest: Chunk | None = None

    @property
    def limit(self) -> int:
        """The offset up to which the segment can be read now."""
        return self.end if self.stop is None else min(self.end, self.stop)

    @property
    def is_caught_up(self) -> bool:
        """Whether there is nothing to read now."""
        return self.offset >= self.limit and self._rest is None

    def extend(self, end: int) -> None:
        """Record a new end of the segment."""
        self.end = max(self.end, end)

    def acknowledge(self) -> bool:
        """Acknowledge everything that was read, and return whether that is more than before."""
        is_more = self.acked < self.offset
        self.acked = self.offset
        return is_more

    def next(self, log: EventLog, stream: StreamInfo, most: int) -> Chunk | None:
        """Return at most `most` next events; None if there are none now."""
        while not self.is_caught_up:
            chunk = self._rest or self._read(log, stream)
            self._rest = None
            if chunk is None:
                continue
            if chunk.batch.num_rows > most:
                cut = chunk.first + most
                chunk, self._rest = chunk.slice(chunk.first, cut), chunk.slice(cut, chunk.end)
            self.offset = chunk.end
            return chunk
        return None

    def _read(self, log: EventLog, stream: StreamInfo) -> Chunk | None:
        if self._chunks is None:
            self._read_end = self.limit
            self._chunks = log.read(stream, self.ref[1], self.offset, self._read_end)
        chunk = next(self._chunks, None)
        if chunk is None:
            # A log may skip offsets, so the last event may be before the end of the range.
            self._chunks = None
            self.offset = self._read_end
        return chunk


class Reader:
    """Reads the segments that its group assigns to it, as Arrow batches. Open one with `ReaderGroup.reader`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills", schema="paid BIGINT")
    ...     writer = stream.writer("till-3")
    ...     writer.write_batch([{"paid": 7}, {"paid": 8}])
    ...     outcome, entry = writer.note_time(1_000), stream.await_mark(1_000)
    ...     group = home.create_group("billing", "shop/tills", end=stream.tail())
    ...     with group.reader("r1") as reader:
    ...         for batch in reader:
    ...             print(batch.batch["paid"].to_pylist(), reader.time_window())
    ...         print(reader.time_window())
    ...     writer.close()
    [7, 8] up to 1000
    from 1000

    A batch is acknowledged by the next `read`, by `acknowledge`, or by `close` (unless a `with` block ends with an
    error). Events that were not acknowledged are delivered again, to this or another reader. A reader is not
    thread-safe: use it from one thread at a time.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_cursors",
        "_infos",
        "_is_closed",
        "_is_unsynced",
        "_last_marks",
        "_lock",
        "_max_rows",
        "_member",
        "_on_checkpoint",
        "_polled_at",
        "_time_filters",
        "_turn",
        "_windows",
    )

    def __init__(
        self,
        backend: Backend,
        state: GroupState,
        reader: str,
        instance: str,
        ttl: int,
        max_rows: int,
        on_checkpoint: Callable[[str], object] | None,
    ) -> None:
        """Use `ReaderGroup.reader`."""
        self._backend = backend
        self._infos: dict[str, StreamInfo] = {
            progress.name: find_group_stream(backend.catalog, progress) for progress in state.progress
        }
        self._time_filters: dict[str, BatchFunction | None] = {}
        self._cursors: dict[SegmentRef, SegmentCursor] = {}
        self._turn: list[SegmentCursor] = []
        self._windows: dict[tuple[str, str], StreamWindow] = {}
        self._last_marks: dict[str, int] = {}
        self._max_rows = max_rows
        self._on_checkpoint = on_checkpoint
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_unsynced = False
        self._polled_at = 0.0
        self._member = Membership(backend, state, reader, instance, ttl)
        # If the reader is garbage-collected without close, its heartbeat must stop, or its segments stay assigned.
        weakref.finalize(self, self._member.stop).atexit = False
        self._adopt_assignment()

    @property
    def id(self) -> str:
        """The id of the reader in its group."""
        return self._member.id

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        """The segments that are assigned to it, as (stream, segment)."""
        return tuple(sorted(self._cursors))

    @property
    def position(self) -> dict[str, Position]:
        """For each stream the acknowledged offsets of the segments that are assigned to it."""
        positions: dict[str, dict[int, int]] = {name: {} for name in self._infos}
        for (stream, segment), cursor in sorted(self._cursors.items()):
            positions[stream][segment] = cursor.acked
        return dict(positions)

    @property
    def is_finished(self) -> bool:
        """Whether the group has read everything, up to its end or the end of its sealed streams."""
        return self._member.state.is_finished

    def read(self, timeout: Duration = "1 second", *, wakes_on_time: bool = False) -> ReadBatch | None:
        """Acknowledge the last batch and return the next one; None after the timeout, or if the group is finished.

        Args:
            timeout: How long to wait for events.
            wakes_on_time: Return None also as soon as `time_window` may have moved: by the batch that this call
                acknowledged, by a new watermark, or by reports of other readers.
        """
        deadline = time.monotonic() + duration_micros(timeout, "timeout") / 1e6
        has_polled = False
        with self._lock:
            may_return = self._acknowledge() and wakes_on_time
            while True:
                self._exchange_with_group()
                batch, has_read = self._next()
                if batch is not None:
                    return batch
                if has_read or self._is_report_due():
                    continue
                left = deadline - time.monotonic()
                if self.is_finished or may_return or (has_polled and left <= 0):
                    return None
                news = self._backend.news(self._subscription(with_marks=wakes_on_time), self._wait_seconds(left))
                may_return = self._apply_news(news) and wakes_on_time
                has_polled = True

    def __iter__(self) -> Iterator[ReadBatch]:
        """Yield batches until the group is finished: at its end, or when all its streams are sealed and read."""
        while True:
            batch = self.read()
            if batch is not None:
                yield batch
            elif self.is_finished:
                return

    def acknowledge(self) -> None:
        """Acknowledge what was read, and store that: it is not delivered again unless the group is reset."""
        with self._lock:
            self._acknowledge()
            if self._is_unsynced or self._is_report_due():
                self._sync()

    def time_window(self, stream: str | None = None, key: str | None = None) -> TimeWindow | None:
        """Return the time window of the group: no event that any of its readers has yet to read is below `lower`.

        The last batch counts only once it is acknowledged. None without marks. The window never moves back while this
        reader is open.

        Args:
            stream: The name of the stream; may be left out if the group reads one stream.
            key: The time key; the default key of the stream if left out.
        """
        with self._lock:
            self._check_open()
            progress = self._member.state.progress_of(stream)
            time_key = self._infos[progress.name].settings.key(key)
            return self._window(progress.name, time_key).at(self._position_of(progress.name))

    def close(self) -> None:
        """Acknowledge what was read and leave the group; other readers take over at once. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            try:
                self._acknowledge()
                if self._is_unsynced:
                    self._report()
            finally:
                self._leave()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with self._lock:
            if not self._is_closed:
                self._leave()

    def __repr__(self) -> str:
        return f"Reader({self.id!r} of {self._member.group.name!r})"

    def _next(self) -> tuple[ReadBatch | None, bool]:
        """Return the next batch, reading the segments in turn, and whether any events were read, filtered ones too."""
        for index, cursor in enumerate(self._turn):
            name, segment = cursor.ref
            chunk = cursor.next(self._backend.log, self._infos[name], self._max_rows)
            if chunk is None:
                continue
            self._turn = [*self._turn[:index], *self._turn[index + 1 :], cursor]
            rows = self._filter_by_time(name, chunk)
            if rows.num_rows:
                return ReadBatch(name, segment, chunk.first, chunk.end, rows), True
            self._acknowledge()
            return None, True
        return None, False

    def _filter_by_time(self, stream: str, chunk: Chunk) -> Any:
        if stream not in self._time_filters:
            progress = self._member.state.progress_of(stream)
            settings = self._infos[stream].settings
            self._time_filters[stream] = time_filter(settings, progress.key, progress.since, progress.until)
        filter_rows = self._time_filters[stream]
        return chunk.batch if filter_rows is None else filter_rows(chunk.batch)

    def _acknowledge(self) -> bool:
        """Acknowledge everything that was read, and return whether that is more than before."""
        self._check_open()
        moved = [cursor for cursor in self._turn if cursor.acknowledge()]
        if moved:
            self._is_unsynced = True
            self._member.positions = {ref: cursor.acked for ref, cursor in self._cursors.items()}
        return bool(moved)

    def _exchange_with_group(self) -> None:
        """Poll the group for changes, and report to it, if due."""
        now = time.monotonic()
        if not all(cursor.is_caught_up for cursor in self._turn) and now - self._polled_at >= _POLL_SECONDS:
            self._poll()
        if self._is_report_due():
            self._sync()
            # The new assignment may have segments whose ends this reader has not seen yet.
            self._poll()

    def _poll(self) -> None:
        self._apply_news(self._backend.news(self._subscription(with_marks=False), 0))

    def _is_report_due(self) -> bool:
        """Return whether the reader must report to its group now."""
        since = time.monotonic() - self._member.synced_at
        if since >= _SYNC_SECONDS or self._member.has_request:
            return True
        caught_up = [cursor for cursor in self._turn if cursor.is_caught_up and cursor.acked == cursor.offset]
        if any(self._is_read_to_end(cursor) for cursor in caught_up):
            return True
        return self._is_unsynced and since >= _CAUGHT_UP_SECONDS and len(caught_up) == len(self._turn)

    def _is_read_to_end(self, cursor: SegmentCursor) -> bool:
        """Return whether a caught-up segment can get no more events: the group then continues with its successors."""
        name, segment = cursor.ref
        info = self._infos[name]
        is_at_stop = cursor.stop is not None and cursor.offset >= cursor.stop
        return is_at_stop or info.is_sealed or info.layout.is_sealed(segment)

    def _wait_seconds(self, left: float) -> float:
        """Return how long to wait for news: until the timeout of the call or the next report, whichever is earlier."""
        since = time.monotonic() - self._member.synced_at
        return max(0.0, min(left, (_CAUGHT_UP_SECONDS if self._is_unsynced else _SYNC_SECONDS) - since))

    def _sync(self) -> None:
        """Report, release the requested segments, and confirm a checkpoint after its callback has returned."""
        confirms = None
        while True:
            record = self._member.record
            self._report(frozenset() if record is None else record.releasing, confirms)
            self._adopt_assignment()
            pending = self._member.state.pending
            if pending is not None and self.id in pending.waits_for:
                # Acknowledged offsets are stored by now: if the process dies here, the checkpoint is still exact.
                if self._on_checkpoint is not None:
                    self._on_checkpoint(pending.name)
                confirms = pending.id
            elif not self._member.has_request:
                return

    def _report(self, released: frozenset[SegmentRef] = frozenset(), confirms: str | None = None) -> None:
        times: dict[SegmentRef, int] = {}
        places: dict[tuple[str, str], int] = {}
        lowers: dict[tuple[str, str], int] = {}
        for progress in self._member.state.progress:
            self._window(progress.name, progress.key).at(self._position_of(progress.name))
        for ref, cursor in self._cursors.items():
            progress = self._member.state.progress_of(ref[0])
            time_window = self._window(progress.name, progress.key).advance(cursor.window, {ref[1]: cursor.acked})
            if time_window is not None and time_window.lower is not None:
                times[ref] = time_window.lower
        for stream_key, window in self._windows.items():
            if window.place is not None:
                places[stream_key] = window.place
            if window.lower is not None:
                lowers[stream_key] = window.lower
        self._member.sync(released=released, confirms=confirms, times=times, places=places, lowers=lowers)
        self._is_unsynced = False

    def _adopt_assignment(self) -> None:
        """Open cursors for the segments that the newest state assigns to this reader, and drop all others."""
        record, state = self._member.record, self._member.state
        assigned = frozenset() if record is None else record.segments
        for ref in assigned - self._cursors.keys():
            progress = state.progress_of(ref[0])
            # Make sure that the layout has the segment: the stream may have been scaled since it was read.
            self._layout(*ref)
            window = self._window(progress.name, progress.key)
            # Each segment has passed the entries that the group has passed.
            cursor_window = MovingWindow(window.marks, window.place, window.lower)
            self._cursors[ref] = SegmentCursor(ref, progress.position[ref[1]], cursor_window)
        for ref in self._cursors.keys() - assigned:
            del self._cursors[ref]
        self._turn = [cursor for cursor in self._turn if cursor.ref in self._cursors]
        self._turn += [cursor for ref, cursor in sorted(self._cursors.items()) if cursor not in self._turn]
        for (name, segment), cursor in self._cursors.items():
            cursor.stop = stop_offset(self._layout(name, segment), state.progress_of(name).end, segment)
        self._member.positions = {ref: cursor.acked for ref, cursor in self._cursors.items()}

    def _subscription(self, *, with_marks: bool) -> Subscription:
        """Return what this reader has seen; `with_marks` also subscribes to new watermarks."""
        streams = []
        for progress in self._member.state.progress:
            ends = {segment: cursor.end for (name, segment), cursor in self._cursors.items() if name == progress.name}
            awaits_end = progress.until is not None and progress.end is None
            marks = {progress.key: self._last_marks.get(progress.name, -1)} if with_marks or awaits_end else {}
            streams.append(StreamSubscription(progress.stream_id, self._infos[progress.name].version, ends, marks))
        return Subscription(self._member.group, self._member.state.version, tuple(streams))

    def _apply_news(self, news: News) -> bool:
        """Apply changes, and return whether they may move a window: new marks, or positions of other readers."""
        self._polled_at = time.monotonic()
        has_changed = news.state is not None and self._member.adopt_state(news.state)
        if has_changed and not self._member.has_request:
            self._adopt_assignment()
        for progress, now in zip(self._member.state.progress, news.streams, strict=True):
            if now.version != self._infos[progress.name].version:
                self._infos[progress.name] = find_group_stream(self._backend.catalog, progress)
            for segment, end in now.ends.items():
                cursor = self._cursors.get((progress.name, segment))
                if cursor is not None:
                    cursor.extend(end)
            for number in now.marks.values():
                has_changed |= number > self._last_marks.get(progress.name, number)
                is_newer = number > self._last_marks.get(progress.name, -1)
                if progress.until is not None and progress.end is None and is_newer:
                    # The marks log may have reached the end time: report now to find out.
                    self._member.synced_at = -_SYNC_SECONDS
                self._last_marks[progress.name] = number
        return has_changed

    def _window(self, stream: str, key: str) -> StreamWindow:
        if (stream, key) not in self._windows:
            index = self._backend.marks(self._infos[stream], key)
            progress = self._member.state.progress_of(stream)
            # The closure must not refer to `self`, or a dropped reader would not be garbage-collected at once.
            infos, catalog = self._infos, self._backend.catalog

            def layout(reads_again: bool) -> Layout:
                if reads_again:
                    infos[stream] = catalog.refresh(infos[stream])
                return infos[stream].layout

            self._windows[stream, key] = StreamWindow(index, progress.places.get(key), layout, progress.lowers.get(key))
        return self._windows[stream, key]

    def _position_of(self, stream: str) -> Position:
        """Return the position of the group, including what this reader has acknowledged but not reported yet."""
        position = dict(self._member.state.progress_of(stream).position)
        for (name, segment), cursor in self._cursors.items():
            if name == stream and segment in position:
                position[segment] = max(position[segment], cursor.acked)
        return position

    def _layout(self, stream: str, segment: int) -> Layout:
        """Return a layout of the stream that has the segment."""
        if segment >= len(self._infos[stream].layout.segments):
            self._infos[stream] = self._backend.catalog.refresh(self._infos[stream])
        return self._infos[stream].layout

    def _leave(self) -> None:
        self._is_closed = True
        self._member.leave()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReaderClosed(
                f"The reader {self.id!r} was closed.",
                rule="A closed reader cannot be used.",
                remedy="Open a new one with group.reader(id).",
                reader=self.id,
            )


_FINAL_ERRORS: Final = (GroupDeleted, GroupReset, HomeClosed, ReaderExpelled, StreamDeleted)


class Membership:
    """The membership of a reader in its group. A background thread sends heartbeats while the application is busy.

    `state` is the newest state of the group that was seen. `positions` has the acknowledged offsets; it is replaced
    and never mutated, since the heartbeat thread reads it.
    """

    __slots__ = (
        "_backend",
        "_instance_id",
        "_lock",
        "_ticker",
        "generation",
        "group",
        "id",
        "instance",
        "positions",
        "state",
        "synced_at",
    )

    def __init__(self, backend: Backend, state: GroupState, reader: str, instance: str, ttl: int) -> None:
        """Start from the state that `join` returned."""
        self._backend = backend
        self.group = GroupRef(state.name, state.group_id)
        self.id = reader
        self.instance = instance
        self._instance_id = instance_id(instance)
        self.generation = state.generation
        self.state = state
        self.positions: Mapping[SegmentRef, int] = {}
        self.synced_at = time.monotonic()
        self._lock = threading.Lock()
        self._ticker = Ticker(ttl / 3e6, self._beat, f"floodmark reader {reader}")

    @property
    def record(self) -> ReaderRecord | None:
        """The record of this reader in the newest state; None if it is no longer a member."""
        record = self.state.reader(self.id)
        is_own = record is not None and record.instance_id == self._instance_id
        is_current = (self.state.group_id, self.state.generation) == (self.group.id, self.generation)
        return record if is_own and is_current else None

    @property
    def has_request(self) -> bool:
        """Whether the reader must report: to release a segment, confirm a checkpoint, or learn of its expulsion."""
        record, pending = self.record, self.state.pending
        return record is None or bool(record.releasing) or (pending is not None and self.id in pending.waits_for)

    def adopt_state(self, state: GroupState) -> bool:
        """Adopt a state if it is newer, and return whether it is."""
        is_newer = state.group_id != self.group.id or state.version > self.state.version
        if is_newer:
            self.state = state
        return is_newer

    def sync(
        self,
        *,
        released: frozenset[SegmentRef] = frozenset(),
        confirms: str | None = None,
        times: Mapping[SegmentRef, int] | None = None,
        places: Mapping[tuple[str, str], int] | None = None,
        lowers: Mapping[tuple[str, str], int] | None = None,
    ) -> GroupState:
        """Send a report, and return the state after it."""
        report = Report(
            reader=self.id,
            instance=self.instance,
            generation=self.generation,
            positions=self.positions,
            released=released,
            times=times or {},
            places=places or {},
            confirms=confirms,
            lowers=lowers or {},
        )
        with self._lock:
            self.synced_at = time.monotonic()
            self.state = self._backend.groups.sync(self.group, report)
        return self.state

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._ticker.stop()

    def leave(self) -> None:
        """Leave the group with what was acknowledged. Does nothing if the group or the membership is gone."""
        self.stop()
        try:
            self._backend.groups.leave(self.group, Report(self.id, self.instance, self.generation, self.positions))
        except _FINAL_ERRORS:
            return
        finally:
            self._ticker.join()

    def _beat(self) -> None:
        """Send a heartbeat, unless the reader is reporting now. The returned state is left for the reader to fetch."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._backend.groups.sync(self.group, Report(self.id, self.instance, self.generation, self.positions))
        except FloodmarkError as error:
            # The reader gets final errors on its next call. Transient ones are retried with the next heartbeat.
            if isinstance(error, _FINAL_ERRORS):
                raise
        finally:
            self._lock.release()
