"""The marks topic of a stream: its marks log, published for readers of Kafka.

The log in the store is authoritative; the topic is a copy. A publisher first fences earlier ones, then reads the topic
and appends the missing entries.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import select

from floodmark.control import Home
from floodmark.errors import FloodmarkError, KafkaFailed
from floodmark.kafka import Fenced, MarkRecord, TransactionalProducer, marks_topic_of
from floodmark.streams.definition import StreamInfo
from floodmark.streams.kafka.connections import ClusterConnection, ClusterConnections
from floodmark.streams.layout.positions import expand_cut
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.tables import KEYS, SEGMENTS, STREAMS
from floodmark.streams.marks.log import MarkEntry
from floodmark.streams.ports import StreamKey

_PAGE: Final = 500
_TAIL: Final = 1_000
_MOST_PUBLISHERS: Final = 64
_TRIM_INTERVAL: Final = 5_000_000
"""How often old records are deleted, in microseconds."""


class MarksPublisher:
    """Publishes the marks of streams. The process that updates the watermarks of a stream also publishes its marks."""

    def __init__(self, home: Home, catalog: Catalog, connections: ClusterConnections) -> None:
        """Publish marks of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._publishers: dict[int, _TopicPublisher] = {}
        self._published: dict[StreamKey, int] = {}
        self._trimmed_at: int | None = None
        self._trimmed_to: dict[int, dict[str, int]] = {}

    def publish(self, buckets: Collection[int]) -> int:
        """Publish the new entries of streams in these buckets and return their number."""
        count = 0
        for row in self._unpublished(buckets):
            stream = self._catalog.find_id(row.stream_id)
            if stream is not None:
                count += self._publish(stream, row.time_key)
        return count

    def trim(self, buckets: Collection[int]) -> None:
        """Delete records whose entries the stream's `marks_retention` has deleted, for streams in these buckets."""
        now = self._home.now()
        if self._trimmed_at is not None and 0 <= now - self._trimmed_at < _TRIM_INTERVAL:
            return
        self._trimmed_at = now
        in_kafka = select(STREAMS).where(STREAMS.c.log.is_not(None), STREAMS.c.bucket.in_(list(buckets)))
        with self._home.read() as connection:
            streams = [self._catalog.info(row) for row in connection.execute(in_kafka)]
        for stream in streams:
            if stream.settings.marks_retention is not None:
                self._trim(stream)

    def _trim(self, stream: StreamInfo) -> None:
        """Delete the records before the first one whose entry is still stored."""
        keys = stream.settings.keys
        firsts = {key: MarksTable(self._home, stream.id, key).numbers().start for key in keys}
        if firsts == self._trimmed_to.get(stream.id):
            return
        connection, log_topic = self._connections.of(stream)
        topic = marks_topic_of(log_topic)
        (begin,), (end,) = connection.cluster.starts(topic, [0]).values(), connection.cluster.ends(topic, [0]).values()
        kept = end
        for records in connection.committed.read(topic, 0, begin, end):
            marks = [(record.offset(), MarkRecord.load(record.value())) for record in records]
            needed = [offset for offset, mark in marks if mark.key in firsts and mark.seq >= firsts[mark.key]]
            if needed:
                kept = needed[0]
                break
        if kept > begin:
            connection.cluster.delete_records(topic, {0: kept})
        self._trimmed_to[stream.id] = firsts

    def _unpublished(self, buckets: Collection[int]) -> list[Any]:
        query = (
            select(KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.last_seq)
            .join(STREAMS, STREAMS.c.stream_id == KEYS.c.stream_id)
            .where(STREAMS.c.log.is_not(None), STREAMS.c.bucket.in_(list(buckets)), KEYS.c.last_seq > 0)
        )
        with self._home.read() as connection:
            rows = connection.execute(query).all()
        return [row for row in rows if self._published.get((row.stream_id, row.time_key), 0) < row.last_seq]

    def _publish(self, stream: StreamInfo, key: str) -> int:
        connection, topic = self._connections.of(stream)
        publisher = self._publishers.get(stream.id)
        try:
            if publisher is None:
                if len(self._publishers) >= _MOST_PUBLISHERS:
                    self._publishers.clear()
                publisher = self._publishers[stream.id] = _TopicPublisher(connection, marks_topic_of(topic), stream)
            entries = MarksTable(self._home, stream.id, key).page(publisher.last(key), _PAGE)
            if entries:
                current = self._catalog.refresh(stream)
                ends = self._segment_ends(stream)
                publisher.publish([_record(current, key, entry, ends) for entry in entries])
        except Fenced:
            # Another process has taken over; should this one get the stream back, it creates a new publisher.
            self._publishers.pop(stream.id, None)
            return 0
        except FloodmarkError:
            self._publishers.pop(stream.id, None)
            raise
        self._published[stream.id, key] = publisher.last(key)
        return len(entries)

    def _segment_ends(self, stream: StreamInfo) -> Mapping[int, int]:
        is_stream = SEGMENTS.c.stream_id == stream.id
        with self._home.read() as connection:
            rows = connection.execute(select(SEGMENTS.c.segment, SEGMENTS.c.end_offset).where(is_stream)).all()
        return {row.segment: row.end_offset for row in rows}


def _record(stream: StreamInfo, key: str, entry: MarkEntry, ends: Mapping[int, int]) -> MarkRecord:
    cut = expand_cut(stream.layout, entry.cut, ends)
    return MarkRecord(
        key, entry.seq, entry.kind.value, entry.lower, entry.upper, stream.settings.unit, entry.writers, cut
    )


class _TopicPublisher:
    """The exclusive writer of a marks topic."""

    def __init__(self, connection: ClusterConnection, topic: str, stream: StreamInfo) -> None:
        self._connection = connection
        self._cluster = connection.cluster
        self._topic = topic
        name = f"floodmark.marks.{stream.id:x}"
        self._producer = TransactionalProducer(connection.settings, name, options={"linger.ms": 0})
        self._last = self._read_last(stream.settings.keys)

    def last(self, key: str) -> int:
        """Return the number of the last published entry of a key."""
        return self._last.get(key, 0)

    def publish(self, records: list[MarkRecord]) -> None:
        """Write records in one transaction."""
        self._producer.begin()
        for record in records:
            self._producer.put(self._topic, record.save(), record.key.encode(), 0)
        self._producer.commit()
        self._last.update({record.key: record.seq for record in records})

    def _read_last(self, keys: Collection[str]) -> dict[str, int]:
        """Return the last number of each key, from the newest records or else from the whole topic."""
        begin, end = (offsets(self._topic, [0])[0] for offsets in (self._cluster.starts, self._cluster.ends))
        last: dict[str, int] = {}
        for start in (max(begin, end - _TAIL), begin):
            for records in self._connection.committed.read(self._topic, 0, start, end):
                for record in records:
                    if record.value() is None:
                        raise KafkaFailed(
                            f"The topic {self._topic!r} has a record without a value.",
                            rule="Only Floodmark writes to a marks topic.",
                            remedy=f"Revoke write access to {self._topic!r} from other programs, and delete the "
                            "stream and its topics.",
                        )
                    mark = MarkRecord.load(record.value())
                    last[mark.key] = max(mark.seq, last.get(mark.key, 0))
            if start == begin or last.keys() >= set(keys):
                break
        return last
