"""Floodmark's watermark on a foreign stream: what it waits for, what it leaves out, and what survives a restart."""

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import FloodmarkError, InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark import with_watermark

# Steps of a second are for rows of the last hour.
BASE = int(time.time()) // 60 * 60 - 1200
_names = count()


Found = TypeVar("Found")


def eventually(look: Callable[[], Found], is_right: Callable[[Found], bool]) -> Found:
    """Return what is found, as soon as it is right: what Spark tells comes after what it does."""
    deadline = time.monotonic() + 10
    while not is_right(found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


class Orders:
    """A directory of small files, one a micro-batch; times are seconds after BASE."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        directory.mkdir()
        self._spark, self._directory, self._files = spark, directory, count(1)

    def add(self, *rows: tuple[int, str]) -> None:
        number = next(self._files)
        lines = [json.dumps({"t_us": (BASE + t) * 1_000_000, "p": p}) for t, p in rows]
        hidden = self._directory / f".{number}"
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (number, number))
        hidden.rename(self._directory / f"{number:04}.json")

    def frame(self) -> DataFrame:
        lines = self._spark.readStream.schema("t_us bigint, p string").option("maxFilesPerTrigger", 1)
        return lines.json(str(self._directory)).select(F.timestamp_micros("t_us").alias("t"), "p")


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Orders:
    return Orders(spark, tmp_path / "orders")


class Counting:
    """Counts per ten seconds in append mode, and can be stopped and started again on its checkpoint."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.table = f"counting_{next(_names)}"
        windows = frame.groupBy(F.window("t", "10 seconds")).count()
        rows = windows.select((F.unix_seconds("window.start") - BASE).alias("start"), "count")
        self._writer = rows.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
        self._sink = checkpoint.parent / f"{self.table}-out"
        self._spark = frame.sparkSession
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> "Counting":
        out = self._sink

        def write(batch: DataFrame, number: int) -> None:
            found = [[row["start"], row["count"]] for row in batch.collect()]
            out.mkdir(exist_ok=True)
            (out / f"{number}.json").write_text(json.dumps(found))

        writer = self._writer.foreachBatch(write)
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self

    def windows(self) -> list[tuple[int, int]]:
        files = self._sink.glob("*.json")
        return sorted((start, rows) for file in files for start, rows in json.loads(file.read_text()))

    def wait_for(self, expected: list[tuple[int, int]]) -> None:
        """Wait until exactly these windows have closed, and see that it stays so."""
        assert self.query is not None
        deadline = time.monotonic() + 30
        while self.windows() != expected and time.monotonic() < deadline and self.query.isActive:
            time.sleep(0.1)
        assert self.windows() == expected, self.query.exception()
        self.query.processAllAvailable()
        assert self.windows() == expected

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


Count = Callable[..., Counting]


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Count]:
    started: list[Counting] = []

    def start(frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any) -> Counting:
        started.append(Counting(frame, tmp_path / checkpoint).start(**trigger))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_lagging_origin_is_waited_for_and_loses_nothing(orders: Orders, counting: Count, home: Path) -> None:
    frame = with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)
    query = counting(frame)
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    orders.add((5, "b"), (12, "b"))
    query.wait_for([(0, 3)])
    orders.add((13, "b"), (31, "b"))
    query.wait_for([(0, 3), (10, 2)])
    assert query.query is not None
    query.stop()
    with Home.open_existing(home) as kept:
        query_id = str(query.query.id)
        record = eventually(lambda: Queries(kept).find(query_id), lambda found: found.has_ended)
        assert record.state == "stopped"
        [(incarnation, _, column)] = record.incarnations
        step = WatermarkSteps(kept).newest(incarnation)
    assert column == "t"
    assert step is not None
    assert step.watermark == (BASE + 31) * 1_000_000


def test_without_origins_the_newest_row_counts_to_the_microsecond(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(with_watermark(orders.frame(), "t", delay=timedelta(seconds=5), operators="windows", home=home))
    orders.add((1, "a"), (14, "a"))
    orders.add((2, "a"))
    orders.add((15, "b"))
    query.wait_for([(0, 2)])


def test_a_row_from_the_future_moves_nothing(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(with_watermark(orders.frame(), "t", per=["p"], future="1 hour", operators="windows", home=home))
    orders.add((1, "a"), (4_000_000_000 - BASE, "a"))
    orders.add((2, "a"), (11, "a"))
    query.wait_for([(0, 2)])


def test_a_silent_origin_is_left_out_and_time_moves_on_without_a_row(
    orders: Orders, counting: Count, home: Path
) -> None:
    frame = with_watermark(
        orders.frame(), "t", per=["p"], idle="2 seconds", assume_caught_up=True, operators="windows", home=home
    )
    query = counting(frame)
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    query.wait_for([(0, 2)])


def test_what_each_origin_said_survives_a_restart(
    spark: SparkSession, orders: Orders, counting: Count, home: Path
) -> None:
    def frame() -> DataFrame:
        return with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)

    first = counting(frame())
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    orders.add((12, "b"))
    first.wait_for([(0, 2)])
    first.stop()
    second = counting(frame())
    orders.add((40, "b"))
    second.wait_for([(10, 1)])
    orders.add((51, "a"))
    second.wait_for([(10, 1), (30, 1)])


def test_available_now_ends_when_nothing_follows_from_the_last_rows(
    orders: Orders, counting: Count, home: Path
) -> None:
    for rows in ([(1, "a"), (2, "b")], [(15, "a")], [(16, "b")], [(31, "a"), (32, "b")]):
        orders.add(*rows)
    query = counting(with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home), availableNow=True)
    assert query.query is not None
    assert query.query.awaitTermination(60)
    assert query.windows() == [(0, 2), (10, 2)]


def test_two_streams_with_their_own_watermarks_join(
    spark: SparkSession, tmp_path: Path, counting: Count, home: Path
) -> None:
    left, right = Orders(spark, tmp_path / "left"), Orders(spark, tmp_path / "right")
    sides = [
        with_watermark(one.frame(), "t", per=["p"], home=home).select(
            F.col("t").alias(name), F.col("p").alias(f"{name}_p")
        )
        for one, name in ((left, "ordered"), (right, "paid"))
    ]
    condition = F.expr("ordered_p = paid_p and paid >= ordered and paid <= ordered + interval 5 seconds")
    joined = sides[0].join(sides[1], condition, "left_outer")
    seen: list[tuple[int, int | None]] = []

    def take(batch: DataFrame, number: int) -> None:
        for row in batch.select(F.unix_seconds("ordered"), F.unix_seconds("paid")).collect():
            seen.append((row[0] - BASE, None if row[1] is None else row[1] - BASE))

    query = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "join")).start()
    try:
        left.add((1, "x"), (2, "y"))
        right.add((3, "x"))
        left.add((100, "x"), (101, "y"))
        right.add((102, "x"), (103, "y"))
        deadline = time.monotonic() + 40
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen) == [(1, 3), (2, None), (100, 102), (101, 103)]


REFUSED: dict[str, tuple[type[FloodmarkError], dict[str, Any], str]] = {
    "unknown column": (UnknownColumn, {"column": "T"}, "Did you mean 't'"),
    "not a timestamp": (UnsupportedFrame, {"column": "p"}, "type string"),
    "unknown origin column": (UnknownColumn, {"per": ["partition"]}, "no column 'partition'"),
    "origin columns as text": (InvalidOption, {"per": "p"}, "list of column names"),
    "negative delay": (InvalidOption, {"delay": "-1 seconds"}, "delay is '-1 seconds'"),
    "delay without a unit": (InvalidOption, {"delay": "10"}, "number and a unit"),
    "misspelled unit": (InvalidOption, {"delay": "10 secnds"}, "Did you mean 'second'"),
    "delay as number": (InvalidOption, {"delay": 10}, "timedelta"),
    "idle of nothing": (InvalidOption, {"idle": "0 seconds"}, "idle is"),
    "unknown operators": (InvalidOption, {"operators": "joins"}, "operators is"),
}


@pytest.mark.parametrize(("kind", "change", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_leaves_nothing_behind(
    orders: Orders, home: Path, kind: type[FloodmarkError], change: dict[str, Any], says: str
) -> None:
    options: dict[str, Any] = {"column": "t", "home": home, **change}
    with pytest.raises(kind, match=says):
        with_watermark(orders.frame(), **options)
    assert not home.exists()


def test_a_batch_frame_and_a_second_watermark_are_refused(spark: SparkSession, orders: Orders, home: Path) -> None:
    with pytest.raises(UnsupportedFrame, match="not a streaming one"):
        with_watermark(spark.createDataFrame([], "t timestamp"), "t", home=home)
    with pytest.raises(UnsupportedFrame, match="has a watermark already"):
        with_watermark(with_watermark(orders.frame(), "t", home=home), "t", home=home)
