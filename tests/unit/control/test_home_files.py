"""The files of a home: only their owner reads them, and one that has lost its content is not taken for a new home."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.control import Home, Tokens
from floodmark.control.store import sqlite as _sqlite
from floodmark.errors import HomeUnusable


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Let new files be readable for all, unless their maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    """Return the permissions of a directory and of everything below it."""
    paths = [directory, *sorted(directory.rglob("*"))]
    return {str(path.relative_to(directory)): oct(path.stat().st_mode & 0o7777) for path in paths}


def test_a_new_home_is_its_owners_alone(tmp_path: Path) -> None:
    with Home.open(tmp_path / "deep" / "home") as home:
        Tokens(home).create("admin")
        assert modes(home.path) == {
            ".": "0o700",
            "home.db": "0o600",
            "home.db-shm": "0o600",
            "home.db-wal": "0o600",
        }
    assert modes(tmp_path / "deep" / "home") == {".": "0o700", "home.db": "0o600"}


@pytest.mark.parametrize("opening", [Home.open, Home.open_existing])
def test_a_home_of_an_earlier_release_is_closed_to_others(tmp_path: Path, opening: Callable[[Path], Home]) -> None:
    directory = tmp_path / "home"
    with Home.open(directory) as first:
        Tokens(first).create("admin")
        (directory / "late").mkdir(mode=0o755)
        for path in (directory, *directory.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with opening(directory) as home:
            assert len(Tokens(home).all()) == 1
            assert set(modes(directory).values()) == {"0o700", "0o600"}


def test_a_directory_with_other_things_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    directory.mkdir(mode=0o755)
    (directory / "notes").touch(mode=0o644)
    with Home.open(directory):
        pass
    with Home.open(directory):
        assert modes(directory) == {
            ".": "0o755",
            "home.db": "0o600",
            "home.db-shm": "0o600",
            "home.db-wal": "0o600",
            "notes": "0o644",
        }


def test_a_directory_that_users_share_is_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    with Home.open(directory):
        assert modes(directory)["."] == "0o1777"


@pytest.mark.parametrize("opening", [Home.open, Home.open_existing])
def test_an_empty_home_file_is_refused_and_left_alone(tmp_path: Path, opening: Callable[[Path], Home]) -> None:
    with Home.open(tmp_path) as home:
        Tokens(home).create("admin")
    os.truncate(tmp_path / "home.db", 0)
    with pytest.raises(HomeUnusable, match="has 0 bytes") as refusal:
        opening(tmp_path)
    assert refusal.value.fields == {"path": str(tmp_path / "home.db")}
    assert (tmp_path / "home.db").stat().st_size == 0


@pytest.mark.parametrize("size", [1, 99, 100, 512, 4095, 4096, 8192])
def test_a_truncated_home_file_is_refused(tmp_path: Path, size: int) -> None:
    with Home.open(tmp_path) as home:
        Tokens(home).create("admin")
    os.truncate(tmp_path / "home.db", size)
    with pytest.raises(HomeUnusable), Home.open(tmp_path) as damaged:
        Tokens(damaged).all()


def test_a_home_whose_creation_was_interrupted_is_completed(tmp_path: Path) -> None:
    _sqlite.create_home_file(tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["home.db"]
    with sqlite3.connect(tmp_path / "home" / "home.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,)
    connection.close()
    with Home.open(tmp_path / "home") as home:
        assert home.changes() == {}


def test_of_two_processes_that_create_a_home_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lose(source: Path, target: Path) -> None:
        monkeypatch.undo()
        with Home.open(tmp_path / "other") as winner:
            Tokens(winner).create("admin")
        link(tmp_path / "other" / "home.db", target)
        link(source, target)

    monkeypatch.setattr(os, "link", lose)
    with Home.open(tmp_path / "home") as home:
        assert len(Tokens(home).all()) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["home.db"]
