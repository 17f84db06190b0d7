"""The driver side of a streaming source whose rows are bound to timestamps: where batches begin and end.

It also has the tasks of a batch, and the hold that protects the timestamps which Spark may read again from compaction.
"""

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from floodmark._util.times import UNITS_PER_SECOND, micros_in_unit
from floodmark.bindings import BindingHistory, Bindings, SourceOffset
from floodmark.bindings.coordination import AlignedReaders, QueryInputs, QueryReaders, QueryStops
from floodmark.bindings.offsets import (
    BatchLimits,
    BoundRange,
    InputState,
    Mark,
    QueryInput,
    add_empty_batch,
    bound_ranges,
    change_state,
    clip_to_stop,
    next_offset,
    offset_at_cut,
    raise_mark,
    released_mark,
    repeat_mark,
)
from floodmark.control import Home
from floodmark.errors import HomeBusy, HomeUnusable, KafkaAway, UnknownHold
from floodmark.spark.worker_checks import check_version_of_worker, floodmark_version
from floodmark.streams import StreamHome
from floodmark.streams.backend import LocalBackend

OnIdle = Literal["hold", "release"]
"""Whether an input without active writers holds the watermark of a query, or lets the other inputs pass."""


class BoundSource(Protocol):
    """A stream or topics with a binding history that grows."""

    source: str
    bindings: Bindings

    def history(self) -> BindingHistory:
        """Return the stored bindings."""
        ...

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind new rows if a tick is due, or in any case if `at_once`; return the bindings."""
        ...


class ReaderSettings(Protocol):
    """The settings that limit the batches of a source."""

    @property
    def max_rows(self) -> int | None:
        """The most rows of a batch."""

    @property
    def max_event_time(self) -> int | None:
        """How far the watermark may advance in a batch, in microseconds."""

    @property
    def settle(self) -> bool:
        """Whether batches end where the watermark advances."""

    @property
    def align(self) -> str | None:
        """The name of the group of queries that advance together."""

    @property
    def max_ahead(self) -> int:
        """How far the query may be ahead of the slowest of its group, in microseconds."""

    @property
    def mark_rows(self) -> bool:
        """Whether each batch has a mark row: a row without data that has the watermark."""

    @property
    def check_workers(self) -> bool:
        """Whether worker processes compare their version of the package with the driver's."""

    @property
    def on_idle(self) -> OnIdle:
        """What an input that is not active does to the watermark of a query with several inputs."""

    @property
    def idle_after(self) -> int | None:
        """After how many microseconds without news the source counts as idle, if all of it is read."""

    @property
    def reader(self) -> str | None:
        """The id of the DataFrame, by which a sink finds the query that reads it."""


ROWS_PER_TASK: Final = 4_000_000
"""Large, because a task of a Python source has an overhead of about 0.1 s."""

IS_MARK: Final = "_is_mark"
"""The column that distinguishes mark rows from rows of the stream."""


@dataclass(frozen=True, slots=True)
class MarkRow:
    """The content of a mark row: a timestamp, the watermarks at its end, and the mark for Spark in microseconds."""

    ts: int | None
    watermarks: Mapping[str, int]
    micros: int | None


_homes_by_location: dict[str, StreamHome] = {}


@dataclass(frozen=True, slots=True)
class TimeFilter:
    """The range of event times to read, in the unit of the stream."""

    key: str
    lower: int | None
    upper: int | None


class ReadTask(InputPartition):
    """The input of one task: ranges of bound rows, or a mark row."""

    def __init__(
        self, ranges: tuple[BoundRange, ...], only: TimeFilter | None = None, mark: MarkRow | None = None
    ) -> None:
        self.ranges = ranges
        self.only = only
        self.mark = mark


def open_home(location: str | None) -> StreamHome:
    """Return the home at a location; it is opened once per process."""
    home = _homes_by_location.get(location or "")
    if home is None:
        home = _homes_by_location[location or ""] = StreamHome(
            LocalBackend(Home.open_existing(location)), controller=False
        )
    return home


_BATCHES_KEPT: Final = 100
"""Spark's default for spark.sql.streaming.minBatchesToRetain."""
_HOLD_HEARTBEAT_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("floodmark.spark")


class QueryHold:
    """The hold of one query. Its holder is the incarnation in the query's offsets, so a restarted query keeps it."""

    __slots__ = ("_bound", "_committed", "_heartbeat_at", "_holder", "_ts")

    def __init__(self, bound: BoundSource) -> None:
        """Make a hold that is not taken yet."""
        self._bound = bound
        self._holder: str | None = None
        self._ts = 0
        self._committed: deque[int] = deque(maxlen=_BATCHES_KEPT)
        self._heartbeat_at = 0.0

    def take(self, history: BindingHistory, start: SourceOffset, now: float) -> None:
        """Hold the timestamps from `start` on, and send a heartbeat when one is due."""
        if history.upper == history.origin:
            return
        if self._holder == start.incarnation:
            if now >= self._heartbeat_at:
                self._advance(now)
            return
        first_ts = history.origin if start.ts is None else start.ts
        if start.ts is not None and start.ts < history.since:
            _LOG.warning(
                "The bindings of %r were compacted to %d, but the query continues from %d: rows bound up to there have "
                "no watermark.",
                self._bound.source,
                history.since,
                start.ts,
            )
        self._holder = start.incarnation
        held = {hold.holder: hold.ts for hold in self._bound.bindings.holds(self._bound.source)}
        self._ts = held.get(start.incarnation, max(history.since, min(first_ts, history.upper - 1)))
        self._advance(now)

    def commit(self, ts: int, now: float) -> None:
        """Release the timestamps before the batches that Spark retains, after a batch was committed."""
        is_full = len(self._committed) == _BATCHES_KEPT
        if is_full and self._holder is not None and self._committed[0] > self._ts:
            self._ts = self._committed[0]
            self._advance(now)
        self._committed.append(ts)

    def _advance(self, now: float) -> None:
        self._heartbeat_at = now + _HOLD_HEARTBEAT_SECONDS
        bindings, source, holder = self._bound.bindings, self._bound.source, self._holder or ""
        try:
            bindings.advance_hold(source, holder, self._ts)
        except UnknownHold:
            # The hold is new, or was released because the query was taken for dead.
            bindings.hold(source, holder, max(self._ts, bindings.source(source).since), kind="query")


T = TypeVar("T")
B = TypeVar("B", bound=BoundSource)
S = TypeVar("S", bound=ReaderSettings)

_ALIGNMENT_HEARTBEAT_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 30.0
_NO_LIMIT: Final = 2**62
_RECORD_TIMEOUT_SECONDS: Final = 2.0
"""How long the end of an availableNow query waits for the listener to record its last batch."""


class BoundReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[B, S]):
    """Decides the batches of a query on the driver as long as it runs; a pickled copy reads rows in every task.

    An offset is a `SourceOffset`: where the batch ends, and the watermark there. Spark logs it before the batch runs,
    so a retried batch is the same. The first batch of a run has the mark again, also if nothing is new: see
    `repeat_mark`.
    """

    look_seconds: float = 0.05
    """The least time between two ticks."""

    def __init__(self, settings: S, location: str) -> None:
        self._settings = settings
        self._location = location
        self._bound: B | None = None
        self._until: int | None = None
        self._has_bound_final_times = False
        self._hold: QueryHold | None = None
        self._next_tick_at = 0.0
        self._next_report_at = 0.0
        self._reported: object = None
        self._stops: QueryStops | None = None
        self._has_stops: bool | None = None
        self._has_said_mark = False
        self._first_start: SourceOffset | None = None
        self._last_start: SourceOffset | None = None
        self._quiet_since = 0.0
        self._next_look_at = 0.0

    @abstractmethod
    def _open(self) -> B:
        """Open the source."""

    @abstractmethod
    def _starting_offsets(self, bound: B) -> Mapping[int, int] | None:
        """Return where a query without a checkpoint begins; None for the head."""

    @abstractmethod
    def _time_key(self, bound: B) -> tuple[str, str]:
        """Return the time key of limits, and its unit."""

    def _ending_offsets(self, bound: B) -> Mapping[int, int] | None:
        """Return where the query stops reading; None if it does not."""
        return None

    def _max_rows(self, bound: B) -> int | None:
        return self._settings.max_rows

    def _is_limited(self) -> bool:
        return bool(self._settings.max_rows or self._settings.max_event_time or self._settings.settle)

    def _bind_final_times(self, bound: B) -> BindingHistory | None:
        """Bind the event times found in the rows, after an availableNow query has read all; None if there are none."""
        return None

    @abstractmethod
    def _tasks(self, bound: B, ranges: Sequence[BoundRange], mark: MarkRow | None) -> Sequence[ReadTask]:
        """Return the tasks that read these ranges."""

    def __getstate__(self) -> dict[str, Any]:
        version = floodmark_version() if self._settings.check_workers else None
        return {"version": version, "settings": self._settings, "location": self._location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["version"] is not None:
            check_version_of_worker(state["version"])
        self.__init__(state["settings"], state["location"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark calls it by this name
        """Return the first offset of a query without a checkpoint."""

        def begin() -> dict[str, Any]:
            bound = self._bound_source()
            incarnation = uuid4().hex
            start = self._starting_offsets(bound)
            first = SourceOffset(incarnation, None, {})
            if start is not None:
                first = offset_at_cut(bound.tick(at_once=True), incarnation, start)
            if self._settings.reader is not None:
                self._query_readers().register(self._settings.reader, bound.source, first)
            return first.save()

        return self._retry_while_away(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark calls it by this name
        """Return whether batches are limited: `latestOffset` applies the limits itself."""
        return ReadMaxRows(self._settings.max_rows or _NO_LIMIT) if self._is_limited() else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it by this name
        """Bind all rows that are there now; the query ends when it has read them."""

        def bind() -> int:
            return self._bound_source().tick(at_once=True).upper - 1

        self._until = self._retry_while_away(bind)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or `start` if there is nothing new."""

        def find() -> dict[str, Any]:
            bound = self._bound_source()
            before = SourceOffset.load(start)
            history = self._current_history(bound)
            self._query_hold(bound).take(history, before, time.monotonic())
            stops = self._query_stops(before)
            self._note_start(before)
            after = self._next_end(bound, history, before, limit)
            if after == before and self._until is not None and not self._has_bound_final_times:
                self._has_bound_final_times = True
                final = self._bind_final_times(bound)
                if final is not None and final.upper - 1 > self._until:
                    self._until = final.upper - 1
                    after = self._next_end(bound, final, before, limit)
            if stops is not None:
                after = _apply_stops(stops, before, after)
            if after == before and self._must_repeat_mark(before, stops):
                after = repeat_mark(before)
                if stops is not None and stops.remaining:
                    after = clip_to_stop(stops.key, stops.remaining, before, after)
            if after == before and self._settings.on_idle == "release" and not (stops and stops.remaining):
                after = self._release(bound, history, before)
            return start if after == before else self._complete(bound, before, after).save()

        return self._retry_while_away(find)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadTask]:
        """Return the tasks of a batch."""
        before, after = SourceOffset.load(start), SourceOffset.load(end)
        bound = self._retry_while_away(self._bound_source)
        ranges = bound_ranges(self._retry_while_away(bound.history), before, after)
        self._has_said_mark = True
        return self._tasks(bound, ranges, self._mark_row(bound, after))

    def commit(self, end: dict[str, Any]) -> None:
        """Release timestamps that Spark will not read again."""
        ts, hold = SourceOffset.load(end).ts, self._hold
        if ts is not None and hold is not None:
            self._retry_while_away(lambda: hold.commit(ts, time.monotonic()))

    def _bound_source(self) -> B:
        if self._bound is None:
            self._bound = self._open()
        return self._bound

    def _query_readers(self) -> QueryReaders:
        return QueryReaders(open_home(self._location).home)

    def _query_stops(self, start: SourceOffset) -> QueryStops | None:
        """Return where batches of an exactly-once query must end; they are read again until all are passed."""
        if self._settings.reader is None or self._has_stops is False:
            return None
        if self._stops is None or self._stops.remaining:
            self._stops = self._query_readers().stops(start.incarnation)
            self._has_stops = self._stops is not None
        return self._stops

    def _complete(self, bound: B, before: SourceOffset, after: SourceOffset) -> SourceOffset:
        """Return the end of a batch with its mark, and with its state if that counts."""
        marked = raise_mark(before, after, self._own_mark(bound, after))
        if self._settings.on_idle == "hold":
            return replace(marked, state=None)
        return marked if marked.state is not None else replace(marked, state="active")

    def _release(self, bound: B, history: BindingHistory, start: SourceOffset) -> SourceOffset:
        """Return the end of a batch in which an input that is not active lets the others pass, or `start`."""
        state = self._state(bound, history, start)
        if state == "active":
            return start
        if state != start.state:
            # The others must know the state before the mark rises: if all inputs are idle, the highest mark counts.
            return change_state(start, state, None)
        key, _ = self._time_key(bound)
        mark = start.mark or self._own_mark(bound, start)
        micros = released_mark(None if mark is None else mark.micros, self._other_inputs(start))
        return start if micros is None else change_state(start, state, Mark(key, micros))

    def _state(self, bound: B, history: BindingHistory, start: SourceOffset) -> InputState:
        """Return the state of the input; it is active as long as there are rows to read."""
        end = self._ending_offsets(bound)
        if end is not None and all(start.cut.get(partition, 0) >= offset for partition, offset in end.items()):
            return "finished"
        if any(start.cut.get(partition, 0) < offset for partition, offset in history.ends.items()):
            return "active"
        if history.state != "active":
            return history.state
        most = self._settings.idle_after
        is_overdue = most is not None and time.monotonic() >= self._quiet_since + most / 1e6
        return "timed out" if start.state == "timed out" or is_overdue else "active"

    def _other_inputs(self, start: SourceOffset) -> list[QueryInput]:
        """Return the other inputs of the query as of `start`; none before the listener has recorded its last batch."""
        now = time.monotonic()
        if self._until is None and now < self._next_look_at:
            return []
        self._next_look_at = now + self.look_seconds
        inputs = QueryInputs(open_home(self._location).home)
        give_up = now + (0 if self._until is None else _RECORD_TIMEOUT_SECONDS)
        while (others := inputs.others(start)) is None and time.monotonic() < give_up:
            time.sleep(0.02)
        return others or []

    def _note_start(self, start: SourceOffset) -> None:
        last = self._last_start
        if last is None or (last.ts, last.cut, last.watermarks) != (start.ts, start.cut, start.watermarks):
            self._quiet_since = time.monotonic()
        self._last_start = start
        if self._first_start is None:
            self._first_start = start
        elif start != self._first_start:
            # A batch has begun in which the mark was said; if its plan has left this source out, no batch has it.
            self._has_said_mark = True

    def _must_repeat_mark(self, start: SourceOffset, stops: QueryStops | None) -> bool:
        """Return whether the source has a mark that it has not said to Spark in this run."""
        is_only_input = stops is not None and stops.readers == 1
        has_mark = self._settings.mark_rows and bool(start.watermarks or start.mark)
        return has_mark and not self._has_said_mark and not is_only_input

    def _current_history(self, bound: B) -> BindingHistory:
        """Return the bindings. Spark asks a hundred times a second, and a tick costs several store queries."""
        now = time.monotonic()
        if self._until is not None or now < self._next_tick_at:
            return bound.history()
        history = bound.tick()
        self._next_tick_at = now + self.look_seconds
        return history

    def _query_hold(self, bound: B) -> QueryHold:
        if self._hold is None:
            self._hold = QueryHold(bound)
        return self._hold

    def _own_mark(self, bound: B, offset: SourceOffset) -> Mark | None:
        """Return the mark that follows from the watermarks of the source alone."""
        key, unit = self._time_key(bound)
        time = offset.watermarks.get(key)
        return None if time is None or not self._settings.mark_rows else Mark(key, micros_from_unit(time, unit))

    def _mark_row(self, bound: B, after: SourceOffset) -> MarkRow | None:
        if not self._settings.mark_rows:
            return None
        # Offsets of earlier versions have no mark.
        mark = after.mark or self._own_mark(bound, after)
        if mark is None and not after.watermarks:
            return None
        return MarkRow(after.ts, dict(after.watermarks), None if mark is None else mark.micros)

    def _next_end(self, bound: B, history: BindingHistory, start: SourceOffset, limit: ReadLimit) -> SourceOffset:
        """Return where the next batch ends, or `start` if there is nothing new or a slower query must catch up."""
        limits: BatchLimits | None = self._batch_limits(bound, limit)
        if limits is not None and self._settings.align is not None:
            limits = self._align_limits(bound, history, start, limits)
        return start if limits is None else next_offset(history, start, limits)

    def _batch_limits(self, bound: B, limit: ReadLimit) -> BatchLimits:
        settings, end = self._settings, self._ending_offsets(bound)
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits(until=self._until, end=end)
        key, unit = self._time_key(bound)
        most = settings.max_event_time
        event_time = None if most is None else (key, max(1, micros_in_unit(unit, most)))
        return BatchLimits(
            rows=self._max_rows(bound), event_time=event_time, until=self._until, end=end, at_marks=settings.settle
        )

    def _align_limits(
        self, bound: B, history: BindingHistory, start: SourceOffset, limits: BatchLimits
    ) -> BatchLimits | None:
        """Return the limits with the bound that aligned queries set, or None if a slower one must catch up first."""
        key, unit = self._time_key(bound)
        group = AlignedReaders(open_home(self._location).home, self._settings.align or "")
        watermark = start.watermarks.get(key)
        is_caught_up = next_offset(history, start, limits) == start
        now, report = time.monotonic(), (watermark, is_caught_up)
        if report != self._reported or now >= self._next_report_at:
            self._next_report_at, self._reported = now + _ALIGNMENT_HEARTBEAT_SECONDS, report
            micros = None if watermark is None else micros_from_unit(watermark, unit)
            group.report(start.incarnation, micros, is_caught_up=is_caught_up)
        slowest = group.slowest_other(start.incarnation)
        if slowest is None:
            return limits
        most = micros_in_unit(unit, slowest + self._settings.max_ahead)
        # An availableNow query never waits here: Spark would take an unchanged offset for the end.
        if watermark is not None and watermark > most and self._until is None:
            return None
        return replace(limits, time_at_most=(key, most))

    def _retry_seconds(self) -> float:
        return _RETRY_SECONDS

    def _retry_while_away(self, action: Callable[[], T]) -> T:
        """Return the result of an action; retry it for a while if the home or Kafka is not available."""
        give_up = time.monotonic() + self._retry_seconds()
        pause = 0.05
        while True:
            try:
                return action()
            except (HomeBusy, HomeUnusable, KafkaAway):
                if time.monotonic() > give_up:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 2.0)


def _apply_stops(stops: QueryStops, before: SourceOffset, after: SourceOffset) -> SourceOffset:
    """Return the end of a batch of an exactly-once query: clipped to its next stop, or one extra empty batch."""
    if stops.remaining:
        return clip_to_stop(stops.key, stops.remaining, before, after)
    if after == before and stops.extra_empty_batch and before.needs_empty_batch:
        # An extra empty batch, so that windows closed by the last batch are emitted.
        return add_empty_batch(before)
    return after


def split_into_tasks(
    ranges: Sequence[BoundRange], rows_per_task: int, only: TimeFilter | None = None, mark: MarkRow | None = None
) -> list[ReadTask]:
    """Return tasks of at most `rows_per_task` rows, each of one partition; a mark row gets its own task."""
    tasks: list[ReadTask] = []
    collected: list[BoundRange] = []
    room = rows_per_task
    for bound_range in ranges:
        first = bound_range.first
        while first < bound_range.end:
            if collected and (collected[-1].partition != bound_range.partition or not room):
                tasks.append(ReadTask(tuple(collected), only))
                collected, room = [], rows_per_task
            end = min(bound_range.end, first + room)
            collected.append(replace(bound_range, first=first, end=end))
            room -= end - first
            first = end
    if collected:
        tasks.append(ReadTask(tuple(collected), only))
    if mark is not None:
        tasks.append(ReadTask((), mark=mark))
    return tasks


def micros_from_unit(time: int, unit: str) -> int:
    """Return a time of a stream in microseconds, rounded down."""
    return time * UNITS_PER_SECOND["us"] // UNITS_PER_SECOND[unit]
