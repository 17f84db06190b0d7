"""Removal of old events from Kafka: `DeleteRecords`, up to starts that are stored in the home first.

A run has four steps, each of which may be repeated. It finds the offsets that are due. It stores which of the records
before them belong to flushes that are not committed, so that a writer that comes back does not write them again. It
raises the starts of segments in the home, from which on no reader reads earlier records. It lets Kafka delete them.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from sqlalchemy import Connection, select

from floodmark._util.codec import from_json
from floodmark._util.retry import LostRace
from floodmark.control import Home
from floodmark.errors import StreamDeleted, UnknownTopic
from floodmark.streams.definition import StreamInfo
from floodmark.streams.kafka.connections import ClusterConnections
from floodmark.streams.kafka.log import KafkaLog
from floodmark.streams.kafka.records import TRANSACTION, SentRecords, author_and_number, read_sent, write_sent
from floodmark.streams.layout.positions import load_position
from floodmark.streams.layout.retention import (
    Claim,
    RetentionDecision,
    RetentionStatus,
    SegmentRange,
    StoredBatch,
    decide_retention,
    head_cut,
)
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.retention import ClaimReader, Failpoint, raise_starts, streams_with_retention
from floodmark.streams.local.tables import SENT, WRITERS

_INTERVAL: Final = 5_000_000
"""How often the events of a stream are looked at, in microseconds."""
_SAMPLE: Final = 100
"""The records at either end of a segment from which the size of its records is estimated."""


class KafkaRetention:
    """Removes old events of streams that are kept in Kafka."""

    def __init__(
        self,
        home: Home,
        catalog: Catalog,
        connections: ClusterConnections,
        log: KafkaLog,
        failpoint: Failpoint = lambda place: None,
    ) -> None:
        """Remove events of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._connections = connections
        self._log = log
        self._failpoint = failpoint
        self._looked_at: dict[int, int] = {}

    def sweep(self, buckets: Collection[int]) -> None:
        """Remove what is due of the streams of these buckets that were not looked at for a while."""
        now = self._home.now()
        for stream in streams_with_retention(self._home, self._catalog, buckets, in_topics=True):
            if not 0 <= now - self._looked_at.get(stream.id, now - _INTERVAL) < _INTERVAL:
                self._looked_at[stream.id] = now
                try:
                    self.remove(stream)
                except StreamDeleted:
                    self._looked_at.pop(stream.id)

    def remove(self, stream: StreamInfo) -> None:
        """Remove what is due of a stream."""
        try:
            due = self._due(stream)
            self._failpoint("retention: due found")
            if any(due.values()):
                self._store_uncommitted(stream, due)
                self._failpoint("retention: uncommitted stored")
                self._raise_starts(stream, due)
                self._failpoint("retention: starts raised")
            self._delete_records(stream)
        except UnknownTopic:
            # Deleted together with its stream.
            self._catalog.refresh(stream)
            raise

    def status(self, stream: StreamInfo) -> RetentionStatus:
        """Return what was removed, what is due, and which readers retention waits for."""
        due, ends, starts = self._due(stream), self._log.ends(stream), self._log.starts(stream)
        with self._home.read() as connection:
            current, decision = self._decide(connection, stream, due, ends, lock=False)
        return RetentionStatus(
            stream.name,
            head_cut(current.layout, starts, ends),
            {number: offset for number, offset in due.items() if offset > starts.get(number, 0)},
            decision.waits_for,
            current.settings.retention,
            current.settings.retention_bytes,
        )

    def _due(self, stream: StreamInfo) -> dict[int, int]:
        """Return the offset of each segment before which retention would remove everything."""
        current = self._catalog.refresh(stream)
        settings = current.settings
        ends, starts = self._log.ends(current), self._log.starts(current)
        left = {number: end for number, end in ends.items() if starts.get(number, 0) < end}
        due = dict.fromkeys(ends, 0)
        connection, topic = self._connections.of(current)
        if settings.retention is not None and left:
            # Timestamps of records are in milliseconds: a record is due once its whole millisecond is.
            oldest_kept = (self._home.now() - settings.retention) // 1_000
            offsets = connection.cluster.offsets_at(topic, left, max(oldest_kept, 0))
            due |= {number: min(offsets[number], end) if number in offsets else end for number, end in left.items()}
        if settings.retention_bytes is not None and left:
            for number, offset in self._due_by_size(current, left, starts, settings.retention_bytes).items():
                due[number] = max(due[number], offset)
        return due

    def _due_by_size(
        self, stream: StreamInfo, ends: Mapping[int, int], starts: Mapping[int, int], keep: int
    ) -> dict[int, int]:
        """Return how far segments are due so that about `keep` bytes are left; the size of records is estimated."""
        connection, topic = self._connections.of(stream)
        sizes: dict[int, float] = {}
        for number, end in ends.items():
            start = starts.get(number, 0)
            count = total = 0
            for low, high in ((start, min(start + _SAMPLE, end)), (max(end - _SAMPLE, start), end)):
                count += high - low
                for records in connection.committed.read(topic, number, low, high, wait_to=high):
                    total += sum(len(record.value() or b"") + len(record.key() or b"") for record in records)
            sizes[number] = max(total / count, 1.0)
        bytes_left = {number: sizes[number] * (end - starts.get(number, 0)) for number, end in ends.items()}
        excess = sum(bytes_left.values()) - keep
        due: dict[int, int] = {}
        # Replaced segments are older than those that replaced them; open ones share what is left to remove.
        for number in sorted(ends):
            if excess > 0 and stream.layout.is_sealed(number):
                removed = min(excess, bytes_left.pop(number))
                excess -= removed
                due[number] = min(starts.get(number, 0) + int(removed / sizes[number]), ends[number])
        rest = sum(bytes_left.values())
        for number, size in bytes_left.items():
            if excess > 0 and not stream.layout.is_sealed(number):
                due[number] = starts.get(number, 0) + int(excess * (size / rest) / sizes[number])
        return due

    def _decide(
        self,
        connection: Connection,
        stream: StreamInfo,
        due: Mapping[int, int],
        ends: Mapping[int, int],
        *,
        lock: bool,
    ) -> tuple[StreamInfo, RetentionDecision]:
        readers = ClaimReader(connection, stream, lock=lock)
        current = self._catalog.require(connection, stream)
        claims = [*readers.claims(current.layout, _padded(current, ends)), *_unfinished_commits(connection, stream)]
        starts = self._log.starts(stream)
        segments = {
            number: SegmentRange(
                starts.get(number, 0), ends[number], _ranges(number, starts.get(number, 0), due[number], claims)
            )
            for number in ends
            if number in due
        }
        # What is due has been found already: each range counts as old enough.
        return current, decide_retention(current.layout, segments, claims, now=0, age=0)

    def _raise_starts(self, stream: StreamInfo, due: Mapping[int, int]) -> None:
        ends = self._log.ends(stream)
        try:
            with self._home.write() as connection:
                _, decision = self._decide(connection, stream, due, ends, lock=True)
                starts = self._log.starts(stream)
                before = {number: starts.get(number, 0) for number in decision.starts}
                raise_starts(connection, stream, before, decision.starts)
                self._failpoint("retention: before the commit")
        except LostRace:
            # Another process removes events of this stream.
            return

    def _store_uncommitted(self, stream: StreamInfo, due: Mapping[int, int]) -> None:
        """Store which records before these offsets belong to flushes that are not committed.

        A writer that is opened again, or reroutes a flush, looks for its records from its stored position on. For each
        writer the position moves behind the records that are to be removed, and their numbers are stored.
        """
        with self._home.read() as connection:
            rows = connection.execute(select(SENT.c.writer, SENT.c.position).where(SENT.c.stream_id == stream.id)).all()
        positions = {
            row.writer: load_position(from_json(row.position))
            for row in rows
            if not row.writer.startswith(f"{TRANSACTION}/")
        }
        starts = self._log.starts(stream)
        kafka, topic = self._connections.of(stream)
        numbers: dict[str, list[int]] = {}
        for segment, end in due.items():
            behind = {writer for writer, position in positions.items() if position.get(segment, 0) < end}
            numbers.update({writer: [] for writer in behind if writer not in numbers})
            first = min((positions[writer].get(segment, 0) for writer in behind), default=end)
            for records in kafka.everything.read(topic, segment, max(first, starts.get(segment, 0)), end):
                for author, number in filter(None, (author_and_number(record.headers()) for record in records)):
                    if author in behind:
                        numbers[author].append(number)
        for writer, found in numbers.items():
            with self._home.write() as connection:
                # Locked as by a flush that is committed, which changes the position too.
                is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
                connection.execute(select(WRITERS.c.writer).where(*is_writer).with_for_update()).all()
                sent = read_sent(connection, stream, writer)
                if sent is not None:
                    position = {**sent.position}
                    position.update({number: max(end, position.get(number, 0)) for number, end in due.items() if end})
                    merged = np.concatenate([sent.numbers_found, np.array(found, np.int64)])
                    write_sent(
                        connection, stream, writer, SentRecords.of(position, sent.first_number, merged, sent.looked_by)
                    )

    def _delete_records(self, stream: StreamInfo) -> None:
        """Let Kafka delete the records before the starts of segments."""
        starts = self._log.starts(stream)
        if starts:
            connection, topic = self._connections.of(stream)
            available = connection.cluster.starts(topic, starts)
            removed = {segment: start for segment, start in starts.items() if available[segment] < start}
            if removed:
                connection.cluster.delete_records(topic, removed)
                self._failpoint("retention: records deleted")


def _padded(stream: StreamInfo, ends: Mapping[int, int]) -> dict[int, int]:
    """Return the ends, with 0 for segments that were added after the ends were read."""
    return {segment.id: ends.get(segment.id, 0) for segment in stream.layout.segments}


def _unfinished_commits(connection: Connection, stream: StreamInfo) -> list[Claim]:
    """Return the commits that are under way: another process may look for their records."""
    is_commit = (SENT.c.stream_id == stream.id, SENT.c.writer.startswith(f"{TRANSACTION}/", autoescape=True))
    return [
        Claim("transaction", row.writer.removeprefix(f"{TRANSACTION}/"), load_position(from_json(row.position)))
        for row in connection.execute(select(SENT.c.writer, SENT.c.position).where(*is_commit))
    ]


def _ranges(segment: int, start: int, due: int, claims: list[Claim]) -> list[StoredBatch]:
    """Return the offsets that are due as ranges that are removed together: between the places of readers."""
    places = {claim.offsets.get(segment, 0) for claim in claims}
    cuts = [start, *sorted(place for place in places if start < place < due), due]
    return [StoredBatch(low, high, 0, 0) for low, high in pairwise(cuts) if low < high]
