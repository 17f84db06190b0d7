"""A quick look at single events: whether they will surely become a row of the schema when their turn comes."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa

from floodmark.streams._events import row_batch

_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
Check = Callable[[Any], bool]


class RowCheck:
    """Refuses an event that does not fit, at once. What it cannot tell by a glance it converts to see.

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
        """Refuse an event that does not fit."""
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


def _check_of(kind: Any) -> Check:
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
