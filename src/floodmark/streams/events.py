"""Events as Arrow record batches: made from what a program writes, routed by their keys, filtered by their times."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark._util.text import did_you_mean
from floodmark._util.times import UNITS_PER_SECOND
from floodmark.errors import EventInvalid, KeyOutOfSpace, NotJson, UnknownColumn
from floodmark.streams.definition import StreamInfo, StreamSettings
from floodmark.streams.layout.layout import Key, Layout, key_points

PAYLOAD_SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("payload", pa.binary(), nullable=False)])
"""What the events of a stream without a schema look like."""

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Events:
    """Events in the order they were written, and the points of their keys."""

    batch: Any
    points: Points

    def __len__(self) -> int:
        """Return how many events there are."""
        return int(self.batch.num_rows)

    @classmethod
    def join(cls, parts: Sequence["Events"]) -> "Events":
        """Return the events of several parts as one."""
        if len(parts) == 1:
            return parts[0]
        return cls(pa.concat_batches([part.batch for part in parts]), np.concatenate([part.points for part in parts]))

    def slice(self, start: int, length: int) -> "Events":
        """Return some of the events."""
        return Events(self.batch.slice(start, length), self.points[start : start + length])

    def segments(self, layout: Layout) -> NDArray[np.int64]:
        """Return for each event the open segment that it belongs to."""
        ids = np.array([segment.id for segment in layout.current], dtype=np.int64)
        if len(ids) == 1:
            return np.full(len(self), ids[0])
        lows = np.array([segment.low for segment in layout.current])
        found: NDArray[np.int64] = ids[np.searchsorted(lows, self.points, side="right") - 1]
        return found

    def split(self, layout: Layout) -> list[tuple[int, Any]]:
        """Return, for each segment that gets some, its events in order."""
        segments = self.segments(layout)
        first = int(segments[0])
        if len(layout.current) == 1 or (segments == first).all():
            return [(first, self.batch)]
        rows = np.argsort(segments, kind="stable")
        found, starts = np.unique(segments[rows], return_index=True)
        ends = [*starts[1:], len(rows)]
        parts = zip(found, starts, ends, strict=True)
        return [(int(segment), self.batch.take(pa.array(rows[start:end]))) for segment, start, end in parts]


def payload_of(event: object) -> bytes:
    """Return an event of a stream without a schema as it is kept: bytes and text as they are, all else as JSON.

    >>> payload_of({"paid": 7})
    b'{"paid":7}'
    """
    if isinstance(event, bytes):
        return event
    if isinstance(event, str):
        return event.encode()
    try:
        return json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(
            f"The event cannot be written as JSON: {error}.",
            rule="Without a schema an event is bytes, text, or what JSON can write.",
            remedy="Convert it first, or create the stream with a schema.",
            what="event",
        ) from error


def payload_batch(payloads: Sequence[bytes], keys: Sequence[bytes | None]) -> Any:
    """Return events of a stream without a schema as a batch."""
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(payloads, pa.binary())], schema=PAYLOAD_SCHEMA)


def row_batch(rows: Sequence[object], schema: Any) -> Any:
    """Return rows as a batch of the schema, or refuse them.

    >>> row_batch([{"id": 1}], pa.schema([("id", pa.int64())])).num_rows
    1
    >>> row_batch([{"idd": 1}], pa.schema([("id", pa.int64())]))
    Traceback (most recent call last):
    floodmark.errors.EventInvalid: The event has a field 'idd'. ... Did you mean 'id'? [event-invalid]
    """
    names = set(schema.names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise _unfit(f"The event is {row!r:.100}.", schema, "Pass a dict of column to value.")
        if not row.keys() <= names:
            strange = next(name for name in row if name not in names)
            raise _unfit(f"The event has a field {strange!r}.", schema, _guess(strange, schema))
    try:
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _unfit(f"An event does not fit: {error}.", schema, "Convert its values first.") from error
    return check_nulls(batch)


def table_batch(data: Any, schema: Any) -> Any:
    """Return an Arrow table or batch with the columns of the schema, in their order and of their types."""
    missing = [name for name in schema.names if name not in data.schema.names]
    strange = [name for name in data.schema.names if name not in schema.names]
    if strange:
        raise _unfit(f"The table has a column {strange[0]!r}.", schema, _guess(strange[0], schema))
    if missing:
        raise _unfit(f"The table has no column {missing[0]!r}.", schema, "Add it, with nulls if it is not known.")
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        table = table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise _unfit(f"The table does not fit: {error}.", schema, "Convert its columns first.") from error
    batches = table.to_batches()
    return check_nulls(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema))


def points_of(keys: Any, otherwise: float) -> Points:
    """Return the points of an Arrow array of keys; those without a key lie at `otherwise`.

    >>> points_of(pa.array(["customer-7", None]), 0.5).round(3).tolist()
    [0.412, 0.5]
    """
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not (pa.types.is_string(keys.type) or pa.types.is_binary(keys.type)):
        try:
            keys = keys.cast(pa.string())
        except pa.ArrowException as error:
            raise KeyOutOfSpace(
                f"The keys are of the type {keys.type}.",
                rule="Keys are text, bytes, or what can be written as text.",
                remedy="Name a column of simple values.",
                type=str(keys.type),
            ) from error
    coded = keys.dictionary_encode()
    known = np.append(key_points(coded.dictionary.to_pylist()), otherwise)
    places = coded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
    points: Points = known[places]
    return points


def key_array(key: object, data: Any, count: int) -> Any:
    """Return the keys of a batch: a column of it, or a key for each event; None if it has none."""
    if key is None:
        return None
    if isinstance(key, str):
        if isinstance(data, pa.Table | pa.RecordBatch):
            if key in data.schema.names:
                return data.column(key)
        elif all(isinstance(row, Mapping) for row in data):
            return _as_array([row.get(key) for row in data])
        raise UnknownColumn(
            f"There is no column {key!r} to take the keys from.",
            rule="The key is a column of the table, a field of the rows, or a list with a key for each event.",
            remedy=did_you_mean(key, data.schema.names) if hasattr(data, "schema") else "Pass a list of keys.",
            column=key,
        )
    keys = key if isinstance(key, pa.Array | pa.ChunkedArray) else _as_array(list(_iterated(key)))
    if len(keys) != count:
        raise EventInvalid(
            f"There are {count} events and {len(keys)} keys.",
            rule="Each event has one key.",
            remedy="Pass as many keys as events, or the name of a column.",
            events=count,
            keys=len(keys),
        )
    return keys


def raw_key(key: Key | None) -> bytes | None:
    """Return a key as it is kept."""
    return key.encode() if isinstance(key, str) else key


def _as_array(keys: list[Any]) -> Any:
    try:
        return pa.array([str(key) if isinstance(key, int) else key for key in keys])
    except (pa.ArrowException, TypeError) as error:
        raise KeyOutOfSpace(
            f"The keys cannot be read: {error}.",
            rule="Keys are all text, or all bytes.",
            remedy="Write the values that should stay in order as text.",
        ) from error


def _iterated(keys: object) -> Iterable[Any]:
    if isinstance(keys, Iterable) and not isinstance(keys, bytes):
        return keys
    raise KeyOutOfSpace(
        f"The key of a batch is {keys!r}.",
        rule="It is the name of a column, or a list with a key for each event.",
        remedy="Pass one of them.",
        key=keys,
    )


def check_nulls(batch: Any) -> Any:
    """Return a batch that has a value wherever its schema asks for one, or refuse it."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise _unfit(f"The column {field.name!r} has no value in an event.", batch.schema, "Give it one.")
    return batch


def _guess(name: object, schema: Any) -> str:
    return did_you_mean(str(name), schema.names, otherwise="Leave it out.")


def _unfit(fact: str, schema: Any, remedy: str) -> EventInvalid:
    from floodmark._util.ddl import write_ddl

    return EventInvalid(fact, rule=f"The schema is {write_ddl(schema)}.", remedy=remedy)


def schema_of(stream: StreamInfo) -> Any:
    """Return the Arrow schema in which the events of a stream are kept."""
    return PAYLOAD_SCHEMA if stream.settings.schema is None else stream.settings.schema


Rows = Callable[[Any], Any]


def time_filter(settings: StreamSettings, key: str, since: int | None, until: int | None) -> Rows | None:
    """Return what takes the rows with since <= time < until out of a batch; None if all rows are to be taken.

    That is so where there are no bounds, and where the stream has no column of times for the key. Rows without a time
    are taken.

    >>> schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    >>> settings = StreamSettings(schema, time_columns={"at": "at"}, unit="ms")
    >>> batch = pa.record_batch({"at": pa.array([1_000, 2_000, 3_000, None], pa.timestamp("us", "UTC"))})
    >>> time_filter(settings, "at", 2, 3)(batch).num_rows
    2
    """
    wanted = time_mask(settings, key, since, until)
    return None if wanted is None else lambda batch: batch.filter(wanted(batch))


def time_mask(settings: StreamSettings, key: str, since: int | None, until: int | None) -> Rows | None:
    """Return what tells which rows of a batch `time_filter` takes; None if all rows are to be taken."""
    column = settings.time_columns.get(key)
    if (since is None and until is None) or settings.schema is None or column is None:
        return None
    kind = settings.schema.field(column).type
    per_second = _per_second(kind, settings.unit)
    if per_second is None:
        return None
    of_stream = UNITS_PER_SECOND[settings.unit]
    low, high = (None if time is None else _scaled(time, *per_second, of_stream) for time in (since, until))

    def tell(batch: Any) -> Any:
        times = batch.column(column)
        numbers = times.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else times.cast(pa.int64())
        wanted = None if low is None else pc.greater_equal(numbers, low)
        if high is not None:
            before = pc.less(numbers, high)
            wanted = before if wanted is None else pc.and_(wanted, before)
        return pc.fill_null(wanted, True)

    return tell


def _per_second(kind: Any, unit: str) -> tuple[int, int] | None:
    """Return how many units of a column make how many seconds; None for a column that holds no times."""
    if pa.types.is_timestamp(kind):
        return UNITS_PER_SECOND[kind.unit], 1
    if pa.types.is_integer(kind):
        return UNITS_PER_SECOND[unit], 1
    return (1, 86_400) if pa.types.is_date32(kind) else None


def _scaled(time: int, units: int, seconds: int, of_stream: int) -> int:
    """Return a time of the stream in units of the column, rounded up: what is not below it is not before the time."""
    scaled = -(-time * units // (of_stream * seconds))
    return max(INT64_MIN, min(INT64_MAX, scaled))
