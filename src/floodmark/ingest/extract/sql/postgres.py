"""The reader for PostgreSQL, which receives rows by binary COPY through ADBC."""

import atexit
import os
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

import adbc_driver_postgresql  # type: ignore[import-untyped]
import pyarrow as pa
from adbc_driver_manager import AdbcConnection as DriverConnection
from adbc_driver_manager import dbapi

from floodmark.ingest.database import SqlUrl
from floodmark.ingest.extract.sql.adbc import AdbcConnection
from floodmark.ingest.extract.sql.columns import Column, postgres_column
from floodmark.ingest.extract.sql.dialect import POSTGRES_SETTINGS, Dialect
from floodmark.ingest.extract.sql.statements import Statements

BATCH_BYTES: Final = 8 << 20

_READ_ONLY: Final = f"SELECT set_config('transaction_read_only', 'on', true), {POSTGRES_SETTINGS}"
_UNKNOWN_TYPE: Final = "unnamed<oid"
_MOST_DATABASES: Final = 16


class PostgresReader(AdbcConnection):
    """Reads PostgreSQL in a read-only transaction."""

    dialect = Dialect("postgresql")

    def __init__(self, url: SqlUrl) -> None:
        """Connect."""
        options = {adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)}
        self._was_cached = _DATABASE_CACHE.has(url.for_libpq)
        super().__init__(url, lambda: _DATABASE_CACHE.connect(url.for_libpq), options)
        self._begin_read_only()

    def columns(self, statements: Statements) -> list[Column]:
        """Return the columns, as PostgreSQL describes them."""
        statement = f"SELECT * FROM {statements.relation}"
        fields = list(self.schema(statement))
        if self._was_cached and any(_UNKNOWN_TYPE in str(field.metadata) for field in fields):
            # The type may have been created after the driver read the types of the database.
            _DATABASE_CACHE.evict(self.url.for_libpq)
            self.reconnect()
            self._begin_read_only()
            fields = list(self.schema(statement))
        return [_column(field) for field in fields]

    def _begin_read_only(self) -> None:
        try:
            self.fetch_all(_READ_ONLY)
        except BaseException:
            self.__exit__()
            raise

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some megabytes."""
        with self.stream(statement) as reader:
            while (batch := self.next_batch(reader)) is not None:
                yield batch


class _DatabaseCache:
    """The driver's database objects, which hold the types of a database. No connection is kept open.

    Reading the types again would take longer than reading a small cell.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._databases: dict[tuple[int, str], Any] = {}

    def has(self, url: str) -> bool:
        return (os.getpid(), url) in self._databases

    def connect(self, url: str) -> dbapi.Connection:
        key = os.getpid(), url
        database = self._databases.get(key)
        if database is None:
            database = adbc_driver_postgresql.connect(url)
            with self._lock:
                while len(self._databases) >= _MOST_DATABASES:
                    del self._databases[next(iter(self._databases))]
                database = self._databases.setdefault(key, database)
        return dbapi.Connection(_KeptOpen(), DriverConnection(database))  # type: ignore[arg-type]

    def evict(self, url: str) -> None:
        with self._lock:
            self._databases.pop((os.getpid(), url), None)

    def close(self) -> None:
        with self._lock:
            self._databases.clear()


class _KeptOpen:
    """Stands in for the database that a connection closes, because the cached one outlives its connections."""

    def close(self) -> None:
        """Do nothing."""


_DATABASE_CACHE: Final = _DatabaseCache()
atexit.register(_DATABASE_CACHE.close)


def _column(field: pa.Field) -> Column:
    element = _type_name(field.type.value_field) if pa.types.is_list(field.type) else None
    modifier = int((field.metadata or {}).get(b"POSTGRESQL:typmod", b"-1"))
    return postgres_column(
        field.name, _type_name(field), modifier, element=element, enum=bool(pa.types.is_string(field.type))
    )


def _type_name(field: pa.Field) -> str:
    return str((field.metadata or {}).get(b"POSTGRESQL:type", b"").decode())
