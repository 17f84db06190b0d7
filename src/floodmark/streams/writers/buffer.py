"""The buffer of a writer: events that are not sent yet, in order, checked against the schema."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodmark.errors import EventInvalid
from floodmark.streams.events import (
    Events,
    key_array,
    payload_batch,
    payload_of,
    points_of,
    raw_key,
    row_batch,
    table_batch,
)
from floodmark.streams.layout.layout import Key, key_point

MAX_SINGLE_EVENTS: Final = 20_000
"""A writer flushes after this many events written one at a time."""

MAX_EVENTS_PER_SEND: Final = 131_072
"""A writer flushes after this many events of any kind, and sends at most this many at once."""

_POINT_STEP: Final = 0.6180339887498949
"""The golden ratio: points that advance by it spread evenly over the key space."""


class EventBuffer:
    """Events that wait to be sent. Events without a key go to one segment per batch, and to another with the next."""

    __slots__ = ("_check", "_in_flight", "_keyless_point", "_keys", "_points", "_ready", "_rows", "_schema")

    def __init__(self, schema: Any) -> None:
        """Accept events of this schema; None for a stream without a schema."""
        self._schema = schema
        self._check = None if schema is None else RowCheck(schema)
        self._rows: list[Any] = []
        self._keys: list[Key | None] = []
        self._points: list[float] = []
        self._ready: deque[Events] = deque()
        self._in_flight: Events | None = None
        self._keyless_point = 0.0

    def __len__(self) -> int:
        """Return how many events are buffered."""
        return len(self._rows) + sum(map(len, self._ready)) + (0 if self._in_flight is None else len(self._in_flight))

    @property
    def is_full(self) -> bool:
        """Whether the writer should flush."""
        return len(self._rows) >= MAX_SINGLE_EVENTS or len(self) >= MAX_EVENTS_PER_SEND

    def add(self, event: object, key: Key | None) -> None:
        """Add an event, or refuse it."""
        point = self._keyless_point if key is None else key_point(key)
        if self._check is None:
            self._rows.append(payload_of(event))
            self._keys.append(key)
        else:
            self._check(event)
            # Copy the event, since the caller may reuse its dict.
            self._rows.append(dict(event))  # type: ignore[call-overload]
        self._points.append(point)

    def add_batch(self, data: Any, key: object) -> None:
        """Add a table or an iterable of rows, or refuse it as a whole."""
        is_arrow = isinstance(data, pa.Table | pa.RecordBatch)
        if not is_arrow and not isinstance(data, pa.Array | pa.ChunkedArray):
            data = list(data)
        count = data.num_rows if is_arrow else len(data)
        keys = key_array(key, data, count)
        points = np.full(count, self._keyless_point) if keys is None else points_of(keys, self._keyless_point)
        batch = self._batch_of(data, keys, is_arrow=is_arrow)
        if not count:
            return
        self._pack_rows()
        events = Events(batch, points)
        self._ready.extend(events.slice(start, MAX_EVENTS_PER_SEND) for start in range(0, count, MAX_EVENTS_PER_SEND))
        self._keyless_point = (self._keyless_point + _POINT_STEP) % 1.0

    def next(self) -> Events | None:
        """Return the next events to send: the same ones until `done`, so that a retry sends exactly the same events."""
        if self._in_flight is not None:
            return self._in_flight
        self._pack_rows()
        if not self._ready:
            return None
        batches = [self._ready.popleft()]
        rows = len(batches[0])
        while self._ready and rows + len(self._ready[0]) <= MAX_EVENTS_PER_SEND:
            rows += len(self._ready[0])
            batches.append(self._ready.popleft())
        self._in_flight = Events.join(batches)
        return self._in_flight

    def done(self) -> None:
        """Discard the events that `next` returned last: they were sent."""
        self._in_flight = None

    def _pack_rows(self) -> None:
        """Turn the rows that were added one at a time into a batch."""
        if not self._rows:
            return
        if self._schema is None:
            batch = payload_batch(self._rows, [raw_key(key) for key in self._keys])
        else:
            batch = row_batch(self._rows, self._schema)
        self._ready.append(Events(batch, np.array(self._points)))
        self._rows, self._keys, self._points = [], [], []
        self._keyless_point = (self._keyless_point + _POINT_STEP) % 1.0

    def _batch_of(self, data: Any, keys: Any, *, is_arrow: bool) -> Any:
        if self._schema is not None:
            return table_batch(data, self._schema) if is_arrow else row_batch(_rows_of(data), self._schema)
        if is_arrow:
            raise EventInvalid(
                "A table was written to a stream without a schema.",
                rule="Without a schema an event is bytes, text, or a value that JSON can represent.",
                remedy="Create the stream with a schema, or write the rows as table.to_pylist().",
            )
        payloads = [payload_of(event) for event in _rows_of(data)]
        raw = [None] * len(payloads) if keys is None else keys.cast(pa.binary()).to_pylist()
        return payload_batch(payloads, raw)


def _rows_of(data: Any) -> Sequence[Any]:
    rows: Sequence[Any] = data.to_pylist() if isinstance(data, pa.Array | pa.ChunkedArray) else data
    return rows


_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
ValueCheck = Callable[[Any], bool]


class RowCheck:
    """Refuses an event that does not fit the schema when it is written. Cheap type checks come first, then conversion.

    >>> RowCheck(pa.schema([("id", pa.int32())]))({"id": 2**31})
    Traceback (most recent call last):
    floodmark.errors.EventInvalid: An event does not fit: ... [event-invalid]
    """

    __slots__ = ("_checks", "_needed", "_schema")

    def __init__(self, schema: Any) -> None:
        """Check against this schema."""
        self._schema = schema
        self._checks = {field.name: _check_of(field.type) for field in schema}
        self._needed = frozenset(field.name for field in schema if not field.nullable)

    def __call__(self, event: object) -> None:
        """Raise `EventInvalid` if the event does not fit the schema."""
        if not self._surely_fits(event):
            row_batch([event], self._schema)

    def _surely_fits(self, event: object) -> bool:
        if not isinstance(event, Mapping) or any(event.get(name) is None for name in self._needed):
            return False
        checks = self._checks
        for name, value in event.items():
            check = checks.get(name)
            if check is None or not (value is None or check(value)):
                return False
        return True


def _check_of(kind: Any) -> ValueCheck:
    bits = _BITS.get(kind)
    if bits is not None:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
        return lambda value: type(value) is int and low <= value < high
    if pa.types.is_floating(kind):
        return lambda value: type(value) is float
    if pa.types.is_boolean(kind):
        return lambda value: type(value) is bool
    if pa.types.is_string(kind):
        return lambda value: type(value) is str and value.isascii()
    if pa.types.is_binary(kind):
        return lambda value: type(value) is bytes
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        has_zone = kind.tz is not None
        return lambda value: type(value) is datetime and (value.tzinfo is not None) == has_zone
    if pa.types.is_date32(kind):
        return lambda value: type(value) is date
    return lambda value: False
