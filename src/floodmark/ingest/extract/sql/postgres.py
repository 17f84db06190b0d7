"""PostgreSQL by ADBC: rows arrive by COPY, in its binary form."""

import atexit
import os
from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

import adbc_driver_postgresql  # type: ignore[import-untyped]
import pyarrow as pa
from adbc_driver_manager import AdbcConnection as Opened
from adbc_driver_manager import dbapi

from floodmark.ingest.database import SqlUrl
from floodmark.ingest.extract.sql.adbc import AdbcConnection
from floodmark.ingest.extract.sql.columns import Column, postgres_column
from floodmark.ingest.extract.sql.statements import Dialect

BATCH_BYTES: Final = 8 << 20

_READ_ONLY: Final = "SELECT set_config('transaction_read_only', 'on', true), set_config('TimeZone', 'UTC', true)"
_NO_NAME: Final = "unnamed<oid"
_MOST_KNOWN: Final = 16


class PostgresReader(AdbcConnection):
    """Reads PostgreSQL, in a transaction that can change nothing."""

    dialect = Dialect("postgresql")

    def __init__(self, url: SqlUrl) -> None:
        """Connect, or say why not."""
        options = {adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)}
        self._is_known = _DATABASE_CACHE.has(url.for_libpq)
        super().__init__(url, lambda: _DATABASE_CACHE.connect(url.for_libpq), options)
        self._begin()

    def columns(self, relation: str) -> list[Column]:
        """Return the columns, as PostgreSQL describes them."""
        fields = list(self.schema(f"SELECT * FROM {relation}"))
        if self._is_known and any(_NO_NAME in str(field.metadata) for field in fields):
            # A type that was made after the database was seen first, or one that never has a name.
            _DATABASE_CACHE.forget(self.url.for_libpq)
            self.reconnect()
            self._begin()
            fields = list(self.schema(f"SELECT * FROM {relation}"))
        return [_column(field) for field in fields]

    def _begin(self) -> None:
        try:
            self.all(_READ_ONLY)
        except BaseException:
            self.__exit__()
            raise

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some megabytes."""
        with self.stream(statement) as reader:
            while (batch := self.next_batch(reader)) is not None:
                yield batch


class _DatabaseCache:
    """What the driver has found out about databases. To ask for it anew takes longer than to read a small cell.

    No connection is kept open.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[tuple[int, str], Any] = {}

    def has(self, text: str) -> bool:
        return (os.getpid(), text) in self._known

    def connect(self, text: str) -> dbapi.Connection:
        key = os.getpid(), text
        database = self._known.get(key)
        if database is None:
            database = adbc_driver_postgresql.connect(text)
            with self._lock:
                while len(self._known) >= _MOST_KNOWN:
                    del self._known[next(iter(self._known))]
                database = self._known.setdefault(key, database)
        return dbapi.Connection(_KeptOpen(), Opened(database))  # type: ignore[arg-type]

    def forget(self, text: str) -> None:
        with self._lock:
            self._known.pop((os.getpid(), text), None)

    def close(self) -> None:
        with self._lock:
            self._known.clear()


class _KeptOpen:
    """In the place of a database that outlives its connections."""

    def close(self) -> None:
        """Leave it open."""


_DATABASE_CACHE: Final = _DatabaseCache()
atexit.register(_DATABASE_CACHE.close)


def _column(field: pa.Field) -> Column:
    element = _kind(field.type.value_field) if pa.types.is_list(field.type) else None
    modifier = int((field.metadata or {}).get(b"POSTGRESQL:typmod", b"-1"))
    return postgres_column(
        field.name, _kind(field), modifier, element=element, enum=bool(pa.types.is_string(field.type))
    )


def _kind(field: pa.Field) -> str:
    return str((field.metadata or {}).get(b"POSTGRESQL:type", b"").decode())
