"""Runs the queries of the demo side by side: each case by plain Spark and by Floodmark, on the same files."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from floodmark.spark._watermark import with_watermark
from floodmark.spark.demo._cases import DELAY, Case
from floodmark.spark.demo._orders import write_files
from floodmark.spark.demo._outcome import Comparison, Outcome, judge

Engine = Literal["plain Spark", "Floodmark"]
ENGINES: Final[tuple[Engine, Engine]] = ("plain Spark", "Floodmark")

PATIENCE: Final = 60.0
"""How many seconds the queries get. What is not out by then counts as missing."""

_POLL: Final = 0.2


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a query is."""

    case: Case
    engine: Engine
    rows_read: int
    windows_emitted: int
    has_ended: bool

    @property
    def has_read_all(self) -> bool:
        """Return whether all rows have been read."""
        return self.rows_read >= self.case.rows

    @property
    def is_done(self) -> bool:
        """Return whether nothing more is to be waited for."""
        if self.has_ended or not self.case.takes_time:
            return self.has_ended
        if self.engine == "plain Spark":
            return self.has_read_all
        return self.windows_emitted >= len(self.case.expected)


Watcher = Callable[[Reading], None]


class Counting:
    """A query that counts orders per minute and origin into memory."""

    def __init__(self, case: Case, engine: Engine, rows: DataFrame, directory: Path) -> None:
        self.case = case
        self.engine: Engine = engine
        self._spark = rows.sparkSession
        self._table = f"demo_{case.name}_{engine}".replace(" ", "_")
        origin = F.col(case.origin_column)
        counts = rows.groupBy(F.window("t", "1 minute")).agg(
            *(F.count_if(origin == name).alias(name) for name in case.origins)
        )
        writer = (
            counts.select(F.unix_micros("window.start").alias("start"), *case.origins)
            .writeStream.format("memory")
            .queryName(self._table)
            .outputMode("append")
            .option("checkpointLocation", str(directory / self._table))
        )
        self._batches: dict[int, tuple[int, int]] = {}
        trigger = {"processingTime": "100 milliseconds"} if case.takes_time else {"availableNow": True}
        self.query: StreamingQuery = writer.trigger(**trigger).start()

    def read(self) -> Reading:
        """Return how far the query is, from what Spark tells of its batches."""
        has_ended = not self.query.isActive
        last = self.query.lastProgress
        if last is not None and last.batchId not in self._batches:
            # All of them are costly to tell, so they are asked for only where one has been missed.
            is_next = last.batchId == len(self._batches)
            self._batches |= {one.batchId: _told(one) for one in ([last] if is_next else self.query.recentProgress)}
        rows = sum(rows for rows, _ in self._batches.values())
        windows = sum(windows for _, windows in self._batches.values())
        return Reading(self.case, self.engine, rows, windows, has_ended)

    def finish(self) -> Outcome:
        """Stop the query, and judge what it has emitted."""
        if self.query.isActive and self.read().has_read_all:
            # Whatever follows from the last rows belongs to the outcome.
            self.query.processAllAvailable()
        self.query.stop()
        failure = self.query.exception()
        if failure is not None:
            raise failure
        found = [row.asDict() for row in self._spark.table(self._table).collect()]
        self._spark.catalog.dropTempView(self._table)
        last = self.query.lastProgress
        told = last.eventTime.get("watermark") if last is not None else None
        watermark = 0 if told is None else int(datetime.fromisoformat(told).timestamp() * 1_000_000)
        return judge(self.case.expected, [(row.pop("start"), row) for row in found], watermark)


def compare(spark: SparkSession, case: Case, directory: Path, watch: Watcher = lambda reading: None) -> Comparison:
    """Write the files of a case into a new directory, and return what both engines make of them."""
    frames = _frames(spark, case, directory)
    running: list[Counting] = []
    try:
        for engine, rows in zip(ENGINES, frames, strict=True):
            running.append(Counting(case, engine, rows, directory / "checkpoints"))
        _wait_for(running, watch)
        plain, floodmark = (one.finish() for one in running)
    finally:
        for one in running:
            one.query.stop()
    why = case.explain(plain, floodmark)
    return Comparison(case.name, plain, floodmark, case.plain_code, case.floodmark_code, why)


def _frames(spark: SparkSession, case: Case, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Write the files of a case, and return its orders with Spark's watermark and with Floodmark's."""
    streams = []
    for name, files in case.streams.items():
        write_files(directory / name, files, case.origin_column)
        reader = spark.readStream.schema(f"{case.origin_column} string, t timestamp").option("maxFilesPerTrigger", 1)
        streams.append(reader.parquet(str(directory / name)))
    plain = reduce(DataFrame.union, (stream.withWatermark("t", DELAY) for stream in streams))
    united = reduce(DataFrame.union, streams)
    return plain, with_watermark(united, "t", delay=DELAY, home=directory / "home", **case.options)


def _told(batch: StreamingQueryProgress) -> tuple[int, int]:
    """Return how many rows a batch has read, and how many windows it has emitted."""
    files = [source for source in batch.sources if source.description.startswith("FileStreamSource")]
    return sum(source.numInputRows for source in files), max(0, batch.sink.numOutputRows)


def _wait_for(running: Iterable[Counting], watch: Watcher) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        readings = [one.read() for one in running]
        for reading in readings:
            watch(reading)
        if all(reading.is_done for reading in readings) or time.monotonic() > deadline:
            return
        time.sleep(_POLL)
