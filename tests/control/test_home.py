"""Claims about the home: where it is, how it comes to be, what its transactions promise."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError

from floodmark.control import Home, WatermarkSteps, _home, _migrations, _sqlite
from floodmark.control._migrations import MIGRATIONS, Migration, migrate
from floodmark.control._schema import METADATA
from floodmark.errors import FloodmarkError

COUNT = text("SELECT COUNT(*) FROM watermark_incarnation")
INSERT = text("INSERT INTO watermark_incarnation VALUES (:id, '{}', NULL, NULL, 0)")


def test_a_new_home_is_a_directory_with_one_file(tmp_path: Path) -> None:
    with Home.open(tmp_path / "deep" / "home") as home:
        assert home.path == tmp_path / "deep" / "home"
    assert [file.name for file in (tmp_path / "deep" / "home").iterdir()] == ["home.db"]


def test_the_environment_names_the_home_and_a_path_overrules_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", str(tmp_path / "named"))
    with Home.open() as named, Home.open(tmp_path / "given") as given:
        assert (named.path.name, given.path.name) == ("named", "given")


def test_without_either_it_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOODMARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    with Home.open() as home:
        assert home.path == tmp_path / ".floodmark"
        monkeypatch.chdir("/")
        with home.read() as connection:
            assert connection.execute(COUNT).scalar() == 0


def test_a_path_may_hold_what_a_url_may_not(tmp_path: Path) -> None:
    with Home.open(tmp_path / "a b?c#d%41é") as home:
        assert (home.path / "home.db").is_file()
    with Home.open_existing(tmp_path / "a b?c#d%41é"):
        pass


def test_what_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        Home.open_existing(tmp_path / "home")
    assert refusal.value.code == "home-missing"
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_vanishes_between_two_looks_is_not_made_anew(tmp_path: Path) -> None:
    engine = _sqlite.connect(tmp_path / "home.db", create=False)
    with pytest.raises(FloodmarkError) as refusal, _sqlite.explained(tmp_path / "home.db"):
        migrate(engine, tmp_path / "home.db")
    assert refusal.value.code == "home-unusable"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    with pytest.raises(FloodmarkError, match="cannot be made") as refusal:
        Home.open(tmp_path / "home")
    assert refusal.value.code == "home-unusable"


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home.db").write_text("not a database" * 100)
    with pytest.raises(FloodmarkError, match="not a database") as refusal:
        Home.open(tmp_path)
    assert refusal.value.code == "home-unusable"
    assert (tmp_path / "home.db").read_text() == "not a database" * 100


def test_a_write_is_kept_and_one_that_fails_is_not(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        with home.write() as connection:
            connection.execute(INSERT, {"id": "kept"})
        with pytest.raises(IntegrityError), home.write() as connection:
            connection.execute(INSERT, [{"id": "lost"}, {"id": "kept"}])
        with home.read() as connection:
            assert connection.execute(COUNT).scalar() == 1


def test_a_read_sees_one_state_while_others_write(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home, home.read() as reading:
        assert reading.execute(COUNT).scalar() == 0
        with home.write() as connection:
            connection.execute(INSERT, {"id": "new"})
        assert reading.execute(COUNT).scalar() == 0


def test_a_write_in_a_read_is_refused_not_lost(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home, pytest.raises(FloodmarkError, match="readonly"), home.read() as connection:
        connection.execute(INSERT, {"id": "lost"})


def test_a_connection_that_has_read_can_write_again(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        for number in range(3):
            with home.read() as connection:
                assert connection.execute(COUNT).scalar() == number
            with home.write() as connection:
                connection.execute(INSERT, {"id": str(number)})


def test_who_waits_too_long_for_another_writer_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "BUSY_SECONDS", 0.05)
    with Home.open(tmp_path) as home, home.write(), pytest.raises(FloodmarkError) as refusal, home.write():
        pass
    assert refusal.value.code == "home-busy"


def test_what_is_durable_and_what_belongs_together_is_switched_on(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        with home.write() as connection:
            settings = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]
        assert settings == ["wal", 2, 1]
        with pytest.raises(IntegrityError), home.write() as connection:
            connection.execute(text("INSERT INTO watermark_step VALUES ('nobody', 0, NULL, '{}', 0)"))


def test_a_statement_that_is_wrong_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home, pytest.raises(OperationalError, match="no such table"), home.read() as connection:
        connection.execute(text("SELECT * FROM nonsense"))


def test_after_close_nothing_works_and_a_second_close_is_fine(tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    home.close()
    home.close()
    for action in (home.read, home.write):
        with pytest.raises(FloodmarkError) as refusal, action():
            pass
        assert refusal.value.code == "home-closed"


def test_many_threads_use_one_home(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:

        def create(number: int) -> None:
            for part in range(5):
                WatermarkSteps(home).create(f"{number}-{part}", {}, now=0)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with home.read() as connection:
            assert connection.execute(COUNT).scalar() == 40


def test_a_new_home_waits_for_another_process_that_is_just_making_it(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "home.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, other.rollback)
    release.start()
    with Home.open(tmp_path) as home:
        WatermarkSteps(home).create("a", {}, now=0)
    release.join()
    other.close()


FORK = """
import os, sys
from floodmark.control import Home, WatermarkSteps
home = Home.open(sys.argv[1])
WatermarkSteps(home).create("parent", {}, now=0)
with home.read() as connection:
    of_parent = connection.connection.dbapi_connection
child = os.fork()
if not child:
    with home.read() as connection:
        assert connection.connection.dbapi_connection is not of_parent
    WatermarkSteps(home).create("child", {}, now=0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert WatermarkSteps(home).incarnation("child").created_at == 0
WatermarkSteps(home).create("parent again", {}, now=0)
home.close()
"""


def test_the_child_of_a_fork_opens_its_own_connections(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORK, str(tmp_path)], check=True)


def test_the_migrations_make_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home, home.read() as connection:
        found = inspect(connection)
        tables = set(found.get_table_names())
        columns = {
            table: [(column["name"], column["nullable"], str(column["type"])) for column in found.get_columns(table)]
            for table in METADATA.tables
        }
        keys = {table: found.get_pk_constraint(table)["constrained_columns"] for table in METADATA.tables}
    assert tables == {*METADATA.tables, "schema_migration"}
    for name, table in METADATA.tables.items():
        assert columns[name] == [(column.name, bool(column.nullable), str(column.type)) for column in table.columns]
        assert keys[name] == [column.name for column in table.primary_key]


NEXT = Migration(MIGRATIONS[-1].number + 1, "one more", ("CREATE TABLE one_more (id TEXT)",))


def test_an_older_home_is_brought_up_to_date_and_keeps_what_it_has(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        WatermarkSteps(home).create("kept", {}, now=7)
        migrate(home._engine, tmp_path, (*MIGRATIONS, NEXT))
        migrate(home._engine, tmp_path, (*MIGRATIONS, NEXT))
        with home.read() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM one_more")).scalar() == 0
            assert connection.execute(text("SELECT about FROM schema_migration")).scalars().all() == [
                *(migration.about for migration in MIGRATIONS),
                "one more",
            ]
        assert WatermarkSteps(home).incarnation("kept").created_at == 7


def test_a_home_of_a_newer_release_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(_migrations, "this_release", lambda: "9.9")
        with Home.open(tmp_path) as home:
            migrate(home._engine, tmp_path, (*MIGRATIONS, NEXT))
    for way in (Home.open, Home.open_existing):
        with pytest.raises(
            FloodmarkError, match=rf"schema {NEXT.number}, written by Floodmark 9\.9; this is Floodmark 0"
        ) as refusal:
            way(tmp_path)
        assert refusal.value.code == "home-newer"
        assert (refusal.value.fields["found"], refusal.value.fields["supported"]) == (NEXT.number, NEXT.number - 1)


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = Migration(NEXT.number, "broken", (*NEXT.statements, "INSERT INTO one_more VALUES ('x')", "NONSENSE"))
    with Home.open(tmp_path) as home:
        with pytest.raises(OperationalError, match="NONSENSE"):
            migrate(home._engine, tmp_path, (*MIGRATIONS, broken))
        with home.read() as connection:
            assert not inspect(connection).has_table("one_more")
    with Home.open(tmp_path) as home:
        migrate(home._engine, tmp_path, (*MIGRATIONS, NEXT))


def test_a_first_migration_that_fails_leaves_an_empty_home_that_opens_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(1, "broken", (*MIGRATIONS[0].statements, "NONSENSE"))
    with monkeypatch.context() as patch:
        patch.setattr(_home, "migrate", lambda engine, file: migrate(engine, file, (broken,)))
        with pytest.raises(OperationalError, match="NONSENSE"):
            Home.open(tmp_path)
    with Home.open(tmp_path) as home:
        WatermarkSteps(home).create("a", {}, now=0)


def test_the_numbers_of_the_migrations_count_from_one() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
