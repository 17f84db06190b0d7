"""The driver's part of a streaming source whose rows are bound to timestamps: where batches begin and end.

Also what its tasks read, and the hold by which a query keeps timestamps from being compacted that Spark may
ask for again.
"""

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from floodmark._util.times import UNITS_PER_SECOND, micros_in_unit
from floodmark.bindings import BindingHistory, Bindings, SourceOffset
from floodmark.bindings.coordination import AlignedReaders, QueryReaders, QueryStops
from floodmark.bindings.offsets import BatchLimits, BoundRange, bound_ranges, clip_to_stop, next_offset, offset_at_cut
from floodmark.control import Home
from floodmark.errors import HomeBusy, HomeUnusable, KafkaAway, UnknownHold
from floodmark.streams import StreamHome
from floodmark.streams.backend import LocalBackend


class BoundSource(Protocol):
    """A source that is bound as it grows."""

    source: str
    bindings: Bindings

    def history(self) -> BindingHistory:
        """Return what is bound."""
        ...

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind what is new, if a tick is due or it must be done at once, and return all that is bound."""
        ...


class ReaderSettings(Protocol):
    """In which portions a source is read."""

    @property
    def max_rows(self) -> int | None:
        """How many rows a batch may have."""

    @property
    def max_event_time(self) -> int | None:
        """How far the watermark may move in a batch, in microseconds."""

    @property
    def settle(self) -> bool:
        """Whether batches end where the watermark moves."""

    @property
    def align(self) -> str | None:
        """A name that queries have which move on together."""

    @property
    def max_ahead(self) -> int:
        """How far ahead of the slowest of them it may be, in microseconds."""

    @property
    def mark_rows(self) -> bool:
        """Whether a row without data tells where the watermark is."""

    @property
    def reader(self) -> str | None:
        """What tells this DataFrame from others, so that a query can be found that reads it."""


ROWS_PER_TASK: Final = 4_000_000
"""A task of a Python source costs about a tenth of a second by itself, so there should be few."""


IS_MARK: Final = "_is_mark"
"""The column that tells a row with the watermark from a row of the stream."""


_homes_by_location: dict[str, StreamHome] = {}

MarkRow = tuple[int, Mapping[str, int]]
"""A timestamp, and the watermarks where it was read to its end."""


@dataclass(frozen=True, slots=True)
class TimeFilter:
    """Rows whose time lies outside are left out; times are in the unit of the stream."""

    key: str
    lower: int | None
    upper: int | None


class ReadTask(InputPartition):
    """What one task reads: rows that are bound, by timestamp; or the one row that tells where the watermark is."""

    def __init__(
        self, ranges: tuple[BoundRange, ...], only: TimeFilter | None = None, mark: MarkRow | None = None
    ) -> None:
        self.ranges = ranges
        self.only = only
        self.mark = mark


def open_home(location: str | None) -> StreamHome:
    """Return the home at a place, opened once in each process."""
    known = _homes_by_location.get(location or "")
    if known is None:
        known = _homes_by_location[location or ""] = StreamHome(
            LocalBackend(Home.open_existing(location)), controller=False
        )
    return known


_BATCHES_KEPT: Final = 100
"""Spark keeps this many batches to go back to, unless it is told otherwise."""
_HOLD_HEARTBEAT_SECONDS: Final = 10.0
_LOG: Final = logging.getLogger("floodmark.spark")


class QueryHold:
    """The hold of one query, under the incarnation that its offsets have: one that is started again goes on with it."""

    __slots__ = ("_beat_at", "_bound", "_committed", "_holder", "_ts")

    def __init__(self, bound: BoundSource) -> None:
        """Hold nothing yet."""
        self._bound = bound
        self._holder: str | None = None
        self._ts = 0
        self._committed: deque[int] = deque(maxlen=_BATCHES_KEPT)
        self._beat_at = 0.0

    def take(self, history: BindingHistory, start: SourceOffset, now: float) -> None:
        """Hold what the query may ask for from `start` on, and say from time to time that it is alive."""
        if history.upper == history.origin:
            return
        if self._holder == start.incarnation:
            if now >= self._beat_at:
                self._advance(now)
            return
        begun = history.origin if start.ts is None else start.ts
        if start.ts is not None and start.ts < history.since:
            _LOG.warning(
                "The bindings of %r were compacted to %d, and the query goes on from %d: rows bound up to there are "
                "judged by no watermark.",
                self._bound.source,
                history.since,
                start.ts,
            )
        self._holder = start.incarnation
        held = {hold.holder: hold.ts for hold in self._bound.bindings.holds(self._bound.source)}
        self._ts = held.get(start.incarnation, max(history.since, min(begun, history.upper - 1)))
        self._advance(now)

    def committed(self, ts: int, now: float) -> None:
        """Let go of what lies before the batches that Spark keeps, now that one more is done."""
        is_full = len(self._committed) == _BATCHES_KEPT
        if is_full and self._holder is not None and self._committed[0] > self._ts:
            self._ts = self._committed[0]
            self._advance(now)
        self._committed.append(ts)

    def _advance(self, now: float) -> None:
        self._beat_at = now + _HOLD_HEARTBEAT_SECONDS
        bindings, source, holder = self._bound.bindings, self._bound.source, self._holder or ""
        try:
            bindings.advance_hold(source, holder, self._ts)
        except UnknownHold:
            # It is the first time, or somebody has released it, who took this query for dead.
            bindings.hold(source, holder, max(self._ts, bindings.source(source).since), kind="query")


T = TypeVar("T")
B = TypeVar("B", bound=BoundSource)
S = TypeVar("S", bound=ReaderSettings)

_ALIGNMENT_HEARTBEAT_SECONDS: Final = 10.0
"""How often a query tells those that it is aligned with that it is alive."""
_PATIENCE_SECONDS: Final = 30.0
_NO_LIMIT: Final = 2**62


class BoundReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[B, S]):
    """Lives on the driver as long as its query runs; a copy of it in every task reads rows.

    An offset is a `SourceOffset`: where the batch ends, and the watermark that it promises there. Spark keeps it in its
    own log before the batch runs, so a batch that runs again is the same.
    """

    look_seconds: float = 0.05
    """How often it is looked whether there is more to be bound."""

    def __init__(self, settings: S, location: str) -> None:
        self._settings = settings
        self._location = location
        self._bound: B | None = None
        self._until: int | None = None
        self._has_told_all = False
        self._hold: QueryHold | None = None
        self._look_at = 0.0
        self._told: tuple[float, object] = (0.0, None)
        self._stops: QueryStops | None = None
        self._has_stops: bool | None = None

    @abstractmethod
    def _open(self) -> B:
        """Return the source, opened anew."""

    @abstractmethod
    def _first(self, bound: B) -> Mapping[int, int] | None:
        """Return where a query without a checkpoint begins; None for the head."""

    @abstractmethod
    def _time_key(self, bound: B) -> tuple[str, str]:
        """Return the time key that limits go by, and its unit."""

    def _final(self, bound: B) -> Mapping[int, int] | None:
        """Return where reading ends for good; None for nowhere."""
        return None

    def _most_rows(self, bound: B) -> int | None:
        return self._settings.max_rows

    def _is_limited(self) -> bool:
        return bool(self._settings.max_rows or self._settings.max_event_time or self._settings.settle)

    def _last_word(self, bound: B) -> BindingHistory | None:
        """Return the history with what became known of time by reading, when all that is available was read."""
        return None

    @abstractmethod
    def _parts(self, bound: B, ranges: Sequence[BoundRange], mark: MarkRow | None) -> Sequence[ReadTask]:
        """Return ranges as tasks."""

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings, "location": self._location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], state["location"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark calls it by this name
        """Return where a query without a checkpoint begins."""

        def begin() -> dict[str, Any]:
            bound = self._opened()
            incarnation = uuid4().hex
            start = self._first(bound)
            first = SourceOffset(incarnation, None, {})
            if start is not None:
                first = offset_at_cut(bound.tick(at_once=True), incarnation, start)
            if self._settings.reader is not None:
                self._query_readers().begin(self._settings.reader, bound.source, first)
            return first.save()

        return self._patiently(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark calls it by this name
        """Return that there is a limit; what it is, only this reader knows."""
        return ReadMaxRows(self._settings.max_rows or _NO_LIMIT) if self._is_limited() else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it by this name
        """Bind what is there now; the query ends when it has read that."""

        def bind() -> int:
            return self._opened().tick(at_once=True).upper - 1

        self._until = self._patiently(bind)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or `start` if there is nothing new."""

        def find() -> dict[str, Any]:
            bound = self._opened()
            before = SourceOffset.load(start)
            history = self._ticked(bound)
            self._held(bound).take(history, before, time.monotonic())
            stops = self._stops_of(before)
            after = self._next(bound, history, before, limit)
            if after == before and self._until is not None and not self._has_told_all:
                self._has_told_all = True
                told = self._last_word(bound)
                if told is not None and told.upper - 1 > self._until:
                    self._until = told.upper - 1
                    after = self._next(bound, told, before, limit)
            if stops is not None:
                after = _stop_or_settle(stops, before, after)
            return start if after == before else after.save()

        return self._patiently(find)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadTask]:
        """Return what the tasks of a batch read."""
        before, after = SourceOffset.load(start), SourceOffset.load(end)
        bound = self._patiently(self._opened)
        return self._parts(bound, bound_ranges(self._patiently(bound.history), before, after), self._mark(after))

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of timestamps that Spark will not ask for again."""
        ts, hold = SourceOffset.load(end).ts, self._hold
        if ts is not None and hold is not None:
            self._patiently(lambda: hold.committed(ts, time.monotonic()))

    def _opened(self) -> B:
        if self._bound is None:
            self._bound = self._open()
        return self._bound

    def _query_readers(self) -> QueryReaders:
        return QueryReaders(open_home(self._location).home)

    def _stops_of(self, start: SourceOffset) -> QueryStops | None:
        """Return where a query that writes exactly once must stop; they are looked up anew until they are passed."""
        if self._settings.reader is None or self._has_stops is False:
            return None
        if self._stops is None or self._stops.left:
            self._stops = self._query_readers().stops(start.incarnation)
            self._has_stops = self._stops is not None
        return self._stops

    def _ticked(self, bound: B) -> BindingHistory:
        """Return what is bound by now. Spark asks a hundred times a second; to look for more costs some queries."""
        now = time.monotonic()
        if self._until is not None or now < self._look_at:
            return bound.history()
        history = bound.tick()
        self._look_at = now + self.look_seconds
        return history

    def _held(self, bound: B) -> QueryHold:
        if self._hold is None:
            self._hold = QueryHold(bound)
        return self._hold

    def _mark(self, after: SourceOffset) -> MarkRow | None:
        if not self._settings.mark_rows or not after.watermarks or after.ts is None:
            return None
        return after.ts, dict(after.watermarks)

    def _next(self, bound: B, history: BindingHistory, start: SourceOffset, limit: ReadLimit) -> SourceOffset:
        """Return where the next batch ends, or `start` if there is nothing new or others are to be waited for."""
        limits: BatchLimits | None = self._limits(bound, limit)
        if limits is not None and self._settings.align is not None:
            limits = self._aligned(bound, history, start, limits)
        return start if limits is None else next_offset(history, start, limits)

    def _limits(self, bound: B, limit: ReadLimit) -> BatchLimits:
        settings, end = self._settings, self._final(bound)
        if isinstance(limit, ReadAllAvailable):
            return BatchLimits(until=self._until, end=end)
        key, unit = self._time_key(bound)
        most = settings.max_event_time
        event_time = None if most is None else (key, max(1, micros_in_unit(unit, most)))
        return BatchLimits(
            rows=self._most_rows(bound), event_time=event_time, until=self._until, end=end, at_marks=settings.settle
        )

    def _aligned(
        self, bound: B, history: BindingHistory, start: SourceOffset, limits: BatchLimits
    ) -> BatchLimits | None:
        """Return the limits with what the others allow, or None if they are to be waited for."""
        key, unit = self._time_key(bound)
        together = AlignedReaders(open_home(self._location).home, self._settings.align or "")
        mine = start.watermarks.get(key)
        is_caught_up = next_offset(history, start, limits) == start
        now, told = time.monotonic(), (mine, is_caught_up)
        if told != self._told[1] or now >= self._told[0]:
            self._told = (now + _ALIGNMENT_HEARTBEAT_SECONDS, told)
            micros = None if mine is None else micros_from_unit(mine, unit)
            together.report(start.incarnation, micros, is_caught_up=is_caught_up)
        slowest = together.slowest_other(start.incarnation)
        if slowest is None:
            return limits
        most = micros_in_unit(unit, slowest + self._settings.max_ahead)
        # A query that reads what is available now would take a pause for its end.
        if mine is not None and mine > most and self._until is None:
            return None
        return replace(limits, time_at_most=(key, most))

    def _patience(self) -> float:
        return _PATIENCE_SECONDS

    def _patiently(self, action: Callable[[], T]) -> T:
        """Return what an action returns; if the home or Kafka is away, try again for a while."""
        give_up = time.monotonic() + self._patience()
        pause = 0.05
        while True:
            try:
                return action()
            except (HomeBusy, HomeUnusable, KafkaAway):
                if time.monotonic() > give_up:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 2.0)


def _stop_or_settle(stops: QueryStops, before: SourceOffset, after: SourceOffset) -> SourceOffset:
    """Return where a batch ends that must stop, or, where there is nothing to be read, settles."""
    if stops.left:
        return clip_to_stop(stops.source, stops.left, before, after)
    if after == before and stops.settles and before.watermarks and before.step == 0:
        # Windows come out in the batch after the one that has closed them, and Spark makes none by itself.
        return replace(before, step=1)
    return after


def split_into_tasks(
    ranges: Sequence[BoundRange], rows_per_task: int, only: TimeFilter | None = None, mark: MarkRow | None = None
) -> list[ReadTask]:
    """Return ranges as tasks of about equal size, each of one partition; a mark has its own."""
    parts: list[ReadTask] = []
    taken: list[BoundRange] = []
    room = rows_per_task
    for one in ranges:
        first = one.first
        while first < one.end:
            if taken and (taken[-1].partition != one.partition or not room):
                parts.append(ReadTask(tuple(taken), only))
                taken, room = [], rows_per_task
            end = min(one.end, first + room)
            taken.append(replace(one, first=first, end=end))
            room -= end - first
            first = end
    if taken:
        parts.append(ReadTask(tuple(taken), only))
    if mark is not None:
        parts.append(ReadTask((), mark=mark))
    return parts


def micros_from_unit(time: int, unit: str) -> int:
    """Return a time of a stream in microseconds, rounded down."""
    return time * UNITS_PER_SECOND["us"] // UNITS_PER_SECOND[unit]
