"""A broker that is killed while Spark reads its topics."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.testing import KafkaBroker
from support.kafka.topic_feed import TopicFeed
from support.waiting import wait_until


def test_a_broker_that_is_killed_in_the_middle_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, topic_name: str
) -> None:
    with KafkaBroker() as own:
        feed = TopicFeed(own.servers, topic_name)
        frame = fm.read_topics(spark, topic_name, servers=own.servers, home=tmp_path / "home", max_rows=7)
        seen: list[str] = []
        writer = frame.select(F.col("value").cast("string")).writeStream
        writer = writer.foreachBatch(lambda batch, _: seen.extend(row.value for row in batch.collect()))
        feed.write(0, *(f"a{number}" for number in range(100)))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
        try:
            wait_until(lambda: bool(seen))
            own.kill()
            own.start()
            feed.write(1, *(f"b{number}" for number in range(20)))
            wait_until(lambda: len(seen) >= 120 or not query.isActive, 60)
            assert query.exception() is None
        finally:
            query.stop()
        assert sorted(seen) == sorted(
            [*(f"a{number}" for number in range(100)), *(f"b{number}" for number in range(20))]
        )
