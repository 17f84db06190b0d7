"""What the processes of the tests of streams do. They share nothing but the home, and some of them are killed."""

import multiprocessing
import time
from typing import Any

from floodmark.streams import Controller, Stream, connect
from floodmark.streams.local import transactions

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["floodmark.streams", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"])

KEYS = [f"key-{number}" for number in range(7)]


def control(location: str, name: str, is_up: Any) -> None:
    """Look after watermarks until killed."""
    with connect(location, controller=False) as home:
        Controller(home, name=name, ttl="1 second").start()
        hang(is_up)


def write_on(location: str, name: str, events: int, batch: int) -> None:
    """Write the events that are missing, up to a number, a few a flush; each has the next number of its writer."""
    with connect(location, controller=False) as home, home.stream("s").writer(name) as writer:
        for number in range(writer.events_written, events):
            writer.write([name, KEYS[number % 7], number], key=KEYS[number % 7])
            if number % batch == 0:
                writer.flush()


def write_until(location: str, name: str, enough: Any, written: Any) -> None:
    """Write, a few a flush, until it is enough, and tell how many events were acknowledged."""
    with connect(location, controller=False) as home, home.stream("s").writer(name) as writer:
        number = 0
        while not enough.is_set():
            for _ in range(9):
                writer.write([name, KEYS[number % 7], number], key=KEYS[number % 7])
                number += 1
            writer.flush()
            # In SQLite who has waited for long looks less and less often whether it is its turn.
            time.sleep(0.003)
        written.put((name, writer.events_written))


def flush_and_hang(location: str, has_flushed: Any) -> None:
    """Come to between the flush and the mark of note_time."""
    with connect(location, controller=False) as home:
        writer = home.stream("s").writer("w")
        writer.write_batch([["w", key, number] for number, key in enumerate(KEYS[:5])], key=KEYS[:5])
        registry: Any = type(writer._backend.registry)
        registry.note = lambda *_: hang(has_flushed)
        writer.note_time(100)


def commit_and_hang(location: str, has_committed: Any) -> None:
    """Come to between a commit and its mark."""
    with connect(location, controller=False) as home:
        writer = home.stream("s").transactional_writer("w")
        transaction = writer.begin()
        transaction.write_batch(range(5))
        module: Any = transactions
        module.note_for_writer = lambda *_: hang(has_committed)
        transaction.commit(time=100)


def hang(reached: Any) -> None:
    """Say that the place was reached, and never go on."""
    reached.set()
    while True:
        time.sleep(60)


def start(target: Any, *args: Any) -> Any:
    """Start a process, which ends with the tests if nobody ends it before."""
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def lowers(stream: Stream) -> list[int]:
    return [entry.lower for entry in stream.marks() if entry.kind.value == "watermark" and entry.lower is not None]
