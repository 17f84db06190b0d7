"""What cannot work is refused before any query starts."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from floodmark.errors import FloodmarkError, InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark import follow_marks
from support.spark.spark_feed import Feed, Running, mark, row, seconds


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
