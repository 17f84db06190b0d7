"""The speed of the HTTP service: one process on one core, and on another one who asks."""

import json
import multiprocessing
import os
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from figures import Figure
from floodmark.streams import Stream, connect

CONNECTIONS = 64
SECONDS = 4.0
EVENTS = 1_000_000
BATCH = 10_000
SCHEMA = "id BIGINT, customer STRING, at TIMESTAMP, amount DOUBLE"
CONTEXT = multiprocessing.get_context("spawn")


def measure_service() -> Iterator[Figure]:
    """Yield marks, events read and events written in a second, through HTTP."""
    for kind in ("without a token", "with a token"):
        with tempfile.TemporaryDirectory() as directory, _served(Path(directory), kind) as (url, token):
            yield Figure(f"HTTP: marks, one core, {kind}", _marks(url, token) / 1e3, "k/s", at_least=3)
            if token is None:
                yield from _events(url)


def _serve(path: str, address: Any) -> None:
    from floodmark.service import serve

    _pin(0)
    serve(path, port=0, on_start=address.put)


@contextmanager
def _served(path: Path, kind: str) -> Iterator[tuple[str, str | None]]:
    from floodmark.control import Home, Tokens

    token = None
    if kind == "with a token":
        with Home.open(path) as home:
            token = Tokens(home).create("admin")[1]
    address = CONTEXT.Queue()
    process = CONTEXT.Process(target=_serve, args=(str(path), address), daemon=True)
    process.start()
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        _pin(1)
        yield address.get(timeout=60), token
    finally:
        process.terminate()
        process.join()
        if before:
            os.sched_setaffinity(0, before)


def _pin(core: int) -> None:
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {core})


def _marks(url: str, token: str | None) -> float:
    """Return how many marks a second are acknowledged, over plain sockets: a client library would be the slow part."""
    with connect(url, token=token) as home:
        stream = home.create_stream("s", segments=4)
        writers = [stream.writer(f"w{number}") for number in range(CONNECTIONS)]
        askers = [_Asker(url, token, stream.info.id, writer.id or "", writer.instance) for writer in writers]
        count = _ask(askers, SECONDS)
        marked = {view.writer: view.time for view in stream.why().writers}
        assert all(marked[asker.writer] == asker.acknowledged for asker in askers), "acknowledged, and not there"
        return count / SECONDS


class _Asker:
    """A connection on which one mark follows the other."""

    def __init__(self, url: str, token: str | None, stream: int, writer: str, instance: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._head = (
            f"POST /v1/streams/{stream}/marks?name=s HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self.writer = writer
        self._instance = instance
        self._time = 0
        self._heard = b""
        self.acknowledged: int | None = None

    def ask(self) -> None:
        self._time += 1
        mark = {"writer": self.writer, "instance": self._instance, "key": "time", "time": self._time}
        body = json.dumps({**mark, "position": {"0": self._time, "1": self._time, "2": self._time}})
        self.socket.sendall(f"{self._head}{len(body)}\r\n\r\n{body}".encode())

    def hear(self) -> bool:
        """Take what has come; return whether it is the whole answer."""
        self._heard += self.socket.recv(65536)
        if not self._heard.endswith(b"}"):
            return False
        assert self._heard.startswith(b"HTTP/1.1 200"), self._heard
        assert self._heard.endswith(b'{"outcome":"accepted"}'), self._heard
        self._heard, self.acknowledged = b"", self._time
        return True


def _ask(askers: list[_Asker], seconds: float) -> int:
    with selectors.DefaultSelector() as selector:
        for asker in askers:
            selector.register(asker.socket, selectors.EVENT_READ, asker)
            asker.ask()
        count, waiting = 0, len(askers)
        end = time.perf_counter() + seconds
        while waiting:
            for key, _ in selector.select():
                if not key.data.hear():
                    continue
                if time.perf_counter() < end:
                    count += 1
                    key.data.ask()
                else:
                    waiting -= 1
    for asker in askers:
        asker.socket.close()
    return count


def _events(url: str) -> Iterator[Figure]:
    number = np.arange(EVENTS)
    table = pa.table(
        {
            "id": number,
            "customer": pa.array(number % 10_000).cast(pa.string()),
            "at": pa.array(number, pa.timestamp("us", "UTC")),
            "amount": np.random.default_rng(1).random(EVENTS),
        }
    )
    with connect(url) as home:
        stream = home.create_stream("events", SCHEMA, segments=4)
        start = time.perf_counter()
        with stream.writer("w") as writer:
            for place in range(0, EVENTS, BATCH):
                writer.write_batch(table.slice(place, BATCH), key="customer")
                writer.flush()
        yield Figure("HTTP: events written in batches of 10k", EVENTS / (time.perf_counter() - start) / 1e3, "k/s")
        best = min(_read(stream) for _ in range(3))
        yield Figure("HTTP: events read as Arrow", EVENTS / best / 1e3, "k/s", at_least=300)


def _read(stream: Stream) -> float:
    start = time.perf_counter()
    rows = sum(chunk.batch.num_rows for segment in stream.layout.current for chunk in stream.read(segment.id))
    assert rows == EVENTS
    return time.perf_counter() - start


if __name__ == "__main__":
    for figure in measure_service():
        print(figure.line(), flush=True)
