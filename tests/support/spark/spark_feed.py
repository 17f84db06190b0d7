"""Rows and marks for streaming queries, fed as small files: each file is one micro-batch.

Times are seconds (or fractions of one) after `EPOCH`, and results come back in the same unit.
"""

import json
import os
from decimal import Decimal
from itertools import count
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

EPOCH_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
FAR_FUTURE = 3_000_000_000
# Most of what a short query costs is compiling; the simple compiler halves the time of the whole run.
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
SMALL_BATCHES = {
    # Interpreted expressions and the simple state store spare a query of a few rows about a quarter of the JVM's time.
    # Runs with --full, and the drivers of the crash tests, have what users have: generated code and RocksDB.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}
SCHEMA = "t_us bigint, mark_us bigint, key string"

Line = dict[str, int | str | None]
Seconds = int | str

_names = count()


def micros(seconds: Seconds) -> int:
    """Return microseconds since 1970; a string such as "9.9995" is taken exactly."""
    return EPOCH_US + int(Decimal(seconds) * 1_000_000)


def row(t: Seconds | None, key: str = "a") -> Line:
    return {"t_us": None if t is None else micros(t), "key": key}


def mark(w: Seconds, t: Seconds | None = None) -> Line:
    return {"mark_us": micros(w), "t_us": None if t is None else micros(t)}


def seconds(column: str) -> Column:
    return ((F.unix_micros(F.col(column)) - EPOCH_US) / 1_000_000).alias(column.replace(".", "_"))


class Feed:
    """A directory that a query reads, oldest file first and one at a time."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._spark = spark
        self._directory = directory
        self._files = count(1)

    def add(self, *lines: Line) -> None:
        number = next(self._files)
        hidden = self._directory / f".{number}"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
        # Spark orders files by their time of modification, which may be too coarse for files written in a row.
        os.utime(hidden, (number, number))
        hidden.rename(self._directory / f"{number:04}.json")

    def frame(self, files_per_batch: int = 1) -> DataFrame:
        lines = (
            self._spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", files_per_batch)
            .json(str(self._directory))
        )
        return lines.select(F.timestamp_micros("t_us").alias("t"), F.timestamp_micros("mark_us").alias("mark"), "key")


class Running:
    """A query that writes into memory, and is driven step by step."""

    def __init__(self, spark: SparkSession, frame: DataFrame, feed: Feed | None = None) -> None:
        self._spark = spark
        self._feed = feed
        self._table = f"feed_{next(_names)}"
        self.query: StreamingQuery = (
            frame.writeStream.format("memory").queryName(self._table).outputMode("append").start()
        )

    def step(self, *lines: Line) -> list[tuple[object, ...]]:
        """Feed one micro-batch, wait until Spark has nothing more to do, and return all rows so far, in order."""
        assert self._feed is not None
        self._feed.add(*lines)
        return self.settle()

    def settle(self) -> list[tuple[object, ...]]:
        self.query.processAllAvailable()
        return sorted((tuple(r) for r in self._spark.table(self._table).collect()), key=repr)

    def dropped(self) -> int:
        """Return how many rows Spark has counted as late so far."""
        return sum(
            operator.numRowsDroppedByWatermark
            for progress in self.query.recentProgress
            for operator in progress.stateOperators
        )

    def rows_in_state(self) -> int:
        """Return how many rows all operators keep."""
        progress = self.query.lastProgress
        assert progress is not None
        return sum(operator.numRowsTotal for operator in progress.stateOperators)

    def stop(self) -> None:
        self.query.stop()
