"""What one slow partition costs: the same orders through plain Spark and through Floodmark.

Run it with `python -m floodmark.spark.demo`. It ends with 1 if Floodmark lost a row or miscounted a window.

Four partitions carry half an hour of orders, and the last one delivers its own ten minutes after the others.
Both queries read the same files, one file a micro-batch, and count orders per minute. Both allow for a minute of
disorder; they differ only in where the watermark comes from.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.progress import BoundedDisorder, OriginWatermarks, Watermark
from floodmark.spark._marks import follow_marks
from floodmark.spark._session import session

__all__ = ["Outcome", "compare", "main", "report"]

MINUTE = 60_000_000
START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SPAN = 30 * MINUTE
BATCH = 5 * MINUTE
LAG = 10 * MINUTE
DISORDER = MINUTE
PARTITIONS = ("p0", "p1", "p2", "p3")
LAGGARD = "p3"
ORDERS_PER_PARTITION = 6_000
SEED = 20260101

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one query made of the orders."""

    rows_in: int
    rows_counted: int
    windows_emitted: int
    windows_wrong: int
    micro_batches: int

    @property
    def rows_lost(self) -> int:
        """Return how many orders are in no window."""
        return self.rows_in - self.rows_counted


def main() -> int:
    """Run both queries, print the table, and return the exit code."""
    print("Starting Spark ...", flush=True)
    # A run this short ends before the optimizing compiler has paid for itself.
    spark = session("floodmark-demo", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    try:
        with tempfile.TemporaryDirectory(prefix="floodmark-demo-") as directory:
            plain, floodmark = compare(spark, Path(directory))
    finally:
        spark.stop()
    print(report(plain, floodmark))
    return 1 if floodmark.rows_lost or floodmark.windows_wrong else 0


def compare(spark: SparkSession, directory: Path) -> tuple[Outcome, Outcome]:
    """Write the orders into an empty directory and return what plain Spark and Floodmark make of them."""
    orders = _orders()
    truth = Counter(int(t) // MINUTE * MINUTE for times, _ in orders.values() for t in times)
    files = directory / "orders"
    _write(files, orders)

    lines = spark.readStream.schema("partition string, t_us bigint, mark_us bigint")
    source = (
        lines.option("maxFilesPerTrigger", 1)
        .json(str(files))
        .select("partition", F.timestamp_micros("t_us").alias("t"), F.timestamp_micros("mark_us").alias("mark"))
    )
    by_spark = source.where("mark is null").drop("mark").withWatermark("t", "1 minute")
    by_marks = follow_marks(source, time="t", mark="mark", operators="windows")
    return (
        _count_per_minute("plain Spark", by_spark, truth, directory),
        _count_per_minute("Floodmark", by_marks, truth, directory),
    )


def report(plain: Outcome, floodmark: Outcome) -> str:
    """Return the table of both outcomes, and why they differ."""
    rows = [
        ("rows in", plain.rows_in, floodmark.rows_in),
        ("rows counted in windows", plain.rows_counted, floodmark.rows_counted),
        ("rows lost", plain.rows_lost, floodmark.rows_lost),
        ("windows emitted", plain.windows_emitted, floodmark.windows_emitted),
        ("windows with a wrong count", plain.windows_wrong, floodmark.windows_wrong),
        ("micro-batches with input", plain.micro_batches, floodmark.micro_batches),
    ]
    table = [f"{'':28}{'plain Spark':>13}{'Floodmark':>13}", "-" * 54]
    table += [f"{label:28}{left:>13,}{right:>13,}" for label, left, right in rows]
    title = f"One of {len(PARTITIONS)} partitions, {LAGGARD}, is {LAG // MINUTE} minutes behind the others"
    why = (
        f"Why: Spark takes its watermark from the partition that is furthest ahead, so windows closed before\n"
        f"orders of {LAGGARD} arrived; Floodmark takes it from the one that is furthest behind, so windows waited."
    )
    return "\n".join(["", title, *table, "", why])


def _orders() -> dict[str, tuple[Times, Times]]:
    """Return event times and arrival times of each partition, in order of arrival."""
    rng = np.random.default_rng(SEED)
    orders = {}
    for partition in PARTITIONS:
        times = START + rng.integers(0, SPAN, ORDERS_PER_PARTITION)
        arrivals = times + rng.integers(0, DISORDER, ORDERS_PER_PARTITION) + (LAG if partition == LAGGARD else 0)
        order = np.argsort(arrivals, kind="stable")
        orders[partition] = (times[order], arrivals[order])
    return orders


def _batches(orders: dict[str, tuple[Times, Times]]) -> Iterator[dict[str, Times]]:
    """Yield what arrives in each stretch of five minutes, and at last one later row from every partition."""
    last = max(int(arrivals[-1]) for _, arrivals in orders.values())
    for begin in range(START, last + 1, BATCH):
        yield {
            partition: times[(arrivals >= begin) & (arrivals < begin + BATCH)]
            for partition, (times, arrivals) in orders.items()
        }
    # Without a later row, the last windows of either query would stay open for ever and count as lost.
    yield {partition: np.array([last + LAG], dtype=np.int64) for partition in PARTITIONS}


def _write(files: Path, orders: dict[str, tuple[Times, Times]]) -> None:
    """Write one file a batch; the watermark after each batch is a mark row in the next file."""
    files.mkdir()
    origins = OriginWatermarks({"t": BoundedDisorder(DISORDER)}, origins=list(PARTITIONS), now=0)
    mark: int | None = None
    number = 0
    for number, batch in enumerate(_batches(orders), start=1):
        _write_file(files, number, batch, mark)
        mark = None
        for partition, times in batch.items():
            if len(times):
                signals = origins.events(partition, {"t": times}, now=number)
                mark = next((s.time for s in reversed(signals) if isinstance(s, Watermark)), mark)
    _write_file(files, number + 1, {}, mark)


def _write_file(files: Path, number: int, batch: dict[str, Times], mark: int | None) -> None:
    lines: list[dict[str, object]] = [] if mark is None else [{"mark_us": mark}]
    lines += [{"partition": partition, "t_us": int(t)} for partition, times in batch.items() for t in times]
    file = files / f"{number:03}.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Spark reads the oldest file first; files written in the same moment need distinct times.
    os.utime(file, (START // 1_000_000 + number, START // 1_000_000 + number))


def _count_per_minute(name: str, rows: DataFrame, truth: Counter[int], directory: Path) -> Outcome:
    print(f"Counting with {name} ...", flush=True)
    spark, table = rows.sparkSession, f"demo_{name.replace(' ', '_').lower()}"
    counts = rows.groupBy(F.window("t", "1 minute")).count()
    query = (
        counts.select(F.unix_micros("window.start").alias("start"), "count")
        .writeStream.format("memory")
        .queryName(table)
        .outputMode("append")
        .option("checkpointLocation", str(directory / table))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    emitted = [(int(row["start"]), int(row["count"])) for row in spark.table(table).collect()]
    spark.catalog.dropTempView(table)

    counted = Counter[int]()
    for start, count in emitted:
        counted[start] += count
    return Outcome(
        rows_in=truth.total(),
        rows_counted=counted.total(),
        windows_emitted=len(emitted),
        windows_wrong=sum(counted[start] != truth[start] for start in counted.keys() | truth.keys()),
        micro_batches=sum(progress.numInputRows > 0 for progress in query.recentProgress),
    )


if __name__ == "__main__":
    sys.exit(main())
