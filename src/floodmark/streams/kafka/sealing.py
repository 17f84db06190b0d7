"""Sealing of segments in Kafka: the store records the start, Kafka gives an offset, the store records the end.

Only the stored end is valid. The seal record in Kafka just reserves an offset: a process that takes over an interrupted
seal writes another one, and the first process that stores its offset decides the end.
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
"""Called at named points where a test may stop the process."""


class SegmentSealer:
    """Seals segments, and finishes interrupted seals of other processes."""

    def __init__(self, home: Home, catalog: Catalog, connections: ClusterConnections, failpoint: Failpoint) -> None:
        """Seal segments of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._failpoint = failpoint

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors."""
        connection, topic = self._connections.of(stream)
        while True:
            current = self.finish(stream)
            check_not_sealed(current)
            layout = change(current.layout)
            connection.cluster.grow_topic(topic, len(layout.segments))
            if self._store_start(current, layout, seals=False):
                self._failpoint("seal: begun")
                return self.finish(stream)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal all segments, without successors."""
        while True:
            current = self.finish(stream)
            if current.is_sealed or self._store_start(current, current.layout, seals=True):
                return self.finish(stream)

    def finish(self, stream: StreamInfo) -> StreamInfo:
        """Finish the seal in progress, if any, and return the current state of the stream."""
        while True:
            attempt, segments = self._take_over(stream)
            if attempt is None:
                return self._catalog.refresh(stream)
            self._failpoint("seal: taken")
            connection, topic = self._connections.of(stream)
            count = len(segments)
            headers = [[(SEAL, str(attempt).encode())]] * count
            records = OutgoingRecords(segments, [None] * count, [b""] * count, headers)
            delivery = connection.sender.send(topic, records)
            # If the offset of the seal record is unknown, the current end of the partition serves as well.
            ends = {
                segment: end - delivery.is_known(segment)
                for segment, end in connection.await_delivery(topic, delivery).items()
            }
            self._failpoint("seal: record written")
            sealed = self._store_ends(stream, attempt, ends)
            if sealed is not None:
                return sealed

    def await_sealed(self, stream: StreamInfo, segments: list[int]) -> dict[int, SegmentState]:
        """Return the states of segments once none of them is being sealed."""
        begun = time.monotonic()
        while True:
            with self._home.read() as connection:
                states = read_states(connection, stream, segments)
                if len(states) < len(segments):
                    self._catalog.require(connection, stream)
            if all(state.state != SEALING for state in states.values()):
                return states
            if time.monotonic() - begun > _TAKE_OVER_SECONDS:
                # The process that began the seal may be dead.
                self.finish(stream)
            else:
                time.sleep(_POLL_SECONDS)

    def sweep(self, buckets: Collection[int]) -> None:
        """Finish the interrupted seals of streams in these buckets."""
        in_buckets = select(STREAMS).where(STREAMS.c.bucket.in_(list(buckets)))
        being_sealed = in_buckets.where(STREAMS.c.stream_id.in_(select(SEALINGS.c.stream_id)))
        with self._home.read() as connection:
            streams = [self._catalog.info(row) for row in connection.execute(being_sealed)]
        for stream in streams:
            self.finish(stream)

    def _store_start(self, stream: StreamInfo, layout: Layout, *, seals: bool) -> bool:
        """Store that segments are being sealed; return False if the stream has changed meanwhile."""
        with self._home.write() as connection:
            current = self._catalog.require(connection, stream, lock=True)
            if current.version != stream.version or _current_sealing(connection, stream) is not None:
                return False
            # Attempt numbers include the version, so that a slow process cannot end a later seal.
            first_attempt = current.version * _ATTEMPTS
            values = {"attempt": first_attempt, "layout": to_json(layout.save(), "layout"), "seals": int(seals)}
            connection.execute(insert(SEALINGS).values(stream_id=stream.id, **values))
            for segment in _segments_to_seal(current, layout, seals=seals):
                _set_segment_state(connection, stream, segment, SEALING, 0)
            return True

    def _take_over(self, stream: StreamInfo) -> tuple[int | None, list[int]]:
        """Take over the seal in progress; return the number of this attempt and the segments to seal."""
        with self._home.read() as connection:
            if _current_sealing(connection, stream) is None:
                return None, []
        with self._home.write() as connection:
            current = self._catalog.require(connection, stream, lock=True)
            row = _current_sealing(connection, stream)
            if row is None:
                return None, []
            is_stream = SEALINGS.c.stream_id == stream.id
            connection.execute(update(SEALINGS).where(is_stream).values(attempt=row.attempt + 1))
            segments = _segments_to_seal(current, Layout.load(from_json(row.layout)), seals=bool(row.seals))
            return row.attempt + 1, segments

    def _store_ends(self, stream: StreamInfo, attempt: int, ends: dict[int, int]) -> StreamInfo | None:
        """Store the final ends of segments; return None if another process has taken over."""
        with self._home.write() as connection:
            current = self._catalog.require(connection, stream, lock=True)
            row = _current_sealing(connection, stream)
            if row is None or row.attempt != attempt:
                return None
            for segment, end in sorted(ends.items()):
                _set_segment_state(connection, stream, segment, SEALED, end)
            connection.execute(delete(SEALINGS).where(SEALINGS.c.stream_id == stream.id))
            layout = Layout.load(from_json(row.layout))
            return self._catalog.change_layout(connection, current, layout, is_sealed=bool(row.seals))


def _current_sealing(connection: Connection, stream: StreamInfo) -> Row[Any] | None:
    return connection.execute(select(SEALINGS).where(SEALINGS.c.stream_id == stream.id)).one_or_none()


def _segments_to_seal(current: StreamInfo, layout: Layout, *, seals: bool) -> list[int]:
    return [segment.id for segment in current.layout.current if seals or layout.is_sealed(segment.id)]


def _set_segment_state(connection: Connection, stream: StreamInfo, segment: int, state: int, end: int) -> None:
    is_segment = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.segment == segment)
    connection.execute(update(SEGMENTS).where(*is_segment).values(sealed=state, end_offset=end))
