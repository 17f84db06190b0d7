"""ADBC connections, which return rows as Arrow, and the reader for SQLite, which never changes or creates a file."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

import pyarrow as pa
from adbc_driver_manager import Error, dbapi

from floodmark.errors import SourceFailed
from floodmark.ingest.database import SqlUrl, source_error
from floodmark.ingest.extract.sql.columns import SQLITE_SAMPLES, Column, sqlite_columns, value_unfit_error
from floodmark.ingest.extract.sql.dialect import Dialect, split_texts
from floodmark.ingest.extract.sql.statements import Statements


class AdbcConnection:
    """An ADBC connection, which returns rows as Arrow."""

    def __init__(self, url: SqlUrl, connect: Callable[[], dbapi.Connection], options: dict[str, str]) -> None:
        """Connect. `options` are set on each statement whose result is streamed."""
        self.url = url
        self._connect = connect
        self._options = options
        self._stack = ExitStack()
        self.reconnect()

    def reconnect(self) -> None:
        """Close the connection and connect again."""
        self._stack.close()
        with self.errors():
            self._connection = self._stack.enter_context(self._connect())

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of the driver as FloodmarkError."""
        try:
            yield
        except (Error, OSError, pa.ArrowException) as error:
            raise source_error(error, self.url.shown, self.url.secrets) from None  # the cause may quote the URL

    def schema(self, statement: str) -> pa.Schema:
        """Return the schema of a statement without running it."""
        with self.errors(), self._connection.cursor() as cursor:
            return cursor.adbc_execute_schema(statement)

    def fetch_all(self, statement: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small result."""
        with self.errors(), self._connection.cursor() as cursor:
            _execute(cursor, statement)
            return list(cursor.fetchall())

    def first_row(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row."""
        rows = self.fetch_all(statement)
        return rows[0] if rows else None

    @contextmanager
    def stream(self, statement: str) -> Iterator[pa.RecordBatchReader]:
        """Run a statement and return a reader that receives its rows while they arrive."""
        with self._connection.cursor() as cursor:
            with self.errors():
                cursor.adbc_statement.set_options(**self._options)
                _execute(cursor, statement)
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


def _execute(cursor: dbapi.Cursor, statement: str) -> None:
    parts, texts = split_texts(statement)
    cursor.execute("?".join(parts), texts or None)


BATCH_ROWS: Final = 16_384
_MISMATCH: Final = re.compile(r"Type mismatch in column (\d+): (.*)")


class SqliteReader(AdbcConnection):
    """Reads SQLite, with the declared types of its columns."""

    dialect = Dialect("sqlite")

    def __init__(self, url: SqlUrl) -> None:
        """Connect."""
        from adbc_driver_sqlite import StatementOptions, dbapi

        options = {StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)}
        super().__init__(url, lambda: dbapi.connect(url.for_sqlite, autocommit=True), options)
        try:
            self.fetch_all("PRAGMA busy_timeout = 30000")
        except BaseException:
            self.__exit__()
            raise

    def columns(self, statements: Statements) -> list[Column]:
        """Return the declared columns."""
        return sqlite_columns(self.fetch_all, statements)

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some thousand rows."""
        names = [self.dialect.identifier(column.name) for column in columns]
        # The driver infers the types from the first rows, so a row of samples comes first; it is dropped below.
        samples = ", ".join(
            f"{SQLITE_SAMPLES[column.received_type]} AS {name}" for column, name in zip(columns, names, strict=True)
        )
        with self.stream(f"SELECT {samples} UNION ALL {statement}") as reader:
            for column, kind in zip(columns, reader.schema.types, strict=True):
                if kind != column.received_type:
                    raise value_unfit_error(column, f"found {kind}")
            is_first = True
            while (batch := self._next_batch(reader, columns)) is not None:
                yield batch.slice(1) if is_first else batch
                is_first = False

    def _next_batch(self, reader: pa.RecordBatchReader, columns: list[Column]) -> pa.RecordBatch | None:
        try:
            return self.next_batch(reader)
        except SourceFailed as error:
            mismatch = _MISMATCH.search(str(error))
            if mismatch is None:
                raise
            raise value_unfit_error(columns[int(mismatch[1])], mismatch[2].partition(". ")[0]) from None
