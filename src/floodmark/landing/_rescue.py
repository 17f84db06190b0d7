"""Values that fit no column of a table, kept as JSON in a column of text, so that nothing of them is lost.

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
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from floodmark.errors import TableUnfit
from floodmark.landing._arrow_types import is_list, table_type
from floodmark.landing._convert import convert

RESCUED: Final = "_rescued"
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
    array = convert(array, pa.field(column, table_type(array.type, column)))
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
