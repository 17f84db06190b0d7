"""Writers that race a seal and are stopped, and a broker that is killed while everybody is at work."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.bindings import BoundStream
from floodmark.errors import FloodmarkError, KafkaAway
from floodmark.streams import Stream, StreamHome, connect
from floodmark.testing import KafkaBroker
from support.kafka import stopping_writer
from support.kafka.kafka_homes import numbers_in, open_home
from support.processes import finish, start
from support.service.service_processes import Serving
from support.waiting import wait_until


@pytest.mark.parametrize("place", ["append: sent", "append: acknowledged"])
def test_writers_race_seals_and_one_is_stopped_before_its_own_acknowledgement(
    broker: KafkaBroker, tmp_path: Path, place: str
) -> None:
    """Each event that was acknowledged is read once and in the order of its key; the stopped one goes on."""
    store = str(tmp_path / "home")
    with open_home(store, broker.servers) as home:
        stream = home.create_stream("s", segments=2)
        stopped = start(stopping_writer.__name__, store, broker.servers, "s", place)
        try:
            wait_until(lambda: _is_stopped(stopped.pid))
            racing = [_Racing(store, broker.servers, number) for number in range(3)]
            stream.merge([0, 1])
            stream.split(2, 3)
            stream.merge([3, 4])
            os.kill(stopped.pid, signal.SIGCONT)
            stream.split(5)
            for one in racing:
                one.end()
            code, printed = finish(stopped)
            assert code == 0, printed
        finally:
            stopped.kill()
            stopped.wait()
        found = numbers_in(stream)
        expected = [*range(10_000, 10_040), *(number for one in racing for number in one.written)]
        assert sorted(found) == sorted(expected)
        for key in {_key(number) for number in found}:
            mine = [number for number in found if _key(number) == key]
            assert mine == sorted(mine), "the order of a key"


class _Racing:
    """A writer in a thread, in a home of its own, that writes until it is told to end."""

    def __init__(self, store: str, servers: str, number: int) -> None:
        self.written: list[int] = []
        self._args = (store, servers, number)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        store, servers, number = self._args
        with open_home(store, servers) as home, home.stream("s").writer(f"w{number}") as writer:
            while not self._ending.is_set():
                events = range(number * 1_000_000 + len(self.written), number * 1_000_000 + len(self.written) + 7)
                writer.write_batch(list(events), key=[_key(event) for event in events])
                writer.flush()
                self.written += events

    def end(self) -> None:
        time.sleep(0.1)
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def _key(number: int) -> str:
    return f"s{number % 5}" if 10_000 <= number < 10_040 else f"{number // 1_000_000}-{number % 4}"


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.fixture
def mortal() -> Iterator[KafkaBroker]:
    """Give a broker of its own, which may be killed."""
    with KafkaBroker() as broker:
        yield broker


def test_a_broker_that_is_killed_in_the_middle_of_everything_costs_time_and_nothing_else(
    mortal: KafkaBroker, tmp_path: Path
) -> None:
    """Events are written, in transactions too, segments are sealed, timestamps are bound, and events are read."""
    store = str(tmp_path / "home")
    with open_home(store, mortal.servers) as home:
        stream = home.create_stream("s", segments=2)
        work = _Work(store, mortal.servers)
        work.start()
        time.sleep(2)
        mortal.kill()
        time.sleep(0.5)
        mortal.start()
        time.sleep(4)
        work.end()
        bound = BoundStream(home, "s")
        history = bound.tick(at_once=True)
        stream = home.stream("s")
        found = numbers_in(stream)
        assert work.failures == [], [str(failure) for failure in work.failures]
        assert sorted(found) == sorted(work.written)
        assert len(work.written) > 100
        assert work.scales > 2
        for segment, end in stream.ends().items():
            assert history.ends.get(segment, 0) == end, "a new segment without events is not bound yet"
        assert sorted(work.read) == sorted(found)


class _Work:
    """Writers, transactions, scales, bindings and a reader of a stream, each in a thread and a home of its own."""

    def __init__(self, store: str, servers: str) -> None:
        self.written: list[int] = []
        self.read: list[int] = []
        self.failures: list[BaseException] = []
        self.scales = 0
        self._ending = threading.Event()
        self._writing = threading.Event()
        self._open: Callable[[], StreamHome] = lambda: open_home(store, servers)
        with self._open() as home:
            home.create_group("g", "s")
        actions = (self._write, self._commit, self._scale, self._bind, self._read)
        self._threads = [threading.Thread(target=self._safely, args=(action,), daemon=True) for action in actions]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let the writers end, and then the reader when it has read everything."""
        self._ending.set()
        for thread in self._threads[:-1]:
            thread.join(120)
        self._writing.set()
        self._threads[-1].join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def _safely(self, action: Callable[[Stream, StreamHome], None]) -> None:
        try:
            with self._open() as home:
                action(home.stream("s"), home)
        except BaseException as error:
            self.failures.append(error)

    def _write(self, stream: Stream, home: StreamHome) -> None:
        with stream.writer("w") as writer:
            number = 0
            while not self._ending.is_set():
                events = list(range(number, number + 5))
                number += 5
                writer.write_batch(events, key=[str(event % 7) for event in events])
                again(writer.flush)
                self.written += events

    def _commit(self, stream: Stream, home: StreamHome) -> None:
        with stream.transactional_writer("t") as writer:
            number = 1_000_000
            while not self._ending.is_set():
                transaction = writer.begin()
                events = list(range(number, number + 5))
                number += 5
                transaction.write_batch(events, key=[str(event % 7) for event in events])
                transaction.request_commit()
                again(transaction.result)
                self.written += events

    def _scale(self, stream: Stream, home: StreamHome) -> None:
        while not self._ending.wait(0.3):
            current = [segment.id for segment in stream.layout.current]
            try:
                if len(current) > 1:
                    stream.merge(current)
                else:
                    stream.split(current[0])
            except KafkaAway:
                again(lambda: home.local.kafka_log._sealer.finish(stream.info))
            self.scales += 1

    def _bind(self, stream: Stream, home: StreamHome) -> None:
        bound = BoundStream(home, "s", tick="100 milliseconds")
        while not self._ending.wait(0.05):
            again(bound.tick)

    def _read(self, stream: Stream, home: StreamHome) -> None:
        with home.group("g").reader("r") as reader:
            idle_since: float | None = None
            while idle_since is None or time.monotonic() - idle_since < 2:
                batch = again(lambda: reader.read(timeout="200 milliseconds"))
                if batch is not None:
                    self.read += [int(payload) for payload in batch.batch["payload"].to_pylist()]
                    idle_since = None
                elif self._writing.is_set():
                    idle_since = idle_since or time.monotonic()


def again(action: Callable[[], Any]) -> Any:
    """Do something again as long as Kafka is away."""
    give_up = time.monotonic() + 100
    while True:
        try:
            return action()
        except KafkaAway:
            if time.monotonic() > give_up:
                raise


@pytest.mark.usefixtures("short_requests")
def test_a_broker_that_is_away_at_the_start_is_said_so_in_one_error(tmp_path: Path, capfd: Any) -> None:
    with connect(tmp_path / "home", log="kafka://127.0.0.1:1", controller=False) as home:
        home.local._connections.to("127.0.0.1:1").cluster._patience = 1.0
        began = time.monotonic()
        with pytest.raises(KafkaAway) as refusal:
            home.create_stream("s")
        assert time.monotonic() - began < 20
        assert "127.0.0.1:1" in str(refusal.value)
        assert home.streams() == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("kafka://", "invalid-option"),
        ("redis://x", "invalid-option"),
        ("kafka://user:secret@host:1", "invalid-option"),
        ("kafka://host:1/topic", "invalid-option"),
    ],
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, log: str, code: str) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        connect(tmp_path / "home", log=log)
    assert refusal.value.code == code
    assert "secret" not in str(refusal.value)
    assert not (tmp_path / "home").exists()


def test_a_service_keeps_the_events_of_new_streams_in_kafka(broker: KafkaBroker, tmp_path: Path) -> None:
    serving = Serving(str(tmp_path / "home"), "--log", broker.url)
    try:
        with connect(serving.url) as home:
            stream = home.create_stream("s", segments=2)
            with stream.writer("w") as writer:
                writer.write_batch(list(range(10)), key=[str(number) for number in range(10)])
                writer.note_time(5)
            stream.split(0)
            assert sorted(numbers_in(stream)) == list(range(10))
            assert stream.await_mark(5).lower == 5
        with connect(tmp_path / "home", controller=False) as local:
            assert local.stream("s").info.log is not None
        assert serving.end() == 0
    finally:
        serving.close()
