"""Retention of events: what the controller removes, what it leaves to readers, and what readers see of it."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from floodmark.bindings import Bindings, BoundStream
from floodmark.streams import Controller, Stream, StreamHome
from floodmark.streams.layout.retention import Claim
from floodmark.testing import ManualClock
from support.streams.group_tools import NOW

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Ages:
    """Lets time pass. Records in Kafka have the real time, so the clock of the home then follows it."""

    def __init__(self, kind: str, clock: ManualClock, controller: Controller, local: StreamHome) -> None:
        self._is_real = kind == "kafka"
        self._local = local
        self._clock = clock
        self._controller = controller
        self.pass_by()

    def pass_by(self) -> int:
        """Let some time pass, and return the time between what was before and what is to come."""
        if not self._is_real:
            return self._clock.advance(10 * SECOND) - 5 * SECOND
        time.sleep(0.004)
        between = time.time_ns() // 1000
        time.sleep(0.004)
        self._clock.advance(time.time_ns() // 1000 - self._clock.now())
        return between

    def an_hour_after(self, moment: int) -> None:
        """Let the controller run an hour after a moment."""
        self._clock.advance(moment + HOUR - self._clock.now())
        self._controller.step()
        if self._is_real:
            # The controller looks at a stream in Kafka once in a while only.
            for stream in self._local.streams():
                if stream.settings.has_retention:
                    self._local.local.kafka_retention.remove(stream.info)


@pytest.fixture
def controller(local: StreamHome) -> Controller:
    return Controller(local)


@pytest.fixture
def ages(kind: str, clock: ManualClock, controller: Controller, local: StreamHome) -> Ages:
    return Ages(kind, clock, controller, local)


@pytest.fixture
def write(home: StreamHome, ages: Ages) -> Iterator[Callable[..., int]]:
    """Give a function that writes rows as one batch, and returns a moment between it and the next one."""
    writers: dict[str, Any] = {}

    def write(*ids: int, key: str | None = None, stream: str = "s") -> int:
        if stream not in writers:
            writers[stream] = home.stream(stream).writer("w")
        for number in ids:
            writers[stream].write({"id": number}, key=key)
        writers[stream].flush()
        return ages.pass_by()

    yield write
    for writer in writers.values():
        writer.close()


@pytest.fixture
def stream(home: StreamHome) -> Stream:
    return home.create_stream("s", "id BIGINT", retention="1 hour", writer_timeout="1 day")


def ids(stream: Stream, segment: int = 0, start: int = 0) -> list[int]:
    return [row["id"] for chunk in stream.read(segment, start) for row in chunk.batch.to_pylist()]


def test_events_are_removed_an_hour_after_their_arrival(stream: Stream, write: Any, ages: Ages) -> None:
    first, second = write(1, 2), write(3, 4)
    write(5)
    ages.an_hour_after(first - 6 * SECOND)
    assert (stream.head(), ids(stream)) == ({0: 0}, [1, 2, 3, 4, 5])
    ages.an_hour_after(first)
    assert (stream.head(), ids(stream), stream.tail()) == ({0: 2}, [3, 4, 5], {0: 5})
    ages.an_hour_after(second)
    assert (stream.head(), ids(stream)) == ({0: 4}, [5])
    # Also a read that starts inside of what is gone, and one that ends there.
    assert ids(stream, start=3) == [5]
    assert [chunk for chunk in stream.read(0, 1, 3) if chunk.batch.num_rows] == []
    assert str(stream.retention()) == "s begins at {0: 4}, keeps 3600 s"


def test_a_stream_without_a_retention_keeps_everything_until_it_gets_one(
    home: StreamHome, write: Any, ages: Ages
) -> None:
    stream = home.create_stream("s", "id BIGINT")
    moment = write(1, 2)
    write(3)
    ages.an_hour_after(moment + 24 * HOUR)
    assert ids(stream) == [1, 2, 3]
    stream.alter(retention="25 hours")
    ages.an_hour_after(moment + 25 * HOUR)
    assert stream.head() in ({0: 2}, {0: 3})
    assert 1 not in ids(stream)


def test_a_writer_goes_on_where_it_was(stream: Stream, write: Any, ages: Ages, home: StreamHome) -> None:
    moment = write(1, 2)
    write(3)
    ages.an_hour_after(moment)
    write(4)
    with home.stream("s").writer("w") as again:
        again.write({"id": 5})
    assert ids(stream) == [3, 4, 5]
    assert stream.tail() == {0: 5}


# -- readers


def test_a_group_keeps_what_it_has_not_read_and_its_checkpoints(
    home: StreamHome, stream: Stream, write: Any, ages: Ages
) -> None:
    moment = write(1, 2)
    group = home.create_group("g", "s")
    ages.an_hour_after(moment + HOUR)
    assert ids(stream) == [1, 2]
    status = stream.retention()
    assert (status.due, status.waits_for) == ({0: 2}, (Claim("group", "g", {0: 0}),))
    assert str(status).endswith("due up to {0: 2}, waits for the group 'g' at {0: 0}")
    with group.reader("r", ttl="1 day", max_rows=1) as reader:
        assert reader.read(NOW) is not None
    group.checkpoint("c")
    with group.reader("r", ttl="1 day") as reader:
        assert reader.read(NOW) is not None
    moment = write(3)
    ages.an_hour_after(moment + 3 * HOUR)
    assert ids(stream)[-2:] == [2, 3]
    claims = [(claim.kind, claim.name, claim.offsets) for claim in stream.retention().waits_for]
    assert ("checkpoint", "c of g", {0: 1}) in claims
    home.delete_group("g")
    ages.an_hour_after(moment + 4 * HOUR)
    assert ids(stream) == []
    assert stream.head() == {0: 3}


def test_a_group_that_has_finished_holds_nothing(home: StreamHome, stream: Stream, write: Any, ages: Ages) -> None:
    moment = write(1, 2)
    group = home.create_group("g", "s", end={0: 1})
    with group.reader("r") as reader:
        assert sum(len(batch) for batch in reader) == 1
    assert group.is_finished
    ages.an_hour_after(moment + HOUR)
    assert ids(stream) == []


@pytest.mark.parametrize("start", [None, {0: 0}, {0: 1}, 5], ids=str)
def test_a_group_that_would_start_before_the_head_starts_at_the_head(
    home: StreamHome, stream: Stream, write: Any, ages: Ages, start: Any
) -> None:
    moment = write(1, 2)
    write(3)
    ages.an_hour_after(moment)
    group = home.create_group("g", "s", start=start)
    assert group.state.progress_of("s").position == {0: 2}
    with group.reader("r") as reader:
        batch = reader.read("5 seconds")
        assert batch is not None
        assert (batch.first, batch.batch["id"].to_pylist()) == (2, [3])
        reader.acknowledge()
        group.reset(stream.head())
        assert group.state.progress_of("s").position == {0: 2}


def test_lookups_answer_from_the_marks_log_also_before_the_head(
    home: StreamHome, stream: Stream, write: Any, ages: Ages, controller: Controller
) -> None:
    with stream.writer("marker") as writer:
        writer.write({"id": 1})
        writer.note_time(100)
        controller.step()
        moment = ages.pass_by()
        writer.write({"id": 2})
        writer.note_time(200)
        ages.pass_by()
        controller.step()
        ages.an_hour_after(moment)
        assert stream.head() == {0: 1}
        assert (stream.cut_at(100).cut, stream.cut_at(200).cut) == ({0: 1}, {0: 2})
        assert (stream.starting_at(100).cut, stream.ending_at(150).cut) == ({0: 1}, {0: 2})
        entry = stream.time_at({0: 1}).entry
        assert entry is not None
        assert entry.lower == 100
        # A group whose whole range is gone reads nothing, and finishes.
        group = home.create_group("g", "s", start={0: 0}, end={0: 1})
        with group.reader("r") as reader:
            assert list(reader) == []


# -- queries and sinks


def test_a_hold_keeps_events_and_compaction_does_not_change_that(
    local: StreamHome, stream: Stream, write: Any, ages: Ages, clock: ManualClock
) -> None:
    bound = BoundStream(local, "s")
    bindings = Bindings(local.home, own_clock=clock.now)
    timestamps = []
    for number in range(1, 5):
        moment = write(number)
        timestamps.append(bound.tick(at_once=True).ts_of(0, number - 1) or 0)
    bindings.hold("s", "query", timestamps[2], kind="query")
    bindings.hold("s", "sink", timestamps[1], kind="sink")
    ages.an_hour_after(moment + HOUR)
    # The sink may read again from inside of the timestamp that it holds.
    assert (stream.head(), ids(stream)) == ({0: 1}, [2, 3, 4])
    assert [(claim.kind, claim.name) for claim in stream.retention().waits_for] == [("sink", "sink of s")]
    bindings.release("s", "sink")
    ages.an_hour_after(moment + 2 * HOUR)
    assert ids(stream) == [3, 4]
    # Compaction moves the bindings to what is held, and forgets where that began; retention does not.
    bindings.alter("s", compaction_window="0 seconds")
    assert bindings.compact("s").since == timestamps[2]
    assert stream.retention().waits_for == (Claim("query", "query of s", {0: 2}),)
    bindings.advance_hold("s", "query", timestamps[3])
    assert bindings.compact("s").since == timestamps[3]
    ages.an_hour_after(moment + 3 * HOUR)
    assert ids(stream) == [4]
    bindings.release("s", "query")
    ages.an_hour_after(moment + 4 * HOUR)
    assert ids(stream) == []


def test_a_hold_at_the_first_timestamp_keeps_everything(
    local: StreamHome, stream: Stream, write: Any, ages: Ages
) -> None:
    moment = write(1, 2)
    history = BoundStream(local, "s").tick(at_once=True)
    Bindings(local.home).hold("s", "query", history.origin, kind="query")
    ages.an_hour_after(moment + HOUR)
    assert ids(stream) == [1, 2]


def test_events_can_be_bound_and_read_after_earlier_ones_are_gone(
    local: StreamHome, stream: Stream, write: Any, ages: Ages
) -> None:
    moment = write(1, 2)
    write(3)
    ages.an_hour_after(moment)
    history = BoundStream(local, "s").tick(at_once=True)
    assert history.ends == {0: 3}
    assert BoundStream(local, "s").ends_at(stream.head()) == {0: 2}


# -- size


def test_the_oldest_events_go_as_long_as_enough_bytes_are_left(
    home: StreamHome, write: Any, ages: Ages, kind: str
) -> None:
    stream = home.create_stream("s", "id BIGINT")
    for number in range(20):
        moment = write(*range(number * 10, number * 10 + 10))
    if kind == "kafka":
        # About 9.5 bytes a record: {"id":123}.
        stream.alter(retention_bytes=950)
        ages.an_hour_after(moment)
        (left,) = (200 - start for start in stream.head().values())
        assert 80 <= left <= 120
        assert ids(stream) == list(range(200 - left, 200))
        return
    sizes = home.stream("s")
    stream.alter(retention_bytes=1)
    ages.an_hour_after(moment)
    assert ids(sizes) == list(range(190, 200))
    moment = write(*range(200, 210))
    stream.alter(retention_bytes=10**6)
    ages.an_hour_after(moment + HOUR)
    assert ids(sizes) == list(range(190, 210))


# -- scaled streams


def test_segments_are_removed_in_the_order_in_which_they_replaced_each_other(
    home: StreamHome, write: Any, ages: Ages
) -> None:
    stream = home.create_stream("s", "id BIGINT", segments=2, retention="1 hour", writer_timeout="1 day")
    write(1, key="a")
    first = write(2, key="customer-9")
    stream.merge([0, 1])
    second = write(3, 4)
    stream.split(2)
    write(5, key="a")
    third = write(6, key="customer-9")
    ages.an_hour_after(first)
    assert stream.head() == {2: 0}
    group = home.create_group("g", "s")
    assert group.state.progress_of("s").position == {2: 0}
    home.delete_group("g")
    ages.an_hour_after(second)
    assert stream.head() == {3: 0, 4: 0}
    group = home.create_group("g", "s")
    with group.reader("r") as reader:
        rows = [reader.read("2 seconds") for _ in range(len({5, 6}))]
    assert sorted(row for batch in rows if batch is not None for row in batch.batch["id"].to_pylist()) == [5, 6]
    home.delete_group("g")
    ages.an_hour_after(third)
    assert [ids(stream, segment) for segment in range(5)] == [[]] * 5
    assert stream.head() == stream.tail()


# -- several at once


def test_two_controllers_writers_and_readers_at_once_lose_and_repeat_nothing(
    kind: str, live: StreamHome, store: str
) -> None:
    """Let everything run at once for a moment: each reader of the group gets each row once, whatever is removed."""
    from floodmark.streams import connect

    stream = live.create_stream("s", "id BIGINT", segments=2, retention="1 millisecond")
    group = live.create_group("g", "s")
    count = 300
    failures: list[Exception] = []
    seen: list[int] = []

    def guarded(action: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                action()
            except Exception as error:  # Shown by the assertion below.
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def produce() -> None:
        with stream.writer("w") as writer:
            for number in range(count):
                writer.write({"id": number}, key=str(number))
                if number % 5 == 0:
                    writer.flush()

    def consume() -> None:
        with group.reader("r") as reader:
            give_up = time.monotonic() + 60
            while len(seen) < count and time.monotonic() < give_up:
                batch = reader.read("100 milliseconds")
                if batch is not None:
                    seen.extend(batch.batch["id"].to_pylist())

    is_done = threading.Event()

    def remove() -> None:
        with connect(store, controller=False) as home:
            backend = home.local
            info = backend.catalog.find("s")
            while not is_done.is_set():
                (backend.table_retention if info.log is None else backend.kafka_retention).remove(info)

    removers = [guarded(remove) for _ in range(2)]
    workers = [guarded(produce), guarded(consume)]
    for worker in workers:
        worker.join()
    is_done.set()
    for remover in removers:
        remover.join()
    assert failures == []
    assert sorted(seen) == list(range(count))
    head, tail = stream.head(), stream.tail()
    assert sum(head.values()) > 0
    assert all(head[segment] <= tail[segment] for segment in head)
