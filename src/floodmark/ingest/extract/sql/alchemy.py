"""The reader for all other databases, through SQLAlchemy: rows are Python values, from a server-side cursor if any.

For a query, unless the database is PostgreSQL or SQLite, the types are inferred from the first rows. A column with only
NULL in them becomes a string. To avoid inference, read a table or a view.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlalchemy import Connection, CursorResult, bindparam, inspect, text, types
from sqlalchemy.exc import SQLAlchemyError

from floodmark.errors import SourceFailed
from floodmark.ingest.database import SqlUrl, open_engine, source_error
from floodmark.ingest.extract.sql.columns import (
    MAX_DIGITS,
    Column,
    postgres_column,
    sqlite_columns,
    to_arrow,
    value_unfit_error,
)
from floodmark.ingest.extract.sql.dialect import POSTGRES_SETTINGS, Dialect, split_texts
from floodmark.ingest.extract.sql.statements import Statements

BATCH_ROWS: Final = 16_384
_UNDECODED: Final = re.compile("Could not decode to UTF-8 column '(.*)' with text")

_POSTGRES_TYPES: Final = (
    "SELECT t.oid, t.typname, t.typtype = 'e', e.typname FROM pg_catalog.pg_type t"
    " LEFT JOIN pg_catalog.pg_type e ON t.typcategory = 'A' AND e.oid = t.typelem WHERE t.oid IN ({})"
)


class AlchemyReader:
    """Reads any database that SQLAlchemy supports."""

    def __init__(self, url: SqlUrl, zone: str) -> None:
        """Connect."""
        self._url, self._zone = url, zone
        self._engine = open_engine(url.for_reading)
        self.dialect = Dialect(self._engine.dialect.name)
        try:
            with self._errors():
                self._connection: Connection = self._engine.connect()
                if self.dialect.name == "postgresql":
                    self._connection = self._connection.execution_options(postgresql_readonly=True)
                    self._run(f"SELECT {POSTGRES_SETTINGS}").close()
        except BaseException:
            self._engine.dispose()
            raise

    def columns(self, statements: Statements) -> list[Column]:
        """Return the declared columns; for a query, those inferred from its first rows."""
        if self.dialect.name == "sqlite":
            return sqlite_columns(self._fetch_all, statements)
        with self._errors():
            result = self._run(f"SELECT * FROM {statements.relation} WHERE 1 = 0")
            names = list(result.keys())
            description = list(result.cursor.description) if result.cursor is not None else []
            result.close()
        if self.dialect.name == "postgresql" and all(hasattr(column, "type_code") for column in description):
            return self._postgres_columns(description)
        if statements.table is not None:
            with self._errors():
                return declared_columns(self._connection, statements.table, names)
        with self._errors():
            result = self._run(f"SELECT * FROM {statements.relation}", stream=True)
            rows = result.fetchmany(BATCH_ROWS)
            result.close()
        return inferred_columns(names, rows)

    def first_row(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row."""
        rows = self._fetch_all(statement)
        return rows[0] if rows else None

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some thousand rows."""
        zone = ZoneInfo(self._zone)
        with self._errors():
            result = self._run(statement, stream=True)
        names = [column.name for column in columns]
        try:
            while True:
                rows = self._fetch_batch(result, columns)
                if not rows:
                    return
                by_column = zip(*rows, strict=True)
                arrays = [
                    to_arrow(clean_values(values, column, zone), column)
                    for values, column in zip(by_column, columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=names)
        finally:
            result.close()

    def _fetch_batch(self, result: CursorResult[Any], columns: list[Column]) -> Sequence[Any]:
        try:
            with self._errors():
                return result.fetchmany(BATCH_ROWS)
        except SourceFailed as error:
            # Python's SQLite driver fails on a text that is not UTF-8; name its column.
            name = _UNDECODED.search(str(error))
            for column in columns:
                if name is not None and column.name == name[1]:
                    raise value_unfit_error(column, "no UTF-8") from None
            raise

    def _postgres_columns(self, description: list[Any]) -> list[Column]:
        oids = ", ".join(str(int(column.type_code)) for column in description)
        types = {row[0]: row for row in self._fetch_all(_POSTGRES_TYPES.format(oids))} if description else {}
        columns = []
        for column in description:
            _, kind, is_enum, element = types[column.type_code]
            modifier = -1
            if kind == "numeric" and column.precision is not None:
                modifier = (column.precision << 16 | (column.scale or 0) & 0x7FF) + 4
            columns.append(postgres_column(column.name, kind, modifier, element=element, enum=is_enum))
        return columns

    def _fetch_all(self, statement: str) -> list[tuple[Any, ...]]:
        with self._errors():
            result = self._run(statement)
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def _run(self, statement: str, *, stream: bool = False) -> CursorResult[Any]:
        parts, texts = split_texts(statement)
        # Escape colons, which would start a bind parameter.
        escaped = [part.replace(":", r"\:") for part in parts]
        named = [f"{part}:text_{number}" for number, part in enumerate(escaped[:-1])]
        clause = text("".join((*named, escaped[-1])))
        # Without a type, a text reaches the driver as it is, and the database converts it as it does a literal.
        values = [bindparam(f"text_{number}", value, types.NullType()) for number, value in enumerate(texts)]
        options = {"stream_results": True, "yield_per": BATCH_ROWS} if stream else {}
        return self._connection.execute(clause.bindparams(*values), execution_options=options)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            raise source_error(error, self._url.shown, self._url.secrets) from None  # the cause may quote the URL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._connection.close()
        finally:
            self._engine.dispose()


def declared_columns(connection: Connection, table: Sequence[str], names: Sequence[str]) -> list[Column]:
    """Return the columns of a table or a view, in the order of `names`."""
    *schema, relation = table
    described = inspect(connection).get_columns(relation, ".".join(schema) or None)
    declared = {str(column["name"]): column["type"] for column in described}
    return [Column(name, arrow_type(declared.get(name)), str(declared.get(name, ""))) for name in names]


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type for a column type of SQLAlchemy.

    >>> arrow_type(types.Numeric(10, 2)), arrow_type(types.DateTime(timezone=True))
    (Decimal128Type(decimal128(10, 2)), TimestampType(timestamp[us, tz=UTC]))
    """
    if isinstance(kind, types.Boolean):
        return pa.bool_()
    if isinstance(kind, types.Integer):
        return pa.int64()
    if isinstance(kind, types.Float):
        return pa.float64()
    if isinstance(kind, types.Numeric):
        if kind.precision and kind.precision <= MAX_DIGITS:
            return pa.decimal128(kind.precision, kind.scale or 0)
        return pa.string()
    if isinstance(kind, types.DateTime):
        return pa.timestamp("us", "UTC" if kind.timezone else None)
    if isinstance(kind, types.Date):
        return pa.date32()
    return pa.binary() if isinstance(kind, types.LargeBinary) else pa.string()


def inferred_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Column]:
    """Return columns with types inferred from rows.

    >>> [column.type for column in inferred_columns(["a", "b"], [(None, 1), ("x", 2.5)])]
    [DataType(string), DataType(double)]
    """
    return [Column(name, _infer_type([row[index] for row in rows])) for index, name in enumerate(names)]


def clean_values(values: Sequence[Any], column: Column, zone: ZoneInfo) -> Sequence[Any]:
    """Return values of a driver as Arrow accepts them for a column, such as decimals for floats and wall times."""
    kind = column.received_type
    if pa.types.is_string(kind):
        return [value if value is None or isinstance(value, str) else _to_text(value) for value in values]
    if pa.types.is_binary(kind):
        return [bytes(value) if isinstance(value, memoryview | bytearray) else value for value in values]
    if pa.types.is_decimal(kind):
        return [Decimal(str(value)) if isinstance(value, int | float) else value for value in values]
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return [
            value.astimezone(zone).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value
            for value in values
        ]
    if pa.types.is_boolean(kind):
        return [bool(value) if isinstance(value, int) and value in (0, 1) else value for value in values]
    return values


def _to_text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _infer_type(values: list[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {datetime}:
        has_zone = {value.tzinfo is not None for value in values if value is not None}
        return pa.timestamp("us", "UTC" if has_zone == {True} else None)
    if kinds == {date}:
        return pa.date32()
    return pa.binary() if kinds and kinds <= {bytes, bytearray, memoryview} else pa.string()
