"""Connections to clusters, kept as long as a home is open."""

import threading
from collections.abc import Mapping
from typing import Final

from floodmark.errors import TopicRecreated
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.kafka.settings import MAX_RECORD_BYTES
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._log_place import LogPlace
from floodmark.streams.kafka_log._sending import UNKNOWN, Flight, Sender

TOPIC_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(MAX_RECORD_BYTES),
}
"""A stream keeps its events; what it has acknowledged is not given up for the sake of a quick restart."""


_PATIENCE_SECONDS: Final = 30.0


class Connection:
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

    def arrived(self, topic: str, flight: Flight) -> dict[int, int]:
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


class Connections:
    """The clusters of a home's streams, by their brokers. `options` are the `kafka.` ones of all of them."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Connect when it is needed."""
        self._options = dict(options or {})
        self._known: dict[str, Connection] = {}
        self._topics: set[LogPlace] = set()
        self._lock = threading.Lock()

    def to(self, servers: str) -> Connection:
        """Return the connection to a cluster."""
        with self._lock:
            if servers not in self._known:
                self._known[servers] = Connection(KafkaSettings.of(servers, self._options))
            return self._known[servers]

    def of(self, stream: StreamInfo) -> tuple[Connection, str]:
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
