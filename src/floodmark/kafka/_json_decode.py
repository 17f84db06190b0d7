"""JSON values as Arrow columns: many at once where that surely says the same, else one by one.

`_json_careful` has the rules. Arrow's JSON reader is nearly ten times as fast, takes some values that the rules
refuse, and cannot be trusted with every input: a `null` that is not inside an object makes it read memory that is not
its own. So it gets only text in which each line begins and ends as an object does, and what it is laxer about is ruled
out before or looked for afterwards. When it refuses, the values are halved until those at fault are among few, and
the rules have the last word on them.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from floodmark.kafka._json_careful import MAX_DEPTH, read_base64, row_reader
from floodmark.kafka._values import (
    BadValue,
    Decoded,
    Unfit,
    check_columns,
    is_bytes,
    is_float,
    is_list,
    kinds_inside,
    result_schema,
    rows_to_batch,
)

_FEW: Final = 16  # values for which halving costs more than the rules
_MAX_BYTES: Final = 1 << 26  # at once, in one block of Arrow's reader
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}[ \t\r]*n")
_LAX_NUMBER: Final = re.compile(rb"-NaN|Inf[ \t\r\n]*[,}\]]")
# Arrow's reader computes decimals in 128 bits and sees neither when those are not enough nor what an exponent cuts
# off. With 19 digits on either side and no exponent they are enough.
_MAX_DIGITS: Final = 19
_TO_SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER: Final = b"0" * (_MAX_DIGITS + 1)
_EXPONENT: Final = re.compile(rb'[",:\[ \t\r][+-]?[0.]+e[+-]?0+[",}\] \t\r]')


class JsonDecoder:
    """Makes rows of JSON objects, the fields of which are the columns of a schema.

    A field that the schema does not have is ignored. One that is missing is null, and makes the value bad if its
    column may not be null. A field that comes twice, or is of another type, makes the value bad.

    >>> decoder = JsonDecoder(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    >>> decoded = decoder.decode([b'{"id": 1, "at": "2026-01-01T10:00:00+02:00"}', None, b'{"id": "x"}'])
    >>> decoded.batch.column("id").to_pylist()
    [1, None, None]
    >>> decoded.bad
    (BadValue(place=2, reason="'id' is 'x', which is no int64"),)
    """

    def __init__(self, schema: Any) -> None:
        """Decode into the columns of an Arrow schema."""
        check_columns(schema)
        self._schema = schema
        self._read_row = row_reader(schema)
        self._bulk = _Bulk(schema) if all(_is_for_arrow(field.type) for field in schema) and len(schema) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonDecoder, (self._schema,)

    @property
    def schema(self) -> Any:
        """The schema of what `decode` gives: its columns may all be null."""
        return result_schema(self._schema)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return one row for each value. A value that is None, a tombstone, is a row of nulls and not bad."""
        parts: list[Any] = []
        bad: list[BadValue] = []
        waiting = [(0, len(values))]
        while waiting:
            start, end = waiting.pop()
            part = self._at_once(values[start:end]) if end - start > _FEW else None
            if part is not None:
                parts.append(part)
            elif self._bulk is not None and end - start > _FEW:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
            else:
                parts.append(self._one_by_one(values, start, end, bad))
        batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return Decoded(batch, tuple(bad))

    def _at_once(self, values: Sequence[bytes | None]) -> Any:
        """Return the rows of values if all of them are good beyond doubt, else None."""
        if self._bulk is None:
            return None
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            return self._bulk.read(present)
        rows = self._bulk.read(present) if present else rows_to_batch([], self._schema)
        if rows is None:
            return None
        places = iter(range(len(present)))
        return rows.take(pa.array([None if value is None else next(places) for value in values], pa.int64()))

    def _one_by_one(self, values: Sequence[bytes | None], start: int, end: int, bad: list[BadValue]) -> Any:
        rows: list[Sequence[Any] | None] = []
        for place in range(start, end):
            value = values[place]
            try:
                rows.append(None if value is None else self._read_row(value))
            except Unfit as error:
                rows.append(None)
                bad.append(BadValue(place, str(error)))
        return rows_to_batch(rows, self._schema)


class _Bulk:
    """Reads many objects by Arrow's reader, or gives None where it might say another thing than the rules."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._result = result_schema(schema)
        self._has_decimals = any(pa.types.is_decimal(kind) for field in schema for kind in kinds_inside(field.type))
        self._parse = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(field.name, _first_type(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
        )

    def read(self, values: Sequence[bytes]) -> Any:
        text = b"\n".join(values)
        if not _is_safe(text, values):
            values = [value.strip(b" \t\r\n") for value in values]
            text = b"\n".join(values)
            if not _is_safe(text, values):
                return None
        if len(text) > _MAX_BYTES or (self._has_decimals and _may_have_long_decimals(text)):
            return None
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), options, self._parse)
            if table.num_rows != len(values):
                return None
            columns = [_column(table.column(field.name).combine_chunks(), field.type) for field in self._schema]
        except (pa.ArrowException, ValueError):
            return None
        for column, field in zip(columns, self._schema, strict=True):
            if (column.null_count and not field.nullable) or _may_overflow(column):
                return None
        return pa.record_batch(columns, schema=self._result)


def _is_safe(text: bytes, values: Sequence[bytes]) -> bool:
    """Return whether each line of a text is one of the values, and nothing in it is what Arrow's reader is laxer about.

    An object that is open at the end of a line cannot go on with the next: after its last `}` a comma would have to
    come, and `{` comes. So each line has at least one row, and the number of rows tells whether it has more.
    """
    between = len(values) - 1
    closed = text.count(b"}")
    return (
        text.startswith(b"{")
        and text.endswith(b"}")
        and text.count(b"\n") == between == text.count(b"}\n{")
        and (closed == len(values) or _NULL_AFTER_OBJECT.search(text) is None)
        and (text.isascii() or _is_utf8(text))
        and not ((b"NaN" in text or b"Inf" in text) and _LAX_NUMBER.search(text))
        and (closed + text.count(b"[") < len(values) + MAX_DEPTH or not any(map(_may_be_deep, values)))
    )


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_deep(value: bytes) -> bool:
    return value.count(b"}") + value.count(b"[") > MAX_DEPTH


def _is_for_arrow(kind: Any, *, is_inside: bool = False) -> bool:
    """Return whether Arrow's reader can be used for a column."""
    if pa.types.is_struct(kind):
        inside = [kind.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [kind.value_field]
    else:
        is_other = pa.types.is_map(kind) or pa.types.is_large_list(kind)
        is_long = pa.types.is_decimal(kind) and not 0 <= kind.scale <= _MAX_DIGITS
        return not is_other and not is_long and (not is_inside or _first_type(kind) == kind)
    return bool(inside) and all(field.nullable and _is_for_arrow(field.type, is_inside=True) for field in inside)


def _first_type(kind: Any) -> Any:
    """Return the type that Arrow's reader is asked for: text where it would take another form than the rules."""
    is_as_text = pa.types.is_date32(kind) or is_bytes(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return pa.string() if is_as_text else kind


def _column(read: Any, kind: Any) -> Any:
    """Return the column of what was read. The cast refuses a zone where the column has none, the reader would not."""
    if is_bytes(kind):
        return pa.array([None if text is None else read_base64(text) for text in read.to_pylist()], kind)
    return read if read.type == kind else read.cast(kind)


def _may_have_long_decimals(text: bytes) -> bool:
    shape = text.translate(_TO_SHAPE)
    if _LONG_NUMBER in shape or b"\\u00" in shape:  # digits and exponents may be written as escapes
        return True
    return (b"0e" in shape or b".e" in shape) and _EXPONENT.search(shape) is not None


def _may_overflow(array: Any) -> bool:
    """Return whether a number may be too large: Arrow's reader makes it infinite, or a decimal of too many digits."""
    kind = array.type
    if is_float(kind):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_decimal(kind):
        limit = Decimal(10) ** (kind.precision - kind.scale)
        bounds = pc.min_max(array).as_py()
        return any(bound is not None and abs(bound) >= limit for bound in bounds.values())
    if pa.types.is_struct(kind):
        return any(_may_overflow(inside) for inside in array.flatten())
    return is_list(kind) and _may_overflow(array.flatten())
