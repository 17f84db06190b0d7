"""Topics of a real broker that are written record by record, and what is bound of them."""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from floodmark.kafka import KafkaCluster, KafkaSettings, MarkRecord, marks_topic_of

SECOND = 1_000_000
BASE_MILLIS = 1_790_000_000_000


class TopicFeed:
    """A topic, and somebody who writes to it; what was written is in the topic when the call returns."""

    def __init__(self, servers: str, name: str, partitions: int = 2, **settings: str) -> None:
        self.name = name
        self.settings = KafkaSettings.of(servers)
        self.cluster = KafkaCluster(self.settings)
        # Its records have whatever time a test gives them, and none is to go because it is old.
        self.cluster.create_topic(name, partitions, {"retention.ms": "-1", **settings})
        self._producer = Producer(self.settings.client())

    def grow(self, partitions: int) -> None:
        """Let the topic have more partitions, and the one who writes know it."""
        self.cluster.grow_topic(self.name, partitions)
        self._producer = Producer(self.settings.client())

    def write(self, partition: int, *values: bytes | str | None, at: int = 0, **more: Any) -> None:
        """Write values to a partition; Kafka's timestamp is `at` milliseconds after the base."""
        for value in values:
            self._producer.produce(self.name, value, partition=partition, timestamp=BASE_MILLIS + at, **more)
        assert self._producer.flush(20) == 0

    def mark(self, seq: int, lower: int, cut: dict[int, int], key: str = "at", unit: str = "us") -> None:
        """Write a record to the marks topic."""
        record = MarkRecord(key, seq, "watermark", lower, lower, unit, ("w",), cut)
        self._producer.produce(marks_topic_of(self.name), record.save(), partition=0)
        assert self._producer.flush(20) == 0

    def create_marks(self) -> None:
        self.cluster.create_topic(marks_topic_of(self.name), 1, {})

    def trim(self, ends: dict[int, int]) -> None:
        """Delete the records before these offsets."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(self.name, partition, offset) for partition, offset in ends.items()]
        for done in self.cluster._admin().delete_records(places).values():
            done.result()

    def transaction(self, partition: int, values: Iterable[str], *, end: str, at: int = 900_000) -> Producer:
        """Write in a transaction, and commit it, abort it or leave it open."""
        producer = Producer(self.settings.client(transactional_id=f"tx-{self.name}-{end}"))
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, partition=partition, timestamp=BASE_MILLIS + at)
        producer.flush(20)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        # Kafka says so a moment before the end of the transaction is in the topic.
        while end != "open" and self._ends(partition, committed=True) < self._ends(partition, committed=False):
            time.sleep(0.005)
        return producer

    def _ends(self, partition: int, *, committed: bool) -> int:
        return self.cluster.ends(self.name, [partition], committed=committed)[partition]
