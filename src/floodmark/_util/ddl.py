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
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")


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
    reader = _Reader(text)
    fields = reader.fields(end=None)
    names = [field.name for field in fields]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise _refused(f"The schema has the column {duplicates[0]!r} twice.", text, "Rename one of the two columns.")
    return pa.schema(fields)


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
    simple = _WRITTEN.get(str(kind))
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms", "s"):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{_write_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_write_type(kind.key_type)}, {_write_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_write_field(kind.field(index), ': ') for index in range(kind.num_fields))}>"
    raise _refused(
        f"The schema has the Arrow type {kind}.", str(kind), "Cast the column to a type that Spark also has."
    )


class _Reader:
    """A recursive-descent parser of Spark's DDL."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

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
        quoted, _, word, _ = self._next_token()
        if not quoted and not word:
            raise self._unexpected()
        name = quoted[1:-1].replace("``", "`") if quoted else word
        self._next_is(":")
        kind = self._type()
        nullable = True
        if self._next_is("not"):
            self._expect("null")
            nullable = False
        if self._next_is("comment") and not self._next_token()[1]:
            raise self._unexpected()
        return pa.field(name, kind, nullable)

    def _type(self) -> Any:
        word = self._next_token()[2]
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _TEXT:
            self._numbers()
            return pa.string()
        if name in _DECIMAL:
            return pa.decimal128(*(self._numbers() or [10, 0]))
        if name == "array":
            return pa.list_(pa.field("element", self._type_arguments(1)[0]))
        if name == "map":
            return pa.map_(*self._type_arguments(2))
        if name == "struct":
            self._expect("<")
            return pa.struct(self.fields(end=">"))
        if not word:
            raise self._unexpected()
        raise _refused(
            f"The schema has the type {word!r}.",
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

    def _numbers(self) -> list[int]:
        if not self._next_is("("):
            return []
        numbers: list[int] = []
        while True:
            word = self._next_token()[2]
            if not word.isdigit():
                raise self._unexpected()
            numbers.append(int(word))
            if not self._next_is(","):
                break
        self._expect(")")
        return numbers

    def _next_token(self) -> tuple[str, str, str, str]:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            raise self._unexpected()
        self._position = match.end()
        return match[1] or "", match[2] or "", match[3] or "", match[4] or ""

    def _next_is(self, token: str) -> bool:
        match = _TOKEN.match(self._text, self._position)
        if match is None or (match[3] or match[4] or "").lower() != token:
            return False
        self._position = match.end()
        return True

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
        schema=schema,
    )
