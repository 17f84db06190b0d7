"""Everything that is particular to SQLite: how a connection is made, how a transaction begins, what goes wrong.

The rest of this room is portable SQL. Where the home is in another database, this is the file that has a sibling.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DatabaseError

from floodmark.errors import HomeBusy, HomeUnusable

BUSY_SECONDS: Final = 10.0
"""How long a transaction waits for another process before it gives up."""

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


def connect(file: Path, *, create: bool) -> Engine:
    """Return an engine on a file that is made when it is first used, or that must be there.

    Transactions only read, and a write in one is refused; those of `writer_of` it may write.
    """
    # As a URI, since nothing else keeps SQLite from making an empty file of a name that is wrong.
    uri = f"{file.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"

    def open_file() -> sqlite3.Connection:
        # Python would begin transactions at times of its own choosing; isolation_level=None leaves it to us.
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=open_file, poolclass=QueuePool)
    event.listen(engine, "begin", _begin)
    return engine


def writer_of(engine: Engine) -> Engine:
    """Return the same engine, with transactions that write."""
    return engine.execution_options(**{_WRITES: True})


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    # A write in a transaction that is rolled back at its end, as those that read are, would be lost in silence.
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    # A deferred transaction that reads and then writes fails at once if another wrote in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def use_wal(engine: Engine, file: Path) -> None:
    """Let readers and a writer work at the same time. The file remembers it."""
    give_up = monotonic() + BUSY_SECONDS
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
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
                f"The file system of {os.fspath(file)} allows no write-ahead log.",
                rule="SQLite needs one, and a local disk, for readers and a writer at the same time.",
                remedy="Put the home on a local disk.",
                path=os.fspath(file),
            )


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn what SQLite reports of the file, not of a statement, into errors that say what to do."""
    try:
        yield
    except (DatabaseError, sqlite3.DatabaseError) as error:
        reason = error.orig if isinstance(error, DatabaseError) else error
        code = _primary_code(reason)
        if code in _BUSY:
            raise _busy(file) from error
        if code in _UNUSABLE:
            raise HomeUnusable(
                f"The home file {os.fspath(file)} cannot be used: {reason}.",
                rule="It is a SQLite database on a local disk that this user may read and write.",
                remedy="Check disk and permissions; name another home with FLOODMARK_HOME.",
                path=os.fspath(file),
            ) from error
        raise


def _primary_code(error: BaseException | None) -> int:
    # The upper bytes hold details.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _busy(file: Path) -> HomeBusy:
    return HomeBusy(
        f"The home file {os.fspath(file)} was in use for {BUSY_SECONDS:.0f} s.",
        rule="One process writes at a time, and each only for a moment.",
        remedy="Try again; if it stays so, look for a process that hangs while it has the file open.",
        path=os.fspath(file),
    )
