"""Rows as JSON objects, column by column, in the forms that Spark's `from_json` reads.

| column | JSON |
|---|---|
| BOOLEAN, whole numbers, STRING | as they are |
| FLOAT, DOUBLE | a number; "NaN", "Infinity" and "-Infinity" as text |
| DECIMAL | text, so that readers do not convert it to binary floating point |
| BINARY | base64 |
| DATE | "2026-01-31" |
| TIMESTAMP, TIMESTAMP_NTZ | "2026-01-31T10:00:00.000000Z", without the Z for the latter |
| ARRAY, STRUCT | list, object |
| MAP | an object if its keys are text, else a list of [key, value] |

A null is written as null.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.kafka.codecs.values import (
    DIGITS,
    PER_SECOND,
    check_columns,
    is_bytes,
    is_float,
    is_list,
    is_text,
    write_date,
    write_timestamp,
)

_MAX_BYTES: Final = 1 << 26  # per slice of columns: their text, at worst six times as long, must stay below 2 GB
_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
_NEEDS_ESCAPE: Final = r'[\x00-\x1f"\\]'
_YEAR_0: Final = -62_167_219_200  # in seconds; four digits hold the years from here
_YEAR_10000: Final = 253_402_300_800  # to before this
_DAY: Final = 86_400


def encode_json(batch: Any) -> list[bytes]:
    r"""Return each row of a record batch as one JSON object without newlines.

    >>> encode_json(pa.record_batch({"id": [1, None], "name": ["é", 'a"b']}))
    [b'{"id":1,"name":"\xc3\xa9"}', b'{"id":null,"name":"a\\"b"}']
    """
    check_columns(batch.schema)
    values: list[bytes] = []
    pending = [batch]
    while pending:
        rows = pending.pop()
        if rows.nbytes > _MAX_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            pending += [rows.slice(half), rows.slice(0, half)]
        elif rows.num_rows:
            texts = _objects(rows.schema.names, rows.columns, rows.num_rows)
            values += texts.cast(pa.binary()).to_pylist()
    return values


def _texts(array: Any) -> Any:
    """Return the JSON text of each value of an array."""
    if len(array) == 0:
        return pa.array([], pa.string())
    texts = _texts_of_values(array)
    return texts if array.null_count == 0 else pc.if_else(array.is_null(), "null", texts)


def _texts_of_values(array: Any) -> Any:
    """Return the JSON text of each value; the text of a null is undefined."""
    kind = array.type
    if is_text(kind):
        return _quoted(_escaped(array.cast(pa.string())))
    if pa.types.is_timestamp(kind):
        return _quoted(_timestamps(array))
    if pa.types.is_date32(kind):
        return _quoted(_dates(array))
    if is_bytes(kind):
        return _quoted(pa.array([None if value is None else b64encode(value) for value in array.to_pylist()]))
    if pa.types.is_decimal128(kind):
        return _quoted(array.cast(pa.string()))
    if is_float(kind):
        return _floats(array)
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return _objects(names, [array.field(index) for index in range(kind.num_fields)], len(array))
    if pa.types.is_map(kind):
        return _maps(array)
    if is_list(kind):
        items = pa.list_(kind.value_field)
        plain = array if array.type == items else array.cast(items)
        return _joined("[", _texts_of_ranges(plain.offsets, plain.values), "]")
    return array.cast(pa.string())


def _joined(*parts: Any) -> Any:
    """Return texts concatenated element by element; a null anywhere gives null, which `_texts` replaces."""
    return pc.binary_join_element_wise(*parts, "")


def _quoted(texts: Any) -> Any:
    return _joined('"', texts.cast(pa.string()), '"')


def _objects(names: Sequence[str], columns: Sequence[Any], rows: int) -> Any:
    if not names:
        return pa.array(["{}"] * rows)
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [f"{',' if parts else '{'}{json.dumps(name, ensure_ascii=False)}:", _texts(column)]
    return _joined(*parts, "}")


def _maps(array: Any) -> Any:
    keys, items = _texts(array.keys), _texts(array.items)
    if is_text(array.type.key_type):
        return _joined("{", _texts_of_ranges(array.offsets, _joined(keys, ":", items), encoded=True), "}")
    return _joined("[", _texts_of_ranges(array.offsets, _joined("[", keys, ",", items, "]"), encoded=True), "]")


def _texts_of_ranges(offsets: Any, values: Any, *, encoded: bool = False) -> Any:
    """Return, for each range between two offsets, the comma-separated texts of its values."""
    ends = offsets.to_numpy()
    inside = values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    texts = inside if encoded else _texts(inside)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends - ends[0], pa.int32()), texts), ",")


def _escaped(texts: Any) -> Any:
    """Return texts with the characters escaped that JSON forbids in strings."""
    data = texts.buffers()[2]
    if data is None or len(texts) == 0:
        return texts
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    used = data[int(ends[0]) : int(ends[-1])].to_pybytes()
    if len(used.translate(None, _ESCAPED)) == len(used):
        return texts
    dirty = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPE), False)
    if not pc.any(dirty).as_py():  # only bytes hidden by nulls matched
        return texts
    written = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(dirty).to_pylist()]
    return pc.replace_with_mask(texts, dirty, pa.array(written, pa.string()))


def _floats(array: Any) -> Any:
    texts = array.cast(pa.string())
    special = pc.fill_null(pc.invert(pc.is_finite(array)), False)
    if pc.any(special).as_py():
        texts = pc.if_else(pc.and_(special, pc.is_nan(array)), '"NaN"', texts)
        texts = pc.if_else(pc.and_(special, pc.equal(array, float("inf"))), '"Infinity"', texts)
        texts = pc.if_else(pc.and_(special, pc.equal(array, float("-inf"))), '"-Infinity"', texts)
    # Some readers parse -0 as an integer and lose its sign.
    return pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)


def _timestamps(array: Any) -> Any:
    unit, has_zone = array.type.unit, array.type.tz is not None
    numbers = pc.fill_null(array.cast(pa.timestamp(unit)).cast(pa.int64()), 0).to_numpy()
    low, high = _YEAR_0 * PER_SECOND[unit], _YEAR_10000 * PER_SECOND[unit]
    if not ((numbers >= low) & (numbers < high)).all():
        return pa.array([write_timestamp(number, unit, has_zone=has_zone) for number in numbers.tolist()])
    length = 19 + (DIGITS[unit] + 1 if DIGITS[unit] else 0)
    texts = np.datetime_as_string(numbers.view(f"datetime64[{unit}]"), unit=unit)
    return _joined(_from_numpy(texts, length), "Z") if has_zone else _from_numpy(texts, length)


def _dates(array: Any) -> Any:
    days = pc.fill_null(array.cast(pa.int32()), 0).to_numpy().astype(np.int64)
    if not ((days >= _YEAR_0 // _DAY) & (days < _YEAR_10000 // _DAY)).all():
        return pa.array([write_date(number) for number in days.tolist()])
    return _from_numpy(np.datetime_as_string(days.view("datetime64[D]"), unit="D"), 10)


def _from_numpy(texts: Any, length: int) -> Any:
    """Return ASCII texts that all have the same length as Arrow strings."""
    # NumPy's text has four bytes a character; for ASCII the first of them is all.
    data = texts.view(np.uint32).reshape(len(texts), -1)[:, :length].astype(np.uint8).tobytes()
    offsets = np.arange(0, len(data) + 1, length, dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(data))
