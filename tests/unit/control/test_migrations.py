"""Claims about how a home comes to its tables, in SQLite and in PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.types import TypeEngine

from floodmark.control import Home, WatermarkSteps
from floodmark.control import home as _home
from floodmark.control.migrations import runner as _migrations
from floodmark.control.migrations.history import MIGRATIONS, Migration
from floodmark.control.migrations.runner import migrate
from floodmark.control.tables import METADATA
from floodmark.errors import FloodmarkError

NEXT = Migration(MIGRATIONS[-1].number + 1, "one more", ("CREATE TABLE one_more (id TEXT)",))


def test_the_migrations_make_the_tables_that_the_code_uses(home: Home) -> None:
    def name_of(kind: TypeEngine[Any]) -> str:
        return kind.compile(connection.dialect)

    with home.read() as connection:
        found = inspect(connection)
        tables = set(found.get_table_names())
        columns = {
            table: [
                (column["name"], column["nullable"], name_of(column["type"])) for column in found.get_columns(table)
            ]
            for table in METADATA.tables
        }
        keys = {table: found.get_pk_constraint(table)["constrained_columns"] for table in METADATA.tables}
    # The tables of other rooms are described there.
    elsewhere = ("binding", "reader_group", "stream")
    assert {name for name in tables - set(METADATA.tables) if not name.startswith(elsewhere)} == {"schema_migration"}
    for name, table in METADATA.tables.items():
        assert columns[name] == [(column.name, bool(column.nullable), name_of(column.type)) for column in table.columns]
        assert keys[name] == [column.name for column in table.primary_key]


def test_an_older_home_is_brought_up_to_date_and_keeps_what_it_has(place: str) -> None:
    with Home.open(place) as home:
        WatermarkSteps(home).create("kept", {}, now=7)
        migrate(home._store, (*MIGRATIONS, NEXT))
        migrate(home._store, (*MIGRATIONS, NEXT))
        with home.read() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM one_more")).scalar() == 0
            assert connection.execute(text("SELECT about FROM schema_migration ORDER BY number")).scalars().all() == [
                *(migration.about for migration in MIGRATIONS),
                "one more",
            ]
        assert WatermarkSteps(home).incarnation("kept").created_at == 7


def test_a_home_of_a_newer_release_is_refused_with_both_versions(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(_migrations, "installed_version", lambda: "9.9")
        with Home.open(place) as home:
            migrate(home._store, (*MIGRATIONS, NEXT))
    for way in (Home.open, Home.open_existing):
        with pytest.raises(
            FloodmarkError, match=rf"schema {NEXT.number}, written by Floodmark 9\.9; this is Floodmark 0"
        ) as refusal:
            way(place)
        assert refusal.value.code == "home-newer"
        assert (refusal.value.fields["found"], refusal.value.fields["supported"]) == (NEXT.number, NEXT.number - 1)


def test_a_migration_that_fails_leaves_nothing_behind(place: str) -> None:
    broken = Migration(NEXT.number, "broken", (*NEXT.statements, "INSERT INTO one_more VALUES ('x')", "NONSENSE"))
    with Home.open(place) as home:
        with pytest.raises(DatabaseError, match="NONSENSE"):
            migrate(home._store, (*MIGRATIONS, broken))
        with home.read() as connection:
            assert not inspect(connection).has_table("one_more")
    with Home.open(place) as home:
        migrate(home._store, (*MIGRATIONS, NEXT))


def test_a_first_migration_that_fails_leaves_an_empty_home_that_opens_later(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(1, "broken", (*MIGRATIONS[0].statements, "NONSENSE"))
    with monkeypatch.context() as patch:
        patch.setattr(_home, "migrate", lambda store: migrate(store, (broken,)))
        with pytest.raises(DatabaseError, match="NONSENSE"):
            Home.open(place)
    with Home.open(place) as home:
        WatermarkSteps(home).create("a", {}, now=0)


def test_the_numbers_of_the_migrations_count_from_one() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
