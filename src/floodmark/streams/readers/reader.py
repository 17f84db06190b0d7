"""A reader: its segments, read in turn, its membership in the group, and where the group is in time."""

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
from floodmark.streams.events import Rows, time_filter
from floodmark.streams.groups.requests import GroupRef, News, Report, StreamSubscription, Subscription
from floodmark.streams.groups.state import GroupState, ReaderRecord, SegmentRef, find_group_stream
from floodmark.streams.groups.transitions import stop_at
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.marks.windows import MovingWindow, StreamWindow, TimeWindow
from floodmark.streams.ports import Backend, Chunk, EventLog

_SYNC_SECONDS: Final = 1.0
"""A reader reports at least so often."""
_DRY_SECONDS: Final = 0.1
"""A reader that has read all there is reports what it has acknowledged, but not more often than this."""
_LOOK_SECONDS: Final = 0.05
"""A reader that has enough to read looks so often whether the group wants something of it."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Events of one segment that lie side by side: `batch` is a pyarrow.RecordBatch with the stream's columns.

    They have the offsets from `first` to before `end`; rows that the group leaves out by their time are not in it.
    """

    stream: str
    segment: int
    first: int
    end: int
    batch: Any

    def __len__(self) -> int:
        return int(self.batch.num_rows)


class SegmentCursor:
    """A segment that a reader reads. `offset` is what comes next, `acked` up to where it counts as read."""

    __slots__ = ("_chunks", "_rest", "_target", "acked", "end", "offset", "share", "stop", "window")

    def __init__(self, share: SegmentRef, offset: int, window: MovingWindow) -> None:
        """Begin at an offset. How far the segment goes is not known yet."""
        self.share = share
        self.offset = self.acked = self.end = offset
        self.stop: int | None = None
        """Where the group ends in this segment, if it does."""
        self.window = window
        """Where this segment, taken alone, is in time."""
        self._target = offset
        self._chunks: Iterator[Chunk] | None = None
        self._rest: Chunk | None = None

    @property
    def limit(self) -> int:
        """Up to where it can be read now."""
        return self.end if self.stop is None else min(self.end, self.stop)

    @property
    def is_dry(self) -> bool:
        """Whether nothing is there to be read now."""
        return self.offset >= self.limit and self._rest is None

    def see(self, end: int) -> None:
        """Take note of where the segment ends now."""
        self.end = max(self.end, end)

    def acknowledge(self) -> bool:
        """Let all that was read count, and return whether that is more than before."""
        is_more = self.acked < self.offset
        self.acked = self.offset
        return is_more

    def next(self, log: EventLog, stream: StreamInfo, most: int) -> Chunk | None:
        """Return the next events, at most so many; None if there are none now."""
        while not self.is_dry:
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
            self._target = self.limit
            self._chunks = log.read(stream, self.share[1], self.offset, self._target)
        chunk = next(self._chunks, None)
        if chunk is None:
            # A log may leave numbers out: what was asked for is read, though the last event lies before its end.
            self._chunks = None
            self.offset = self._target
        return chunk


class Reader:
    """Reads what a group gives it. Get one from `ReaderGroup.reader`; one thread at a time uses it.

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
    [7, 8] TimeWindow(lower=None, upper=1000)
    TimeWindow(lower=1000, upper=None)

    What `read` returned counts as read when the next `read` is called, or `acknowledge`, or a `close` that no error
    led to. What does not count is read again, by another reader or by this one under another instance.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_infos",
        "_is_closed",
        "_is_unsynced",
        "_lanes",
        "_lock",
        "_looked_at",
        "_marks",
        "_member",
        "_most",
        "_on_checkpoint",
        "_rows",
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
            part.name: find_group_stream(backend.catalog, part) for part in state.parts
        }
        self._rows: dict[str, Rows | None] = {}
        self._lanes: dict[SegmentRef, SegmentCursor] = {}
        self._turn: list[SegmentCursor] = []
        self._windows: dict[tuple[str, str], StreamWindow] = {}
        self._marks: dict[str, int] = {}
        self._most = max_rows
        self._on_checkpoint = on_checkpoint
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_unsynced = False
        self._looked_at = 0.0
        self._member = Membership(backend, state, reader, instance, ttl)
        # A reader that is dropped without a word must fall silent, or nobody would ever read its segments.
        weakref.finalize(self, self._member.stop).atexit = False
        self._adopt()

    @property
    def id(self) -> str:
        """Its id in the group."""
        return self._member.id

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        """The segments that it reads, as (stream, segment)."""
        return tuple(sorted(self._lanes))

    @property
    def position(self) -> dict[str, Position]:
        """For each stream how far it has acknowledged the segments that it reads."""
        found: dict[str, dict[int, int]] = {name: {} for name in self._infos}
        for (stream, segment), lane in sorted(self._lanes.items()):
            found[stream][segment] = lane.acked
        return dict(found)

    @property
    def is_finished(self) -> bool:
        """Whether the group has read all there will ever be, by what this reader knows."""
        return self._member.state.is_finished

    def read(self, timeout: Duration = "1 second", *, wakes_on_time: bool = False) -> ReadBatch | None:
        """Return the next events, or None if none came in time, or the group is finished.

        With `wakes_on_time` it returns None also as soon as the window may have moved: by what this call acknowledged,
        by a watermark that was written, by what other readers have reported.
        """
        give_up = time.monotonic() + duration_micros(timeout, "timeout") / 1e6
        has_looked = False
        with self._lock:
            may_return = self._acknowledge() and wakes_on_time
            while True:
                self._keep_up()
                batch, has_moved = self._next()
                if batch is not None:
                    return batch
                if has_moved or self._is_due():
                    continue
                left = give_up - time.monotonic()
                if self.is_finished or may_return or (has_looked and left <= 0):
                    return None
                has_changed = self._take(self._backend.news(self._wanted(wakes_on_time), self._patience(left)))
                may_return = has_changed and wakes_on_time
                has_looked = True

    def __iter__(self) -> Iterator[ReadBatch]:
        """Read until the group is finished: at its end, or when all its streams are sealed and read."""
        while True:
            batch = self.read()
            if batch is not None:
                yield batch
            elif self.is_finished:
                return

    def acknowledge(self) -> None:
        """Let what was read count, for certain: when this returns, nobody reads it again unless the group is reset."""
        with self._lock:
            self._acknowledge()
            if self._is_unsynced or self._is_due():
                self._sync()

    def time_window(self, stream: str | None = None, key: str | None = None) -> TimeWindow | None:
        """Return where the group is in time: nothing that is still to be read by anybody has a time below `lower`.

        The batch that was read last does not count before the next `read`. None where nothing is known. It never
        falls while this reader is open.
        """
        with self._lock:
            self._check_open()
            part = self._member.state.part(stream)
            wanted = self._infos[part.name].settings.key(key)
            return self._window(part.name, wanted).at(self._position_of(part.name))

    def close(self) -> None:
        """Let what was read count, and leave the group, so that others go on at once. To say so twice is no error."""
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
        return f"Reader({self.id!r} of {self._member.ref.name!r})"

    def _next(self) -> tuple[ReadBatch | None, bool]:
        """Return the next events of the segment whose turn it is, and whether any were read, wanted or not."""
        for place, lane in enumerate(self._turn):
            name, segment = lane.share
            chunk = lane.next(self._backend.log, self._infos[name], self._most)
            if chunk is None:
                continue
            self._turn = [*self._turn[:place], *self._turn[place + 1 :], lane]
            rows = self._wanted_rows(name, chunk)
            if rows.num_rows:
                return ReadBatch(name, segment, chunk.first, chunk.end, rows), True
            self._acknowledge()
            return None, True
        return None, False

    def _wanted_rows(self, stream: str, chunk: Chunk) -> Any:
        if stream not in self._rows:
            part = self._member.state.part(stream)
            self._rows[stream] = time_filter(self._infos[stream].settings, part.key, part.since, part.until)
        rows = self._rows[stream]
        return chunk.batch if rows is None else rows(chunk.batch)

    def _acknowledge(self) -> bool:
        """Let all that was read count, and return whether that is more than before."""
        self._check_open()
        moved = [lane for lane in self._turn if lane.acknowledge()]
        if moved:
            self._is_unsynced = True
            self._member.positions = {share: lane.acked for share, lane in self._lanes.items()}
        return bool(moved)

    def _keep_up(self) -> None:
        """Hear what the group wants, and tell it how far this reader is, as often as that is due."""
        now = time.monotonic()
        if not all(lane.is_dry for lane in self._turn) and now - self._looked_at >= _LOOK_SECONDS:
            self._take(self._backend.news(self._wanted(False), 0))
        if self._is_due():
            self._sync()
            # Where the store sees more than this reader did, it must see that too.
            self._take(self._backend.news(self._wanted(False), 0))

    def _is_due(self) -> bool:
        """Return whether the reader must report now."""
        since = time.monotonic() - self._member.synced_at
        if since >= _SYNC_SECONDS or self._member.is_asked:
            return True
        dry = [lane for lane in self._turn if lane.is_dry and lane.acked == lane.offset]
        if any(self._is_read_out(lane) for lane in dry):
            return True
        return self._is_unsynced and since >= _DRY_SECONDS and len(dry) == len(self._turn)

    def _is_read_out(self, lane: SegmentCursor) -> bool:
        """Return whether a segment has an end that was reached: the group then goes on to what came after it."""
        name, segment = lane.share
        info = self._infos[name]
        is_at_stop = lane.stop is not None and lane.offset >= lane.stop
        return is_at_stop or info.is_sealed or info.layout.is_sealed(segment)

    def _patience(self, left: float) -> float:
        since = time.monotonic() - self._member.synced_at
        return max(0.0, min(left, (_DRY_SECONDS if self._is_unsynced else _SYNC_SECONDS) - since))

    def _sync(self) -> None:
        """Report, give back what is asked for, and confirm a checkpoint after the application has heard of it."""
        confirms = None
        while True:
            record = self._member.record
            self._report(frozenset() if record is None else record.giving, confirms)
            self._adopt()
            pending = self._member.state.pending
            if pending is not None and self.id in pending.waits_for:
                # What counts is stored by now: should this process end here, the checkpoint still has it exactly.
                if self._on_checkpoint is not None:
                    self._on_checkpoint(pending.name)
                confirms = pending.id
            elif not self._member.is_asked:
                return

    def _report(self, released: frozenset[SegmentRef] = frozenset(), confirms: str | None = None) -> None:
        times: dict[SegmentRef, int] = {}
        places: dict[tuple[str, str], int] = {}
        for part in self._member.state.parts:
            self._window(part.name, part.key).at(self._position_of(part.name))
        for share, lane in self._lanes.items():
            part = self._member.state.part(share[0])
            found = self._window(part.name, part.key).advance(lane.window, {share[1]: lane.acked})
            if found is not None and found.lower is not None:
                times[share] = found.lower
        for target, window in self._windows.items():
            if window.place is not None:
                places[target] = window.place
        self._member.sync(released=released, confirms=confirms, times=times, places=places)
        self._is_unsynced = False

    def _adopt(self) -> None:
        """Read the segments that the newest state gives to this reader, and no others."""
        record, state = self._member.record, self._member.state
        shares = frozenset() if record is None else record.shares
        for share in shares - self._lanes.keys():
            part = state.part(share[0])
            if share[1] >= len(self._infos[part.name].layout.segments):
                # The store has seen the stream scaled, and this reader has not heard of it yet.
                self._infos[part.name] = self._backend.catalog.refresh(self._infos[part.name])
            window = self._window(part.name, part.key)
            # What the group has passed, each of its segments has.
            self._lanes[share] = SegmentCursor(share, part.position[share[1]], MovingWindow(window.marks, window.place))
        for share in self._lanes.keys() - shares:
            del self._lanes[share]
        self._turn = [lane for lane in self._turn if lane.share in self._lanes]
        self._turn += [lane for share, lane in sorted(self._lanes.items()) if lane not in self._turn]
        for (name, segment), lane in self._lanes.items():
            # The layout must know the segment from here on, whoever told of it.
            lane.stop = stop_at(self._layout(name, segment), state.part(name).end, segment)
        self._member.positions = {share: lane.acked for share, lane in self._lanes.items()}

    def _wanted(self, is_time: bool) -> Subscription:
        streams = []
        for part in self._member.state.parts:
            ends = {segment: lane.end for (name, segment), lane in self._lanes.items() if name == part.name}
            is_open = part.until is not None and part.end is None
            marks = {part.key: self._marks.get(part.name, -1)} if is_time or is_open else {}
            streams.append(StreamSubscription(part.stream_id, self._infos[part.name].version, ends, marks))
        return Subscription(self._member.ref, self._member.state.version, tuple(streams))

    def _take(self, news: News) -> bool:
        """Take news, and return whether they may move a window: marks, or positions of other readers."""
        self._looked_at = time.monotonic()
        has_changed = news.state is not None and self._member.take(news.state)
        if has_changed and not self._member.is_asked:
            self._adopt()
        for part, now in zip(self._member.state.parts, news.streams, strict=True):
            if now.version != self._infos[part.name].version:
                self._infos[part.name] = find_group_stream(self._backend.catalog, part)
            for segment, end in now.ends.items():
                lane = self._lanes.get((part.name, segment))
                if lane is not None:
                    lane.see(end)
            for number in now.marks.values():
                has_changed |= number > self._marks.get(part.name, number)
                if part.until is not None and part.end is None and number > self._marks.get(part.name, -1):
                    # The end may be known now.
                    self._member.synced_at = -_SYNC_SECONDS
                self._marks[part.name] = number
        return has_changed

    def _window(self, stream: str, key: str) -> StreamWindow:
        if (stream, key) not in self._windows:
            index = self._backend.marks(self._infos[stream], key)
            place = self._member.state.part(stream).places.get(key)
            # Not by way of `self`: a reader that is dropped must go at once.
            infos, catalog = self._infos, self._backend.catalog

            def layout(is_new: bool) -> Layout:
                if is_new:
                    infos[stream] = catalog.refresh(infos[stream])
                return infos[stream].layout

            self._windows[stream, key] = StreamWindow(index, place, layout)
        return self._windows[stream, key]

    def _position_of(self, stream: str) -> Position:
        """Return where the group is, with what this reader has acknowledged and not reported yet."""
        position = dict(self._member.state.part(stream).position)
        for (name, segment), lane in self._lanes.items():
            if name == stream and segment in position:
                position[segment] = max(position[segment], lane.acked)
        return position

    def _layout(self, stream: str, segment: int) -> Layout:
        if segment >= len(self._infos[stream].layout.segments):
            self._infos[stream] = self._backend.catalog.refresh(self._infos[stream])
        return self._infos[stream].layout

    def _leave(self) -> None:
        self._is_closed = True
        self._member.leave()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReaderClosed(
                f"The reader {self.id!r} has been closed.",
                rule="A reader is used between open and close.",
                remedy="Open it again.",
                reader=self.id,
            )


_FINAL_ERRORS: Final = (GroupDeleted, GroupReset, HomeClosed, ReaderExpelled, StreamDeleted)


class Membership:
    """Keeps a reader in its group. A thread of its own gives signs of life while the application is busy.

    `state` is the newest that is known of the group. `positions` is what the reader has acknowledged; it is replaced
    and never changed, since the thread reads it.
    """

    __slots__ = (
        "_backend",
        "_lock",
        "_ticker",
        "generation",
        "id",
        "instance",
        "positions",
        "ref",
        "state",
        "synced_at",
    )

    def __init__(self, backend: Backend, state: GroupState, reader: str, instance: str, ttl: int) -> None:
        """Begin with the state in which the reader has joined."""
        self._backend = backend
        self.ref = GroupRef(state.name, state.group_id)
        self.id = reader
        self.instance = instance
        self.generation = state.generation
        self.state = state
        self.positions: Mapping[SegmentRef, int] = {}
        self.synced_at = time.monotonic()
        self._lock = threading.Lock()
        self._ticker = Ticker(ttl / 3e6, self._beat, f"floodmark reader {reader}")

    @property
    def record(self) -> ReaderRecord | None:
        """What the group knows of the reader, by the newest state."""
        record = self.state.reader(self.id)
        is_own = record is not None and record.instance == self.instance and self.state.generation == self.generation
        return record if is_own and self.state.group_id == self.ref.id else None

    @property
    def is_asked(self) -> bool:
        """Whether the group waits for the reader to give a segment back or confirm a checkpoint, or has lost it."""
        record, pending = self.record, self.state.pending
        return record is None or bool(record.giving) or (pending is not None and self.id in pending.waits_for)

    def take(self, state: GroupState) -> bool:
        """Take a state that was read elsewhere, and return whether it is newer."""
        is_newer = state.group_id != self.ref.id or state.version > self.state.version
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
    ) -> GroupState:
        """Report, and return what the group says."""
        report = Report(
            self.id, self.instance, self.generation, self.positions, released, times or {}, places or {}, confirms
        )
        with self._lock:
            self.synced_at = time.monotonic()
            self.state = self._backend.groups.sync(self.ref, report)
        return self.state

    def stop(self) -> None:
        """Give no more signs of life."""
        self._ticker.stop()

    def leave(self) -> None:
        """Say goodbye, if there is still somebody to hear it, with what was acknowledged."""
        self.stop()
        try:
            self._backend.groups.leave(self.ref, Report(self.id, self.instance, self.generation, self.positions))
        except _FINAL_ERRORS:
            return
        finally:
            self._ticker.join()

    def _beat(self) -> None:
        """Give a sign of life, unless the reader does so now. What the group answers is for the reader to hear."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._backend.groups.sync(self.ref, Report(self.id, self.instance, self.generation, self.positions))
        except FloodmarkError as error:
            # The reader finds out by itself. What may pass, such as a service that is away, is tried again.
            if isinstance(error, _FINAL_ERRORS):
                raise
        finally:
            self._lock.release()
