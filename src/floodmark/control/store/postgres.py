"""Everything that is particular to PostgreSQL: its URL, how a transaction begins, what goes wrong.

**Transactions that write are READ COMMITTED, and lock the rows that they build on** (`with_for_update`). A
transaction that waited for a lock then reads what the one before it has left, and goes on. Under SERIALIZABLE it
would fail instead, and so would others that never met it; nobody but the caller could run it again. What a lock
guards has an owner, such as an incarnation, a stream or a lease: lock the owner's row first, then read in another
statement.

**Transactions that only read are REPEATABLE READ**: they see one state, and wait for nobody.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from floodmark.errors import Conflict, FloodmarkError, HomeBusy, HomeUnusable, InvalidOption, MissingPackage

POSTGRES_SCHEMES: Final = ("postgresql", "postgresql+psycopg", "postgres")

_URL_RULE: Final = "It is postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE; each part may be missing."
_URL_REMEDY: Final = (
    "Write a special character of a user or password as %XX ('@' is %40, '/' is %2F), or leave the password to "
    "PGPASSWORD or ~/.pgpass."
)


LOCK_SECONDS: Final = 10
"""How long a transaction waits for another one before it gives up."""

IDLE_SECONDS: Final = 60
"""After so long without a statement a transaction is ended by the server: a host that is gone must free its locks."""

_CONNECT_SECONDS: Final = 10
# Any number that no other program uses for a lock in the same database.
_SCHEMA_LOCK: Final = 0x666C_6F6F_646D_6B00
_NOW: Final = text("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT")

_LOST_RACE: Final = ("40001", "40P01")
_WAITED: Final = ("55P03", "57014")
# No connection, no such user or database, not allowed, read-only, out of something, shut down, damaged.
_UNUSABLE: Final = ("08", "25006", "25P03", "28", "3D", "42501", "53", "57P", "58", "XX")


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that has been read.

    >>> url = parse_postgres_url("postgresql+psycopg://ann:secret@db.example:5433/marks")
    >>> url.shown
    'postgresql://ann:***@db.example:5433/marks'
    >>> url
    PostgresUrl(shown='postgresql://ann:***@db.example:5433/marks')
    """

    location: str = field(repr=False)
    parameters: dict[str, Any] = field(repr=False)
    shown: str


class PostgresStore:
    """A database of a PostgreSQL server."""

    __slots__ = ("_parameters", "_psycopg", "_url", "reader", "writer")

    def __init__(self, url: PostgresUrl) -> None:
        """Connect to nothing yet."""
        self._url = url
        self._psycopg = load_psycopg()
        ours = f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
        # Of two options of one name the last one holds: that of the URL.
        self._parameters = {
            "connect_timeout": _CONNECT_SECONDS,
            "fallback_application_name": "floodmark",
            **url.parameters,
            "options": f"{ours} {url.parameters.get('options', '')}".rstrip(),
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
        """The URL, as `Home.open` takes it."""
        return self._url.location

    @property
    def shown(self) -> str:
        """The URL, without a password."""
        return self._url.shown

    @property
    def directory(self) -> Path | None:
        """There is none."""
        return None

    def prepare(self) -> None:
        """Do nothing: the database is made by whoever runs the server."""

    def lock_schema(self, connection: Connection) -> None:
        """Keep others from changing the schema until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _SCHEMA_LOCK})

    def now(self, connection: Connection) -> int:
        """Return the time by the clock of the server, which goes on while a transaction lasts."""
        now: int = connection.execute(_NOW).scalar_one()
        return now

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what goes wrong with the server, not with a statement, into errors that say what to do."""
        try:
            yield
        except (DBAPIError, self._psycopg.Error) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            explanation = self._explanation(reason)
            if explanation is None:
                raise
            raise explanation from error

    def watch(self) -> "PostgresCounterReader":
        """Open a connection for somebody who polls."""
        return PostgresCounterReader(self._connect(autocommit=True))

    def _connect(self, **options: Any) -> Any:
        return self._psycopg.connect(**self._parameters, **options)

    def _explanation(self, reason: object) -> FloodmarkError | None:
        code: str | None = getattr(reason, "sqlstate", None)
        said = " ".join(str(reason).split())
        if code in _LOST_RACE:
            return Conflict(
                f"Another transaction in {self.shown} came first: {said}.",
                rule="Of transactions that wait for each other one is given up, and has changed nothing.",
                remedy="Do it again from the beginning.",
                path=self.shown,
                sqlstate=code,
            )
        if code in _WAITED:
            return HomeBusy(
                f"The home {self.shown} was in use for too long: {said}.",
                rule="A transaction keeps others waiting only for a moment.",
                remedy="Try again; if it stays so, look in pg_stat_activity for a transaction that does not end.",
                path=self.shown,
                sqlstate=code,
            )
        # Without a code there was no server to give one.
        if code is None and not isinstance(reason, self._psycopg.OperationalError):
            return None
        if code is not None and not code.startswith(_UNUSABLE):
            return None
        return HomeUnusable(
            f"The home {self.shown} cannot be used: {said}.",
            rule="It is a database on a PostgreSQL server that runs, whose user may make, read and write tables in it.",
            remedy="Check server, database, user and password; make a database that is missing with createdb.",
            path=self.shown,
            sqlstate=code,
        )


class PostgresCounterReader:
    """Reads the counters with one statement, outside of any transaction."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        """Poll by this connection."""
        self._connection = connection

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all."""
        only, parameters = (" WHERE topic = ANY(%s)", [list(topics)]) if topics else ("", None)
        return dict(self._connection.execute(f"SELECT topic, number FROM change{only}", parameters).fetchall())

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def parse_postgres_url(url: str) -> PostgresUrl:
    """Return the parts of a URL, or refuse it without showing what may be a part of a password.

    >>> parse_postgres_url("postgresql://ann:se@cret@db.example/marks")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the home cannot be read. ... [invalid-option]
    """
    psycopg = load_psycopg()
    location = f"postgresql://{url.partition('://')[2]}"
    try:
        parameters = psycopg.conninfo.conninfo_to_dict(location)
    except psycopg.ProgrammingError:
        # What it says may quote a piece of a password.
        raise _url_unreadable() from None
    ports = str(parameters.get("port", "")).replace(",", "")
    # A bare '@' or '/' in a password moves the rest of it into another part.
    if "@" in f"{parameters.get('host')}{parameters.get('dbname')}" or (ports and not ports.isdecimal()):
        raise _url_unreadable()
    return PostgresUrl(location, dict(parameters), _redacted_url(parameters))


def load_psycopg() -> Any:
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


def _redacted_url(parameters: dict[str, Any]) -> str:
    hosts, ports = str(parameters.get("host", "")), str(parameters.get("port", ""))
    user = quote(str(parameters.get("user", "")), safe="")
    who = f"{user}:***@" if "password" in parameters else f"{user}@" if user else ""
    is_socket = hosts.startswith("/")
    where = "" if is_socket else f"[{hosts}]" if hosts.count(":") > 1 else hosts
    port = f":{ports}" if ports else ""
    return f"postgresql://{who}{where}{port}/{parameters.get('dbname', '')}{f'?host={hosts}' if is_socket else ''}"


def _url_unreadable() -> InvalidOption:
    return InvalidOption("The URL of the home cannot be read.", rule=_URL_RULE, remedy=_URL_REMEDY)
