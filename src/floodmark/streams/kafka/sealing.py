"""How a segment in Kafka is sealed: the store says that it begins, Kafka gives a place, the store says where it ends.

Only the end that the store has counts. A record that ends a segment says no more than "ask the store": a process
that finds a seal half done writes another record, and the first process that returns with a place decides the end.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.control import Home
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.kafka.connections import ClusterConnections, OutgoingRecords
from floodmark.streams.kafka.records import SEAL, SEALED, SEALING, SegmentState, read_states
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.tables import SEALINGS, SEGMENTS, STREAMS

_TAKE_OVER_SECONDS: Final = 1.0
_ATTEMPTS: Final = 1_000_000
_POLL_SECONDS: Final = 0.005

Failpoint = Callable[[str], None]
"""Called where a test may stop the process."""


class SegmentSealer:
    """Seals segments, and brings to an end what others have begun."""

    def __init__(self, home: Home, catalog: Catalog, connections: ClusterConnections, reached: Failpoint) -> None:
        """Seal the segments of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._reached = reached

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""
        connection, topic = self._connections.of(stream)
        while True:
            now = self.finish(stream)
            check_not_sealed(now)
            layout = change(now.layout)
            connection.cluster.grow_topic(topic, len(layout.segments))
            if self._begin(now, layout, seals=False):
                self._reached("seal: begun")
                return self.finish(stream)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal all segments, and let none take their place."""
        while True:
            now = self.finish(stream)
            if now.is_sealed or self._begin(now, now.layout, seals=True):
                return self.finish(stream)

    def finish(self, stream: StreamInfo) -> StreamInfo:
        """Bring a sealing to its end, if one is under way, and return what the stream is then."""
        while True:
            attempt, segments = self._take(stream)
            if attempt is None:
                return self._catalog.refresh(stream)
            self._reached("seal: taken")
            connection, topic = self._connections.of(stream)
            count = len(segments)
            headers = [[(SEAL, str(attempt).encode())]] * count
            records = OutgoingRecords(segments, [None] * count, [b""] * count, headers)
            flight = connection.sender.send(topic, records)
            # Where the partition ends by now is as good as where the record begins: whatever lies before counts.
            ends = {
                segment: end - flight.is_known(segment) for segment, end in connection.arrived(topic, flight).items()
            }
            self._reached("seal: record written")
            done = self._end(stream, attempt, ends)
            if done is not None:
                return done

    def sealed(self, stream: StreamInfo, segments: list[int]) -> dict[int, SegmentState]:
        """Return the states of segments, once none of them is being sealed any more."""
        begun = time.monotonic()
        while True:
            with self._home.read() as connection:
                states = read_states(connection, stream, segments)
                if len(states) < len(segments):
                    self._catalog.require(connection, stream)
            if all(state.state != SEALING for state in states.values()):
                return states
            if time.monotonic() - begun > _TAKE_OVER_SECONDS:
                # Whoever has begun may be dead.
                self.finish(stream)
            else:
                time.sleep(_POLL_SECONDS)

    def sweep(self, buckets: Collection[int]) -> None:
        """Bring to an end what was begun in the streams of these buckets by somebody who may be dead."""
        ours = select(STREAMS).where(STREAMS.c.bucket.in_(list(buckets)))
        begun = ours.where(STREAMS.c.stream_id.in_(select(SEALINGS.c.stream_id)))
        with self._home.read() as connection:
            streams = [self._catalog.info(row) for row in connection.execute(begun)]
        for stream in streams:
            self.finish(stream)

    def _begin(self, stream: StreamInfo, layout: Layout, *, seals: bool) -> bool:
        """Say that segments are being sealed; return whether that was still what it was meant for."""
        with self._home.write() as connection:
            now = self._catalog.require(connection, stream, lock=True)
            if now.version != stream.version or _current_sealing(connection, stream) is not None:
                return False
            # The version tells it from every sealing before: somebody may still be at one of those.
            first = now.version * _ATTEMPTS
            values = {"attempt": first, "layout": to_json(layout.save(), "layout"), "seals": int(seals)}
            connection.execute(insert(SEALINGS).values(stream_id=stream.id, **values))
            for segment in _segments_to_seal(now, layout, seals=seals):
                _set_segment_state(connection, stream, segment, SEALING, 0)
            return True

    def _take(self, stream: StreamInfo) -> tuple[int | None, list[int]]:
        """Take the sealing over that is under way, and return the number of this attempt, and what is to be sealed."""
        with self._home.read() as connection:
            if _current_sealing(connection, stream) is None:
                return None, []
        with self._home.write() as connection:
            now = self._catalog.require(connection, stream, lock=True)
            row = _current_sealing(connection, stream)
            if row is None:
                return None, []
            here = SEALINGS.c.stream_id == stream.id
            connection.execute(update(SEALINGS).where(here).values(attempt=row.attempt + 1))
            going = _segments_to_seal(now, Layout.load(from_json(row.layout)), seals=bool(row.seals))
            return row.attempt + 1, going

    def _end(self, stream: StreamInfo, attempt: int, ends: dict[int, int]) -> StreamInfo | None:
        """Say where segments end, once and for all; None if somebody else has taken over."""
        with self._home.write() as connection:
            now = self._catalog.require(connection, stream, lock=True)
            row = _current_sealing(connection, stream)
            if row is None or row.attempt != attempt:
                return None
            for segment, end in sorted(ends.items()):
                _set_segment_state(connection, stream, segment, SEALED, end)
            connection.execute(delete(SEALINGS).where(SEALINGS.c.stream_id == stream.id))
            layout = Layout.load(from_json(row.layout))
            return self._catalog.change_layout(connection, now, layout, is_sealed=bool(row.seals))


def _current_sealing(connection: Connection, stream: StreamInfo) -> Row[Any] | None:
    return connection.execute(select(SEALINGS).where(SEALINGS.c.stream_id == stream.id)).one_or_none()


def _segments_to_seal(now: StreamInfo, layout: Layout, *, seals: bool) -> list[int]:
    return [segment.id for segment in now.layout.current if seals or layout.is_sealed(segment.id)]


def _set_segment_state(connection: Connection, stream: StreamInfo, segment: int, state: int, end: int) -> None:
    here = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.segment == segment)
    connection.execute(update(SEGMENTS).where(*here).values(sealed=state, end_offset=end))
