"""What a home needs of the database that it is kept in: the seam between SQLite and PostgreSQL."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Engine, Table

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


class CounterReader(Protocol):
    """A connection of its own, by which somebody who polls learns of changes at the least cost."""

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all if there are none; what never changed may be missing."""

    def close(self) -> None:
        """Let go of the connection."""


class Store(Protocol):
    """A database that may hold a home."""

    @property
    def reader(self) -> Engine:
        """Gives transactions that see one state and may not write."""

    @property
    def writer(self) -> Engine:
        """Gives transactions that write; a row that was read with a lock stays as it is until the end."""

    @property
    def location(self) -> str:
        """What opens it again, a password included."""

    @property
    def shown(self) -> str:
        """What may be shown to anybody: no password is in it."""

    @property
    def directory(self) -> Path | None:
        """The directory, for a store that is a file."""

    def prepare(self) -> None:
        """Make it ready for its first table."""

    def lock_schema(self, connection: Connection) -> None:
        """Keep others from changing the schema until the transaction ends."""

    def explained(self) -> AbstractContextManager[None]:
        """Turn what goes wrong with the store, not with a statement, into errors that say what to do."""

    def now(self, connection: Connection) -> int:
        """Return the time by the store's clock, in microseconds since the epoch."""

    def watch(self) -> CounterReader:
        """Open a connection for somebody who polls."""


def insert_if_absent(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless its key is taken, also by a transaction that comes first; return whether it was inserted."""
    statement = _insert(connection, table).values(values).on_conflict_do_nothing()
    # PostgreSQL tells how many rows an insert has made only if it is asked to.
    return connection.execute(statement.execution_options(preserve_rowcount=True)).rowcount == 1


def upsert_row(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    """Insert a row, or replace the one that has its key. To delete and then insert would lose a race."""
    key = [column.name for column in table.primary_key]
    inserted = _insert(connection, table).values(values)
    others = {name: inserted.excluded[name] for name in values if name not in key}
    connection.execute(inserted.on_conflict_do_update(index_elements=key, set_=others))


def _insert(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    # Every process imports this module, and the dialect of the other database takes long to load.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
