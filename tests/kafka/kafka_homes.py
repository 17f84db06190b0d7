"""Homes whose streams are in Kafka, as several processes would open them."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from floodmark.control import Home
from floodmark.streams import Stream, StreamHome
from floodmark.streams._local import LocalBackend
from floodmark.testing._kafka_files import broker_jars, java


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
    command = [java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{broker_jars()}/*", tool, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
