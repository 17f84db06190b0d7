"""Spark's own operators under Floodmark's watermark: they close on the slowest origin, and a row at it is on time."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from floodmark.spark import with_watermark
from support.spark.watermark_feed import BASE, Orders
from support.waiting import wait_until

_names = count()
Finish = Callable[[DataFrame], list[tuple[object, ...]]]


@pytest.fixture
def finish(spark: SparkSession, tmp_path: Path) -> Finish:
    """Run a query over everything that is there, and return its rows, sorted."""

    def run(frame: DataFrame) -> list[tuple[object, ...]]:
        table = f"operators_{next(_names)}"
        writer = frame.writeStream.format("memory").queryName(table).outputMode("append")
        query = writer.option("checkpointLocation", str(tmp_path / table)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        rows: list[Row] = spark.table(table).collect()
        return sorted(map(tuple, rows), key=repr)

    return run


def seconds(column: str) -> Column:
    return (F.unix_seconds(column) - BASE).alias(column.replace(".", "_"))


def test_windows_sliding_and_tumbling_close_when_the_slowest_origin_has_passed(
    orders: Orders, finish: Finish, home: Path
) -> None:
    orders.add((1, "a"), (2, "b"))
    orders.add((40, "a"))
    orders.add((9, "b"), (20, "b"))
    rows = with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)
    tumbling = rows.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count")
    assert finish(tumbling) == [(0, 3)]
    sliding = rows.groupBy(F.window("t", "10 seconds", "5 seconds")).count().select(seconds("window.start"), "count")
    assert finish(sliding) == [(-5, 2), (0, 3), (5, 1)]


def test_sessions_close_when_the_slowest_origin_has_passed(orders: Orders, finish: Finish, home: Path) -> None:
    orders.add((1, "a"), (2, "b"))
    orders.add((90, "a"))
    orders.add((8, "b"), (50, "b"))
    rows = with_watermark(orders.frame(), "t", per=["p"], home=home)
    sessions = rows.groupBy(F.session_window("t", "10 seconds"), "p").count()
    ends = sessions.select("p", seconds("session_window.start"), seconds("session_window.end"), "count")
    assert finish(ends) == [("a", 1, 11, 1), ("b", 2, 18, 2)]


def test_deduplication_keeps_a_row_at_the_watermark_and_drops_one_before_it(
    orders: Orders, finish: Finish, home: Path
) -> None:
    orders.add((1, "a"), (1, "a"), (2, "b"))
    orders.add((30, "a"), (30, "b"))
    # The next batch brings the mark; Spark takes what is late from the batch before the one that is running.
    orders.add((31, "a"))
    orders.add((32, "a"))
    orders.add((30, "a"), (29, "b"), (30, "c"), (40, "a"), (40, "b"))
    orders.add((41, "a"))
    rows = with_watermark(orders.frame(), "t", per=["p"], home=home)
    unique = rows.dropDuplicates(["p", "t"]).select(seconds("t"), "p")
    assert finish(unique) == [
        (1, "a"), (2, "b"), (30, "a"), (30, "b"), (30, "c"), (31, "a"), (32, "a"), (40, "a"), (40, "b"), (41, "a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "alone"), [pytest.param("inner", [], marks=pytest.mark.full), ("left_outer", [(2, None)])]
)
def test_a_join_waits_for_the_slowest_origin_of_either_side(
    spark: SparkSession, tmp_path: Path, finish: Finish, home: Path, kind: str, alone: list[tuple[int, int | None]]
) -> None:
    left, right = Orders(spark, tmp_path / "left"), Orders(spark, tmp_path / "right")
    for side, other in ((left, "y"), (right, "z")):
        side.add((1, "x"), (2, other))
        side.add((99, "x"))
        side.add((4, "x"))
        side.add((98, other), (100, "x"))
    sides = [
        with_watermark(one.frame(), "t", per=["p"], home=home).select(F.col("t").alias(name), F.col("p").alias(who))
        for one, name, who in ((left, "ordered", "buyer"), (right, "paid", "payer"))
    ]
    near = F.expr("buyer = payer and paid between ordered and ordered + interval 5 seconds")
    met: list[tuple[int, int | None]] = [(1, 1), (1, 4), (4, 4), (99, 99), (99, 100), (100, 100)]
    joined = sides[0].join(sides[1], near, kind).select(seconds("ordered"), seconds("paid"))
    assert finish(joined) == sorted(met + alone, key=repr)


def test_a_window_after_a_left_semi_join_closes(
    spark: SparkSession, tmp_path: Path, finish: Finish, home: Path
) -> None:
    left, right = Orders(spark, tmp_path / "left"), Orders(spark, tmp_path / "right")
    for side in (left, right):
        side.add((1, "x"), (2, "y"))
        side.add((98, "x"))
        side.add((99, "x"))
    sides = [
        with_watermark(one.frame(), "t", home=home).select(F.col("t").alias(name), F.col("p").alias(who))
        for one, name, who in ((left, "ordered", "buyer"), (right, "paid", "payer"))
    ]
    near = F.expr("buyer = payer and buyer = 'x' and paid between ordered and ordered + interval 5 seconds")
    met = sides[0].join(sides[1], near, "left_semi")
    windows = met.groupBy(F.window("ordered", "10 seconds")).count()
    assert finish(windows.select(seconds("window.start"), "count")) == [(0, 1)]


def test_windows_of_windows_close_in_turn(orders: Orders, finish: Finish, home: Path) -> None:
    orders.add((1, "a"), (2, "b"), (12, "a"))
    orders.add((60, "a"))
    orders.add((13, "b"), (19, "b"))
    orders.add((61, "b"))
    rows = with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)
    per_ten = rows.groupBy(F.window("t", "10 seconds")).agg(F.count("*").alias("rows"))
    per_twenty = per_ten.groupBy(F.window(F.window_time("window"), "20 seconds")).agg(F.sum("rows").alias("rows"))
    assert finish(per_twenty.select(seconds("window.start"), "rows")) == [(0, 5)]


def test_rows_without_a_time_or_an_origin_do_not_hold_time_back(orders: Orders, finish: Finish, home: Path) -> None:
    orders.add((1, "a"), (2, ""))
    orders.add((30, "a"), (31, ""))
    frame = orders.frame()
    with_nulls = frame.withColumn("p", F.when(F.col("p") != "", F.col("p"))).withColumn("q", F.lit(None).cast("int"))
    rows = with_watermark(with_nulls, "t", per=["p", "q"], operators="windows", home=home)
    assert finish(rows.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count")) == [
        (0, 2)
    ]


def test_origins_that_differ_only_in_which_part_is_missing_are_two(orders: Orders, finish: Finish, home: Path) -> None:
    orders.add((1, "left"), (2, "right"))
    orders.add((30, "left"))
    frame = orders.frame()
    name = F.lit("x")
    parted = frame.withColumn("l", F.when(F.col("p") == "left", name)).withColumn(
        "r", F.when(F.col("p") == "right", name)
    )
    rows = with_watermark(parted, "t", per=["l", "r"], operators="windows", home=home)
    assert finish(rows.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count")) == []


def test_a_source_without_files_counts_too(spark: SparkSession, tmp_path: Path, home: Path) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("startTimestamp", 0)
    frame = rate.option("advanceMillisPerBatch", 5_000).option("numPartitions", 2).load()
    parted = frame.withColumn("p", F.col("value") % 3)
    rows = with_watermark(parted, "timestamp", per=["p"], operators="windows", home=home)
    counts = rows.groupBy(F.window("timestamp", "5 seconds")).count().select("count")
    writer = counts.writeStream.format("memory").queryName("rate_counts").outputMode("append")
    query = writer.option("checkpointLocation", str(tmp_path / "rate")).start()
    try:
        found = wait_until(
            lambda: [row[0] for row in spark.table("rate_counts").collect()], holds=lambda rows: len(rows) > 1
        )
    finally:
        query.stop()
    assert len(found) > 1
    assert set(found) == {100}
