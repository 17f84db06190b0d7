"""A topic written without transactions as a target: manifests in its progress topic name the rows that count.

Each row has three headers: its timestamp, the name of the task that sent it, and its number in that task. A manifest
names the tasks that count. The progress topic has one partition, so all readers agree which manifest of a number is the
first, and that one counts. Each manifest has a key of its own, so compaction keeps all of them.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.kafka.errors import LastClientError, new_client, translate_error
from floodmark.kafka.settings import MAX_RECORD_BYTES
from floodmark.sinks.kafka.rows import TS_HEADER, OutRow
from floodmark.sinks.kafka.topics import SinkTopics, has_records, progress_topic_of
from floodmark.sinks.manifest.target import Manifest, effective_manifests

_KEY_PREFIX: Final = "floodmark.closing/"


class TopicManifestLog:
    """The manifests of a sink, kept in the progress topic of its topic."""

    noun = "topic"

    def __init__(
        self, settings: KafkaSettings, topic: str, sink: str, *, partitions: int = 1, progress_topic: str | None = None
    ) -> None:
        """Write to this topic; if it is created, it gets this number of partitions."""
        self.sink = sink
        self.settings = settings
        self.topic = topic
        self.progress_topic = progress_topic or progress_topic_of(topic)
        self._partitions = partitions
        self._cluster = KafkaCluster(settings)
        self._producer: PlainProducer | None = None
        self._next_offset = 0
        self._newest: Manifest | None = None

    @property
    def location(self) -> str:
        """The topic."""
        return self.topic

    @property
    def address(self) -> str:
        """URL of the topic, without secrets."""
        return f"{self.settings.url}/{self.topic}"

    def open(self) -> str | None:
        """Return the id of the topic, or None if it does not exist."""
        info = self._cluster.find_topic(self.topic)
        if info is None:
            return None
        SinkTopics(self._cluster).ensure_progress_topic(self.progress_topic)
        return info.id

    def create(self) -> None:
        """Create the topic."""
        self._cluster.create_topic(self.topic, self._partitions, {})

    def newest(self) -> Manifest | None:
        """Return the last manifest of the sink that counts."""
        (end,) = self._cluster.ends(self.progress_topic, [0], committed=False).values()
        self._read_to(end)
        return self._newest

    def has_rows(self) -> bool:
        """Return whether the topic has any record."""
        return has_records(self._cluster, self.topic, self._cluster.topic(self.topic).partitions)

    def add(self, record: Manifest) -> bool:
        """Send a manifest, and return whether it is the first of its number."""
        if self._producer is None:
            self._producer = PlainProducer(self.settings)
        key = f"{_KEY_PREFIX}{record.sink}/{record.number}/{record.token}"
        offset = self._producer.put(self.progress_topic, record.save(), key.encode(), 0)
        return record.token in self._read_to(offset + 1)

    def clean(self, record: Manifest) -> None:
        """Do nothing: Kafka's retention removes rows that do not count."""

    def close(self) -> None:
        """Release the producer."""
        self._producer = None

    def _read_to(self, end: int) -> set[str]:
        """Read manifests up to an offset, and return the tokens of those that count."""
        tokens: set[str] = set()
        for record in _scan_manifests(self.settings, self.progress_topic, self._next_offset, end):
            if record.sink == self.sink and record.number == (self._newest.number if self._newest else 0) + 1:
                self._newest = record
                tokens.add(record.token)
        self._next_offset = max(self._next_offset, end)
        return tokens


def closed_tasks(settings: KafkaSettings, progress_topic: str, sink: str | None = None) -> dict[str, int]:
    """Return the tasks whose rows count, with their row counts, of all sinks or of one."""
    cluster = KafkaCluster(settings)
    if cluster.find_topic(progress_topic) is None:
        return {}
    (end,) = cluster.ends(progress_topic, [0], committed=False).values()
    chains = effective_manifests(_scan_manifests(settings, progress_topic, 0, end))
    chosen = [chain for name, chain in chains.items() if sink in (None, name)]
    return {part.name: part.rows for chain in chosen for record in chain for part in record.parts}


def _scan_manifests(settings: KafkaSettings, topic: str, start: int, end: int) -> Iterator[Manifest]:
    # Manifests are not transactional: do not wait for open transactions of other producers.
    fetcher = Fetcher(settings, committed=False)
    first = max(start, *KafkaCluster(settings).starts(topic, [0]).values())
    try:
        for records in fetcher.read(topic, 0, first, end):
            for record in records:
                key, value = record.key(), record.value()
                if key is not None and key.startswith(_KEY_PREFIX.encode()) and value is not None:
                    yield Manifest.load(value)
    finally:
        fetcher.close()


TASK_HEADER: Final = "floodmark.task"
"""Header with the name of the task that sent a row."""
INDEX_HEADER: Final = "floodmark.index"
"""Header with the number of a row in its task, in decimal digits."""

_DELIVERY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class PlainProducer:
    """An idempotent producer without transactions. `put`, `send` and `flush` raise an error if delivery fails."""

    def __init__(self, settings: KafkaSettings, *, linger: float = 0.01, seconds: float = _DELIVERY_SECONDS) -> None:
        """Send to the cluster of these settings; delivery fails after `seconds`."""
        self._settings = settings
        self._seconds = seconds
        self._client_error = LastClientError()
        self._failure: KafkaError | None = None
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2",
            "linger.ms": round(linger * 1_000),
            "delivery.timeout.ms": round(seconds * 1_000),
            "message.max.bytes": MAX_RECORD_BYTES,
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "error_cb": self._client_error,
        }
        self._client = new_client(Producer, {**settings.client(), **own}, settings)

    def put(self, topic: str, value: bytes, key: bytes, partition: int) -> int:
        """Send one record, wait for its delivery, and return its offset."""
        offsets: list[int] = []

        def on_delivery(error: KafkaError | None, record: Any) -> None:
            if error is None:
                offsets.append(record.offset())
            else:
                self._failure = error

        self._produce(topic, value, key, partition, None, on_delivery)
        self.flush(topic)
        return offsets[0]

    def send(self, topic: str, task: str, rows: Iterable[Sequence[OutRow]]) -> int:
        """Send the rows of a task, wait for their delivery, and return their number."""
        number, name = 0, task.encode()
        for piece in rows:
            for key, value, ts, partition, headers in piece:
                own = [(TS_HEADER, b"%d" % ts), (TASK_HEADER, name), (INDEX_HEADER, b"%d" % number)]
                full = own if not headers else [*headers, *own]
                self._produce(topic, value, key, -1 if partition is None else partition, full, self._on_delivery)
                number += 1
            self._client.poll(0)
            self._check(topic)
        self.flush(topic)
        return number

    def flush(self, topic: str) -> None:
        """Wait until all sent records are delivered."""
        deadline = time.monotonic() + self._seconds
        while self._client.flush(0.5):
            self._check(topic)
            if time.monotonic() > deadline:
                self._failure = KafkaError(KafkaError._TIMED_OUT)
        self._check(topic)

    def _produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any, on_delivery: Any
    ) -> None:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                self._client.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                self._client.poll(_POLL_SECONDS)
                if time.monotonic() > deadline:
                    self._failure = KafkaError(KafkaError._TIMED_OUT)
            except KafkaException as error:
                self._failure = error.args[0]
            self._check(topic)

    def _on_delivery(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failure = error

    def _check(self, topic: str) -> None:
        if self._failure is not None:
            raise translate_error(self._failure, f"writing to {topic}", self._settings, self._client_error.error)
