"""Numbers by origin out of Spark's sketches, next to what a grouping finds."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.spark._origin_sketch import by_origin, hash_of, origin_key, read_sketch

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
        .withColumn("key", origin_key(per))
        .withColumn("number", F.lit(1.0) if mode == "sum" else F.col("time"))
    )
    sketch = keyed.agg(by_origin(F.col("key"), F.col("number"), mode).alias("sketch")).first()  # type: ignore[arg-type]
    assert sketch is not None
    grouped = keyed.groupBy(*per, "key").agg(F.expr(f"{mode}(number)").alias("number")).collect()
    assert read_sketch(sketch["sketch"]) == {hash_of(row["key"]): int(row["number"]) for row in grouped}
    assert len(grouped) == {"topic": 7, "partition": 3}.get(per[0], 0) if len(per) == 1 else 21


def test_rows_without_a_key_or_a_number_do_not_count(spark: SparkSession) -> None:
    found = spark.createDataFrame([(1, 5.0), (None, 9.0), (2, None)], "k bigint, n double")
    sketch = found.agg(by_origin(F.col("k"), F.col("n"), "max").alias("sketch")).first()
    assert sketch is not None
    assert read_sketch(sketch["sketch"]) == {hash_of(1): 5}


def test_too_many_keys_are_noticed(spark: SparkSession) -> None:
    few, many = (
        spark.range(count).agg(by_origin(F.col("id"), F.lit(1.0), "max").alias("sketch")).first()
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
    sketch = frame.agg(by_origin(F.col("k"), F.col("t"), "max").alias("sketch")).first()
    assert sketch is not None
    told = read_sketch(sketch["sketch"])
    assert told is not None
    assert year_9999 - 200 < told[hash_of(1)] <= year_9999
