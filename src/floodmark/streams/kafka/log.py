"""The event log in Kafka, and flushes in progress, which may be rerouted to other segments."""

import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np

from floodmark.control import Home
from floodmark.errors import EventInvalid, KafkaAway, UnknownTopic
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events
from floodmark.streams.kafka.commits import TransactionCommitter
from floodmark.streams.kafka.connections import ClusterConnections, Delivery, OutgoingRecords
from floodmark.streams.kafka.records import (
    NUMBER,
    OPEN,
    Numbers,
    SentRecords,
    chunks_of,
    commit_flush,
    delete_sent,
    first_missing,
    keys_and_values,
    number_of,
    number_prefix,
    read_sent,
    read_states,
    write_sent,
)
from floodmark.streams.kafka.sealing import Failpoint, SegmentSealer
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.log import TableLog
from floodmark.streams.local.transactions import claim_event_numbers, mark_committed, read_staged
from floodmark.streams.ports import Author, Chunk, OpenedWriter

MOST_EVENT_BYTES: Final = 15 * 2**20
"""The largest event, in bytes."""


class Flush:
    """A flush in progress: the events that have not arrived, their segments by the current layout, and the delivery."""

    def __init__(self, stream: StreamInfo, events: Events, left: Any) -> None:
        self.stream = stream
        self.events = events
        self.keys, self.values = keys_and_values(stream, events)
        self.left = left
        self.ends: dict[int, int] = {}
        self.delivery: Delivery | None = None
        self._segments = events.segments(stream.layout)

    @property
    def is_left(self) -> bool:
        """Whether some events have not arrived."""
        return bool(self.left.any())

    def records(self, author: Author, first_number: int) -> OutgoingRecords:
        """Return the remaining events as records, in order."""
        prefix = number_prefix(author)
        indexes = np.flatnonzero(self.left)
        keys, values = self.keys, self.values
        if len(indexes) < len(self.left):
            keys, values = [keys[index] for index in indexes], [values[index] for index in indexes]
        headers = ([(NUMBER, prefix + b"%d" % number)] for number in (indexes + first_number).tolist())
        return OutgoingRecords(self._segments[indexes].tolist(), keys, values, headers)

    def arrived(self, segment: int, end: int) -> None:
        """Record that all events for a segment have arrived."""
        self.left &= self._segments != segment
        self.ends[segment] = end

    def arrived_partly(self, segment: int, end: int, indexes: Numbers) -> None:
        """Record that only the events at `indexes` have arrived in a segment, which is sealed."""
        indexes = indexes[(indexes >= 0) & (indexes < len(self.left))]
        self.left[indexes] = False
        if len(indexes):
            self.ends[segment] = end

    def reroute(self, stream: StreamInfo) -> None:
        """Route the remaining events by the layout of `stream`."""
        self.stream = stream
        self._segments = self.events.segments(stream.layout)
        self.delivery = None


class KafkaLog:
    """Stores the events of streams in Kafka. The home stores the event numbers of writers and the ends of segments.

    A flush over several segments is not atomic: if its process dies, some of its events may be in the stream. When the
    writer is opened again it gets the number of the first missing event, and no event is written twice.
    """

    def __init__(
        self,
        home: Home,
        catalog: Catalog,
        tables: TableLog,
        connections: ClusterConnections,
        failpoint: Failpoint = lambda place: None,
    ) -> None:
        """Store events in the topics of the streams; `tables` stages the events of transactions."""
        self._home = home
        self._catalog = catalog
        self._tables = tables
        self._connections = connections
        self._failpoint = failpoint
        self._sealer = SegmentSealer(home, catalog, connections, failpoint)
        self._committer = TransactionCommitter(home, catalog, connections, self._sealer, failpoint)
        self._pending_flushes: dict[tuple[int, str, int, int], Flush] = {}
        self._id = uuid.uuid4().hex
        self._certain_writers: set[tuple[int, str]] = set()
        """Writers whose sent records all have a known outcome in this process."""
        self._lock = threading.Lock()

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Append events, each once, and return the new ends of their segments."""
        writer_key = (stream.id, author.writer)
        flush_key = (*writer_key, author.instance, first_number)
        with self._lock:
            flush = self._pending_flushes.pop(flush_key, None)
            is_certain = writer_key in self._certain_writers
            self._certain_writers.discard(writer_key)
        after = first_number + len(events)
        if flush is None:
            if not self._tables.is_next(stream, author, first_number):
                self._tables.check_is_repeat(stream, author, first_number, after)
                return self._tables.ends_for(stream, events, self.ends)
            sent = self._read_sent(stream, author)
            if not is_certain or sent.looked_by != self._id:
                sent = self._scan_kafka(stream, author, first_number)
            flush = Flush(self._catalog.newest_known(stream), events, ~sent.places_found(first_number, len(events)))
        try:
            ends = self._deliver(stream, author, first_number, flush)
        except KafkaAway:
            with self._lock:
                self._pending_flushes[flush_key] = flush
            raise
        self._certain_writers.add(writer_key)
        return ends

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the committed end of each segment, sealed ones included.

        A sealed segment has its stored end, even if a transaction before it is still open; readers wait for it.
        """
        with self._check_deleted(stream):
            connection, topic = self._connections.of(stream)
            current = self._catalog.refresh(stream)
            while True:
                segments = [segment.id for segment in current.layout.segments]
                # Read Kafka first, then the states: a segment that is still open then ends behind these offsets.
                ends = connection.cluster.ends(topic, segments)
                self._failpoint("ends: seen")
                states = self._sealer.await_sealed(stream, segments)
                current = self._catalog.refresh(stream)
                if len(current.layout.segments) == len(segments):
                    return {
                        segment: end if states[segment].state == OPEN else states[segment].end
                        for segment, end in ends.items()
                    }

    def starts(self, stream: StreamInfo) -> dict[int, int]:
        """Return the start of each segment from which retention has removed events."""
        return self._tables.starts(stream)

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment in a range of offsets."""
        start = max(start, self.starts(stream).get(segment, 0))
        if start >= end:
            return
        with self._check_deleted(stream):
            connection, topic = self._connections.of(stream)
            committed = connection.cluster.ends(topic, [segment])[segment]
            # Read the definition after the end: events before it have no columns that this definition lacks.
            stream = self._catalog.refresh(stream)
            state = self._sealer.await_sealed(stream, [segment])[segment]
            end = min(end, committed if state.state == OPEN else state.end)
            # An open transaction may hide records before the end of a sealed segment; wait for it.
            for records in connection.committed.read(topic, segment, start, end, wait_to=end):
                yield from chunks_of(stream, segment, records)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors."""
        return self._sealer.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream."""
        return self._sealer.seal(stream)

    def sweep(self, buckets: Collection[int]) -> None:
        """Finish the interrupted seals of streams in these buckets."""
        self._sealer.sweep(buckets)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Stage events in the home until their transaction is committed. Idempotent for each part."""
        self._check_sizes(keys_and_values(stream, events)[1])
        self._tables.add(stream, transaction, part, events)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Append all events of a transaction, or none; return the new ends of their segments."""
        with self._home.write() as writing:
            # A cached definition may lack columns of the staged events.
            staged = read_staged(writing, self._catalog.require(writing, stream), transaction)
        if staged.position is not None:
            return dict(staged.position)
        self._failpoint("commit: asked")
        ends: dict[int, int] = {}
        if staged.events is not None:
            ends = self._committer.commit(stream, staged.writer, transaction, staged.events)
        with self._home.write() as writing:
            current = read_staged(writing, stream, transaction)
            if current.position is not None:
                return dict(current.position)
            claim_event_numbers(writing, stream, staged.writer, 0 if staged.events is None else len(staged.events))
            mark_committed(writing, self._catalog, stream, transaction, staged.writer, ends)
            self._committer.forget(writing, stream, transaction)
        return ends

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Delete the staged events of a transaction."""
        self._tables.abort(stream, transaction)

    def writer_opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Return the writer with the number of its first event that is not in Kafka."""
        author, number = opened.author, opened.next_number
        self._await_earlier_instance(stream, author)
        if number or author.instance > 1:
            number = self._resume(stream, author, number)
        else:
            ends = self._uncommitted_ends(stream)
            with self._home.write() as writing:
                write_sent(writing, stream, author.writer, SentRecords(ends, 0, looked_by=self._id))
        self._certain_writers.add((stream.id, author.writer))
        return replace(opened, next_number=number)

    def writer_closed(self, stream: StreamInfo, author: Author) -> None:
        """Delete the writer's sent records, if it certainly has no uncommitted events."""
        with self._lock:
            is_certain = (stream.id, author.writer) in self._certain_writers
            self._certain_writers.discard((stream.id, author.writer))
        if is_certain and self._read_sent(stream, author).looked_by == self._id:
            with self._home.write() as writing:
                delete_sent(writing, stream, author.writer)

    @contextmanager
    def _check_deleted(self, stream: StreamInfo) -> Iterator[None]:
        """Turn an unknown topic into `StreamDeleted`, if the stream was deleted."""
        try:
            yield
        except UnknownTopic:
            self._catalog.refresh(stream)
            raise

    def _deliver(self, stream: StreamInfo, author: Author, first_number: int, flush: Flush) -> dict[int, int]:
        """Send the events of a flush, rerouting them if segments are sealed meanwhile, and commit them in the store."""
        after = first_number + len(flush.events)
        connection, topic = self._connections.of(stream)
        while True:
            if flush.delivery is None:
                self._check_sizes(flush.values)
                flush.delivery = connection.sender.send(topic, flush.records(author, first_number))
                self._failpoint("append: sent")
            ends = connection.await_delivery(topic, flush.delivery)
            self._failpoint("append: acknowledged")
            with self._home.write() as writing:
                states = read_states(writing, stream, ends)
                is_open = len(states) == len(ends) and all(state.state == OPEN for state in states.values())
                if is_open:
                    flush.ends.update(ends)
                    now = self._home.now(writing)
                    is_settled = commit_flush(writing, stream, author, (first_number, after), flush.ends, now, self._id)
            if not is_open:
                self._reroute(stream, author, first_number, flush, ends)
                continue
            if is_settled:
                self._failpoint("append: settled")
            else:
                self._tables.check_is_repeat(stream, author, first_number, after)
            return flush.ends

    def _reroute(
        self, stream: StreamInfo, author: Author, first_number: int, flush: Flush, ends: dict[int, int]
    ) -> None:
        """Find the events that arrived before their segments were sealed, and route the others to the successors."""
        states = self._sealer.await_sealed(stream, list(ends))
        with self._home.read() as reading:
            sent = read_sent(reading, stream, author.writer)
        position = {} if sent is None else sent.position
        if sent is not None:
            # Records that retention may have removed meanwhile.
            flush.left &= ~sent.places_found(first_number, len(flush.left))
        for segment, end in ends.items():
            if states[segment].state == OPEN:
                flush.arrived(segment, end)
                continue
            sealed_at = states[segment].end
            numbers = self._read_numbers(stream, segment, position.get(segment, 0), sealed_at, author.writer)
            flush.arrived_partly(segment, sealed_at, numbers - first_number)
        flush.reroute(self._catalog.refresh(stream))
        if flush.is_left:
            check_not_sealed(flush.stream)

    def _await_earlier_instance(self, stream: StreamInfo, author: Author) -> None:
        """Wait for pending flushes of an earlier instance in this process, so that a scan sees their records."""
        for flush_key, flush in list(self._pending_flushes.items()):
            if flush_key[:2] == (stream.id, author.writer):
                if flush.delivery is not None:
                    connection, topic = self._connections.of(stream)
                    connection.await_delivery(topic, flush.delivery)
                self._pending_flushes.pop(flush_key, None)

    def _read_sent(self, stream: StreamInfo, author: Author) -> SentRecords:
        with self._home.read() as reading:
            return read_sent(reading, stream, author.writer) or SentRecords({}, 0)

    def _scan_kafka(self, stream: StreamInfo, author: Author, first_number: int) -> SentRecords:
        """Scan Kafka for the uncommitted events of a writer from a number on, and store the result."""
        with self._home.read() as reading:
            sent = read_sent(reading, stream, author.writer)
        ends = self._uncommitted_ends(stream)
        if sent is None:
            # The writer was closed with all events committed.
            scanned = SentRecords(ends, first_number, looked_by=self._id)
        else:
            states = self._sealer.await_sealed(stream, list(ends))
            numbers: list[Numbers] = []
            for segment, end in ends.items():
                start = sent.position.get(segment, 0)
                stop = end if states[segment].state == OPEN else states[segment].end
                numbers.append(self._read_numbers(stream, segment, start, stop, author.writer))
            # Events found by an earlier scan may now lie before the position.
            found = np.concatenate([*numbers, sent.numbers_found])
            scanned = SentRecords.of(sent.position, first_number, found, self._id)
        with self._home.write() as writing:
            write_sent(writing, stream, author.writer, scanned)
        return scanned

    def _resume(self, stream: StreamInfo, author: Author, next_number: int) -> int:
        """Commit the writer's events that are in Kafka without a gap; return the first missing number."""
        after = first_missing(self._scan_kafka(stream, author, next_number).numbers_found, next_number)
        if after > next_number:
            with self._home.write() as writing:
                commit_flush(writing, stream, author, (next_number, after), {}, self._home.now(writing), self._id)
        return after

    def _read_numbers(self, stream: StreamInfo, segment: int, start: int, end: int, writer: str) -> Numbers:
        """Return the event numbers of a writer in a range of a segment."""
        connection, topic = self._connections.of(stream)
        event_numbers: list[int] = []
        # Records outside of transactions are valid even behind an open transaction.
        for records in connection.everything.read(topic, segment, start, end):
            numbers = (number_of(record.headers(), writer) for record in records)
            event_numbers.extend(number for number in numbers if number is not None)
        return np.array(event_numbers, np.int64)

    def _uncommitted_ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each partition, uncommitted records included."""
        connection, topic = self._connections.of(stream)
        segments = [segment.id for segment in self._catalog.refresh(stream).layout.segments]
        return connection.cluster.ends(topic, segments, committed=False)

    def _check_sizes(self, values: list[bytes]) -> None:
        largest = max(map(len, values), default=0)
        if largest > MOST_EVENT_BYTES:
            raise EventInvalid(
                f"An event has {largest} bytes.",
                rule=f"An event in Kafka has at most {MOST_EVENT_BYTES} bytes.",
                remedy="Store large payloads elsewhere, and write a reference to them.",
                bytes=largest,
            )
