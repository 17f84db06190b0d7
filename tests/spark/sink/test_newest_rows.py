"""What is left of each key of a batch, and between which values its keys are."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DoubleType, LongType, StringType, TimestampType

from floodmark.ingest.landing.tasks import may_overlap_bounds
from floodmark.spark.sink.files import TableFormat
from floodmark.spark.sink.rows import RowFormat
from floodmark.spark.sink.upserts import key_bounds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_an_empty_text_is_no_key_where_it_would_be_no_value_of_a_partition(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("", 1), ("a", 2)], "k STRING, v INT")
    form = TableFormat.of(rows.schema, RowFormat.of(rows.schema, "upsert", "k"), with_ts=False)
    assert form.newest(rows, 1, after=None, published={}).count() == 2
    with pytest.raises(PySparkException, match="no key"):
        form.newest(rows, 1, after=None, published={}, partition_by=["k"]).count()


def test_of_equal_rows_the_last_one_is_there_and_those_that_were_written_are_left_out(
    spark: SparkSession,
) -> None:
    rows = spark.range(0, 4_000, 1, 4).selectExpr("id % 3 AS k", "id AS v", "timestamp_seconds(id div 3998) AS _ts")
    form = TableFormat.of(rows.schema, RowFormat.of(rows.schema, "upsert", "k"), with_ts=False)

    def found(after: int | None = None) -> list[tuple[int, int]]:
        return sorted((row["k"], row["v"]) for row in form.newest(rows, 1, after=after, published={}).collect())

    assert found() == [(0, 3_999), (1, 3_997), (2, 3_998)]
    assert found(after=0) == [(0, 3_999), (2, 3_998)]


def test_a_row_before_what_was_told_of_time_is_refused_unless_it_only_deletes(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'a' AS k, timestamp_micros(5) AS t, 1 AS _diff")
    form = TableFormat.of(rows.schema, RowFormat.of(rows.schema, "upsert", "k", {"t": "t"}), with_ts=False)
    for frame, time in ((rows, 5), (rows.withColumn("_diff", F.lit(-1)), 6)):
        assert len(form.newest(frame, 1, after=None, published={"t": time}).collect()) == 1
    with pytest.raises(PySparkException, match="too early: 6 t 5"):
        form.newest(rows, 1, after=None, published={"t": 6}).collect()


@pytest.mark.parametrize(
    ("kind", "ends", "wanted"),
    [
        (LongType(), (-5, 7), (-5, 7)),
        (StringType(), ("a", "b"), ("a", "b")),
        (DateType(), (-1, 1), (date(1969, 12, 31), date(1970, 1, 2))),
        (DateType(), (0, 10**7), None),
        # Files may tell a moment as the millisecond that it is in.
        (TimestampType(), (1_999, 1_999), (EPOCH + timedelta(milliseconds=1), EPOCH + timedelta(microseconds=1_999))),
        (TimestampType(), (-1, 2**62), None),
        (DoubleType(), (None, None), None),
    ],
)
def test_bounds_of_keys_are_told_where_files_tell_sure_ones(kind: DataType, ends: Any, wanted: Any) -> None:
    found = key_bounds(kind, *ends)
    assert found == wanted
    if found is not None:
        low, high = (pa.array([end, None]) for end in found)
        assert may_overlap_bounds(pa.table({"min.k": low, "max.k": low}), {"k": found}).to_pylist() == [True, True]
        assert may_overlap_bounds(pa.table({"partition.k": high}), {"k": found}).to_pylist() == [True, True]
