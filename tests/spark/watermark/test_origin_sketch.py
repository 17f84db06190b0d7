"""Numbers by origin out of Spark's sketches, next to what a grouping finds."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.spark.watermark.statistics import (
    aggregate_by_origin,
    display_name,
    format_hash,
    origin_id,
    origin_key,
    origin_name,
    read_sketch,
    sketch_hash,
    spark_xxhash64,
)

ROWS = 5_000


def rows(spark: SparkSession) -> DataFrame:
    """Return keys of both signs, an empty one and a null, and times before and after 1970."""
    parts = [
        "case id % 7 when 0 then null when 1 then '' else concat('orders-', id % 7) end as topic",
        "cast(id % 3 - 1 as int) as partition",
        "cast(xxhash64(id) % 4000000000000000 as double) as time",
    ]
    return spark.range(ROWS).selectExpr(*parts)


@pytest.mark.parametrize("per", [("topic",), ("partition",), ("topic", "partition")], ids=str)
@pytest.mark.parametrize("mode", ["max", "min", "sum"])
def test_each_origin_has_the_number_that_a_grouping_finds(spark: SparkSession, per: tuple[str, ...], mode: str) -> None:
    keyed = (
        rows(spark)
        .withColumn("name", origin_name(per))
        .withColumn("key", origin_key(F.col("name")))
        .withColumn("number", F.lit(1.0) if mode == "sum" else F.col("time"))
    )
    sketch = keyed.agg(aggregate_by_origin(F.col("key"), F.col("number"), mode).alias("sketch")).first()  # type: ignore[arg-type]
    assert sketch is not None
    grouped = keyed.groupBy(*per, "name", "key").agg(F.expr(f"{mode}(number)").alias("number")).collect()
    told = read_sketch(sketch["sketch"])
    assert told is not None
    assert told == {sketch_hash(row["key"]): int(row["number"]) for row in grouped}
    assert {format_hash(key) for key in told} == {origin_id(row["name"]) for row in grouped}
    assert len(grouped) == {"topic": 7, "partition": 3}.get(per[0], 0) if len(per) == 1 else 21


def test_rows_without_a_key_or_a_number_do_not_count(spark: SparkSession) -> None:
    found = spark.createDataFrame([(1, 5.0), (None, 9.0), (2, None)], "k bigint, n double")
    sketch = found.agg(aggregate_by_origin(F.col("k"), F.col("n"), "max").alias("sketch")).first()
    assert sketch is not None
    assert read_sketch(sketch["sketch"]) == {sketch_hash(1): 5}


def test_too_many_keys_are_noticed(spark: SparkSession) -> None:
    few, many = (
        spark.range(count).agg(aggregate_by_origin(F.col("id"), F.lit(1.0), "max").alias("sketch")).first()
        for count in (65_536, 200_000)
    )
    assert few is not None
    assert many is not None
    counted = read_sketch(few["sketch"])
    assert counted is not None
    assert len(counted) == 65_536
    assert read_sketch(many["sketch"]) is None


def test_a_time_that_no_double_has_is_never_told_later_than_it_is(spark: SparkSession) -> None:
    year_9999 = 253_402_300_799_999_999
    frame = spark.createDataFrame([(1, year_9999)], "k bigint, t bigint").withColumn("t", F.col("t").cast("double"))
    sketch = frame.agg(aggregate_by_origin(F.col("k"), F.col("t"), "max").alias("sketch")).first()
    assert sketch is not None
    told = read_sketch(sketch["sketch"])
    assert told is not None
    assert year_9999 - 200 < told[sketch_hash(1)] <= year_9999


def test_hashes_of_texts_of_any_length_are_those_of_spark(spark: SparkSession) -> None:
    texts = [
        "",
        "a",
        "é",
        "\U0001f30a" * 3,
        *("x" * length for length in (3, 4, 7, 8, 11, 12, 31, 32, 33, 63, 64, 100)),
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    found = {
        row["text"]: row["hash"] % 2**64 for row in frame.select("text", F.xxhash64("text").alias("hash")).collect()
    }
    assert found == {text: spark_xxhash64(text) for text in texts}


def test_a_name_shows_its_parts_as_they_are_written() -> None:
    assert [display_name(name) for name in ("south", "orders\x1f3", "\0\x1f", "")] == [
        "south",
        "orders, 3",
        "null, ",
        "",
    ]
