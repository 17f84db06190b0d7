"""What cannot work is refused before any query starts."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import floodmark as fm
from floodmark.errors import FloodmarkError, InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark import follow_marks
from support.spark.spark_feed import Feed, Running, mark, row, seconds
from support.waiting import wait_until


@pytest.fixture
def frame(feed: Feed) -> DataFrame:
    return feed.frame()


def refused(
    kind: type[FloodmarkError], df: DataFrame, time: object = "t", mark: object = "mark", **options: object
) -> FloodmarkError:
    with pytest.raises(kind) as caught:
        follow_marks(df, time, mark, **options)  # type: ignore[arg-type]
    error = caught.value
    assert all([error.fact, error.rule, error.remedy])
    return error


def test_a_batch_frame(frame: DataFrame) -> None:
    batch = frame.sparkSession.createDataFrame([], frame.schema)
    assert "readStream" in refused(UnsupportedFrame, batch).remedy


@pytest.mark.parametrize(
    ("role", "name", "remedy"),
    [
        ("time", "T", "Did you mean 't'?"),
        ("mark", "Marks", "Did you mean 'mark'?"),
        ("time", "amount_paid", "The columns are 't', 'mark', 'key'."),
    ],
)
def test_an_unknown_column(frame: DataFrame, role: str, name: str, remedy: str) -> None:
    error = refused(UnknownColumn, frame, **{role: name})
    assert error.remedy == remedy
    assert error.fields == {"column": name, "role": role, "columns": ["t", "mark", "key"]}


@pytest.mark.parametrize("role", ["time", "mark"])
@pytest.mark.parametrize("kind", ["string", "bigint", "date", "timestamp_ntz"])
def test_a_column_of_another_type(frame: DataFrame, role: str, kind: str) -> None:
    other = frame.withColumn("other", F.lit(None).cast(kind))
    error = refused(UnsupportedFrame, other, **{role: "other"})
    assert error.fields == {"column": "other", "role": role, "type": kind}


def test_one_column_for_both(frame: DataFrame) -> None:
    assert refused(InvalidOption, frame, mark="t").fields["value"] == "t"


def test_a_column_object(frame: DataFrame) -> None:
    assert refused(InvalidOption, frame, time=F.col("t")).fields["option"] == "time"


def test_a_name_that_two_columns_have(frame: DataFrame) -> None:
    twice = frame.select("t", "mark", F.col("mark").alias("t"))
    assert refused(UnsupportedFrame, twice).fields["column"] == "t"


@pytest.mark.parametrize("column", ["t", "mark", "written"])
def test_a_frame_with_a_watermark(frame: DataFrame, column: str) -> None:
    watermarked = frame.withColumn("written", F.current_timestamp()).withWatermark(column, "1 minute")
    assert refused(UnsupportedFrame, watermarked).fields == {"columns": [column]}


def test_marks_that_are_followed_already(frame: DataFrame) -> None:
    followed = follow_marks(frame, "t", "mark").withColumn("mark", F.lit(None).cast("timestamp"))
    assert refused(UnsupportedFrame, followed).fields == {"columns": ["t"]}


def test_an_unknown_choice_of_operators(frame: DataFrame) -> None:
    assert "'any', 'windows'" in refused(InvalidOption, frame, operators="joins").rule


def test_columns_keep_their_order_names_and_metadata(feed: Feed, run: Callable[..., Running]) -> None:
    named = feed.frame().select(
        F.col("mark").alias("the `mark`"),
        F.col("key"),
        F.col("t").alias("order.time", metadata={"comment": "when it was paid"}),
    )
    followed = follow_marks(named, "order.time", "the `mark`")
    assert followed.columns == ["key", "order.time"]
    assert followed.schema["order.time"].metadata["comment"] == "when it was paid"
    counts = followed.groupBy(F.window("`order.time`", "10 seconds")).count()
    query = run(counts.select(seconds("window.start"), "count"), feed)
    assert query.step(row(1), mark(20)) == [(0.0, 1)]


def test_a_falling_mark_fails_the_query(
    feed: Feed, run: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    running = run(follow_marks(feed.frame(), "t", "mark"), feed)
    running.step(row(5), mark(20), mark(15))
    assert running.step(mark(20)) != [], "within a batch marks may fall, and from batch to batch they may be equal"
    assert fm.falling_marks(running.query) == 0
    feed.add(mark(19))

    def failure() -> str:
        feed.add(row(30))
        with suppress(StreamingQueryException):
            running.query.processAllAvailable()
        return str(running.query.exception() or "")

    assert "cancelled" in wait_until(failure)
    (logged,) = [record.getMessage() for record in caplog.records if "[falling-mark]" in record.getMessage()]
    assert "The largest mark of batch 2 in the column 'mark'" in logged


def test_falling_marks_are_counted_and_the_higher_one_stands(feed: Feed, run: Callable[..., Running]) -> None:
    frame = follow_marks(feed.frame(), "t", "mark", on_falling_mark="count")
    counts = frame.groupBy(F.window("t", "10 seconds")).count().select(seconds("window.start"), "count")
    running = run(counts, feed)
    running.step(row(5), mark(21))
    running.step(mark(3))
    assert running.step(row(6), row(25)) == [(0.0, 1)]
    wait_until(lambda: fm.falling_marks(running.query) == 1)
    assert running.step(mark(22)) == [(0.0, 1)]


def test_an_unknown_choice_for_falling_marks(frame: DataFrame) -> None:
    assert "'fail', 'count'" in refused(InvalidOption, frame, on_falling_mark="ignore").rule


def test_a_mark_below_the_watermark_before_a_restart_is_falling(feed: Feed, tmp_path: Path) -> None:
    frame = follow_marks(feed.frame(), "t", "mark", on_falling_mark="count")

    def start() -> StreamingQuery:
        windows = frame.groupBy(F.window("t", "10 seconds")).count()
        return windows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    feed.add(row(5), mark(21))
    first = start()
    first.processAllAvailable()
    first.stop()
    feed.add(mark(3))
    second = start()
    try:
        second.processAllAvailable()
        wait_until(lambda: fm.falling_marks(second) == 1)
    finally:
        second.stop()
