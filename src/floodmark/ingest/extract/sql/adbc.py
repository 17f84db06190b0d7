"""Connections by ADBC, which give rows as Arrow; and the reader of SQLite, which never changes or makes a file."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

import pyarrow as pa
from adbc_driver_manager import Error, dbapi

from floodmark.errors import SourceFailed
from floodmark.ingest.database import SqlUrl, source_error
from floodmark.ingest.extract.sql.columns import SQLITE_PRIMES, Column, sqlite_columns, value_unfit_error
from floodmark.ingest.extract.sql.statements import Dialect
from floodmark.ingest.job.source import SqlSource


class AdbcConnection:
    """A connection by ADBC, which gives rows as Arrow."""

    def __init__(self, url: SqlUrl, connect: Callable[[], dbapi.Connection], options: dict[str, str]) -> None:
        """Connect, or say why not."""
        self.url = url
        self._connect = connect
        self._options = options
        self._stack = ExitStack()
        self.reconnect()

    def reconnect(self) -> None:
        """Connect anew."""
        self._stack.close()
        with self.errors():
            self._connection = self._stack.enter_context(self._connect())

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what the driver says as an error of Floodmark's."""
        try:
            yield
        except (Error, OSError, pa.ArrowException) as error:
            raise source_error(error, self.url.shown, self.url.secrets) from None  # the cause may quote the URL

    def schema(self, statement: str) -> pa.Schema:
        """Return the schema of a statement without running it."""
        with self.errors(), self._connection.cursor() as cursor:
            return cursor.adbc_execute_schema(statement)

    def all(self, statement: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small answer."""
        with self.errors(), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def first(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row."""
        rows = self.all(statement)
        return rows[0] if rows else None

    @contextmanager
    def stream(self, statement: str) -> Iterator[pa.RecordBatchReader]:
        """Run a statement, and give its rows while they arrive."""
        with self._connection.cursor() as cursor:
            with self.errors():
                cursor.adbc_statement.set_options(**self._options)
                cursor.execute(statement)
                reader = cursor.fetch_record_batch()
            yield reader

    def next_batch(self, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        """Return the next batch, or None at the end."""
        with self.errors():
            try:
                return reader.read_next_batch()
            except StopIteration:
                return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


BATCH_ROWS: Final = 16_384
_MISMATCH: Final = re.compile(r"Type mismatch in column (\d+): (.*)")


class SqliteReader(AdbcConnection):
    """Reads SQLite, with the types that its columns declare."""

    dialect = Dialect("sqlite")

    def __init__(self, url: SqlUrl, source: SqlSource, zone: str) -> None:
        """Connect, or say why not."""
        from adbc_driver_sqlite import StatementOptions, dbapi

        self._source, self._zone = source, zone
        options = {StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)}
        super().__init__(url, lambda: dbapi.connect(url.for_sqlite, autocommit=True), options)
        try:
            self.all("PRAGMA busy_timeout = 30000")
        except BaseException:
            self.__exit__()
            raise

    def columns(self, relation: str) -> list[Column]:
        """Return the columns, as they are declared."""
        return sqlite_columns(self.all, relation, self._source, self._zone)

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some thousand rows."""
        names = [self.dialect.identifier(one.name) for one in columns]
        prime = ", ".join(f"{SQLITE_PRIMES[one.arrives]} AS {name}" for one, name in zip(columns, names, strict=True))
        with self.stream(f"SELECT {prime} UNION ALL {statement}") as reader:
            for column, found in zip(columns, reader.schema.types, strict=True):
                if found != column.arrives:
                    raise value_unfit_error(column, f"found {found}")
            is_first = True
            while (batch := self._next(reader, columns)) is not None:
                yield batch.slice(1) if is_first else batch
                is_first = False

    def _next(self, reader: pa.RecordBatchReader, columns: list[Column]) -> pa.RecordBatch | None:
        try:
            return self.next_batch(reader)
        except SourceFailed as error:
            mismatch = _MISMATCH.search(str(error))
            if mismatch is None:
                raise
            raise value_unfit_error(columns[int(mismatch[1])], mismatch[2].partition(". ")[0]) from None
