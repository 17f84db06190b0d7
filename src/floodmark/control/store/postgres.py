"""Everything specific to PostgreSQL: its URL, transactions, errors.

**Write transactions are READ COMMITTED and lock the rows they depend on** (`with_for_update`). After waiting for a lock
a transaction sees the committed state and continues. Under SERIALIZABLE it would fail instead, also on false conflicts,
and only the caller could retry it. Locked data has an owner, such as an incarnation, a stream or a lease: lock the
owner's row first, then read the data in another statement.

**Read transactions are REPEATABLE READ**: they see one snapshot and never wait for a lock.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from floodmark._util.retry import retry_while
from floodmark.errors import Conflict, FloodmarkError, HomeBusy, HomeUnusable, InvalidOption, MissingPackage

POSTGRES_SCHEMES: Final = ("postgresql", "postgresql+psycopg", "postgres")

_URL_RULE: Final = "The form is postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE; each part is optional."
_URL_REMEDY: Final = (
    "Percent-encode special characters of user and password ('@' is %40, '/' is %2F), or move the password to "
    "PGPASSWORD or ~/.pgpass."
)


LOCK_SECONDS: Final = 10
"""How long a transaction waits for a lock before it fails."""

IDLE_SECONDS: Final = 60
"""The server ends a transaction that is idle for so long, to free the locks of a client that is gone."""

_CONNECT_SECONDS: Final = 10
# An arbitrary id, not used by other programs for advisory locks in the same database.
_SCHEMA_LOCK: Final = 0x666C_6F6F_646D_6B00
_NOW: Final = text("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT")

_LOST_RACE: Final = ("40001", "40P01")
_WAITED: Final = ("55P03", "57014")
# Connection, authentication, unknown database, permission, read-only, resources, shutdown, corruption.
_UNUSABLE: Final = ("08", "25006", "25P03", "28", "3D", "42501", "53", "57P", "58", "XX")


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A parsed URL, and its form without the password.

    >>> url = parse_postgres_url("postgresql+psycopg://ann:secret@db.example:5433/marks")
    >>> url.shown
    'postgresql://ann:***@db.example:5433/marks'
    >>> url
    PostgresUrl(shown='postgresql://ann:***@db.example:5433/marks')
    """

    location: str = field(repr=False)
    parameters: dict[str, Any] = field(repr=False)
    shown: str
    address: str = field(repr=False)
    """The URL without secrets; it opens the same database where the server's client library finds the password."""


class PostgresStore:
    """A database of a PostgreSQL server."""

    __slots__ = ("_found_password", "_is_reached", "_parameters", "_patience", "_psycopg", "_url", "reader", "writer")

    def __init__(self, url: PostgresUrl, *, patience: float = 0.0) -> None:
        """Connect on first use. If the server goes away later, wait up to `patience` seconds for its return."""
        self._url = url
        self._found_password = ""
        self._patience = patience
        self._is_reached = False
        self._psycopg = load_psycopg()
        defaults = f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
        # The last option of a name wins, so options of the URL override the defaults.
        self._parameters = {
            "connect_timeout": _CONNECT_SECONDS,
            "fallback_application_name": "floodmark",
            **url.parameters,
            "options": f"{defaults} {url.parameters.get('options', '')}".rstrip(),
        }
        engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_pre_ping=True,
            use_native_hstore=False,
            isolation_level="READ COMMITTED",
        )
        self.reader: Engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self.writer: Engine = engine

    @property
    def location(self) -> str:
        """The URL, as `Home.open` takes it, with the password that was found in the environment or a password file."""
        if not self._found_password or "password" in self._url.parameters:
            return self._url.location
        joint = "&" if "?" in self._url.location else "?"
        return f"{self._url.location}{joint}password={quote(self._found_password, safe='')}"

    @property
    def address(self) -> str:
        """The URL without secrets."""
        return self._url.address

    @property
    def shown(self) -> str:
        """The URL, without a password."""
        return self._url.shown

    @property
    def directory(self) -> Path | None:
        """None: a database has no directory."""
        return None

    def prepare(self) -> None:
        """Do nothing: the administrator of the server creates the database."""

    def lock_schema(self, connection: Connection) -> None:
        """Block other schema changes until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _SCHEMA_LOCK})

    def now(self, connection: Connection) -> int:
        """Return the current time of the server, not the start time of the transaction."""
        now: int = connection.execute(_NOW).scalar_one()
        return now

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn failures of the server, as opposed to faulty statements, into Floodmark errors."""
        try:
            yield
        except (DBAPIError, self._psycopg.Error) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            translated = self._translate(reason)
            if translated is None:
                raise
            raise translated from error

    def open_counter_reader(self) -> "PostgresCounterReader":
        """Open a separate connection for polling change counters."""
        return PostgresCounterReader(self._connect(autocommit=True))

    def _connect(self, **options: Any) -> Any:
        """Connect. A server that was reached before may be restarting. Nothing was sent yet, so waiting is safe."""
        connection = retry_while(
            lambda: self._psycopg.connect(**self._parameters, **options),
            lambda error: isinstance(error, self._psycopg.OperationalError) and _is_away(error),
            self._patience if self._is_reached else 0.0,
        )
        self._is_reached = True
        self._found_password = connection.pgconn.password.decode()
        return connection

    def _translate(self, reason: object) -> FloodmarkError | None:
        code: str | None = getattr(reason, "sqlstate", None)
        message = " ".join(str(reason).split())
        if code in _LOST_RACE:
            return Conflict(
                f"A transaction in {self.shown} was rolled back because of a concurrent one: {message}.",
                rule="The server rolls one of several conflicting transactions back; it has changed nothing.",
                remedy="Retry the operation from the beginning.",
                path=self.shown,
                sqlstate=code,
            )
        if code in _WAITED:
            return HomeBusy(
                f"A lock in the home {self.shown} was held for too long: {message}.",
                rule=f"A transaction waits at most {LOCK_SECONDS} s for a lock.",
                remedy="Retry; if it happens again, look in pg_stat_activity for a transaction that does not end.",
                path=self.shown,
                sqlstate=code,
            )
        # Without an SQLSTATE the server was not reached.
        if code is None and not isinstance(reason, self._psycopg.OperationalError):
            return None
        if code is not None and not code.startswith(_UNUSABLE):
            return None
        return HomeUnusable(
            f"The home {self.shown} cannot be used: {message}.",
            rule="A home in PostgreSQL needs a running server, an existing database, and a user that can create, "
            "read and "
            "write tables in it.",
            remedy="Check server, database, user and password; create a missing database with createdb.",
            path=self.shown,
            sqlstate=code,
            is_away=_is_away(reason),
        )


def _is_away(error: object) -> bool:
    """Return whether the server was not reached, or is shutting down or starting up, rather than refusing."""
    code: str | None = getattr(error, "sqlstate", None)
    return code is None or code.startswith(("08", "57P"))


class PostgresCounterReader:
    """Reads the counters with one statement, outside of any transaction."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        """Poll on this connection."""
        self._connection = connection

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all."""
        only, parameters = (" WHERE topic = ANY(%s)", [list(topics)]) if topics else ("", None)
        return dict(self._connection.execute(f"SELECT topic, number FROM change{only}", parameters).fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def parse_postgres_url(url: str) -> PostgresUrl:
    """Parse the URL of a home, or raise an error that shows no part of the password.

    >>> parse_postgres_url("postgresql://ann:se@cret@db.example/marks")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the home cannot be read. ... [invalid-option]
    """
    psycopg = load_psycopg()
    location = f"postgresql://{url.partition('://')[2]}"
    try:
        parameters = psycopg.conninfo.conninfo_to_dict(location)
    except psycopg.ProgrammingError:
        # The cause may quote a piece of the password.
        raise _url_unreadable() from None
    ports = str(parameters.get("port", "")).replace(",", "")
    # An unescaped '@' or '/' in a password moves the rest of it into the host or database name.
    if "@" in f"{parameters.get('host')}{parameters.get('dbname')}" or (ports and not ports.isdecimal()):
        raise _url_unreadable()
    return PostgresUrl(location, dict(parameters), _redacted_url(parameters), _without_secrets(location))


def load_psycopg() -> Any:
    """Return the module psycopg, or raise `MissingPackage`."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise MissingPackage(
            "The home is in PostgreSQL, and the package psycopg cannot be loaded.",
            rule="A home in PostgreSQL needs psycopg; a home in a directory does not.",
            remedy='Install it: pip install "floodmark[postgres]".',
            package="psycopg",
        ) from error
    return psycopg


_SECRET_PARAMETERS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


def _without_secrets(location: str) -> str:
    """Return a URL without its password and other secrets.

    >>> _without_secrets("postgresql://ann:secret@one,two:5433/marks?sslmode=require&password=secret")
    'postgresql://ann@one,two:5433/marks?sslmode=require'
    >>> _without_secrets("postgresql://:secret@/marks?password=secret")
    'postgresql:///marks'
    """
    base, _, query = location.partition("?")
    authority, slash, database = base.removeprefix("postgresql://").partition("/")
    login, at, hosts = authority.rpartition("@")
    user = login.partition(":")[0]
    kept = [option for option in query.split("&") if option and option.partition("=")[0] not in _SECRET_PARAMETERS]
    return f"postgresql://{user}{at if user else ''}{hosts}{slash}{database}{'?' if kept else ''}{'&'.join(kept)}"


def _redacted_url(parameters: dict[str, Any]) -> str:
    hosts, ports = str(parameters.get("host", "")), str(parameters.get("port", ""))
    user = quote(str(parameters.get("user", "")), safe="")
    login = f"{user}:***@" if "password" in parameters else f"{user}@" if user else ""
    is_socket = hosts.startswith("/")
    address = "" if is_socket else f"[{hosts}]" if hosts.count(":") > 1 else hosts
    port = f":{ports}" if ports else ""
    return f"postgresql://{login}{address}{port}/{parameters.get('dbname', '')}{f'?host={hosts}' if is_socket else ''}"


def _url_unreadable() -> InvalidOption:
    return InvalidOption("The URL of the home cannot be read.", rule=_URL_RULE, remedy=_URL_REMEDY)
