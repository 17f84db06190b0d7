"""What a service and its clients send each other: paths, JSON values, errors, and events as Arrow IPC streams.

In the fields of errors, what JSON cannot say itself is an object with one name that begins with "$": None, truth
values, numbers, text, lists, tuples, dicts with any keys, bytes, dates, datetimes and timedeltas come back equal;
anything else comes back as the text of its `repr`. Towards a service the last column of events is where the key of
each event lies; from a service each batch has the offset of its first event in its metadata, as `first`.
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
"""How many entries a service gives in one answer."""


def save_stream(stream: StreamInfo) -> dict[str, Any]:
    """Return what a stream is."""
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
    """Return the stream that was saved."""
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
    """Return a writer as it was opened."""
    return {
        "writer": opened.author.writer,
        "instance": opened.author.instance,
        "next_number": opened.next_number,
        "watermarks": dict(opened.watermarks),
    }


def load_opened(saved: Mapping[str, Any]) -> OpenedWriter:
    """Return the writer that was saved."""
    author = Author(saved["writer"], saved["instance"])
    return OpenedWriter(author, saved["next_number"], dict(saved["watermarks"]))


def save_commit(result: CommitResult) -> dict[str, Any]:
    """Return what a commit came to."""
    outcome = None if result.outcome is None else result.outcome.value
    return {"position": save_position(result.position), "outcome": outcome}


def load_commit(saved: Mapping[str, Any]) -> CommitResult:
    """Return the commit that was saved."""
    outcome = None if saved["outcome"] is None else MarkOutcome(saved["outcome"])
    return CommitResult(load_position(saved["position"]), outcome)


def save_explanation(explanation: WatermarkExplanation) -> dict[str, Any]:
    """Return why a watermark stands where it stands."""
    kind = None if explanation.kind is None else explanation.kind.value
    return {**asdict(explanation), "kind": kind}


def load_explanation(saved: Mapping[str, Any]) -> WatermarkExplanation:
    """Return the explanation that was saved."""
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
    """Return an error as JSON values.

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
    """Return the error that was saved. One that only a newer release knows is told by its status, and has its code.

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
    """Return a value as JSON can say it.

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
        return {"$tuple": [to_wire(one) for one in value]}
    if isinstance(value, list):
        return [to_wire(one) for one in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: to_wire(one) for key, one in value.items()}
        return {"$dict": [[to_wire(key), to_wire(one)] for key, one in value.items()]}
    return _tagged(value)


def from_wire(value: Any) -> Any:
    """Return the value that `to_wire` was given.

    >>> from_wire(to_wire({0: (1, float("inf")), 1: [b"x"]}))
    {0: (1, inf), 1: [b'x']}
    """
    if isinstance(value, list):
        return [from_wire(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in _TAG_READERS:
            return _TAG_READERS[name](inner)
    return {key: from_wire(one) for key, one in value.items()}


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
        # Some subclass of them, such as an enumeration's.
        return value.real if isinstance(value, int) else str.__str__(value)
    return repr(value)


_TAG_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$tuple": lambda inner: tuple(from_wire(one) for one in inner),
    "$dict": lambda inner: {from_wire(key): from_wire(one) for key, one in inner},
    "$float": float,
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$timedelta": lambda inner: inner * _MICROSECOND,
}


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
        batches = list(_read_batches(pa.BufferReader(body), wanted))
        for batch in batches:
            # Without this, offsets that point outside of a buffer would be followed later.
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


def unpack_chunks(source: Any, segment: int) -> Iterator[Chunk]:
    """Return the chunks that come from a file-like source, each as soon as it is there.

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


def _read_batches(source: Any, wanted: Any) -> Iterator[Any]:
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


def _events_of(batch: Any) -> Events:
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
    header = _flatbuffer_field(raw, root, _HEADER)
    if header == 0:
        return False
    (offset,) = struct.unpack_from("<I", raw, header)
    return _flatbuffer_field(raw, header + offset, _COMPRESSION) != 0


def _flatbuffer_field(raw: bytes, table: int, number: int) -> int:
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
