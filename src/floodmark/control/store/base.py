"""The protocol of a home's database, and the SQL statements whose dialects differ."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Engine, Table

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class CounterReader(Protocol):
    """A separate connection for polling change counters cheaply."""

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all if none are named; a topic without changes may be missing."""

    def close(self) -> None:
        """Close the connection."""


class Store(Protocol):
    """A database that holds a home."""

    @property
    def reader(self) -> Engine:
        """The engine for read-only transactions, each on one snapshot."""

    @property
    def writer(self) -> Engine:
        """The engine for transactions that write; a row read with a lock cannot change before the transaction ends."""

    @property
    def location(self) -> str:
        """The directory or URL that opens it again, password included."""

    @property
    def address(self) -> str:
        """The location without secrets: the same for every password, and fit for plans and records."""

    @property
    def shown(self) -> str:
        """The location for logs and messages, without a password."""

    @property
    def directory(self) -> Path | None:
        """The directory of a store that is a file, else None."""

    def prepare(self) -> None:
        """Prepare an empty database for its first table."""

    def lock_schema(self, connection: Connection) -> None:
        """Block other schema changes until the transaction ends."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Turn failures of the database, as opposed to faulty statements, into Floodmark errors."""

    def now(self, connection: Connection) -> int:
        """Return the store's time in microseconds since the epoch."""

    def open_counter_reader(self) -> CounterReader:
        """Open a separate connection for polling change counters."""


def insert_if_absent(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless its key exists, even if a concurrent transaction inserts it first; return whether it did."""
    statement = _insert(connection, table).values(values).on_conflict_do_nothing()
    # Without this option the row count of an insert is not reported on PostgreSQL.
    return connection.execute(statement.execution_options(preserve_rowcount=True)).rowcount == 1


def upsert_row(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    """Insert a row, or replace the row with its key, in one statement."""
    key = [column.name for column in table.primary_key]
    inserted = _insert(connection, table).values(values)
    others = {name: inserted.excluded[name] for name in values if name not in key}
    connection.execute(inserted.on_conflict_do_update(index_elements=key, set_=others))


def _insert(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    # Load only the dialect in use: each is slow to import.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
