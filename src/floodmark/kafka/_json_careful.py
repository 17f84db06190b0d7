"""The rules of JSON values, one value after the other: what is good, what it means, and why another is bad."""

import json
import math
import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from floodmark.kafka._json_times import read_date, read_timestamp
from floodmark.kafka._values import Unfit, excerpt, is_bytes, is_float, is_text

MAX_DEPTH: Final = 200
"""Lists and objects inside each other: more than that is bad, whatever the stack of the caller would allow."""

_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')
Reader = Callable[[Any], Any]


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
    floodmark.kafka._values.Unfit: 'id' is 7.5, which is no int64
    """
    fields = _fields_reader(schema)

    def read(value: bytes) -> list[Any]:
        found = _parsed(value)
        if type(found) is not _Object:
            raise Unfit(f"the value is no JSON object: {excerpt(value)}")
        return fields(found)

    return read


def _parsed(value: bytes) -> Any:
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
                row[place] = _inside(name, readers[place], value)
        for place in needed:
            if row[place] is None:
                raise Unfit(f"{names[place]!r} is {'null' if place in seen else 'missing'}")
        return row

    return read


def _inside(name: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except Unfit as error:
        raise Unfit(f"{name!r}{'' if str(error).startswith('is ') else ':'} {error}") from None


def _reader(kind: Any) -> Reader:
    """Return the function for values of a type that are not null."""
    if pa.types.is_boolean(kind):
        return _checked(kind, lambda value: type(value) is bool)
    if pa.types.is_integer(kind):
        return _integer_reader(kind)
    if is_float(kind):
        return _float_reader(kind)
    if is_text(kind):
        return _checked(kind, lambda value: type(value) is str)
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


def _no(value: Any, kind: Any, why: str = "") -> Unfit:
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


def _checked(kind: Any, is_right: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not is_right(value):
            raise _no(value, kind)
        return value

    return read


def _integer_reader(kind: Any) -> Reader:
    high = 2 ** (kind.bit_width - 1)

    def read(value: Any) -> int:
        # Twenty characters hold every number of 64 bits.
        if type(value) is not _Number or len(value) > 20 or not value.removeprefix("-").isdigit():
            raise _no(value, kind)
        number = int(value)
        if not -high <= number < high:
            raise _no(value, kind)
        return number

    return read


def _float_reader(kind: Any) -> Reader:
    is_short = kind.bit_width == 32

    def read(value: Any) -> float:
        special = _SPECIAL.get(value) if isinstance(value, str) else None
        if special is not None:
            return special
        if type(value) is not _Number:
            raise _no(value, kind)
        # By way of 64 bits a number would be rounded twice.
        number = pa.scalar(str(value)).cast(kind).as_py() if is_short else float(value)
        if math.isinf(number):
            raise _no(value, kind, "too large")
        return float(number)

    return read


def _decimal_reader(kind: Any) -> Reader:
    # Its traps make an error of every digit that would be lost.
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    step = Decimal(1).scaleb(-kind.scale)

    def read(value: Any) -> Decimal:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            raise _no(value, kind)
        try:
            return Decimal(value).quantize(step, context=context)
        except (Inexact, InvalidOperation):
            raise _no(value, kind, "too many digits") from None

    return read


def _text_reader(kind: Any, read_text: Callable[[str], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _no(value, kind)
        try:
            return read_text(value)
        except ValueError as error:
            raise _no(value, kind, str(error)) from None

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


def _struct_reader(kind: Any) -> Reader:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    read_fields = _fields_reader(fields)
    names = [field.name for field in fields]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not _Object:
            raise _no(value, "struct")
        return dict(zip(names, read_fields(value), strict=True))

    return read


def _list_reader(kind: Any) -> Reader:
    read_item = _item_reader(kind.value_field)

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _no(value, "list")
        return [read_item(item) for item in value]

    return read


def _map_reader(kind: Any) -> Reader:
    read_key, read_item = _item_reader(kind.key_field), _item_reader(kind.item_field)
    is_object = is_text(kind.key_type)

    def read(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not (_Object if is_object else list):
            raise _no(value, "map" if is_object else "list of [key, value]")
        for pair in value:
            if not is_object and (type(pair) is not list or len(pair) != 2):
                raise _no(value, "list of [key, value]")
        return [(read_key(key), read_item(item)) for key, item in value]

    return read


def _item_reader(field: Any) -> Reader:
    """Return the function for what stands in a list or a map, null or not."""
    read_value = _reader(field.type)

    def read(value: Any) -> Any:
        if value is not None:
            return read_value(value)
        if not field.nullable:
            raise Unfit("is null inside")
        return None

    return read
