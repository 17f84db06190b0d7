"""The command `floodmark serve`: the API of a home, until the process is told to end."""

import argparse
import logging
import re
import sys
from pathlib import Path
from typing import Any, Final

from floodmark.errors import InvalidOption, MissingPackage

_PACKAGES: Final = ("fastapi", "httptools", "pydantic", "starlette", "uvicorn")
_UNITS: Final = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
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
            max_request=bytes_of(arguments.max_request, "max-request"), threads=_threads(arguments.threads)
        ),
        ttl=arguments.ttl,
        log=arguments.log,
        on_start=lambda url: print(f"Floodmark listens at {url}", flush=True),
    )


def bytes_of(text: str, option: str) -> int:
    """Return a size in bytes, or refuse it.

    >>> bytes_of("64 MiB", "max-request"), bytes_of("1000", "max-request")
    (67108864, 1000)
    >>> bytes_of("64 parsecs", "max-request")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: max-request is '64 parsecs'. ... [invalid-option]
    """
    parts = _SIZE.fullmatch(text)
    unit = None if parts is None else _UNITS.get(parts[2].upper())
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


def _threads(number: int) -> int:
    if 1 <= number <= 14:
        return number
    raise InvalidOption(
        f"threads is {number}.",
        rule="It is a number from 1 to 14: each needs a connection to the store, of which there are 15.",
        remedy="Leave it out for 8; run more services to do more at once.",
        option="threads",
        value=number,
    )
