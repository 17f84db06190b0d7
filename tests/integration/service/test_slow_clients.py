"""Clients that stop half-way, or send or read too slowly, lose their connections and keep nobody out."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from floodmark.control import Tokens
from floodmark.service import Service, ServiceLimits, Tls
from floodmark.streams import StreamHome, connect
from support.service.service_tools import CERTIFICATES, JSON, ask
from support.waiting import wait_until

PATIENT = ServiceLimits(
    token_seconds=0,
    max_connections=12,
    header_seconds=60,
    body_seconds=60,
    send_seconds=60,
    keep_alive_seconds=60,
    close_seconds=60,
    stop_seconds=1,
    max_request=32 * 2**20,
)
"""No client is too slow for these limits, even on a busy machine; each test shortens what it is about."""
SHORT = 0.3
HEAD = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass
class Running:
    """A service whose home has a token, and its connections."""

    home: StreamHome
    service: Service
    token: str

    @property
    def connections(self) -> set[Any]:
        assert self.service._listener is not None
        return self.service._listener._server.server_state.connections

    @property
    def bearer(self) -> str:
        return f"Authorization: Bearer {self.token}\r\n"

    @contextmanager
    def raw(self, *, buffer: int | None = None) -> Iterator[socket.socket]:
        """Open a connection; `buffer` limits the bytes that it takes without reading them."""
        host, port = urlsplit(self.service.url).netloc.split(":")
        with socket.socket() as connection:
            if buffer is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            connection.settimeout(20)
            connection.connect((host, int(port)))
            yield connection

    def is_answering(self) -> bool:
        return ask(self.service.url, "GET", "/v1/health", None, {}).status == 200


@pytest.fixture
def limits() -> ServiceLimits:
    return PATIENT


@contextmanager
def serving(store: str, limits: ServiceLimits, tls: Tls | None = None) -> Iterator[Running]:
    with connect(store, controller=False) as home:
        token = Tokens(home.home).create("admin")[1]
        with Service(home, limits=limits, tls=tls) as service:
            yield Running(home, service, token)


@pytest.fixture
def running(store: str, limits: ServiceLimits) -> Iterator[Running]:
    with serving(store, limits) as running:
        yield running


def read_all(connection: socket.socket) -> bytes:
    """Read until the service closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionError:
        pass
    return received


def post(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} {HEAD}".strip(), *headers, "", ""]).encode()


UNFINISHED = {
    "no token": (post("/v1/streams", f"Content-Type: {JSON}", "Content-Length: 100"), 401),
    "no token, events": (post("/v1/streams/5/events", f"Content-Type: {ARROW}", "Content-Length: 9000"), 401),
    "no token, chunks": (post("/v1/streams", f"Content-Type: {JSON}", "Transfer-Encoding: chunked") + b"5\r\n12", 401),
    "no token, a part": (post("/v1/streams", f"Content-Type: {JSON}", "Content-Length: 100") + b'{"name"', 401),
    "bad token": (post("/v1/streams", "Content-Length: 100", "Authorization: Bearer x"), 401),
    "too large": (post("/v1/streams", "Content-Length: 99999999999"), 401),
    "reads nothing": (f"GET /v1/health {HEAD}Content-Length: 100\r\n\r\n".encode(), 200),
}


@pytest.mark.parametrize("limits", [replace(PATIENT, close_seconds=SHORT)], ids=[""])
@pytest.mark.parametrize(("sent", "status"), UNFINISHED.values(), ids=UNFINISHED)
def test_an_answer_before_the_end_of_the_body_closes_the_connection(running: Running, sent: bytes, status: int) -> None:
    with running.raw() as connection:
        connection.sendall(sent)
        answer = read_all(connection)
        assert answer.startswith(f"HTTP/1.1 {status}".encode())
        assert b"\r\nconnection: close\r\n" in answer.lower()
        with suppress(ConnectionError):
            connection.sendall(b"1")
        wait_until(lambda: not running.connections)


def test_an_answer_behind_the_body_keeps_the_connection(running: Running) -> None:
    request = post("/v1/streams", f"Content-Type: {JSON}", "Content-Length: 2")
    with running.raw() as connection:
        for _ in range(3):
            connection.sendall(request + b"{}")
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"connection: close" not in answer.lower()


def test_a_client_that_sends_its_whole_body_first_still_reads_the_refusal(running: Running) -> None:
    body = b"x" * (24 * 2**20)
    for content_type, status in ((ARROW, 401), (JSON, 401)):
        told = ask(running.service.url, "POST", "/v1/streams/5/events", body, {"Content-Type": content_type})
        assert (told.status, told.headers["connection"]) == (status, "close")


Attack = Callable[[Running, socket.socket], None]


def nothing(running: Running, connection: socket.socket) -> None:
    """Send nothing at all."""


def half_a_head(running: Running, connection: socket.socket) -> None:
    connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")


def half_a_second_head(running: Running, connection: socket.socket) -> None:
    connection.sendall(f"GET /v1/health {HEAD}\r\nGET /v1/he".encode())


def half_a_body_without_a_token(running: Running, connection: socket.socket) -> None:
    connection.sendall(UNFINISHED["no token"][0])
    assert connection.recv(65536).startswith(b"HTTP/1.1 401")
    connection.sendall(b"1")


def half_a_body(running: Running, connection: socket.socket) -> None:
    head = post("/v1/streams", f"Content-Type: {JSON}", "Content-Length: 100", running.bearer.strip())
    connection.sendall(head + b'{"name":')


def unread_answers(running: Running, connection: socket.socket) -> None:
    connection.sendall(f"GET /v1/openapi.json {HEAD}{running.bearer}\r\n".encode() * 200)


def idle(running: Running, connection: socket.socket) -> None:
    connection.sendall(f"GET /v1/health {HEAD}\r\n".encode())
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")


ATTACKS: dict[Attack, str] = {
    nothing: "header_seconds",
    half_a_head: "header_seconds",
    half_a_second_head: "header_seconds",
    half_a_body_without_a_token: "close_seconds",
    half_a_body: "body_seconds",
    unread_answers: "send_seconds",
    idle: "keep_alive_seconds",
}
"""Each attack, and the limit that ends it."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_clients_that_take_all_connections_keep_nobody_out(running: Running, attack: Attack) -> None:
    with ExitStack() as opened:
        for _ in range(2 * PATIENT.max_connections):
            attack(running, opened.enter_context(running.raw(buffer=4096)))
        # The service works on what it was sent, until only the clients have something to do.
        wait_until(running.is_answering)
        for _ in range(3):
            assert running.is_answering()
        assert len(running.connections) <= PATIENT.max_connections


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_client_that_stops_half_way_loses_its_connection(store: str, attack: Attack) -> None:
    # Whole seconds: uvicorn takes no parts of one for the time that a connection may be idle.
    limits = replace(PATIENT, **{ATTACKS[attack]: 1, "close_seconds": 1})
    with serving(store, limits) as running, running.raw(buffer=4096) as connection:
        with suppress(ConnectionError):
            attack(running, connection)
        if attack is not unread_answers:
            read_all(connection)
        wait_until(lambda: not running.connections)
        assert running.is_answering()


@pytest.mark.parametrize("limits", [replace(PATIENT, body_seconds=SHORT)], ids=[""])
def test_a_body_that_trickles_in_is_given_up(running: Running) -> None:
    head = post("/v1/streams", f"Content-Type: {JSON}", "Content-Length: 100000", running.bearer.strip())
    with running.raw() as connection:
        connection.sendall(head + b'{"name":"')
        connection.settimeout(0.02)
        answer = b""
        for _ in range(1_000):
            connection.sendall(b"x")
            with suppress(TimeoutError):
                answer = connection.recv(65536)
            if answer:
                break
        assert answer.startswith(b"HTTP/1.1 408")


SIZE = 24 * 2**20
"""More than the buffers of a connection take."""


@pytest.fixture
def events(running: Running) -> str:
    """Give the path of events that fill the buffers of a connection."""
    stream = running.home.create_stream("s")
    with stream.writer() as writer:
        for _ in range(SIZE // 2**20):
            writer.write(b"x" * 2**20)
    return f"/v1/streams/{stream.info.id}/segments/0/events?start=0&end={SIZE}"


@pytest.mark.parametrize("limits", [replace(PATIENT, send_seconds=SHORT)], ids=[""])
@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
def test_a_client_that_does_not_read_its_answer_loses_its_connection(running: Running, events: str, more: str) -> None:
    with running.raw(buffer=4096) as connection:
        connection.sendall(f"GET {events} {HEAD}{running.bearer}{more}\r\n".encode())
        with suppress(ConnectionError):
            assert connection.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: not running.connections)
        assert len(read_all(connection)) < SIZE


@pytest.mark.full
@pytest.mark.parametrize("limits", [replace(PATIENT, send_seconds=3, min_rate=1)], ids=[""])
def test_a_client_that_reads_slowly_but_steadily_gets_its_whole_answer(running: Running, events: str) -> None:
    with running.raw(buffer=65536) as connection:
        connection.sendall(f"GET {events} {HEAD}{running.bearer}Connection: close\r\n\r\n".encode())
        received = 0
        while piece := connection.recv(65536):
            received += len(piece)
            time.sleep(0.02)
    assert received > SIZE


def test_with_tls_an_answer_before_the_end_of_the_body_closes_the_connection_too(store: str) -> None:
    tls = Tls(CERTIFICATES / "good.pem", CERTIFICATES / "good.key")
    trusted = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    with (
        serving(store, replace(PATIENT, close_seconds=SHORT), tls) as running,
        running.raw() as connection,
        trusted.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
    ):
        with suppress(ConnectionError, ssl.SSLError):
            half_a_body_without_a_token(running, secured)
        wait_until(lambda: not running.connections)
