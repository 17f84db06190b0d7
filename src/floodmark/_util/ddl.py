"""Schemas in Spark's DDL, such as "id BIGINT NOT NULL, at TIMESTAMP", and as Arrow schemas."""

import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from floodmark._util.text import did_you_mean
from floodmark.errors import SchemaInvalid

_SIMPLE: Final[dict[str, Callable[[], Any]]] = {
    "boolean": pa.bool_,
    "tinyint": pa.int8,
    "byte": pa.int8,
    "smallint": pa.int16,
    "short": pa.int16,
    "int": pa.int32,
    "integer": pa.int32,
    "bigint": pa.int64,
    "long": pa.int64,
    "float": pa.float32,
    "real": pa.float32,
    "double": pa.float64,
    "string": pa.string,
    "binary": pa.binary,
    "date": pa.date32,
    "timestamp": lambda: pa.timestamp("us", "UTC"),
    "timestamp_ltz": lambda: pa.timestamp("us", "UTC"),
    "timestamp_ntz": lambda: pa.timestamp("us"),
}
_TEXT: Final = ("varchar", "char")
_DECIMAL: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
_KNOWN: Final = (*_SIMPLE, *_TEXT, *_DECIMAL, *_NESTED)
# Each alternative reads its characters in one way only, so that no text takes more than linear time.
_TOKEN: Final = re.compile(r"\s*(?:`([^`]*(?:``[^`]*)*)`|('[^'\\]*(?:\\.[^'\\]*)*')|(\w+)|([<>(),:]))")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MAX_PRECISION: Final = 38
_SHOWN: Final = 1_000

MAX_COLUMNS: Final = 10_000
"""The columns of a schema, with the fields and elements inside of them."""

MAX_DEPTH: Final = 30
"""The levels of a schema: a plain column has one. Arrow writes batches with up to 64, and a map takes two of them."""


def parse_ddl(text: str) -> Any:
    """Return the Arrow schema of columns in Spark's DDL, or raise an error.

    >>> print(parse_ddl("id BIGINT NOT NULL, tags ARRAY<STRING>"))
    id: int64 not null
    tags: list<element: string>
      child 0, element: string
    >>> parse_ddl("id BIGIN")
    Traceback (most recent call last):
    floodmark.errors.SchemaInvalid: The schema has the type 'BIGIN'. ... Did you mean 'bigint'? [schema-invalid]
    """
    schema = pa.schema(_Reader(text).fields(end=None))
    check_schema(schema)
    return schema


def check_schema(schema: Any) -> None:
    """Raise `SchemaInvalid` for an Arrow schema that is too large, or has invalid names, zones or decimals.

    >>> check_schema(pa.schema([("id", pa.int64()), ("id", pa.string())]))
    Traceback (most recent call last):
    floodmark.errors.SchemaInvalid: The schema has the column 'id' twice. ... [schema-invalid]
    """
    count = 0
    groups = [(1, list(schema))]
    while groups:
        depth, fields = groups.pop()
        count += len(fields)
        _check_size(count, depth)
        _check_names(fields)
        for field in fields:
            kind = field.type
            if pa.types.is_struct(kind):
                groups.append((depth + 1, [kind.field(index) for index in range(kind.num_fields)]))
            elif pa.types.is_map(kind):
                groups += [(depth + 1, [kind.key_field]), (depth + 1, [kind.item_field])]
            elif kind.num_fields:
                groups.append((depth + 1, [kind.field(0)]))
            elif pa.types.is_timestamp(kind):
                _check_zone(kind)
            elif pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
                raise _refused(f"The schema has the type {kind}.", str(kind), "Use a scale from 0 up to the precision.")


def _check_size(count: int, depth: int) -> None:
    if count > MAX_COLUMNS or depth > MAX_DEPTH:
        raise SchemaInvalid(
            f"The schema has more than {MAX_COLUMNS} columns."
            if count > MAX_COLUMNS
            else f"The schema is nested in more than {MAX_DEPTH} levels.",
            rule=f"A schema has at most {MAX_COLUMNS} columns, nested ones included, in at most {MAX_DEPTH} levels.",
            remedy="Store what changes from event to event as a MAP, or as JSON in a STRING.",
        )


def _check_zone(kind: Any) -> None:
    """Refuse a timestamp whose zone is no text, or one that readers cannot convert."""
    try:
        if kind.tz is not None:
            pa.lib.string_to_tzinfo(kind.tz)
    except UnicodeDecodeError:
        raise _refused("The schema has a timestamp whose zone is no text.", "", "Use the zone 'UTC'.") from None
    except (ValueError, LookupError, OSError):
        fact = f"The schema has a timestamp of the zone {kind.tz!r:.200}, which is unknown."
        raise _refused(fact, str(kind), "Use the zone 'UTC'.") from None


def _check_names(fields: list[Any]) -> None:
    """Refuse columns or fields of one struct with equal, empty or undecodable names."""
    names: set[str] = set()
    for field in fields:
        try:
            name = field.name
        except UnicodeDecodeError:
            raise _refused("The schema has a column whose name is no text.", "", "Name it in UTF-8.") from None
        if not name:
            raise _refused("The schema has a column without a name.", "", "Name it.")
        if name in names:
            raise _refused(f"The schema has the column {name!r:.200} twice.", name, "Rename one of the two columns.")
        names.add(name)
    if not fields:
        raise _refused("The schema has a list of columns that is empty.", "", "Name at least one column.")


def write_ddl(schema: Any) -> str:
    """Return an Arrow schema in Spark's DDL, or raise an error if Spark lacks a type.

    >>> write_ddl(parse_ddl("id BIGINT NOT NULL, at TIMESTAMP, kind STRUCT<a: INT, b: DECIMAL(10, 2)>"))
    'id BIGINT NOT NULL, at TIMESTAMP, kind STRUCT<a: INT, b: DECIMAL(10, 2)>'
    """
    return ", ".join(_write_field(field, " ") for field in schema)


_WRITTEN: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
    "date32[day]": "DATE",
}


def _write_field(field: Any, separator: str) -> str:
    name = field.name if re.fullmatch(r"\w+", field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{separator}{_write_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def _write_type(kind: Any) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{_write_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_write_type(kind.key_type)}, {_write_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_write_field(kind.field(index), ': ') for index in range(kind.num_fields))}>"
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms", "s"):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    simple = _WRITTEN.get(str(kind))
    if simple is None:
        fact = f"The schema has the Arrow type {kind!s:.200}."
        raise _refused(fact, str(kind), "Cast the column to a type that Spark also has.")
    return simple


class _Reader:
    """A recursive-descent parser of Spark's DDL that reads each token once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._count = 0
        self._depth = 0
        self._token = _TOKEN.match(text)

    def fields(self, end: str | None) -> list[Any]:
        fields = [self._field()]
        while self._next_is(","):
            fields.append(self._field())
        if end is not None:
            self._expect(end)
        elif self._text[self._position :].strip():
            raise self._unexpected()
        return fields

    def _field(self) -> Any:
        quoted, word = self._group(1), self._group(3)
        name = quoted.replace("``", "`") if quoted else word
        if not name:
            raise self._unexpected()
        self._advance()
        self._next_is(":")
        kind = self._type()
        nullable = True
        if self._next_is("not"):
            self._expect("null")
            nullable = False
        if self._next_is("comment"):
            if not self._group(2):
                raise self._unexpected()
            self._advance()
        try:
            return pa.field(name, kind, nullable)
        except UnicodeEncodeError:
            raise self._unexpected() from None

    def _type(self) -> Any:
        """Return the type of a column, an element or a value; each counts as a column."""
        self._count += 1
        self._depth += 1
        _check_size(self._count, self._depth)
        word = self._group(3)
        if not word:
            raise self._unexpected()
        self._advance()
        kind = self._type_named(word)
        self._depth -= 1
        return kind

    def _type_named(self, word: str) -> Any:
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _TEXT:
            self._numbers(most=1)
            return pa.string()
        if name in _DECIMAL:
            return self._decimal()
        if name == "array":
            return pa.list_(pa.field("element", self._type_arguments(1)[0]))
        if name == "map":
            return pa.map_(*self._type_arguments(2))
        if name == "struct":
            self._expect("<")
            return pa.struct(self.fields(end=">"))
        raise _refused(
            f"The schema has the type {word!r:.200}.",
            self._text,
            did_you_mean(name, _KNOWN, otherwise=f"The types are {', '.join(_KNOWN)}."),
        )

    def _type_arguments(self, count: int) -> list[Any]:
        self._expect("<")
        types = [self._type()]
        while len(types) < count:
            self._expect(",")
            types.append(self._type())
        self._expect(">")
        return types

    def _decimal(self) -> Any:
        precision, scale = [*(self._numbers(most=2) or [10]), 0][:2]
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            fact = f"The schema has the type DECIMAL({precision}, {scale})."
            raise _refused(fact, self._text, f"Use a precision from 1 to {_MAX_PRECISION}, and no larger scale.")
        return pa.decimal128(precision, scale)

    def _numbers(self, most: int) -> list[int]:
        """Return up to `most` numbers in parentheses; none without parentheses."""
        if not self._next_is("("):
            return []
        numbers: list[int] = []
        while True:
            if not _NUMBER.fullmatch(self._group(3)) or len(numbers) == most:
                raise self._unexpected()
            numbers.append(int(self._group(3)))
            self._advance()
            if not self._next_is(","):
                break
        self._expect(")")
        return numbers

    def _group(self, number: int) -> str:
        """Return the next token if it is of this group of `_TOKEN`, else ""."""
        return "" if self._token is None else self._token[number] or ""

    def _advance(self) -> None:
        if self._token is not None:
            self._position = self._token.end()
            self._token = _TOKEN.match(self._text, self._position)

    def _next_is(self, token: str) -> bool:
        is_next = (self._group(3) or self._group(4)).lower() == token
        if is_next:
            self._advance()
        return is_next

    def _expect(self, token: str) -> None:
        if not self._next_is(token):
            raise self._unexpected()

    def _unexpected(self) -> SchemaInvalid:
        rest = self._text[self._position :].strip()
        problem = f"unexpected {rest[:30]!r}" if rest else "it ends too early"
        fact = f"The schema cannot be read: {problem}."
        return _refused(fact, self._text, "Write for example 'id BIGINT, at TIMESTAMP'.")


def _refused(fact: str, schema: str, remedy: str) -> SchemaInvalid:
    return SchemaInvalid(
        fact,
        rule="A schema is a list of columns in Spark's DDL, or an Arrow schema with types that Spark also has.",
        remedy=remedy,
        schema=schema[:_SHOWN],
    )
