"""Claims about a home in SQLite: a directory, a file, and what may be wrong with either."""

import sqlite3
import threading
from pathlib import Path

import pytest

from floodmark.control import Home, WatermarkSteps
from floodmark.control.migrations.runner import migrate
from floodmark.control.store import sqlite as _sqlite
from floodmark.errors import FloodmarkError


def test_a_new_home_is_a_directory_with_one_file(tmp_path: Path) -> None:
    with Home.open(tmp_path / "deep" / "home") as home:
        assert home.path == tmp_path / "deep" / "home"
        assert home.location == str(home.path)
        assert repr(home) == f"Home({str(home.path)!r})"
    assert [file.name for file in (tmp_path / "deep" / "home").iterdir()] == ["home.db"]


def test_a_path_overrules_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", str(tmp_path / "named"))
    with Home.open() as named, Home.open(tmp_path / "given") as given:
        assert (named.path.name, given.path.name) == ("named", "given")


def test_without_either_it_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOODMARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    with Home.open() as home:
        assert home.path == tmp_path / ".floodmark"
        monkeypatch.chdir("/")
        WatermarkSteps(home).create("a", {}, now=0)


@pytest.mark.parametrize("name", ["a b?c#d%41é", "postgres", "a:b"])
def test_a_path_may_hold_what_a_url_may_not(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Home.open(name) as home:
        assert (tmp_path / name / "home.db").is_file()
        assert home.changes() == {}
    with Home.open_existing(tmp_path / name):
        pass


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FloodmarkError):
        Home.open_existing(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_vanishes_between_two_looks_is_not_made_anew(tmp_path: Path) -> None:
    store = _sqlite.SqliteStore(tmp_path)
    with pytest.raises(FloodmarkError) as refusal, store.translate_errors():
        migrate(store)
    assert refusal.value.code == "home-unusable"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    with pytest.raises(FloodmarkError, match="cannot be created") as refusal:
        Home.open(tmp_path / "home")
    assert refusal.value.code == "home-unusable"


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home.db").write_text("not a database" * 100)
    with pytest.raises(FloodmarkError, match="not a database") as refusal:
        Home.open(tmp_path)
    assert refusal.value.code == "home-unusable"
    assert (tmp_path / "home.db").read_text() == "not a database" * 100


def test_who_waits_too_long_for_another_writer_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "BUSY_SECONDS", 0.05)
    with Home.open(tmp_path) as home, home.write(), pytest.raises(FloodmarkError) as refusal, home.write():
        pass
    assert refusal.value.code == "home-busy"


def test_what_is_durable_is_switched_on(sqlite_home: Home) -> None:
    with sqlite_home.write() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert settings == ["wal", 2, 1]


def test_a_new_home_waits_for_another_process_that_is_just_making_it(tmp_path: Path) -> None:
    _sqlite.create_home_file(tmp_path)
    other = sqlite3.connect(tmp_path / "home.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, other.rollback)
    release.start()
    with Home.open(tmp_path) as home:
        WatermarkSteps(home).create("a", {}, now=0)
    release.join()
    other.close()
