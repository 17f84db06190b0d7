"""Tokens: what each is good for, that nobody can guess or read them, and how they end."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from floodmark.control import Home, Token, Tokens
from floodmark.control.tokens import SCOPES, split_token
from floodmark.errors import TokenRefused, UnknownToken
from floodmark.service.access import Authenticator
from floodmark.service.workers import Workers
from support.streams.reading import code_of

NAMES = {
    "": {"shop": True, "shop/orders": True, "bank": True},
    "shop": {"shop": True, "shop/orders": True, "shop/a/b": True, "shopping": False, "bank": False, "x/shop": False},
    "shop/orders": {"shop": False, "shop/orders": True, "shop/orders/eu": True, "shop/order": False, "shop/ord": False},
}


@pytest.mark.parametrize("prefix", NAMES)
def test_a_prefix_ends_at_a_slash_or_is_a_whole_name(prefix: str) -> None:
    token = Token("id", "", "read", (prefix,), 0, None)
    assert {name: token.allows("read", name) for name in NAMES[prefix]} == NAMES[prefix]


def test_several_prefixes_are_all_good() -> None:
    token = Token("id", "", "write", ("a", "b/c"), 0, None)
    assert [token.covers(name) for name in ("a", "a/x", "b", "b/c", "b/c/d", "c")] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_token_is_good_until_the_moment_it_expires() -> None:
    token = Token("id", "", "read", ("",), 0, 100)
    assert [token.has_expired(now) for now in (0, 99, 100, 101)] == [False, False, True, True]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_includes_those_before_it(scope: Any) -> None:
    token = Token("id", "", scope, ("",), 0, None)
    allowed = [one for one in SCOPES if token.allows(one, "s")]
    assert allowed == list(SCOPES[: SCOPES.index(scope) + 1])


def test_a_token_is_kept_without_its_secret(home: Home) -> None:
    tokens = Tokens(home)
    token, text = tokens.create("write", ["shop", "bank/x"], label="tills", ttl=5_000_000)
    assert text.startswith(f"fmk_{token.id}_")
    assert tokens.all() == (token,)
    assert token.expires_at == token.created_at + 5_000_000
    secret = text.rpartition("_")[2]
    (stored,) = tokens.stored()
    assert len(secret) == 64
    assert (
        stored.matches_secret(secret),
        stored.matches_secret(secret[:-1] + ("0" if secret[-1] != "0" else "1")),
    ) == (True, False)
    assert secret not in repr(stored) + repr(token) + stored.secret_hash
    assert stored.secret_hash not in repr(stored)


def test_no_file_of_a_home_has_the_secret(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        _, text = Tokens(home).create("admin")
        secret = text.rpartition("_")[2].encode()
        assert not any(secret in file.read_bytes() for file in tmp_path.iterdir())
    with sqlite3.connect(tmp_path / "home.db") as connection:
        assert secret.decode() not in str(connection.execute("SELECT * FROM token").fetchall())


def test_no_two_tokens_are_alike(home: Home) -> None:
    made = [Tokens(home).create("read") for _ in range(20)]
    assert len({token.id for token, _ in made}) == len({text.rpartition("_")[2] for _, text in made}) == 20


def test_to_create_and_to_revoke_is_announced(home: Home) -> None:
    tokens = Tokens(home)
    token, _ = tokens.create("read")
    assert home.changes("tokens") == {"tokens": 1}
    tokens.revoke(token.id)
    assert (home.changes("tokens"), tokens.all()) == ({"tokens": 2}, ())


def test_who_revokes_a_whole_token_by_mistake_is_not_shown_its_secret(home: Home) -> None:
    _, text = Tokens(home).create("read")
    with pytest.raises(UnknownToken) as refusal:
        Tokens(home).revoke("fmk_000000000000_" + text.rpartition("_")[2])
    assert text.rpartition("_")[2] not in str(refusal.value) + str(refusal.value.fields)
    assert home.changes("tokens") == {"tokens": 1}


@pytest.mark.parametrize(
    ("arguments", "code"),
    {
        "scope": (("writer", [""]), "invalid-option"),
        "no scope": ((None, [""]), "invalid-option"),
        "no prefix": (("read", []), "invalid-option"),
        "prefix as text": (("read", "shop"), "invalid-option"),
        "prefix with an end": (("read", ["shop/"]), "invalid-name"),
        "prefix with a gap": (("read", ["a b"]), "invalid-name"),
        "prefix as number": (("read", [7]), "invalid-name"),
    }.values(),
)
def test_bad_tokens_are_refused_and_nothing_is_stored(home: Home, arguments: Any, code: str) -> None:
    assert code_of(lambda: Tokens(home).create(*arguments)) == code
    assert (Tokens(home).all(), home.changes("tokens")) == ((), {"tokens": 0})


@pytest.mark.parametrize(("option", "value"), [("ttl", 0), ("ttl", -1), ("label", "a\nb"), ("label", "x" * 201)])
def test_bad_labels_and_times_are_refused(home: Home, option: str, value: Any) -> None:
    assert code_of(lambda: Tokens(home).create("read", **{option: value})) == "invalid-option"
    assert Tokens(home).all() == ()


HEAD = "fmk_0123456789ab"
NO_TOKENS = ["", "x", "fmk", "fmk_", HEAD, f"{HEAD}_", f"{HEAD}_{'g' * 64}", f"{HEAD.upper()}_{'a' * 64}",
             f"{HEAD}_{'a' * 65}", f"{HEAD}_{'a' * 64}\n"]  # fmt: skip


@pytest.mark.parametrize("text", NO_TOKENS)
def test_what_is_no_token_is_none(text: str) -> None:
    assert split_token(text) is None


def test_a_request_with_two_tokens_is_refused_though_both_are_good(home: Home) -> None:
    """A proxy in front of the service might have looked at the other one."""

    async def admit(*texts: str) -> Token | None:
        workers = Workers(1, 1)
        try:
            authenticator = Authenticator(home, workers, needs_token=True, seconds=60)
            return await authenticator.admit([(b"authorization", f"Bearer {text}".encode()) for text in texts], None)
        finally:
            workers.close()

    token, text = Tokens(home).create("read")
    assert asyncio.run(admit(text)) == token
    with pytest.raises(TokenRefused, match="has one Authorization header"):
        asyncio.run(admit(text, text))
