"""The clusters of a home's streams: topics made and removed, records sent once and in order while the process lives."""

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
"""A stream keeps its events; what it has acknowledged is not given up for the sake of a quick restart."""


_PATIENCE_SECONDS: Final = 30.0


class Delivery:
    """Records on their way. The last one of each partition tells how far that is filled by them, or that it is unknown.

    Kafka answers for the records of a partition in their order: when the last one has arrived, all have been heard of.
    """

    __slots__ = ("_arrived", "_left", "_said", "_settings", "_topic", "ends", "failures")

    def __init__(self, topic: str, settings: KafkaSettings, said: LastClientError) -> None:
        self.ends: dict[int, int] = {}
        self.failures: dict[KafkaError | None, Any] = {}
        self._left: set[int] = set()
        self._arrived = threading.Event()
        self._topic = topic
        self._settings = settings
        self._said = said

    def expect(self, partitions: Iterable[int]) -> None:
        """Say in which partitions there are records."""
        self._left.update(partitions)
        if not self._left:
            self._arrived.set()

    def arrived(self, error: KafkaError | None, record: Any) -> None:
        """Take the answer for the last record of a partition."""
        if error is not None:
            self.failures[error] = record
        else:
            self.ends[record.partition()] = record.offset() + 1 if record.offset() >= 0 else UNKNOWN
        self._left.discard(record.partition())
        if not self._left:
            self._arrived.set()

    def wait(self, seconds: float) -> dict[int, int]:
        """Return the ends, or `UNKNOWN` ones, when all have arrived. If that takes too long they still may; wait again.

        If it has failed, nobody knows which ones have arrived.
        """
        doing = f"writing to the topic {self._topic}"
        if not self._arrived.wait(seconds):
            raise translate_error(KafkaError(KafkaError._TIMED_OUT), doing, self._settings, self._said.error)
        for error in self.failures:
            if error is not None:
                raise translate_error(_reason(error, self._said), doing, self._settings)
        return self.ends

    def is_known(self, partition: int) -> bool:
        """Return whether Kafka has said where the records of a partition are."""
        return self.ends[partition] != UNKNOWN


@dataclass(frozen=True, slots=True)
class OutgoingRecords:
    """Records to be sent, in their order: for each the partition, key, value and headers.

    The headers come one after the other: to make them all at once takes as long as to send them.
    """

    partitions: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes]
    headers: Iterable[list[Header]]


class Sender:
    """Sends the records of all writers of this process, with one producer.

    It never gives up by itself: only then is it certain that a record that is still waited for does not come twice.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect to the cluster."""
        self._settings = settings
        self._said = LastClientError()
        self._lock = threading.Lock()
        self._is_closed = False
        self._has_failed = False
        self._partitions: dict[str, int] = {}
        self._producer = self._new_producer()
        self._thread = threading.Thread(target=self._serve, name="floodmark kafka", daemon=True)
        self._thread.start()

    def send(self, topic: str, records: OutgoingRecords) -> Delivery:
        """Give records to the client, in their order, and return what tells when they have arrived."""
        producer = self._current()
        said = self._said
        flight = Delivery(topic, self._settings, said)
        # Two methods of a dict, and not two lines of Python for each record: that is a third of the time.
        heard: Callable[..., Any] = flight.failures.setdefault
        last = {partition: place for place, partition in enumerate(records.partitions)}
        flight.expect(last)
        ends = set(last.values())
        if last:
            self._learn(producer, topic, max(last) + 1)
        columns = zip(records.partitions, records.keys, records.values, records.headers, strict=True)
        for place, (partition, key, value, headers) in enumerate(columns):
            on_delivery = flight.arrived if place in ends else heard
            while True:
                try:
                    producer.produce(topic, value, key, partition, on_delivery, headers=headers)
                    break
                except BufferError:
                    producer.poll(_FULL_SECONDS)
                except KafkaException as error:
                    problem = _reason(error.args[0], said)
                    raise translate_error(problem, f"writing to the topic {topic}", self._settings) from error
        return flight

    def close(self) -> None:
        """Stop; what has not arrived is given up."""
        with self._lock:
            self._is_closed = True
        self._thread.join()
        self._producer.purge()
        _deliver(self._producer)

    def _current(self) -> Producer:
        """Return the producer; after an error that it could not get over, a new one."""
        with self._lock:
            if self._has_failed:
                self._said = LastClientError()
                self._producer = self._new_producer()
                self._partitions = {}
                self._has_failed = False
            return self._producer

    def _learn(self, producer: Producer, topic: str, partitions: int) -> None:
        """Let the producer see partitions that were added: it would refuse records for those that it does not know."""
        if self._partitions.get(topic, 0) < partitions:
            try:
                await_partitions(producer, topic, partitions, _LEARN_SECONDS)
            except KafkaException as error:
                doing = f"writing to the topic {topic}"
                raise translate_error(error.args[0], doing, self._settings, self._said.error) from error
            self._partitions[topic] = partitions

    def _serve(self) -> None:
        while not self._is_closed:
            producer = self._producer
            try:
                producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                with self._lock:
                    self._said.error = error.args[0]
                    self._has_failed = True
                # What it has taken fails now, and those who wait hear of it.
                producer.purge()
                _deliver(producer)

    def _new_producer(self) -> Producer:
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "message.max.bytes": MAX_RECORD_BYTES,
            "error_cb": self._said,
        }
        defaults = {"linger.ms": 1, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 262_144}
        return new_client(Producer, {**defaults, **self._settings.client(), **own}, self._settings)


class ClusterConnection:
    """One cluster: asked, read, and written to."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.cluster = KafkaCluster(settings)
        self.committed = Fetcher(settings)
        self.everything = Fetcher(settings, committed=False)
        self._sender: Sender | None = None
        self._lock = threading.Lock()

    @property
    def sender(self) -> Sender:
        """What sends plain records, for all writers of this process."""
        with self._lock:
            if self._sender is None:
                self._sender = Sender(self.settings)
            return self._sender

    def arrived(self, topic: str, flight: Delivery) -> dict[int, int]:
        """Return how far records that were sent fill their partitions, or a little further, when all have arrived."""
        ends = flight.wait(_PATIENCE_SECONDS)
        unknown = [partition for partition, end in ends.items() if end == UNKNOWN]
        return {**ends, **self.cluster.ends(topic, unknown, committed=False)}

    def close(self) -> None:
        """Let go of it."""
        self.committed.close()
        self.everything.close()
        if self._sender is not None:
            self._sender.close()


class ClusterConnections:
    """The clusters of a home's streams, by their brokers. `options` are the `kafka.` ones of all of them."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Connect when it is needed."""
        self._options = dict(options or {})
        self._known: dict[str, ClusterConnection] = {}
        self._topics: set[LogTopic] = set()
        self._lock = threading.Lock()

    def to(self, servers: str) -> ClusterConnection:
        """Return the connection to a cluster."""
        with self._lock:
            if servers not in self._known:
                self._known[servers] = ClusterConnection(KafkaSettings.of(servers, self._options))
            return self._known[servers]

    def of(self, stream: StreamInfo) -> tuple[ClusterConnection, str]:
        """Return the connection to the cluster of a stream, and its topic, which must still be the same one."""
        place = stream.log
        assert place is not None
        connection = self.to(place.servers)
        if place not in self._topics:
            found = connection.cluster.topic(place.topic)
            if found.id != place.topic_id:
                raise TopicRecreated(
                    f"The topic {place.topic!r} of the stream {stream.name!r} was deleted and made anew.",
                    rule="A stream ends with its topic.",
                    remedy="Delete the stream, and create it again.",
                    topic=place.topic,
                    stream=stream.name,
                )
            self._topics.add(place)
        return connection, place.topic

    def close(self) -> None:
        """Let go of all of them."""
        with self._lock:
            known, self._known = list(self._known.values()), {}
        for connection in known:
            connection.close()


_POLL_SECONDS: Final = 0.1
_FULL_SECONDS: Final = 0.01
_LEARN_SECONDS: Final = 10.0
_REASON_SECONDS: Final = 2.0
_GIVEN_UP: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL)


UNKNOWN: Final = -1
"""The end of records that have arrived, but the answer was lost: Kafka only says that it has had them before."""


def _reason(error: KafkaError, said: LastClientError) -> KafkaError:
    """Return why something was given up, if an error says no more than that; the client may say so a moment later."""
    give_up = time.monotonic() + _REASON_SECONDS
    while error.code() in _GIVEN_UP and said.error is None and time.monotonic() < give_up:
        time.sleep(0.01)
    return said.error if error.code() in _GIVEN_UP and said.error is not None else error


def _deliver(producer: Producer) -> None:
    """Let those who wait for a producer that gives up hear of it."""
    for _ in range(10):
        try:
            if not producer.flush(_POLL_SECONDS):
                return
        except KafkaException:
            # It says again why it gives up.
            continue


class StreamTopics:
    """Makes the topics of new streams, and removes those of streams that are no more."""

    def __init__(self, connections: ClusterConnections) -> None:
        """Use these connections."""
        self._connections = connections

    def make(self, servers: str, name: str, stream_id: int, segments: int) -> LogTopic:
        """Make the topic of a new stream, and one for its marks; what an earlier attempt has made is used."""
        cluster = self._connections.to(servers).cluster
        topic = topic_of(name, stream_id)
        made = cluster.create_topic(topic, segments, TOPIC_SETTINGS)
        cluster.create_topic(marks_topic_of(topic), 1, TOPIC_SETTINGS)
        return LogTopic(servers, topic, made.id)

    def remove(self, place: LogTopic) -> None:
        """Remove the topics of a stream that is no more."""
        names = [place.topic, marks_topic_of(place.topic)]
        self._connections.to(place.servers).cluster.delete_topics(names)


_LONGEST_STEM: Final = 200
"""Kafka's names have at most 249 characters."""


def topic_of(name: str, stream_id: int) -> str:
    """Return the name of the topic of a stream; its id is in it, since another stream may get the name later.

    >>> topic_of("shop/orders", 42)
    'floodmark.shop.orders-2a'
    """
    return f"floodmark.{name.replace('/', '.')[:_LONGEST_STEM]}-{stream_id:x}"
