"""Retention that dies between any two steps, and meets holds and writers in between: the next run completes it."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, select

from floodmark.bindings import Bindings, BoundStream
from floodmark.control import Home
from floodmark.streams import StreamHome
from floodmark.streams.backend import LocalBackend
from floodmark.streams.local.tables import BATCHES
from floodmark.testing import ManualClock
from support.waiting import wait_until

HOUR = 3_600_000_000
TABLE_STEPS = (
    "retention: claims read",
    "retention: before the commit",
    "retention: starts raised",
    "retention: page deleted",
)
KAFKA_STEPS = (
    "retention: due found",
    "retention: uncommitted stored",
    "retention: before the commit",
    "retention: starts raised",
    "retention: records deleted",
)


class Crash(Exception):
    """The process dies here."""


@pytest.fixture
def opened(store: str, clock: ManualClock) -> Iterator[Callable[..., StreamHome]]:
    """Give a function that opens the home as another process would; it dies where `failpoint` raises."""
    homes: list[StreamHome] = []

    def opened(failpoint: Callable[[str], None] = lambda place: None) -> StreamHome:
        home = Home.open(store, clock=clock.now)
        homes.append(StreamHome(LocalBackend(home, failpoint=failpoint), controller=False))
        return homes[-1]

    yield opened
    for home in homes:
        home.close()


def crash_at(step: str) -> Callable[[str], None]:
    def failpoint(place: str) -> None:
        if place == step:
            raise Crash

    return failpoint


def remove(home: StreamHome) -> None:
    backend = home.local
    info = backend.catalog.find("s")
    (backend.table_retention if info.log is None else backend.kafka_retention).remove(info)


def ids(home: StreamHome, segment: int = 0) -> list[int]:
    return [row["id"] for chunk in home.stream("s").read(segment) for row in chunk.batch.to_pylist()]


def write(home: StreamHome, clock: ManualClock, *numbers: int) -> None:
    with home.stream("s").writer("w") as writer:
        for number in numbers:
            writer.write({"id": number})
            writer.flush()
    # In Kafka events have the real time.
    is_in_kafka = home.stream("s").info.log is not None
    clock.advance(time.time_ns() // 1000 - clock.now() if is_in_kafka else 1_000_000)


def stored_before_the_head(home: StreamHome) -> int:
    """Return how many events are stored that no reader gets."""
    backend, stream = home.local, home.stream("s")
    start = stream.starts().get(0, 0)
    if stream.info.log is not None:
        connection, topic = backend._connections.of(stream.info)
        return start - connection.cluster.starts(topic, [0])[0]
    with backend.home.read() as reading:
        rows = select(func.count()).select_from(BATCHES).where(BATCHES.c.first_offset < start)
        return int(reading.execute(rows).scalar_one())


@pytest.mark.parametrize("step", dict.fromkeys((*TABLE_STEPS, *KAFKA_STEPS)))
def test_a_run_that_dies_is_completed_by_the_next_one(
    kind: str, home: StreamHome, clock: ManualClock, opened: Callable[..., StreamHome], step: str
) -> None:
    is_reached = step in (KAFKA_STEPS if kind == "kafka" else TABLE_STEPS)
    home.create_stream("s", "id BIGINT", retention="1 hour", writer_timeout="1 day")
    writing = opened()
    write(writing, clock, *range(6))
    group = home.create_group("g", "s", start={0: 4})
    clock.advance(2 * HOUR)
    if is_reached:
        with pytest.raises(Crash):
            remove(opened(crash_at(step)))
    # Whatever it has done, the group has all of its events, and a reader sees no event come back.
    seen = ids(home)
    assert seen in (list(range(6)), [4, 5])
    remove(opened())
    assert ids(home) == [4, 5]
    assert home.stream("s").head() == {0: 4}
    assert stored_before_the_head(opened()) == 0
    with group.reader("r") as reader:
        batches = list(iter(lambda: reader.read("200 milliseconds"), None))
    assert [number for batch in batches for number in batch.batch["id"].to_pylist()] == [4, 5]
    write(opened(), clock, 6)
    assert ids(home)[-1] == 6
    assert home.stream("s").tail() == {0: 7}


@pytest.mark.parametrize("second", ["hold", "release"])
def test_a_hold_is_taken_before_a_run_or_after_it_but_not_in_between(
    kind: str, home: StreamHome, clock: ManualClock, opened: Callable[..., StreamHome], second: str
) -> None:
    """The source is locked from the moment at which retention has read the holds until the starts are raised (S1)."""
    home.create_stream("s", "id BIGINT", retention="1 hour", writer_timeout="1 day")
    writing = opened()
    bindings = Bindings(writing.home)
    bound = BoundStream(writing, "s")
    timestamps = []
    for number in range(4):
        write(writing, clock, number)
        timestamps.append(bound.tick(at_once=True).ts_of(0, number) or 0)
    bindings.hold("s", "first", timestamps[2], kind="sink")
    clock.advance(2 * HOUR)
    done = threading.Event()

    def act() -> None:
        if second == "hold":
            bindings.hold("s", "late", timestamps[0], kind="query")
        else:
            bindings.release("s", "first")
        done.set()

    thread = threading.Thread(target=act)
    was_done: list[bool] = []
    heads: list[Any] = []

    def meet(place: str) -> None:
        if place == "retention: before the commit" and not was_done:
            thread.start()
            was_done.append(done.wait(0.3))
        elif place == "retention: starts raised":
            heads.append(home.stream("s").head())

    remove(opened(meet))
    thread.join()
    assert was_done == [False]
    wait_until(done.is_set)
    # It decided by the holds that it had read, whole.
    assert heads[0] == {0: 2}
    remove(opened())
    assert ids(home) == ([2, 3] if second == "hold" else [])


def test_a_writer_whose_flush_was_not_committed_does_not_write_removed_events_again(
    kind: str, home: StreamHome, clock: ManualClock, opened: Callable[..., StreamHome]
) -> None:
    home.create_stream("s", "id BIGINT", retention="1 hour", writer_timeout="1 day")
    places: list[str] = []

    def die(place: str) -> None:
        places.append(place)
        if place == "append: acknowledged" and places.count(place) == 2:
            raise Crash

    writer = opened(die).stream("s").writer("w")
    writer.write({"id": 0})
    writer.flush()
    writer.write({"id": 1})
    if kind == "kafka":
        # Its events are in Kafka, but the store does not know of them.
        with pytest.raises(Crash):
            writer.flush()
    else:
        writer.flush()
    is_in_kafka = kind == "kafka"
    clock.advance((time.time_ns() // 1000 - clock.now() if is_in_kafka else 0) + 2 * HOUR)
    remove(opened())
    assert ids(home) == []
    again = opened()
    info = again.local.catalog.find("s")
    assert again.local.registry.open(info, "w", info.settings.keys).next_number == 2
    write(again, clock, 2)
    assert ids(home) == [2]
    assert home.stream("s").tail() == {0: 3}


def test_a_commit_that_is_under_way_keeps_its_events(
    kind: str, home: StreamHome, clock: ManualClock, opened: Callable[..., StreamHome]
) -> None:
    """Another process may have to look for the records of a commit in Kafka, to know whether it was carried out."""
    home.create_stream("s", "id BIGINT", retention="1 hour", writer_timeout="1 day")
    write(opened(), clock, 0)
    writer = opened(crash_at("commit: committed")).stream("s").transactional_writer("t")
    transaction: Any = writer.begin(timeout="1 day")
    transaction.write({"id": 1})
    if kind == "kafka":
        with pytest.raises(Crash):
            transaction.commit()
    else:
        transaction.commit()
    is_in_kafka = kind == "kafka"
    clock.advance((time.time_ns() // 1000 - clock.now() if is_in_kafka else 0) + 2 * HOUR)
    remove(opened())
    assert ids(home) == ([1] if is_in_kafka else [])
    if is_in_kafka:
        assert [claim.kind for claim in home.stream("s").retention().waits_for] == ["transaction"]
        other = opened()
        result = other.local.transactions.finish(other.stream("s").info, transaction.id)
        assert result.position == {0: 2}
        remove(other)
        assert ids(home) == []
