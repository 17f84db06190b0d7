"""Any other database, by SQLAlchemy: rows arrive as Python's values, by a cursor of the server where it has one.

A query of a database that is neither PostgreSQL nor SQLite has the types that its first rows have. Where those hold
nothing but NULL, a column is a string; a query with CASTs, or a view that is read as a table, leaves nothing to guess.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlalchemy import Connection, CursorResult, inspect, text, types
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
from floodmark.ingest.extract.sql.statements import Dialect
from floodmark.ingest.job.source import SqlSource

BATCH_ROWS: Final = 16_384
_UNDECODED: Final = re.compile("Could not decode to UTF-8 column '(.*)' with text")

_POSTGRES_TYPES: Final = (
    "SELECT t.oid, t.typname, t.typtype = 'e', e.typname FROM pg_catalog.pg_type t"
    " LEFT JOIN pg_catalog.pg_type e ON t.typcategory = 'A' AND e.oid = t.typelem WHERE t.oid IN ({})"
)


class AlchemyReader:
    """Reads what SQLAlchemy knows how to speak to."""

    def __init__(self, url: SqlUrl, source: SqlSource, zone: str) -> None:
        """Connect, or say why not."""
        self._url, self._source, self._zone = url, source, zone
        self._engine = open_engine(url.for_reading)
        self.dialect = Dialect(self._engine.dialect.name)
        try:
            with self._errors():
                self._connection: Connection = self._engine.connect()
                if self.dialect.name == "postgresql":
                    self._connection = self._connection.execution_options(postgresql_readonly=True)
                    self._run("SELECT set_config('TimeZone', 'UTC', true)").close()
        except BaseException:
            self._engine.dispose()
            raise

    def columns(self, relation: str) -> list[Column]:
        """Return the columns: as the database describes them, or as the first rows of a query have them."""
        if self.dialect.name == "sqlite":
            return sqlite_columns(self._all, relation, self._source, self._zone)
        with self._errors():
            result = self._run(f"SELECT * FROM {relation} WHERE 1 = 0")
            names = list(result.keys())
            description = list(result.cursor.description) if result.cursor is not None else []
            result.close()
        if self.dialect.name == "postgresql" and all(hasattr(one, "type_code") for one in description):
            return self._postgres(description)
        if self._source.table is not None:
            with self._errors():
                return declared_columns(self._connection, self._source.table, names)
        # Nobody says what a query gives but its rows.
        with self._errors():
            result = self._run(f"SELECT * FROM {relation}", stream=True)
            rows = result.fetchmany(BATCH_ROWS)
            result.close()
        return inferred_columns(names, rows)

    def first(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row."""
        rows = self._all(statement)
        return rows[0] if rows else None

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some thousand rows."""
        zone = ZoneInfo(self._zone)
        with self._errors():
            result = self._run(statement, stream=True)
        names = [one.name for one in columns]
        try:
            while True:
                rows = self._next(result, columns)
                if not rows:
                    return
                values = zip(*rows, strict=True)
                arrays = [
                    to_arrow(clean_values(some, column, zone), column)
                    for some, column in zip(values, columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=names)
        finally:
            result.close()

    def _next(self, result: CursorResult[Any], columns: list[Column]) -> Sequence[Any]:
        try:
            with self._errors():
                return result.fetchmany(BATCH_ROWS)
        except SourceFailed as error:
            # Python's own driver of SQLite refuses such a text before anybody sees it.
            name = _UNDECODED.search(str(error))
            for column in columns:
                if name is not None and column.name == name[1]:
                    raise value_unfit_error(column, "no UTF-8") from None
            raise

    def _postgres(self, description: list[Any]) -> list[Column]:
        numbers = ", ".join(str(int(one.type_code)) for one in description)
        types = {row[0]: row for row in self._all(_POSTGRES_TYPES.format(numbers))} if description else {}
        columns = []
        for one in description:
            _, kind, is_enum, element = types[one.type_code]
            modifier = -1 if one.precision is None else (one.precision << 16 | (one.scale or 0) & 0x7FF) + 4
            columns.append(
                postgres_column(one.name, kind, modifier if kind == "numeric" else -1, element=element, enum=is_enum)
            )
        return columns

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        with self._errors():
            result = self._run(statement)
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def _run(self, statement: str, *, stream: bool = False) -> CursorResult[Any]:
        # A colon would begin a parameter.
        options = {"stream_results": True, "yield_per": BATCH_ROWS} if stream else {}
        return self._connection.execute(text(statement.replace(":", r"\:")), execution_options=options)

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


def declared_columns(connection: Connection, table: str, names: Sequence[str]) -> list[Column]:
    """Return the columns of a table or a view, in the order of their names."""
    schema, _, name = table.rpartition(".")
    declared = {str(one["name"]): one["type"] for one in inspect(connection).get_columns(name, schema or None)}
    return [Column(one, arrow_type(declared.get(one)), str(declared.get(one, ""))) for one in names]


def arrow_type(kind: Any) -> pa.DataType:
    """Return the type of a column that is declared so.

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
    """Return the columns of rows.

    >>> [column.type for column in inferred_columns(["a", "b"], [(None, 1), ("x", 2.5)])]
    [DataType(string), DataType(double)]
    """
    return [Column(name, _inferred([row[place] for row in rows])) for place, name in enumerate(names)]


def clean_values(values: Sequence[Any], column: Column, zone: ZoneInfo) -> Sequence[Any]:
    """Return values as Arrow takes them for a column: texts of what has none, times without a zone, exact numbers."""
    kind = column.arrives
    if pa.types.is_string(kind):
        return [one if one is None or isinstance(one, str) else _text(one) for one in values]
    if pa.types.is_binary(kind):
        return [bytes(one) if isinstance(one, memoryview | bytearray) else one for one in values]
    if pa.types.is_decimal(kind):
        return [Decimal(str(one)) if isinstance(one, int | float) else one for one in values]
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return [
            one.astimezone(zone).replace(tzinfo=None) if isinstance(one, datetime) and one.tzinfo else one
            for one in values
        ]
    if pa.types.is_boolean(kind):
        return [bool(one) if isinstance(one, int) and one in (0, 1) else one for one in values]
    return values


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _inferred(values: list[Any]) -> pa.DataType:
    kinds = {type(one) for one in values if one is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {datetime}:
        has_zone = {one.tzinfo is not None for one in values if one is not None}
        return pa.timestamp("us", "UTC" if has_zone == {True} else None)
    if kinds == {date}:
        return pa.date32()
    return pa.binary() if kinds and kinds <= {bytes, bytearray, memoryview} else pa.string()
