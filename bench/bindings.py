"""The speed of timestamp bindings, and of a stream that Spark reads by them."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from figures import Figure
from floodmark.bindings import BindingHistory, Bindings
from floodmark.control import Home
from floodmark.spark import read_stream, session
from floodmark.streams import connect

PARTITIONS = 64
LOOKUPS = 1_000_000
TICKS = 10_000
ROWS = 12_000_000
BATCH = 100_000
SCHEMA = "t TIMESTAMP, origin STRING, amount BIGINT"
START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
ROUNDS = 5


def measure_bindings() -> Iterator[Figure]:
    """Yield the time of minting and looking up, what compaction leaves, and a windowed count next to Parquet."""
    with tempfile.TemporaryDirectory() as directory:
        yield from _minting(Path(directory) / "minting")
        yield from _compaction(Path(directory) / "compaction")
    yield _lookup()
    yield from _source()


def _minting(path: Path) -> Iterator[Figure]:
    now = count(START, 1_000_000)
    with Home.open(path, clock=lambda: next(now)) as home:
        bindings = Bindings(home, own_clock=lambda: 2**62)
        bindings.register("orders", kind="stream", identity=1)
        times = []
        for number in range(300):
            ends = {partition: number * 10 + partition for partition in range(PARTITIONS)}
            start = time.perf_counter()
            bindings.tick("orders", ends, {"at": number})
            times.append(time.perf_counter() - start)
    yield Figure("bindings: a tick of 64 partitions", statistics.median(times) * 1e3, "ms", at_most=5)


def _compaction(path: Path) -> Iterator[Figure]:
    clock = [START]
    with Home.open(path, clock=lambda: clock[0]) as home:
        bindings = Bindings(home, own_clock=lambda: 2**62)
        bindings.register("orders", kind="stream", identity=1, compaction_window="0 seconds")
        for number in range(TICKS):
            clock[0] += 1_000_000
            history = bindings.tick("orders", {0: number, 1: 2 * number}).history
            if number == 0:
                bindings.hold("orders", "out", history.upper - 1, "sink")
            bindings.advance_hold("orders", "out", history.upper - 1)
        rows = len(bindings.history("orders").pairs())
    yield Figure("bindings: pairs a partition after 10,000 ticks with a sink", rows / 2, "", at_most=3)


def _lookup() -> Figure:
    history = BindingHistory.start(0)
    for ts in range(TICKS):
        history = history.append(ts, {0: 100 * (ts + 1)})
    offsets = np.sort(np.random.default_rng(1).integers(0, 100 * TICKS, LOOKUPS))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        history.ts_of_many(0, offsets)
        times.append(time.perf_counter() - start)
    return Figure("bindings: timestamps of 1 M rows", min(times) * 1e3, "ms", at_most=50)


def _source() -> Iterator[Figure]:
    spark = session("floodmark-bench", conf={"spark.driver.memory": "4g"})
    try:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            _write(directory)
            native, ours = _both(spark, directory)
            yield Figure("stream source: 12 M rows into a windowed count, from Parquet", native, "s")
            yield Figure("stream source: the same from a stream", ours, "s")
            yield Figure("stream source: stream / Parquet", ours / native, "x", at_most=1.10)
    finally:
        spark.stop()


def _write(directory: Path) -> None:
    (directory / "parquet").mkdir()
    with connect(directory / "home", controller=False) as home:
        stream = home.create_stream("orders", SCHEMA, segments=4, time_columns="t")
        with stream.writer("w") as writer:
            for number, first in enumerate(range(0, ROWS, BATCH)):
                rows = np.arange(first, first + BATCH)
                table = pa.table(
                    {
                        "t": pa.array(START + rows * 1_000, pa.timestamp("us", "UTC")),
                        "origin": pa.array(rows % 16).cast(pa.string()),
                        "amount": rows,
                    }
                )
                writer.write_batch(table, key="origin")
                writer.flush()
                pq.write_table(table, directory / "parquet" / f"{number:04}.parquet")


def _both(spark: SparkSession, directory: Path) -> tuple[float, float]:
    """Return the middle times of both, one after the other in every round; the first round warms up."""
    frames: list[Callable[[], DataFrame]] = [
        lambda: spark.readStream.schema(SCHEMA).parquet(str(directory / "parquet")).withWatermark("t", "0 seconds"),
        lambda: read_stream(spark, "orders", home=directory / "home", operators="windows"),
    ]
    times: list[list[float]] = [[], []]
    for number in range(ROUNDS + 1):
        for which, frame in enumerate(frames):
            seconds = _count(frame(), directory / f"checkpoint-{number}-{which}")
            if number:
                times[which].append(seconds)
    native, ours = (statistics.median(one) for one in times)
    return native, ours


def _count(frame: DataFrame, checkpoint: Path) -> float:
    counted = frame.groupBy(F.window("t", "1 minute"), "origin").count()
    start = time.perf_counter()
    writer = counted.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    seconds = time.perf_counter() - start
    shutil.rmtree(checkpoint)
    return seconds
