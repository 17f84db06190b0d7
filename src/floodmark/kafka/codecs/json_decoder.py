"""JSON values as Arrow columns: many at once where the result is surely the same, else one by one.

`row_reader` has the rules for one value. Arrow's JSON reader is nearly ten times as fast, but accepts some values that
the rules refuse, and is not safe with every input: a `null` that is not inside an object makes it read memory that is
not its own. So it gets only text in which each line begins and ends as an object does, and what it is laxer about is
ruled out before or checked afterwards. When it refuses, the values are halved until those at fault are among few, and
the rules decide on them.
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
        self._bulk = (
            _ArrowJsonReader(schema)
            if all(_is_readable_by_arrow(field.type) for field in schema) and len(schema)
            else None
        )

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


class _ArrowJsonReader:
    """Reads many objects by Arrow's reader, or gives None where it might say another thing than the rules."""

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


def _is_readable_by_arrow(kind: Any, *, is_inside: bool = False) -> bool:
    """Return whether Arrow's reader can be used for a column."""
    if pa.types.is_struct(kind):
        inside = [kind.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [kind.value_field]
    else:
        is_other = pa.types.is_map(kind) or pa.types.is_large_list(kind)
        is_long = pa.types.is_decimal(kind) and not 0 <= kind.scale <= _MAX_DIGITS
        return not is_other and not is_long and (not is_inside or _type_for_arrow(kind) == kind)
    return bool(inside) and all(
        field.nullable and _is_readable_by_arrow(field.type, is_inside=True) for field in inside
    )


def _type_for_arrow(kind: Any) -> Any:
    """Return the type that Arrow's reader is asked for: text where it would take another form than the rules."""
    is_as_text = pa.types.is_date32(kind) or is_bytes(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    return pa.string() if is_as_text else kind


def _cast_column(read: Any, kind: Any) -> Any:
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


MAX_DEPTH: Final = 200
"""Lists and objects inside each other: more than that is bad, whatever the stack of the caller would allow."""

_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')
ValueReader = Callable[[Any], Any]


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


class _Object(tuple[tuple[str, Any], ...]):
    """The fields of an object as they were written, also those that come twice."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number, parse_constant=_Number
)


def row_reader(schema: Any) -> Callable[[bytes], list[Any]]:
    """Return the function that gives the columns of a value, or raises `Unfit` with the reason.

    >>> read = row_reader(pa.schema([("id", pa.int64()), ("on", pa.date32())]))
    >>> read(b'{"on": "1970-01-02", "more": [], "id": 7}')
    [7, 1]
    >>> read(b'{"id": 7.5}')
    Traceback (most recent call last):
    floodmark.kafka.codecs.values.Unfit: 'id' is 7.5, which is no int64
    """
    fields = _fields_reader(schema)

    def read(value: bytes) -> list[Any]:
        found = _parse(value)
        if type(found) is not _Object:
            raise Unfit(f"the value is no JSON object: {excerpt(value)}")
        return fields(found)

    return read


def _parse(value: bytes) -> Any:
    try:
        text = value.decode()
        found = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise Unfit(f"the value is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"the value is not JSON, {error.msg} at character {error.pos}: {excerpt(text)}") from None
    except RecursionError:
        raise Unfit(f"the value has more than {MAX_DEPTH} lists and objects inside each other") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise Unfit(f"the value has more than {MAX_DEPTH} lists and objects inside each other")
    if ("\\ud" in text or "\\uD" in text) and _has_half_character(text):
        raise Unfit("the value has half of a surrogate pair, which is no character")
    return found


def _depth(text: str) -> int:
    deepest = depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match[1] else -1 if match[2] else 0
        deepest = max(deepest, depth)
    return deepest


def _has_half_character(text: str) -> bool:
    r"""Return whether an escape stands for half of a surrogate pair.

    >>> _has_half_character(r'"\ud83d\ude00"'), _has_half_character(r'"\ud83d-\ude00"')
    (False, True)
    """
    waits_at = -1  # where the second half must stand
    for match in _ESCAPE.finditer(text):
        code = int(match[1] or "0", 16)
        is_second = 0xDC00 <= code <= 0xDFFF
        if (waits_at >= 0) != is_second or (is_second and match.start() != waits_at):
            return True
        waits_at = match.end() if 0xD800 <= code <= 0xDBFF else -1
    return waits_at >= 0


def _fields_reader(fields: Sequence[Any]) -> Callable[[_Object], list[Any]]:
    """Return the function that gives the values of fields, in their order."""
    places = {field.name: place for place, field in enumerate(fields)}
    readers = [_reader(field.type) for field in fields]
    needed = [place for place, field in enumerate(fields) if not field.nullable]
    names = list(places)

    def read(pairs: _Object) -> list[Any]:
        row: list[Any] = [None] * len(names)
        seen: set[int] = set()
        for name, value in pairs:
            place = places.get(name)
            if place is None:
                continue
            if place in seen:
                raise Unfit(f"{name!r} is there twice")
            seen.add(place)
            if value is not None:
                row[place] = _read_field(name, readers[place], value)
        for place in needed:
            if row[place] is None:
                raise Unfit(f"{names[place]!r} is {'null' if place in seen else 'missing'}")
        return row

    return read


def _read_field(name: str, reader: ValueReader, value: Any) -> Any:
    try:
        return reader(value)
    except Unfit as error:
        raise Unfit(f"{name!r}{'' if str(error).startswith('is ') else ':'} {error}") from None


def _reader(kind: Any) -> ValueReader:
    """Return the function for values of a type that are not null."""
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
        # Twenty characters hold every number of 64 bits.
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
        # By way of 64 bits a number would be rounded twice.
        number = pa.scalar(str(value)).cast(kind).as_py() if is_short else float(value)
        if math.isinf(number):
            raise _unfit(value, kind, "too large")
        return float(number)

    return read


def _decimal_reader(kind: Any) -> ValueReader:
    # Its traps make an error of every digit that would be lost.
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
    """Return the bytes that base64 stands for, or raise ValueError.

    >>> read_base64("aGk=")
    b'hi'
    """
    try:
        return a2b_base64(text, strict_mode=True)
    except NotBase64:
        raise ValueError("not base64") from None


def _struct_reader(kind: Any) -> ValueReader:
    fields = [kind.field(place) for place in range(kind.num_fields)]
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
    """Return the function for what stands in a list or a map, null or not."""
    read_value = _reader(field.type)

    def read(value: Any) -> Any:
        if value is not None:
            return read_value(value)
        if not field.nullable:
            raise Unfit("is null inside")
        return None

    return read
