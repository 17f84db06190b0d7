"""Which queries a parallel sink refuses, since their rows could go to other groups when they are computed again."""

from collections.abc import Callable

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.errors import InvalidOption
from floodmark.spark.columns import as_event_time
from floodmark.spark.sink.query import explain
from floodmark.spark.sink.stability import require_stable_routing, unstable_parts


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    return rate.select("timestamp", "value", (F.col("value") / 3).alias("price"))


def windows(orders: DataFrame, *results: Column) -> DataFrame:
    return orders.groupBy(F.window("timestamp", "1 minute")).agg(*results)


BY_PLACE = ["monotonically_increasing_id()"]
ROWS = [
    ("rand()", lambda orders: orders.withColumn("x", F.rand()), ["rand()"]),
    ("uuid()", lambda orders: orders.withColumn("x", F.expr("uuid()")), ["uuid()"]),
    (
        "an id by place",
        lambda orders: orders.withColumn("x", F.monotonically_increasing_id()),
        ["monotonically_increasing_id()"],
    ),
    ("the partition", lambda orders: orders.withColumn("x", F.spark_partition_id()), ["spark_partition_id()"]),
    ("rand() in a filter", lambda orders: orders.where(F.rand() < 0.5), ["rand()"]),
    ("an event time", lambda orders: orders.select(as_event_time(orders.schema["timestamp"])), []),
    ("fractions without a sum", lambda orders: orders, []),
    ("the time of the batch", lambda orders: orders.withColumn("x", F.current_timestamp()), []),
    ("a count", lambda orders: windows(orders, F.count("*"), F.sum("value")), []),
    ("a sum of fractions", lambda orders: windows(orders, F.sum("price")), ["sum() of fractions"]),
    ("an average", lambda orders: windows(orders, F.avg("value")), ["avg() of fractions"]),
    ("a list", lambda orders: windows(orders, F.collect_list("value")), ["collect_list()"]),
    ("the first", lambda orders: windows(orders, F.first("value")), ["first()"]),
    ("one row of a value", lambda orders: orders.dropDuplicates(["value"]), ["dropDuplicates()"]),
    ("one of equal rows", lambda orders: orders.select("value").dropDuplicates(["value"]), []),
]


@pytest.mark.parametrize(("make", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_changes_when_rows_are_computed_again_is_named(
    orders: DataFrame, make: Callable[[DataFrame], DataFrame], expected: list[str]
) -> None:
    frame = make(orders)
    assert unstable_parts(explain(frame), frame.schema) == expected


def test_only_the_columns_that_rows_are_routed_by_count(orders: DataFrame) -> None:
    frame = windows(orders.withColumn("x", F.rand()), F.sum("x").alias("luck"), F.collect_list("value"))
    key = frame.select("window")
    require_stable_routing(explain(key), key.schema, ["window"])
    with pytest.raises(InvalidOption, match="since no key is named; and these depend on collect_list"):
        require_stable_routing(explain(frame), frame.schema, [])
