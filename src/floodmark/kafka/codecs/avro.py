"""Avro: schemas as a tree of types, the binary encoding, and values as Arrow columns.

The bytes are decoded here and not by a library: values come from untrusted producers, and must neither crash the
process nor be accepted with a negative index or a length past the end. Logical timestamps stay integers, so that
every timestamp that Arrow can hold is decoded. A reader that runs past the end raises IndexError or struct.error;
`AvroDecoder` turns that into a bad value with a reason.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from floodmark._util.codec import parse_json
from floodmark.errors import FloodmarkError, SchemaInvalid, SchemaMismatch
from floodmark.kafka.codecs.values import (
    PER_SECOND,
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

TIMESTAMPS: Final = {
    f"{prefix}timestamp-{name}": (per_second, not prefix)
    for prefix in ("", "local-")
    for name, per_second in (("millis", 10**3), ("micros", 10**6), ("nanos", 10**9))
}
"""For each logical timestamp type its units in a second, and whether it is in UTC."""

_ARROW_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_WIDER: Final = {frozenset(["int", "long"]): "long", frozenset(["float", "double"]): "double"}
_MAX_DIGITS: Final = 38
_MAX_FIXED_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of an Avro schema, with the types inside it."""

    kind: str
    logical: str | None = None
    inside: tuple["AvroType", ...] = ()
    """The branches of a union, the fields of a record, the items of an array, the values of a map."""
    names: tuple[str, ...] = ()
    """The fields of a record, the symbols of an enum."""
    size: int = 0
    """The size of a fixed, in bytes."""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        """Return the type as readable text.

        >>> str(parse_avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "long"]}]}))
        'record(x: null | long)'
        """
        if self.kind == "union":
            return " | ".join(map(str, self.inside))
        if self.logical == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        if self.kind == "record":
            fields = zip(self.names, self.inside, strict=True)
            return f"record({', '.join(f'{name}: {inside}' for name, inside in fields)})"
        return self.logical or (f"{self.kind}({self.inside[0]})" if self.inside else self.kind)

    @property
    def least_bytes(self) -> int:
        """The minimum number of bytes of a value."""
        if self.kind == "record":
            return sum(field.least_bytes for field in self.inside)
        if self.kind == "fixed":
            return self.size
        return 0 if self.kind == "null" else 1

    def without_null(self) -> tuple["AvroType", bool]:
        """Return the type of non-null values, and whether values may be null."""
        if self.kind != "union":
            return self, self.kind == "null"
        others = [branch for branch in self.inside if branch.kind != "null"]
        is_nullable = len(others) < len(self.inside)
        if len(others) == 1:
            return others[0], is_nullable
        wider = _WIDER.get(frozenset(branch.kind for branch in others if branch.logical is None))
        if wider is not None and all(branch.logical is None for branch in others):
            return AvroType(wider), is_nullable
        return self, is_nullable


def parse_avro(schema: str | Mapping[str, Any]) -> AvroType:
    """Return the record type of an Avro schema, or raise an error if it is not valid or no record.

    >>> parse_avro('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}').names
    ('id',)
    >>> parse_avro('"long"')
    Traceback (most recent call last):
    floodmark.errors.SchemaMismatch: The Avro schema is of the type long. ... [schema-mismatch]
    """
    named: dict[str, Any] = {}
    try:
        parsed = parse_schema(parse_json(schema) if isinstance(schema, str) else schema, named_schemas=named)
        avro = _avro_type(parsed, named, ())
    except FloodmarkError:
        raise
    except (
        SchemaParseException,
        UnknownType,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise SchemaInvalid(
            f"The Avro schema cannot be read: {type(error).__name__}: {error}.",
            rule="An Avro schema is JSON as the Avro specification defines it.",
            remedy='Write for example {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}.',
            schema=str(schema)[:200],
        ) from error
    if avro.kind != "record":
        raise schema_mismatch(f"The Avro schema is of the type {avro}.", "A value has columns, so it must be a record.")
    return avro


def schema_of_avro(schema: str | Mapping[str, Any]) -> Any:
    """Return an Arrow schema that can hold every value of an Avro schema.

    >>> print(
    ...     schema_of_avro('''{"type": "record", "name": "R", "fields": [
    ...     {"name": "id", "type": "long"}, {"name": "at", "type": ["null", {"type": "long",
    ...     "logicalType": "timestamp-micros"}]}]}''')
    ... )
    id: int64 not null
    at: timestamp[us, tz=UTC]
    """
    record = parse_avro(schema)
    return pa.schema(
        [_arrow_field(name, inside, name) for name, inside in zip(record.names, record.inside, strict=True)]
    )


def schema_mismatch(fact: str, rule: str, **fields: object) -> SchemaMismatch:
    """Return the error for an Avro schema that does not fit the columns."""
    return SchemaMismatch(
        fact,
        rule=rule,
        remedy="Change the columns, or select only those that fit; `schema_of_avro` returns columns that do.",
        **fields,
    )


def _avro_type(node: Any, named: Mapping[str, Any], enclosing: tuple[str, ...]) -> AvroType:
    if isinstance(node, list):
        return AvroType("union", inside=tuple(_avro_type(branch, named, enclosing) for branch in node))
    if isinstance(node, str):
        if node not in named:
            return AvroType(node)
        node = named[node]
    kind = node["type"]
    if not isinstance(kind, str) or kind in named:  # a nested type: {"type": {"type": "long"}}
        return _avro_type(kind, named, enclosing)
    if kind == "record" or kind == "error":
        return _record_type(node, named, enclosing)
    if kind == "array" or kind == "map":
        inside = _avro_type(node["items" if kind == "array" else "values"], named, enclosing)
        if kind == "array" and inside.least_bytes == 0:
            raise schema_mismatch(
                f"An array has items of the type {inside}, of no bytes.", "Each item must have at least one byte."
            )
        return AvroType(kind, inside=(inside,))
    size, symbols = node.get("size", 0), tuple(map(_check_name, node.get("symbols", ())))
    if type(size) is not int or not 0 <= size <= _MAX_FIXED_BYTES:
        raise ValueError(f"a fixed has the size {size!r:.50}")
    logical, precision, scale = node.get("logicalType"), node.get("precision", 0), node.get("scale", 0)
    # A logical type that is not valid is ignored, as the specification says.
    is_decimal = type(precision) is int and type(scale) is int and 0 <= scale <= precision
    if not isinstance(logical, str) or not is_decimal:
        logical, precision, scale = logical if isinstance(logical, str) and logical != "decimal" else None, 0, 0
    return AvroType(kind, logical, (), symbols, size, precision, scale)


def _check_name(name: object) -> str:
    """Return a name of a field or symbol that Arrow can hold too."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"a name is {name!r:.50}")
    name.encode()
    return name


def _record_type(node: Mapping[str, Any], named: Mapping[str, Any], enclosing: tuple[str, ...]) -> AvroType:
    name = node["name"]
    if name in enclosing:
        raise schema_mismatch(f"The record {name!r} contains itself.", "Arrow has no recursive types.", avro_type=name)
    fields = node["fields"]
    inside = tuple(_avro_type(field["type"], named, (*enclosing, name)) for field in fields)
    return AvroType("record", inside=inside, names=tuple(_check_name(field["name"]) for field in fields))


def _arrow_field(name: str, avro: AvroType, path: str) -> Any:
    plain, is_nullable = avro.without_null()
    return pa.field(name, _arrow_type(plain, path), is_nullable)


def _arrow_type(avro: AvroType, path: str) -> Any:
    """Return the Arrow type for non-null values of an Avro type."""
    if avro.logical in TIMESTAMPS and avro.kind == "long":
        per_second, has_zone = TIMESTAMPS[avro.logical]
        return pa.timestamp("ms" if per_second == 10**3 else "us", "UTC" if has_zone else None)
    if avro.logical == "date" and avro.kind == "int":
        return pa.date32()
    if avro.logical == "decimal" and avro.kind in ("bytes", "fixed") and avro.precision <= _MAX_DIGITS:
        return pa.decimal128(avro.precision, avro.scale)
    if avro.kind in _ARROW_PRIMITIVES and avro.logical != "decimal":
        return _ARROW_PRIMITIVES[avro.kind]
    if avro.kind == "array":
        return pa.list_(_arrow_field("element", avro.inside[0], f"{path}[]"))
    if avro.kind == "map":
        return pa.map_(pa.string(), _arrow_field("value", avro.inside[0], f"{path}{{}}"))
    if avro.kind == "record":
        fields = zip(avro.names, avro.inside, strict=True)
        return pa.struct([_arrow_field(name, inside, f"{path}.{name}") for name, inside in fields])
    raise schema_mismatch(
        f"The field {path!r} has the Avro type {avro}.",
        "A column needs a type that Spark also has.",
        column=path,
        avro_type=str(avro),
    )


AvroReader = Callable[[bytes, int], tuple[Any, int]]
"""Takes the bytes and a start index, and returns the value that begins there and the index after it."""

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def bytes_reader(avro: AvroType) -> AvroReader:
    """Return a function that reads values of a type.

    >>> bytes_reader(AvroType("string"))(bytes([4]) + b"hi", 0)
    ('hi', 3)
    """
    simple = _PRIMITIVE_READERS.get(avro.kind)
    if simple is not None:
        return simple
    if avro.kind == "fixed":
        return _fixed_reader(avro.size)
    if avro.kind == "enum":
        return _enum_reader(avro.names)
    if avro.kind == "union":
        return union_reader([bytes_reader(branch) for branch in avro.inside])
    if avro.kind == "array":
        return array_reader(bytes_reader(avro.inside[0]))
    if avro.kind == "map":
        return array_reader(map_entry_reader(bytes_reader(avro.inside[0])))
    return _record_reader([bytes_reader(field) for field in avro.inside])


def read_null(data: bytes, at: int) -> tuple[None, int]:
    """Return None: a null has no bytes."""
    return None, at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag-encoded 64-bit integer.

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
    value, at = _read_bytes(data, at)
    return value.decode(), at


_PRIMITIVE_READERS: Final[dict[str, AvroReader]] = {
    "null": read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _fixed_reader(size: int) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return read


def _enum_reader(symbols: Sequence[str]) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise Unfit(f"the value has symbol {index} of an enum of {len(symbols)}")
        return symbols[index], at

    return read


def union_reader(branches: Sequence[AvroReader]) -> AvroReader:
    """Return a function that reads a union, given the readers of its branches."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(branches):
            raise Unfit(f"the value has branch {index} of a union of {len(branches)}")
        return branches[index](data, at)

    return read


def array_reader(read_item: AvroReader) -> AvroReader:
    """Return a function that reads an array, given the reader of its items."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return items, at
            end = None
            if count < 0:
                size, at = read_long(data, at)
                count, end = -count, at + size
            for _ in range(count):
                item, at = read_item(data, at)
                items.append(item)
            if end is not None and at != end:
                raise Unfit("the value has a block of items with the wrong length")

    return read


def map_entry_reader(read_item: AvroReader) -> AvroReader:
    """Return a function that reads an entry of a map, given the reader of its values."""

    def read(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _read_string(data, at)
        item, at = read_item(data, at)
        return (key, item), at

    return read


def _record_reader(fields: Sequence[AvroReader]) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        for field in fields:
            value, at = field(data, at)
            values.append(value)
        return values, at

    return read


_FRAME_BYTES: Final = 5


class AvroDecoder:
    """Decodes Avro records in binary encoding, all written with one schema.

    The columns of `schema` are looked up by name. With `framed`, each value begins with the five bytes that schema
    registry clients write before it: a zero byte and the schema id.

    >>> fields = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    >>> avro = {"type": "record", "name": "R", "fields": fields}
    >>> decoder = AvroDecoder(pa.schema([("s", pa.string()), ("id", pa.int64())]), avro)
    >>> decoded = decoder.decode([bytes([2, 4]) + b"hi", None, bytes([2, 6]) + b"hi"])
    >>> decoded.batch.to_pylist()
    [{'s': 'hi', 'id': 1}, {'s': None, 'id': None}, {'s': None, 'id': None}]
    >>> decoded.bad
    (BadValue(index=2, reason='the value ends too early, after 4 bytes'),)
    """

    def __init__(self, schema: Any, avro_schema: str | Mapping[str, Any], *, framed: bool = False) -> None:
        """Decode into the columns of an Arrow schema, which must fit the Avro schema."""
        check_columns(schema)
        self._schema = schema
        self._avro_schema = avro_schema
        self._framed = framed
        self._read = _row_reader(parse_avro(avro_schema), list(schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_decoder, (self._schema, self._avro_schema, self._framed)

    @property
    def schema(self) -> Any:
        """The schema of decoded rows: all columns are nullable."""
        return result_schema(self._schema)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return one row for each value. A tombstone (None) becomes a row of nulls, and is not bad."""
        rows: list[Sequence[Any] | None] = []
        bad: list[BadValue] = []
        for index, value in enumerate(values):
            try:
                rows.append(None if value is None else self._row(value))
            except Unfit as error:
                rows.append(None)
                bad.append(BadValue(index, str(error)))
        return Decoded(rows_to_batch(rows, self._schema), tuple(bad))

    def _row(self, value: bytes) -> list[Any]:
        start = _FRAME_BYTES if self._framed else 0
        if self._framed and (len(value) < start or value[0] != 0):
            raise Unfit(f"the value does not begin with a zero byte and a schema id: {value[:start]!r}")
        try:
            row, end = self._read(value, start)
        except (IndexError, struct.error):
            raise Unfit(f"the value ends too early, after {len(value)} bytes") from None
        except UnicodeDecodeError:
            raise Unfit("the value has text that is not UTF-8") from None
        if end != len(value):
            raise Unfit(f"the value ends after {end} bytes, and has {len(value) - end} more")
        values: list[Any] = row
        return values


def _unpickle_decoder(schema: Any, avro_schema: str | Mapping[str, Any], framed: bool) -> AvroDecoder:
    return AvroDecoder(schema, avro_schema, framed=framed)


def _row_reader(record: AvroType, columns: Sequence[Any], path: str = "") -> AvroReader:
    """Return a function that reads the column values of a record, in column order."""
    for column in columns:
        if column.name not in record.names:
            raise schema_mismatch(
                f"The column {path + column.name!r} is no field of the Avro schema.",
                f"Columns are taken by name; the fields are {', '.join(record.names)}.",
                column=path + column.name,
                avro_type=str(record),
            )
    indexes = {column.name: index for index, column in enumerate(columns)}
    reads: list[tuple[AvroReader, int]] = []
    for name, inside in zip(record.names, record.inside, strict=True):
        index = indexes.get(name, -1)
        read = bytes_reader(inside) if index < 0 else _column_reader(inside, columns[index], path + name)
        reads.append((read, index))
    # Fields without a column are written to the last element, which is removed.
    width = len(columns)

    def read_row(data: bytes, at: int) -> tuple[list[Any], int]:
        row: list[Any] = [None] * (width + 1)
        for read, index in reads:
            row[index], at = read(data, at)
        row.pop()
        return row, at

    return read_row


def _column_reader(avro: AvroType, field: Any, path: str) -> AvroReader:
    """Return a function that reads values of an Avro type into an Arrow field, null or not."""
    plain, _ = avro.without_null()
    if plain.kind == "union" or plain.kind == "null":
        raise _column_mismatch(avro, field, path)
    if avro.kind != "union":
        return _non_null_reader(plain, field, path)
    null = read_null if field.nullable else _null_refusing_reader(path)
    return union_reader(
        [null if branch.kind == "null" else _non_null_reader(branch, field, path) for branch in avro.inside]
    )


def _null_refusing_reader(path: str) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        raise Unfit(f"{path!r} is null")

    return read


def _non_null_reader(avro: AvroType, field: Any, path: str) -> AvroReader:
    kind = field.type
    convert = _logical_conversion(avro, kind)
    if convert is not None:
        return _converting_reader(bytes_reader(avro), convert, path)
    if avro.kind == "record" and pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _struct_reader(_row_reader(avro, fields, f"{path}."), [field.name for field in fields])
    if avro.kind == "array" and is_list(kind):
        return array_reader(_column_reader(avro.inside[0], kind.value_field, f"{path}[]"))
    if avro.kind == "map" and pa.types.is_map(kind) and is_text(kind.key_type):
        return array_reader(map_entry_reader(_column_reader(avro.inside[0], kind.item_field, f"{path}{{}}")))
    if _is_same_type(avro, kind):
        return bytes_reader(avro)
    raise _column_mismatch(avro, field, path)


def _struct_reader(read_row: AvroReader, names: Sequence[str]) -> AvroReader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row, at = read_row(data, at)
        return dict(zip(names, row, strict=True)), at

    return read


def _column_mismatch(avro: AvroType, field: Any, path: str) -> Exception:
    return schema_mismatch(
        f"The column {path!r} has the Arrow type {field.type}, its field has the Avro type {avro}.",
        "Every value of the field must fit into the column.",
        column=path,
        arrow_type=str(field.type),
        avro_type=str(avro),
    )


def _is_same_type(avro: AvroType, kind: Any) -> bool:
    """Return whether values of an Avro type fit an Arrow type without conversion."""
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


def _logical_conversion(avro: AvroType, kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts the bytes or number of a logical type to an Arrow value; None if none is."""
    if avro.kind == "long" and avro.logical in TIMESTAMPS and pa.types.is_timestamp(kind):
        per_second, has_zone = TIMESTAMPS[avro.logical]
        return _timestamp_conversion(per_second, PER_SECOND[kind.unit]) if has_zone == (kind.tz is not None) else None
    if avro.kind in ("bytes", "fixed") and avro.logical == "decimal" and pa.types.is_decimal128(kind):
        has_room = kind.precision - kind.scale >= avro.precision - avro.scale
        return _decimal_conversion(avro) if has_room and kind.scale >= avro.scale else None
    return None


def _timestamp_conversion(per_second: int, column_per_second: int) -> Callable[[int], int]:
    def convert(number: int) -> int:
        # Digits finer than the column's unit are cut off.
        timestamp = number * column_per_second // per_second
        if not -(2**63) <= timestamp < 2**63:
            raise Unfit(f"is {number}, too far from 1970")
        return timestamp

    return convert


def _decimal_conversion(avro: AvroType) -> Callable[[bytes], Decimal]:
    limit, exponent = 10**avro.precision, -avro.scale

    def convert(data: bytes) -> Decimal:
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= limit:
            raise Unfit(f"has more than {avro.precision} digits")
        return Decimal(f"{number}E{exponent}")

    return convert


def _converting_reader(read: AvroReader, convert: Callable[[Any], Any], path: str) -> AvroReader:
    def read_converted(data: bytes, at: int) -> tuple[Any, int]:
        value, end = read(data, at)
        try:
            return convert(value), end
        except Unfit as error:
            raise Unfit(f"{path!r} {error}") from None

    return read_converted
