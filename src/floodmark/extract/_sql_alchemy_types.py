"""Which types the columns of other databases have: as SQLAlchemy sees them declared, or as rows of a query show.

A query of a database that is neither PostgreSQL nor SQLite has the types that its first rows have. Where those hold
nothing but NULL, a column is a string; a query with CASTs, or a view that is read as a table, leaves nothing to guess.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlalchemy import Connection, inspect, types

from floodmark.extract._sql_columns import MOST_DIGITS, Column


def declared_columns(connection: Connection, table: str, names: Sequence[str]) -> list[Column]:
    """Return the columns of a table or a view, in the order of their names."""
    schema, _, name = table.rpartition(".")
    declared = {str(one["name"]): one["type"] for one in inspect(connection).get_columns(name, schema or None)}
    return [Column(one, arrow_type(declared.get(one)), str(declared.get(one, ""))) for one in names]


def arrow_type(kind: Any) -> pa.DataType:
    """Return the type of a column that is declared so.

    >>> arrow_type(types.Numeric(10, 2)), arrow_type(types.DateTime(timezone=True))
    (Decimal128Type(decimal128(10, 2)), TimestampType(timestamp[us, tz=UTC]))
    """
    if isinstance(kind, types.Boolean):
        return pa.bool_()
    if isinstance(kind, types.Integer):
        return pa.int64()
    if isinstance(kind, types.Float):
        return pa.float64()
    if isinstance(kind, types.Numeric):
        if kind.precision and kind.precision <= MOST_DIGITS:
            return pa.decimal128(kind.precision, kind.scale or 0)
        return pa.string()
    if isinstance(kind, types.DateTime):
        return pa.timestamp("us", "UTC" if kind.timezone else None)
    if isinstance(kind, types.Date):
        return pa.date32()
    return pa.binary() if isinstance(kind, types.LargeBinary) else pa.string()


def inferred_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Column]:
    """Return the columns of rows.

    >>> [column.type for column in inferred_columns(["a", "b"], [(None, 1), ("x", 2.5)])]
    [DataType(string), DataType(double)]
    """
    return [Column(name, _inferred([row[place] for row in rows])) for place, name in enumerate(names)]


def cleaned(values: Sequence[Any], column: Column, zone: ZoneInfo) -> Sequence[Any]:
    """Return values as Arrow takes them for a column: texts of what has none, times without a zone, exact numbers."""
    kind = column.arrives
    if pa.types.is_string(kind):
        return [one if one is None or isinstance(one, str) else _text(one) for one in values]
    if pa.types.is_binary(kind):
        return [bytes(one) if isinstance(one, memoryview | bytearray) else one for one in values]
    if pa.types.is_decimal(kind):
        return [Decimal(str(one)) if isinstance(one, int | float) else one for one in values]
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return [
            one.astimezone(zone).replace(tzinfo=None) if isinstance(one, datetime) and one.tzinfo else one
            for one in values
        ]
    if pa.types.is_boolean(kind):
        return [bool(one) if isinstance(one, int) and one in (0, 1) else one for one in values]
    return values


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _inferred(values: list[Any]) -> pa.DataType:
    kinds = {type(one) for one in values if one is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {datetime}:
        has_zone = {one.tzinfo is not None for one in values if one is not None}
        return pa.timestamp("us", "UTC" if has_zone == {True} else None)
    if kinds == {date}:
        return pa.date32()
    return pa.binary() if kinds and kinds <= {bytes, bytearray, memoryview} else pa.string()
