"""A REST service on loopback: it answers as a script says, and remembers who asked for what, and when."""

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float
    """In seconds of the service's own clock."""
    port: int
    """Of who asks: the same for all requests of a connection."""


@dataclass
class Says:
    """An answer, and what is wrong with it."""

    body: Any = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    """After how many bytes of the body the connection breaks."""
    chunked: bool = False
    gzipped: bool = False
    wait: float = 0.0
    """Seconds before the answer."""
    trickle: float = 0.0
    """Seconds between single bytes."""
    drop: bool = False
    """The connection is closed without any answer."""


Script = Callable[[Asked], Says | Any]


class RestService:
    """The service: `asked` is what came."""

    def __init__(self, script: Script) -> None:
        self.asked: list[Asked] = []
        self._lock = Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                parts = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                body, at, port = self.rfile.read(length), time.monotonic(), self.client_address[1]
                asked = Asked(self.command, parts.path, query, dict(self.headers), body, at, port)
                with service._lock:
                    service.asked.append(asked)
                    says = script(asked)
                _send(self, says if isinstance(says, Says) else Says(says))

            do_POST = do_GET  # noqa: N815 - the name that the base class looks for

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 32

            def handle_error(self, *args: object) -> None:
                """Say nothing of clients that hang up."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def rest_service(script: Script) -> Iterator[RestService]:
    service = RestService(script)
    try:
        yield service
    finally:
        service.close()


def in_turn(*answers: Any) -> Script:
    """Give these answers one after the other, and the last for ever."""
    left = list(answers)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _send(handler: BaseHTTPRequestHandler, says: Says) -> None:
    time.sleep(says.wait)
    if says.drop:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return
    body = says.body if isinstance(says.body, bytes) else json.dumps(says.body).encode()
    if says.gzipped:
        body = gzip.compress(body)
    handler.send_response_only(says.status, None)
    for name, value in says.headers.items():
        handler.send_header(name, value)
    if says.gzipped:
        handler.send_header("Content-Encoding", "gzip")
    if says.status == 204:
        handler.end_headers()
        return
    if says.chunked:
        handler.send_header("Transfer-Encoding", "chunked")
    else:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if says.chunked:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    if says.cut_at is not None:
        handler.wfile.write(body[: says.cut_at])
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return
    if says.trickle:
        for n in range(len(body)):
            handler.wfile.write(body[n : n + 1])
            handler.wfile.flush()
            time.sleep(says.trickle)
        return
    handler.wfile.write(body)
