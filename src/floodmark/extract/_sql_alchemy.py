"""Any other database, by SQLAlchemy: rows arrive as Python's values, by a cursor of the server where it has one."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import pyarrow as pa
from sqlalchemy import Connection, CursorResult, text
from sqlalchemy.exc import SQLAlchemyError

from floodmark.errors import SourceFailed
from floodmark.extract._sql_alchemy_types import cleaned, declared_columns, inferred_columns
from floodmark.extract._sql_columns import Column, arrow_of, value_unfit
from floodmark.extract._sql_dialect import Dialect
from floodmark.extract._sql_errors import source_error
from floodmark.extract._sql_postgres_types import postgres_column
from floodmark.extract._sql_sqlite_types import sqlite_columns
from floodmark.extract._sql_url import SqlUrl
from floodmark.ingest._source_spec import SqlSource
from floodmark.ingest._unit_query import engine_of

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
        self._engine = engine_of(url.for_reading)
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
                    arrow_of(cleaned(some, column, zone), column) for some, column in zip(values, columns, strict=True)
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
                    raise value_unfit(column, "no UTF-8") from None
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
