"""The Kafka clusters of a home's streams: topics, and records sent idempotently and in order."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from floodmark.errors import TopicRecreated
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, marks_topic_of
from floodmark.kafka.errors import LastClientError, await_partitions, new_client, translate_error
from floodmark.kafka.settings import MAX_RECORD_BYTES
from floodmark.streams.definition import LogTopic, StreamInfo
from floodmark.streams.kafka.records import Header

TOPIC_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(MAX_RECORD_BYTES),
}
"""Events are kept forever, and acknowledged events are not lost in an unclean leader election."""


_DELIVERY_SECONDS: Final = 30.0


class Delivery:
    """Records in flight. The report for the last record of each partition gives the end of the partition.

    Kafka reports the records of a partition in order, so the last report completes the partition.
    """

    __slots__ = ("_completed", "_last_error", "_pending", "_settings", "_topic", "ends", "failures")

    def __init__(self, topic: str, settings: KafkaSettings, last_error: LastClientError) -> None:
        self.ends: dict[int, int] = {}
        self.failures: dict[KafkaError | None, Any] = {}
        self._pending: set[int] = set()
        self._completed = threading.Event()
        self._topic = topic
        self._settings = settings
        self._last_error = last_error

    def expect(self, partitions: Iterable[int]) -> None:
        """Add the partitions whose reports are pending."""
        self._pending.update(partitions)
        if not self._pending:
            self._completed.set()

    def arrived(self, error: KafkaError | None, record: Any) -> None:
        """Handle the delivery report for the last record of a partition."""
        if error is not None:
            self.failures[error] = record
        else:
            self.ends[record.partition()] = record.offset() + 1 if record.offset() >= 0 else UNKNOWN
        self._pending.discard(record.partition())
        if not self._pending:
            self._completed.set()

    def wait(self, seconds: float) -> dict[int, int]:
        """Return the ends, each possibly `UNKNOWN`, once all records have arrived. After a timeout, wait again.

        After another error it is unknown which records have arrived.
        """
        doing = f"writing to the topic {self._topic}"
        if not self._completed.wait(seconds):
            raise translate_error(KafkaError(KafkaError._TIMED_OUT), doing, self._settings, self._last_error.error)
        for error in self.failures:
            if error is not None:
                raise translate_error(_reason(error, self._last_error), doing, self._settings)
        return self.ends

    def is_known(self, partition: int) -> bool:
        """Return whether Kafka has reported the offsets in a partition."""
        return self.ends[partition] != UNKNOWN


@dataclass(frozen=True, slots=True)
class OutgoingRecords:
    """Records to send, in order: partitions, keys, values and headers.

    The headers are an iterator, because building them all in advance would take as long as sending.
    """

    partitions: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes]
    headers: Iterable[list[Header]]


class Sender:
    """Sends the records of all writers of this process with one producer.

    It has no delivery timeout: only then can a pending record not be duplicated by a retry.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to the cluster."""
        self._settings = settings
        self._last_error = LastClientError()
        self._lock = threading.Lock()
        self._is_closed = False
        self._has_failed = False
        self._partitions: dict[str, int] = {}
        self._producer = self._new_producer()
        self._thread = threading.Thread(target=self._serve, name="floodmark kafka", daemon=True)
        self._thread.start()

    def send(self, topic: str, records: OutgoingRecords) -> Delivery:
        """Queue records in order and return their delivery."""
        producer = self._working_producer()
        last_error = self._last_error
        delivery = Delivery(topic, self._settings, last_error)
        # A method of a dict as callback, because Python code for each record would take a third of the time.
        collect_error: Callable[..., Any] = delivery.failures.setdefault
        last = {partition: index for index, partition in enumerate(records.partitions)}
        delivery.expect(last)
        last_indexes = set(last.values())
        if last:
            self._await_partitions(producer, topic, max(last) + 1)
        columns = zip(records.partitions, records.keys, records.values, records.headers, strict=True)
        for index, (partition, key, value, headers) in enumerate(columns):
            on_delivery = delivery.arrived if index in last_indexes else collect_error
            while True:
                try:
                    producer.produce(topic, value, key, partition, on_delivery, headers=headers)
                    break
                except BufferError:
                    producer.poll(_QUEUE_FULL_SECONDS)
                except KafkaException as error:
                    problem = _reason(error.args[0], last_error)
                    raise translate_error(problem, f"writing to the topic {topic}", self._settings) from error
        return delivery

    def close(self) -> None:
        """Stop; records that have not arrived are dropped."""
        with self._lock:
            self._is_closed = True
        self._thread.join()
        self._producer.purge()
        _deliver(self._producer)

    def _working_producer(self) -> Producer:
        """Return the producer; after a fatal error, a new one."""
        with self._lock:
            if self._has_failed:
                self._last_error = LastClientError()
                self._producer = self._new_producer()
                self._partitions = {}
                self._has_failed = False
            return self._producer

    def _await_partitions(self, producer: Producer, topic: str, partitions: int) -> None:
        """Wait until the producer knows added partitions; it would refuse records for unknown ones."""
        if self._partitions.get(topic, 0) < partitions:
            try:
                await_partitions(producer, topic, partitions, _METADATA_SECONDS)
            except KafkaException as error:
                doing = f"writing to the topic {topic}"
                raise translate_error(error.args[0], doing, self._settings, self._last_error.error) from error
            self._partitions[topic] = partitions

    def _serve(self) -> None:
        while not self._is_closed:
            producer = self._producer
            try:
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                with self._lock:
                    self._last_error.error = error.args[0]
                    self._has_failed = True
                # Fail the queued records, so that their writers get the error.
                producer.purge()
                _deliver(producer)

    def _new_producer(self) -> Producer:
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "message.max.bytes": MAX_RECORD_BYTES,
            "error_cb": self._last_error,
        }
        defaults = {"linger.ms": 1, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 262_144}
        return new_client(Producer, {**defaults, **self._settings.client(), **own}, self._settings)


class ClusterConnection:
    """The clients of one cluster."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.cluster = KafkaCluster(settings)
        self.committed = Fetcher(settings)
        self.everything = Fetcher(settings, committed=False)
        self._sender: Sender | None = None
        self._lock = threading.Lock()

    @property
    def sender(self) -> Sender:
        """The sender of records outside of transactions, shared by all writers of this process."""
        with self._lock:
            if self._sender is None:
                self._sender = Sender(self.settings)
            return self._sender

    def await_delivery(self, topic: str, delivery: Delivery) -> dict[int, int]:
        """Wait for records to arrive and return ends of their partitions behind them."""
        ends = delivery.wait(_DELIVERY_SECONDS)
        unknown = [partition for partition, end in ends.items() if end == UNKNOWN]
        return {**ends, **self.cluster.ends(topic, unknown, committed=False)}

    def close(self) -> None:
        """Close the clients."""
        self.committed.close()
        self.everything.close()
        if self._sender is not None:
            self._sender.close()


class ClusterConnections:
    """The clusters of a home's streams, by their brokers. `options` are the `kafka.` options for all of them."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Connect on first use."""
        self._options = dict(options or {})
        self._connections: dict[str, ClusterConnection] = {}
        self._topics: set[LogTopic] = set()
        self._lock = threading.Lock()

    def to(self, servers: str) -> ClusterConnection:
        """Return the connection to a cluster."""
        with self._lock:
            if servers not in self._connections:
                self._connections[servers] = ClusterConnection(KafkaSettings.of(servers, self._options))
            return self._connections[servers]

    def of(self, stream: StreamInfo) -> tuple[ClusterConnection, str]:
        """Return the connection to the cluster of a stream, and its topic; raise `TopicRecreated` for another topic."""
        log = stream.log
        assert log is not None
        connection = self.to(log.servers)
        if log not in self._topics:
            topic = connection.cluster.topic(log.topic)
            if topic.id != log.topic_id:
                raise TopicRecreated(
                    f"The topic {log.topic!r} of the stream {stream.name!r} was deleted and created again.",
                    rule="A stream cannot be used without its original topic.",
                    remedy="Delete the stream, and create it again.",
                    topic=log.topic,
                    stream=stream.name,
                )
            self._topics.add(log)
        return connection, log.topic

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()


_POLL_SECONDS: Final = 0.1
_QUEUE_FULL_SECONDS: Final = 0.01
_METADATA_SECONDS: Final = 10.0
_REASON_SECONDS: Final = 2.0
_GIVEN_UP: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL)


UNKNOWN: Final = -1
"""The end if the acknowledgement was lost: Kafka then reports a duplicate without an offset."""


def _reason(error: KafkaError, last_error: LastClientError) -> KafkaError:
    """Return the cause of an error that only says that records were purged; the client may report it a moment later."""
    give_up = time.monotonic() + _REASON_SECONDS
    while error.code() in _GIVEN_UP and last_error.error is None and time.monotonic() < give_up:
        time.sleep(0.01)
    return last_error.error if error.code() in _GIVEN_UP and last_error.error is not None else error


def _deliver(producer: Producer) -> None:
    """Run the delivery callbacks of a failed producer."""
    for _ in range(10):
        try:
            if not producer.flush(_POLL_SECONDS):
                return
        except KafkaException:
            # The fatal error, raised again.
            continue


class StreamTopics:
    """Creates the topics of new streams and removes those of deleted streams."""

    def __init__(self, connections: ClusterConnections) -> None:
        """Use these connections."""
        self._connections = connections

    def make(self, servers: str, name: str, stream_id: int, segments: int) -> LogTopic:
        """Create the topic of a new stream and its marks topic. Idempotent."""
        cluster = self._connections.to(servers).cluster
        topic = topic_of(name, stream_id)
        created = cluster.create_topic(topic, segments, TOPIC_SETTINGS)
        cluster.create_topic(marks_topic_of(topic), 1, TOPIC_SETTINGS)
        return LogTopic(servers, topic, created.id)

    def remove(self, place: LogTopic) -> None:
        """Remove the topics of a deleted stream."""
        names = [place.topic, marks_topic_of(place.topic)]
        self._connections.to(place.servers).cluster.delete_topics(names)


_LONGEST_STEM: Final = 200
"""Topic names in Kafka have at most 249 characters."""


def topic_of(name: str, stream_id: int) -> str:
    """Return the topic of a stream. It includes the id, because a later stream may have the same name.

    >>> topic_of("shop/orders", 42)
    'floodmark.shop.orders-2a'
    """
    return f"floodmark.{name.replace('/', '.')[:_LONGEST_STEM]}-{stream_id:x}"
