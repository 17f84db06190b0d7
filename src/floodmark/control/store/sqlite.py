"""Everything that is particular to SQLite: how a connection is made, how a transaction begins, what goes wrong.

Its sibling for PostgreSQL is `postgres`. The rest of the control room is portable SQL.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import Any, Final

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DatabaseError

from floodmark.errors import HomeBusy, HomeUnusable

FILE_NAME: Final = "home.db"

BUSY_SECONDS: Final = 10.0
"""How long a transaction waits for another process before it gives up."""

_RETRY_SECONDS: Final = 0.001
_WRITES: Final = "floodmark_writes"
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNUSABLE: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


class SqliteStore:
    """A file in a directory, which is made when it is first used, or which must be there."""

    __slots__ = ("_uri", "directory", "file", "reader", "writer")

    def __init__(self, directory: Path, *, create: bool) -> None:
        """Open nothing yet."""
        self.directory: Path | None = directory
        self.file = directory / FILE_NAME
        # As a URI, since nothing else keeps SQLite from making an empty file of a name that is wrong.
        self._uri = f"{self.file.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        self.reader: Engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool)
        event.listen(self.reader, "begin", _begin)
        self.writer: Engine = self.reader.execution_options(**{_WRITES: True})

    @property
    def location(self) -> str:
        """The directory, as `Home.open` takes it."""
        return os.fspath(self.file.parent)

    @property
    def shown(self) -> str:
        """The file."""
        return os.fspath(self.file)

    def prepare(self) -> None:
        """Let readers and a writer work at the same time. The file remembers it."""
        with closing(self.reader.raw_connection()) as connection:
            _enable_wal(connection.cursor(), self.shown)

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing: one writes at a time."""

    def now(self, connection: Connection) -> int:
        """Return the time by the clock of the host, the only one that has the file open."""
        return time_ns() // 1000

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what SQLite reports of the file, not of a statement, into errors that say what to do."""
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            reason = error.orig if isinstance(error, DatabaseError) else error
            code = _primary_code(reason)
            if code in _BUSY:
                raise HomeBusy(
                    f"The home file {self.shown} was in use for {BUSY_SECONDS:.0f} s.",
                    rule="One process writes at a time, and each only for a moment.",
                    remedy="Try again; if it stays so, look for a process that hangs while it has the file open.",
                    path=self.shown,
                ) from error
            if code in _UNUSABLE:
                raise HomeUnusable(
                    f"The home file {self.shown} cannot be used: {reason}.",
                    rule="It is a SQLite database on a local disk that this user may read and write.",
                    remedy="Check disk and permissions; name another home with FLOODMARK_HOME.",
                    path=self.shown,
                ) from error
            raise

    def watch(self) -> "SqliteCounterReader":
        """Open a connection for somebody who polls."""
        return SqliteCounterReader(self._connect())

    def _connect(self) -> sqlite3.Connection:
        # Python would begin transactions at times of its own choosing; isolation_level=None leaves it to us.
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection


class SqliteCounterReader:
    """Reads the counters again only if anything has been written to the file since."""

    __slots__ = ("_connection", "_known", "_version")

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Poll by this connection, by which nobody writes: SQLite does not count what a connection does itself."""
        self._connection = connection
        self._version: int | None = None
        self._known: dict[tuple[str, ...], dict[str, int]] = {}

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all."""
        # Asked for before they are read: what comes in between is then read twice, and not missed.
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._known.clear()
        wanted = tuple(topics)
        if wanted not in self._known:
            only = f" WHERE topic IN ({', '.join('?' * len(wanted))})" if wanted else ""
            self._known[wanted] = dict(self._connection.execute(f"SELECT topic, number FROM change{only}", wanted))
        return self._known[wanted]

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    # A write in a transaction that is rolled back at its end, as those that read are, would be lost in silence.
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    if writes:
        _begin_immediate(connection)
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection) -> None:
    """Begin when nobody else writes. A deferred transaction would fail at once if another wrote before it does."""
    raw: Any = connection.connection.driver_connection
    give_up = monotonic() + BUSY_SECONDS
    # Left to itself, SQLite looks less and less often: beside a busy writer others then wait for half a second.
    raw.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                raw.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if _primary_code(error) not in _BUSY or monotonic() > give_up:
                    raise
                sleep(_RETRY_SECONDS)
    finally:
        raw.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


def _enable_wal(cursor: Any, shown: str) -> None:
    give_up = monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # SQLite does not wait here as it does elsewhere: of two processes at a new file one is refused at once.
            if _primary_code(error) not in _BUSY or monotonic() > give_up:
                raise
            sleep(0.02)
            continue
        if mode == "wal":
            return
        raise HomeUnusable(
            f"The file system of {shown} allows no write-ahead log.",
            rule="SQLite needs one, and a local disk, for readers and a writer at the same time.",
            remedy="Put the home on a local disk.",
            path=shown,
        )


def _primary_code(error: BaseException | None) -> int:
    # The upper bytes hold details.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
