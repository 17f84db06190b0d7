"""Avro schemas: as a tree without names, and as Arrow has them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from floodmark.errors import SchemaInvalid, SchemaMismatch

MOMENTS: Final = {
    f"{where}timestamp-{name}": (per_second, not where)
    for where in ("", "local-")
    for name, per_second in (("millis", 10**3), ("micros", 10**6), ("nanos", 10**9))
}
"""For each logical type of a moment its units in a second, and whether it is one in UTC."""

_PRIMITIVE: Final[dict[str, Any]] = {
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


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of an Avro schema with all that it is made of."""

    kind: str
    logical: str | None = None
    inside: tuple["AvroType", ...] = ()
    """The branches of a union, the fields of a record, the items of an array, the values of a map."""
    names: tuple[str, ...] = ()
    """The fields of a record, the symbols of an enum."""
    size: int = 0
    """The bytes of a fixed."""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        """Return it as a person would write it.

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
        """How many bytes a value has at least."""
        if self.kind == "record":
            return sum(field.least_bytes for field in self.inside)
        if self.kind == "fixed":
            return self.size
        return 0 if self.kind == "null" else 1

    def without_null(self) -> tuple["AvroType", bool]:
        """Return the type that values have when they are not null, and whether they may be null."""
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
    """Return the type of a record that an Avro schema describes, or refuse it.

    >>> parse_avro('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}').names
    ('id',)
    >>> parse_avro('"long"')
    Traceback (most recent call last):
    floodmark.errors.SchemaMismatch: The Avro schema is of the type long. ... [schema-mismatch]
    """
    named: dict[str, Any] = {}
    try:
        parsed = parse_schema(json.loads(schema) if isinstance(schema, str) else schema, named_schemas=named)
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaInvalid(
            f"The Avro schema cannot be read: {type(error).__name__}: {error}.",
            rule="It is a schema as the Avro specification defines it, in JSON.",
            remedy='Write for example {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}.',
            schema=str(schema)[:200],
        ) from error
    made = _type(parsed, named, ())
    if made.kind != "record":
        raise mismatch(f"The Avro schema is of the type {made}.", "A value has columns, so it is a record.")
    return made


def schema_of_avro(schema: str | Mapping[str, Any]) -> Any:
    """Return the Arrow schema that holds every value of an Avro schema.

    >>> print(
    ...     schema_of_avro('''{"type": "record", "name": "R", "fields": [
    ...     {"name": "id", "type": "long"}, {"name": "at", "type": ["null", {"type": "long",
    ...     "logicalType": "timestamp-micros"}]}]}''')
    ... )
    id: int64 not null
    at: timestamp[us, tz=UTC]
    """
    record = parse_avro(schema)
    return pa.schema([_field(name, inside, name) for name, inside in zip(record.names, record.inside, strict=True)])


def mismatch(fact: str, rule: str, **fields: object) -> SchemaMismatch:
    """Return the error about an Avro schema that cannot be had as columns."""
    return SchemaMismatch(
        fact,
        rule=rule,
        remedy="Change the columns, or take only those that fit; `schema_of_avro` shows them.",
        **fields,
    )


def _type(found: Any, named: Mapping[str, Any], around: tuple[str, ...]) -> AvroType:
    if isinstance(found, list):
        return AvroType("union", inside=tuple(_type(branch, named, around) for branch in found))
    if isinstance(found, str):
        if found not in named:
            return AvroType(found)
        found = named[found]
    kind = found["type"]
    if not isinstance(kind, str) or kind in named:  # a type inside a type of its own: {"type": {"type": "long"}}
        return _type(kind, named, around)
    if kind == "record" or kind == "error":
        return _record(found, named, around)
    if kind == "array" or kind == "map":
        inside = _type(found["items" if kind == "array" else "values"], named, around)
        if kind == "array" and inside.least_bytes == 0:
            raise mismatch(f"An array has items of the type {inside}, of no bytes.", "Each item has a byte at least.")
        return AvroType(kind, inside=(inside,))
    size = found.get("size", 0)
    logical, precision, scale = found.get("logicalType"), found.get("precision", 0), found.get("scale", 0)
    if logical == "decimal" and not 0 <= scale <= precision:
        logical = None
    return AvroType(kind, logical, (), tuple(found.get("symbols", ())), size, precision, scale)


def _record(found: Mapping[str, Any], named: Mapping[str, Any], around: tuple[str, ...]) -> AvroType:
    name = found["name"]
    if name in around:
        raise mismatch(f"The record {name!r} contains itself.", "A type of Arrow has an end.", avro_type=name)
    fields = found["fields"]
    inside = tuple(_type(field["type"], named, (*around, name)) for field in fields)
    return AvroType("record", inside=inside, names=tuple(field["name"] for field in fields))


def _field(name: str, avro: AvroType, path: str) -> Any:
    plain, is_nullable = avro.without_null()
    return pa.field(name, _arrow(plain, path), is_nullable)


def _arrow(avro: AvroType, path: str) -> Any:
    """Return the Arrow type for values of an Avro type that are not null."""
    if avro.logical in MOMENTS and avro.kind == "long":
        per_second, has_zone = MOMENTS[avro.logical]
        return pa.timestamp("ms" if per_second == 10**3 else "us", "UTC" if has_zone else None)
    if avro.logical == "date" and avro.kind == "int":
        return pa.date32()
    if avro.logical == "decimal" and avro.kind in ("bytes", "fixed") and avro.precision <= _MAX_DIGITS:
        return pa.decimal128(avro.precision, avro.scale)
    if avro.kind in _PRIMITIVE and avro.logical != "decimal":
        return _PRIMITIVE[avro.kind]
    if avro.kind == "array":
        return pa.list_(_field("element", avro.inside[0], f"{path}[]"))
    if avro.kind == "map":
        return pa.map_(pa.string(), _field("value", avro.inside[0], f"{path}{{}}"))
    if avro.kind == "record":
        fields = zip(avro.names, avro.inside, strict=True)
        return pa.struct([_field(name, inside, f"{path}.{name}") for name, inside in fields])
    raise mismatch(
        f"The field {path!r} has the Avro type {avro}.",
        "A column has one type that Spark has too.",
        column=path,
        avro_type=str(avro),
    )
