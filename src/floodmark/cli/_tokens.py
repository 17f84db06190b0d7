"""The commands `floodmark token` and `floodmark tokens`: who may use the service of a home."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from floodmark._util.times import duration_micros


def add_tokens(commands: Any) -> None:
    """Add the commands."""
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    token = commands.add_parser("token", help="create or revoke a token of the HTTP service")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", parents=[home], help="create a token, and print it: it is shown once")
    create.add_argument("--scope", required=True, help="read, write or admin; each includes those before it")
    create.add_argument(
        "--prefix",
        action="append",
        metavar="PREFIX",
        help="a stream, or what the names of streams begin with before a '/'; may be repeated (default: all streams)",
    )
    create.add_argument("--expires", metavar="DURATION", help="how long it is good, such as '30 days' (default: ever)")
    create.add_argument("--label", default="", help="who uses it")
    revoke = actions.add_parser("revoke", parents=[home], help="let a token be good for nothing any more")
    revoke.add_argument("id", metavar="ID", help="the id of the token: see `floodmark tokens`")
    tokens = commands.add_parser("tokens", parents=[home], help="list the tokens of the HTTP service")
    tokens.add_argument("--json", action="store_true", help="print one JSON object")


def run_tokens(arguments: argparse.Namespace, now: int) -> None:
    """Create, revoke or list tokens."""
    from floodmark.control import Home, Tokens

    if arguments.command == "tokens":
        with Home.open_existing(arguments.home) as home:
            _list(Tokens(home).all(), now, as_json=arguments.json)
    elif arguments.action == "revoke":
        with Home.open_existing(arguments.home) as home:
            Tokens(home).revoke(arguments.id)
        print(f"The token {arguments.id} is revoked.")
    else:
        ttl = None if arguments.expires is None else duration_micros(arguments.expires, "expires", least=1)
        with Home.open(arguments.home) as home:
            token, text = Tokens(home).create(arguments.scope, arguments.prefix or [""], label=arguments.label, ttl=ttl)
        # Alone on its stream, so that a script can take it.
        print(text)
        print(
            f"This is the token {token.id}. It is not shown again: keep it where others cannot read it.",
            file=sys.stderr,
        )


def _list(tokens: Any, now: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"now": now, "tokens": [asdict(token) for token in tokens]}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from floodmark.cli._times import as_age

    if not tokens:
        print("There is no token.")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("id", "scope", "streams", "label", "created", "expires"):
        table.add_column(heading, overflow="fold")
    for token in tokens:
        prefixes = ", ".join(prefix or "all" for prefix in token.prefixes)
        expires = "never" if token.expires_at is None else as_age(token.expires_at, now)
        cells = (token.id, token.scope, prefixes, token.label or "-", as_age(token.created_at, now), expires)
        table.add_row(*map(Text, cells))
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)
