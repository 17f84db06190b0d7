"""SQL databases that units and rows are read from: URLs with secrets in place, engines, and driver errors."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from floodmark.errors import (
    FloodmarkError,
    InvalidOption,
    MissingPackage,
    SecondaryInputFailed,
    SourceAway,
    SourceFailed,
    SourceRefused,
    UnknownTable,
)
from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.source import SqlSource

# A host that is away, or goes without a word, must not hold a task for hours.
_POSTGRES_WAITS: Final = {
    "connect_timeout": "30",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}


@dataclass(frozen=True)
class SqlUrl:
    """A URL that can be used, and how it is shown: without user, password and options.

    >>> url = SqlUrl.of(SqlSource(url="postgresql://ann@db/shop", table="orders", watermark="at"))
    >>> url.shown, url.is_postgres
    ('postgresql://db/shop', True)
    """

    text: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, source: SqlSource) -> "SqlUrl":
        """Look up the secrets of a source."""
        text = source.url.value() if isinstance(source.url, Secret) else source.url
        password = None if source.password is None else source.password.value()
        parts = parse_url(text.strip(), password)
        if parts.get_backend_name() in ("postgresql", "postgres"):
            parts = parts.update_query_dict({k: v for k, v in _POSTGRES_WAITS.items() if k not in parts.query})
        rendered = parts.render_as_string(hide_password=False)
        # However a driver may come to write them.
        secrets = {str(parts.password), quote(str(parts.password), safe=""), quote(str(parts.password), safe=" +")}
        if not parts.password:
            secrets = set()
        if isinstance(source.url, Secret):
            secrets |= {text, rendered}
        return cls(rendered, tuple(sorted(secrets, key=len, reverse=True)))

    @cached_property
    def parts(self) -> Any:
        """As SQLAlchemy has it."""
        from sqlalchemy.engine import make_url

        return make_url(self.text)

    @property
    def shown(self) -> str:
        """The URL without what may be secret."""
        parts = self.parts
        host = f"{parts.host or ''}{f':{parts.port}' if parts.port else ''}"
        return f"{parts.drivername}://{host}/{parts.database or ''}"

    @property
    def is_postgres(self) -> bool:
        """Whether it says PostgreSQL, and not by which driver."""
        return self.parts.drivername in ("postgresql", "postgres")

    @property
    def is_sqlite(self) -> bool:
        """Whether it says SQLite, and not by which driver."""
        return bool(self.parts.drivername == "sqlite")

    @property
    def for_libpq(self) -> str:
        """As PostgreSQL's own library takes it: names and values, since it refuses some URLs, and says all of them."""
        parts = self.parts
        named = {"host": parts.host, "port": parts.port, "user": parts.username, "password": parts.password}
        given = {**named, "dbname": parts.database, **parts.query}
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in given.items() if value not in (None, ""))

    @property
    def for_sqlite(self) -> str:
        """As SQLite takes it: to be read only."""
        database = str(self.parts.database)
        if database.startswith("file:"):
            return database + ("" if "mode=" in database else f"{'&' if '?' in database else '?'}mode=ro")
        return f"file:{quote(str(Path(database).resolve()))}?mode=ro"

    @property
    def for_reading(self) -> str:
        """As SQLAlchemy takes it; a file of SQLite is to be read only."""
        if self.parts.get_backend_name() != "sqlite":
            return self.text
        options = {**self.parts.query, "mode": "ro", "uri": "true"}
        path = self.for_sqlite.partition("?")[0]
        text: str = self.parts.set(database=path, query=options).render_as_string(hide_password=False)
        return text

    def check_file(self) -> None:
        """Refuse a SQLite database that is not there: SQLite would make it."""
        path = self.parts.database or ""
        if path.startswith("file:"):
            path = unquote(path.removeprefix("file:").partition("?")[0])
        if not path or path == ":memory:" or not Path(path).is_file():
            raise missing_sqlite_error(path, UnknownTable, "A source is a database that is there; none is made.")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


E = TypeVar("E", bound=FloodmarkError)


def parse_url(text: str, password: str | None = None) -> Any:
    """Return a URL in parts, with a password if it is given apart; refuse one that is none, without showing it.

    >>> parse_url("postgresql://ann@db/shop", "x").password
    'x'
    >>> parse_url("shop.db")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the database cannot be read. ... [invalid-option]
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(text)
    except (ArgumentError, ValueError):
        raise invalid_url_error() from None
    return parts if password is None else parts.set(password=password)


def invalid_url_error() -> InvalidOption:
    """Return the error for a URL that cannot be read, which does not show it."""
    return InvalidOption(
        "The URL of the database cannot be read.",
        rule="It is written as SQLAlchemy writes it.",
        remedy='Write for example "postgresql://USER@HOST/DATABASE" or "sqlite:///FILE".',
        option="url",
    )


def missing_sqlite_error(path: str, kind: type[E], rule: str) -> E:
    """Return the error for a database of SQLite that is not there: SQLite would make it."""
    return kind(
        f"There is no SQLite database {path or ':memory:'}.",
        rule=rule,
        remedy="Correct the URL; sqlite:////x has an absolute path, sqlite:///x one in the working directory.",
        path=path,
    )


def open_engine(url: str, password: str | None = None) -> Any:
    """Return an engine for a URL; PostgreSQL is spoken to by psycopg unless the URL says otherwise."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    parts = parse_url(url, password)
    try:
        if parts.drivername in ("postgresql", "postgres"):
            parts = parts.set(drivername="postgresql+psycopg")
        if parts.get_backend_name() == "sqlite":
            _require_sqlite_file(parts.database)
        return create_engine(parts)
    except (ImportError, NoSuchModuleError) as error:
        raise MissingPackage(
            f"Nothing is installed that speaks to {url_without_credentials(url)}: {error}.",
            rule="A database is read by a driver that SQLAlchemy knows.",
            remedy='Install it; for PostgreSQL: pip install "floodmark[postgres]".',
        ) from error
    except (ArgumentError, ValueError):
        raise invalid_url_error() from None


def _require_sqlite_file(database: str | None) -> None:
    # SQLite would make a file that is not there, and say that it has no such table.
    if database and database != ":memory:" and not database.startswith("file:") and not Path(database).is_file():
        rule = "Units are read from a database that is there before a plan is made."
        raise missing_sqlite_error(database, SecondaryInputFailed, rule)


def url_without_credentials(url: str) -> str:
    """Return the URL without user, password and query, to be shown in messages."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


_AWAY: Final = (
    "connection refused",
    "could not connect",
    "could not translate host name",
    "failed to resolve host",
    "is the server running",
    "timeout expired",
    "timed out",
    "server closed the connection",
    "connection to server was lost",
    "terminating connection",
    "connection is lost",
    "the connection is closed",
    "no route to host",
    "starting up",
    "shutting down",
    "too many clients",
    "too many connections",
    "database is locked",
    "ssl syscall",
)
_REFUSED: Final = ("password", "authentication", "permission denied", "not permitted", "role", "access denied")
_NO_TABLE: Final = ("no such table", "unknown database")


def source_error(error: BaseException, shown: str, secrets: tuple[str, ...] = ()) -> FloodmarkError:
    """Return the error of what a driver said about a database.

    >>> source_error(OSError("IO: connection refused"), "postgresql://db/shop").code
    'source-away'
    """
    state = _sqlstate(error)
    said = _driver_message(error, secrets)
    low = said.lower()
    if state in ("42P01", "3F000", "3D000") or any(text in low for text in _NO_TABLE):
        return unknown_table_error(said, shown)
    if (
        state.startswith("28")
        or state == "42501"
        or (not state and _has_any(low, _REFUSED) and not _has_any(low, _AWAY))
    ):
        return SourceRefused(
            f"{shown} does not let the job read: {said}.",
            rule="The user of the URL may connect, and may select from what is read.",
            remedy="Correct the user, or the password that the source refers to; grant SELECT to the user.",
        )
    if not state and "does not exist" in low and "database" in low:
        return unknown_table_error(said, shown)
    if state[:2] in ("08", "57", "53") or _has_any(low, _AWAY):
        return SourceAway(
            f"{shown} does not answer, or has stopped to: {said}.",
            rule="A part is read whole or not at all.",
            remedy="See whether the database runs and can be reached; the cell stays due and is read again.",
        )
    return SourceFailed(
        f"{shown} cannot answer the query: {said}.",
        rule="A source is read by SELECT, with its own conditions and those of the cell.",
        remedy="Correct the table, the query, the condition or the type of the watermark.",
        state=state,
    )


def unknown_table_error(said: str, shown: str) -> UnknownTable:
    """Return the error of a table or a database that is not there."""
    return UnknownTable(
        f"{shown} has no such table: {said}.",
        rule="Names are taken as they are written, upper and lower case; a dot is between a schema and its table.",
        remedy="Correct the table or the URL.",
    )


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _sqlstate(error: BaseException) -> str:
    for one in (error, getattr(error, "orig", None)):
        state = getattr(one, "sqlstate", None)
        if isinstance(state, str) and state.strip("\0"):
            return state
    return ""


def _driver_message(error: BaseException, secrets: tuple[str, ...]) -> str:
    """Return the first line of what was said; what a driver adds quotes the query, which is known."""
    text = str(getattr(error, "orig", None) or error)
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    line = lines[0]
    for mark in ("ERROR:", "FATAL:"):
        line = line.partition(mark)[2].strip() or line
    return line.rstrip(".")[:500]
