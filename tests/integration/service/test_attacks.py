"""Attacks on a service: with a token, as another reader; without one, on the way around the check of tokens."""

from typing import Any

import pyarrow as pa
import pytest

from floodmark.control import Tokens
from floodmark.errors import TokenMissing, TokenRefused
from floodmark.streams import connect
from support.service.service_tools import Served
from support.streams.stream_fixtures import Exchange


def _strings(value: Any) -> set[str]:
    """Return every text in a JSON value."""
    if isinstance(value, dict):
        return set().union(*map(_strings, value), *map(_strings, value.values()))
    if isinstance(value, list):
        return set().union(*map(_strings, value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("has_tokens", [True, False])
def test_what_a_group_shows_does_not_let_one_reader_act_as_another(served: Served, has_tokens: bool) -> None:
    stream = served.home.create_stream("shop/a", "id BIGINT")
    with stream.writer("w") as writer:
        writer.write_batch(pa.table({"id": range(10)}))
    served.home.create_group("g", "shop/a")
    victims, attackers = (served.token("read", "shop"), served.token("read", "shop")) if has_tokens else (None, None)
    remote = served.connect(victims)
    group = remote.group("g")
    with group.reader("victim"):
        before = group.state
        shown = served.ask("GET", "/v1/group?name=g", token=attackers).value
        wanted = {"kind": "wanted", "version": 1, "of": 0, "streams": [], "group": group._ref.save()}
        news = served.ask("POST", "/v1/news", {"wanted": wanted, "seconds": 0}, token=attackers).value
        texts = {text for text in _strings(shown) | _strings(news) if len(text) >= 16}
        assert texts, "the group shows which instance of the reader it has"
        for text in texts:
            report = {"kind": "reader-report", "version": 1, "reader": "victim", "instance": text, "generation": 1,
                      "positions": [["shop/a", 0, 10]], "released": [["shop/a", 0]], "times": [], "places": [],
                      "confirms": None}  # fmt: skip
            path = f"/v1/groups/{before.group_id}"
            assert served.ask("POST", f"{path}/sync?name=g", report, token=attackers).code == "reader-expelled"
            assert served.ask("POST", f"{path}/leave?name=g", report, token=attackers).status == 200
            joining = {"reader": "victim", "instance": text, "ttl": 10**6}
            assert served.ask("POST", f"{path}/join?name=g", joining, token=attackers).code == "reader-exists"
        after = group.state
        assert after.progress == before.progress
        assert [reader.segments for reader in after.readers] == [{("shop/a", 0)}]


def test_an_instance_that_can_be_guessed_is_refused(served: Served) -> None:
    served.home.create_stream("shop/a")
    group = served.home.create_group("g", "shop/a")
    joining = {"reader": "r", "instance": "1", "ttl": 10**6}
    told = served.ask("POST", f"/v1/groups/{group.state.group_id}/join?name=g", joining)
    assert (told.status, told.code) == (400, "request-invalid")
    assert group.state.readers == ()


def test_a_reader_goes_on_through_another_service_and_with_another_token(store: str, exchange: Exchange) -> None:
    secret = "0123456789abcdef"
    with connect(store, controller=False) as home:
        stream = home.create_stream("shop/a", "id BIGINT")
        with stream.writer("w") as writer:
            writer.write_batch(pa.table({"id": range(10)}))
        path = f"/v1/groups/{home.create_group('g', 'shop/a').state.group_id}"
        with exchange.serving(home) as url:
            served = Served(home, url)
            joining = {"reader": "r", "instance": secret, "ttl": 10**8}
            told = served.ask("POST", f"{path}/join?name=g", joining, token=served.token("read", "shop"))
            assert (told.status, secret in told.body.decode()) == (200, False)
    with connect(store, controller=False) as home, exchange.serving(home) as url:
        served = Served(home, url)
        report = {"kind": "reader-report", "version": 1, "reader": "r", "instance": secret, "generation": 1,
                  "positions": [["shop/a", 0, 7]], "released": [], "times": [], "places": [],
                  "confirms": None}  # fmt: skip
        told = served.ask("POST", f"{path}/sync?name=g", report, token=served.token("read", "shop"))
        assert (told.status, told.value["parts"][0]["position"]) == (200, {"0": 7})


def test_a_home_that_has_had_a_token_is_never_open_again(served: Served) -> None:
    home = served.connect()
    assert home.streams() == []
    text = served.token("read")
    Tokens(served.home.home).revoke(text.split("_")[1])
    with pytest.raises(TokenMissing):
        home.streams()
    with pytest.raises(TokenRefused):
        served.connect(text).streams()


def test_a_service_that_starts_after_the_last_token_was_revoked_is_closed(store: str, exchange: Exchange) -> None:
    with connect(store, controller=False) as home:
        token, _ = Tokens(home.home).create("admin")
        Tokens(home.home).revoke(token.id)
        with exchange.serving(home) as url:
            told = Served(home, url).ask("POST", "/v1/streams", {"name": "s"})
        assert (told.status, told.code) == (401, "token-missing")
        assert home.streams() == []


FORWARDED = {
    "Forwarded": "for=10.0.0.1",
    "X-Forwarded-For": "10.0.0.1",
    "X-Forwarded-Host": "marks.example",
    "X-Forwarded-Proto": "https",
    "x-forwarded-anything": "",
    "Via": "1.1 proxy",
    "X-Real-IP": "10.0.0.1",
    "X-Client-IP": "10.0.0.1",
    "True-Client-IP": "10.0.0.1",
    "CF-Connecting-IP": "10.0.0.1",
}


@pytest.mark.parametrize("header", FORWARDED)
def test_without_tokens_what_a_proxy_passes_on_is_not_local(served: Served, header: str) -> None:
    told = served.ask("POST", "/v1/streams", {"name": "s"}, headers={header: FORWARDED[header]})
    assert (told.status, told.code) == (403, "host-refused")
    assert served.home.streams() == []
    token = served.token("read")
    assert served.ask("GET", "/v1/streams", token=token, headers={header: FORWARDED[header]}).status == 200
