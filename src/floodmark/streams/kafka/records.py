"""What a record says besides its event, and what the store knows of the records of a writer.

A flush is settled in the store after Kafka has it; what a crash left open is found again. The order is what makes it
safe: Kafka has acknowledged the records, and only then the state of their segments is read, in a transaction that
begins afterwards. A segment that is open then ends behind them, whichever process seals it.
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
"""The header with the writer, its instance, and the number of the event among all of the writer."""
TRANSACTION: Final = "floodmark.transaction"
"""The header with the transaction that the event came in."""
SEAL: Final = "floodmark.seal"
"""The header of a record that ends a segment, if the store says so; it is no event."""

Header = tuple[str, bytes]


def number_prefix(author: Author) -> bytes:
    """Return what a number stands behind."""
    return f"{author.writer}/{author.instance}/".encode()


def number_of(headers: Sequence[Header] | None, writer: str) -> int | None:
    """Return which event of a writer a record is; None if it is not of this writer.

    >>> number_of([("floodmark.number", b"till/3/1/42")], "till/3")
    42
    """
    for name, value in headers or ():
        if name == NUMBER:
            who, _, number = value.rsplit(b"/", 2)
            return int(number) if who == writer.encode() else None
    return None


def transaction_of(headers: Sequence[Header] | None) -> str | None:
    """Return the transaction that a record came in; None if it came in none of ours."""
    for name, value in headers or ():
        if name == TRANSACTION:
            return value.decode()
    return None


def is_seal(headers: Sequence[Header] | None) -> bool:
    """Return whether a record only says that a segment ends."""
    return any(name == SEAL for name, _ in headers or ())


def keys_and_values(stream: StreamInfo, events: Events) -> tuple[list[bytes | None], list[bytes]]:
    """Return events as keys and values of records: as they are without a schema, and else as JSON."""
    if stream.settings.schema is None:
        return events.batch.column("key").to_pylist(), events.batch.column("payload").to_pylist()
    return [None] * len(events), encode_json(events.batch)


def chunks_of(stream: StreamInfo, segment: int, records: Records) -> Iterator[Chunk]:
    """Return records as chunks, each of events that lie side by side; Kafka's own records leave gaps between them."""
    # A record that ends a segment is empty; to look at the headers of every record would take longer than to read it.
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
        # A record without a value is one that others have written.
        return pa.record_batch([keys, pa.array([value or b"" for value in values], pa.binary())], schema=PAYLOAD_SCHEMA)
    decoded = JsonDecoder(schema).decode(values)
    bad = [(one.place, one.reason) for one in decoded.bad]
    bad += [(place, "it has no value") for place, value in enumerate(values) if value is None]
    if bad:
        place, reason = min(bad)
        raise ValueUndecodable(
            f"The record {events[place].offset()} of segment {segment} of {stream.name!r} is no event: {reason}.",
            rule="What is in the topic of a stream with a schema is JSON of that schema.",
            remedy="Find out who else writes to the topic; events are written through a writer of the stream.",
            place=events[place].offset(),
            reason=reason,
        )
    return pa.RecordBatch.from_arrays(decoded.batch.columns, schema=schema)


OPEN: Final = 0
SEALED: Final = 1
SEALING: Final = 2

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentState:
    """What the store says of a segment: whether it is open, and where it ends once it is sealed."""

    state: int
    end: int


@dataclass(frozen=True, slots=True)
class SentRecords:
    """What is known of a writer's records: all its unsettled ones lie behind `position`, and some were found there.

    A segment that the position does not name was made later, and is looked at from its beginning.
    """

    position: Position
    first_number: int
    found: bytes = b""
    """A bit for each event from `first_number` on: whether Kafka has it, though its writer never heard so."""
    looked_by: str = ""
    """Which process has looked last, or has settled since: it knows of everything that it has sent itself."""

    @classmethod
    def of(cls, position: Position, first_number: int, found: Numbers, looked_by: str) -> "SentRecords":
        """Return it with those of the found numbers that are not below the first."""
        return cls(position, first_number, pack_numbers(found[found >= first_number].tolist(), first_number), looked_by)

    @property
    def numbers_found(self) -> Numbers:
        """The numbers of the events that were found.

        >>> SentRecords({}, 10, pack_numbers([10, 12], 10)).numbers_found.tolist()
        [10, 12]
        """
        bits = np.unpackbits(np.frombuffer(self.found, np.uint8))
        return np.flatnonzero(bits).astype(np.int64) + self.first_number

    def places_found(self, first_number: int, count: int) -> NDArray[np.bool_]:
        """Return for each event from a number on whether it was found.

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
    """Return a bit for each number from the first on: whether it is among them."""
    places = np.fromiter(numbers, np.int64) - first_number
    if not len(places):
        return b""
    bits = np.zeros(int(places.max()) + 1, np.uint8)
    bits[places] = 1
    return np.packbits(bits).tobytes()


def first_missing(found: Numbers, next_number: int) -> int:
    """Return the first number, from the next one on, that was not found.

    >>> first_missing(np.array([5, 6, 8]), 5), first_missing(np.array([6]), 5)
    (7, 5)
    """
    ahead = np.unique(found[found >= next_number])
    gaps = np.flatnonzero(ahead != np.arange(next_number, next_number + len(ahead)))
    return next_number + (len(ahead) if not len(gaps) else int(gaps[0]))


def read_states(connection: Connection, stream: StreamInfo, segments: Iterable[int]) -> dict[int, SegmentState]:
    """Return what the store says of segments, in this transaction."""
    wanted = select(SEGMENTS.c.segment, SEGMENTS.c.sealed, SEGMENTS.c.end_offset)
    here = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.segment.in_(list(segments)))
    return {
        row.segment: SegmentState(row.sealed, row.end_offset) for row in connection.execute(wanted.where(*here)).all()
    }


def read_sent(connection: Connection, stream: StreamInfo, writer: str) -> SentRecords | None:
    """Return what is known of the records of a writer."""
    row = connection.execute(select(SENT).where(*_of_writer(stream, writer))).one_or_none()
    if row is None:
        return None
    return SentRecords(load_position(from_json(row.position)), row.first_number, bytes(row.found), row.looked_by)


def write_sent(connection: Connection, stream: StreamInfo, writer: str, sent: SentRecords) -> None:
    """Keep what is known of the records of a writer."""
    position = to_json(save_position(sent.position), "position")
    row: dict[str, Any] = {"stream_id": stream.id, "writer": writer, "position": position}
    upsert_row(
        connection, SENT, {**row, "first_number": sent.first_number, "found": sent.found, "looked_by": sent.looked_by}
    )


def forget_sent(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Forget what is known of the records of a writer: it has none that are not settled."""
    connection.execute(delete(SENT).where(*_of_writer(stream, writer)))


def settle_flush(
    connection: Connection,
    stream: StreamInfo,
    author: Author,
    numbers: tuple[int, int],
    ends: Mapping[int, int],
    now: int,
    looked_by: str,
) -> bool:
    """Let events from a number to before another count, if they are the next ones of the newest instance."""
    first, after = numbers
    sent = {"s": stream.id, "w": author.writer, "i": author.instance, "first": first, "after": after, "now": now}
    if connection.execute(ADVANCE_NEXT_NUMBER, sent).rowcount != 1:
        return False
    before = read_sent(connection, stream, author.writer) or SentRecords({}, first)
    position = dict(before.position)
    for segment, end in ends.items():
        position[segment] = max(end, position.get(segment, 0))
    # What was found further on is still not settled.
    write_sent(connection, stream, author.writer, SentRecords.of(position, after, before.numbers_found, looked_by))
    return True


def _of_writer(stream: StreamInfo, writer: str) -> tuple[Any, Any]:
    return SENT.c.stream_id == stream.id, SENT.c.writer == writer
