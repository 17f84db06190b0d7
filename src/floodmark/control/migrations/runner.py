"""Brings the schema of a home up to date, step by step."""

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
    """Take the steps that the home has not seen, each in a transaction of its own.

    Several processes may do so at once: whoever comes second finds the step taken.
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
    """Tell whether any step has ever been taken here."""
    return inspect(connection).has_table(_APPLIED.name)


def installed_version() -> str:
    """Return the version of Floodmark that runs; rarely asked for, and slow to find."""
    from importlib.metadata import version

    return version("floodmark")


def _last_applied(connection: Connection, store: Store, newest: int) -> int:
    """Return the last step taken, or refuse a home that has taken more than this release knows."""
    if not is_home(connection):
        return 0
    last = connection.execute(select(_APPLIED).order_by(_APPLIED.c.number.desc()).limit(1)).one_or_none()
    if last is None:
        return 0
    if last.number > newest:
        release = installed_version()
        raise HomeNewer(
            f"The home {store.shown} has schema {last.number}, written by Floodmark {last.release}; "
            f"this is Floodmark {release}, which knows schema {newest}.",
            rule="A release reads the homes of its own and of older releases.",
            remedy=f"Use Floodmark {last.release} or newer, or another home.",
            path=store.shown,
            found=last.number,
            supported=newest,
            written_by=last.release,
            release=release,
        )
    return int(last.number)


def _apply(connection: Connection, migration: Migration) -> None:
    _APPLIED.create(connection, checkfirst=True)
    # The one type of the statements that PostgreSQL calls otherwise.
    bytes_type = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    for statement in migration.statements:
        connection.exec_driver_sql(statement.replace(" BLOB ", f" {bytes_type} "))
    connection.execute(
        insert(_APPLIED).values(number=migration.number, about=migration.about, release=installed_version())
    )
