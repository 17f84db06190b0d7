"""Homes whose streams are in Kafka, as several processes would open them."""

import json
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from floodmark.control import Home
from floodmark.errors import KafkaAway
from floodmark.streams import Stream, StreamHome
from floodmark.streams.backend import LocalBackend
from floodmark.testing import KafkaBroker
from floodmark.testing.kafka import broker_jars, find_java

Opener = Callable[..., StreamHome]
"""Opens the same home again, as another process would."""


class Stopped(Exception):
    """A process that ends here, as if it had been killed."""


class Hook:
    """Does something, once, when a process comes to a place."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[], object]] = {}
        self.places: list[str] = []

    def at(self, place: str, action: Callable[[], object]) -> None:
        self._actions[place] = action

    def stop_at(self, place: str) -> None:
        def stop() -> None:
            raise Stopped(place)

        self.at(place, stop)

    def __call__(self, place: str) -> None:
        self.places.append(place)
        action = self._actions.pop(place, None)
        if action is not None:
            action()


def open_home(store: str, servers: str, hook: Callable[[str], None] = lambda place: None) -> StreamHome:
    return StreamHome(LocalBackend(Home.open(store), log=servers, failpoint=hook), controller=False)


def topic_of(stream: Stream) -> str:
    assert stream.info.log is not None
    return stream.info.log.topic


def numbers_in(stream: Stream) -> list[int]:
    """Return the events, which are numbers, segments in the order in which they are read: predecessors first."""
    return [
        json.loads(payload)
        for segment in stream.layout.segments
        for chunk in stream.read(segment.id)
        for payload in chunk.batch["payload"].to_pylist()
    ]


def foreign_producer(servers: str, **options: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return Producer({"bootstrap.servers": servers, "log_level": 0, **named})


def console(tool: str, *arguments: str, given: str | None = None) -> str:
    """Run one of Kafka's own programs, and return what it prints."""
    command = [find_java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{broker_jars()}/*", tool, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def before_sending(home: StreamHome, stream: Stream, action: Callable[[], object]) -> None:
    """Let something happen once, after the next flush was routed and before it is sent."""
    connection, _ = home.local.kafka_log._connections.of(stream.info)
    send = connection.sender.send

    def late(topic: str, records: Any) -> Any:
        connection.sender.send = send  # type: ignore[method-assign]
        action()
        return send(topic, records)

    connection.sender.send = late  # type: ignore[method-assign]


def uncommitted_end(home: StreamHome, name: str, segment: int = 0) -> int:
    stream = home.stream(name)
    connection, topic = home.local.kafka_log._connections.of(stream.info)
    return connection.cluster.ends(topic, [segment], committed=False)[segment]


def write_by_hand(broker: KafkaBroker, stream: Stream, value: bytes | None, **more: Any) -> None:
    """Write a record to the first partition of a stream, past all writers."""
    producer = foreign_producer(broker.servers)
    producer.produce(topic_of(stream), value, partition=0, **more)
    assert producer.flush(10) == 0


def away_once(home: StreamHome, stream: Stream) -> None:
    """Let Kafka be away for the next one who waits for records to arrive."""
    connection, _ = home.local.kafka_log._connections.of(stream.info)
    arrived = connection.await_delivery

    def away(topic: str, delivery: Any) -> Any:
        connection.await_delivery = arrived  # type: ignore[method-assign]
        raise KafkaAway("Kafka is away.", rule="It is asked again.", remedy="Wait.")

    connection.await_delivery = away  # type: ignore[method-assign]


CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
