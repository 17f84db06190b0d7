"""Windows close on what the marks say, and on nothing else."""

from collections.abc import Callable

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from floodmark.spark import follow_marks
from floodmark.spark.columns import EVENT_TIME_METADATA
from floodmark.spark.watermark import marks as _marks
from support.spark.spark_feed import EPOCH_US, FAR_FUTURE, Feed, Running, mark, row, seconds

Run = Callable[..., Running]


def ten_seconds(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count")


def test_windows_close_on_marks_alone(feed: Feed, run: Run) -> None:
    marked = follow_marks(feed.frame(), "t", "mark", on_falling_mark="count")
    query = run(ten_seconds(marked), feed)
    assert query.step(row(1), row(25), row(FAR_FUTURE)) == []
    assert query.step(row(None), row(2)) == [], "no time of a row may move the watermark"
    assert query.step(mark(10)) == [], "a window that ends at W waits for the next mark"
    assert query.step(mark(11, t=1)) == [(0.0, 2)], "a mark closes without data, and is never counted itself"
    assert query.step(row(9)) == [(0.0, 2)], "late"
    assert query.dropped() == 1
    assert query.step(row(11), mark(29)) == [(0.0, 2), (10.0, 1)]
    assert query.step(row(29)) == [(0.0, 2), (10.0, 1)]
    assert query.step(mark(15)) == [(0.0, 2), (10.0, 1)], "a lower mark changes nothing"
    assert query.step(mark(31)) == [(0.0, 2), (10.0, 1), (20.0, 2)]
    assert query.dropped() == 1


def test_a_window_that_ends_at_the_mark_closes_at_once_if_there_are_only_windows(feed: Feed, run: Run) -> None:
    query = run(ten_seconds(follow_marks(feed.frame(), "t", "mark", operators="windows")), feed)
    assert query.step(row(9), mark("9.999999")) == [], "there is no whole millisecond that both can mean"
    assert query.step(row("9.999999"), mark(10)) == [(0.0, 2)]
    assert query.step(row(10)) == [(0.0, 2)]
    assert query.step(mark(20)) == [(0.0, 2), (10.0, 1)]
    assert query.dropped() == 0


def test_windows_of_windows(feed: Feed, run: Run) -> None:
    counted = follow_marks(feed.frame(), "t", "mark").groupBy(F.window("t", "5 seconds")).count()
    chained = counted.groupBy(F.window(F.window_time("window"), "10 seconds")).agg(F.sum("count").alias("rows"))
    query = run(chained.select(seconds("window.start"), "rows"), feed)
    assert query.step(row(1), row(6), row(7), row(11)) == []
    assert query.step(mark(6)) == [], "the first short window has closed, the long one has not"
    assert query.step(mark(10), row(10)) == []
    assert query.step(mark(11)) == [(0.0, 3)]
    assert query.step(mark(21)) == [(0.0, 3), (10.0, 2)]
    assert query.dropped() == 0


@pytest.fixture
def filtered(feed: Feed) -> Callable[[], DataFrame]:
    """Return a query whose own filter would remove the mark rows, if it came before the watermark node."""
    return lambda: ten_seconds(follow_marks(feed.frame(), "t", "mark").where("key = 'a'"))


def test_later_filters_do_not_reach_the_mark_rows(
    filtered: Callable[[], DataFrame], feed: Feed, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    query = run(filtered(), feed)
    assert query.step(row(1), row(2, "b"), mark(20)) == [(0.0, 1)]
    query.query.explain()
    plan = capsys.readouterr().out
    assert 0 < plan.index("= a)") < plan.index("EventTimeWatermark"), "a plan reads from the top downwards"


def test_without_the_barriers_the_mark_rows_would_be_gone(
    filtered: Callable[[], DataFrame], feed: Feed, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(field: StructField) -> Column:
        return F.col(field.name).alias(field.name, metadata={EVENT_TIME_METADATA: 0})

    monkeypatch.setattr(_marks, "_is_data", lambda mark_column: mark_column.isNull())
    monkeypatch.setattr(_marks, "as_event_time", plain)
    query = run(filtered(), feed)
    assert query.step(row(1), row(2, "b"), mark(20)) == []


@pytest.mark.parametrize("operators", ["any", "windows"])
def test_the_millisecond_for_spark(spark: SparkSession, operators: _marks.Operators) -> None:
    grid = [base + step for base in (0, EPOCH_US, -7_000_000) for step in (-1001, -1000, -999, -1, 0, 1, 999, 1000)]
    frame = spark.createDataFrame([(us,) for us in grid], "us bigint").withColumn("m", F.timestamp_micros("us"))
    told = frame.select("us", F.unix_micros(_marks.spark_watermark(F.col("m"), operators)).alias("told")).collect()
    expected = {us: (-(-us // 1000) - 1) * 1000 if operators == "any" else us // 1000 * 1000 for us in grid}
    assert {r.us: r.told for r in told} == expected
