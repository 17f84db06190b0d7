"""The speed of sinks that write exactly once, next to Spark's own Kafka sink, which may repeat rows."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import floodmark as fm
from figures import Figure
from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.streams import connect
from floodmark.testing import KafkaBroker
from foreign_jars import foreign_jars

ROWS = 2_000_000
PIECE = 100_000
PARTITIONS = 4
ROUNDS = 3

Rows = Callable[[SparkSession, Path, str], DataFrame]
Way = Callable[[DataFrame, Path, str, str], float]


def measure_sinks() -> Iterator[Figure]:
    """Yield rows a second into a topic, and the memory that one large timestamp takes."""
    spark = fm.session(
        "floodmark-bench-sinks", conf={"spark.driver.memory": "3g", "spark.jars": ",".join(foreign_jars())}
    )
    try:
        with tempfile.TemporaryDirectory() as place, KafkaBroker() as broker:
            _fill(Path(place), broker.servers)
            runs: dict[str, tuple[Rows, Way]] = {
                "spark": (_stream, _sparks),
                "atomic": (_stream, _atomic),
                "parallel": (_stream, _parallel),
                "spark from Kafka": (_topic_by_spark, _sparks),
                "atomic from Kafka": (_topic, _atomic),
                "parallel from Kafka": (_topic, _parallel),
            }
            best = dict.fromkeys(runs, 0.0)
            most = 0.0
            for number in range(ROUNDS + 1):
                for name, (rows, write) in runs.items():
                    with _Memory() as memory:
                        topic = f"{name.replace(' ', '-')}-{number}"
                        speed = write(rows(spark, Path(place), broker.servers), Path(place), broker.servers, topic)
                    if number:
                        # The first round is for the compilers.
                        best[name] = max(best[name], speed)
                    if name == "atomic":
                        most = max(most, memory.grown)
        yield Figure("Spark's own Kafka sink, 100 bytes to 4 partitions", best["spark"] / 1e3, "k rows/s")
        for name, goal in (("atomic", 0.6), ("parallel", 1.1)):
            yield Figure(f"write_stream to Kafka, {name}, the same rows", best[name] / 1e3, "k rows/s")
            yield Figure(f"write_stream, {name}, to Spark's own", best[name] / best["spark"], "x", at_least=goal)
        yield Figure(
            "atomic, one timestamp of 2 M rows: Python in the driver above idle", most / 2**20, "MB", at_most=512
        )
        native = best["spark from Kafka"]
        yield Figure("Kafka to Kafka, 100 bytes, Spark's own source and sink", native / 1e3, "k rows/s")
        for name in ("atomic", "parallel"):
            ours = best[f"{name} from Kafka"]
            yield Figure(f"Kafka to Kafka, read_topics and write_stream, {name}", ours / 1e3, "k rows/s")
            yield Figure(f"Kafka to Kafka, {name}, to Spark's own", ours / native, "x")
    finally:
        spark.stop()


def _fill(place: Path, servers: str) -> None:
    number = np.arange(PIECE)
    keys, values = [b"%d" % one for one in number], [b"%0100d" % one for one in number]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    with connect(place / "home", controller=False) as home:
        stream = home.create_stream("rows", "key BINARY, value BINARY, at TIMESTAMP", segments=2, time_columns="at")
        with stream.writer("w") as writer:
            at = pa.array(np.zeros(PIECE, np.int64), pa.timestamp("us", "UTC"))
            for _ in range(ROWS // PIECE):
                writer.write_batch(table.append_column("at", at))
    KafkaCluster(KafkaSettings.of(servers)).create_topic("rows", PARTITIONS, {})
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 0})
    for _ in range(ROWS // PIECE):
        for key, value in zip(keys, values, strict=True):
            producer.produce("rows", value, key)
    producer.flush()


def _stream(spark: SparkSession, place: Path, servers: str) -> DataFrame:
    return fm.read_stream(spark, "rows", home=place / "home", columns=["key", "value"]).select("key", "value")


def _topic(spark: SparkSession, place: Path, servers: str) -> DataFrame:
    found = fm.read_topics(spark, "rows", servers=servers, home=place / "home", columns=["key", "value"])
    return found.select("key", "value")


def _topic_by_spark(spark: SparkSession, place: Path, servers: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", "rows").option("startingOffsets", "earliest").load().select("key", "value")


def _sparks(rows: DataFrame, place: Path, servers: str, topic: str) -> float:
    KafkaCluster(KafkaSettings.of(servers)).create_topic(topic, PARTITIONS, {})
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
    started = writer.option("topic", topic).option("checkpointLocation", str(place / topic))
    return _speed(started.trigger(availableNow=True).start())


def _atomic(rows: DataFrame, place: Path, servers: str, topic: str, parallel: int | None = None) -> float:
    query = fm.write_stream(
        rows,
        to=f"kafka://{servers}/{topic}",
        name=topic,
        checkpoint=place / topic,
        home=place / "home",
        trigger={"availableNow": True},
        partitions=PARTITIONS,
        parallel=parallel,
    )
    return _speed(query)


def _parallel(rows: DataFrame, place: Path, servers: str, topic: str) -> float:
    return _atomic(rows, place, servers, topic, parallel=2)


def _speed(query: object) -> float:
    query.awaitTermination()  # type: ignore[attr-defined]
    batches = query.recentProgress  # type: ignore[attr-defined]
    took = sum(batch["durationMs"].get("addBatch", 0) for batch in batches) / 1e3
    return ROWS / float(took)


class _Memory:
    """How much more memory this process takes in between, at most."""

    def __enter__(self) -> "_Memory":
        self._before, self.grown = _resident(), 0.0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.grown = max(self.grown, _resident() - self._before)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * 4096)


if __name__ == "__main__":
    began = time.time()
    for figure in measure_sinks():
        print(figure.line(), flush=True)
    print(f"{time.time() - began:.0f} s")
