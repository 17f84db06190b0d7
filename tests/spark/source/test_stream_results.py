"""Results over a stream are a function of its data, not of how Spark cuts its batches or how often it is restarted.

Times, marks and ends of windows lie on a coarse grid, so that they often meet: there the faults are.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from support.spark.stream_feed import StreamFeed, after_base, history, tumbling

Rows = list[tuple[Any, ...]]
Query = Callable[[StreamFeed, Any], DataFrame]


@pytest.fixture(scope="module", params=[6])
def orders(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StreamFeed]:
    feed = StreamFeed(spark, tmp_path_factory.mktemp("orders"))
    feed.play(history(request.param))
    yield feed
    feed.close()


def still_open(feed: StreamFeed, limits: Any) -> DataFrame:
    rows = fm.window(feed.read(operators="windows", **limits), "10 seconds", "5 seconds")
    return rows.groupBy("window").agg(F.count("*"), F.sum("id")).select("window.start", "count(1)", "sum(id)")


def chained(feed: StreamFeed, limits: Any) -> DataFrame:
    rows = feed.read(late="strict", operators="windows", **limits)
    small = rows.groupBy(F.window("t", "10 seconds")).agg(F.count("*").alias("n"))
    return (
        small.groupBy(F.window(F.window_time("window"), "20 seconds")).agg(F.sum("n")).select("window.start", "sum(n)")
    )


def sessions(feed: StreamFeed, limits: Any) -> DataFrame:
    rows = feed.read(late="strict", **limits)
    counted = rows.groupBy("item", F.session_window("t", "6 seconds")).agg(F.count("*"))
    return counted.select("session_window.start", "count(1)")


def joined(feed: StreamFeed, limits: Any) -> DataFrame:
    left = feed.read(late="strict", **limits).select("id", "t")
    right = feed.read(late="strict", **limits).select(F.col("id").alias("other"), F.col("t").alias("u"))
    near = (F.col("u") >= F.col("t")) & (F.col("u") <= F.col("t") + F.expr("INTERVAL 5 SECONDS"))
    return left.join(right, near & (F.col("other") % 3 == F.col("id") % 3), "leftOuter").select("id", "t", "other", "u")


def matched(feed: StreamFeed, limits: Any) -> DataFrame:
    left = feed.read(late="strict", **limits).select("id", "t")
    right = feed.read(late="strict", **limits).select(F.col("id").alias("other"), F.col("t").alias("u"))
    near = (F.col("u") >= F.col("t")) & (F.col("u") <= F.col("t") + F.expr("INTERVAL 5 SECONDS"))
    met = left.join(right, near & (F.col("other") % 3 == (F.col("id") + 1) % 3), "left_semi")
    return met.groupBy(F.window("t", "10 seconds")).agg(F.count("*"), F.sum("id")).select("window.start", "sum(id)")


def deduplicated(feed: StreamFeed, limits: Any) -> DataFrame:
    rows = feed.read(late="strict", settle=True, **limits).select("t")
    return rows.dropDuplicatesWithinWatermark(["t"])


def late(feed: StreamFeed, limits: Any) -> DataFrame:
    return feed.read(late="only", **limits).select("id", "t", "_key", "_watermark", "_lateness")


QUERIES: dict[str, Query] = {
    query.__name__: query for query in (tumbling, still_open, chained, sessions, joined, matched, deduplicated, late)
}


ROWS_A_BATCH = {"tumbling": 1, "joined": 1}
"""The queries that run with one row a batch without --full too; the others run with four."""


def tier(query: str, max_rows: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: `make test` runs the first query, with one row a batch."""
    if max_rows != ROWS_A_BATCH.get(query, 4):
        return [pytest.mark.full]
    return [] if query == "tumbling" else [pytest.mark.long]


@pytest.mark.parametrize(
    ("query", "max_rows"),
    [
        pytest.param(query, size, id=f"{name}-{size}", marks=tier(name, size))
        for name, query in QUERIES.items()
        for size in (1, 4)
    ],
)
def test_the_result_is_the_same_in_batches_of_one_of_a_few_and_of_all(
    orders: StreamFeed, query: Query, max_rows: int
) -> None:
    at_once = sorted(orders.collect(query(orders, {})), key=repr)
    assert sorted(orders.collect(query(orders, {"max_rows": max_rows})), key=repr) == at_once
    assert at_once


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, pytest.param(16, marks=pytest.mark.full)])
def test_a_query_that_is_stopped_and_started_again_at_random_has_the_same_result(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    feed = StreamFeed(spark, tmp_path)
    chosen, found = random.Random(seed), Rows()
    for step in history(seed):
        feed.play([step])
        if step is None and chosen.random() < 0.5:
            found += feed.collect(tumbling(feed, {"max_rows": chosen.randint(1, 4)}), "checkpoint")
    found += feed.collect(tumbling(feed, {}), "checkpoint")
    assert sorted(found) == sorted(feed.collect(tumbling(feed, {})))
    feed.close()


def test_without_it_the_result_depends_on_how_batches_fall(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)
    feed.play([[100], None, 150, None, [161], None, [104], 200, None])

    def plain(limits: Any) -> Rows:
        rows = feed.read(late="keep", operators="windows", **limits)
        counted = rows.groupBy(F.window("t", "10 seconds")).count()
        return sorted((after_base(start), n) for start, n in feed.collect(counted.select("window.start", "count")))

    assert plain({}) == [(100, 2), (160, 1)]
    assert plain({"max_rows": 1}) == [(100, 1), (160, 1)]
    feed.close()


def test_late_rows_say_by_how_much(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)
    feed.play([[100], 150, None, [104, 150], None])
    ((row, t, key, watermark, lateness),) = feed.collect(late(feed, {}))
    assert (row, after_base(t), key, after_base(watermark), lateness) == (1, 104, "t", 150, 46_000_000)
    feed.close()


def test_a_row_behind_the_watermark_counts_while_its_window_is_open(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)
    feed.play([[101], 105, None, [103], 110, None, [104], 120, None])
    found = [(after_base(start), n) for start, n, _ in feed.collect(still_open(feed, {})) if after_base(start) == 100]
    assert found == [(100, 2)]
    feed.close()
