"""Rows of the embedded log: events that become rows in a transaction, and come back from them."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Row, bindparam, insert, update

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import PAYLOAD_SCHEMA, Events
from floodmark.streams._log import Chunk
from floodmark.streams._schema import BATCHES, SEGMENTS

_MOST_ROWS: Final = 65_536
_MOST_BYTES: Final = 16 * 2**20
# What is smaller is joined with its neighbours when it is read.
_SMALL: Final = 16_384

_EXTEND: Final = (
    update(SEGMENTS)
    .where(SEGMENTS.c.stream_id == bindparam("s"), SEGMENTS.c.segment == bindparam("g"), SEGMENTS.c.sealed == 0)
    .values(end_offset=SEGMENTS.c.end_offset + bindparam("n"))
    .returning(SEGMENTS.c.end_offset)
)


class SegmentGone(Exception):
    """A segment that was to be written is sealed, or gone with its stream; the transaction must end without trace."""


def schema_of(stream: StreamInfo) -> Any:
    """Return the Arrow schema in which the events of a stream are kept."""
    return PAYLOAD_SCHEMA if stream.settings.schema is None else stream.settings.schema


def keep(connection: Connection, stream: StreamInfo, writer: str, first_number: int, events: Events) -> dict[int, int]:
    """Put events behind the ends of their segments, and return the new ends."""
    ends: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    number = first_number
    # In the order of their ids, as all do that lock segments: so nobody waits in a circle.
    for segment, batch in events.split(stream.layout):
        here = {"s": stream.id, "g": segment, "n": batch.num_rows}
        end = connection.execute(_EXTEND, here).scalar_one_or_none()
        if end is None:
            raise SegmentGone
        ends[segment] = end
        offset = end - batch.num_rows
        for piece in _pieces(batch):
            rows.append(
                {
                    "stream_id": stream.id,
                    "segment": segment,
                    "first_offset": offset,
                    "events": piece.num_rows,
                    "writer": writer,
                    "first_number": number,
                    "body": memoryview(piece.serialize()),
                }
            )
            offset += piece.num_rows
            number += piece.num_rows
    connection.execute(insert(BATCHES), rows)
    return ends


def load_events(row: Row[Any], schema: Any) -> Events:
    """Return events that were kept apart for a transaction."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(row.body), schema)
    return Events(batch, np.frombuffer(row.points, dtype=np.float64))


def load_chunk(row: Row[Any], segment: int, schema: Any) -> Chunk:
    """Return a row of the log as what it holds."""
    return Chunk(segment, row.first_offset, pa.ipc.read_record_batch(pa.py_buffer(row.body), schema))


def joined(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Join small chunks that lie side by side: who reads pays for each batch, not for each row."""
    waiting: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        fits = waiting and waiting[-1].end == chunk.first and rows + chunk.batch.num_rows <= _MOST_ROWS
        if waiting and not (fits and chunk.batch.num_rows < _SMALL):
            yield _one(waiting)
            waiting, rows = [], 0
        if chunk.batch.num_rows >= _SMALL:
            yield chunk
        else:
            waiting.append(chunk)
            rows += chunk.batch.num_rows
    if waiting:
        yield _one(waiting)


def _one(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(chunks[0].segment, chunks[0].first, pa.concat_batches([chunk.batch for chunk in chunks]))


def _pieces(batch: Any) -> Iterator[Any]:
    each = batch.nbytes // max(batch.num_rows, 1)
    most = max(1, min(_MOST_ROWS, _MOST_BYTES // max(each, 1)))
    if batch.num_rows <= most:
        yield batch
        return
    for start in range(0, batch.num_rows, most):
        yield batch.slice(start, most)
