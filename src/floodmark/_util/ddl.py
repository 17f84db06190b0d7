"""Schemas as Spark writes them, "id BIGINT NOT NULL, at TIMESTAMP", and as Arrow has them."""

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
    """Return the Arrow schema of columns written as Spark writes them, or refuse them.

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
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _refused(f"The schema has the column {twice[0]!r} twice.", text, "Give each column a name of its own.")
    return pa.schema(fields)


def write_ddl(schema: Any) -> str:
    """Return an Arrow schema as Spark writes it, or refuse a type that Spark does not have.

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


def _write_field(field: Any, between: str) -> str:
    name = field.name if re.fullmatch(r"\w+", field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{between}{_write_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


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
        return f"STRUCT<{', '.join(_write_field(kind.field(place), ': ') for place in range(kind.num_fields))}>"
    raise _refused(
        f"The schema has the Arrow type {kind}.", str(kind), "Convert the column to a type that Spark has too."
    )


class _Reader:
    """Reads tokens from the left."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def fields(self, end: str | None) -> list[Any]:
        found = [self._field()]
        while self._next_is(","):
            found.append(self._field())
        if end is not None:
            self._expect(end)
        elif self._text[self._place :].strip():
            raise self._unexpected()
        return found

    def _field(self) -> Any:
        quoted, _, word, _ = self._take()
        if not quoted and not word:
            raise self._unexpected()
        name = quoted[1:-1].replace("``", "`") if quoted else word
        self._next_is(":")
        kind = self._type()
        nullable = True
        if self._next_is("not"):
            self._expect("null")
            nullable = False
        if self._next_is("comment") and not self._take()[1]:
            raise self._unexpected()
        return pa.field(name, kind, nullable)

    def _type(self) -> Any:
        word = self._take()[2]
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _TEXT:
            self._numbers()
            return pa.string()
        if name in _DECIMAL:
            return pa.decimal128(*(self._numbers() or [10, 0]))
        if name == "array":
            return pa.list_(pa.field("element", self._inside(1)[0]))
        if name == "map":
            return pa.map_(*self._inside(2))
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

    def _inside(self, count: int) -> list[Any]:
        self._expect("<")
        found = [self._type()]
        while len(found) < count:
            self._expect(",")
            found.append(self._type())
        self._expect(">")
        return found

    def _numbers(self) -> list[int]:
        if not self._next_is("("):
            return []
        found: list[int] = []
        while True:
            word = self._take()[2]
            if not word.isdigit():
                raise self._unexpected()
            found.append(int(word))
            if not self._next_is(","):
                break
        self._expect(")")
        return found

    def _take(self) -> tuple[str, str, str, str]:
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            raise self._unexpected()
        self._place = match.end()
        return match[1] or "", match[2] or "", match[3] or "", match[4] or ""

    def _next_is(self, wanted: str) -> bool:
        match = _TOKEN.match(self._text, self._place)
        if match is None or (match[3] or match[4] or "").lower() != wanted:
            return False
        self._place = match.end()
        return True

    def _expect(self, wanted: str) -> None:
        if not self._next_is(wanted):
            raise self._unexpected()

    def _unexpected(self) -> SchemaInvalid:
        rest = self._text[self._place :].strip()
        found = f"it goes on with {rest[:30]!r}" if rest else "it ends too early"
        fact = f"The schema cannot be read: {found}."
        return _refused(fact, self._text, "Write for example 'id BIGINT, at TIMESTAMP'.")


def _refused(fact: str, schema: str, remedy: str) -> SchemaInvalid:
    return SchemaInvalid(
        fact,
        rule="A schema is a list of columns as Spark writes them, or one of Arrow with types that Spark has too.",
        remedy=remedy,
        schema=schema,
    )
