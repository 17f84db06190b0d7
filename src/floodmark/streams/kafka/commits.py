"""Commits of transactions: the events staged in the home are written to Kafka in one Kafka transaction.

A committing process first fences earlier attempts at the same transaction, then checks whether one of them has
completed, and only then writes. So any process may start, die or be slow.
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
    delete_sent,
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
"""When Kafka aborts the transaction of a dead process; until then later records stay hidden from readers."""

_METADATA_SECONDS: Final = 10.0
_VISIBLE_SECONDS: Final = 1.0
_MOST_PRODUCERS: Final = 16


class TransactionCommitter:
    """Commits transactions to Kafka."""

    def __init__(
        self, home: Home, catalog: Catalog, connections: ClusterConnections, sealer: SegmentSealer, failpoint: Failpoint
    ) -> None:
        """Commit transactions of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._sealer = sealer
        self._failpoint = failpoint
        self._producers: OrderedDict[str, _CommitProducer] = OrderedDict()
        self._lock = threading.Lock()

    def commit(self, stream: StreamInfo, writer: str, transaction: str, events: Events) -> dict[int, int]:
        """Write all events to Kafka, or none, and return the new ends of their segments.

        Events that an earlier attempt has committed are not written again.
        """
        connection, topic = self._connections.of(stream)
        # One attempt at a time, also within this process.
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
        committed_ends = self._find_committed(connection, topic, stream, transaction)
        if committed_ends:
            return committed_ends
        current = self._catalog.newest_known(stream)
        while True:
            producer.begin()
            self._failpoint("commit: begun")
            ends = producer.send(topic, current, transaction, events)
            unknown = [segment for segment, end in ends.items() if end == 0]
            ends.update(connection.cluster.ends(topic, unknown, committed=False))
            self._failpoint("commit: sent")
            with self._home.read() as reading:
                states = read_states(reading, stream, ends)
            if all(state.state == OPEN for state in states.values()) and len(states) == len(ends):
                producer.commit()
                self._failpoint("commit: committed")
                _await_visible(connection, topic, ends)
                return ends
            # Some records would lie behind the end of a sealed segment.
            producer.abort()
            self._sealer.await_sealed(stream, list(ends))
            current = self._catalog.refresh(stream)
            check_not_sealed(current)

    def _find_committed(
        self, connection: ClusterConnection, topic: str, stream: StreamInfo, transaction: str
    ) -> dict[int, int]:
        """Return the segment ends that an earlier attempt has committed; empty if none has.

        The first attempt stores where its records would begin. The process that stores the commit deletes this, so both
        are read in one transaction.
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
        committed_ends: dict[int, int] = {}
        for segment, end in ends.items():
            start = sent.position.get(segment, 0)
            # An open transaction of another writer may hide records; wait for it.
            for records in connection.committed.read(topic, segment, start, end, wait_to=end):
                offsets = [record.offset() for record in records if transaction_of(record.headers()) == transaction]
                if offsets:
                    committed_ends[segment] = offsets[-1] + 1
        return committed_ends

    def forget(self, writing: Any, stream: StreamInfo, transaction: str) -> None:
        """Delete where the records of a transaction begin, inside a store transaction."""
        delete_sent(writing, stream, f"{TRANSACTION}/{transaction}")

    def _producer(self, settings: KafkaSettings, stream: StreamInfo, writer: str) -> "_CommitProducer":
        name = _transactional_id(stream, writer)
        producer = self._producers.pop(name, None)
        if producer is None:
            producer = _CommitProducer(settings, name, timeout=TIMEOUT_SECONDS, options={"linger.ms": 1})
        self._producers[name] = producer
        if len(self._producers) > _MOST_PRODUCERS:
            self._producers.popitem(last=False)
        return producer

    def _drop(self, stream: StreamInfo, writer: str) -> None:
        self._producers.pop(_transactional_id(stream, writer), None)


class _CommitProducer(TransactionalProducer):
    """Writes the transactions of one writer."""

    def send(self, topic: str, stream: StreamInfo, transaction: str, events: Events) -> dict[int, int]:
        """Send events to their segments, and return the new ends once all are acknowledged.

        An end is 0 if the acknowledgement was lost: Kafka then reports a duplicate without an offset.
        """
        keys, values = keys_and_values(stream, events)
        headers = [(TRANSACTION, transaction.encode())]
        ends: dict[int, int] = {}
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, record: Any) -> None:
            if error is None:
                ends[record.partition()] = max(record.offset() + 1, ends.get(record.partition(), 0))
            else:
                failures.append(error)

        segments = events.segments(stream.layout)
        try:
            await_partitions(self.client, topic, int(segments.max()) + 1, _METADATA_SECONDS)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error
        for index in np.argsort(segments, kind="stable").tolist():
            self.put(topic, values[index], keys[index], int(segments[index]), headers, on_delivery)
        self.flush()
        if failures:
            raise self.failure(failures[0], f"writing to {topic}")
        return ends


def _await_visible(connection: ClusterConnection, topic: str, ends: Mapping[int, int]) -> None:
    """Wait until the commit is visible to readers, which is shortly after Kafka has acknowledged it.

    The wait is short, because an earlier transaction of another writer may still be open.
    """
    give_up = time.monotonic() + _VISIBLE_SECONDS
    while time.monotonic() < give_up:
        committed = connection.cluster.ends(topic, ends)
        if all(committed[segment] > end for segment, end in ends.items()):
            return
        time.sleep(0.002)


def _transactional_id(stream: StreamInfo, writer: str) -> str:
    return f"floodmark.{stream.id:x}.{writer}"
