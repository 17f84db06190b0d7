"""Events as Arrow record batches: building them from what a program writes, routing by key, filtering by time."""

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
"""The columns of the events of a stream without a schema."""

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Events:
    """Events in the order they were written, with the key space points of their keys."""

    batch: Any
    points: Points

    def __len__(self) -> int:
        """Return how many events there are."""
        return int(self.batch.num_rows)

    @classmethod
    def join(cls, batches: Sequence["Events"]) -> "Events":
        """Return the events of several batches as one."""
        if len(batches) == 1:
            return batches[0]
        points = np.concatenate([events.points for events in batches])
        return cls(pa.concat_batches([events.batch for events in batches]), points)

    def slice(self, start: int, length: int) -> "Events":
        """Return `length` events, starting at index `start`."""
        return Events(self.batch.slice(start, length), self.points[start : start + length])

    def segments(self, layout: Layout) -> NDArray[np.int64]:
        """Return the id of the open segment of each event."""
        ids = np.array([segment.id for segment in layout.current], dtype=np.int64)
        if len(ids) == 1:
            return np.full(len(self), ids[0])
        lows = np.array([segment.low for segment in layout.current])
        routed: NDArray[np.int64] = ids[np.searchsorted(lows, self.points, side="right") - 1]
        return routed

    def split(self, layout: Layout) -> list[tuple[int, Any]]:
        """Return (segment, batch) for each segment that gets events, in order."""
        segments = self.segments(layout)
        first = int(segments[0])
        if len(layout.current) == 1 or (segments == first).all():
            return [(first, self.batch)]
        rows = np.argsort(segments, kind="stable")
        ids, starts = np.unique(segments[rows], return_index=True)
        ends = [*starts[1:], len(rows)]
        slices = zip(ids, starts, ends, strict=True)
        return [(int(segment), self.batch.take(pa.array(rows[start:end]))) for segment, start, end in slices]


def payload_of(event: object) -> bytes:
    """Return the stored bytes of an event without a schema: bytes and text as they are, everything else as JSON.

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
            rule="Without a schema an event is bytes, text, or a value that JSON can represent.",
            remedy="Convert it first, for example to a dict of strings and numbers, or use a stream with a schema.",
            what="event",
        ) from error


def payload_batch(payloads: Sequence[bytes], keys: Sequence[bytes | None]) -> Any:
    """Return events of a stream without a schema as a batch."""
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(payloads, pa.binary())], schema=PAYLOAD_SCHEMA)


def row_batch(rows: Sequence[object], schema: Any) -> Any:
    """Return rows as a batch of the schema, or raise `EventInvalid`.

    >>> row_batch([{"id": 1}], pa.schema([("id", pa.int64())])).num_rows
    1
    >>> row_batch([{"idd": 1}], pa.schema([("id", pa.int64())]))
    Traceback (most recent call last):
    floodmark.errors.EventInvalid: The event has a field 'idd'. ... Did you mean 'id'? [event-invalid]
    """
    names = set(schema.names)
    for row in rows:
        if not isinstance(row, Mapping):
            raise _event_invalid(f"The event is {row!r:.100}.", schema, "Pass a dict of column to value.")
        if not row.keys() <= names:
            extra = next(name for name in row if name not in names)
            raise _event_invalid(f"The event has a field {extra!r}.", schema, _column_remedy(extra, schema))
    try:
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        remedy = "Convert its values to the types of the schema first."
        raise _event_invalid(f"An event does not fit: {error}.", schema, remedy) from error
    return check_nulls(batch)


def table_batch(data: Any, schema: Any) -> Any:
    """Return an Arrow table or batch converted to the columns of the schema, or raise `EventInvalid`."""
    missing = [name for name in schema.names if name not in data.schema.names]
    extra = [name for name in data.schema.names if name not in schema.names]
    if extra:
        raise _event_invalid(f"The table has a column {extra[0]!r}.", schema, _column_remedy(extra[0], schema))
    if missing:
        raise _event_invalid(f"The table has no column {missing[0]!r}.", schema, "Add it, with nulls if need be.")
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        table = table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        remedy = "Convert its columns to the types of the schema first."
        raise _event_invalid(f"The table does not fit: {error}.", schema, remedy) from error
    batches = table.to_batches()
    return check_nulls(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema))


def points_of(keys: Any, otherwise: float) -> Points:
    """Return the points of an Arrow array of keys; nulls get the point `otherwise`.

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
                rule="Keys are text, bytes, or values that can be converted to text.",
                remedy="Use a key column of strings, bytes or numbers.",
                type=str(keys.type),
            ) from error
    encoded = keys.dictionary_encode()
    distinct_points = np.append(key_points(encoded.dictionary.to_pylist()), otherwise)
    indices = encoded.indices.fill_null(len(distinct_points) - 1).to_numpy(zero_copy_only=False)
    points: Points = distinct_points[indices]
    return points


def key_array(key: object, data: Any, count: int) -> Any:
    """Return the keys of a batch as an array, from the name of a column or from a list of keys; None without keys."""
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
            rule="The key is a column of the table, a field of the rows, or a list with one key for each event.",
            remedy=did_you_mean(key, data.schema.names) if hasattr(data, "schema") else "Pass a list of keys.",
            column=key,
        )
    keys = key if isinstance(key, pa.Array | pa.ChunkedArray) else _as_array(list(_check_iterable(key)))
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
    """Return the stored bytes of a key."""
    return key.encode() if isinstance(key, str) else key


def _as_array(keys: list[Any]) -> Any:
    try:
        return pa.array([str(key) if isinstance(key, int) else key for key in keys])
    except (pa.ArrowException, TypeError) as error:
        raise KeyOutOfSpace(
            f"The keys cannot be read: {error}.",
            rule="The keys of a batch are all text, or all bytes.",
            remedy="Convert them first, for example with str(key).",
        ) from error


def _check_iterable(keys: object) -> Iterable[Any]:
    if isinstance(keys, Iterable) and not isinstance(keys, bytes):
        return keys
    raise KeyOutOfSpace(
        f"The key of a batch is {keys!r}.",
        rule="It is the name of a column, or a list with one key for each event.",
        remedy="Pass for example key='customer', or key=['a', 'b'] for two events.",
        key=keys,
    )


def check_nulls(batch: Any) -> Any:
    """Return the batch if no NOT NULL column has nulls, or raise `EventInvalid`."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            remedy = f"Set {field.name!r} in every event."
            raise _event_invalid(f"The column {field.name!r} has no value in an event.", batch.schema, remedy)
    return batch


def _column_remedy(name: object, schema: Any) -> str:
    return did_you_mean(str(name), schema.names, otherwise="Leave it out.")


def _event_invalid(fact: str, schema: Any, remedy: str) -> EventInvalid:
    from floodmark._util.ddl import write_ddl

    return EventInvalid(fact, rule=f"The schema is {write_ddl(schema)}.", remedy=remedy)


def schema_of(stream: StreamInfo) -> Any:
    """Return the Arrow schema of the stored events of a stream."""
    return PAYLOAD_SCHEMA if stream.settings.schema is None else stream.settings.schema


def widen_batch(batch: Any, schema: Any) -> Any:
    """Return a batch with all columns of the schema: those added after it was written are null.

    >>> schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    >>> widen_batch(pa.record_batch({"id": [7]}), schema).to_pylist()
    [{'id': 7, 'note': None}]
    """
    missing = list(schema)[batch.num_columns :]
    if not missing:
        return batch
    nulls = [pa.nulls(batch.num_rows, field.type) for field in missing]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)


def stored_schema(stream: StreamInfo, columns: int | None) -> Any:
    """Return the schema of a stored batch with so many columns, of which a newer one of the stream has more.

    `columns` is None for a batch that was stored before columns could be added.
    """
    schema = schema_of(stream)
    count = min(columns or stream.settings.first_columns or len(schema), len(schema))
    return schema if count == len(schema) else pa.schema(list(schema)[:count])


BatchFunction = Callable[[Any], Any]
"""A function of a record batch, such as a filter or a mask."""


def time_filter(settings: StreamSettings, key: str, since: int | None, until: int | None) -> BatchFunction | None:
    """Return a function that keeps the rows of a batch with since <= time < until; None if all rows are kept.

    All rows are kept without bounds, and if the stream has no time column for the key. Rows without a time are kept.

    >>> schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    >>> settings = StreamSettings(schema, time_columns={"at": "at"}, unit="ms")
    >>> batch = pa.record_batch({"at": pa.array([1_000, 2_000, 3_000, None], pa.timestamp("us", "UTC"))})
    >>> time_filter(settings, "at", 2, 3)(batch).num_rows
    2
    """
    mask = time_mask(settings, key, since, until)
    return None if mask is None else lambda batch: batch.filter(mask(batch))


def time_mask(settings: StreamSettings, key: str, since: int | None, until: int | None) -> BatchFunction | None:
    """Return a function that gives the boolean mask of the rows `time_filter` keeps; None if all rows are kept."""
    column = settings.time_columns.get(key)
    if (since is None and until is None) or settings.schema is None or column is None:
        return None
    kind = settings.schema.field(column).type
    column_units = _column_units(kind, settings.unit)
    if column_units is None:
        return None
    stream_units = UNITS_PER_SECOND[settings.unit]
    low, high = (
        None if time is None else _to_column_unit(time, *column_units, stream_units) for time in (since, until)
    )

    def mask(batch: Any) -> Any:
        times = batch.column(column)
        numbers = times.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else times.cast(pa.int64())
        kept = None if low is None else pc.greater_equal(numbers, low)
        if high is not None:
            before = pc.less(numbers, high)
            kept = before if kept is None else pc.and_(kept, before)
        return pc.fill_null(kept, True)

    return mask


def _column_units(kind: Any, unit: str) -> tuple[int, int] | None:
    """Return (units, seconds): that many units of the column are that many seconds. None if it holds no times."""
    if pa.types.is_timestamp(kind):
        return UNITS_PER_SECOND[kind.unit], 1
    if pa.types.is_integer(kind):
        return UNITS_PER_SECOND[unit], 1
    return (1, 86_400) if pa.types.is_date32(kind) else None


def _to_column_unit(time: int, units: int, seconds: int, stream_units: int) -> int:
    """Return a time of the stream in units of the column, rounded up, so that a comparison with it stays exact."""
    scaled = -(-time * units // (stream_units * seconds))
    return max(INT64_MIN, min(INT64_MAX, scaled))
