"""Fits rows to the columns of a table. The two schemas decide, before any row is read.

Values that fit no column can be kept as JSON in a text column, without loss:

| value | in JSON |
|---|---|
| integers, floats, booleans, texts | as they are; NaN and the infinities as texts |
| decimals | as texts, with all their digits |
| timestamps | `"2026-01-01T00:00:00.000001Z"`; those without a zone have no Z |
| dates | `"2026-01-01"` |
| binary | base64 |
| lists, structs | arrays, objects |
| maps | an array of `[key, value]` |
"""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from floodmark.errors import InvalidOption, TableUnfit
from floodmark.ingest.job.job import DRIFTS, Drift
from floodmark.ingest.landing.column_types import (
    all_nullable,
    check_maps,
    check_names,
    check_unique_names,
    is_list,
    is_uuid,
    table_type,
    type_holding,
    type_name,
    without_nulls,
)

_RULE: Final = "The rows of a cell have the table's columns, and types that its columns hold without loss."


@dataclass(frozen=True, slots=True)
class RowConverter:
    """Converts rows of one schema to rows of the table. It can be pickled."""

    rows: pa.Schema
    """The schema of the rows to convert."""
    schema: pa.Schema
    """The schema of the converted rows: the columns of the table, then those to be added to it."""
    added: tuple[pa.Field, ...]
    """What must be added to an existing table first: new columns, and structs with new fields; all nullable."""
    rescued: tuple[str, ...]
    """The columns whose values are kept as JSON."""
    constants: Mapping[str, Any]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the converted rows."""
        incoming = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        for name, value in self.constants.items():
            # A rescued constant has no column in the table whose type it could take.
            kind = self.schema.field(name).type if name in self.schema.names and name not in self.rescued else None
            incoming[name] = _repeat(value, kind, batch.num_rows)
        columns = []
        for column in self.schema:
            if column.name == RESCUED_COLUMN and self.rescued:
                rescued = {name: incoming[name] for name in self.rescued}
                columns.append(rescued_texts(rescued, batch.num_rows))
            elif column.name in incoming and column.name not in self.rescued:
                columns.append(convert_column(incoming[column.name], column))
            else:
                columns.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class RowFitter:
    """Decides how rows fit a table that exists or is still to be created. It can be pickled.

    >>> table = pa.schema([("id", pa.int64()), ("note", pa.string())])
    >>> fitted = RowFitter(table, "evolve").fit(pa.schema([("id", pa.int32()), ("size", pa.float64())]))
    >>> fitted.schema.names, [field.name for field in fitted.added]
    (['id', 'note', 'size'], ['size'])
    >>> RowFitter(table, "freeze").fit(pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The column id is long in the table and string in the rows. ... [table-unfit]
    """

    table: pa.Schema | None
    """The columns of the table; None if the table is created from the rows."""
    drift: Drift = "freeze"
    """Columns that the table lacks are added (evolve), refused (freeze) or kept as JSON in `_rescued` (rescue)."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns with one value for all rows, for rows that lack them."""
    required: tuple[str, ...] = ()
    """Columns that rows must have, such as keys: they are neither rescued nor filled with nulls."""

    def __post_init__(self) -> None:
        """Refuse an unknown drift."""
        if self.drift not in DRIFTS:
            raise InvalidOption(
                f"drift is {self.drift!r}.",
                rule="It is 'evolve', 'freeze' or 'rescue'.",
                remedy='Write drift = "evolve", drift = "freeze" or drift = "rescue".',
                option="drift",
            )

    def fit(self, rows: pa.Schema) -> RowConverter:
        """Return the converter for rows with these columns; refuse them if a column does not fit."""
        check_unique_names(rows.names)
        constants = {name: value for name, value in self.constants.items() if name not in rows.names}
        incoming = {column.name: table_type(column.type, column.name) for column in rows}
        incoming |= {name: table_type(_constant_type(name, value), name) for name, value in constants.items()}
        self._check_required(incoming)
        rescued: list[str] = []
        if self.table is None:
            columns = _new_table_columns(incoming)
        else:
            columns, rescued = self._match_columns(self.table, incoming, constants)
        # Rows that come from the table itself have the column too, with values rescued earlier.
        is_own = self.table is not None and RESCUED_COLUMN in self.table.names and not rescued
        if self.drift == "rescue" and RESCUED_COLUMN in incoming and not is_own:
            raise _unfit_column(
                RESCUED_COLUMN,
                f"The rows have a column {RESCUED_COLUMN}.",
                f'With drift = "rescue", values that fit no column are kept in the column {RESCUED_COLUMN}.',
                'Rename it in the source, such as with AS in a query, or write drift = "evolve".',
            )
        if self.drift == "rescue":
            columns = _with_rescued(columns)
        check_names(columns)
        current = {column.name: column.type for column in (() if self.table is None else _plain_schema(self.table))}
        new = tuple(column for column in columns if current.get(column.name) != column.type)
        for column in new:
            check_maps(column.type, column.name)
        schema, added = pa.schema(columns), () if self.table is None else new
        return RowConverter(rows, schema, added, tuple(rescued), constants)

    def _match_columns(
        self, table: pa.Schema, incoming: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> tuple[list[Any], list[str]]:
        """Return the columns that the table needs for these rows, and the names of the rescued columns."""
        columns, rescued = [], []
        for column in _plain_schema(table):
            name, kind = column.name, column.type
            if name in incoming and not (name in constants and _is_in_range(kind, constants[name])):
                kind = type_holding(column.type, incoming[name], grow=self.drift == "evolve")
            if kind is None and self.drift == "rescue" and column.nullable and name not in self.required:
                rescued.append(name)
                kind = column.type
            if kind is None:
                raise self._type_mismatch(column, incoming[name])
            if name not in incoming and not column.nullable:
                raise _unfit_column(
                    name,
                    f"The rows have no column {name}.",
                    "The table's column is NOT NULL.",
                    "Add it to the source's columns, or make the table's column nullable.",
                )
            columns.append(column.with_type(kind))
        for name, kind in incoming.items():
            added = without_nulls(kind)
            if name in table.names or types.is_null(kind):
                continue
            if self.drift == "rescue":
                rescued.append(name)
            elif added is not None:
                if self.drift == "freeze":
                    raise _extra_column(name, added)
                columns.append(pa.field(name, all_nullable(added)))
        return columns, rescued

    def _check_required(self, incoming: Mapping[str, Any]) -> None:
        for name in self.required:
            if name not in incoming:
                similar = [other for other in incoming if other.lower() == name.lower()]
                raise _unfit_column(
                    name,
                    f"The rows have no column {name}" + (f", but {similar[0]}." if similar else "."),
                    "The target names it as a key, a range or a partition column.",
                    "Add it to the source's columns under this name, or name another column in [target].",
                )

    def _type_mismatch(self, column: Any, rows: Any) -> TableUnfit:
        path, table_kind, rows_kind = _first_mismatch(column.type, rows, column.name)
        rescue = "" if self.drift == "rescue" or column.name in self.required else ', or write drift = "rescue"'
        return TableUnfit(
            f"The column {path} is {type_name(table_kind)} in the table and {type_name(rows_kind)} in the rows.",
            rule=_RULE,
            remedy=f"Cast it in the source, change the table's column{rescue}.",
            column=column.name,
            table=type_name(column.type),
            rows=type_name(rows),
        )


def _new_table_columns(incoming: Mapping[str, Any]) -> list[Any]:
    """Return the columns of a table that is created from rows with these columns."""
    kinds = {name: without_nulls(kind) for name, kind in incoming.items()}
    columns = [pa.field(name, all_nullable(kind)) for name, kind in kinds.items() if kind is not None]
    if not columns:
        raise TableUnfit(
            "There is no table yet, and the rows have only columns of the type null, or none.",
            rule="A table is created from the rows, and has at least one column.",
            remedy="Create the table first, or start with a range that has rows.",
        )
    return columns


def _extra_column(name: str, kind: Any) -> TableUnfit:
    return TableUnfit(
        f"The rows have a column {name}, {type_name(kind)}, and the table has no such column.",
        rule=_RULE,
        remedy='Write drift = "evolve" or drift = "rescue" in [target], or leave it out of the source\'s columns.',
        column=name,
        rows=type_name(kind),
    )


def _plain_schema(table: pa.Schema) -> list[Any]:
    """Return the columns of a table with comparable types and without metadata."""
    return [pa.field(column.name, table_type(column.type, column.name), column.nullable) for column in table]


def _with_rescued(columns: list[Any]) -> list[Any]:
    for column in columns:
        if column.name == RESCUED_COLUMN and (column.type != pa.string() or not column.nullable):
            raise _unfit_column(
                RESCUED_COLUMN,
                f"The table's column {RESCUED_COLUMN} is {type_name(column.type)}"
                f"{'' if column.nullable else ', NOT NULL'}.",
                f'With drift = "rescue", {RESCUED_COLUMN} is a nullable text column.',
                'Write drift = "evolve" or drift = "freeze".',
            )
    if any(column.name == RESCUED_COLUMN for column in columns):
        return columns
    return [*columns, pa.field(RESCUED_COLUMN, pa.string())]


def _is_in_range(kind: Any, value: Any) -> bool:
    """Return whether a constant is an integer that an integer type holds: a Python int has no width of its own."""
    if not isinstance(value, int) or isinstance(value, bool) or not types.is_signed_integer(kind):
        return False
    return bool(-(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1))


def _constant_type(name: str, value: Any) -> Any:
    try:
        return pa.scalar(value).type
    except (OverflowError, pa.ArrowInvalid) as error:
        raise _unfit_column(
            name,
            f"The column {name} has a constant of the type {type(value).__name__} that no table column holds.",
            "A constant is a text, a 64-bit integer, a float, a boolean, a date or a timestamp.",
            "Write the unit's field as text.",
        ) from error


def _repeat(value: Any, kind: Any, rows: int) -> Any:
    scalar = pa.scalar(value, kind) if kind is not None and _is_in_range(kind, value) else pa.scalar(value)
    return pa.nulls(rows, scalar.type) if value is None else pa.repeat(scalar, rows)


def _first_mismatch(table: Any, rows: Any, path: str) -> tuple[str, Any, Any]:
    """Return the path inside a column at which two types differ, and both types there."""
    if types.is_struct(table) and types.is_struct(rows):
        incoming = {field.name: field.type for field in rows}
        for field in table:
            if field.name in incoming and type_holding(field.type, incoming[field.name], grow=True) is None:
                return _first_mismatch(field.type, incoming[field.name], f"{path}.{field.name}")
    elif is_list(table) and is_list(rows):
        return _first_mismatch(table.value_type, rows.value_type, f"{path}[]")
    return path, table, rows


def _unfit_column(column: str, fact: str, rule: str, remedy: str) -> TableUnfit:
    return TableUnfit(fact, rule=rule, remedy=remedy, column=column)


_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint8).reshape(256, 2)
_UUID_DIGIT_INDEXES: Final = np.array([index for index in range(36) if index not in (8, 13, 18, 23)])


def convert_column(array: Any, field: Any, column: str = "", outer_nulls: int = 0) -> Any:
    """Return a column with the type of a table's field.

    A null in a NOT NULL field, or a value out of the range of the type, is an error. `outer_nulls` is the number of
    nulls that come from the struct around the field, which are allowed.

    >>> convert_column(pa.array([1, None], pa.uint8()), pa.field("n", pa.int64())).to_pylist()
    [1, None]
    """
    column = column or field.name
    if not field.nullable and array.null_count > outer_nulls:
        raise TableUnfit(
            f"The column {column} is null in {array.null_count - outer_nulls} of {len(array)} rows.",
            rule="The table's column is NOT NULL.",
            remedy="Exclude such rows with `where` in [source], or make the table's column nullable.",
            column=column,
        )
    if array.type == field.type:
        return array
    try:
        return _convert(array, field, column, outer_nulls)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # Arrow's message quotes the value, which must not reach a log.
        raise TableUnfit(
            f"The column {column} has a value of the type {array.type} that does not fit {field.type} in the table.",
            rule="Values lie in the range of the table's type; for timestamps that is 64 bits of microseconds.",
            remedy="Correct such values in the source, or exclude such rows with `where` in [source].",
            column=column,
            type=str(array.type),
        ) from (None if isinstance(error, pa.ArrowInvalid) else error)


def _convert(array: Any, field: Any, column: str, outer_nulls: int) -> Any:
    kind, to = array.type, field.type
    if isinstance(kind, pa.BaseExtensionType):
        return _uuid_texts(array) if is_uuid(kind) else convert_column(array.storage, field, column, outer_nulls)
    # Decode first: the values of a dictionary can be null too.
    if types.is_dictionary(kind):
        return convert_column(array.dictionary_decode(), field, column, outer_nulls)
    if types.is_run_end_encoded(kind):
        return convert_column(pc.run_end_decode(array), field, column, outer_nulls)
    if types.is_null(kind):
        return pa.nulls(len(array), to)
    if types.is_struct(to):
        return _convert_struct(array, to, column)
    if types.is_map(to):
        return _convert_map(array, to, column)
    if is_list(to):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int64()).cast(pa.int32())
        values = convert_column(array.flatten(), to.value_field, f"{column}[]")
        return pa.ListArray.from_arrays(offsets, values, type=to, mask=array.is_null())
    return _convert_leaf(array, to)


def _convert_leaf(array: Any, to: Any) -> Any:
    kind = array.type
    if types.is_timestamp(kind) and kind.unit == "ns":
        # Round down also before 1970; a cast would truncate towards 1970.
        plain = array.cast(pa.timestamp("ns", kind.tz and "UTC")).view(pa.timestamp("ns"))
        return pc.floor_temporal(plain, unit="microsecond").cast(pa.timestamp("us")).view(to)
    if types.is_timestamp(kind):
        return array.cast(pa.timestamp(kind.unit, kind.tz and "UTC")).cast(to)
    if types.is_duration(kind):
        if kind.unit == "ns":
            micros = pc.floor_temporal(array.view(pa.timestamp("ns")), unit="microsecond")
            return micros.cast(pa.timestamp("us")).view(pa.int64()).cast(to)
        return array.cast(pa.duration("us")).cast(pa.int64()).cast(to)
    if types.is_interval(kind):
        return pa.array([None if value is None else _interval_text(*value) for value in array.to_pylist()], to)
    if types.is_decimal(kind) and types.is_string(to):
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], to)
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    if types.is_unsigned_integer(kind) and types.is_floating(to):
        array = array.cast(pa.int32())
    return array.cast(to)


def _convert_struct(array: Any, to: Any, column: str) -> Any:
    incoming = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        convert_column(incoming[field.name], field, f"{column}.{field.name}", array.null_count)
        if field.name in incoming
        else pa.nulls(len(array), field.type)
        for field in to
    ]
    return pa.StructArray.from_arrays(children, fields=list(to), mask=array.is_null())


def _convert_map(array: Any, to: Any, column: str) -> Any:
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = convert_column(array.keys.slice(first, count), to.key_field, f"{column}.key")
    items = convert_column(array.items.slice(first, count), to.item_field, f"{column}.value")
    starts = pa.array(offsets - first, pa.int32())
    return pa.MapArray.from_arrays(starts, keys, items, type=to, mask=array.is_null())


def _uuid_texts(array: Any) -> Any:
    plain = array.storage
    rows = len(plain)
    filled = pc.fill_null(plain, bytes(16)).cast(pa.binary(16))
    raw = np.frombuffer(filled.buffers()[1], np.uint8)[filled.offset * 16 : (filled.offset + rows) * 16]
    text = np.full((rows, 36), ord("-"), np.uint8)
    text[:, _UUID_DIGIT_INDEXES] = _HEX[raw].reshape(rows, 32)
    offsets = pa.py_buffer(np.arange(0, 36 * rows + 1, 36, dtype=np.int32))
    texts = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(text.tobytes()))
    return texts if not plain.null_count else pc.if_else(plain.is_valid(), texts, pa.scalar(None, pa.string()))


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval in ISO 8601, without converting between months, days and seconds.

    >>> _interval_text(14, -3, 1_500_000_000)
    'P14M-3DT1.500000000S'
    """
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    return f"P{months}M{days}DT{'-' if nanoseconds < 0 else ''}{seconds}.{rest:09}S"


RESCUED_COLUMN: Final = "_rescued"
"""The column of a table that holds rescued values."""
_MOST_DAYS: Final = 30_000 * 365
_MICROS_A_DAY: Final = 86_400_000_000
_CONTROLS: Final = r"[\x00-\x1f]"


def rescued_texts(columns: Mapping[str, Any], rows: int) -> Any:
    """Return for each row a JSON object with its values in these columns; null where all of them are null.

    >>> rescued_texts({"size": pa.array([1, None]), "note": pa.array(["big", None])}, 2).to_pylist()
    ['{"size":1,"note":"big"}', None]
    """
    if not columns:
        return pa.nulls(rows, pa.string())
    texts = [
        pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False), _json_texts(array, name), ":")
        for name, array in columns.items()
    ]
    # Put a comma before each member and cut the first one: joining with commas would keep those of null members.
    parts = [pc.fill_null(pc.binary_join_element_wise(",", text, ""), "") for text in texts]
    listed = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*parts, ""), 1)
    inner = pc.binary_join_element_wise("{", listed, "}", "")
    return pc.if_else(pc.equal(inner, "{}"), pa.scalar(None, pa.string()), inner)


def _json_texts(array: Any, column: str) -> Any:
    """Return each value as JSON text; null stays null."""
    array = convert_column(array, pa.field(column, table_type(array.type, column)))
    kind = array.type
    if types.is_integer(kind) or types.is_boolean(kind):
        return array.cast(pa.string())
    if types.is_floating(kind) and pc.all(pc.is_finite(array), min_count=0).as_py():
        # As double, so that the text of a 32-bit float has its exact value for readers that parse doubles.
        return array.cast(pa.float64()).cast(pa.string())
    if types.is_string(kind) and not pc.any(pc.match_substring_regex(array, _CONTROLS), min_count=0).as_py():
        escaped = pc.replace_substring(pc.replace_substring(array, "\\", "\\\\"), '"', '\\"')
        return pc.binary_join_element_wise('"', escaped, '"', "")
    if types.is_timestamp(kind) or types.is_date(kind):
        return pc.binary_join_element_wise('"', _time_texts(array, column), '"', "")
    encode = _json_encoder(kind)
    values = _prepare_for_json(array, column).to_pylist()
    return pa.array([None if value is None else _dumps(encode(value)) for value in values], pa.string())


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _prepare_for_json(array: Any, column: str) -> Any:
    """Return a nested column with times as texts, since Python's range of years is smaller, and fields numbered."""
    kind = array.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return _time_texts(array, column)
    if types.is_struct(kind):
        children = [_prepare_for_json(child, column) for child in array.flatten()]
        names = [str(index) for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names=names, mask=array.is_null()) if children else array
    if types.is_map(kind):
        entries = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _prepare_for_json(_as_list(array, entries), column)
    if is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, _prepare_for_json(array.flatten(), column), mask=array.is_null())
    return array


def _as_list(array: Any, kind: Any) -> Any:
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    children = [array.keys.slice(first, count), array.items.slice(first, count)]
    entries = pa.StructArray.from_arrays(children, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), entries, mask=array.is_null())


def _json_encoder(kind: Any) -> Callable[[Any], Any]:
    """Return a function from a value to one that JSON can represent."""
    if types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_binary(kind):
        return lambda value: b64encode(value).decode()
    if types.is_struct(kind):
        fields = [(str(index), field.name, _json_encoder(field.type)) for index, field in enumerate(kind)]
        return lambda value: {name: _or_none(encode, value[index]) for index, name, encode in fields}
    if types.is_map(kind):
        key, item = _json_encoder(kind.key_type), _json_encoder(kind.item_type)
        return lambda value: [[key(entry["0"]), _or_none(item, entry["1"])] for entry in value]
    if is_list(kind):
        inner = _json_encoder(kind.value_type)
        return lambda value: [_or_none(inner, element) for element in value]
    return lambda value: value


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _or_none(encode: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else encode(value)


def _time_texts(array: Any, column: str) -> Any:
    is_day = types.is_date(array.type)
    bounds = pc.min_max(array.view(pa.int32() if is_day else pa.int64())).as_py()
    furthest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    # Beyond this Arrow writes wrong years without an error.
    if furthest > _MOST_DAYS * (1 if is_day else _MICROS_A_DAY):
        raise TableUnfit(
            f"The column {column} has a time that is more than 30 000 years away.",
            rule="Times that are kept as text lie within 30 000 years of 1970.",
            remedy="Correct such values in the source, or exclude such rows with `where` in [source].",
            column=column,
        )
    return pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
