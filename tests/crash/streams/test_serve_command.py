"""`floodmark serve` in a process of its own, from its start to its end."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from floodmark.cli import main
from floodmark.control import Home, Leases, Members, Tokens
from floodmark.errors import TokenMissing
from floodmark.streams import connect
from support.service.service_processes import Serving
from support.service.service_tools import CERTIFICATES
from support.waiting import wait_until


@pytest.fixture
def serving(store: str) -> Iterator[Serving]:
    serving = Serving(store)
    yield serving
    serving.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_serves_looks_after_watermarks_and_ends_well(serving: Serving, store: str, number: int) -> None:
    with connect(serving.url) as home:
        stream = home.create_stream("s")
        with stream.writer("w") as writer:
            writer.write(1)
            writer.note_time(5)
            assert stream.await_mark(5).lower == 5
    with Home.open(store) as home:
        assert len(Leases(home).held()) == 32
    started = time.monotonic()
    assert serving.end(number) == 0
    assert time.monotonic() - started < 10
    with Home.open(store) as home:
        assert (Leases(home).held(), Members(home).alive()) == ((), ())
    assert "Traceback" not in serving.said()


def test_a_service_that_is_told_to_end_finishes_what_is_under_way(serving: Serving, store: str) -> None:
    url = serving.url
    with connect(store, controller=False) as local, connect(url) as home:
        local.create_stream("s")
        stream = home.stream("s")
        writer = stream.writer("w")
        outcomes: list[Any] = []

        def write() -> None:
            for number in range(2_000):
                writer.write(number)
                outcomes.append(writer.note_time(number).value)

        def write_all() -> None:
            try:
                write()
            except Exception as error:
                outcomes.append(error)

        thread = threading.Thread(target=write_all, daemon=True)
        thread.start()
        wait_until(lambda: len(outcomes) > 20)
        home._backend._client._budget = 1.0  # type: ignore[attr-defined]
        assert serving.end() == 0
        thread.join(20)
        accepted = outcomes.count("accepted")
        assert 20 < accepted < 2_000
        (view,) = local.stream("s").why().writers
        assert view.time in (accepted - 1, accepted)
        assert local.stream("s").tail()[0] in (accepted, accepted + 1)


def test_a_service_with_a_token_and_a_certificate(store: str) -> None:
    with Home.open(store) as home:
        token = Tokens(home).create("admin")[1]
    options = ("--tls-cert", str(CERTIFICATES / "good.pem"), "--tls-key", str(CERTIFICATES / "good.key"))
    serving = Serving(store, *options, "--max-request", "1 MiB")
    try:
        url = serving.url
        assert url.startswith("https://127.0.0.1:")
        with connect(url, token=token, ca=CERTIFICATES / "ca.pem") as home:
            assert home.streams() == []
        with connect(url, ca=CERTIFICATES / "ca.pem") as home, pytest.raises(TokenMissing):
            home.streams()
        assert serving.end() == 0
        assert token[-64:] not in serving.said()
    finally:
        serving.close()


def refused(options: list[str]) -> int:
    """Return what `floodmark serve` exits with; should it serve after all, it is told to end."""
    timer = threading.Timer(20, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        return main(["serve", *options])
    finally:
        timer.cancel()


def test_a_port_in_use_is_refused(serving: Serving, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = serving.url.rpartition(":")[2]
    assert refused(["--home", store, "--port", port]) == 1
    assert "[service-not-started]" in capsys.readouterr().err
