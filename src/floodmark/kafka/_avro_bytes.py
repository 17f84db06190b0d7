"""Avro's binary encoding: functions that read one value of a type, and refuse what no writer writes.

A place past the end raises IndexError or struct.error; the caller says so in words.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from floodmark.kafka._avro_schema import AvroType
from floodmark.kafka._values import Unfit

Read = Callable[[bytes, int], tuple[Any, int]]
"""Takes the bytes and a place in them, gives the value that begins there and the place after it."""

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def reader_of(avro: AvroType) -> Read:
    """Return the function that reads values of a type.

    >>> reader_of(AvroType("string"))(bytes([4]) + b"hi", 0)
    ('hi', 3)
    """
    simple = _SIMPLE.get(avro.kind)
    if simple is not None:
        return simple
    if avro.kind == "fixed":
        return _fixed(avro.size)
    if avro.kind == "enum":
        return _enum(avro.names)
    if avro.kind == "union":
        return union_of([reader_of(branch) for branch in avro.inside])
    if avro.kind == "array":
        return items_of(reader_of(avro.inside[0]))
    if avro.kind == "map":
        return items_of(entry_of(reader_of(avro.inside[0])))
    return _record([reader_of(field) for field in avro.inside])


def read_null(data: bytes, at: int) -> tuple[None, int]:
    """Return None: a null has no bytes."""
    return None, at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 64 bits.

    >>> read_long(bytes([1]), 0), read_long(bytes([0x80, 1]), 0)
    ((-1, 1), (64, 2))
    """
    byte = data[at]
    at += 1
    number = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise Unfit("the value has a number of more than ten bytes")
    if number > 0xFFFF_FFFF_FFFF_FFFF:
        raise Unfit("the value has a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    number, at = read_long(data, at)
    if not -0x8000_0000 <= number <= 0x7FFF_FFFF:
        raise Unfit(f"the value has the number {number} for one of 32 bits")
    return number, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise Unfit(f"the value has the byte {byte} for a boolean")
    return byte == 1, at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_long(data, at)
    end = at + length
    if length < 0:
        raise Unfit(f"the value has the length {length}")
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    return found.decode(), at


_SIMPLE: Final[dict[str, Read]] = {
    "null": read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def _enum(symbols: Sequence[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        place, at = read_long(data, at)
        if not 0 <= place < len(symbols):
            raise Unfit(f"the value has symbol {place} of an enum of {len(symbols)}")
        return symbols[place], at

    return read


def union_of(branches: Sequence[Read]) -> Read:
    """Return the function for a union of what other functions read."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        place, at = read_long(data, at)
        if not 0 <= place < len(branches):
            raise Unfit(f"the value has branch {place} of a union of {len(branches)}")
        return branches[place](data, at)

    return read


def items_of(read_item: Read) -> Read:
    """Return the function for an array of what another function reads."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return found, at
            end = None
            if count < 0:
                size, at = read_long(data, at)
                count, end = -count, at + size
            for _ in range(count):
                item, at = read_item(data, at)
                found.append(item)
            if end is not None and at != end:
                raise Unfit("the value has a block of items with the wrong length")

    return read


def entry_of(read_item: Read) -> Read:
    """Return the function for an entry of a map."""

    def read(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _read_string(data, at)
        item, at = read_item(data, at)
        return (key, item), at

    return read


def _record(fields: Sequence[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        for field in fields:
            value, at = field(data, at)
            found.append(value)
        return found, at

    return read
