"""What Floodmark's watermark costs on Spark, next to Spark's own."""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from figures import Figure
from floodmark.spark import session, with_watermark

ROWS = 12_000_000
FILES = 8
FILES_A_BATCH = 4
ROUNDS = 5
SCHEMA = "t timestamp, origin string, amount bigint"
START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
MINUTE = 60_000_000
SMALL_BATCHES = 40
SMALL_ROWS = 100

Watermarked = Callable[[DataFrame, Path], DataFrame]


def natively(df: DataFrame, home: Path) -> DataFrame:
    """Return the rows with Spark's own watermark."""
    return df.withWatermark("t", "5 seconds")


def by_floodmark(**options: Any) -> Watermarked:
    """Return what puts Floodmark's watermark on rows."""

    def put(df: DataFrame, home: Path) -> DataFrame:
        chosen: dict[str, Any] = {"delay": "5 seconds", "per": ["origin"], "operators": "windows"} | options
        return with_watermark(df, "t", home=home, **chosen)

    return put


def measure_bridge() -> Iterator[Figure]:
    """Yield times of a windowed count over 12 M rows and over small batches, with both watermarks."""
    spark = session("floodmark-bench", conf={"spark.driver.memory": "4g"})
    try:
        with _directory() as directory:
            yield from _large(spark, directory)
            yield from _small(spark, directory)
    finally:
        spark.stop()


def _large(spark: SparkSession, directory: Path) -> Iterator[Figure]:
    ways = {"native": natively, "floodmark": by_floodmark()}
    for origins in (16, 1, 64, 256):
        files = directory / f"rows-{origins}"
        write_rows(files, origins)
        best = best_times(spark, files, ways)
        native, floodmark = best["native"], best["floodmark"]
        title = f"bridge, windowed count of 12 M rows, {origins} origin{'s' if origins > 1 else ''}"
        if origins == 16:
            yield Figure(f"{title}, Spark's own watermark", native.total, "s")
            yield Figure(f"{title}, with_watermark", floodmark.total, "s")
            yield Figure(f"{title}, times Spark's own", floodmark.total / native.total, "x", at_most=1.15)
            yield Figure(f"{title}, before the first batch, Spark's own", native.before_batches, "s")
            yield Figure(f"{title}, before the first batch, with_watermark", floodmark.before_batches, "s")
        yield Figure(f"{title}, batches with rows, times Spark's own", floodmark.with_rows / native.with_rows, "x")
        if origins == 16:
            others = {"no per": by_floodmark(per=())} | {
                f"late={late!r}": by_floodmark(late=late) for late in ("count", "fail", "route")
            }
            for option, run in best_times(spark, files, others, rounds=3).items():
                name = f"{title}, {option}, batches with rows, times Spark's own"
                yield Figure(name, run.with_rows / native.with_rows, "x")
        shutil.rmtree(files)


def _small(spark: SparkSession, directory: Path) -> Iterator[Figure]:
    files = directory / "small"
    files.mkdir()
    for number in range(SMALL_BATCHES):
        lines = [
            {"t": (START + number * MINUTE + i * 1000) / 1e6, "origin": f"o{i % 16}", "amount": i}
            for i in range(SMALL_ROWS)
        ]
        file = files / f"{number:03}.json"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (number + 1, number + 1))
    for title, way in (("Spark's own watermark", natively), ("with_watermark", by_floodmark())):
        rows = spark.readStream.schema("t double, origin string, amount bigint").option("maxFilesPerTrigger", 1)
        frame = rows.json(str(files)).withColumn("t", F.timestamp_seconds("t"))
        with _directory() as place:
            query = _counting(way(frame, place / "home"), place).start()
            query.processAllAvailable()
            took = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows >= SMALL_ROWS]
            query.stop()
        yield Figure(f"bridge, a batch of 100 rows, {title}, median", statistics.median(took[10:]), "ms")


def write_rows(directory: Path, origins: int) -> None:
    """Write the rows: each file ten minutes of all origins, in order of time."""
    directory.mkdir()
    rng = np.random.default_rng(1)
    names = np.array([f"orders-{number:03}" for number in range(origins)])
    each = ROWS // FILES
    for number in range(FILES):
        times = START + number * 10 * MINUTE + np.sort(rng.integers(0, 10 * MINUTE, each))
        table = pa.table(
            {
                "t": pa.array(times, pa.timestamp("us", tz="UTC")),
                "origin": pa.array(names[rng.integers(0, origins, each)]),
                "amount": pa.array(rng.integers(0, 100, each)),
            }
        )
        pq.write_table(table, directory / f"{number}.parquet")


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds that a query took, before its batches, and in those that read rows."""

    total: float
    before_batches: float
    with_rows: float


def best_times(spark: SparkSession, files: Path, ways: dict[str, Watermarked], rounds: int = ROUNDS) -> dict[str, Run]:
    """Return the shortest times of each way, taken in turns; the first round only warms up."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            runs[name].append(_run(spark, files, way))
    return {
        name: Run(
            total=min(run.total for run in taken[1:]),
            before_batches=min(run.before_batches for run in taken[1:]),
            with_rows=min(run.with_rows for run in taken[1:]),
        )
        for name, taken in runs.items()
    }


def _run(spark: SparkSession, files: Path, way: Watermarked) -> Run:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(str(files))
    with _directory() as place:
        writer = _counting(way(rows, place / "home"), place).trigger(availableNow=True)
        start = time.perf_counter()
        query = writer.start()
        query.awaitTermination()
        total = time.perf_counter() - start
        batches = [
            (progress.durationMs["triggerExecution"] / 1000, progress.numInputRows) for progress in query.recentProgress
        ]
        # A mark is a row too.
        with_rows = sum(seconds for seconds, rows in batches if rows > 1)
        return Run(total, total - sum(seconds for seconds, _ in batches), with_rows)


def _counting(rows: DataFrame, place: Path) -> Any:
    counts = rows.groupBy(F.window("t", "1 minute"), "origin").count()
    writer = counts.writeStream.format("noop").outputMode("append")
    return writer.option("checkpointLocation", str(place / "checkpoint"))


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)
