"""Rows against a table: which of their columns go where, decided by the two schemas before any row is looked at.

Values that fit no column may be kept as JSON in a column of text, so that nothing of them is lost:

| value | in JSON |
|---|---|
| whole numbers, floats, truth values, texts | as they are; not-a-number and the infinities as texts |
| decimals | as texts, with all their digits |
| moments | `"2026-01-01T00:00:00.000001Z"`; without zone the same without Z |
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
    """How rows of one schema become rows of the table. It can be pickled."""

    rows: pa.Schema
    """What comes."""
    schema: pa.Schema
    """What is written: the columns of the table, then those that it has to get."""
    added: tuple[pa.Field, ...]
    """What a table that is there has to get first: new columns, and structs with new fields; all may be null."""
    rescued: tuple[str, ...]
    """The columns whose values are kept as JSON."""
    constants: Mapping[str, Any]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are written."""
        come = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        for name, value in self.constants.items():
            # One value for all rows; a table without such a column has it among the rescued.
            kind = self.schema.field(name).type if name in self.schema.names and name not in self.rescued else None
            come[name] = _repeated(value, kind, batch.num_rows)
        columns = []
        for one in self.schema:
            if one.name == RESCUED_COLUMN and self.rescued:
                aside = {name: come[name] for name in self.rescued}
                columns.append(rescued_texts(aside, batch.num_rows))
            elif one.name in come and one.name not in self.rescued:
                columns.append(convert_column(come[one.name], one))
            else:
                columns.append(pa.nulls(batch.num_rows, one.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class RowFitter:
    """What rows have to fit: a table, or none yet, and what becomes of that which does not. It can be pickled.

    >>> table = pa.schema([("id", pa.int64()), ("note", pa.string())])
    >>> fitted = RowFitter(table, "evolve").fit(pa.schema([("id", pa.int32()), ("size", pa.float64())]))
    >>> fitted.schema.names, [field.name for field in fitted.added]
    (['id', 'note', 'size'], ['size'])
    >>> RowFitter(table, "freeze").fit(pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The column id is long in the table and string in the rows. ... [table-unfit]
    """

    table: pa.Schema | None
    """The columns of the table; without, it will be made from the rows."""
    drift: Drift = "freeze"
    """Columns that the table lacks: it gets them, they are refused, or their values are kept as JSON in `_rescued`."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the rows do not have themselves, with one value for all of them."""
    required: tuple[str, ...] = ()
    """Columns that rows must have, such as keys: they are not rescued, and not filled with nulls."""

    def __post_init__(self) -> None:
        """Refuse a way that there is not."""
        if self.drift not in DRIFTS:
            raise InvalidOption(
                f"Drift is {self.drift!r}.",
                rule="It is 'evolve', 'freeze' or 'rescue'.",
                remedy="Write one of them.",
                option="drift",
            )

    def fit(self, rows: pa.Schema) -> RowConverter:
        """Return how rows with these columns fit, or refuse them, with the column that does not."""
        check_unique_names(rows.names)
        constants = {name: value for name, value in self.constants.items() if name not in rows.names}
        come = {one.name: table_type(one.type, one.name) for one in rows}
        come |= {name: table_type(_constant_type(name, value), name) for name, value in constants.items()}
        self._check_required(come)
        made, rescued = self._made(come) if self.table is None else self._against(self.table, come, constants)
        # Rows of the table itself, written anew, have it with what was rescued before.
        is_own = self.table is not None and RESCUED_COLUMN in self.table.names and not rescued
        if self.drift == "rescue" and RESCUED_COLUMN in come and not is_own:
            raise _unfit_column(
                RESCUED_COLUMN,
                f"The rows have a column {RESCUED_COLUMN}.",
                "Values that fit no column are kept in one of this name.",
                'Rename it where the rows come from, or write drift = "evolve".',
            )
        if self.drift == "rescue":
            made = _with_rescued(made)
        check_names(made)
        have = {one.name: one.type for one in (() if self.table is None else _plain_schema(self.table))}
        new = tuple(one for one in made if have.get(one.name) != one.type)
        for one in new:
            check_maps(one.type, one.name)
        schema, added = pa.schema(made), () if self.table is None else new
        return RowConverter(rows, schema, added, tuple(rescued), constants)

    def _made(self, come: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        """Return the columns of the table that is made from these."""
        known = {name: without_nulls(kind) for name, kind in come.items()}
        made = [pa.field(name, all_nullable(kind)) for name, kind in known.items() if kind is not None]
        if not made:
            raise TableUnfit(
                "There is no table yet, and nothing is known of the columns of the rows.",
                rule="A table is made from the rows, and has a column at least.",
                remedy="Make the table first, or start with a range that has rows.",
            )
        return made, []

    def _against(
        self, table: pa.Schema, come: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> tuple[list[Any], list[str]]:
        """Return the columns of the table as it has to be, and the names of those that go aside."""
        made, rescued = [], []
        for one in _plain_schema(table):
            kind = one.type
            if one.name in come and not (one.name in constants and _takes(kind, constants[one.name])):
                kind = type_holding(one.type, come[one.name], grow=self.drift == "evolve")
            if kind is None and self.drift == "rescue" and one.nullable and one.name not in self.required:
                rescued.append(one.name)
                kind = one.type
            if kind is None:
                raise self._unlike(one, come[one.name])
            if one.name not in come and not one.nullable:
                raise _unfit_column(
                    one.name,
                    f"The rows have no column {one.name}.",
                    "The table says that it is never null.",
                    "Add it to what is read, or let the table's column be null.",
                )
            made.append(one.with_type(kind))
        for name, kind in come.items():
            known = without_nulls(kind)
            if name in table.names or types.is_null(kind):
                continue
            if self.drift == "rescue":
                rescued.append(name)
            elif known is not None:
                if self.drift == "freeze":
                    raise self._unknown(name, known)
                made.append(pa.field(name, all_nullable(known)))
        return made, rescued

    def _check_required(self, come: Mapping[str, Any]) -> None:
        for name in self.required:
            if name not in come:
                near = [one for one in come if one.lower() == name.lower()]
                raise _unfit_column(
                    name,
                    f"The rows have no column {name}" + (f", but {near[0]}." if near else "."),
                    "The target names it, as a key, a range or a partition.",
                    "Add it to what is read, under this name, or name another one in [target].",
                )

    def _unlike(self, table: Any, rows: Any) -> TableUnfit:
        inside = _first_unlike(table.type, rows, table.name)
        aside = "" if self.drift == "rescue" or table.name in self.required else ', or write drift = "rescue"'
        return TableUnfit(
            f"The column {inside[0]} is {type_name(inside[1])} in the table and {type_name(inside[2])} in the rows.",
            rule=_RULE,
            remedy=f"Cast it where the rows come from, change the table{aside}.",
            column=table.name,
            table=type_name(table.type),
            rows=type_name(rows),
        )

    def _unknown(self, name: str, kind: Any) -> TableUnfit:
        return TableUnfit(
            f"The rows have a column {name}, {type_name(kind)}, and the table has none of that name.",
            rule=_RULE,
            remedy='Write drift = "evolve" or drift = "rescue" in [target], or leave it out of the source\'s columns.',
            column=name,
            rows=type_name(kind),
        )


def _plain_schema(table: pa.Schema) -> list[Any]:
    """Return the columns of a table with types that can be compared, and nothing else said of them."""
    return [pa.field(one.name, table_type(one.type, one.name), one.nullable) for one in table]


def _with_rescued(made: list[Any]) -> list[Any]:
    for one in made:
        if one.name == RESCUED_COLUMN and (one.type != pa.string() or not one.nullable):
            raise _unfit_column(
                RESCUED_COLUMN,
                f"The table's column {RESCUED_COLUMN} is {type_name(one.type)}"
                f"{'' if one.nullable else ', never null'}.",
                "Values that fit no column are kept in one of this name, as text or null.",
                'Write drift = "evolve" or drift = "freeze".',
            )
    return made if any(one.name == RESCUED_COLUMN for one in made) else [*made, pa.field(RESCUED_COLUMN, pa.string())]


def _takes(kind: Any, value: Any) -> bool:
    """Return whether a constant can be of a type: a whole number has no width of its own."""
    if not isinstance(value, int) or isinstance(value, bool) or not types.is_signed_integer(kind):
        return False
    return bool(-(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1))


def _constant_type(name: str, value: Any) -> Any:
    try:
        return pa.scalar(value).type
    except (OverflowError, pa.ArrowInvalid) as error:
        raise _unfit_column(
            name,
            f"The column {name} has one value for all rows, of the type {type(value).__name__}, that no table holds.",
            "It is a text, a whole number of 64 bits, a float, a truth value, a day or a moment.",
            "Convert it to text first.",
        ) from error


def _repeated(value: Any, kind: Any, rows: int) -> Any:
    one = pa.scalar(value, kind) if kind is not None and _takes(kind, value) else pa.scalar(value)
    return pa.nulls(rows, one.type) if value is None else pa.repeat(one, rows)


def _first_unlike(table: Any, rows: Any, place: str) -> tuple[str, Any, Any]:
    """Return the place, inside of a column, at which two types part, and both types there."""
    if types.is_struct(table) and types.is_struct(rows):
        come = {one.name: one.type for one in rows}
        for one in table:
            if one.name in come and type_holding(one.type, come[one.name], grow=True) is None:
                return _first_unlike(one.type, come[one.name], f"{place}.{one.name}")
    elif is_list(table) and is_list(rows):
        return _first_unlike(table.value_type, rows.value_type, f"{place}[]")
    return place, table, rows


def _unfit_column(column: str, fact: str, rule: str, remedy: str) -> TableUnfit:
    return TableUnfit(fact, rule=rule, remedy=remedy, column=column)


_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint8).reshape(256, 2)
_DIGITS_OF_UUID: Final = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])


def convert_column(array: Any, field: Any, column: str = "", outer_nulls: int = 0) -> Any:
    """Return a column with the type of a table's field.

    A value that cannot be there, a null where none may be or a moment beyond 64 bits, is an error. So many nulls as
    `outer_nulls` are of what the field is inside of.

    >>> convert_column(pa.array([1, None], pa.uint8()), pa.field("n", pa.int64())).to_pylist()
    [1, None]
    """
    column = column or field.name
    if not field.nullable and array.null_count > outer_nulls:
        raise TableUnfit(
            f"The column {column} is null in {array.null_count - outer_nulls} of {len(array)} places.",
            rule="The table says that it is never null.",
            remedy="Leave such rows out where they come from, or let the table's column be null.",
            column=column,
        )
    if array.type == field.type:
        return array
    try:
        return _convert(array, field, column, outer_nulls)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # What Arrow says has the value in it, which is not for a log.
        raise TableUnfit(
            f"The column {column} has a value that is {array.type} in the rows and cannot be {field.type} in a table.",
            rule="Numbers and moments have the range of the table's type: 64 bits of microseconds, for moments.",
            remedy="Correct such values where they come from, or leave such rows out.",
            column=column,
            type=str(array.type),
        ) from (None if isinstance(error, pa.ArrowInvalid) else error)


def _convert(array: Any, field: Any, column: str, outer_nulls: int) -> Any:
    kind, to = array.type, field.type
    if isinstance(kind, pa.BaseExtensionType):
        return _text_of_uuids(array) if is_uuid(kind) else convert_column(array.storage, field, column, outer_nulls)
    # Their own nulls are not all: values can be null too, which is seen once they are there.
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
        # Downward also before 1970; a cast would go towards it.
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
        return pa.array([None if one is None else _text_of_interval(*one) for one in array.to_pylist()], to)
    if types.is_decimal(kind) and types.is_string(to):
        return pa.array([None if one is None else format(one, "f") for one in array.to_pylist()], to)
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    if types.is_unsigned_integer(kind) and types.is_floating(to):
        array = array.cast(pa.int32())
    return array.cast(to)


def _convert_struct(array: Any, to: Any, column: str) -> Any:
    come = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        convert_column(come[field.name], field, f"{column}.{field.name}", array.null_count)
        if field.name in come
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


def _text_of_uuids(array: Any) -> Any:
    plain = array.storage
    rows = len(plain)
    there = pc.fill_null(plain, bytes(16)).cast(pa.binary(16))
    bytes_of = np.frombuffer(there.buffers()[1], np.uint8)[there.offset * 16 : (there.offset + rows) * 16]
    text = np.full((rows, 36), ord("-"), np.uint8)
    text[:, _DIGITS_OF_UUID] = _HEX[bytes_of].reshape(rows, 32)
    offsets = pa.py_buffer(np.arange(0, 36 * rows + 1, 36, dtype=np.int32))
    made = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(text.tobytes()))
    return made if not plain.null_count else pc.if_else(plain.is_valid(), made, pa.scalar(None, pa.string()))


def _text_of_interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as ISO 8601 writes it; months, days and seconds do not make each other up.

    >>> _text_of_interval(14, -3, 1_500_000_000)
    'P14M-3DT1.500000000S'
    """
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    return f"P{months}M{days}DT{'-' if nanoseconds < 0 else ''}{seconds}.{rest:09}S"


RESCUED_COLUMN: Final = "_rescued"
"""The column of a table in which rescued values are."""
_DAYS: Final = 30_000 * 365
_MICROS_A_DAY: Final = 86_400_000_000
_CONTROLS: Final = r"[\x00-\x1f]"


def rescued_texts(columns: Mapping[str, Any], rows: int) -> Any:
    """Return a column of texts, each an object of JSON with the values of the row; null where all of them are null.

    >>> rescued_texts({"size": pa.array([1, None]), "note": pa.array(["big", None])}, 2).to_pylist()
    ['{"size":1,"note":"big"}', None]
    """
    if not columns:
        return pa.nulls(rows, pa.string())
    texts = [
        pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False), _json_of(array, name), ":")
        for name, array in columns.items()
    ]
    # Each with a comma before it, the first of which goes; joining them as they are would leave out empty rows.
    parts = [pc.fill_null(pc.binary_join_element_wise(",", text, ""), "") for text in texts]
    listed = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*parts, ""), 1)
    inner = pc.binary_join_element_wise("{", listed, "}", "")
    return pc.if_else(pc.equal(inner, "{}"), pa.scalar(None, pa.string()), inner)


def _json_of(array: Any, column: str) -> Any:
    """Return each value as JSON, and null where it is null."""
    array = convert_column(array, pa.field(column, table_type(array.type, column)))
    kind = array.type
    if types.is_integer(kind) or types.is_boolean(kind):
        return array.cast(pa.string())
    if types.is_floating(kind) and pc.all(pc.is_finite(array), min_count=0).as_py():
        # Shorter texts would be enough for those who know that it had 32 bits.
        return array.cast(pa.float64()).cast(pa.string())
    if types.is_string(kind) and not pc.any(pc.match_substring_regex(array, _CONTROLS), min_count=0).as_py():
        escaped = pc.replace_substring(pc.replace_substring(array, "\\", "\\\\"), '"', '\\"')
        return pc.binary_join_element_wise('"', escaped, '"', "")
    if types.is_timestamp(kind) or types.is_date(kind):
        return pc.binary_join_element_wise('"', _text_of_times(array, column), '"', "")
    write = _writer(kind)
    values = _with_text(array, column).to_pylist()
    return pa.array([None if one is None else _dumps(write(one)) for one in values], pa.string())


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _with_text(array: Any, column: str) -> Any:
    """Return a column with texts for moments and dates, which Python has not all of, and with numbers for names."""
    kind = array.type
    if types.is_timestamp(kind) or types.is_date(kind):
        return _text_of_times(array, column)
    if types.is_struct(kind):
        children = [_with_text(child, column) for child in array.flatten()]
        names = [str(index) for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names=names, mask=array.is_null()) if children else array
    if types.is_map(kind):
        entries = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _with_text(_as_list(array, entries), column)
    if is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, _with_text(array.flatten(), column), mask=array.is_null())
    return array


def _as_list(array: Any, kind: Any) -> Any:
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    parts = [array.keys.slice(first, count), array.items.slice(first, count)]
    entries = pa.StructArray.from_arrays(parts, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), entries, mask=array.is_null())


def _writer(kind: Any) -> Callable[[Any], Any]:
    """Return what turns a value into one that JSON has."""
    if types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_binary(kind):
        return lambda value: b64encode(value).decode()
    if types.is_struct(kind):
        fields = [(str(index), field.name, _writer(field.type)) for index, field in enumerate(kind)]
        return lambda value: {name: _or_none(write, value[index]) for index, name, write in fields}
    if types.is_map(kind):
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        return lambda value: [[key(one["0"]), _or_none(item, one["1"])] for one in value]
    if is_list(kind):
        inner = _writer(kind.value_type)
        return lambda value: [_or_none(inner, one) for one in value]
    return lambda value: value


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _or_none(write: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else write(value)


def _text_of_times(array: Any, column: str) -> Any:
    is_day = types.is_date(array.type)
    bounds = pc.min_max(array.view(pa.int32() if is_day else pa.int64())).as_py()
    furthest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    # Further away, Arrow writes other years without a word.
    if furthest > _DAYS * (1 if is_day else _MICROS_A_DAY):
        raise TableUnfit(
            f"The column {column} has a time that is more than 30 000 years away.",
            rule="Where days and moments fit no column, they are kept as texts, and those have years nearby.",
            remedy="Correct such values where they come from, or leave such rows out.",
            column=column,
        )
    return pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
