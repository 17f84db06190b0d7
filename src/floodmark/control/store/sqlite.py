"""Everything specific to SQLite: the file, connections, transactions, errors.

`postgres` is the counterpart for PostgreSQL. The rest of the control room is portable SQL.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep, time_ns
from typing import Any, Final

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DatabaseError

from floodmark._util.disk import (
    LATE_DIRECTORY,
    create_private_file,
    make_private,
    make_private_directory,
    sync_to_disk,
)
from floodmark.errors import HomeBusy, HomeUnusable

FILE_NAME: Final = "home.db"

_NAMES: Final = frozenset(f"{FILE_NAME}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")) | {LATE_DIRECTORY}
"""Everything in the directory of a home."""

_APPLICATION_ID: Final = 0x464D524B
_LEAST_BYTES: Final = 512
"""The smallest page of SQLite, which takes a file of 0 or 1 bytes for a new database."""

BUSY_SECONDS: Final = 10.0
"""How long a transaction waits for a lock before it fails."""

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


def create_home_file(directory: Path) -> None:
    """Create the file of a home, and its directory, for this user only. Does nothing if the file exists.

    The file appears with content: an empty one is a home that has lost everything; see `check_home_file`.
    """
    make_private_directory(directory, below=directory.parent)
    file = directory / FILE_NAME
    if os.path.lexists(file):
        return
    draft = directory / f".{FILE_NAME}-{token_hex(8)}"
    with closing(sqlite3.connect(":memory:")) as connection, create_private_file(draft) as content:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        content.write(connection.serialize())
        content.flush()
        os.fsync(content.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        # Another process has created it meanwhile.
        pass
    finally:
        draft.unlink()
    sync_to_disk(directory)


def check_home_file(directory: Path) -> None:
    """Refuse a truncated home file, and take access from other users, whom earlier releases let read it.

    SQLite gives its further files the permissions of this one. The directory may have another purpose too, and is
    changed only if it holds nothing else.
    """
    file = directory / FILE_NAME
    try:
        size = file.stat().st_size
        names = set(os.listdir(directory))
        is_shared = bool(directory.stat().st_mode & stat.S_ISVTX)
    except OSError:
        # The attempt to open the file gives the reason.
        return
    if size < _LEAST_BYTES:
        raise HomeUnusable(
            f"The home file {os.fspath(file)} has {size} bytes.",
            rule=f"A home file has at least {_LEAST_BYTES} bytes; what was in this one is lost, its tokens too.",
            remedy="Restore it from a backup; delete it only if it never was a home.",
            path=os.fspath(file),
        )
    for name in _NAMES:
        make_private(directory / name)
    if names <= _NAMES and not is_shared:
        make_private(directory)


class SqliteStore:
    """An existing SQLite file in a directory."""

    __slots__ = ("_uri", "directory", "file", "reader", "writer")

    def __init__(self, directory: Path) -> None:
        """Connect on first use."""
        self.directory: Path | None = directory
        self.file = directory / FILE_NAME
        # Only a URI with mode=rw keeps SQLite from creating a missing file.
        self._uri = f"{self.file.absolute().as_uri()}?mode=rw"
        self.reader: Engine = create_engine("sqlite://", creator=self._connect, poolclass=QueuePool)
        event.listen(self.reader, "begin", _begin)
        self.writer: Engine = self.reader.execution_options(**{_WRITES: True})

    @property
    def location(self) -> str:
        """The directory, as `Home.open` takes it."""
        return os.fspath(self.file.parent)

    @property
    def address(self) -> str:
        """The directory: it has no secrets."""
        return self.location

    @property
    def shown(self) -> str:
        """The file."""
        return os.fspath(self.file)

    def prepare(self) -> None:
        """Enable write-ahead logging, so that readers and a writer work at the same time. The file stores the mode."""
        with closing(self.reader.raw_connection()) as connection:
            _enable_wal(connection.cursor(), self.shown)

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing: SQLite has one writer at a time."""

    def now(self, connection: Connection) -> int:
        """Return the time of the host."""
        return time_ns() // 1000

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn failures of the file, as opposed to faulty statements, into Floodmark errors."""
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            reason = error.orig if isinstance(error, DatabaseError) else error
            code = _primary_code(reason)
            if code in _BUSY:
                raise HomeBusy(
                    f"The home file {self.shown} was locked for {BUSY_SECONDS:.0f} s.",
                    rule="One process writes at a time, and each transaction is short.",
                    remedy="Retry; if it happens again, look for a hanging process that has the file open (lsof or "
                    "fuser show it).",
                    path=self.shown,
                ) from error
            if code in _UNUSABLE:
                raise HomeUnusable(
                    f"The home file {self.shown} cannot be used: {reason}.",
                    rule="A home file is a SQLite database on a local disk that this user can read and write.",
                    remedy="Check free space and permissions, or set FLOODMARK_HOME to another directory.",
                    path=self.shown,
                ) from error
            raise

    def open_counter_reader(self) -> "SqliteCounterReader":
        """Open a separate connection for polling change counters."""
        return SqliteCounterReader(self._connect())

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: Python must not begin transactions implicitly.
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
    """Caches the counters until another connection writes to the file."""

    __slots__ = ("_cached", "_connection", "_version")

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Poll on this connection, which must not write: data_version ignores a connection's own writes."""
        self._connection = connection
        self._version: int | None = None
        self._cached: dict[tuple[str, ...], dict[str, int]] = {}

    def counters(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, or of all."""
        # Read the version before the counters, so that a change in between is read again, not missed.
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._cached.clear()
        key = tuple(topics)
        if key not in self._cached:
            only = f" WHERE topic IN ({', '.join('?' * len(key))})" if key else ""
            self._cached[key] = dict(self._connection.execute(f"SELECT topic, number FROM change{only}", key))
        return self._cached[key]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    # Read transactions are rolled back, so a write in one would be lost silently: forbid it.
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    if writes:
        _begin_immediate(connection)
    else:
        connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection) -> None:
    """Take the write lock now; a deferred transaction would fail if another one wrote first."""
    raw: Any = connection.connection.driver_connection
    give_up = monotonic() + BUSY_SECONDS
    # Retry every millisecond: SQLite's own busy handler backs off and can wait half a second beside a busy writer.
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
            # The busy timeout does not apply here: of two processes that create a file, one fails at once.
            if _primary_code(error) not in _BUSY or monotonic() > give_up:
                raise
            sleep(0.02)
            continue
        if mode == "wal":
            return
        raise HomeUnusable(
            f"The file system of {shown} does not support SQLite's write-ahead log.",
            rule="A home needs the write-ahead log, which works on local disks only.",
            remedy="Move the home to a local disk and set FLOODMARK_HOME to it.",
            path=shown,
        )


def _primary_code(error: BaseException | None) -> int:
    # The upper bytes hold the extended error code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
