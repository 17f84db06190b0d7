"""What the readers by ADBC have in common."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import pyarrow as pa
from adbc_driver_manager import Error, dbapi

from floodmark.extract._sql_errors import source_error
from floodmark.extract._sql_url import SqlUrl


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
