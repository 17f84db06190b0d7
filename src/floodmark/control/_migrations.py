"""The schema of a home, as the steps that led to it. A step that has been released is never changed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, Text, insert, inspect, select

from floodmark.control._sqlite import use_wal, writer_of
from floodmark.errors import HomeNewer


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its number, what it is about, and its statements, which SQLite and PostgreSQL both understand."""

    number: int
    about: str
    statements: tuple[str, ...]


MIGRATIONS: Final = (
    Migration(
        1,
        "computed watermarks and the queries that use them",
        (
            """
            CREATE TABLE watermark_incarnation (
                incarnation TEXT NOT NULL PRIMARY KEY,
                settings TEXT NOT NULL,
                parent TEXT,
                parent_seq BIGINT,
                created_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE watermark_step (
                incarnation TEXT NOT NULL REFERENCES watermark_incarnation (incarnation),
                seq BIGINT NOT NULL,
                watermark BIGINT,
                snapshot TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (incarnation, seq)
            )
            """,
            """
            CREATE TABLE watermark_observation (
                incarnation TEXT NOT NULL REFERENCES watermark_incarnation (incarnation),
                seq BIGINT NOT NULL,
                batch_id BIGINT NOT NULL,
                statistics TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (incarnation, seq, batch_id)
            )
            """,
            """
            CREATE TABLE streaming_query (
                query_id TEXT NOT NULL PRIMARY KEY,
                run_id TEXT NOT NULL,
                name TEXT,
                batch_id BIGINT NOT NULL,
                incarnations TEXT NOT NULL,
                spark_watermark BIGINT,
                state TEXT NOT NULL,
                error TEXT,
                warnings TEXT NOT NULL,
                started_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL
            )
            """,
        ),
    ),
    Migration(
        2,
        "the watermark under which each batch judges its rows",
        (
            """
            CREATE TABLE frame_place (
                frame TEXT NOT NULL,
                incarnation TEXT NOT NULL,
                before BIGINT,
                after BIGINT,
                at BIGINT NOT NULL,
                PRIMARY KEY (frame, incarnation)
            )
            """,
            """
            CREATE TABLE batch_watermark (
                query_id TEXT NOT NULL,
                frame TEXT NOT NULL,
                column_name TEXT NOT NULL,
                run_id TEXT NOT NULL,
                batch_id BIGINT NOT NULL,
                before BIGINT,
                after BIGINT,
                PRIMARY KEY (query_id, frame)
            )
            """,
        ),
    ),
)

_APPLIED: Final = Table(
    "schema_migration",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("about", Text, nullable=False),
    Column("release", Text, nullable=False),
)


def migrate(engine: Engine, file: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Take the steps that the home has not seen, each in a transaction of its own.

    Several processes may do so at once: whoever comes second finds the step taken.
    """
    newest = migrations[-1].number
    with engine.connect() as connection:
        done = _check(connection, file, newest)
    if done == newest:
        return
    use_wal(engine, file)
    for migration in migrations:
        with writer_of(engine).begin() as connection:
            if _check(connection, file, newest) < migration.number:
                _take(connection, migration)


def this_release() -> str:
    """Return the version of Floodmark that runs; rarely asked for, and slow to find."""
    from importlib.metadata import version

    return version("floodmark")


def _check(connection: Connection, file: Path, newest: int) -> int:
    """Return the last step taken, or refuse a home that has taken more than this release knows."""
    if not inspect(connection).has_table(_APPLIED.name):
        return 0
    last = connection.execute(select(_APPLIED).order_by(_APPLIED.c.number.desc()).limit(1)).one_or_none()
    if last is None:
        return 0
    if last.number > newest:
        release = this_release()
        raise HomeNewer(
            f"The home file {os.fspath(file)} has schema {last.number}, written by Floodmark {last.release}; "
            f"this is Floodmark {release}, which knows schema {newest}.",
            rule="A release reads the homes of its own and of older releases.",
            remedy=f"Use Floodmark {last.release} or newer, or another home.",
            path=os.fspath(file),
            found=last.number,
            supported=newest,
            written_by=last.release,
            release=release,
        )
    return int(last.number)


def _take(connection: Connection, migration: Migration) -> None:
    _APPLIED.create(connection, checkfirst=True)
    for statement in migration.statements:
        connection.exec_driver_sql(statement)
    connection.execute(insert(_APPLIED).values(number=migration.number, about=migration.about, release=this_release()))
