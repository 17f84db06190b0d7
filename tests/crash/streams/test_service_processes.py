"""Three services of one home, one of which is killed under load: nothing acknowledged is lost or doubled."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.streams import EntryKind, StreamHome, connect
from floodmark.testing import PostgresServer
from support.service.service_processes import Serving, commit_until, write_until
from support.streams.reading import everything
from support.streams.stream_processes import CONTEXT, KEYS, lowers, start
from support.waiting import wait_until


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the place of a new home."""
    if request.param == "sqlite":
        return str(tmp_path / "home")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def services(place: str) -> Iterator[list[Serving]]:
    connect(place, controller=False).close()
    services = [Serving(place, "--ttl", "1 second") for _ in range(3)]
    yield services
    for service in services:
        service.close()


def test_when_one_of_three_services_is_killed_nothing_acknowledged_is_lost(place: str, services: list[Serving]) -> None:
    location = ",".join(service.url for service in services)
    with connect(location) as home, connect(place, controller=False) as local:
        stream = home.create_stream("s", segments=3, rate_floor="5 milliseconds", writer_timeout="20 seconds")
        enough, seen, written = CONTEXT.Event(), CONTEXT.Event(), CONTEXT.Queue()
        tasks = {"a": write_until, "b": write_until, "c": write_until, "t": commit_until}
        writers = [start(task, location, name, enough, written, seen) for name, task in tasks.items()]
        wait_until(lambda: len(lowers(stream)) > 5, 30)
        killed = random.Random(7).choice(services)
        killed.end(signal.SIGKILL)
        before, events = lowers(local.stream("s"))[-1], sum(stream.tail().values())
        wait_until(lambda: lowers(stream)[-1] > before + 5 and sum(stream.tail().values()) > events + 100, 30)
        time.sleep(0.5)
        enough.set()
        told = {name: numbers for name, *numbers in (written.get(timeout=40) for _ in writers)}
        check(local, told)
        seen.set()
        for writer in writers:
            writer.join(30)
        assert [writer.exitcode for writer in writers] == [0] * 4
        for service in services:
            if service is not killed:
                assert service.end() == 0, service.said()


def check(home: StreamHome, told: dict[str, list[int]]) -> None:
    """Each event that was acknowledged is there once, those of a key in order; each mark counts; no fork."""
    stream = home.stream("s")
    found = everything(stream)
    expected = [(name, KEYS[number % 7], number) for name, (events, _) in told.items() for number in range(events)]
    assert sorted(map(tuple, found)) == sorted(expected)
    for name in told:
        for key in KEYS:
            numbers = [number for writer, k, number in found if (writer, k) == (name, key)]
            assert numbers == sorted(numbers)
    assert {view.writer: view.time for view in stream.why().writers} == {
        name: noted for name, (_, noted) in told.items()
    }
    stream.await_mark(min(noted for _, noted in told.values()), timeout="20 seconds")
    entries = stream.marks(most=100_000)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    rising = [entry.lower for entry in entries if entry.kind is EntryKind.WATERMARK and entry.lower is not None]
    assert rising == sorted(set(rising))
