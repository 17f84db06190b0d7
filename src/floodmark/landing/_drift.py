"""What the columns of a table become, so that rows of another shape fit in, and nothing of them is lost.

The types decide, never the values: a source whose whole numbers have 64 bits does not fit a column of 32 on the day
on which they happen to be small, and fail on the next.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from floodmark.errors import TableUnfit
from floodmark.landing._arrow_types import all_nullable, is_list, list_of, shown, without_nulls
from floodmark.landing._column_names import check_names

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""How many decimal digits their largest numbers have."""
_WHOLE: Final = {pa.int8(): 2, pa.int16(): 4, pa.int32(): 9, pa.int64(): 18}
"""How many nines they hold."""
_EXACT: Final = {pa.float32(): (pa.int8(), pa.int16()), pa.float64(): (pa.int8(), pa.int16(), pa.int32(), pa.float32())}
"""What a float holds without rounding."""


def holding(table: Any, rows: Any, *, grow: bool) -> Any:
    """Return the type that a table's column must have to hold these rows; None if there is none.

    Both are types of tables. It is the column's own type, unless structs have fields that it lacks, and may grow.

    >>> holding(pa.int64(), pa.int32(), grow=False), holding(pa.int32(), pa.int64(), grow=True)
    (DataType(int64), None)
    >>> holding(pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), grow=True)
    StructType(struct<a: int8, b: int8>)
    """
    if types.is_null(rows) or rows == table:
        return table
    if types.is_struct(table) and types.is_struct(rows):
        return _struct(table, rows, grow)
    if types.is_map(table) and types.is_map(rows):
        key = holding(table.key_type, rows.key_type, grow=False)
        value = holding(table.item_type, rows.item_type, grow=grow)
        return None if key is None or value is None else pa.map_(key, table.item_field.with_type(value))
    if is_list(table) and is_list(rows):
        value = holding(table.value_type, rows.value_type, grow=grow)
        return None if value is None else list_of(value, nullable=table.value_field.nullable)
    return table if _loses_nothing(rows, table) else None


def united(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of a table that has to hold files of all these schemas, in the order in which they come.

    Parts of a cell can bring columns that others lack. If they bring one column with two types, they are refused.

    >>> united([pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("note", pa.string())])]).names
    ['id', 'note']
    """
    found: dict[str, Any] = {}
    for schema in schemas:
        for one in schema:
            known = found.setdefault(one.name, one)
            kind = _joined(known.type, one.type)
            if kind is None:
                raise TableUnfit(
                    f"The column {one.name} is {shown(known.type)} in some rows and {shown(one.type)} in others.",
                    rule="All files of a table have one type for a column.",
                    remedy="Cast it where the rows come from, or make the table first, with the wider type.",
                    column=one.name,
                )
            found[one.name] = known.with_type(kind).with_nullable(known.nullable or one.nullable)
    check_names(list(found.values()))
    return pa.schema(list(found.values()))


def _joined(left: Any, right: Any) -> Any:
    """Return the type that holds both, without any value being written otherwise: only structs can differ."""
    if left == right or not (types.is_nested(left) and types.is_nested(right)):
        return left if left == right else None
    kind = holding(left, right, grow=True)
    return kind if kind is not None and kind == _leaves_of(right, kind) else None


def _leaves_of(kind: Any, like: Any) -> Any:
    """Return the type `like` with those leaves that `kind` has: equal, unless a leaf would have to be widened."""
    if types.is_struct(kind) and types.is_struct(like):
        have = {one.name: one for one in kind}
        return pa.struct(
            [one if one.name not in have else one.with_type(_leaves_of(have[one.name].type, one.type)) for one in like]
        )
    if types.is_map(kind) and types.is_map(like):
        value = like.item_field.with_type(_leaves_of(kind.item_type, like.item_type))
        return pa.map_(_leaves_of(kind.key_type, like.key_type), value)
    if is_list(kind) and is_list(like):
        return pa.list_(like.value_field.with_type(_leaves_of(kind.value_type, like.value_type)))
    return kind


def _struct(table: Any, rows: Any, grow: bool) -> Any:
    have, come = {field.name: field for field in table}, {field.name: field for field in rows}
    if len(come) != rows.num_fields:
        return None
    fields = []
    for name, field in have.items():
        kind = field.type if name not in come else holding(field.type, come[name].type, grow=grow)
        if kind is None or (name not in come and not field.nullable):
            return None
        fields.append(field.with_type(kind))
    for name, field in come.items():
        kind = None if name in have else without_nulls(field.type)
        if kind is not None:
            if not grow:
                return None
            fields.append(pa.field(name, all_nullable(kind)))
    return pa.struct(fields)


def _loses_nothing(rows: Any, table: Any) -> bool:
    if types.is_decimal(table):
        if rows in _DIGITS:
            return bool(table.precision - table.scale >= _DIGITS[rows])
        whole = table.precision - table.scale
        is_wider = types.is_decimal(rows) and table.scale >= rows.scale and whole >= rows.precision - rows.scale
        return bool(is_wider)
    if rows in _DIGITS and table in _DIGITS:
        return _DIGITS[rows] <= _DIGITS[table]
    if types.is_decimal(rows) and table in _WHOLE:
        return bool(rows.scale == 0 and rows.precision <= _WHOLE[table])
    return rows in _EXACT.get(table, ())
