"""The types and names of table columns: which table type holds an Arrow type, and which names are allowed.

Tables have fewer types than Arrow. A type that tables lack becomes the next one that holds all its values; only
timestamps are truncated, to microseconds, which is Spark's precision. The types decide, never the values: 64-bit
integers do not fit a 32-bit column even while they happen to be small.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from floodmark.errors import TableUnfit

_MOST_DIGITS: Final = 38
_KEPT_TYPES: Final = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_date32,
    types.is_null,
)
_WIDENED_TYPES: Final = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_uint64, pa.decimal128(20, 0)),
    (types.is_float16, pa.float32()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.string()),
    (types.is_duration, pa.int64()),
    (types.is_string, pa.string()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_binary, pa.binary()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
)
_TYPE_NAMES: Final = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.null(): "null",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def table_type(kind: Any, column: str) -> Any:
    """Return the table type that holds the values of an Arrow type; null stays null, also inside nested types.

    >>> table_type(pa.timestamp("ns", "Europe/Berlin"), "at"), table_type(pa.uint32(), "n")
    (TimestampType(timestamp[us, tz=UTC]), DataType(int64))
    >>> table_type(pa.dictionary(pa.int8(), pa.large_string()), "name")
    DataType(string)
    """
    if any(is_type(kind) for is_type in _KEPT_TYPES):
        return kind
    for is_type, wider in _WIDENED_TYPES:
        if is_type(kind):
            return wider
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return table_type(kind.value_type, column)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string() if is_uuid(kind) else table_type(kind.storage_type, column)
    if types.is_interval(kind):
        return pa.string()
    if types.is_map(kind):
        values = pa.field("value", table_type(kind.item_type, f"{column}.value"), kind.item_field.nullable)
        return pa.map_(table_type(kind.key_type, f"{column}.key"), values)
    if is_list(kind):
        return list_type(table_type(kind.value_type, f"{column}[]"), nullable=kind.value_field.nullable)
    if types.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        return pa.struct([field.with_type(table_type(field.type, f"{column}.{field.name}")) for field in kind])
    raise TableUnfit(
        f"The column {column} has the type {kind} in the rows.",
        rule="Tables have no column type for it.",
        remedy="Cast the column in the source, such as to text, or leave it out there.",
        column=column,
        type=str(kind),
    )


def without_nulls(kind: Any) -> Any:
    """Return a type without its null-typed parts, such as fields of structs; None if nothing is left.

    >>> without_nulls(pa.struct([("a", pa.int8()), ("b", pa.null())]))
    StructType(struct<a: int8>)
    >>> without_nulls(pa.list_(pa.null())) is None
    True
    """
    if types.is_null(kind):
        return None
    if types.is_map(kind):
        key, value = without_nulls(kind.key_type), without_nulls(kind.item_type)
        return None if key is None or value is None else pa.map_(key, kind.item_field.with_type(value))
    if is_list(kind):
        value = without_nulls(kind.value_type)
        return None if value is None else list_type(value, nullable=kind.value_field.nullable)
    if types.is_struct(kind):
        kept = [(field, without_nulls(field.type)) for field in kind]
        fields = [field.with_type(inner) for field, inner in kept if inner is not None]
        return pa.struct(fields) if fields else None
    return kind


def all_nullable(kind: Any) -> Any:
    """Return a type whose parts are all nullable: a source that has no nulls today may have some later."""
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, all_nullable(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(all_nullable(kind.key_type), pa.field("value", all_nullable(kind.item_type)))
    if is_list(kind):
        return list_type(all_nullable(kind.value_type))
    return kind


def list_type(kind: Any, *, nullable: bool = True) -> Any:
    """Return the type of a list, with the element name that tables use."""
    return pa.list_(pa.field("element", kind, nullable))


def check_maps(kind: Any, column: str, *, is_inside: bool = False) -> None:
    """Refuse timestamps without a zone inside maps: deltalake would create a table that it cannot open.

    Such timestamps need a table feature, which deltalake enables only for columns, lists and structs.
    """
    if types.is_timestamp(kind) and kind.tz is None and is_inside:
        raise TableUnfit(
            f"The column {column} has timestamps without a zone inside a map.",
            rule="A table cannot have such a column.",
            remedy="Cast them in the source to timestamps with a zone, or to text.",
            column=column,
        )
    is_map = bool(types.is_map(kind))
    inner = [kind.key_type, kind.item_type] if is_map else [kind.value_type] if is_list(kind) else []
    for part in [field.type for field in kind] if types.is_struct(kind) else inner:
        check_maps(part, column, is_inside=is_inside or is_map)


def type_name(kind: Any) -> str:
    """Return the name of a type in tables.

    >>> type_name(pa.int64()), type_name(pa.decimal128(9, 2)), type_name(pa.list_(pa.date32()))
    ('long', 'decimal(9,2)', 'array<date>')
    """
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in kind)}>"
    return str(kind)


def is_list(kind: Any) -> bool:
    """Return whether a type is a list of any kind; a map is not."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_uuid(kind: Any) -> bool:
    """Return whether a type is Arrow's UUID, which tables store as text."""
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def _decimal(precision: int, scale: int) -> Any:
    """Return the table type of a decimal: scale from 0 to the precision, at most 38 digits; with more, text."""
    digits = max(precision - scale, precision) if scale < 0 else max(precision, scale)
    return pa.string() if digits > _MOST_DIGITS else pa.decimal128(digits, max(scale, 0))


_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")


def check_unique_names(names: list[str]) -> None:
    """Refuse rows that have a column twice."""
    seen = set()
    for name in names:
        if name in seen:
            raise _unfit_name(
                name,
                f"The rows have two columns {name}.",
                "The names of columns are unique.",
                "Rename one of them in the source, such as with AS in a query, or leave it out.",
            )
        seen.add(name)


def check_names(fields: Iterable[Any], inside: str = "") -> None:
    """Refuse names that tables cannot have, and names that differ only by case."""
    seen: dict[str, str] = {}
    for field in fields:
        name = f"{inside}{field.name}"
        if not field.name or _NOT_IN_NAMES & set(field.name):
            raise _unfit_name(
                name,
                f"A column is named {name!r}.",
                "Column names of a table have no blanks, tabs, line breaks or , ; { } ( ) =",
                "Rename it in the source, such as with AS in a query.",
            )
        if field.name.lower() in seen:
            raise _unfit_name(
                name,
                f"The columns {inside}{seen[field.name.lower()]} and {name} differ by case only.",
                "Spark ignores the case of column names.",
                "Rename one of them in the source, such as with AS in a query, or leave it out.",
            )
        seen[field.name.lower()] = field.name
        for kind in _structs(field.type):
            check_names(kind, f"{name}.")


def _structs(kind: Any) -> list[Any]:
    """Return the outermost structs of a type."""
    if types.is_struct(kind):
        return [kind]
    if types.is_map(kind):
        return _structs(kind.key_type) + _structs(kind.item_type)
    return _structs(kind.value_type) if is_list(kind) else []


def _unfit_name(column: str, fact: str, rule: str, remedy: str) -> TableUnfit:
    return TableUnfit(fact, rule=rule, remedy=remedy, column=column)


_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""The number of decimal digits of the largest value of an integer type."""
_FULL_DIGITS: Final = {pa.int8(): 2, pa.int16(): 4, pa.int32(): 9, pa.int64(): 18}
"""The number of decimal digits of which an integer type holds every combination."""
_EXACT: Final = {pa.float32(): (pa.int8(), pa.int16()), pa.float64(): (pa.int8(), pa.int16(), pa.int32(), pa.float32())}
"""The types whose values a float type holds without rounding."""


def type_holding(table: Any, rows: Any, *, grow: bool) -> Any:
    """Return the type that a table's column needs to hold rows of another type; None if there is none.

    Both are table types. The result is the column's own type; with `grow`, its structs also get the fields they lack.

    >>> type_holding(pa.int64(), pa.int32(), grow=False), type_holding(pa.int32(), pa.int64(), grow=True)
    (DataType(int64), None)
    >>> type_holding(pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), grow=True)
    StructType(struct<a: int8, b: int8>)
    """
    if types.is_null(rows) or rows == table:
        return table
    if types.is_struct(table) and types.is_struct(rows):
        return _struct_holding(table, rows, grow)
    if types.is_map(table) and types.is_map(rows):
        key = type_holding(table.key_type, rows.key_type, grow=False)
        value = type_holding(table.item_type, rows.item_type, grow=grow)
        return None if key is None or value is None else pa.map_(key, table.item_field.with_type(value))
    if is_list(table) and is_list(rows):
        value = type_holding(table.value_type, rows.value_type, grow=grow)
        return None if value is None else list_type(value, nullable=table.value_field.nullable)
    return table if _is_lossless(rows, table) else None


def union_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of a table that holds files of all these schemas, in order of first occurrence.

    The splits of a cell can have different columns. A column with two types is refused.

    >>> union_schema([pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("note", pa.string())])]).names
    ['id', 'note']
    """
    columns: dict[str, Any] = {}
    for schema in schemas:
        for field in schema:
            column = columns.setdefault(field.name, field)
            kind = _common_type(column.type, field.type)
            if kind is None:
                raise TableUnfit(
                    f"The column {field.name} is {type_name(column.type)} in some rows "
                    f"and {type_name(field.type)} in others.",
                    rule="All files of a table have one type for a column.",
                    remedy="Cast the column in the source, or create the table first, with the wider type.",
                    column=field.name,
                )
            columns[field.name] = column.with_type(kind).with_nullable(column.nullable or field.nullable)
    check_names(list(columns.values()))
    return pa.schema(list(columns.values()))


def _common_type(left: Any, right: Any) -> Any:
    """Return the type that holds both without converting a value, so that only the fields of structs may differ."""
    if left == right or not (types.is_nested(left) and types.is_nested(right)):
        return left if left == right else None
    kind = type_holding(left, right, grow=True)
    return kind if kind is not None and kind == _with_leaves_of(right, kind) else None


def _with_leaves_of(kind: Any, like: Any) -> Any:
    """Return the type `like` with the leaf types of `kind`: equal to `like`, unless a leaf had to be widened."""
    if types.is_struct(kind) and types.is_struct(like):
        own = {field.name: field.type for field in kind}
        return pa.struct(
            [
                field.with_type(_with_leaves_of(own[field.name], field.type)) if field.name in own else field
                for field in like
            ]
        )
    if types.is_map(kind) and types.is_map(like):
        value = like.item_field.with_type(_with_leaves_of(kind.item_type, like.item_type))
        return pa.map_(_with_leaves_of(kind.key_type, like.key_type), value)
    if is_list(kind) and is_list(like):
        return pa.list_(like.value_field.with_type(_with_leaves_of(kind.value_type, like.value_type)))
    return kind


def _struct_holding(table: Any, rows: Any, grow: bool) -> Any:
    current, incoming = {field.name: field for field in table}, {field.name: field for field in rows}
    if len(incoming) != rows.num_fields:
        return None
    fields = []
    for name, field in current.items():
        kind = field.type if name not in incoming else type_holding(field.type, incoming[name].type, grow=grow)
        if kind is None or (name not in incoming and not field.nullable):
            return None
        fields.append(field.with_type(kind))
    for name, field in incoming.items():
        kind = None if name in current else without_nulls(field.type)
        if kind is not None:
            if not grow:
                return None
            fields.append(pa.field(name, all_nullable(kind)))
    return pa.struct(fields)


def _is_lossless(rows: Any, table: Any) -> bool:
    if types.is_decimal(table):
        if rows in _DIGITS:
            return bool(table.precision - table.scale >= _DIGITS[rows])
        whole = table.precision - table.scale
        is_wider = types.is_decimal(rows) and table.scale >= rows.scale and whole >= rows.precision - rows.scale
        return bool(is_wider)
    if rows in _DIGITS and table in _DIGITS:
        return _DIGITS[rows] <= _DIGITS[table]
    if types.is_decimal(rows) and table in _FULL_DIGITS:
        return bool(rows.scale == 0 and rows.precision <= _FULL_DIGITS[table])
    return rows in _EXACT.get(table, ())
