"""How a transaction is committed: its events, staged in the home until then, go to Kafka in one Kafka transaction.

A process that commits first fences: Kafka lets no older attempt at the same transaction go on. Then it checks whether
such an attempt has completed, and only then writes. So it does not matter which process begins, dies, or is slow.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from floodmark._util.codec import from_json
from floodmark.control import Home
from floodmark.errors import FloodmarkError
from floodmark.kafka import Fenced, KafkaSettings, TransactionalProducer
from floodmark.kafka.errors import await_partitions
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events
from floodmark.streams.kafka.connections import ClusterConnection, ClusterConnections
from floodmark.streams.kafka.records import (
    OPEN,
    TRANSACTION,
    SentRecords,
    forget_sent,
    keys_and_values,
    read_sent,
    read_states,
    transaction_of,
    write_sent,
)
from floodmark.streams.kafka.sealing import Failpoint, SegmentSealer
from floodmark.streams.layout.positions import load_position
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.transactions import find_transaction

TIMEOUT_SECONDS: Final = 60.0
"""After which Kafka gives up a transaction of somebody who has died; until then it hides what came after it."""

_LEARN_SECONDS: Final = 10.0
_VISIBLE_SECONDS: Final = 1.0
_KEPT: Final = 16


class TransactionCommitter:
    """Puts transactions into Kafka."""

    def __init__(
        self, home: Home, catalog: Catalog, connections: ClusterConnections, sealing: SegmentSealer, reached: Failpoint
    ) -> None:
        """Commit those of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._sealing = sealing
        self._reached = reached
        self._producers: OrderedDict[str, _CommitProducer] = OrderedDict()
        self._lock = threading.Lock()

    def commit(self, stream: StreamInfo, writer: str, transaction: str, events: Events) -> dict[int, int]:
        """Put events into Kafka, all or none, and return how far they fill the segments.

        What was put there before under the same transaction is not put there again.
        """
        connection, topic = self._connections.of(stream)
        # One at a time: within this process as among all.
        with self._lock:
            while True:
                try:
                    return self._commit(connection, topic, stream, writer, transaction, events)
                except Fenced:
                    self._drop(stream, writer)
                except FloodmarkError:
                    self._drop(stream, writer)
                    raise

    def _commit(
        self,
        connection: ClusterConnection,
        topic: str,
        stream: StreamInfo,
        writer: str,
        transaction: str,
        events: Events,
    ) -> dict[int, int]:
        producer = self._producer(connection.settings, stream, writer)
        found = self._found(connection, topic, stream, transaction)
        if found:
            return found
        current = self._catalog.newest_known(stream)
        while True:
            producer.begin()
            self._reached("commit: begun")
            ends = producer.send(topic, current, transaction, events)
            lost = [segment for segment, end in ends.items() if end == 0]
            ends.update(connection.cluster.ends(topic, lost, committed=False))
            self._reached("commit: sent")
            with self._home.read() as reading:
                states = read_states(reading, stream, ends)
            if all(state.state == OPEN for state in states.values()) and len(states) == len(ends):
                producer.commit()
                self._reached("commit: committed")
                _await_visible(connection, topic, ends)
                return ends
            # Half of it would lie behind the end of a segment.
            producer.abort()
            self._sealing.sealed(stream, list(ends))
            current = self._catalog.refresh(stream)
            check_not_sealed(current)

    def _found(self, connection: ClusterConnection, topic: str, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Return how far an earlier attempt has filled the segments, if it came to its end; nothing if there was none.

        Before the first attempt it is written down where its records would lie. Whoever has written that the
        transaction is committed has forgotten this: so both are looked up in one step.
        """
        segments = [segment.id for segment in self._catalog.refresh(stream).layout.segments]
        name = f"{TRANSACTION}/{transaction}"
        ends = connection.cluster.ends(topic, segments, committed=False)
        with self._home.write() as writing:
            position = find_transaction(writing, stream, transaction, lock=True).position
            if position is not None:
                return dict(load_position(from_json(position)))
            sent = read_sent(writing, stream, name)
            if sent is None:
                write_sent(writing, stream, name, SentRecords(ends, 0))
                return {}
        found: dict[int, int] = {}
        for segment, end in ends.items():
            start = sent.position.get(segment, 0)
            # A transaction of another writer may still be open and hide what lies behind.
            for records in connection.committed.read(topic, segment, start, end, wait_to=end):
                mine = [record.offset() for record in records if transaction_of(record.headers()) == transaction]
                if mine:
                    found[segment] = mine[-1] + 1
        return found

    def forget(self, writing: Any, stream: StreamInfo, transaction: str) -> None:
        """Forget where the records of a transaction would lie, as part of a transaction of the store."""
        forget_sent(writing, stream, f"{TRANSACTION}/{transaction}")

    def _producer(self, settings: KafkaSettings, stream: StreamInfo, writer: str) -> "_CommitProducer":
        name = _transactional_id(stream, writer)
        known = self._producers.pop(name, None)
        if known is None:
            known = _CommitProducer(settings, name, timeout=TIMEOUT_SECONDS, options={"linger.ms": 1})
        self._producers[name] = known
        if len(self._producers) > _KEPT:
            self._producers.popitem(last=False)
        return known

    def _drop(self, stream: StreamInfo, writer: str) -> None:
        self._producers.pop(_transactional_id(stream, writer), None)


class _CommitProducer(TransactionalProducer):
    """Writes the transactions of one writer."""

    def send(self, topic: str, stream: StreamInfo, transaction: str, events: Events) -> dict[int, int]:
        """Send events where they belong by the layout of the stream, and return the ends when all have arrived.

        An end is 0 if the answer was lost: Kafka then only says that it has had the records before.
        """
        keys, values = keys_and_values(stream, events)
        headers = [(TRANSACTION, transaction.encode())]
        ends: dict[int, int] = {}
        failures: list[KafkaError] = []

        def arrived(error: KafkaError | None, record: Any) -> None:
            if error is None:
                ends[record.partition()] = max(record.offset() + 1, ends.get(record.partition(), 0))
            else:
                failures.append(error)

        segments = events.segments(stream.layout)
        try:
            await_partitions(self.client, topic, int(segments.max()) + 1, _LEARN_SECONDS)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error
        for place in np.argsort(segments, kind="stable").tolist():
            self.put(topic, values[place], keys[place], int(segments[place]), headers, arrived)
        self.flush()
        if failures:
            raise self.failure(failures[0], f"writing to {topic}")
        return ends


def _await_visible(connection: ClusterConnection, topic: str, ends: Mapping[int, int]) -> None:
    """Wait until what was committed can be read: Kafka says so a moment before it is.

    Not for long, though: a transaction of another writer that began before may still be open.
    """
    give_up = time.monotonic() + _VISIBLE_SECONDS
    while time.monotonic() < give_up:
        committed = connection.cluster.ends(topic, ends)
        if all(committed[segment] > end for segment, end in ends.items()):
            return
        time.sleep(0.002)


def _transactional_id(stream: StreamInfo, writer: str) -> str:
    return f"floodmark.{stream.id:x}.{writer}"
