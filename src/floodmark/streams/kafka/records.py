"""Records of events with their headers, and the store's knowledge of the records of each writer.

A flush is committed in the store after Kafka has acknowledged its records; after a crash, records that were not
committed are found again in Kafka. The order makes this safe: the state of the segments is read in a transaction that
begins after the acknowledgement, so a segment that is still open can only be sealed behind these records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, select

from floodmark._util.codec import from_json, to_json
from floodmark.control.store.base import upsert_row
from floodmark.errors import ValueUndecodable
from floodmark.kafka import Records
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.kafka.codecs.json_encoder import encode_json
from floodmark.streams.definition import StreamInfo
from floodmark.streams.events import PAYLOAD_SCHEMA, Events
from floodmark.streams.layout.positions import Position, load_position, save_position
from floodmark.streams.local.log import ADVANCE_NEXT_NUMBER
from floodmark.streams.local.tables import SEGMENTS, SENT
from floodmark.streams.ports import Author, Chunk

NUMBER: Final = "floodmark.number"
"""Header with the writer, its instance, and the writer's number of the event."""
TRANSACTION: Final = "floodmark.transaction"
"""Header with the id of the event's transaction."""
SEAL: Final = "floodmark.seal"
"""Header of a seal record, which is not an event."""

Header = tuple[str, bytes]


def number_prefix(author: Author) -> bytes:
    """Return the part of the header `NUMBER` before the event number."""
    return f"{author.writer}/{author.instance}/".encode()


def number_of(headers: Sequence[Header] | None, writer: str) -> int | None:
    """Return the event number of a record, or None if another writer wrote it.

    >>> number_of([("floodmark.number", b"till/3/1/42")], "till/3")
    42
    """
    found = author_and_number(headers)
    return found[1] if found is not None and found[0] == writer else None


def author_and_number(headers: Sequence[Header] | None) -> tuple[str, int] | None:
    """Return the writer of a record and its event number; None for a record of a transaction or a seal.

    >>> author_and_number([("floodmark.number", b"till/3/1/42")])
    ('till/3', 42)
    """
    for name, value in headers or ():
        if name == NUMBER:
            author, _, number = value.rsplit(b"/", 2)
            return author.decode(), int(number)
    return None


def transaction_of(headers: Sequence[Header] | None) -> str | None:
    """Return the id of the Floodmark transaction of a record, or None."""
    for name, value in headers or ():
        if name == TRANSACTION:
            return value.decode()
    return None


def is_seal(headers: Sequence[Header] | None) -> bool:
    """Return whether a record is a seal record."""
    return any(name == SEAL for name, _ in headers or ())


def keys_and_values(stream: StreamInfo, events: Events) -> tuple[list[bytes | None], list[bytes]]:
    """Return the keys and values of records: raw payloads without a schema, otherwise JSON."""
    if stream.settings.schema is None:
        return events.batch.column("key").to_pylist(), events.batch.column("payload").to_pylist()
    return [None] * len(events), encode_json(events.batch)


def chunks_of(stream: StreamInfo, segment: int, records: Records) -> Iterator[Chunk]:
    """Return records as chunks of adjacent offsets; Kafka's control records leave gaps between them."""
    # Seal records are empty: check only the headers of empty records, because reading headers is slow.
    events = [record for record in records if record.value() or not is_seal(record.headers())]
    if not events:
        return
    offsets = np.fromiter((record.offset() for record in events), np.int64, len(events))
    batch = _batch_of(stream, segment, events)
    starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        yield Chunk(segment, int(offsets[start]), batch.slice(start, end - start))


def _batch_of(stream: StreamInfo, segment: int, events: Records) -> Any:
    values = [record.value() for record in events]
    schema = stream.settings.schema
    if schema is None:
        keys = pa.array([record.key() for record in events], pa.binary())
        # Only other programs write records without a value.
        return pa.record_batch([keys, pa.array([value or b"" for value in values], pa.binary())], schema=PAYLOAD_SCHEMA)
    decoded = JsonDecoder(schema).decode(values)
    bad = [(problem.index, problem.reason) for problem in decoded.bad]
    bad += [(index, "it has no value") for index, value in enumerate(values) if value is None]
    if bad:
        index, reason = min(bad)
        raise ValueUndecodable(
            f"The record at offset {events[index].offset()} of segment {segment} of {stream.name!r} is not an event: "
            f"{reason}.",
            rule="The topic of a stream with a schema holds only JSON values of that schema.",
            remedy="Revoke write access to the topic from other programs; write events only through writers of the "
            "stream.",
            place=events[index].offset(),
            reason=reason,
        )
    return pa.RecordBatch.from_arrays(decoded.batch.columns, schema=schema)


OPEN: Final = 0
SEALED: Final = 1
SEALING: Final = 2

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The stored state of a segment, and its end once it is sealed."""

    state: int
    end: int


@dataclass(frozen=True, slots=True)
class SentRecords:
    """The stored knowledge of a writer's records: uncommitted ones lie after `position`, and some were found there.

    A segment that is missing in the position was created later and is scanned from its beginning.
    """

    position: Position
    first_number: int
    found: bytes = b""
    """A bit for each event from `first_number` on: whether it is in Kafka although the flush was not committed."""
    looked_by: str = ""
    """The process that scanned or committed last; it knows what it has sent since."""

    @classmethod
    def of(cls, position: Position, first_number: int, found: Numbers, looked_by: str) -> "SentRecords":
        """Create it with the found numbers from `first_number` on."""
        return cls(position, first_number, pack_numbers(found[found >= first_number].tolist(), first_number), looked_by)

    @property
    def numbers_found(self) -> Numbers:
        """The numbers of the found events.

        >>> SentRecords({}, 10, pack_numbers([10, 12], 10)).numbers_found.tolist()
        [10, 12]
        """
        bits = np.unpackbits(np.frombuffer(self.found, np.uint8))
        return np.flatnonzero(bits).astype(np.int64) + self.first_number

    def places_found(self, first_number: int, count: int) -> NDArray[np.bool_]:
        """Return for each of `count` events from a number on whether it was found.

        >>> SentRecords({}, 10, pack_numbers([10, 12], 10)).places_found(10, 4).tolist()
        [True, False, True, False]
        >>> SentRecords({}, 10, pack_numbers([10, 12], 10)).places_found(11, 1).tolist()
        [False]
        """
        found = np.zeros(count, np.bool_)
        if self.found and self.first_number == first_number:
            bits = np.unpackbits(np.frombuffer(self.found, np.uint8))[:count].astype(np.bool_)
            found[: len(bits)] = bits
        return found


def pack_numbers(numbers: Iterable[int], first_number: int) -> bytes:
    """Encode numbers as bits, counted from `first_number`."""
    indexes = np.fromiter(numbers, np.int64) - first_number
    if not len(indexes):
        return b""
    bits = np.zeros(int(indexes.max()) + 1, np.uint8)
    bits[indexes] = 1
    return np.packbits(bits).tobytes()


def first_missing(found: Numbers, next_number: int) -> int:
    """Return the first number from `next_number` on that was not found.

    >>> first_missing(np.array([5, 6, 8]), 5), first_missing(np.array([6]), 5)
    (7, 5)
    """
    ahead = np.unique(found[found >= next_number])
    gaps = np.flatnonzero(ahead != np.arange(next_number, next_number + len(ahead)))
    return next_number + (len(ahead) if not len(gaps) else int(gaps[0]))


def read_states(connection: Connection, stream: StreamInfo, segments: Iterable[int]) -> dict[int, SegmentState]:
    """Return the stored states of segments."""
    is_segment = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.segment.in_(list(segments)))
    query = select(SEGMENTS.c.segment, SEGMENTS.c.sealed, SEGMENTS.c.end_offset).where(*is_segment)
    return {row.segment: SegmentState(row.sealed, row.end_offset) for row in connection.execute(query).all()}


def read_sent(connection: Connection, stream: StreamInfo, writer: str) -> SentRecords | None:
    """Load the sent records of a writer."""
    row = connection.execute(select(SENT).where(*_of_writer(stream, writer))).one_or_none()
    if row is None:
        return None
    return SentRecords(load_position(from_json(row.position)), row.first_number, bytes(row.found), row.looked_by)


def write_sent(connection: Connection, stream: StreamInfo, writer: str, sent: SentRecords) -> None:
    """Store the sent records of a writer."""
    position = to_json(save_position(sent.position), "position")
    row: dict[str, Any] = {"stream_id": stream.id, "writer": writer, "position": position}
    upsert_row(
        connection, SENT, {**row, "first_number": sent.first_number, "found": sent.found, "looked_by": sent.looked_by}
    )


def delete_sent(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Delete the sent records of a writer, once all are committed."""
    connection.execute(delete(SENT).where(*_of_writer(stream, writer)))


def commit_flush(
    connection: Connection,
    stream: StreamInfo,
    author: Author,
    numbers: tuple[int, int],
    ends: Mapping[int, int],
    now: int,
    looked_by: str,
) -> bool:
    """Commit a range of event numbers, if they are the next ones of the writer's newest instance; return whether."""
    first, after = numbers
    sent = {"s": stream.id, "w": author.writer, "i": author.instance, "first": first, "after": after, "now": now}
    if connection.execute(ADVANCE_NEXT_NUMBER, sent).rowcount != 1:
        return False
    before = read_sent(connection, stream, author.writer) or SentRecords({}, first)
    position = dict(before.position)
    for segment, end in ends.items():
        position[segment] = max(end, position.get(segment, 0))
    # Events found further on are still uncommitted.
    write_sent(connection, stream, author.writer, SentRecords.of(position, after, before.numbers_found, looked_by))
    return True


def _of_writer(stream: StreamInfo, writer: str) -> tuple[Any, Any]:
    return SENT.c.stream_id == stream.id, SENT.c.writer == writer
