"""A network between clients and a broker that can be cut, narrow or slow, and that can lose an answer."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from floodmark.testing import KafkaBroker

END_OF_TRANSACTION = 26
"""The number of the request with which a transaction is committed or aborted."""


class BadNetwork:
    """Passes bytes on between clients and a broker, until it is told otherwise."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._unheard: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._passes = threading.Event()
        self._passes.set()
        self._room: int | None = None
        self._loses = False
        self._target = ("127.0.0.1", 0)
        self.lost = threading.Event()
        """Set when the answer to the end of a transaction is kept from its client."""

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def lead_to(self, servers: str) -> None:
        """Begin to pass on what clients say to a broker."""
        host, _, port = servers.partition(":")
        self._target = (host, int(port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections; new ones can be made."""
        with self._lock:
            found, self._open = self._open, set()
        for one in found:
            _close(one)

    def stall(self) -> None:
        """Pass nothing on, and close nothing."""
        self._passes.clear()

    def go_on(self) -> None:
        """Pass everything on again."""
        self._room, self._loses = None, False
        self._passes.set()

    def let_through(self, size: int) -> None:
        """Let so many bytes through to the broker, and then close what they came on."""
        self._room = size

    def lose_answer(self) -> None:
        """Bring the next end of a transaction to the broker, and let nobody hear the answer.

        Only on its connection: the broker asks itself things through this network too, and would wait for them.
        """
        self.lost.clear()
        self._loses = True

    def close(self) -> None:
        self._listener.close()
        self._passes.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._target, timeout=5)
                broker.settimeout(None)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                _close(client)
                continue
            with self._lock:
                self._open |= {client, broker}
            for source, sink, is_request in ((client, broker, True), (broker, client, False)):
                threading.Thread(target=self._pass, args=(source, sink, is_request), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while chunk := (self._request(source) if is_request else source.recv(65_536)):
                self._passes.wait()
                if is_request:
                    chunk = self._within_room(chunk, source, sink)
                elif sink in self._unheard:
                    continue
                if is_request and self._loses and chunk[4:6] == struct.pack(">h", END_OF_TRANSACTION):
                    self._loses = False
                    self._unheard.add(source)
                    self.lost.set()
                sink.sendall(chunk)
        _close(source)
        _close(sink)

    def _within_room(self, chunk: bytes, source: socket.socket, sink: socket.socket) -> bytes:
        if self._room is None:
            return chunk
        allowed, self._room = chunk[: self._room], max(0, self._room - len(chunk))
        if len(allowed) < len(chunk):
            sink.sendall(allowed)
            raise OSError("there is no room left")
        return chunk

    @staticmethod
    def _request(source: socket.socket) -> bytes:
        """Return one request: its length, and so many bytes."""
        length = _exactly(source, 4)
        return length + _exactly(source, struct.unpack(">i", length)[0]) if length else b""


@contextmanager
def broker_behind_a_bad_network() -> Iterator[tuple[KafkaBroker, BadNetwork]]:
    """Give a broker whose clients all come through a network that can fail."""
    network = BadNetwork()
    try:
        with KafkaBroker({"advertised.listeners": f"CLIENT://127.0.0.1:{network.port}"}) as broker:
            network.lead_to(broker.servers)
            yield broker, network
    finally:
        network.close()


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            return b""
        found += more
    return found


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
