"""SQL databases as sources of rows and units: URLs with their secrets resolved, engines, and driver errors."""

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

# Without these, a host that vanishes would block a task for hours.
_POSTGRES_TIMEOUTS: Final = {
    "connect_timeout": "30",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}


@dataclass(frozen=True)
class SqlUrl:
    """A database URL with its secrets resolved; `shown` is its form for messages.

    >>> url = SqlUrl.of(SqlSource(url="postgresql://ann@db/shop", table="orders", watermark="at"))
    >>> url.shown, url.is_postgres
    ('postgresql://db/shop', True)
    """

    text: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, source: SqlSource) -> "SqlUrl":
        """Return the URL of a source with its secrets resolved."""
        text = source.url.value() if isinstance(source.url, Secret) else source.url
        password = None if source.password is None else source.password.value()
        parts = parse_url(text.strip(), password)
        if parts.get_backend_name() in ("postgresql", "postgres"):
            parts = parts.update_query_dict({k: v for k, v in _POSTGRES_TIMEOUTS.items() if k not in parts.query})
            # Statements are sent as UTF-8. A server that expects another encoding would read quotes in other places.
            parts = parts.update_query_dict({"client_encoding": "UTF8"})
        rendered = parts.render_as_string(hide_password=False)
        # All forms in which a driver may print the password.
        secrets = {str(parts.password), quote(str(parts.password), safe=""), quote(str(parts.password), safe=" +")}
        if not parts.password:
            secrets = set()
        if isinstance(source.url, Secret):
            secrets |= {text, rendered}
        return cls(rendered, tuple(sorted(secrets, key=len, reverse=True)))

    @cached_property
    def parts(self) -> Any:
        """The URL as parsed by SQLAlchemy."""
        from sqlalchemy.engine import make_url

        return make_url(self.text)

    @property
    def shown(self) -> str:
        """The URL without user, password and options, for messages."""
        parts = self.parts
        host = f"{parts.host or ''}{f':{parts.port}' if parts.port else ''}"
        return f"{parts.drivername}://{host}/{parts.database or ''}"

    @property
    def is_postgres(self) -> bool:
        """Whether it is a PostgreSQL URL that names no driver."""
        return self.parts.drivername in ("postgresql", "postgres")

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite URL that names no driver."""
        return bool(self.parts.drivername == "sqlite")

    @property
    def for_libpq(self) -> str:
        """The connection string for libpq, as keywords: libpq rejects some URLs and prints them in the error."""
        parts = self.parts
        address = {"host": parts.host, "port": parts.port, "user": parts.username, "password": parts.password}
        keywords = {**address, "dbname": parts.database, **parts.query}
        return " ".join(
            f"{name}={_quote_conninfo(str(value))}" for name, value in keywords.items() if value not in (None, "")
        )

    @property
    def for_sqlite(self) -> str:
        """The URI for SQLite, in read-only mode."""
        database = str(self.parts.database)
        if database.startswith("file:"):
            return database + ("" if "mode=" in database else f"{'&' if '?' in database else '?'}mode=ro")
        return f"file:{quote(str(Path(database).resolve()))}?mode=ro"

    @property
    def for_reading(self) -> str:
        """The URL for SQLAlchemy; SQLite in read-only mode."""
        if self.parts.get_backend_name() != "sqlite":
            return self.text
        options = {**self.parts.query, "mode": "ro", "uri": "true"}
        path = self.for_sqlite.partition("?")[0]
        text: str = self.parts.set(database=path, query=options).render_as_string(hide_password=False)
        return text

    def check_file(self) -> None:
        """Raise `UnknownTable` if the SQLite file does not exist, because SQLite would create it."""
        path = self.parts.database or ""
        if path.startswith("file:"):
            path = unquote(path.removeprefix("file:").partition("?")[0])
        if not path or path == ":memory:" or not Path(path).is_file():
            raise missing_sqlite_error(
                path, UnknownTable, "A source must be an existing database; Floodmark creates none."
            )


def _quote_conninfo(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


E = TypeVar("E", bound=FloodmarkError)


def parse_url(text: str, password: str | None = None) -> Any:
    """Parse a URL and set its password; the error for an invalid URL does not show it.

    >>> parse_url("postgresql://ann@db/shop", "x").password
    'x'
    >>> parse_url("shop.db")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the database is invalid. ... [invalid-option]
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(text)
    except (ArgumentError, ValueError):
        raise invalid_url_error() from None
    return parts if password is None else parts.set(password=password)


def invalid_url_error() -> InvalidOption:
    """Return the error for an invalid URL, without the URL."""
    return InvalidOption(
        "The URL of the database is invalid.",
        rule="It must be a SQLAlchemy URL.",
        remedy='Write for example "postgresql://USER@HOST/DATABASE" or "sqlite:///FILE".',
        option="url",
    )


def missing_sqlite_error(path: str, kind: type[E], rule: str) -> E:
    """Return the error for a SQLite file that does not exist."""
    return kind(
        f"There is no SQLite database {path or ':memory:'}.",
        rule=rule,
        remedy="Check the path in the URL: sqlite:////x is absolute, sqlite:///x relative to the working directory.",
        path=path,
    )


def open_engine(url: str, password: str | None = None) -> Any:
    """Return an engine for a URL; PostgreSQL uses psycopg unless the URL names another driver."""
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
            f"No driver is installed for {url_without_credentials(url)}: {error}.",
            rule="A database is read with a driver that SQLAlchemy supports.",
            remedy='Install the driver; for PostgreSQL: pip install "floodmark[postgres]".',
        ) from error
    except (ArgumentError, ValueError):
        raise invalid_url_error() from None


def _require_sqlite_file(database: str | None) -> None:
    # SQLite would create a missing file and then report a missing table.
    if database and database != ":memory:" and not database.startswith("file:") and not Path(database).is_file():
        rule = "The database of the units must exist before a plan is made."
        raise missing_sqlite_error(database, SecondaryInputFailed, rule)


def url_without_credentials(url: str) -> str:
    """Return the URL without user, password and query, for messages."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


_UNREACHABLE_PHRASES: Final = (
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
_ACCESS_PHRASES: Final = ("password", "authentication", "permission denied", "not permitted", "role", "access denied")
_NO_TABLE_PHRASES: Final = ("no such table", "unknown database")


def source_error(error: BaseException, shown: str, secrets: tuple[str, ...] = ()) -> FloodmarkError:
    """Translate an error of a database driver.

    >>> source_error(OSError("IO: connection refused"), "postgresql://db/shop").code
    'source-away'
    """
    state = _sqlstate(error)
    message = _driver_message(error, secrets)
    low = message.lower()
    if state in ("42P01", "3F000", "3D000") or any(text in low for text in _NO_TABLE_PHRASES):
        return unknown_table_error(message, shown)
    if (
        state.startswith("28")
        or state == "42501"
        or (not state and _has_any(low, _ACCESS_PHRASES) and not _has_any(low, _UNREACHABLE_PHRASES))
    ):
        return SourceRefused(
            f"{shown} refuses access: {message}.",
            rule="The user of the URL must be allowed to connect and to SELECT from the tables that are read.",
            remedy="Check the user and the password secret, or grant SELECT to the user.",
        )
    if not state and "does not exist" in low and "database" in low:
        return unknown_table_error(message, shown)
    if state[:2] in ("08", "57", "53") or _has_any(low, _UNREACHABLE_PHRASES):
        return SourceAway(
            f"{shown} cannot be reached, or the connection was lost: {message}.",
            rule="A range is read as a whole or not at all.",
            remedy="Check that the database runs and is reachable. The range stays due; the next run reads it again.",
        )
    return SourceFailed(
        f"{shown} rejects the query: {message}.",
        rule="A source is read by a SELECT with its own conditions and those of the cell.",
        remedy="Check table, query, where and watermark_type of [source] against the database's message.",
        state=state,
    )


def unknown_table_error(message: str, shown: str) -> UnknownTable:
    """Return the error for a missing table or database."""
    return UnknownTable(
        f"{shown} has no such table: {message}.",
        rule="Names are case-sensitive; a dot separates a schema from its table.",
        remedy='Set table to an existing table, such as "schema.name", and check the database in the URL.',
    )


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _sqlstate(error: BaseException) -> str:
    for source in (error, getattr(error, "orig", None)):
        state = getattr(source, "sqlstate", None)
        if isinstance(state, str) and state.strip("\0"):
            return state
    return ""


def _driver_message(error: BaseException, secrets: tuple[str, ...]) -> str:
    """Return the first line of a driver's message, with secrets masked; further lines only quote the query."""
    text = str(getattr(error, "orig", None) or error)
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    line = lines[0]
    for prefix in ("ERROR:", "FATAL:"):
        line = line.partition(prefix)[2].strip() or line
    return line.rstrip(".")[:500]
