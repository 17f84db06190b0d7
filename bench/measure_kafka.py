"""The speed of streams in Kafka, and of topics as a source of Spark next to Spark's own connector in the same run."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from figures import Figure
from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.spark import session
from floodmark.streams import Stream, connect
from floodmark.testing import KafkaBroker
from foreign_jars import foreign_jars

ROWS = 2_000_000
PARTITIONS = 4
ROUNDS = 3
EVENTS = 600_000
BATCH = 20_000
TOPIC = "orders"
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
Way = Callable[[SparkSession, str, Path], DataFrame]


def measure_kafka() -> Iterator[Figure]:
    """Yield how many events a second are written and read, and how many rows Floodmark and Spark itself read."""
    conf = {"spark.driver.memory": "3g", "spark.jars": ",".join(foreign_jars())}
    spark = session("floodmark-bench-kafka", conf=conf)
    try:
        with KafkaBroker() as broker:
            yield from _stream(broker.url)
            _fill(broker.servers)
            yield from _compared(spark, broker.servers, "100-byte JSON in columns", (_own_json, _json), at_least=2.5)
            yield from _compared(spark, broker.servers, "100 bytes, not decoded", (_own_bytes, _bytes), at_least=0.8)
    finally:
        spark.stop()


def _stream(log: str) -> Iterator[Figure]:
    number = np.arange(BATCH)
    columns = {"id": number, "customer": pa.array(number % 1_000).cast(pa.string()), "amount": number / 7}
    table = pa.table({**columns, "at": pa.array(number, pa.timestamp("us", "UTC"))})
    payloads = [b"x" * 100] * BATCH
    with tempfile.TemporaryDirectory() as directory, connect(directory, log=log, controller=False) as home:
        plain = home.create_stream("plain", segments=PARTITIONS)
        typed = home.create_stream("typed", SCHEMA, segments=PARTITIONS)
        written = max(_events_a_second(plain, payloads, None) for _ in range(ROUNDS))
        yield Figure("stream in Kafka, 100-byte events, written by one writer", written / 1e3, "k/s", at_least=300)
        written = max(_events_a_second(typed, table, "customer") for _ in range(ROUNDS))
        yield Figure("stream in Kafka, rows with a key and a schema, written by one writer", written / 1e3, "k/s")
        for name, stream in (("100-byte events", plain), ("rows with a schema", typed)):
            best = max(_read_a_second(stream) for _ in range(ROUNDS))
            yield Figure(f"stream in Kafka, {name}, read as Arrow", best / 1e3, "k/s")


def _events_a_second(stream: Stream, data: object, key: str | None) -> float:
    with stream.writer() as writer:
        writer.write_batch(data, key=key)
        writer.flush()
        start = time.perf_counter()
        for _ in range(EVENTS // BATCH):
            writer.write_batch(data, key=key)
        writer.flush()
        return EVENTS / (time.perf_counter() - start)


def _read_a_second(stream: Stream) -> float:
    start = time.perf_counter()
    count = sum(chunk.batch.num_rows for segment in range(PARTITIONS) for chunk in stream.read(segment))
    return float(count / (time.perf_counter() - start))


def _compared(
    spark: SparkSession, servers: str, title: str, ways: tuple[Way, Way], *, at_least: float
) -> Iterator[Figure]:
    best = [0.0, 0.0]
    for _ in range(ROUNDS):
        for place, way in enumerate(ways):
            best[place] = max(best[place], _rows_a_second(spark, servers, way))
    own, ours = best
    yield Figure(f"topics, {title}, Spark's own source", own / 1e3, "k/s")
    yield Figure(f"topics, {title}, floodmark", ours / 1e3, "k/s")
    yield Figure(f"topics, {title}, times Spark's own", ours / own, "x", at_least=at_least)


def _rows_a_second(spark: SparkSession, servers: str, way: Way) -> float:
    """Return the speed of the batches of a query that reads all that is there."""
    with tempfile.TemporaryDirectory() as directory:
        frame = way(spark, servers, Path(directory))
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [progress for progress in query.recentProgress if progress.numInputRows]
    rows = sum(progress.numInputRows for progress in done)
    assert rows >= ROWS, rows
    return ROWS / (sum(progress.durationMs["triggerExecution"] for progress in done) / 1e3)


def _own_bytes(spark: SparkSession, servers: str, directory: Path) -> DataFrame:
    reader = spark.readStream.format("kafka").option("subscribe", TOPIC).option("startingOffsets", "earliest")
    return reader.option("kafka.bootstrap.servers", servers).option("kafka.isolation.level", "read_committed").load()


def _own_json(spark: SparkSession, servers: str, directory: Path) -> DataFrame:
    text = F.col("value").cast("string")
    return _own_bytes(spark, servers, directory).select(F.from_json(text, SCHEMA).alias("v")).select("v.*")


def _bytes(spark: SparkSession, servers: str, directory: Path) -> DataFrame:
    reader = spark.readStream.format("floodmark").option("subscribe", TOPIC).option("home", f"{directory}/home")
    return reader.option("kafka.bootstrap.servers", servers).load()


def _json(spark: SparkSession, servers: str, directory: Path) -> DataFrame:
    reader = spark.readStream.format("floodmark").option("subscribe", TOPIC).option("home", f"{directory}/home")
    reader = reader.option("kafka.bootstrap.servers", servers).option("valueFormat", "json").option("schema", SCHEMA)
    return reader.option("columns", '["id", "customer", "amount", "at"]').load()


def _fill(servers: str) -> None:
    settings = KafkaSettings.of(servers)
    KafkaCluster(settings).create_topic(TOPIC, PARTITIONS, {})
    producer = Producer(settings.client(queue_buffering_max_messages=1_000_000, linger_ms=50))
    for number in range(ROWS):
        hours, minutes, seconds = number // 3600 % 24, number // 60 % 60, number % 60
        value = {
            "id": number,
            "customer": f"customer-{number % 10_000:09}",
            "amount": number % 1000 / 4,
            "at": f"2026-01-01T{hours:02}:{minutes:02}:{seconds:02}.{number % 1_000_000:06}Z",
        }
        producer.produce(TOPIC, json.dumps(value, separators=(",", ":")), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    assert producer.flush(60) == 0


if __name__ == "__main__":
    for figure in measure_kafka():
        print(figure.line(), flush=True)
