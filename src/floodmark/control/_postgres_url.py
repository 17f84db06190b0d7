"""Where a home in PostgreSQL is: a URL as PostgreSQL's own programs take it, and what of it may be shown."""

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from floodmark.errors import InvalidOption, MissingPackage

SCHEMES: Final = ("postgresql", "postgresql+psycopg", "postgres")

_RULE: Final = "It is postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE; each part may be missing."
_REMEDY: Final = (
    "Write a special character of a user or password as %XX ('@' is %40, '/' is %2F), or leave the password to "
    "PGPASSWORD or ~/.pgpass."
)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that has been read.

    >>> url = read_url("postgresql+psycopg://ann:secret@db.example:5433/marks")
    >>> url.shown
    'postgresql://ann:***@db.example:5433/marks'
    >>> url
    PostgresUrl(shown='postgresql://ann:***@db.example:5433/marks')
    """

    location: str = field(repr=False)
    parameters: dict[str, Any] = field(repr=False)
    shown: str


def read_url(url: str) -> PostgresUrl:
    """Return the parts of a URL, or refuse it without showing what may be a part of a password.

    >>> read_url("postgresql://ann:se@cret@db.example/marks")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the home cannot be read. ... [invalid-option]
    """
    psycopg = driver()
    location = f"postgresql://{url.partition('://')[2]}"
    try:
        parameters = psycopg.conninfo.conninfo_to_dict(location)
    except psycopg.ProgrammingError:
        # What it says may quote a piece of a password.
        raise _unreadable() from None
    ports = str(parameters.get("port", "")).replace(",", "")
    # A bare '@' or '/' in a password moves the rest of it into another part.
    if "@" in f"{parameters.get('host')}{parameters.get('dbname')}" or (ports and not ports.isdecimal()):
        raise _unreadable()
    return PostgresUrl(location, dict(parameters), _shown(parameters))


def driver() -> Any:
    """Return the module psycopg, or say how to get it."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise MissingPackage(
            "The home is in PostgreSQL, and the package psycopg cannot be loaded.",
            rule="A home in PostgreSQL needs it; one in a directory does not.",
            remedy='Install it: pip install "floodmark[postgres]".',
            package="psycopg",
        ) from error
    return psycopg


def _shown(parameters: dict[str, Any]) -> str:
    hosts, ports = str(parameters.get("host", "")), str(parameters.get("port", ""))
    user = quote(str(parameters.get("user", "")), safe="")
    who = f"{user}:***@" if "password" in parameters else f"{user}@" if user else ""
    is_socket = hosts.startswith("/")
    where = "" if is_socket else f"[{hosts}]" if hosts.count(":") > 1 else hosts
    port = f":{ports}" if ports else ""
    return f"postgresql://{who}{where}{port}/{parameters.get('dbname', '')}{f'?host={hosts}' if is_socket else ''}"


def _unreadable() -> InvalidOption:
    return InvalidOption("The URL of the home cannot be read.", rule=_RULE, remedy=_REMEDY)
