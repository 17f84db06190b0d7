"""Avro values as Arrow columns.

The bytes are read here and not by a library: a record comes from anybody, and must neither end the process nor be
taken for good when an index in it is negative or a length leads past its end. Numbers behind logical types stay
numbers, so that every moment that Arrow can hold comes through.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from floodmark.kafka._avro_bytes import Read, entry_of, items_of, read_null, reader_of, union_of
from floodmark.kafka._avro_schema import MOMENTS, AvroType, mismatch, parse_avro
from floodmark.kafka._json_times import PER_SECOND
from floodmark.kafka._values import (
    BadValue,
    Decoded,
    Unfit,
    check_columns,
    is_bytes,
    is_float,
    is_list,
    is_text,
    result_schema,
    rows_to_batch,
)

_HEADER: Final = 5


class AvroDecoder:
    """Makes rows of Avro records in binary encoding, all written by one schema.

    The columns of `schema` are taken by name from the record. With `framed`, each value begins with the five bytes that
    clients of a schema registry put before it: a zero, and the number of the schema.

    >>> fields = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    >>> avro = {"type": "record", "name": "R", "fields": fields}
    >>> decoder = AvroDecoder(pa.schema([("s", pa.string()), ("id", pa.int64())]), avro)
    >>> decoded = decoder.decode([bytes([2, 4]) + b"hi", None, bytes([2, 6]) + b"hi"])
    >>> decoded.batch.to_pylist()
    [{'s': 'hi', 'id': 1}, {'s': None, 'id': None}, {'s': None, 'id': None}]
    >>> decoded.bad
    (BadValue(place=2, reason='the value ends too early, after 4 bytes'),)
    """

    def __init__(self, schema: Any, avro_schema: str | Mapping[str, Any], *, framed: bool = False) -> None:
        """Decode into the columns of an Arrow schema, which must fit the Avro schema."""
        check_columns(schema)
        self._schema = schema
        self._avro_schema = avro_schema
        self._framed = framed
        self._read = _row_reader(parse_avro(avro_schema), list(schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._schema, self._avro_schema, self._framed)

    @property
    def schema(self) -> Any:
        """The schema of what `decode` gives: its columns may all be null."""
        return result_schema(self._schema)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return one row for each value. A value that is None, a tombstone, is a row of nulls and not bad."""
        rows: list[Sequence[Any] | None] = []
        bad: list[BadValue] = []
        for place, value in enumerate(values):
            try:
                rows.append(None if value is None else self._row(value))
            except Unfit as error:
                rows.append(None)
                bad.append(BadValue(place, str(error)))
        return Decoded(rows_to_batch(rows, self._schema), tuple(bad))

    def _row(self, value: bytes) -> list[Any]:
        start = _HEADER if self._framed else 0
        if self._framed and (len(value) < start or value[0] != 0):
            raise Unfit(f"the value does not begin as one with a schema's number does: {value[:start]!r}")
        try:
            row, end = self._read(value, start)
        except (IndexError, struct.error):
            raise Unfit(f"the value ends too early, after {len(value)} bytes") from None
        except UnicodeDecodeError:
            raise Unfit("the value has text that is not UTF-8") from None
        if end != len(value):
            raise Unfit(f"the value ends after {end} bytes, and has {len(value) - end} more")
        found: list[Any] = row
        return found


def _rebuilt(schema: Any, avro_schema: str | Mapping[str, Any], framed: bool) -> AvroDecoder:
    return AvroDecoder(schema, avro_schema, framed=framed)


def _row_reader(record: AvroType, columns: Sequence[Any], path: str = "") -> Read:
    """Return the function that gives the columns' values of a record, in their order."""
    for column in columns:
        if column.name not in record.names:
            raise mismatch(
                f"The column {path + column.name!r} is no field of the Avro schema.",
                f"Columns are taken by name; the fields are {', '.join(record.names)}.",
                column=path + column.name,
                avro_type=str(record),
            )
    places = {column.name: place for place, column in enumerate(columns)}
    reads: list[tuple[Read, int]] = []
    for name, inside in zip(record.names, record.inside, strict=True):
        place = places.get(name, -1)
        read = reader_of(inside) if place < 0 else _reader(inside, columns[place], path + name)
        reads.append((read, place))
    # What no column takes goes behind the row, and is cut off.
    width = len(columns)

    def read_row(data: bytes, at: int) -> tuple[list[Any], int]:
        row: list[Any] = [None] * (width + 1)
        for read, place in reads:
            row[place], at = read(data, at)
        row.pop()
        return row, at

    return read_row


def _reader(avro: AvroType, field: Any, path: str) -> Read:
    """Return the function for values of an Avro type that go into an Arrow field, null or not."""
    plain, _ = avro.without_null()
    if plain.kind == "union" or plain.kind == "null":
        raise _unlike(avro, field, path)
    if avro.kind != "union":
        return _plain_reader(plain, field, path)
    null = read_null if field.nullable else _refused_null(path)
    return union_of([null if branch.kind == "null" else _plain_reader(branch, field, path) for branch in avro.inside])


def _refused_null(path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        raise Unfit(f"{path!r} is null")

    return read


def _plain_reader(avro: AvroType, field: Any, path: str) -> Read:
    kind = field.type
    convert = _conversion(avro, kind)
    if convert is not None:
        return _converted(reader_of(avro), convert, path)
    if avro.kind == "record" and pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return _struct(_row_reader(avro, fields, f"{path}."), [field.name for field in fields])
    if avro.kind == "array" and is_list(kind):
        return items_of(_reader(avro.inside[0], kind.value_field, f"{path}[]"))
    if avro.kind == "map" and pa.types.is_map(kind) and is_text(kind.key_type):
        return items_of(entry_of(_reader(avro.inside[0], kind.item_field, f"{path}{{}}")))
    if _is_same(avro, kind):
        return reader_of(avro)
    raise _unlike(avro, field, path)


def _struct(read_row: Read, names: Sequence[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row, at = read_row(data, at)
        return dict(zip(names, row, strict=True)), at

    return read


def _unlike(avro: AvroType, field: Any, path: str) -> Exception:
    return mismatch(
        f"The column {path!r} has the Arrow type {field.type}, its field has the Avro type {avro}.",
        "Every value of the field must be one of the column.",
        column=path,
        arrow_type=str(field.type),
        avro_type=str(avro),
    )


def _is_same(avro: AvroType, kind: Any) -> bool:
    """Return whether each value of an Avro type is one of an Arrow type as it is."""
    if avro.kind in ("int", "long"):
        if pa.types.is_date32(kind):
            return avro.kind == "int" and avro.logical == "date"
        return bool(pa.types.is_signed_integer(kind)) and kind.bit_width >= (32 if avro.kind == "int" else 64)
    if avro.kind in ("float", "double"):
        return is_float(kind) and kind.bit_width >= (32 if avro.kind == "float" else 64)
    if avro.kind in ("bytes", "fixed"):
        return is_bytes(kind)
    if avro.kind in ("string", "enum"):
        return is_text(kind)
    return avro.kind == "boolean" and bool(pa.types.is_boolean(kind))


def _conversion(avro: AvroType, kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that makes an Arrow value of the bytes or the number behind a logical type."""
    if avro.kind == "long" and avro.logical in MOMENTS and pa.types.is_timestamp(kind):
        per_second, has_zone = MOMENTS[avro.logical]
        return _moment(per_second, PER_SECOND[kind.unit]) if has_zone == (kind.tz is not None) else None
    if avro.kind in ("bytes", "fixed") and avro.logical == "decimal" and pa.types.is_decimal128(kind):
        has_room = kind.precision - kind.scale >= avro.precision - avro.scale
        return _decimal(avro) if has_room and kind.scale >= avro.scale else None
    return None


def _moment(per_second: int, wanted: int) -> Callable[[int], int]:
    def convert(number: int) -> int:
        # What is finer than the column is cut off.
        moment = number * wanted // per_second
        if not -(2**63) <= moment < 2**63:
            raise Unfit(f"is {number}, too far from 1970")
        return moment

    return convert


def _decimal(avro: AvroType) -> Callable[[bytes], Decimal]:
    limit, exponent = 10**avro.precision, -avro.scale

    def convert(data: bytes) -> Decimal:
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= limit:
            raise Unfit(f"has more than {avro.precision} digits")
        return Decimal(f"{number}E{exponent}")

    return convert


def _converted(read: Read, convert: Callable[[Any], Any], path: str) -> Read:
    def read_converted(data: bytes, at: int) -> tuple[Any, int]:
        found, end = read(data, at)
        try:
            return convert(found), end
        except Unfit as error:
            raise Unfit(f"{path!r} {error}") from None

    return read_converted
