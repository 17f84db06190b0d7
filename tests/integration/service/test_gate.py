"""Who may come in, and for what: every route needs its scope in the streams it is about, and nothing tells a secret."""

import logging
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from floodmark.control import Home, Tokens
from floodmark.errors import (
    FloodmarkError,
    NotAllowed,
    TokenExpired,
    TokenMissing,
    TokenRefused,
    TokensNeeded,
    UnknownStream,
)
from floodmark.service import Service, ServiceLimits, create_app
from floodmark.service import server as _service
from floodmark.streams import StreamHome, connect
from support.service.routes import FOR_NO_STREAM, LOWER, MARK, OPEN, REF, ROUTES, WANTED, Shop
from support.service.service_tools import Served
from support.streams.reading import code_of
from support.streams.stream_fixtures import Exchange
from support.waiting import wait_until


def test_every_route_is_in_the_table(served: Served) -> None:
    paths = create_app(served.home).openapi()["paths"]
    found = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert found == {*ROUTES, *OPEN}


@pytest.mark.parametrize("name", ROUTES)
def test_no_request_is_carried_out_without_the_scope_and_the_prefix_it_needs(shop: Shop, name: str) -> None:
    route = ROUTES[name]
    before = shop.contents()
    refused: dict[str | None, tuple[int, str]] = {None: (401, "token-missing")}
    lower = LOWER[route.scope]
    good = shop.served.token(route.scope, "bank", "shop")
    if lower is not None:
        refused[shop.served.token(lower, "shop")] = (403, "not-allowed")
    if name not in FOR_NO_STREAM:
        refused[shop.served.token("admin", "bank", "shop/b", "shop/aa")] = (403, "not-allowed")
    for token, (status, code) in refused.items():
        told = shop.ask(name, token)
        assert (told.status, told.code) == (status, code)
        assert ("www-authenticate" in told.headers) == (status == 401)
    assert shop.contents() == before
    told = shop.ask(name, good)
    # Some ask for what is not there; they have come in all the same.
    assert told.status < 300 or told.status in (400, 404, 409), told


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.value or route.is_arrow])
def test_the_scope_is_checked_before_the_body_arrives(shop: Shop, name: str) -> None:
    refused: list[str | None] = [None]
    lower = LOWER[ROUTES[name].scope]
    if lower is not None:
        refused.append(shop.served.token(lower, "shop"))
    if "{stream}" in name:
        refused.append(shop.served.token("admin", "bank", "shop/aa"))
    shop.served.token("read")
    method, target, headers = shop.request(name)
    for token in refused:
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        lines = {**headers, **authorization, "Host": "127.0.0.1", "Content-Length": "1000000"}
        head = "".join(f"{line}: {text}\r\n" for line, text in lines.items())
        host, _, port = urlsplit(shop.served.url).netloc.partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode())
            status = 401 if token is None else 403
            assert connection.recv(65536).startswith(f"HTTP/1.1 {status}".encode())


def test_of_many_marks_one_that_is_not_allowed_keeps_all_from_being_stored(served: Served) -> None:
    mine, other = served.home.create_stream("shop/a"), served.home.create_stream("bank/a")
    for stream in (mine, other):
        stream.writer("w")
    marks = [{**MARK, "stream": stream.info.id} for stream in (mine, other)]
    told = served.ask("POST", "/v1/marks", {"marks": marks}, token=served.token("write", "shop"))
    assert (told.status, told.code) == (403, "not-allowed")
    assert mine.why().writers[0].time is None


def test_health_needs_nothing(served: Served) -> None:
    served.token("read")
    told = served.ask("GET", "/v1/health", headers={"Host": "evil.example"})
    assert (told.status, told.value) == (200, {"status": "ok"})
    assert served.ask("GET", "/v1/openapi.json").code == "token-missing"


def test_a_service_is_open_until_its_home_has_a_token(served: Served) -> None:
    home = served.connect()
    assert home.streams() == []
    text = served.token("read")
    with pytest.raises(TokenMissing):
        home.streams()
    assert served.connect(text).streams() == []


def test_a_service_that_needs_a_token_is_never_open(store: str, exchange: Exchange) -> None:
    with connect(store, controller=False) as home, exchange.serving(home, needs_token=True) as url:
        served = Served(home, url)
        assert served.ask("GET", "/v1/streams").code == "token-missing"
        assert served.ask("GET", "/v1/health").status == 200


def test_a_token_of_another_home_one_that_expired_and_what_is_none_have_their_own_errors(
    served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = served.token("read")
    with Home.open(tmp_path_factory.mktemp("other")) as other:
        foreign = Tokens(other).create("admin")[1]
    short = served.token("admin", ttl=1)
    number, secret = good.split("_")[1:]
    expected = {
        foreign: TokenRefused,
        short: TokenExpired,
        f"fmk_{number}_{foreign[-64:]}": TokenRefused,
        f"fmk_{foreign.split('_')[1]}_{secret}": TokenRefused,
        "x": TokenRefused,
    }
    for text, kind in expected.items():
        with pytest.raises(FloodmarkError) as refusal:
            served.connect(text).streams()
        assert type(refusal.value) is kind
        assert secret not in str(refusal.value) + str(refusal.value.fields)
    assert served.connect(good).streams() == []
    for header in (f"Basic {good}", good, f"Bearer{good}", "Bearer", "Bearer  "):
        told = served.ask("GET", "/v1/streams", headers={"Authorization": header})
        assert (told.status, told.code) == (401, "token-refused")


def test_a_token_that_is_revoked_is_soon_good_for_nothing(store: str, exchange: Exchange) -> None:
    limits = ServiceLimits(token_seconds=0.1)
    with connect(store, controller=False) as home, exchange.serving(home, limits=limits) as url:
        served = Served(home, url)
        text = served.token("read")
        remote = served.connect(text)
        assert remote.streams() == []
        served.token("read")
        Tokens(home.home).revoke(text.split("_")[1])
        wait_until(lambda: code_of(remote.streams) == "token-refused", 5)
        remote.close()


def test_only_streams_within_the_prefixes_are_listed_and_guessed(served: Served) -> None:
    for name in ("shop/orders", "shop/payments", "bank/orders", "shops"):
        served.home.create_stream(name)
    served.home.create_group("mine", "shop/orders")
    served.home.create_group("mixed", ["shop/orders", "bank/orders"])
    remote = served.connect(served.token("read", "shop"))
    assert [stream.name for stream in remote.streams()] == ["shop/orders", "shop/payments"]
    assert [group.name for group in remote.groups()] == ["mine"]
    with pytest.raises(UnknownStream, match=r"Did you mean 'shop/orders'\?"):
        remote.stream("shop/order")
    with pytest.raises(FloodmarkError) as refusal:
        served.connect(served.token("read", "shop/x")).stream("shop/x/rders")
    assert "shop/orders" not in str(refusal.value)
    assert code_of(lambda: remote.group("mixed")) == "not-allowed"
    assert "mixed" not in str(
        served.ask("GET", "/v1/group?name=mixe", token=served.token("read", "shop")).value["remedy"]
    )


def test_there_is_no_news_of_streams_outside_of_the_prefixes(shop: Shop) -> None:
    bank = shop.served.home.create_stream("bank").info.id
    ref = {**REF, "id": shop.served.home.group("g").state.group_id}
    for number, status in ((shop.stream, 200), (bank, 403), (12345, 200)):
        stream = {"kind": "wanted-stream", "version": 1, "stream_id": number, "of": 0, "ends": {"0": 0}, "marks": {}}
        value = {"wanted": {**WANTED, "group": ref, "streams": [stream]}, "seconds": 0}
        assert shop.served.ask("POST", "/v1/news", value, token=shop.served.token("read", "shop")).status == status


def test_the_name_in_a_request_does_not_stand_for_the_name_of_the_stream(served: Served) -> None:
    stream = served.home.create_stream("bank/orders")
    token = served.token("admin", "shop")
    told = served.ask("DELETE", f"/v1/streams/{stream.info.id}?name=shop/orders", token=token)
    assert told.code == "not-allowed"
    assert "bank" not in told.body.decode()
    assert [one.name for one in served.home.streams()] == ["bank/orders"]
    gone = served.ask("DELETE", "/v1/streams/12345?name=bank/orders", token=token)
    assert gone.code == "not-allowed"
    assert served.ask("DELETE", "/v1/streams/12345?name=shop/orders", token=token).code == "stream-deleted"
    assert served.ask("DELETE", "/v1/streams/12345", token=token).code == "unknown-stream"


HOSTS = {
    "127.0.0.1": 200, "127.0.0.1:80": 200, "localhost:8787": 200, "LOCALHOST": 200, "[::1]:8787": 200, "127.9.9.9": 200,
    "evil.example": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "0.0.0.0": 403, "": 403,
    "192.168.1.7:8787": 403, "[::]": 403, "127.0.0.1@evil.example": 403, "[bad": 403, "evil.example:127.0.0.1": 403,
}  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_without_tokens_only_requests_for_this_machine_are_taken(served: Served, host: str, status: int) -> None:
    told = served.ask("GET", "/v1/streams", headers={"Host": host})
    assert (told.status, told.code) == (status, None if status == 200 else "host-refused")
    assert served.ask("GET", "/v1/streams", token=served.token("read"), headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    ("header", "text", "status"),
    [("Origin", "https://evil.example", 403), ("Origin", "null", 403), ("Origin", "http://127.0.0.1:3000", 200),
     ("Origin", "http://localhost", 200)],
)  # fmt: skip
def test_without_tokens_no_page_of_another_host_gets_in(served: Served, header: str, text: str, status: int) -> None:
    told = served.ask("POST", "/v1/streams", {"name": "s"}, headers={header: text})
    assert told.status == (201 if status == 200 else status)
    assert len(served.home.streams()) == (1 if status == 200 else 0)


def test_beyond_this_machine_nothing_listens_without_a_token(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with connect(store, controller=False) as home:
        for host in ("0.0.0.0", "", "::"):
            with pytest.raises(TokensNeeded):
                Service(home, host=host).start()
        Tokens(home.home).create("admin", ttl=1)
        with pytest.raises(TokensNeeded):
            Service(home, host="0.0.0.0").start()


def test_beyond_this_machine_a_token_is_needed_and_the_lack_of_tls_is_told(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_service, "is_loopback", lambda host: False)
    with connect(store, controller=False) as home:
        token, text = Tokens(home.home).create("admin")
        with Service(home, limits=ServiceLimits(token_seconds=0)) as service:
            served = Served(home, service.url)
            assert served.ask("GET", "/v1/streams", token=text).status == 200
            Tokens(home.home).revoke(token.id)
            assert served.ask("GET", "/v1/streams").code == "token-missing"
    assert "has no TLS certificate" in caplog.text


def test_no_secret_is_in_a_log_an_error_or_a_repr(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    text = served.token("write", "shop")
    secret = text[-64:]
    remote = served.connect(text)
    said = [repr(remote), repr(remote._backend), repr(served), repr(remote._backend.__reduce_ex__)]
    actions: list[Callable[[], Any]] = [
        lambda: remote.create_stream("shop/a"),
        lambda: remote.stream("bank"),
        lambda: remote.stream("shop/none"),
        lambda: connect(served.url.replace("//", f"//x:{text}@")),
        lambda: connect(served.url, token=f"{text}\n"),
        lambda: connect("http://127.0.0.1:1", token=text),
        lambda: Served(served.home, "http://127.0.0.1:1").connect(text, budget=0.2).streams(),
    ]
    monkeypatch.setattr(type(served.home.local.catalog), "all", lambda self: 1 / 0)
    actions.append(remote.streams)
    for action in actions:
        try:
            said.append(repr(action()))
        except FloodmarkError as error:
            said += [str(error), str(error.fields), repr(error)]
    said.append(served.ask("GET", "/v1/openapi.json", token=text).body.decode())
    wait_until(lambda: "ZeroDivisionError" in caplog.text)
    said.append(caplog.text)
    assert not any(secret in one for one in said)
    assert not re.search(r"fmk_[0-9a-f]{12}_[0-9a-f]{64}", "".join(said))


def test_a_writer_with_a_write_token_does_all_that_a_writer_does(served: Served) -> None:
    served.home.create_stream("shop/a", "id BIGINT")
    remote = served.connect(served.token("write", "shop"))
    stream = remote.stream("shop/a")
    with stream.writer("w") as writer:
        writer.write({"id": 1})
        assert writer.note_time(5).value == "accepted"
    with stream.transactional_writer("t") as other, other.begin() as transaction:
        transaction.write({"id": 2})
    assert sum(chunk.batch.num_rows for chunk in stream.read(0)) == 2
    for action in (stream.seal, stream.delete, lambda: stream.split(0), lambda: stream.alter(unit="s")):
        with pytest.raises(NotAllowed):
            action()


def test_the_token_and_the_authorities_may_come_from_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOODMARK_TOKEN", served.token("read"))
    monkeypatch.setenv("FLOODMARK_HOME", served.url)
    with connect() as home:
        assert home.streams() == []
        assert isinstance(home, StreamHome)
