"""Homes of streams of both kinds: a test that asks for `home` runs once with SQLite and once with PostgreSQL."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from floodmark.control import Home
from floodmark.control._schema import METADATA
from floodmark.streams import StreamHome, connect
from floodmark.testing import ManualClock, PostgresServer

KINDS = ("sqlite", "postgres")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def stream_database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file of a home in which there is nothing; to copy it is quicker than to make it."""
    with Home.open(tmp_path_factory.mktemp("new")) as home:
        return home.path / "home.db"


@pytest.fixture
def location(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the place of a home in which there is nothing."""
    if kind == "sqlite":
        (tmp_path / "home").mkdir()
        shutil.copy(request.getfixturevalue("new_file"), tmp_path / "home")
        return str(tmp_path / "home")
    url: str = request.getfixturevalue("stream_database")
    with Home.open(url) as home, home.write() as connection:
        connection.execute(text("; ".join(f"DELETE FROM {table}" for table in reversed(METADATA.sorted_tables))))
    return url


@pytest.fixture
def clock() -> ManualClock:
    """Give the clock of `home`, which stands still; in microseconds."""
    return ManualClock(1_000_000_000)


@pytest.fixture
def home(location: str, clock: ManualClock) -> Iterator[StreamHome]:
    """Give a home without a controller, whose clock the test has in hand."""
    with connect(location, controller=False, clock=clock.now) as home:
        yield home


@pytest.fixture
def live(location: str) -> Iterator[StreamHome]:
    """Give a home with a controller, under the real clock."""
    with connect(location) as home:
        yield home


@pytest.fixture
def new_home(location: str, clock: ManualClock) -> Iterator[Callable[[], StreamHome]]:
    """Open the same home several times, as several processes would."""
    opened: list[StreamHome] = []

    def again() -> StreamHome:
        opened.append(connect(location, controller=False, clock=clock.now))
        return opened[-1]

    yield again
    for home in opened:
        home.close()
