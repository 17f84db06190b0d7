"""What a record says besides its event: who wrote it and as which of its events, or that a segment ends."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodmark.errors import ValueUndecodable
from floodmark.kafka import Records
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.kafka.codecs.json_encoder import encode_json
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import PAYLOAD_SCHEMA, Events
from floodmark.streams._log import Author, Chunk

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
