"""The commands of the service that serve nothing: what is refused, sizes, and tokens."""

import builtins
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import main
from floodmark.cli.service import parse_size
from floodmark.control import Home, Members, Tokens
from floodmark.errors import InvalidOption

NOW = 1_700_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "home")


def refused(options: list[str]) -> int:
    """Return what `floodmark serve` exits with; should it serve after all, it is told to end."""
    timer = threading.Timer(20, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        return main(["serve", *options])
    finally:
        timer.cancel()


REFUSED = {
    "beyond this machine": (["--host", "0.0.0.0"], "tokens-needed"),
    "half a certificate": (["--tls-cert", "x"], "invalid-option"),
    "no certificate": (["--tls-cert", "x", "--tls-key", "y"], "invalid-option"),
    "no size": (["--max-request", "many"], "invalid-option"),
    "no threads": (["--threads", "0"], "invalid-option"),
    "no port": (["--port", "99999"], "service-not-started"),
    "port below 0": (["--port", "-1"], "service-not-started"),
    "no host": (["--host", "no.such.host.invalid"], "service-not-started"),
    "no time": (["--ttl", "soon"], "invalid-option"),
}


@pytest.mark.parametrize(("options", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_before_anything_listens(
    store: str, options: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(["--home", store, "--port", "0", *options]) == 1
    printed = capsys.readouterr()
    assert printed.err.rstrip().endswith(f"[{code}]")
    assert printed.out == ""
    with Home.open(store) as home:
        assert Members(home).alive() == ()


def test_without_the_packages_of_the_service_the_command_says_how_to_get_them(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "floodmark.service":
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return load(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["serve", "--home", store]) == 1
    assert capsys.readouterr().err.endswith('Install it: pip install "floodmark[service]". [missing-package]\n')


SIZES = {"1": 1, "64MiB": 64 * 2**20, "64 mib": 64 * 2**20, "2 GiB": 2**31, "3KiB": 3072, "7 B": 7}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text, "x") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "MiB", "1.5 MiB", "64 MB", "1 MiB 2"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_size(text, "x")


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path)]
    options = ["--scope", "write", "--prefix", "shop", "--prefix", "bank/x", "--expires", "30 days", "--label", "tills"]
    assert main(["token", "create", *options, *home]) == 0
    made = capsys.readouterr()
    text = made.out.strip()
    number = text.split("_")[1]
    assert text.startswith("fmk_")
    assert text not in made.err
    assert main(["token", "create", "--scope", "read", *home]) == 0
    capsys.readouterr()
    with Home.open(tmp_path) as opened:
        token, other = Tokens(opened).all()
    assert (token.scope, token.prefixes, token.label) == ("write", ("shop", "bank/x"), "tills")
    assert token.expires_at == token.created_at + 30 * 86_400_000_000
    assert (other.prefixes, other.expires_at) == (("",), None)
    assert main(["tokens", *home], now=token.created_at) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "scope", "streams", "label", "created", "expires"]
    assert lines[1].split() == [number, "write", "shop,", "bank/x", "tills", "now", "in", "30", "d"]
    assert "all" in lines[2]
    assert main(["tokens", "--json", *home], now=NOW) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in listed["tokens"]] == [number, other.id]
    assert text[-64:] not in json.dumps(listed)
    assert main(["token", "revoke", number, *home]) == 0
    assert main(["token", "revoke", number, *home]) == 1
    assert "[unknown-token]" in capsys.readouterr().err
    assert main(["token", "revoke", other.id, *home]) == 0
    assert main(["tokens", *home]) == 0
    assert "There are no tokens." in capsys.readouterr().out


WRONG = {
    "no scope": (["token", "create"], 2),
    "unknown scope": (["token", "create", "--scope", "writ"], 1),
    "bad prefix": (["token", "create", "--scope", "read", "--prefix", "a b"], 1),
    "bad time": (["token", "create", "--scope", "read", "--expires", "soon"], 1),
    "no action": (["token"], 2),
    "no id": (["token", "revoke"], 2),
}


@pytest.mark.parametrize(("argv", "status"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_makes_no_token(
    argv: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", str(tmp_path / "home"))
    try:
        ended: Any = main(argv)
    except SystemExit as end:
        ended = end.code
    assert ended == status
    assert capsys.readouterr().out == ""
    if (tmp_path / "home").exists():
        with Home.open() as home:
            assert Tokens(home).all() == ()
