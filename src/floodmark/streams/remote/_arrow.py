"""Events on the wire: Arrow IPC streams, both ways.

Towards a service the last column is where the key of each event lies. From a service each batch has the offset of its
first event in its metadata, as `first`.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodmark.errors import EventInvalid, KeyOutOfSpace, RequestInvalid
from floodmark.streams._events import Events, check_nulls
from floodmark.streams._log import Chunk

ARROW: Final = "application/vnd.apache.arrow.stream"
"""What a body with events says of itself."""

_POINT: Final = pa.field("floodmark.point", pa.float64(), nullable=False)
_FIRST: Final = b"first"
_HEADER, _COMPRESSION = 2, 3


def pack_events(events: Events) -> Any:
    """Return events as a body."""
    schema = events.batch.schema.remove_metadata().append(_POINT)
    batch = pa.record_batch([*events.batch.columns, pa.array(events.points, pa.float64())], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpack_events(body: bytes, schema: Any) -> Events:
    """Return the events of a body that anybody may have sent, or refuse it.

    >>> events = Events(pa.record_batch({"id": [7]}), np.array([0.5]))
    >>> unpack_events(pack_events(events), events.batch.schema).batch.to_pylist()
    [{'id': 7}]
    """
    wanted = schema.append(_POINT)
    try:
        batches = list(_batches(pa.BufferReader(body), wanted))
        for batch in batches:
            # Without this, offsets that point outside of a buffer would be followed later.
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, RequestInvalid | EventInvalid):
            raise
        raise _unreadable(" ".join(str(error).split())[:200]) from error
    parts = [_events(batch) for batch in batches if batch.num_rows]
    if not parts:
        raise _unreadable("it has no events")
    return Events.join(parts)


class ChunkPacker:
    """Packs chunks one by one; each piece is to be sent as it comes."""

    __slots__ = ("_sink", "_writer")

    def __init__(self, schema: Any) -> None:
        """Begin with the schema."""
        self._sink = _Pieces()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def pack(self, chunk: Chunk) -> bytes:
        """Return a chunk, and before the first one the schema."""
        self._writer.write_batch(chunk.batch, custom_metadata={_FIRST: str(chunk.first).encode()})
        return self._sink.take()

    def end(self) -> bytes:
        """Return what says that there is no more."""
        self._writer.close()
        return self._sink.take()


def pack_chunks(schema: Any, chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """Return chunks piece by piece."""
    packer = ChunkPacker(schema)
    for chunk in chunks:
        yield packer.pack(chunk)
    yield packer.end()


def unpack_chunks(source: Any, segment: int) -> Iterator[Chunk]:
    """Return the chunks that come from a file-like source, each as soon as it is there.

    >>> chunk = Chunk(3, 17, pa.record_batch({"id": [7]}))
    >>> body = b"".join(pack_chunks(chunk.batch.schema, [chunk]))
    >>> list(unpack_chunks(pa.BufferReader(body), 3)) == [chunk]
    True
    """
    with pa.ipc.open_stream(source) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            yield Chunk(segment, int(metadata[_FIRST]), batch)


class _Pieces:
    """A file that gives away what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken


def _batches(source: Any, wanted: Any) -> Iterator[Any]:
    try:
        schema = pa.ipc.read_schema(source)
        if not schema.equals(wanted):
            raise EventInvalid(
                f"The events have the columns {', '.join(map(str, schema))}.",
                rule=f"They have the columns {', '.join(map(str, wanted))}.",
                remedy="Send the columns of the stream's schema, in its order, and then where the keys lie.",
            )
        while True:
            message = pa.ipc.read_message(source)
            if message.type != "record batch" or _is_compressed(message.metadata):
                # A dictionary, or what grows when it is unpacked: neither is needed, and the latter has no limit.
                raise _unreadable("it has something else than plain batches")
            yield pa.ipc.read_record_batch(message, wanted)
    except EOFError:
        return


def _events(batch: Any) -> Events:
    points = batch.column(batch.num_columns - 1)
    if points.null_count:
        raise _unreadable("an event has no point")
    where = np.asarray(points, dtype=np.float64)
    if not ((where >= 0.0) & (where < 1.0)).all():
        raise KeyOutOfSpace(
            "The key of an event lies outside of the key space.",
            rule="The key space is [0, 1).",
            remedy="Take the points from key_points().",
        )
    schema = batch.schema.remove(batch.num_columns - 1)
    return Events(check_nulls(pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)), where)


def _is_compressed(metadata: Any) -> bool:
    """Return whether the header of a batch, a flatbuffer, says how it is compressed."""
    raw = bytes(metadata)
    (root,) = struct.unpack_from("<I", raw, 0)
    header = _field(raw, root, _HEADER)
    if header == 0:
        return False
    (offset,) = struct.unpack_from("<I", raw, header)
    return _field(raw, header + offset, _COMPRESSION) != 0


def _field(raw: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table is, or 0 if it has none."""
    (back,) = struct.unpack_from("<i", raw, table)
    fields = table - back
    (size,) = struct.unpack_from("<H", raw, fields)
    slot = 4 + 2 * number
    if slot + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", raw, fields + slot)
    return table + offset if offset else 0


def _unreadable(why: str) -> RequestInvalid:
    return RequestInvalid(
        f"The events cannot be read: {why}.",
        rule="The body is an Arrow IPC stream of plain record batches, with at least one event.",
        remedy="Write it with pyarrow.ipc.new_stream, without compression.",
    )
