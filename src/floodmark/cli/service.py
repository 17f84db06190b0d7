"""The commands about the HTTP service: `serve` runs it; `token` and `tokens` say who may use it."""

import argparse
import json
import logging
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from floodmark._util.times import duration_micros
from floodmark.errors import InvalidOption, MissingPackage

_PACKAGES: Final = ("fastapi", "httptools", "pydantic", "starlette", "uvicorn")
_SIZE_UNITS: Final = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE: Final = re.compile(r"\s*(\d{1,12})\s*([A-Za-z]*)\s*")


def add_serve(commands: Any) -> None:
    """Add the command."""
    serve = commands.add_parser(
        "serve",
        help="run the HTTP service of a home, with a controller",
        description="Runs the HTTP service of a home, with a controller, until it gets SIGTERM or Ctrl-C. Several of "
        "them may serve one home. Beyond this machine it needs a token: see `floodmark token create`.",
    )
    serve.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    serve.add_argument(
        "--log", metavar="URL", help="where events of new streams are: kafka://host:port (default: $FLOODMARK_LOG)"
    )
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine alone)")
    serve.add_argument("--port", type=int, default=8787, help="the port (default: 8787; 0 is any that is free)")
    serve.add_argument("--tls-cert", metavar="FILE", type=Path, help="the certificate, with those up to its authority")
    serve.add_argument("--tls-key", metavar="FILE", type=Path, help="the key of the certificate")
    serve.add_argument("--max-request", metavar="SIZE", default="64 MiB", help="largest request (default: 64 MiB)")
    serve.add_argument("--threads", type=int, default=8, help="how many requests work on the store at once (8)")
    serve.add_argument(
        "--ttl", metavar="DURATION", default="10 seconds", help="when others take over if it dies (10 seconds)"
    )


def run_serve(arguments: argparse.Namespace, now: int) -> None:
    """Serve until told to end."""
    try:
        from floodmark.service import ServiceLimits, Tls, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise MissingPackage(
            f"The package {error.name} cannot be loaded.",
            rule="The service needs it; homes that are used without a service do not.",
            remedy='Install it: pip install "floodmark[service]".',
            package=error.name,
        ) from error

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Of uvicorn only what goes wrong is of interest; that the service begins and ends it says itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise InvalidOption(
            "Of --tls-cert and --tls-key one is missing.",
            rule="A certificate goes with its key.",
            remedy="Give both, or neither.",
            option="tls",
        )
    serve(
        arguments.home,
        host=arguments.host,
        port=arguments.port,
        tls=None if arguments.tls_cert is None else Tls(arguments.tls_cert, arguments.tls_key),
        limits=ServiceLimits(
            max_request=parse_size(arguments.max_request, "max-request"), threads=_check_threads(arguments.threads)
        ),
        ttl=arguments.ttl,
        log=arguments.log,
        on_start=lambda url: print(f"Floodmark listens at {url}", flush=True),
    )


def parse_size(text: str, option: str) -> int:
    """Return a size in bytes, or refuse it.

    >>> parse_size("64 MiB", "max-request"), parse_size("1000", "max-request")
    (67108864, 1000)
    >>> parse_size("64 parsecs", "max-request")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: max-request is '64 parsecs'. ... [invalid-option]
    """
    parts = _SIZE.fullmatch(text)
    unit = None if parts is None else _SIZE_UNITS.get(parts[2].upper())
    size = 0 if parts is None or unit is None else int(parts[1]) * unit
    if size < 1:
        raise InvalidOption(
            f"{option} is {text!r}.",
            rule="It is a number of bytes, KiB, MiB or GiB, above 0.",
            remedy="Write for example '64 MiB'.",
            option=option,
            value=text,
        )
    return size


def _check_threads(number: int) -> int:
    if 1 <= number <= 14:
        return number
    raise InvalidOption(
        f"threads is {number}.",
        rule="It is a number from 1 to 14: each needs a connection to the store, of which there are 15.",
        remedy="Leave it out for 8; run more services to do more at once.",
        option="threads",
        value=number,
    )


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
            _list_tokens(Tokens(home).all(), now, as_json=arguments.json)
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


def _list_tokens(tokens: Any, now: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"now": now, "tokens": [asdict(token) for token in tokens]}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from floodmark.cli.output import as_age

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
