"""Which columns records have, found in the records themselves.

| found | becomes |
|---|---|
| true and false | boolean |
| whole numbers | bigint; a text if one of them is larger |
| numbers, some with fractions | double |
| texts | string, also if they look like times |
| objects | a struct of all names that occur |
| lists | a list of what all their elements are |
| any two of these | string, with what is no text written as JSON |
| nothing but null, {} and [] | nothing: such a column is left out |
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

_NULL: Final = pa.null()
_BOOL: Final = pa.bool_()
_INT: Final = pa.int64()
_FLOAT: Final = pa.float64()
_TEXT: Final = pa.string()
_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1

Columns = Mapping[str, pa.DataType]


def columns_of(records: Sequence[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the columns of records, in the order in which they first occur; also those that say nothing yet.

    >>> {name: str(kind) for name, kind in columns_of([{"id": 1, "x": None}, {"id": 2.5, "of": {"a": ["b"]}}]).items()}
    {'id': 'double', 'x': 'null', 'of': 'struct<a: list<item: string>>'}
    """
    names = dict.fromkeys(chain.from_iterable(records))
    return {name: type_of([record.get(name) for record in records]) for name in names}


def type_of(values: Sequence[Any]) -> pa.DataType:
    """Return the type that holds all values: the same, however they are divided and united again."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if not kinds:
        return _NULL
    if kinds == {str}:
        return _TEXT
    if kinds == {dict}:
        return pa.struct(list(columns_of([value for value in values if value is not None]).items()))
    if kinds == {list}:
        return pa.list_(type_of(list(chain.from_iterable(value for value in values if value is not None))))
    if kinds == {bool}:
        return _BOOL
    if kinds <= {int, float}:
        whole = [value for value in values if type(value) is int]
        if whole and (min(whole) < _SMALLEST or max(whole) > _LARGEST):
            return _TEXT
        return _FLOAT if float in kinds else _INT
    return _TEXT


def pruned(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without what says nothing, or None if nothing is left.

    >>> pruned(pa.struct([("a", pa.null()), ("b", pa.int64())])), pruned(pa.list_(pa.null()))
    (StructType(struct<b: int64>), None)
    """
    if pa.types.is_struct(kind):
        fields = {name: pruned(inner) for name, inner in _fields(kind).items()}
        kept = [(name, inner) for name, inner in fields.items() if inner is not None]
        return pa.struct(kept) if kept else None
    if pa.types.is_list(kind):
        inner = pruned(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None if pa.types.is_null(kind) else kind


def united(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds what either holds.

    >>> united(pa.int64(), pa.float64()), united(pa.int64(), pa.string())
    (DataType(double), DataType(string))
    """
    if one == other:
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if {one, other} == {_INT, _FLOAT}:
        return _FLOAT
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = united_columns(_fields(one), _fields(other))
        return pa.struct(list(fields.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(united(one.value_type, other.value_type))
    return _TEXT


def united_columns(one: Columns, other: Columns) -> dict[str, pa.DataType]:
    """Return the columns that hold what either have."""
    found = dict(one)
    for name, kind in other.items():
        found[name] = united(found[name], kind) if name in found else kind
    return found


def widened(given: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return a given type, with the fields of objects in it that were found and that it does not name.

    >>> widened(pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())]))
    StructType(struct<a: int32, b: string>)
    """
    if pa.types.is_struct(given) and pa.types.is_struct(found):
        others = _fields(found)
        known = {n: widened(kind, others[n]) if n in others else kind for n, kind in _fields(given).items()}
        return pa.struct(list({**known, **{n: kind for n, kind in others.items() if n not in known}}.items()))
    if pa.types.is_list(given) and pa.types.is_list(found):
        return pa.list_(widened(given.value_type, found.value_type))
    return given


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind}
