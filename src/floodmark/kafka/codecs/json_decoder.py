"""JSON values as Arrow columns: in bulk with Arrow's JSON reader where that is safe, else one by one.

`row_reader` has the rules for one value. Arrow's JSON reader is nearly ten times as fast, but it accepts some values
that the rules refuse, and it is not memory-safe: a `null` outside an object makes it read invalid memory. So it gets
only text in which each line begins and ends like an object, and whatever it is too lax about is excluded before or
checked afterwards. If it fails, the values are halved until the bad ones are among few, and the rules decide on those.
"""

import json
import math
import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from floodmark._util.codec import MAX_DEPTH, json_depth
from floodmark.kafka.codecs.values import (
    BadValue,
    Decoded,
    Unfit,
    check_columns,
    excerpt,
    is_bytes,
    is_float,
    is_list,
    is_text,
    nested_types,
    read_date,
    read_timestamp,
    result_schema,
    rows_to_batch,
)

_FEW: Final = 16  # with fewer values the rules are faster than halving
_MAX_BYTES: Final = 1 << 26  # at once, in one block of Arrow's reader
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}[ \t\r]*n")
_LAX_NUMBER: Final = re.compile(rb"-NaN|Inf[ \t\r\n]*[,}\]]")
# Arrow's reader computes decimals in 128 bits, and misses overflow and digits cut off by an exponent. Neither occurs
# with at most 19 digits on either side and no exponent.
_MAX_DIGITS: Final = 19
_TO_SHAPE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER: Final = b"0" * (_MAX_DIGITS + 1)
_EXPONENT: Final = re.compile(rb'[",:\[ \t\r][+-]?[0.]+e[+-]?0+[",}\] \t\r]')


class JsonDecoder:
    """Decodes JSON objects into the columns of a schema.

    Fields that are not in the schema are ignored. A missing field is null. A value is bad if a field occurs twice, has
    the wrong type, or is null in a column that is not nullable.

    >>> decoder = JsonDecoder(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    >>> decoded = decoder.decode([b'{"id": 1, "at": "2026-01-01T10:00:00+02:00"}', None, b'{"id": "x"}'])
    >>> decoded.batch.column("id").to_pylist()
    [1, None, None]
    >>> decoded.bad
    (BadValue(index=2, reason="'id' is 'x', which is no int64"),)
    """

    def __init__(self, schema: Any) -> None:
        """Decode into the columns of an Arrow schema."""
        check_columns(schema)
        self._schema = schema
        self._read_row = row_reader(schema)
        self._bulk = (
            _ArrowJsonReader(schema)
            if all(_is_readable_by_arrow(field.type) for field in schema) and len(schema)
            else None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonDecoder, (self._schema,)

    @property
    def schema(self) -> Any:
        """The schema of decoded rows: all columns are nullable."""
        return result_schema(self._schema)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return one row for each value. A tombstone (None) becomes a row of nulls, and is not bad."""
        batches: list[Any] = []
        bad: list[BadValue] = []
        pending = [(0, len(values))]
        while pending:
            start, end = pending.pop()
            batch = self._decode_bulk(values[start:end]) if end - start > _FEW else None
            if batch is not None:
                batches.append(batch)
            elif self._bulk is not None and end - start > _FEW:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
            else:
                batches.append(self._one_by_one(values, start, end, bad))
        result = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return Decoded(result, tuple(bad))

    def _decode_bulk(self, values: Sequence[bytes | None]) -> Any:
        """Return the rows if all values are certainly good, else None."""
        if self._bulk is None:
            return None
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            return self._bulk.read(present)
        rows = self._bulk.read(present) if present else rows_to_batch([], self._schema)
        if rows is None:
            return None
        indexes = iter(range(len(present)))
        return rows.take(pa.array([None if value is None else next(indexes) for value in values], pa.int64()))

    def _one_by_one(self, values: Sequence[bytes | None], start: int, end: int, bad: list[BadValue]) -> Any:
        rows: list[Sequence[Any] | None] = []
        for index in range(start, end):
            value = values[index]
            try:
                rows.append(None if value is None else self._read_row(value))
            except Unfit as error:
                rows.append(None)
                bad.append(BadValue(index, str(error)))
        return rows_to_batch(rows, self._schema)


class _ArrowJsonReader:
    """Reads many objects with Arrow's reader; returns None where its result might differ from the rules."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._result = result_schema(schema)
        self._has_decimals = any(pa.types.is_decimal(kind) for field in schema for kind in nested_types(field.type))
        self._parse = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(field.name, _type_for_arrow(field.type)) for field in schema]),
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
            columns = [_cast_column(table.column(field.name).combine_chunks(), field.type) for field in self._schema]
        except (pa.ArrowException, ValueError):
            return None
        for column, field in zip(columns, self._schema, strict=True):
            if (column.null_count and not field.nullable) or _may_overflow(column):
                return None
        return pa.record_batch(columns, schema=self._result)


def _is_safe(text: bytes, values: Sequence[bytes]) -> bool:
    """Return whether each line of the text is one value, and the text has nothing that Arrow's reader is too lax about.

    An object cannot continue on the next line: after its last `}` a comma would have to follow, but `{` does. So each
    line yields at least one row, and the number of rows shows whether one yields more.
    """
    newlines = len(values) - 1
    closed = text.count(b"}")
    return (
        text.startswith(b"{")
        and text.endswith(b"}")
        and text.count(b"\n") == newlines == text.count(b"}\n{")
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


def _is_readable_by_arrow(kind: Any, *, is_inside: bool = False) -> bool:
    """Return whether Arrow's reader can be used for a column."""
    if pa.types.is_struct(kind):
        inside = [kind.field(index) for index in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [kind.value_field]
    else:
        is_unsupported = pa.types.is_map(kind) or pa.types.is_large_list(kind)
        is_long = pa.types.is_decimal(kind) and not 0 <= kind.scale <= _MAX_DIGITS
        return not is_unsupported and not is_long and (not is_inside or _type_for_arrow(kind) == kind)
    return bool(inside) and all(
        field.nullable and _is_readable_by_arrow(field.type, is_inside=True) for field in inside
    )


def _type_for_arrow(kind: Any) -> Any:
    """Return the type to request from Arrow's reader: text where it would parse differently from the rules."""
    is_as_text = pa.types.is_date32(kind) or is_bytes(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return pa.string() if is_as_text else kind


def _cast_column(column: Any, kind: Any) -> Any:
    """Return the column cast to its type. Unlike the reader, the cast refuses an offset for a type without zone."""
    if is_bytes(kind):
        return pa.array([None if text is None else read_base64(text) for text in column.to_pylist()], kind)
    return column if column.type == kind else column.cast(kind)


def _may_have_long_decimals(text: bytes) -> bool:
    shape = text.translate(_TO_SHAPE)
    if _LONG_NUMBER in shape or b"\\u00" in shape:  # digits and exponents may be written as escapes
        return True
    return (b"0e" in shape or b".e" in shape) and _EXPONENT.search(shape) is not None


def _may_overflow(array: Any) -> bool:
    """Return whether a number overflowed: Arrow's reader yields infinity, or a decimal with too many digits."""
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


_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
ValueReader = Callable[[Any], Any]


class _Number(str):
    """A number in its original spelling."""

    __slots__ = ()


class _Object(tuple[tuple[str, Any], ...]):
    """The fields of an object in their original order, including duplicates."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number, parse_constant=_Number
)


def row_reader(schema: Any) -> Callable[[bytes], list[Any]]:
    """Return a function that returns the column values of one JSON value, or raises `Unfit` with the reason.

    >>> read = row_reader(pa.schema([("id", pa.int64()), ("on", pa.date32())]))
    >>> read(b'{"on": "1970-01-02", "more": [], "id": 7}')
    [7, 1]
    >>> read(b'{"id": 7.5}')
    Traceback (most recent call last):
    floodmark.kafka.codecs.values.Unfit: 'id' is 7.5, which is no int64
    """
    fields = _fields_reader(schema)

    def read(value: bytes) -> list[Any]:
        parsed = _parse(value)
        if type(parsed) is not _Object:
            raise Unfit(f"the value is no JSON object: {excerpt(value)}")
        return fields(parsed)

    return read


def _parse(value: bytes) -> Any:
    try:
        text = value.decode()
        parsed = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise Unfit(f"the value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"the value is not JSON, {error.msg} at character {error.pos}: {excerpt(text)}") from None
    except RecursionError:
        raise Unfit(f"the value has more than {MAX_DEPTH} lists and objects inside each other") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and json_depth(text) > MAX_DEPTH:
        raise Unfit(f"the value has more than {MAX_DEPTH} lists and objects inside each other")
    if ("\\ud" in text or "\\uD" in text) and _has_half_character(text):
        raise Unfit("the value has half of a surrogate pair, which is no character")
    return parsed


def _has_half_character(text: str) -> bool:
    r"""Return whether an escape stands for half of a surrogate pair.

    >>> _has_half_character(r'"\ud83d\ude00"'), _has_half_character(r'"\ud83d-\ude00"')
    (False, True)
    """
    waits_at = -1  # where the second half must follow
    for match in _ESCAPE.finditer(text):
        code = int(match[1] or "0", 16)
        is_second = 0xDC00 <= code <= 0xDFFF
        if (waits_at >= 0) != is_second or (is_second and match.start() != waits_at):
            return True
        waits_at = match.end() if 0xD800 <= code <= 0xDBFF else -1
    return waits_at >= 0


def _fields_reader(fields: Sequence[Any]) -> Callable[[_Object], list[Any]]:
    """Return a function that returns the values of the fields, in their order."""
    indexes = {field.name: index for index, field in enumerate(fields)}
    readers = [_reader(field.type) for field in fields]
    required = [index for index, field in enumerate(fields) if not field.nullable]
    names = list(indexes)

    def read(pairs: _Object) -> list[Any]:
        row: list[Any] = [None] * len(names)
        seen: set[int] = set()
        for name, value in pairs:
            index = indexes.get(name)
            if index is None:
                continue
            if index in seen:
                raise Unfit(f"{name!r} is there twice")
            seen.add(index)
            if value is not None:
                row[index] = _read_field(name, readers[index], value)
        for index in required:
            if row[index] is None:
                raise Unfit(f"{names[index]!r} is {'null' if index in seen else 'missing'}")
        return row

    return read


def _read_field(name: str, reader: ValueReader, value: Any) -> Any:
    try:
        return reader(value)
    except Unfit as error:
        raise Unfit(f"{name!r}{'' if str(error).startswith('is ') else ':'} {error}") from None


def _reader(kind: Any) -> ValueReader:
    """Return a function that reads non-null values of a type."""
    if pa.types.is_boolean(kind):
        return _checked_reader(kind, lambda value: type(value) is bool)
    if pa.types.is_integer(kind):
        return _integer_reader(kind)
    if is_float(kind):
        return _float_reader(kind)
    if is_text(kind):
        return _checked_reader(kind, lambda value: type(value) is str)
    if is_bytes(kind):
        return _text_reader(kind, read_base64)
    if pa.types.is_decimal128(kind):
        return _decimal_reader(kind)
    if pa.types.is_date32(kind):
        return _text_reader(kind, read_date)
    if pa.types.is_timestamp(kind):
        unit, has_zone = kind.unit, kind.tz is not None
        return _text_reader(kind, lambda text: read_timestamp(text, unit, has_zone=has_zone))
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_map(kind):
        return _map_reader(kind)
    return _list_reader(kind)


def _unfit(value: Any, kind: Any, why: str = "") -> Unfit:
    shown = str(value) if type(value) is _Number and len(value) < 40 else _shown(value)
    return Unfit(f"is {shown}, which is no {kind}{why and ': '}{why}")


def _shown(value: Any) -> str:
    if type(value) is _Object:
        return "an object"
    if type(value) is list:
        return "a list"
    if type(value) is bool:
        return "true" if value else "false"
    return excerpt(value)


def _checked_reader(kind: Any, is_right: Callable[[Any], bool]) -> ValueReader:
    def read(value: Any) -> Any:
        if not is_right(value):
            raise _unfit(value, kind)
        return value

    return read


def _integer_reader(kind: Any) -> ValueReader:
    high = 2 ** (kind.bit_width - 1)

    def read(value: Any) -> int:
        # Twenty characters are enough for any 64-bit number.
        if type(value) is not _Number or len(value) > 20 or not value.removeprefix("-").isdigit():
            raise _unfit(value, kind)
        number = int(value)
        if not -high <= number < high:
            raise _unfit(value, kind)
        return number

    return read


def _float_reader(kind: Any) -> ValueReader:
    is_short = kind.bit_width == 32

    def read(value: Any) -> float:
        special = _SPECIAL.get(value) if isinstance(value, str) else None
        if special is not None:
            return special
        if type(value) is not _Number:
            raise _unfit(value, kind)
        # Converting by way of 64 bits would round twice.
        number = pa.scalar(str(value)).cast(kind).as_py() if is_short else float(value)
        if math.isinf(number):
            raise _unfit(value, kind, "too large")
        return float(number)

    return read


def _decimal_reader(kind: Any) -> ValueReader:
    # The traps raise an error for every digit that would be lost.
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    step = Decimal(1).scaleb(-kind.scale)

    def read(value: Any) -> Decimal:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            raise _unfit(value, kind)
        try:
            return Decimal(value).quantize(step, context=context)
        except (Inexact, InvalidOperation):
            raise _unfit(value, kind, "too many digits") from None

    return read


def _text_reader(kind: Any, read_text: Callable[[str], Any]) -> ValueReader:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _unfit(value, kind)
        try:
            return read_text(value)
        except ValueError as error:
            raise _unfit(value, kind, str(error)) from None

    return read


def read_base64(text: str) -> bytes:
    """Return the decoded bytes, or raise ValueError.

    >>> read_base64("aGk=")
    b'hi'
    """
    try:
        return a2b_base64(text, strict_mode=True)
    except NotBase64:
        raise ValueError("not base64") from None


def _struct_reader(kind: Any) -> ValueReader:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    read_fields = _fields_reader(fields)
    names = [field.name for field in fields]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not _Object:
            raise _unfit(value, "struct")
        return dict(zip(names, read_fields(value), strict=True))

    return read


def _list_reader(kind: Any) -> ValueReader:
    read_item = _item_reader(kind.value_field)

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _unfit(value, "list")
        return [read_item(item) for item in value]

    return read


def _map_reader(kind: Any) -> ValueReader:
    read_key, read_item = _item_reader(kind.key_field), _item_reader(kind.item_field)
    is_object = is_text(kind.key_type)

    def read(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not (_Object if is_object else list):
            raise _unfit(value, "map" if is_object else "list of [key, value]")
        for pair in value:
            if not is_object and (type(pair) is not list or len(pair) != 2):
                raise _unfit(value, "list of [key, value]")
        return [(read_key(key), read_item(item)) for key, item in value]

    return read


def _item_reader(field: Any) -> ValueReader:
    """Return a function that reads items of a list or map, null or not."""
    read_value = _reader(field.type)

    def read(value: Any) -> Any:
        if value is not None:
            return read_value(value)
        if not field.nullable:
            raise Unfit("is null inside")
        return None

    return read
