"""The source of streams whose events are in Kafka: the claims that could fail there and not with events in the home."""

import pytest
from pyspark.sql import SparkSession

from floodmark.testing import KafkaBroker
from spark.source.test_stream_source import (  # noqa: F401 - pytest finds fixtures and tests by their names
    orders,
    test_a_row_is_stamped_with_the_watermark_before_its_timestamp,
    test_a_row_tells_where_it_lies,
    test_a_snapshot_is_the_same_whenever_it_is_read,
    test_limits_cut_the_stream_into_batches_and_lose_nothing,
    test_segments_that_are_split_and_merged_in_the_middle_of_a_query_lose_nothing,
    test_two_queries_see_the_same_rows_at_the_same_times,
)
from support.spark.stream_feed import StreamFeed

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.usefixtures("log_in_kafka")]


def test_rows_that_came_in_transactions_are_read_once(orders: StreamFeed, spark: SparkSession) -> None:  # noqa: F811
    """What ends a transaction takes an offset that has no row."""
    with orders.stream.transactional_writer("till") as writer:
        for start in (0, 10):
            transaction = writer.begin()
            transaction.write_batch([{"id": 100 + start + number, "t": 0, "item": "tea"} for number in range(5)])
            transaction.commit()
        given_up = writer.begin()
        given_up.write({"id": 999, "t": 0, "item": "tea"})
        given_up.abort()
    orders.bind()
    read = spark.read.format("floodmark").option("stream", "orders").option("home", str(orders.path / "home")).load()
    assert sorted(row.id for row in read.collect()) == [*range(100, 105), *range(110, 115)]


def test_the_events_are_really_in_kafka(orders: StreamFeed, broker: KafkaBroker) -> None:  # noqa: F811
    place = orders.stream.info.log
    assert place is not None
    assert place.servers == broker.servers
