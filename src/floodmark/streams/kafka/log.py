"""The log in Kafka, as streams use it, and a flush on its way, which may be rerouted to other segments."""

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
    first_missing,
    forget_sent,
    keys_and_values,
    number_of,
    number_prefix,
    read_sent,
    read_states,
    settle_flush,
    write_sent,
)
from floodmark.streams.kafka.sealing import Failpoint, SegmentSealer
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.log import TableLog
from floodmark.streams.local.transactions import claim_event_numbers, mark_committed, read_staged
from floodmark.streams.ports import Author, Chunk, OpenedWriter

MOST_EVENT_BYTES: Final = 15 * 2**20
"""An event may not be larger."""


class Flush:
    """The way of a flush: what is left of it, where that goes by the layout that is known, and what is in flight."""

    def __init__(self, stream: StreamInfo, events: Events, left: Any) -> None:
        self.stream = stream
        self.events = events
        self.keys, self.values = keys_and_values(stream, events)
        self.left = left
        self.ends: dict[int, int] = {}
        self.flight: Delivery | None = None
        self._segments = events.segments(stream.layout)

    @property
    def is_left(self) -> bool:
        """Whether some of it has not arrived."""
        return bool(self.left.any())

    def records(self, author: Author, first_number: int) -> OutgoingRecords:
        """Return what is left as records, in the order of the events."""
        prefix = number_prefix(author)
        places = np.flatnonzero(self.left)
        keys, values = self.keys, self.values
        if len(places) < len(self.left):
            keys, values = [keys[place] for place in places], [values[place] for place in places]
        headers = ([(NUMBER, prefix + b"%d" % number)] for number in (places + first_number).tolist())
        return OutgoingRecords(self._segments[places].tolist(), keys, values, headers)

    def arrived(self, segment: int, end: int) -> None:
        """Take it that all events for a segment have arrived."""
        self.left &= self._segments != segment
        self.ends[segment] = end

    def arrived_before(self, segment: int, end: int, places: Numbers) -> None:
        """Take it that some events for a segment have arrived, and the others not."""
        places = places[(places >= 0) & (places < len(self.left))]
        self.left[places] = False
        if len(places):
            self.ends[segment] = end

    def layout_of(self, stream: StreamInfo) -> None:
        """Let what is left go where it belongs now."""
        self.stream = stream
        self._segments = self.events.segments(stream.layout)
        self.flight = None


class KafkaLog:
    """Keeps the events of streams in Kafka. What is kept of a stream in the home is who wrote what, and where it ends.

    A flush over several segments is not one step: if its process dies in the middle, some of it may be in the stream.
    Who opens the writer again is told from which event on to go on, and what is there is not written twice.
    """

    def __init__(
        self,
        home: Home,
        catalog: Catalog,
        tables: TableLog,
        connections: ClusterConnections,
        reached: Failpoint = lambda place: None,
    ) -> None:
        """Keep them where the streams say; `tables` keeps the events of transactions until these are committed."""
        self._home = home
        self._catalog = catalog
        self._tables = tables
        self._connections = connections
        self._reached = reached
        self._sealing = SegmentSealer(home, catalog, connections, reached)
        self._committing = TransactionCommitter(home, catalog, connections, self._sealing, reached)
        self._ways: dict[tuple[int, str, int, int], Flush] = {}
        self._id = uuid.uuid4().hex
        self._sure: set[tuple[int, str]] = set()
        """Writers of which this process knows what has become of all that it has sent."""
        self._lock = threading.Lock()

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Keep events, each once, and return how far the segments they went to are filled by them."""
        of_writer = (stream.id, author.writer)
        place = (*of_writer, author.instance, first_number)
        with self._lock:
            way = self._ways.pop(place, None)
            is_sure = of_writer in self._sure
            self._sure.discard(of_writer)
        after = first_number + len(events)
        if way is None:
            if not self._tables.is_next(stream, author, first_number):
                self._tables.check_is_repeat(stream, author, first_number, after)
                return self._tables.ends_for(stream, events, self.ends)
            found = self._sent(stream, author)
            if not is_sure or found.looked_by != self._id:
                found = self._look(stream, author, first_number)
            way = Flush(self._catalog.newest_known(stream), events, ~found.places_found(first_number, len(events)))
        try:
            ends = self._bring(stream, author, first_number, way)
        except KafkaAway:
            with self._lock:
                self._ways[place] = way
            raise
        self._sure.add(of_writer)
        return ends

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included; only what is committed counts.

        A sealed segment ends where the store says, though a transaction may be open before that; to read it is to wait.
        """
        with self._there(stream):
            connection, topic = self._connections.of(stream)
            known = self._catalog.refresh(stream)
            while True:
                segments = [segment.id for segment in known.layout.segments]
                # In this order: what is open after that ends behind it.
                ends = connection.cluster.ends(topic, segments)
                self._reached("ends: seen")
                states = self._sealing.sealed(stream, segments)
                known = self._catalog.refresh(stream)
                if len(known.layout.segments) == len(segments):
                    return {one: end if states[one].state == OPEN else states[one].end for one, end in ends.items()}

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from one offset to before another, as far as they are there."""
        if start >= end:
            return
        with self._there(stream):
            self._catalog.refresh(stream)
            connection, topic = self._connections.of(stream)
            committed = connection.cluster.ends(topic, [segment])[segment]
            state = self._sealing.sealed(stream, [segment])[segment]
            end = min(end, committed if state.state == OPEN else state.end)
            # A transaction that is open may hide what lies before the end of a sealed segment.
            for records in connection.committed.read(topic, segment, start, end, wait_to=end):
                yield from chunks_of(stream, segment, records)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""
        return self._sealing.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""
        return self._sealing.seal(stream)

    def sweep(self, buckets: Collection[int]) -> None:
        """Bring to an end what somebody who may be dead has begun in streams of these buckets."""
        self._sealing.sweep(buckets)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Keep events in the home until their transaction is committed. A part that comes twice is kept once."""
        self._check_sizes(keys_and_values(stream, events)[1])
        self._tables.add(stream, transaction, part, events)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Put all events of a transaction into the stream, or none; return how far they fill the segments."""
        with self._home.write() as writing:
            kept = read_staged(writing, stream, transaction)
        if kept.position is not None:
            return dict(kept.position)
        self._reached("commit: asked")
        ends: dict[int, int] = {}
        if kept.events is not None:
            ends = self._committing.commit(stream, kept.writer, transaction, kept.events)
        with self._home.write() as writing:
            now = read_staged(writing, stream, transaction)
            if now.position is not None:
                return dict(now.position)
            claim_event_numbers(writing, stream, kept.writer, 0 if kept.events is None else len(kept.events))
            mark_committed(writing, stream, transaction, ends)
            self._committing.forget(writing, stream, transaction)
        return ends

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Forget the events of a transaction."""
        self._tables.abort(stream, transaction)

    def opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Return a writer that was opened, with what is in Kafka of it, though it has never heard so."""
        author, number = opened.author, opened.next_number
        self._await_older(stream, author)
        if number or author.instance > 1:
            number = self._resume(stream, author, number)
        else:
            ends = self._all_ends(stream)
            with self._home.write() as writing:
                write_sent(writing, stream, author.writer, SentRecords(ends, 0, looked_by=self._id))
        self._sure.add((stream.id, author.writer))
        return replace(opened, next_number=number)

    def closed(self, stream: StreamInfo, author: Author) -> None:
        """Forget where unsettled events of a writer would lie, if it is certain that it has none."""
        with self._lock:
            is_sure = (stream.id, author.writer) in self._sure
            self._sure.discard((stream.id, author.writer))
        if is_sure and self._sent(stream, author).looked_by == self._id:
            with self._home.write() as writing:
                forget_sent(writing, stream, author.writer)

    @contextmanager
    def _there(self, stream: StreamInfo) -> Iterator[None]:
        """Say of a topic that is gone that its stream is, if it is."""
        try:
            yield
        except UnknownTopic:
            self._catalog.refresh(stream)
            raise

    def _bring(self, stream: StreamInfo, author: Author, first_number: int, way: Flush) -> dict[int, int]:
        """Bring events to where they belong, wherever that is by the time they come there, and settle them."""
        after = first_number + len(way.events)
        connection, topic = self._connections.of(stream)
        while True:
            if way.flight is None:
                self._check_sizes(way.values)
                way.flight = connection.sender.send(topic, way.records(author, first_number))
                self._reached("append: sent")
            ends = connection.arrived(topic, way.flight)
            self._reached("append: acknowledged")
            with self._home.write() as writing:
                states = read_states(writing, stream, ends)
                is_open = len(states) == len(ends) and all(state.state == OPEN for state in states.values())
                if is_open:
                    way.ends.update(ends)
                    now = self._home.now(writing)
                    is_settled = settle_flush(writing, stream, author, (first_number, after), way.ends, now, self._id)
            if not is_open:
                self._go_on(stream, author, first_number, way, ends)
                continue
            if is_settled:
                self._reached("append: settled")
            else:
                self._tables.check_is_repeat(stream, author, first_number, after)
            return way.ends

    def _go_on(self, stream: StreamInfo, author: Author, first_number: int, way: Flush, ends: dict[int, int]) -> None:
        """Find out what of a flight lies before the ends of its segments; the rest goes on to those after them."""
        states = self._sealing.sealed(stream, list(ends))
        with self._home.read() as reading:
            sent = read_sent(reading, stream, author.writer)
        position = {} if sent is None else sent.position
        for segment, end in ends.items():
            if states[segment].state == OPEN:
                way.arrived(segment, end)
                continue
            sealed_at = states[segment].end
            numbers = self._numbers(stream, segment, position.get(segment, 0), sealed_at, author.writer)
            way.arrived_before(segment, sealed_at, numbers - first_number)
        way.layout_of(self._catalog.refresh(stream))
        if way.is_left:
            check_not_sealed(way.stream)

    def _await_older(self, stream: StreamInfo, author: Author) -> None:
        """Wait for what an older instance in this process has under way: else it would come after all was looked at."""
        for place, way in list(self._ways.items()):
            if place[:2] == (stream.id, author.writer):
                if way.flight is not None:
                    connection, topic = self._connections.of(stream)
                    connection.arrived(topic, way.flight)
                self._ways.pop(place, None)

    def _sent(self, stream: StreamInfo, author: Author) -> SentRecords:
        with self._home.read() as reading:
            return read_sent(reading, stream, author.writer) or SentRecords({}, 0)

    def _look(self, stream: StreamInfo, author: Author, first_number: int) -> SentRecords:
        """Find the events of a writer from a number on that are in Kafka, and keep what was found."""
        with self._home.read() as reading:
            sent = read_sent(reading, stream, author.writer)
        ends = self._all_ends(stream)
        if sent is None:
            # It was closed when everything was settled.
            looked = SentRecords(ends, first_number, looked_by=self._id)
        else:
            states = self._sealing.sealed(stream, list(ends))
            numbers: list[Numbers] = []
            for segment, end in ends.items():
                start = sent.position.get(segment, 0)
                stop = end if states[segment].state == OPEN else states[segment].end
                numbers.append(self._numbers(stream, segment, start, stop, author.writer))
            # Some may lie before the position by now.
            found = np.concatenate([*numbers, sent.numbers_found])
            looked = SentRecords.of(sent.position, first_number, found, self._id)
        with self._home.write() as writing:
            write_sent(writing, stream, author.writer, looked)
        return looked

    def _resume(self, stream: StreamInfo, author: Author, next_number: int) -> int:
        """Settle what Kafka has of a writer without a gap; return the first number that it does not have."""
        after = first_missing(self._look(stream, author, next_number).numbers_found, next_number)
        if after > next_number:
            with self._home.write() as writing:
                settle_flush(writing, stream, author, (next_number, after), {}, self._home.now(writing), self._id)
        return after

    def _numbers(self, stream: StreamInfo, segment: int, start: int, end: int, writer: str) -> Numbers:
        """Return the numbers of the events of a writer in a range of a segment."""
        connection, topic = self._connections.of(stream)
        found: list[int] = []
        # What is not in a transaction counts, also behind a transaction that is open.
        for records in connection.everything.read(topic, segment, start, end):
            numbers = (number_of(record.headers(), writer) for record in records)
            found.extend(number for number in numbers if number is not None)
        return np.array(found, np.int64)

    def _all_ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return where Kafka ends, whatever counts."""
        connection, topic = self._connections.of(stream)
        segments = [segment.id for segment in self._catalog.refresh(stream).layout.segments]
        return connection.cluster.ends(topic, segments, committed=False)

    def _check_sizes(self, values: list[bytes]) -> None:
        largest = max(map(len, values), default=0)
        if largest > MOST_EVENT_BYTES:
            raise EventInvalid(
                f"An event has {largest} bytes.",
                rule=f"In Kafka an event has at most {MOST_EVENT_BYTES} bytes.",
                remedy="Keep what is so large elsewhere, and write where it is.",
                bytes=largest,
            )
