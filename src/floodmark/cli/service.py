"""The commands of the HTTP service: `serve` runs it, `token` and `tokens` manage its access tokens."""

import argparse
import logging
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from floodmark._util.times import duration_micros
from floodmark.cli.output import as_age, make_console, make_table, print_json, text_cell
from floodmark.errors import InvalidOption, MissingPackage

_PACKAGES: Final = ("fastapi", "httptools", "pydantic", "starlette", "uvicorn")
_SIZE_UNITS: Final = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE: Final = re.compile(r"\s*(\d{1,12})\s*([A-Za-z]*)\s*")


def add_serve(commands: Any) -> None:
    """Add the command `serve` to a parser."""
    serve = commands.add_parser(
        "serve",
        help="run the HTTP service of a home, with a controller",
        description="Runs the HTTP service of a home, with a controller, until SIGTERM or Ctrl-C. Several processes "
        "may serve one home. To listen beyond localhost, create a token first: see `floodmark token create`.",
    )
    serve.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    serve.add_argument(
        "--log", metavar="URL", help="the event log of new streams: kafka://host:port (default: $FLOODMARK_LOG)"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, localhost only)"
    )
    serve.add_argument("--port", type=int, default=8787, help="the port (default: 8787; 0 picks a free port)")
    serve.add_argument("--tls-cert", metavar="FILE", type=Path, help="the certificate chain, PEM")
    serve.add_argument("--tls-key", metavar="FILE", type=Path, help="the private key of the certificate, PEM")
    serve.add_argument("--max-request", metavar="SIZE", default="64 MiB", help="largest request (default: 64 MiB)")
    serve.add_argument("--threads", type=int, default=8, help="how many requests use the store at once (default: 8)")
    serve.add_argument(
        "--ttl",
        metavar="DURATION",
        default="10 seconds",
        help="how long after a crash another service takes over its leases (default: 10 seconds)",
    )


def run_serve(arguments: argparse.Namespace, now: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        from floodmark.service import ServiceLimits, Tls, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise MissingPackage(
            f"The package {error.name} cannot be loaded.",
            rule="The HTTP service needs it; a home used without the service does not.",
            remedy='Install it: pip install "floodmark[service]".',
            package=error.name,
        ) from error

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The service logs its own start and stop.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise InvalidOption(
            "Only one of --tls-cert and --tls-key is set.",
            rule="TLS needs the certificate and its private key.",
            remedy="Set both, or neither to serve without TLS.",
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
    """Parse a size from the command line and return it in bytes.

    >>> parse_size("64 MiB", "max-request"), parse_size("1000", "max-request")
    (67108864, 1000)
    >>> parse_size("64 parsecs", "max-request")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: max-request is '64 parsecs'. ... [invalid-option]
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _SIZE_UNITS.get(match[2].upper())
    size = 0 if match is None or unit is None else int(match[1]) * unit
    if size < 1:
        raise InvalidOption(
            f"{option} is {text!r}.",
            rule="A size is a number of bytes, KiB, MiB or GiB, above 0.",
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
        rule="It must be 1 to 14: each thread needs one of the 15 connections to the store.",
        remedy="Omit it to get 8. For more parallel requests, run more service processes.",
        option="threads",
        value=number,
    )


def add_tokens(commands: Any) -> None:
    """Add the commands `token` and `tokens` to a parser."""
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    token = commands.add_parser("token", help="create or revoke a token of the HTTP service")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", parents=[home], help="create a token and print it; it cannot be shown again")
    create.add_argument("--scope", required=True, help="read, write or admin; each includes the ones before it")
    create.add_argument(
        "--prefix",
        action="append",
        metavar="PREFIX",
        help="limit it to a stream, or to the streams under PREFIX/; may be repeated (default: all streams)",
    )
    create.add_argument("--expires", metavar="DURATION", help="lifetime, such as '30 days' (default: unlimited)")
    create.add_argument("--label", default="", help="the user or program it is for")
    revoke = actions.add_parser("revoke", parents=[home], help="revoke a token")
    revoke.add_argument("id", metavar="ID", help="the id of the token, as `floodmark tokens` lists it")
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
        # Only the token goes to standard output, so that a script can capture it.
        print(text)
        print(
            f"Created the token {token.id}. It cannot be shown again: store it as a secret.",
            file=sys.stderr,
        )


def _list_tokens(tokens: Any, now: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"now": now, "tokens": [asdict(token) for token in tokens]})
        return
    if not tokens:
        print("There are no tokens.")
        return
    table = make_table("id", "scope", "streams", "label", "created", "expires")
    for token in tokens:
        prefixes = ", ".join(prefix or "all" for prefix in token.prefixes)
        expires = "never" if token.expires_at is None else as_age(token.expires_at, now)
        cells = (token.id, token.scope, prefixes, token.label or None, as_age(token.created_at, now), expires)
        table.add_row(*map(text_cell, cells))
    make_console().print(table)
