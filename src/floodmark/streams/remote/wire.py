"""The messages between a service and its clients: paths, JSON values, errors, and events as Arrow IPC streams.

Fields of errors: values that JSON does not have are objects with one key that begins with "$". None, booleans,
numbers, text, lists, tuples, dicts with any keys, bytes, dates, datetimes and timedeltas round-trip; anything else
arrives as its `repr`. Events sent to a service have the position of their key in the key space as last column; events
from a service have the offset of the first event of each batch in the batch's metadata, as `first`.
"""

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodmark import errors
from floodmark.errors import (
    EventInvalid,
    FloodmarkError,
    InvalidValue,
    KeyOutOfSpace,
    RequestInvalid,
    StateError,
    UnknownName,
)
from floodmark.streams.definition import StreamInfo, StreamSettings
from floodmark.streams.events import Events, check_nulls
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import load_position, save_position
from floodmark.streams.marks.log import EntryKind
from floodmark.streams.marks.watermark import WatermarkExplanation, WriterView
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import Author, Chunk, CommitResult, OpenedWriter

API_PREFIX: Final = "/v1"
STREAMS_PATH: Final = f"{API_PREFIX}/streams"
JSON: Final = "application/json"


GROUPS_PATH: Final = f"{API_PREFIX}/groups"


MOST_ENTRIES: Final = 10_000
"""The most entries in one answer."""


def save_stream(stream: StreamInfo) -> dict[str, Any]:
    """Save a stream as JSON values."""
    return {
        "id": stream.id,
        "name": stream.name,
        "bucket": stream.bucket,
        "settings": stream.settings.save(),
        "layout": stream.layout.save(),
        "is_sealed": stream.is_sealed,
        "version": stream.version,
        "created_at": stream.created_at,
    }


def load_stream(saved: Mapping[str, Any]) -> StreamInfo:
    """Load a saved stream."""
    return StreamInfo(
        id=saved["id"],
        name=saved["name"],
        bucket=saved["bucket"],
        settings=StreamSettings.load(saved["settings"]),
        layout=Layout.load(saved["layout"]),
        is_sealed=saved["is_sealed"],
        version=saved["version"],
        created_at=saved["created_at"],
    )


def save_opened(opened: OpenedWriter) -> dict[str, Any]:
    """Save an opened writer as JSON values."""
    return {
        "writer": opened.author.writer,
        "instance": opened.author.instance,
        "next_number": opened.next_number,
        "watermarks": dict(opened.watermarks),
    }


def load_opened(saved: Mapping[str, Any]) -> OpenedWriter:
    """Load a saved writer."""
    author = Author(saved["writer"], saved["instance"])
    return OpenedWriter(author, saved["next_number"], dict(saved["watermarks"]))


def save_commit(result: CommitResult) -> dict[str, Any]:
    """Save the result of a commit as JSON values."""
    outcomes = {key: outcome.value for key, outcome in result.outcomes.items()}
    outcome = None if result.outcome is None else result.outcome.value
    return {"position": save_position(result.position), "outcome": outcome, "outcomes": outcomes}


def load_commit(saved: Mapping[str, Any]) -> CommitResult:
    """Load the saved result of a commit."""
    outcomes = {key: MarkOutcome(outcome) for key, outcome in saved["outcomes"].items()}
    return CommitResult(load_position(saved["position"]), outcomes)


def save_explanation(explanation: WatermarkExplanation) -> dict[str, Any]:
    """Save the explanation of a watermark as JSON values."""
    kind = None if explanation.kind is None else explanation.kind.value
    return {**asdict(explanation), "kind": kind}


def load_explanation(saved: Mapping[str, Any]) -> WatermarkExplanation:
    """Load a saved explanation."""
    lists = {name: tuple(saved[name]) for name in ("holders", "set_aside", "idle", "closed", "timed_out")}
    return WatermarkExplanation(
        stream=saved["stream"],
        key=saved["key"],
        watermark=saved["watermark"],
        kind=None if saved["kind"] is None else EntryKind(saved["kind"]),
        waits_for=saved["waits_for"],
        next_at=saved["next_at"],
        writers=tuple(WriterView(**view) for view in saved["writers"]),
        **lists,
    )


_CLASSES: Final[dict[str, type[FloodmarkError]]] = {
    kind.code: kind for kind in (getattr(errors, name) for name in errors.__all__)
}


def save_error(error: FloodmarkError) -> dict[str, Any]:
    """Save an error as JSON values.

    >>> save_error(UnknownStream("There is none.", rule="So.", remedy="Make it.", stream="x"))["code"]
    'unknown-stream'
    """
    return {
        "code": error.code,
        "fact": error.fact,
        "rule": error.rule,
        "remedy": error.remedy,
        "fields": {name: to_wire(value) for name, value in error.fields.items()},
    }


def load_error(saved: Mapping[str, Any], status: int) -> FloodmarkError:
    """Load a saved error. An unknown code, from a newer release, becomes a general error chosen by the HTTP status.

    >>> print(load_error({"code": "conflict", "fact": "A.", "rule": "B.", "remedy": "C.", "fields": {}}, 409))
    A. B. C. [conflict]
    >>> type(load_error({"code": "new", "fact": "A.", "rule": "B.", "remedy": "C.", "fields": {}}, 404)).__name__
    'UnknownName'
    """
    fields = {str(name): from_wire(value) for name, value in saved["fields"].items()}
    kind = _CLASSES.get(saved["code"])
    if kind is None:
        kind = UnknownName if status == 404 else InvalidValue if status in (400, 413, 422) else StateError
        fields["code"] = saved["code"]
    for reserved in ("fact", "rule", "remedy", "self"):
        fields.pop(reserved, None)
    return kind(str(saved["fact"]), rule=str(saved["rule"]), remedy=str(saved["remedy"]), **fields)


_MICROSECOND: Final = timedelta(microseconds=1)


def to_wire(value: object) -> Any:
    """Convert a value to JSON values.

    >>> to_wire({"keys": ("a", 7), "at": timedelta(seconds=1)})
    {'keys': {'$tuple': ['a', 7]}, 'at': {'$timedelta': 1000000}}
    """
    if value is None or isinstance(value, bool) or type(value) in (int, str):
        return value
    if isinstance(value, np.generic):
        return to_wire(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, tuple):
        return {"$tuple": [to_wire(item) for item in value]}
    if isinstance(value, list):
        return [to_wire(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_wire(item) for key, item in value.items()}
        return {"$dict": [[to_wire(key), to_wire(item)] for key, item in value.items()]}
    return _tagged(value)


def from_wire(value: Any) -> Any:
    """Convert JSON values back to the value that was passed to `to_wire`.

    >>> from_wire(to_wire({0: (1, float("inf")), 1: [b"x"]}))
    {0: (1, inf), 1: [b'x']}
    """
    if isinstance(value, list):
        return [from_wire(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in _TAG_READERS:
            return _TAG_READERS[name](inner)
    return {key: from_wire(item) for key, item in value.items()}


def _tagged(value: object) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, timedelta):
        return {"$timedelta": value // _MICROSECOND}
    if isinstance(value, int | str):
        # A subclass, such as an enum.
        return value.real if isinstance(value, int) else str.__str__(value)
    return repr(value)


_TAG_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$tuple": lambda inner: tuple(from_wire(item) for item in inner),
    "$dict": lambda inner: {from_wire(key): from_wire(item) for key, item in inner},
    "$float": float,
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$timedelta": lambda inner: inner * _MICROSECOND,
}


ARROW: Final = "application/vnd.apache.arrow.stream"
"""The content type of a body with events."""

_POINT: Final = pa.field("floodmark.point", pa.float64(), nullable=False)
_FIRST: Final = b"first"
_HEADER, _COMPRESSION = 2, 3


def pack_events(events: Events) -> Any:
    """Encode events as a request body."""
    schema = events.batch.schema.remove_metadata().append(_POINT)
    batch = pa.record_batch([*events.batch.columns, pa.array(events.points, pa.float64())], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpack_events(body: bytes, schema: Any, first_columns: int | None = None) -> Events:
    """Decode the events of an untrusted request body, or raise an error.

    If columns were added to the stream, `first_columns` is how many it had before: a writer may still send those only.

    >>> events = Events(pa.record_batch({"id": [7]}), np.array([0.5]))
    >>> unpack_events(pack_events(events), events.batch.schema).batch.to_pylist()
    [{'id': 7}]
    """
    expected = schema.append(_POINT)
    try:
        batches = list(_read_batches(pa.BufferReader(body), expected, first_columns or len(schema)))
        for batch in batches:
            # Reject offsets that point outside of a buffer.
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, RequestInvalid | EventInvalid):
            raise
        raise _unreadable(" ".join(str(error).split())[:200]) from error
    parts = [_events_of(batch) for batch in batches if batch.num_rows]
    if not parts:
        raise _unreadable("it has no events")
    return Events.join(parts)


class ChunkPacker:
    """Encodes chunks one by one; the pieces together are the response body."""

    __slots__ = ("_sink", "_writer")

    def __init__(self, schema: Any) -> None:
        """Encode chunks of this schema."""
        self._sink = _Pieces()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def pack(self, chunk: Chunk) -> bytes:
        """Return an encoded chunk, preceded by the schema for the first one."""
        self._writer.write_batch(chunk.batch, custom_metadata={_FIRST: str(chunk.first).encode()})
        return self._sink.take()

    def end(self) -> bytes:
        """Return the end marker of the body."""
        self._writer.close()
        return self._sink.take()


def unpack_chunks(source: Any, segment: int) -> Iterator[Chunk]:
    """Decode chunks from a file-like source, each as soon as it has arrived.

    >>> chunk = Chunk(3, 17, pa.record_batch({"id": [7]}))
    >>> packer = ChunkPacker(chunk.batch.schema)
    >>> body = packer.pack(chunk) + packer.end()
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
    """A writable file whose content can be taken out piece by piece."""

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
        content, self._pieces = b"".join(self._pieces), []
        return content


def _read_batches(source: Any, expected: Any, least: int) -> Iterator[Any]:
    try:
        schema = pa.ipc.read_schema(source)
        if not _is_earlier_schema(schema, expected, least):
            raise EventInvalid(
                f"The events have the columns {', '.join(map(str, schema))}.",
                rule=f"The stream requires the columns {', '.join(map(str, expected))}.",
                remedy=f"Send the columns of the stream's schema in this order, and {_POINT.name!r} as the last one.",
            )
        while True:
            message = pa.ipc.read_message(source)
            if message.type != "record batch" or _is_compressed(message.metadata):
                # Dictionaries are not needed, and compressed data could expand without limit.
                raise _unreadable("a message is not a plain, uncompressed record batch")
            yield pa.ipc.read_record_batch(message, schema)
    except EOFError:
        return


def _is_earlier_schema(schema: Any, expected: Any, least: int) -> bool:
    """Return whether events have the expected columns, perhaps only the first ones, but at least so many."""
    count = len(schema) - 1
    return count >= least and schema.equals(pa.schema([*list(expected)[:count], expected.field(-1)]))


def _events_of(batch: Any) -> Events:
    points = batch.column(batch.num_columns - 1)
    if points.null_count:
        raise _unreadable(f"an event has no {_POINT.name}")
    positions = np.asarray(points, dtype=np.float64)
    if not ((positions >= 0.0) & (positions < 1.0)).all():
        raise KeyOutOfSpace(
            "The key of an event lies outside of the key space.",
            rule="The key space is [0, 1).",
            remedy=f"Compute the column {_POINT.name!r} with key_points().",
        )
    schema = batch.schema.remove(batch.num_columns - 1)
    return Events(check_nulls(pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)), positions)


def _is_compressed(metadata: Any) -> bool:
    """Return whether a batch is compressed, according to its flatbuffer header."""
    raw = bytes(metadata)
    (root,) = struct.unpack_from("<I", raw, 0)
    header = _flatbuffer_field(raw, root, _HEADER)
    if header == 0:
        return False
    (offset,) = struct.unpack_from("<I", raw, header)
    return _flatbuffer_field(raw, header + offset, _COMPRESSION) != 0


def _flatbuffer_field(raw: bytes, table: int, number: int) -> int:
    """Return the offset of a field in a flatbuffer table, or 0 if it is absent."""
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
        rule="The body is an Arrow IPC stream of uncompressed record batches, with at least one event.",
        remedy="Write the body with pyarrow.ipc.new_stream, without compression.",
    )
