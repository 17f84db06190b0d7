"""Several services of one home: one may end, hang, refuse or lie, and the work goes on as long as one is left."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import AnswerInvalid, HomeClosed, InvalidOption, ServiceUnavailable, ServiceUntrusted
from floodmark.service import Service, ServiceLimits, Tls
from floodmark.streams import StreamHome, connect
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.remote.backend import open_remote
from support.service.service_tools import CERTIFICATES, Served
from support.streams.reading import everything
from support.waiting import wait_until


def remote(*urls: str, budget: float = 10.0, **options: Any) -> StreamHome:
    return StreamHome(open_remote(",".join(urls), budget=budget, **options))


@contextmanager
def foreign(status: int, body: bytes, kind: str = "text/html") -> Iterator[str]:
    """Give the address of something that answers everything with the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def pair(store: str) -> Iterator[list[Service]]:
    """Give two services of one home, which have nothing else in common."""
    with ExitStack() as stack:
        homes = [stack.enter_context(connect(store, controller=False)) for _ in range(2)]
        yield [stack.enter_context(Service(home)) for home in homes]


def test_a_writer_and_a_reader_go_on_when_a_service_ends(pair: list[Service]) -> None:
    urls = [service.url for service in pair]
    # When it starts again it is where it was.
    pair[0]._port = int(urls[0].rpartition(":")[2])
    with remote(*urls) as home:
        stream = home.create_stream("s", segments=2)
        with stream.writer("w") as writer:
            for number in range(30):
                writer.write(number, key=str(number))
                assert writer.note_time(number).value == "accepted"
                if number == 10:
                    pair[0].stop()
                if number == 20:
                    pair[0].start()
                    pair[1].stop()
        assert sorted(everything(stream)) == list(range(30))


def test_a_read_goes_on_where_it_was_when_its_service_ends(pair: list[Service]) -> None:
    with remote(*(service.url for service in pair)) as home:
        stream = home.create_stream("s", "id BIGINT")
        with stream.writer() as writer:
            for start in range(0, 2_000_000, 50_000):
                writer.write_batch(pa.table({"id": range(start, start + 50_000)}))
        found: list[int] = []
        current = home._backend._client._current  # type: ignore[attr-defined]
        stopping = None
        for chunk in stream.read(0):
            found.append(chunk.batch["id"][0].as_py())
            assert chunk.first == found[-1]
            if stopping is None:
                service = pair[current]
                service._limits = ServiceLimits(stop_seconds=0)
                service._listener._server.config.timeout_graceful_shutdown = 0
                stopping = threading.Thread(target=service.stop)
                stopping.start()
                time.sleep(0.3)
        assert stopping is not None
        stopping.join()
        assert found == sorted(set(found))
        assert chunk.end == 2_000_000


def test_when_no_service_answers_the_caller_is_told_which_were_tried(pair: list[Service]) -> None:
    urls = [service.url for service in pair]
    for service in pair:
        service.stop()
    with remote(*urls, budget=0.5) as home:
        start = time.monotonic()
        with pytest.raises(ServiceUnavailable) as refusal:
            home.streams()
        assert 0.2 < time.monotonic() - start < 3
        assert set(refusal.value.fields["tried"]) == set(urls)  # type: ignore[call-overload]
        assert all(url in str(refusal.value) for url in urls)


def test_a_service_that_hangs_is_left_for_the_next(pair: list[Service], monkeypatch: pytest.MonkeyPatch) -> None:
    held, all_, hanging = threading.Event(), Catalog.all, [True]

    def hang(self: Catalog) -> Any:
        if hanging.pop() if hanging else False:
            held.wait(20)
        return all_(self)

    monkeypatch.setattr(Catalog, "all", hang)
    with remote(*(service.url for service in pair), budget=1.0) as home:
        assert home.streams() == []
    held.set()


def test_a_service_whose_store_cannot_be_used_is_left_for_the_next(pair: list[Service]) -> None:
    with remote(*(service.url for service in pair)) as home:
        home.streams()
        pair[home._backend._client._current]._home.close()  # type: ignore[attr-defined]
        assert home.streams() == []
    alone = remote(pair[0].url if pair[0]._home.home._is_closed else pair[1].url, budget=0.3)
    with alone, pytest.raises(HomeClosed):
        alone.streams()


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (404, b"no"), (500, b""), (200, b"[]"), (403, b'{"a":1}')]
)
def test_what_is_no_service_is_not_believed(status: int, body: bytes) -> None:
    with foreign(status, body) as url, remote(url, budget=1) as home, pytest.raises(AnswerInvalid):
        home.stream("s")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_a_service_behind_it_is_left_for_the_next(pair: list[Service], status: int) -> None:
    with foreign(status, b"<html>bad gateway</html>") as url, remote(url, pair[0].url) as home:
        for _ in range(4):
            home._backend._client._current = 0  # type: ignore[attr-defined]
            assert home.streams() == []
    with foreign(status, b"<html>") as url, remote(url, budget=0.3) as home, pytest.raises(AnswerInvalid):
        home.streams()


def test_nothing_is_followed_to_another_address(pair: list[Service]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"{pair[0].url}/v1/streams")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    with remote(f"http://127.0.0.1:{server.server_address[1]}", budget=1) as home, pytest.raises(AnswerInvalid):
        home.streams()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_home_that_was_closed_says_so(pair: list[Service]) -> None:
    home = remote(pair[0].url)
    home.streams()
    home.close()
    home.close()
    with pytest.raises(HomeClosed):
        home.streams()


def test_a_writer_that_notes_the_clock_goes_on_when_its_service_is_back(pair: list[Service]) -> None:
    url = pair[0].url
    pair[0]._port = int(url.rpartition(":")[2])
    with remote(url, budget=0.2) as home:
        stream = home.create_stream("s")
        local = pair[1]._home.stream("s")

        def noted() -> int:
            return local.why().writers[0].time or 0

        with stream.writer("w", automatic="20 milliseconds") as writer:
            wait_until(lambda: noted() > 0)
            pair[0].stop()
            before = noted()
            time.sleep(0.6)
            assert noted() == before
            pair[0].start()
            wait_until(lambda: noted() > before + 600_000)
            writer.write(1)
            writer.flush()


def test_requests_under_way_come_to_their_end_when_a_service_stops(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, held, create = threading.Event(), threading.Event(), Catalog.create

    def slow(self: Catalog, *args: Any, **options: Any) -> Any:
        begun.set()
        held.wait(10)
        return create(self, *args, **options)

    monkeypatch.setattr(Catalog, "create", slow)
    with connect(store, controller=False) as home:
        service = Service(home)
        service.start()
        served, told = Served(home, service.url), []
        asking = threading.Thread(target=lambda: told.append(served.ask("POST", "/v1/streams", {"name": "s"})))
        asking.start()
        assert begun.wait(10)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        time.sleep(0.3)
        with pytest.raises(ConnectionError):
            served.ask("GET", "/v1/health")
        held.set()
        asking.join(10)
        stopping.join(10)
        assert [one.status for one in told] == [201]
        assert [stream.name for stream in home.streams()] == ["s"]


# -- certificates


@pytest.fixture
def secure(store: str, request: pytest.FixtureRequest) -> Iterator[Service]:
    name = getattr(request, "param", "good")
    tls = Tls(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key")
    with connect(store, controller=False) as home, Service(home, tls=tls) as service:
        yield service


def test_a_service_with_a_certificate_is_used_like_any_other(secure: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secure.url.startswith("https://")
    with connect(secure.url, ca=CERTIFICATES / "ca.pem") as home:
        stream = home.create_stream("s")
        with stream.writer("w") as writer:
            writer.write(1)
            assert writer.note_time(5).value == "accepted"
        assert everything(stream) == [1]
    monkeypatch.setenv("FLOODMARK_CA", str(CERTIFICATES / "ca.pem"))
    with connect(secure.url) as home:
        assert len(home.streams()) == 1


@pytest.mark.parametrize(
    ("secure", "ca"),
    [("expired", "ca.pem"), ("other", "ca.pem"), ("good", "other.pem"), ("good", None)],
    indirect=["secure"],
)
def test_a_certificate_that_is_not_to_be_trusted_is_refused_at_once(secure: Service, ca: str | None) -> None:
    start = time.monotonic()
    with connect(secure.url, ca=None if ca is None else CERTIFICATES / ca) as home, pytest.raises(ServiceUntrusted):
        home.streams()
    assert time.monotonic() - start < 5


def test_a_certificate_or_a_file_that_cannot_be_read_is_refused(store: str) -> None:
    with connect(store, controller=False) as home:
        for certificate, key in (("good", "other"), ("nothing", "good"), ("good", "nothing")):
            tls = Tls(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{key}.key")
            with pytest.raises(InvalidOption):
                Service(home, tls=tls).start()
    for ca in ("nothing.pem", "good.key"):
        with pytest.raises(InvalidOption), connect("https://127.0.0.1:1", ca=CERTIFICATES / ca) as remote_home:
            remote_home.streams()
