"""Homes of streams of all kinds: a test that asks for `home` runs with SQLite, PostgreSQL, HTTP, and with Kafka."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from floodmark.control import Home
from floodmark.control.tables import METADATA
from floodmark.service import ServiceLimits, create_app
from floodmark.service.server import Listener, resolve_address
from floodmark.streams import StreamHome, connect
from floodmark.testing import KafkaBroker, ManualClock, PostgresServer

KINDS = ("sqlite", "postgres", "http", "kafka")
STORES = ("sqlite", "postgres")
"""For tests that reach into the store: over HTTP they would be the same as with SQLite."""


class Exchange:
    """An address at which one home after the other is served: to begin to listen takes longer than most tests."""

    def __init__(self) -> None:
        self._app: Any = None
        self._listener = Listener(self._answer, resolve_address("127.0.0.1", 0), ServiceLimits())

    @contextmanager
    def serving(self, home: StreamHome, **options: Any) -> Iterator[str]:
        """Serve a home, and give the address."""
        assert self._app is None, "one home at a time"
        self._app = app = create_app(home, **{"needs_token": False, **options})
        try:
            yield self._listener.url
        finally:
            self._app = None
            app.close()

    def stop(self) -> None:
        self._listener.stop()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


@pytest.fixture(scope="session")
def exchange() -> Iterator[Exchange]:
    exchange = Exchange()
    yield exchange
    exchange.stop()


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
def store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the place of a store in which there is nothing; a home over HTTP, or with Kafka, is kept in SQLite."""
    if kind == "kafka":
        broker: KafkaBroker = request.getfixturevalue("broker")
        request.getfixturevalue("monkeypatch").setenv("FLOODMARK_LOG", broker.url)
    if kind != "postgres":
        (tmp_path / "home").mkdir()
        shutil.copy(request.getfixturevalue("new_file"), tmp_path / "home")
        return str(tmp_path / "home")
    url: str = request.getfixturevalue("stream_database")
    with Home.open(url) as home, home.write() as connection:
        connection.execute(text("; ".join(f"DELETE FROM {table}" for table in reversed(METADATA.sorted_tables))))
    return url


@pytest.fixture
def location(kind: str, store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the place of a home in which there is nothing, as `connect` takes it, under the real clock."""
    if kind != "http":
        yield store
        return
    exchange: Exchange = request.getfixturevalue("exchange")
    with connect(store, controller=False) as served, exchange.serving(served) as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    """Give the clock of `home`, which stands still; in microseconds."""
    return ManualClock(1_000_000_000)


@pytest.fixture
def local(store: str, clock: ManualClock) -> Iterator[StreamHome]:
    """Give `home` as it is at the store itself, also if `home` is over HTTP: for controllers, and to look inside."""
    with connect(store, controller=False, clock=clock.now) as local:
        yield local


@pytest.fixture
def home(kind: str, local: StreamHome, request: pytest.FixtureRequest) -> Iterator[StreamHome]:
    """Give a home without a controller, whose clock the test has in hand."""
    if kind != "http":
        yield local
        return
    exchange: Exchange = request.getfixturevalue("exchange")
    with exchange.serving(local) as url, connect(url) as home:
        yield home


@pytest.fixture
def live_at(kind: str, store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the place of `live`, for other processes."""
    if kind != "http":
        yield store
        return
    exchange: Exchange = request.getfixturevalue("exchange")
    with connect(store) as served, exchange.serving(served) as url:
        yield url


@pytest.fixture
def live(live_at: str) -> Iterator[StreamHome]:
    """Give a home with a controller, under the real clock."""
    with connect(live_at) as live:
        yield live


@pytest.fixture
def new_home(store: str, clock: ManualClock) -> Iterator[Callable[[], StreamHome]]:
    """Open the same home several times, at its store, as several processes would."""
    opened: list[StreamHome] = []

    def again() -> StreamHome:
        opened.append(connect(store, controller=False, clock=clock.now))
        return opened[-1]

    yield again
    for home in opened:
        home.close()
