"""Floodmark's watermark on a foreign stream: what it waits for, what it leaves out, and what survives a restart."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import FloodmarkError, InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark import with_watermark
from support.spark.watermark_feed import BASE, Count, Orders
from support.waiting import wait_until


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
        record = wait_until(lambda: Queries(kept).find(query_id), holds=lambda found: found.has_ended)
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


def test_a_quiet_frame_does_not_hold_the_watermark_after_a_restart(
    spark: SparkSession, tmp_path: Path, counting: Count, home: Path
) -> None:
    feeds = [Orders(spark, tmp_path / name) for name in ("quiet", "busy")]
    quiet, busy = (with_watermark(feed.frame(), "t", operators="windows", home=home) for feed in feeds)
    feeds[0].add((1, "a"), (100, "a"))
    feeds[1].add((5, "b"))
    # The same DataFrame in both runs: a new one would have another id, and say its watermark for that reason.
    query = counting(quiet.unionByName(busy), availableNow=True)
    assert query.query is not None
    assert query.query.awaitTermination(60)
    feeds[1].add((50, "b"))
    query.start(availableNow=True)
    assert query.query.awaitTermination(60)
    assert query.windows() == [(0, 2)]


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
    "unknown operators": (InvalidOption, {"operators": "window"}, "Did you mean 'windows'"),
    "unknown treatment of late rows": (InvalidOption, {"late": "counted"}, "Did you mean 'count'"),
    "unknown option": (InvalidOption, {"dely": "1 second"}, "There is no option 'dely'.*Did you mean 'delay'"),
    "origin that cannot be compared": (UnsupportedFrame, {"per": ["m"]}, "map<string,string>"),
    "name that late rows need": (UnsupportedFrame, {"late": "route"}, "has a column '_watermark'"),
}


@pytest.mark.parametrize(("kind", "change", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_leaves_nothing_behind(
    orders: Orders, home: Path, kind: type[FloodmarkError], change: dict[str, Any], says: str
) -> None:
    options: dict[str, Any] = {"column": "t", "home": home, **change}
    with pytest.raises(kind, match=says):
        with_watermark(orders.frame().withColumns({"m": F.create_map("p", "p"), "_watermark": F.lit(1)}), **options)
    assert not home.exists()


def test_a_batch_frame_and_a_second_watermark_are_refused(spark: SparkSession, orders: Orders, home: Path) -> None:
    with pytest.raises(UnsupportedFrame, match="not a streaming one"):
        with_watermark(spark.createDataFrame([], "t timestamp"), "t", home=home)
    with pytest.raises(UnsupportedFrame, match="has a watermark already"):
        with_watermark(with_watermark(orders.frame(), "t", home=home), "t", home=home)
