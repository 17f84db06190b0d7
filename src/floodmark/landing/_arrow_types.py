"""The types that columns of tables have, and which of them each type of Arrow becomes.

Tables know fewer types than sources do. What a table has no type for becomes the next one that holds it all; moments
alone are cut to microseconds, which is what Spark knows.
"""

from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from floodmark.errors import TableUnfit

_MOST_DIGITS: Final = 38
_AS_THEY_ARE: Final = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_date32,
    types.is_null,
)
_AS: Final = (
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
_NAMES: Final = {
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
    """Return the type of a table's column that holds what this type of Arrow holds; null stays null, also inside.

    >>> table_type(pa.timestamp("ns", "Europe/Berlin"), "at"), table_type(pa.uint32(), "n")
    (TimestampType(timestamp[us, tz=UTC]), DataType(int64))
    >>> table_type(pa.dictionary(pa.int8(), pa.large_string()), "name")
    DataType(string)
    """
    if any(is_it(kind) for is_it in _AS_THEY_ARE):
        return kind
    for is_it, becomes in _AS:
        if is_it(kind):
            return becomes
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
        return list_of(table_type(kind.value_type, f"{column}[]"), nullable=kind.value_field.nullable)
    if types.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        return pa.struct([field.with_type(table_type(field.type, f"{column}.{field.name}")) for field in kind])
    raise TableUnfit(
        f"The column {column} is {kind} in the rows.",
        rule="Tables have no type that holds that.",
        remedy="Cast it where the rows come from, or leave it out.",
        column=column,
        type=str(kind),
    )


def without_nulls(kind: Any) -> Any:
    """Return a type without the parts of which nothing is known but that they are null; None if nothing is left.

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
        return None if value is None else list_of(value, nullable=kind.value_field.nullable)
    if types.is_struct(kind):
        kept = [(field, without_nulls(field.type)) for field in kind]
        fields = [field.with_type(inner) for field, inner in kept if inner is not None]
        return pa.struct(fields) if fields else None
    return kind


def all_nullable(kind: Any) -> Any:
    """Return a type whose parts may all be null: what a source promises today, it need not promise for ever."""
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, all_nullable(one.type)) for one in kind])
    if types.is_map(kind):
        return pa.map_(all_nullable(kind.key_type), pa.field("value", all_nullable(kind.item_type)))
    if is_list(kind):
        return list_of(all_nullable(kind.value_type))
    return kind


def list_of(kind: Any, *, nullable: bool = True) -> Any:
    """Return the type of a list, with the name for its elements that tables have."""
    return pa.list_(pa.field("element", kind, nullable))


def check_maps(kind: Any, column: str, *, is_inside: bool = False) -> None:
    """Refuse moments without a zone inside of maps: with them, deltalake makes tables that it cannot open.

    A table with such moments says so in its log, and deltalake sees those in lists and structs only.
    """
    if types.is_timestamp(kind) and kind.tz is None and is_inside:
        raise TableUnfit(
            f"The column {column} has moments without a zone inside of a map.",
            rule="No table can be given such a column.",
            remedy="Cast them where the rows come from, to moments with a zone or to texts.",
            column=column,
        )
    is_map = bool(types.is_map(kind))
    inner = [kind.key_type, kind.item_type] if is_map else [kind.value_type] if is_list(kind) else []
    for one in [field.type for field in kind] if types.is_struct(kind) else inner:
        check_maps(one, column, is_inside=is_inside or is_map)


def shown(kind: Any) -> str:
    """Return the name that tables have for a type.

    >>> shown(pa.int64()), shown(pa.decimal128(9, 2)), shown(pa.list_(pa.date32()))
    ('long', 'decimal(9,2)', 'array<date>')
    """
    if kind in _NAMES:
        return _NAMES[kind]
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_map(kind):
        return f"map<{shown(kind.key_type)},{shown(kind.item_type)}>"
    if is_list(kind):
        return f"array<{shown(kind.value_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{shown(field.type)}' for field in kind)}>"
    return str(kind)


def is_list(kind: Any) -> bool:
    """Return whether it is a list of any kind; a map is none."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_uuid(kind: Any) -> bool:
    """Return whether it is a UUID, which tables have as text."""
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def _decimal(precision: int, scale: int) -> Any:
    """Return the decimal of tables, whose scale is between 0 and the precision, which is 38 at most; else text."""
    digits = max(precision - scale, precision) if scale < 0 else max(precision, scale)
    return pa.string() if digits > _MOST_DIGITS else pa.decimal128(digits, max(scale, 0))
