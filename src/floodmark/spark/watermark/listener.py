"""Stores the statistics of each batch in the home, under the step it ran at, and the state of each query.

It also compares the marks of each batch with earlier ones. For inputs that do not hold the watermark while they are
idle it stores where each batch ends in every input.
"""

import atexit
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, Literal

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from floodmark.bindings.coordination import QueryInputs
from floodmark.control import Home, Queries, QueryRecord, WatermarkSteps
from floodmark.errors import FallingMark
from floodmark.spark.watermark.chain import MarkOffset, WatermarkSettings
from floodmark.spark.watermark.late import query_directory, remove_old_late_rows
from floodmark.spark.watermark.mark_source import now_micros
from floodmark.spark.watermark.statistics import read_statistics

_REMOVAL_INTERVAL: Final = 60_000_000
"""How often old late rows are looked for, in microseconds."""

_log = logging.getLogger("floodmark")


def observation_name(frame: str) -> str:
    """Return the name under which the statistics of a frame are reported."""
    return f"floodmark_{frame}"


def marks_observation_name(frame: str) -> str:
    """Return the name under which the largest mark of a frame is reported."""
    return f"floodmark_marks_{frame}"


OnFallingMark = Literal["fail", "count"]
"""What happens when the largest mark of a batch lies below that of an earlier one."""


class LargestMarks:
    """The largest mark of the earlier batches of each run, in microseconds.

    >>> marks = LargestMarks()
    >>> marks.falls_below("run", 50, restored=0), marks.falls_below("run", 40, restored=0)
    (None, 50)
    >>> marks.falls_below("next run", 30, restored=49), marks.falls_below("next run", None, restored=49)
    (49, None)
    """

    __slots__ = ("_by_run",)

    def __init__(self) -> None:
        """Start without runs."""
        self._by_run: dict[str, int] = {}

    def falls_below(self, run: str, largest: int | None, restored: int) -> int | None:
        """Return the earlier mark that the largest mark of a batch lies below; None if it does not fall.

        `restored` is Spark's watermark in the batch. It is at most the largest mark of earlier runs, and all that is
        known of them.
        """
        earlier = max(restored, self._by_run.get(run, restored))
        self._by_run[run] = earlier if largest is None else max(earlier, largest)
        return earlier if largest is not None and largest < earlier else None

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        self._by_run.pop(run, None)


def falling_mark(column: str, batch: int, mark: int, earlier: int) -> FallingMark:
    """Return the error for a batch whose largest mark lies below an earlier one."""
    return FallingMark(
        f"The largest mark of batch {batch} in the column {column!r} is {mark}, and an earlier batch had {earlier}, in "
        "microseconds since 1970.",
        rule="A mark promises that no later row is before it, so marks do not fall from batch to batch.",
        remedy="Let the writer of the marks state the minimum over its inputs, or pass on_falling_mark='count' to go "
        "on with the higher mark.",
        column=column,
        batch=batch,
        mark=mark,
        earlier=earlier,
    )


class _ProgressAsJson(JStreamingQueryListener):
    """Takes the progress of a batch from the JVM in one call.

    PySpark's own listener copies it field by field, in some hundred calls, and delays the next batch by 0.1 to 0.3 s.
    Spark Connect sends JSON, and does not use this class.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark calls it by this name
        progress = StreamingQueryProgress.fromJson(json.loads(jevent.progress().json()))
        self.pylistener.onQueryProgress(QueryProgressEvent(progress))


class ProgressListener(StreamingQueryListener):
    """The listener of one session: it has the session's frames, and the queries that use them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._frames: dict[str, tuple[WatermarkSettings, Home]] = {}
        self._started: dict[str, int] = {}
        self._records: dict[str, tuple[QueryRecord, Home]] = {}
        self._homes_of_inputs: dict[str, Home] = {}
        self._marks: dict[str, tuple[str, OnFallingMark]] = {}
        self._largest_marks = LargestMarks()
        self.falling: Counter[str] = Counter()
        """How many batches of each run had a falling mark."""
        self._late_retentions: dict[str, int] = {}
        self._late_removed_at: dict[str, int] = {}
        self.homes: dict[str, str] = {}

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_ProgressAsJson(self))
        return self._jlistenerobj

    def watch(self, frame: str, settings: WatermarkSettings, home: Home, late_retention: int | None = None) -> None:
        """Store the statistics of a frame in a home, and remove its late rows after `late_retention` microseconds."""
        self._frames[frame] = settings, home
        if late_retention is not None:
            self._late_retentions[frame] = late_retention

    def watch_inputs(self, location: str) -> None:
        """Store in a home where batches end, for queries with inputs that do not hold the watermark while idle."""
        if location not in self._homes_of_inputs:
            self._homes_of_inputs[location] = Home.open_existing(location)

    def watch_marks(self, frame: str, column: str, on_falling_mark: OnFallingMark) -> None:
        """Compare the marks of a frame from batch to batch."""
        self._marks[frame] = column, on_falling_mark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Remember the start time of the run."""
        self._started[str(event.runId)] = now_micros()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Store the statistics of every frame in the query, and the query's progress."""
        progress = event.progress
        try:
            self._check_marks(progress)
            self._record_inputs(progress)
            frame_offsets = list(_match_frames(progress, set(self._frames)))
            for frame, offset in frame_offsets:
                self._store_statistics(frame, offset, progress)
            if frame_offsets:
                self._record_query(frame_offsets, progress)
            for frame, _ in frame_offsets:
                self._remove_late_rows(frame, progress)
        except Exception:
            # Spark ignores exceptions of listeners.
            _log.exception("The statistics of a batch could not be stored; the watermark does not advance by it.")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Do nothing: the chain handles idle queries by its clock."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Record how the run ended."""
        self._started.pop(str(event.runId), None)
        for frame in self._marks:
            self._largest_marks.forget(f"{event.runId} {frame}")
        record, home = self._records.pop(str(event.runId), (None, None))
        if record is None or home is None:
            return
        ended = replace(
            record, state="failed" if event.exception else "stopped", error=event.exception, updated_at=now_micros()
        )
        try:
            Queries(home).record(ended)
        except Exception:
            _log.exception("The end of the query %s could not be recorded.", record.query_id)

    def has_all_ends(self, running: set[str]) -> bool:
        """Return whether the end of every run was received, except of those still running."""
        return self._started.keys() <= running

    def _store_statistics(self, frame: str, offset: MarkOffset, progress: StreamingQueryProgress) -> None:
        settings, home = self._frames[frame]
        data = [source for source in progress.sources if parse_mark_offset(source) is None]
        statistics = asdict(read_statistics(progress.observedMetrics[observation_name(frame)], settings)) | {
            "input_rows": sum(source.numInputRows for source in data),
            "reports_latest": all(map(_reports_latest, data)),
            "caught_up": bool(data) and all(_is_caught_up(source) for source in data),
            "spark_dropped": sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
        }
        WatermarkSteps(home).observe(offset.incarnation, offset.seq, progress.batchId, statistics, now_micros())

    def _check_marks(self, progress: StreamingQueryProgress) -> None:
        run = str(progress.runId)
        watermark = progress.eventTime.get("watermark")
        restored = 0 if watermark is None else _timestamp_millis(watermark) * 1000
        for frame, (column, on_falling_mark) in self._marks.items():
            observed = progress.observedMetrics.get(marks_observation_name(frame))
            if observed is None:
                continue
            earlier = self._largest_marks.falls_below(f"{run} {frame}", observed["largest"], restored)
            if earlier is None:
                continue
            self.falling[run] += 1
            fields = {
                "column": column,
                "batch": progress.batchId,
                "mark": observed["largest"],
                "earlier": earlier,
            }
            if on_falling_mark == "count":
                _log.warning("%s Falling marks of this run: %d.", falling_mark(**fields), self.falling[run])
            elif self.falling[run] == 1:
                _log.error("%s The query %s is made to fail.", falling_mark(**fields), progress.name or progress.id)
                Thread(target=_fail_query, args=(self._spark, run), daemon=True).start()

    def _record_inputs(self, progress: StreamingQueryProgress) -> None:
        ends = [end for source in progress.sources if (end := _parse_offset(source)) is not None]
        if any(end.get("state") is not None for end in ends):
            for home in self._homes_of_inputs.values():
                QueryInputs(home).record(str(progress.id), ends)

    def _remove_late_rows(self, frame: str, progress: StreamingQueryProgress) -> None:
        retention, now = self._late_retentions.get(frame), now_micros()
        if retention is None or 0 <= now - self._late_removed_at.get(frame, 0) < min(retention, _REMOVAL_INTERVAL):
            return
        self._late_removed_at[frame] = now
        settings, _ = self._frames[frame]
        assert settings.late_path is not None  # Only queries that store late rows have a retention of them.
        directory = query_directory(Path(settings.late_path), str(progress.id), settings.column)
        remove_old_late_rows(directory, (now - retention) / 1e6, progress.batchId)

    def _record_query(self, frame_offsets: list[tuple[str, MarkOffset]], progress: StreamingQueryProgress) -> None:
        now, run = now_micros(), str(progress.runId)
        settings_and_homes = [self._frames[frame] for frame, _ in frame_offsets]
        watermark = progress.eventTime.get("watermark")
        record = QueryRecord(
            query_id=str(progress.id),
            run_id=run,
            name=progress.name,
            batch_id=progress.batchId,
            incarnations=tuple(
                (offset.incarnation, offset.seq, settings.column)
                for (_, offset), (settings, _) in zip(frame_offsets, settings_and_homes, strict=True)
            ),
            spark_watermark=None if watermark is None else _timestamp_millis(watermark),
            state="running",
            error=None,
            warnings=(),
            started_at=self._started.get(run, now),
            updated_at=now,
        )
        home = settings_and_homes[0][1]
        self._records[run] = record, home
        self.homes[record.query_id] = home.location
        Queries(home).record(record)


_CANCEL_PAUSE_SECONDS: Final = 0.02

_listeners_lock = Lock()
_listeners: dict[int, tuple[SparkSession, ProgressListener]] = {}


def session_listener(spark: SparkSession) -> ProgressListener:
    """Return the listener of a session; the first call adds it."""
    with _listeners_lock:
        entry = _listeners.get(id(spark))
        if entry is None or entry[0] is not spark:
            listener = ProgressListener(spark)
            spark.streams.addListener(listener)
            atexit.register(_remove_at_exit, spark, listener)
            entry = _listeners[id(spark)] = spark, listener
        return entry[1]


def _fail_query(spark: SparkSession, run: str) -> None:
    """Let a run fail: cancel the jobs of its batches until it has. Through Spark Connect it can only be stopped."""
    for query in spark.streams.active:
        if str(query.runId) == run:
            while query.isActive:
                try:
                    # Spark runs the jobs of a query in a group that has the id of the run.
                    spark.sparkContext.cancelJobGroup(run)
                except PySparkException:
                    query.stop()
                time.sleep(_CANCEL_PAUSE_SECONDS)


def query_home(spark: SparkSession, query_id: str) -> str | None:
    """Return the home of a query of this session; None before its first batch is done."""
    return session_listener(spark).homes.get(query_id)


def _remove_at_exit(spark: SparkSession, listener: ProgressListener) -> None:
    """Remove the listener once the ends of all stopped queries are recorded.

    Spark reports them late, and logs a long stack trace if the Python process has gone by then.
    """
    with suppress(Exception):
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            running = {str(query.runId) for query in spark.streams.active}
            if listener.has_all_ends(running):
                break
            time.sleep(0.01)
        spark.streams.removeListener(listener)


def parse_mark_offset(source: SourceProgress) -> MarkOffset | None:
    """Return the end offset of a mark source; None for any other source."""
    values = _parse_offset(source)
    try:
        return None if values is None else MarkOffset.from_json(values)
    except TypeError:
        return None


def _parse_offset(source: SourceProgress) -> dict[str, Any] | None:
    """Return the end offset of a source of Floodmark; None for any other source."""
    try:
        values: Any = json.loads(source.endOffset)
    except (TypeError, ValueError):
        return None
    return values if isinstance(values, dict) and "incarnation" in values else None


def _match_frames(progress: StreamingQueryProgress, frames: set[str]) -> Iterator[tuple[str, MarkOffset]]:
    """Yield each frame of a query with its offset.

    A batch that is run again after a restart has the offset of the frame before the restart. One such offset and one
    frame without an offset belong together; in other cases the statistics of that batch are lost, and counted as lost.
    """
    observed = {frame for frame in frames if observation_name(frame) in progress.observedMetrics}
    offsets = [offset for source in progress.sources if (offset := parse_mark_offset(source)) is not None]
    unmatched = [offset for offset in offsets if offset.frame not in observed]
    for offset in offsets:
        if offset.frame in observed:
            observed.discard(offset.frame)
            yield offset.frame, offset
    if len(observed) == len(unmatched) == 1:
        yield observed.pop(), unmatched[0]


def _timestamp_millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _is_caught_up(source: SourceProgress) -> bool:
    return _reports_latest(source) and source.latestOffset == source.endOffset


def _reports_latest(source: SourceProgress) -> bool:
    # A source that does not report it, such as files, has None or the JSON text of that.
    return source.latestOffset not in (None, "null")
