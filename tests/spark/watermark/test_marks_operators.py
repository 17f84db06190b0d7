"""Deduplication, sessions and joins: a row at exactly the watermark is on time in each of them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.spark import follow_marks
from support.spark.spark_feed import Feed, Line, Running, mark, row, seconds

Run = Callable[..., Running]


def test_deduplication_drops_what_lies_below_the_mark_and_nothing_else(feed: Feed, run: Run) -> None:
    unique = follow_marks(feed.frame(), "t", "mark").dropDuplicates(["key", "t"]).select("key", seconds("t"))
    query = run(unique, feed)
    on_time: list[tuple[str, float | None]] = [("no time", None)]
    late = 0
    query.step(row(None, "no time"))
    # A coarse grid: in each round one row lies below the mark, one at it and one above it, in any order.
    for watermark in (10, 20, 25):
        query.step(mark(watermark))
        for t in random.Random(watermark).sample([watermark - 5, watermark, watermark + 5], k=3):
            key = f"{t} after {watermark}"
            query.step(row(t, key), row(t, key))
            if t < watermark:
                late += 1
            else:
                on_time.append((key, float(t)))
    assert query.settle() == sorted(on_time, key=repr)
    assert query.dropped() == 2 * late


def test_the_choice_for_windows_is_wrong_for_deduplication(feed: Feed, run: Run) -> None:
    rows = follow_marks(feed.frame(), "t", "mark", operators="windows")
    query = run(rows.dropDuplicates(["key", "t"]).select(seconds("t")), feed)
    query.step(mark(10))
    assert query.step(row(10), row("10.001")) == [(10.001,)]


SESSION_LINES: list[Line] = [row(0), mark(10), row(10), mark(20), row(20), row(31), mark(31), row(31), mark(100)]


@pytest.mark.parametrize("lines_per_file", [1, len(SESSION_LINES)])
def test_sessions_do_not_depend_on_where_batches_are_cut(feed: Feed, run: Run, lines_per_file: int) -> None:
    rows = follow_marks(feed.frame(), "t", "mark")
    sessions = rows.groupBy(F.session_window("t", "10 seconds"), "key").count()
    query = run(sessions.select(seconds("session_window.start"), seconds("session_window.end"), "count"), feed)
    for start in range(0, len(SESSION_LINES), lines_per_file):
        query.step(*SESSION_LINES[start : start + lines_per_file])
    assert query.settle() == [(0.0, 30.0, 3), (31.0, 41.0, 2)]
    assert query.dropped() == 0


def test_left_outer_join_with_marks_on_both_sides(spark: SparkSession, tmp_path: Path, run: Run) -> None:
    left_feed, right_feed = Feed(spark, tmp_path / "left"), Feed(spark, tmp_path / "right")
    left = follow_marks(left_feed.frame(), "t", "mark").alias("l")
    right = follow_marks(right_feed.frame(), "t", "mark").alias("r")
    near = F.expr("l.key = r.key and r.t between l.t - interval 5 seconds and l.t + interval 5 seconds")
    query = run(left.join(right, near, "leftOuter").select("l.key", seconds("l.t"), seconds("r.t")))

    left_feed.add(row(10, "met"), row(12, "alone"))
    right_feed.add(row(15, "met"))
    met = ("met", 10.0, 15.0)
    assert query.settle() == [met]
    left_feed.add(mark(30))
    assert query.settle() == [met], "the other side has not come that far"
    right_feed.add(mark(20))
    alone = ("alone", 12.0, None)
    assert query.settle() == [alone, met]
    left_feed.add(row(30, "edge"))
    right_feed.add(row(20, "too old for a partner"))
    right_feed.add(mark(30))
    assert query.settle() == [alone, met]
    right_feed.add(row(30, "edge"))
    edge = ("edge", 30.0, 30.0)
    assert query.settle() == [alone, edge, met], "both rows lie at exactly their side's mark"
    left_feed.add(row(29, "late"))
    right_feed.add(row(29, "late"))
    assert query.settle() == [alone, edge, met]


def test_a_left_semi_join_forgets_its_rows_and_a_window_after_it_closes(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    left_feed, right_feed = Feed(spark, tmp_path / "left"), Feed(spark, tmp_path / "right")
    left = follow_marks(left_feed.frame(), "t", "mark").alias("l")
    right = follow_marks(right_feed.frame(), "t", "mark").alias("r")
    near = F.expr("l.key = r.key and r.t between l.t - interval 5 seconds and l.t + interval 5 seconds")
    # The optimizer sees through selections of the user, too.
    met = left.join(right, near, "left_semi").select("t", "key")
    query = run(met.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count"))

    left_feed.add(row(1), row(2), row(3, "alone"))
    right_feed.add(row(4), row(5))
    assert query.settle() == []
    for feed in (left_feed, right_feed):
        feed.add(mark(30))
    assert query.settle() == [(0.0, 2)]
    assert query.rows_in_state() == 0


def test_a_restart_keeps_the_watermark(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    counts = follow_marks(feed.frame(), "t", "mark").groupBy(F.window("t", "10 seconds")).count()
    result, checkpoint = str(tmp_path / "result"), str(tmp_path / "checkpoint")

    def run_to_the_end() -> list[tuple[float, int]]:
        writer = counts.select(seconds("window.start"), "count").writeStream.format("parquet").outputMode("append")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(result)
        assert query.awaitTermination(60)
        return sorted((r.window_start, r["count"]) for r in spark.read.parquet(result).collect())

    feed.add(row(1), row(12))
    feed.add(mark(15))
    assert run_to_the_end() == [(0.0, 1)]
    feed.add(row(2), row(15))
    feed.add(mark(14))
    assert run_to_the_end() == [(0.0, 1)], "late before the restart is late after it"
    feed.add(mark(25))
    assert run_to_the_end() == [(0.0, 1), (10.0, 2)]
