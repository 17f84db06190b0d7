"""A stream as Spark reads it: the driver's part, which says where batches begin and end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from floodmark.bindings import (
    AlignedReaders,
    BindingHistory,
    BoundRange,
    BoundStream,
    Limits,
    SourceOffset,
    bound_ranges,
    next_offset,
    offset_at,
)
from floodmark.errors import HomeBusy, HomeUnusable
from floodmark.spark._query_hold import QueryHold
from floodmark.spark._stream_bounds import Bounds
from floodmark.spark._stream_rows import Mark, RangePart, TimeFilter, open_home, read_part, to_micros
from floodmark.spark._stream_settings import ReadSettings
from floodmark.streams._units import micros_in

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.05
"""How often it is looked whether there is more to be bound."""
_TELL_SECONDS: Final = 10.0
"""How often a query tells those that it is aligned with that it is alive."""
_PATIENCE_SECONDS: Final = 30.0
_NO_LIMIT: Final = 2**62


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query runs; a copy of it in every task reads rows.

    An offset is a `SourceOffset`: where the batch ends, and the watermark that it promises there. Spark keeps it in its
    own log before the batch runs, so a batch that runs again is the same.
    """

    def __init__(self, settings: ReadSettings, location: str) -> None:
        self._settings = settings
        self._location = location
        self._bound: BoundStream | None = None
        self._bounds: Bounds | None = None
        self._until: int | None = None
        self._hold: QueryHold | None = None
        self._look_at = 0.0
        self._told: tuple[float, object] = (0.0, None)

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings, "location": self._location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], state["location"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark calls it by this name
        """Return where a query without a checkpoint begins."""

        def begin() -> dict[str, Any]:
            bound, bounds = self._opened()
            incarnation = uuid4().hex
            start = bounds.start(bound)
            if start is None:
                return SourceOffset(incarnation, None, {}).save()
            return offset_at(bound.tick(at_once=True), incarnation, bound.ends_at(start)).save()

        return _patiently(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark calls it by this name
        """Return that there is a limit; what it is, only this reader knows."""
        settings = self._settings
        is_limited = settings.max_rows or settings.max_bytes or settings.max_event_time or settings.settle
        return ReadMaxRows(settings.max_rows or _NO_LIMIT) if is_limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it by this name
        """Bind what is there now; the query ends when it has read that."""

        def bind() -> int:
            return self._opened()[0].tick(at_once=True).upper - 1

        self._until = _patiently(bind)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or `start` if there is nothing new."""

        def find() -> dict[str, Any]:
            bound, _ = self._opened()
            before = SourceOffset.load(start)
            history = self._ticked(bound)
            self._held(bound).take(history, before, time.monotonic())
            limits = self._limits(bound, limit)
            if self._settings.align is not None:
                aligned = self._aligned(bound, history, before, limits)
                if aligned is None:
                    return start
                limits = aligned
            after = next_offset(history, before, limits)
            return start if after == before else after.save()

        return _patiently(find)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePart]:
        """Return what the tasks of a batch read."""
        before, after = SourceOffset.load(start), SourceOffset.load(end)
        bound, bounds = self._opened()
        ranges = bound_ranges(_patiently(bound.history), before, after)
        return parts_of(ranges, self._settings.rows_per_task, bounds.rows, self._mark(after))

    def read(self, partition: RangePart) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_part(self._location, self._settings, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of timestamps that Spark will not ask for again."""
        ts, hold = SourceOffset.load(end).ts, self._hold
        if ts is not None and hold is not None:
            _patiently(lambda: hold.committed(ts, time.monotonic()))

    def _opened(self) -> tuple[BoundStream, Bounds]:
        if self._bound is None or self._bounds is None:
            home = open_home(self._location)
            self._bound = BoundStream(home, self._settings.stream, source=self._settings.source)
            self._bounds = Bounds.of(self._settings, self._bound.stream)
        return self._bound, self._bounds

    def _ticked(self, bound: BoundStream) -> BindingHistory:
        """Return what is bound by now. Spark asks a hundred times a second; to look for more costs some queries."""
        now = time.monotonic()
        if self._until is not None or now < self._look_at:
            return bound.history()
        history = bound.tick()
        self._look_at = now + _LOOK_SECONDS
        return history

    def _held(self, bound: BoundStream) -> QueryHold:
        if self._hold is None:
            self._hold = QueryHold(bound)
        return self._hold

    def _mark(self, after: SourceOffset) -> Mark | None:
        if not self._settings.marks or not after.watermarks or after.ts is None:
            return None
        return after.ts, dict(after.watermarks)

    def _limits(self, bound: BoundStream, limit: ReadLimit) -> Limits:
        settings, (_, bounds) = self._settings, self._opened()
        end = bounds.end(bound)
        if isinstance(limit, ReadAllAvailable):
            return Limits(until=self._until, end=end)
        rows = [most for most in (settings.max_rows, bounds.rows_of(settings.max_bytes, bound)) if most is not None]
        key = bound.stream.settings.key(settings.key)
        event_time = None if settings.max_event_time is None else (key, bounds.in_unit(settings.max_event_time))
        return Limits(
            rows=min(rows, default=None), event_time=event_time, until=self._until, end=end, at_marks=settings.settle
        )

    def _aligned(
        self, bound: BoundStream, history: BindingHistory, start: SourceOffset, limits: Limits
    ) -> Limits | None:
        """Return the limits with what the others allow, or None if they are to be waited for."""
        key, unit = bound.stream.settings.key(self._settings.key), bound.stream.settings.unit
        together = AlignedReaders(open_home(self._location).home, self._settings.align or "")
        mine = start.watermarks.get(key)
        is_caught_up = next_offset(history, start, limits) == start
        now, told = time.monotonic(), (mine, is_caught_up)
        if told != self._told[1] or now >= self._told[0]:
            self._told = (now + _TELL_SECONDS, told)
            micros = None if mine is None else to_micros(mine, unit)
            together.report(start.incarnation, micros, is_caught_up=is_caught_up)
        slowest = together.slowest_other(start.incarnation)
        if slowest is None:
            return limits
        most = micros_in(unit, slowest + self._settings.max_ahead)
        # A query that reads what is available now would take a pause for its end.
        if mine is not None and mine > most and self._until is None:
            return None
        return replace(limits, time_at_most=(key, most))


def parts_of(
    ranges: Sequence[BoundRange], rows_per_task: int, only: TimeFilter | None = None, mark: Mark | None = None
) -> list[RangePart]:
    """Return ranges as tasks of about equal size, each of one segment; a mark has its own."""
    parts: list[RangePart] = []
    taken: list[BoundRange] = []
    room = rows_per_task
    for one in ranges:
        first = one.first
        while first < one.end:
            if taken and (taken[-1].partition != one.partition or not room):
                parts.append(RangePart(tuple(taken), only))
                taken, room = [], rows_per_task
            end = min(one.end, first + room)
            taken.append(replace(one, first=first, end=end))
            room -= end - first
            first = end
    if taken:
        parts.append(RangePart(tuple(taken), only))
    if mark is not None:
        parts.append(RangePart((), mark=mark))
    return parts


def _patiently(action: Callable[[], T]) -> T:
    """Return what an action returns; if the home is away, try again for a while."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    pause = 0.05
    while True:
        try:
            return action()
        except (HomeBusy, HomeUnusable):
            if time.monotonic() > give_up:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
