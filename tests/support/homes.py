"""Homes of both kinds: a test that asks for `place` or `home` runs once with SQLite and once with PostgreSQL.

The fixtures are there for the tests of every room.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from floodmark.control import Home
from floodmark.control.tables import METADATA
from floodmark.testing import ManualClock, PostgresServer
from support.racing import Racers

KINDS = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give a server that is started when the first test asks for it; each takes a database of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def new_place(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Give places where there has never been a home, each as `Home.open` takes it."""
    if kind == "sqlite":
        return lambda: str(tmp_path_factory.mktemp("place") / "home")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database


@pytest.fixture
def place(new_place: Callable[[], str]) -> str:
    return new_place()


@pytest.fixture(scope="session")
def used_database(postgres: PostgresServer) -> str:
    """Give a database that tests share one after the other; to make one takes longer than most tests."""
    return postgres.new_database()


@pytest.fixture
def postgres_home(used_database: str, clock: ManualClock | None) -> Iterator[Home]:
    with Home.open(used_database, clock=clock.now if clock else None) as home:
        with home.write() as connection:
            connection.execute(text("; ".join(f"DELETE FROM {table}" for table in reversed(METADATA.sorted_tables))))
        yield home


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file of a home in which there is nothing; to copy it is quicker than to make it."""
    with Home.open(tmp_path_factory.mktemp("empty")) as home:
        return home.path / "home.db"


@pytest.fixture
def sqlite_home(empty_file: Path, tmp_path: Path, clock: ManualClock | None) -> Iterator[Home]:
    (tmp_path / "home").mkdir()
    shutil.copy(empty_file, tmp_path / "home")
    with Home.open(tmp_path / "home", clock=clock.now if clock else None) as home:
        yield home


@pytest.fixture
def clock() -> ManualClock | None:
    """Give the clock of the homes. It is the real one, unless a module says otherwise."""
    return None


@pytest.fixture
def home(kind: str, request: pytest.FixtureRequest) -> Home:
    """Give a home in which there is nothing."""
    home: Home = request.getfixturevalue(f"{kind}_home")
    return home


@pytest.fixture(scope="session")
def racers() -> Iterator[Racers]:
    """Give four processes that wait for something to do at the same moment."""
    with Racers(4) as racers:
        yield racers
