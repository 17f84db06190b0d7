"""No token of a service, and no instance of a reader, is in an answer, a log, an output, an error or the home."""

import json
import logging
from pathlib import Path

import pytest

from floodmark.cli import main
from floodmark.control import Tokens
from floodmark.errors import FloodmarkError
from floodmark.streams import connect
from support.secrets import SecretScanner
from support.service.routes import ROUTES, Shop
from support.service.service_tools import ask
from support.waiting import wait_until


def test_no_answer_log_or_file_of_a_service_shows_a_secret(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    # A service writes no access log, unless something else in its process, such as pytest here, asks for it.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "disabled", True)
    scanner, served = SecretScanner(), shop.served
    good = [scanner.add_token(served.token(scope, "shop")) for scope in ("read", "write", "admin")]
    expired, revoked = (scanner.add_token(served.token("admin", ttl=ttl)) for ttl in (1, None))
    Tokens(served.home.home).revoke(revoked.split("_")[1])
    unknown = scanner.add_token(f"fmk_{'0' * 12}_{'5' * 64}")
    served.home.create_stream("shop/kept")
    group = served.home.create_group("kept", "shop/kept")
    with served.connect(good[0]).group("kept").reader("r") as reader:
        scanner.add(reader._member.instance)
        for name in (name for name in ROUTES if not name.startswith("DELETE")):
            for token in (*good, expired, revoked, unknown):
                told = shop.ask(name, token)
                scanner.check(f"the answer to {name}", told.body, repr(told.headers))
        # Where it does not belong: the path, the query, a field, a header.
        for target in (f"/v1/streams/{good[0]}", f"/v1/{unknown}", f"/v1/group?name=g&token={good[0]}"):
            scanner.check("the answer to a token in a path", served.ask("GET", target, token=good[1]).headers)
        for header in (f"Basic {good[0]}", f"Bearer {good[0]} x", f"{good[0]}", f"Bearer {good[0]}, Bearer {good[1]}"):
            scanner.check("the answer to a wrong header", ask(served.url, "GET", "/v1/streams", None, {
                "Authorization": header}).body)  # fmt: skip
        for value in ({"name": 5, good[0]: 1}, {"name": f"{'x' * 300}", "ddl": good[1]}):
            told = ask(served.url, "POST", "/v1/streams", json.dumps(value), {
                "Authorization": f"Bearer {good[2]}", "Content-Type": "application/json"})  # fmt: skip
            assert told.status >= 400
        # An error that no route foresees is logged with its traceback.
        with monkeypatch.context() as failing:
            failing.setattr(type(served.home.local.catalog), "all", lambda self: 1 / 0)
            scanner.check("the answer to a failure", served.ask("GET", "/v1/streams", token=good[0]).body)
        # The answer may arrive before the traceback is logged.
        wait_until(lambda: "ZeroDivisionError" in caplog.text)
        scanner.check("the state of a group", group.state, json.dumps(group.state.save()))
        scanner.check_files(Path(served.home.home.path))
    scanner.check("the log", caplog.text)
    assert len(scanner.checked) > len(ROUTES)


def test_no_error_of_a_client_shows_its_token(shop: Shop) -> None:
    scanner = SecretScanner()
    token = scanner.add_token(shop.served.token("read", "shop"))
    remote = shop.served.connect(token)
    url = shop.served.url
    for action in (
        lambda: remote.create_stream("shop/new"),
        lambda: remote.stream("bank"),
        lambda: connect(url.replace("//", f"//x:{token}@")),
        lambda: connect(url, token=f"{token}\n"),
        lambda: shop.served.connect(token[:-1]).streams(),
    ):
        with pytest.raises(FloodmarkError) as refusal:
            action()
        scanner.check("an error of a client", refusal.value)
    scanner.check("the repr of a client", remote, remote._backend, shop.served.home)


def test_no_output_of_the_commands_shows_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    home, scanner = ["--home", str(tmp_path / "home")], SecretScanner()
    assert main(["token", "create", "--scope", "admin", "--label", "tills", *home], now=0) == 0
    printed = capsys.readouterr()
    token = scanner.add_token(printed.out.strip())
    scanner.check("the note to a new token", printed.err)
    with connect(tmp_path / "home", controller=False) as streams:
        streams.create_stream("shop/a").writer("w").close()
    commands = (
        ("tokens",),
        ("tokens", "--json"),
        ("why", "shop/a"),
        ("why", "shop/a", "--json"),
        ("holds", "--json"),
        ("sinks", "--json"),
        ("token", "revoke", token),
        ("token", "revoke", token.split("_")[1]),
        ("tokens", "--json"),
    )
    codes = [main([*command, *home], now=0) for command in commands]
    assert 0 in codes
    printed = capsys.readouterr()
    scanner.check("the output of commands", printed.out)
    scanner.check("the log", caplog.text)
    scanner.check_files(tmp_path / "home")
