"""Files what each batch saw of its rows with the step it ran at, for the next step to be computed from."""

import atexit
import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from threading import Lock
from typing import Any

from pyspark import SparkContext
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

from floodmark.control import Home, Queries, QueryRecord, WatermarkSteps
from floodmark.spark.watermark.chain import MarkOffset, WatermarkSettings
from floodmark.spark.watermark.mark_source import now_micros
from floodmark.spark.watermark.statistics import read_statistics

_log = logging.getLogger("floodmark")


def observation_name(frame: str) -> str:
    """Return the name under which the statistics of a frame are reported."""
    return f"floodmark_{frame}"


class _ProgressAsJson(JStreamingQueryListener):
    """Takes the progress of a batch from the JVM in one call.

    PySpark makes Python objects of it field by field, by some hundred calls, and for these 0.1 to 0.3 s the next batch
    would wait. Spark Connect has it as JSON already, and never comes here.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark calls it by this name
        progress = StreamingQueryProgress.fromJson(json.loads(jevent.progress().json()))
        self.pylistener.onQueryProgress(QueryProgressEvent(progress))


class ProgressListener(StreamingQueryListener):
    """One for a session; knows the frames that were made with it, and the queries that use them."""

    def __init__(self) -> None:
        self._frames: dict[str, tuple[WatermarkSettings, Home]] = {}
        self._started: dict[str, int] = {}
        self._records: dict[str, tuple[QueryRecord, Home]] = {}
        self.homes: dict[str, str] = {}

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_ProgressAsJson(self))
        return self._jlistenerobj

    def watch(self, frame: str, settings: WatermarkSettings, home: Home) -> None:
        """File what is seen of a frame in a home."""
        self._frames[frame] = settings, home

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Remember when the run began."""
        self._started[str(event.runId)] = now_micros()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """File the statistics of every frame in the query, and how far the query is."""
        progress = event.progress
        try:
            places = list(_match_frames(progress, set(self._frames)))
            for frame, offset in places:
                self._file(frame, offset, progress)
            if places:
                self._record(places, progress)
        except Exception:
            # Spark would swallow it without a word.
            _log.exception("What a batch saw could not be filed; its watermark stays where it is.")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Do nothing: the chain sees by itself that nothing comes."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark calls it by this name
        """Record how the run ended."""
        self._started.pop(str(event.runId), None)
        record, home = self._records.pop(str(event.runId), (None, None))
        if record is None or home is None:
            return
        ended = replace(
            record, state="failed" if event.exception else "stopped", error=event.exception, updated_at=now_micros()
        )
        try:
            Queries(home).record(ended)
        except Exception:
            _log.exception("The end of the query %s could not be filed.", record.query_id)

    def has_heard_out(self, running: set[str]) -> bool:
        """Return whether the end of every run was told, but for those that are still running."""
        return self._started.keys() <= running

    def _file(self, frame: str, offset: MarkOffset, progress: StreamingQueryProgress) -> None:
        settings, home = self._frames[frame]
        data = [source for source in progress.sources if parse_mark_offset(source) is None]
        statistics = asdict(read_statistics(progress.observedMetrics[observation_name(frame)], settings)) | {
            "input_rows": sum(source.numInputRows for source in data),
            "caught_up": bool(data) and all(_is_caught_up(source) for source in data),
            "spark_dropped": sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
        }
        WatermarkSteps(home).observe(offset.incarnation, offset.seq, progress.batchId, statistics, now_micros())

    def _record(self, places: list[tuple[str, MarkOffset]], progress: StreamingQueryProgress) -> None:
        now, run = now_micros(), str(progress.runId)
        settings_and_homes = [self._frames[frame] for frame, _ in places]
        watermark = progress.eventTime.get("watermark")
        record = QueryRecord(
            query_id=str(progress.id),
            run_id=run,
            name=progress.name,
            batch_id=progress.batchId,
            incarnations=tuple(
                (offset.incarnation, offset.seq, settings.column)
                for (_, offset), (settings, _) in zip(places, settings_and_homes, strict=True)
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


_listeners_lock = Lock()
_listeners: dict[int, tuple[SparkSession, ProgressListener]] = {}


def session_listener(spark: SparkSession) -> ProgressListener:
    """Return the listener of a session, added to it the first time."""
    with _listeners_lock:
        known = _listeners.get(id(spark))
        if known is None or known[0] is not spark:
            listener = ProgressListener()
            spark.streams.addListener(listener)
            atexit.register(_remove_at_exit, spark, listener)
            known = _listeners[id(spark)] = spark, listener
        return known[1]


def query_home(spark: SparkSession, query_id: str) -> str | None:
    """Return the home of a query that was started with this session, if any of its batches has been heard of."""
    return session_listener(spark).homes.get(query_id)


def _remove_at_exit(spark: SparkSession, listener: ProgressListener) -> None:
    """Hear queries that have ended out, then leave: Spark tells the end late, and a long trace if nobody listens."""
    with suppress(Exception):
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            running = {str(query.runId) for query in spark.streams.active}
            if listener.has_heard_out(running):
                break
            time.sleep(0.01)
        spark.streams.removeListener(listener)


def parse_mark_offset(source: SourceProgress) -> MarkOffset | None:
    """Return the end offset of a source of marks, None for any other source."""
    try:
        values: Any = json.loads(source.endOffset)
        return MarkOffset.from_json(values) if "incarnation" in values else None
    except (TypeError, ValueError):
        return None


def _match_frames(progress: StreamingQueryProgress, frames: set[str]) -> Iterator[tuple[str, MarkOffset]]:
    """Yield each frame of a query with its offset.

    A batch that runs again after a restart has the offset of the frame before the restart. Where there is one such
    offset and one frame without an offset, they belong together; else what that batch saw is lost, and counted so.
    """
    observed = {frame for frame in frames if observation_name(frame) in progress.observedMetrics}
    offsets = [offset for source in progress.sources if (offset := parse_mark_offset(source)) is not None]
    strangers = [offset for offset in offsets if offset.frame not in observed]
    for offset in offsets:
        if offset.frame in observed:
            observed.discard(offset.frame)
            yield offset.frame, offset
    if len(observed) == len(strangers) == 1:
        yield observed.pop(), strangers[0]


def _timestamp_millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _is_caught_up(source: SourceProgress) -> bool:
    return source.latestOffset is not None and source.latestOffset == source.endOffset
