"""What tests of the service share: a service, requests of any form to it, and a line that loses answers."""

import http.client
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from floodmark.control import Home, Scope, Tokens
from floodmark.service import ServiceLimits
from floodmark.streams import StreamHome, connect
from floodmark.streams.remote.backend import open_remote
from support.streams.stream_fixtures import Exchange

CERTIFICATES = Path(__file__).with_name("certificates")
JSON = "application/json"


@dataclass(frozen=True)
class Told:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of the error that was answered, if it was one."""
        return self.value.get("code") if self.status >= 400 else None


@dataclass
class Served:
    """A home, and the service before it."""

    home: StreamHome
    url: str
    opened: ExitStack = field(default_factory=ExitStack)

    def connect(self, token: str | None = None, budget: float = 10.0) -> StreamHome:
        """Return the home over the service."""
        return self.opened.enter_context(StreamHome(open_remote(self.url, token=token, budget=budget)))

    def token(self, scope: Scope, *prefixes: str, ttl: int | None = None) -> str:
        """Make a token of the home."""
        return Tokens(self.home.home).create(scope, prefixes or ("",), ttl=ttl)[1]

    def ask(
        self,
        method: str,
        path: str,
        value: Any = None,
        *,
        token: str | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Told:
        """Send a request as it is."""
        sent = body if value is None else json.dumps(value)
        more = {} if sent is None else {"Content-Type": JSON}
        if token is not None:
            more["Authorization"] = f"Bearer {token}"
        return ask(self.url, method, path, sent, {**more, **(headers or {})})


def ask(url: str, method: str, path: str, body: Any, headers: dict[str, str]) -> Told:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Told(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="session")
def exchange() -> Iterator[Exchange]:
    exchange = Exchange()
    yield exchange
    exchange.stop()


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Home.open(tmp_path_factory.mktemp("new")) as home:
        return home.path / "home.db"


@pytest.fixture
def store(new_file: Path, tmp_path: Path) -> str:
    """Give the directory of a home in which there is nothing."""
    (tmp_path / "home").mkdir()
    shutil.copy(new_file, tmp_path / "home")
    return str(tmp_path / "home")


@pytest.fixture
def limits() -> ServiceLimits:
    """Give the limits of the service. A token counts at once."""
    return ServiceLimits(token_seconds=0)


@pytest.fixture
def served(store: str, exchange: Exchange, limits: ServiceLimits) -> Iterator[Served]:
    """Give a home and its service; no token is needed as long as there is none."""
    with connect(store, controller=False) as home, exchange.serving(home, limits=limits) as url:
        served = Served(home, url)
        with served.opened:
            yield served


class LossyLine:
    """Stands between a client and a service. What `loses` says of a request is carried out, and its answer is lost."""

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url).netloc
        self.loses: Callable[[str, str], bool] = lambda method, path: False
        self.lost: list[str] = []
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                told = line._carry_out(self.command, self.path, body, dict(self.headers.items()))
                if line.loses(self.command, self.path):
                    line.lost.append(f"{self.command} {self.path}")
                    self.close_connection = True
                    return
                self.send_response(told.status)
                for name, text in told.headers.items():
                    if name not in ("transfer-encoding", "content-length", "date"):
                        self.send_header(name, text)
                self.send_header("Content-Length", str(len(told.body)))
                self.end_headers()
                self.wfile.write(told.body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def lose(self, times: int, part: str = "") -> None:
        """Lose the next answers to requests whose path has this in it."""
        left = [times]

        def loses(method: str, path: str) -> bool:
            if left[0] and part in f"{method} {path}":
                left[0] -= 1
                return True
            return False

        self.loses = loses

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _carry_out(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Told:
        kept = {name: text for name, text in headers.items() if name.lower() not in ("host", "content-length")}
        return ask(f"http://{self._upstream}", method, path, body or None, kept)


@pytest.fixture
def line(served: Served) -> Iterator[LossyLine]:
    line = LossyLine(served.url)
    yield line
    line.stop()
