"""Applies missing schema migrations to a home."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, Text, insert, inspect, select

from floodmark.control.migrations.history import MIGRATIONS, Migration
from floodmark.control.store.base import Store
from floodmark.errors import HomeNewer

_APPLIED: Final = Table(
    "schema_migration",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("about", Text, nullable=False),
    Column("release", Text, nullable=False),
)


def migrate(store: Store, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply the migrations that the home lacks, each in its own transaction.

    Several processes may call it at once; each migration is applied once.
    """
    newest = migrations[-1].number
    with store.reader.connect() as connection:
        done = _last_applied(connection, store, newest)
    if done == newest:
        return
    store.prepare()
    for migration in migrations:
        with store.writer.begin() as connection:
            store.lock_schema(connection)
            if _last_applied(connection, store, newest) < migration.number:
                _apply(connection, migration)


def is_home(connection: Connection) -> bool:
    """Return whether a migration was ever applied to this database."""
    return inspect(connection).has_table(_APPLIED.name)


def installed_version() -> str:
    """Return the version of the installed Floodmark."""
    from importlib.metadata import version  # slow to import, rarely needed

    return version("floodmark")


def _last_applied(connection: Connection, store: Store, newest: int) -> int:
    """Return the number of the last applied migration; raise `HomeNewer` if this release does not know it."""
    if not is_home(connection):
        return 0
    last = connection.execute(select(_APPLIED).order_by(_APPLIED.c.number.desc()).limit(1)).one_or_none()
    if last is None:
        return 0
    if last.number > newest:
        release = installed_version()
        raise HomeNewer(
            f"The home {store.shown} has schema {last.number}, written by Floodmark {last.release}; "
            f"this is Floodmark {release}, which supports schemas up to {newest}.",
            rule="A release opens homes written by itself and by older releases.",
            remedy=f"Install Floodmark {last.release} or newer, or use another home.",
            path=store.shown,
            found=last.number,
            supported=newest,
            written_by=last.release,
            release=release,
        )
    return int(last.number)


def _apply(connection: Connection, migration: Migration) -> None:
    _APPLIED.create(connection, checkfirst=True)
    # The one column type that has another name in PostgreSQL.
    bytes_type = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    for statement in migration.statements:
        connection.exec_driver_sql(statement.replace(" BLOB ", f" {bytes_type} "))
    connection.execute(
        insert(_APPLIED).values(number=migration.number, about=migration.about, release=installed_version())
    )
