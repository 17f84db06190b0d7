"""The home: a directory with one SQLite file, or a PostgreSQL database, that holds all durable state."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sqlalchemy import Column, Connection, select, update

from floodmark.control.migrations.runner import is_home, migrate
from floodmark.control.store.base import Store
from floodmark.control.store.change_counters import ChangeAnnouncer, ChangeCounters
from floodmark.control.store.postgres import POSTGRES_SCHEMES, PostgresStore, parse_postgres_url
from floodmark.control.store.sqlite import FILE_NAME, SqliteStore, check_home_file, create_home_file
from floodmark.errors import HomeClosed, HomeMissing, HomeUnusable, InvalidOption

HOME_VARIABLE: Final = "FLOODMARK_HOME"


class Home:
    """The store of Floodmark's durable state. Many threads and processes of a user may open the same home.

    >>> with Home.open() as home:
    ...     home.path.name
    'home'

    Each change is one transaction. It is durable when `write` returns.
    """

    __slots__ = ("_abandoned", "_clock", "_counters", "_is_closed", "_process", "_store")

    def __init__(self, store: Store, clock: Callable[[], int] | None = None) -> None:
        """Use `Home.open` or `Home.open_existing`."""
        self._store = store
        self._clock = clock
        self._counters = ChangeCounters(store)
        self._process = os.getpid()
        self._abandoned: list[Any] = []
        self._is_closed = False

    @classmethod
    def open(
        cls, where: str | Path | None = None, *, clock: Callable[[], int] | None = None, patience: float = 0.0
    ) -> "Home":
        """Open the home at `where`, creating it if it does not exist and migrating it if it is older.

        `where` is a directory, or the URL of an existing database, `postgresql://USER@HOST/DATABASE`. The default is
        the environment variable FLOODMARK_HOME, else `.floodmark` in the working directory. Other users have no access
        to the directory: several of them share a home through a service, or in PostgreSQL. If a PostgreSQL server goes
        away later, each operation waits up to `patience` seconds for its return before it fails. A test may pass a
        `clock` that replaces the store's.
        """
        location = _resolve_location(where)
        if isinstance(location, str):
            return cls._open(PostgresStore(parse_postgres_url(location), patience=patience), clock)
        try:
            create_home_file(location)
        except OSError as error:
            raise HomeUnusable(
                f"The home {os.fspath(location)} cannot be created: {error.strerror}.",
                rule="A home is a directory that this user can write to.",
                remedy="Check the path and its permissions, or set FLOODMARK_HOME to another directory.",
                path=os.fspath(location),
            ) from error
        check_home_file(location)
        return cls._open(SqliteStore(location), clock)

    @classmethod
    def open_existing(cls, where: str | Path | None = None, *, clock: Callable[[], int] | None = None) -> "Home":
        """Open an existing home; raise `HomeMissing` where there is none.

        >>> Home.open_existing("nowhere")
        Traceback (most recent call last):
        floodmark.errors.HomeMissing: There is no home at ...nowhere. ... [home-missing]
        """
        location = _resolve_location(where)
        if isinstance(location, str):
            return cls._open(PostgresStore(parse_postgres_url(location)), clock, must_exist=True)
        if not (location / FILE_NAME).is_file():
            raise _home_missing(os.fspath(location))
        check_home_file(location)
        return cls._open(SqliteStore(location), clock)

    @classmethod
    def _open(cls, store: Store, clock: Callable[[], int] | None, *, must_exist: bool = False) -> "Home":
        try:
            with store.translate_errors():
                if must_exist:
                    with store.reader.connect() as connection:
                        if not is_home(connection):
                            raise _home_missing(store.shown)
                migrate(store)
        except BaseException:
            store.reader.dispose()
            raise
        return cls(store, clock)

    @property
    def path(self) -> Path:
        """The directory of a home in SQLite. `location` works for every home."""
        if self._store.directory is None:
            raise HomeUnusable(
                f"The home {self._store.shown} has no directory.",
                rule="Only a home in SQLite has a directory; a home in PostgreSQL is a database.",
                remedy="Use Home.location, which works for both.",
                path=self._store.shown,
            )
        return self._store.directory

    @property
    def location(self) -> str:
        """The directory or URL that opens this home again, in this process or another.

        The URL includes its password, also one that was found in the environment or in a password file. Use `address`
        where it may be seen, and `repr` for logs and messages.
        """
        return self._store.location

    @property
    def address(self) -> str:
        """The location without its password; it opens the home where PGPASSWORD or a password file has that."""
        return self._store.address

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that writes: committed at the end of the block, rolled back on an error.

        Read what the change depends on with a lock (`with_for_update`), so that it cannot change before the commit. In
        PostgreSQL, lock the owning row first, then read the rows that belong to it. SQLite has one writer at a time.

        >>> from sqlalchemy import text
        >>> with Home.open() as home, home.write() as connection:
        ...     connection.execute(text("SELECT COUNT(*) FROM streaming_query")).scalar()
        0
        """
        self._check_open()
        with self._store.translate_errors(), self._store.writer.begin() as connection:
            announcer = ChangeAnnouncer(connection)
            try:
                yield connection
                announcer.count()
            finally:
                announcer.end()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction that sees one snapshot of the home and never waits for a lock."""
        self._check_open()
        with self._store.translate_errors(), self._store.reader.connect() as connection:
            yield connection

    def now(self, connection: Connection | None = None) -> int:
        """Return the store's time in microseconds since the epoch; all processes that use this home share this clock.

        It is the clock of the PostgreSQL server, or of the host for SQLite, and may be set back. Inside a transaction,
        pass its connection.

        >>> with Home.open(clock=lambda: 60_000_000) as home:
        ...     home.now()
        60000000
        """
        self._check_open()
        if self._clock is not None:
            return self._clock()
        if connection is not None:
            return self._store.now(connection)
        with self.read() as reading:
            return self._store.now(reading)

    def rewind_times(self, column: Column[Any], name: Column[Any]) -> None:
        """Store the current time in place of later ones in a column, row by row; see `floodmark._util.times.past_time`.

        `name` is the column that the rows are found by. Each row has a transaction of its own, to avoid deadlocks.
        """
        with self.read() as reading:
            is_ahead = column > self.now(reading)
            names = reading.execute(select(name).where(is_ahead)).scalars().all()
        for value in names:
            with self.write() as connection:
                now = self.now(connection)
                connection.execute(update(column.table).where(name == value, column > now).values({column: now}))

    def changes(self, *topics: str) -> dict[str, int]:
        """Return the change counters of these topics, or of all topics; see `announce_change`.

        Cheap enough to poll every 10 ms. A process that sees a counter move reads the changed data again.

        >>> with Home.open() as home:
        ...     home.changes("stream/orders", "stream/payments")
        {'stream/orders': 0, 'stream/payments': 0}
        """
        self._check_open()
        return self._counters.read(topics)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._is_closed = True
        opened_here = self._process == os.getpid()
        if opened_here:
            self._counters.close()
        self._store.reader.dispose(close=opened_here)

    def __enter__(self) -> "Home":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Home({self._shown!r})"

    @property
    def _shown(self) -> str:
        return self._store.shown if self._store.directory is None else self._store.location

    def _check_open(self) -> None:
        if self._is_closed:
            raise HomeClosed(
                f"The home {self._shown} has been closed.",
                rule="A closed home cannot be used.",
                remedy="Open it again with Home.open().",
                path=self._shown,
            )
        if self._process != os.getpid():
            # After a fork: the child must neither use nor close the connections of its parent.
            self._abandoned += [self._store.reader.pool, self._counters]
            self._store.reader.dispose(close=False)
            self._counters = ChangeCounters(self._store)
            self._process = os.getpid()


def _resolve_location(where: str | Path | None) -> Path | str:
    """Return the directory or URL of a home: the argument, else the environment variable, else the default."""
    location = where or os.environ.get(HOME_VARIABLE) or ".floodmark"
    scheme, colon, _ = os.fspath(location).partition(":")
    if isinstance(location, str) and "://" in location:
        if scheme in POSTGRES_SCHEMES:
            return location
        raise InvalidOption(
            f"The location of the home begins with {scheme}://.",
            rule="A home is a local directory or a PostgreSQL database; object stores and other databases cannot "
            "hold one.",
            remedy="Use a directory such as '.floodmark', or a URL such as 'postgresql://USER@HOST/DATABASE'.",
            scheme=scheme,
        )
    if colon and scheme in POSTGRES_SCHEMES:
        raise InvalidOption(
            "The URL of the home was passed as a Path, which removes one of its slashes.",
            rule="A directory may be a Path; a URL must be a string.",
            remedy="Pass the URL as a string: 'postgresql://USER@HOST/DATABASE'.",
            scheme=scheme,
        )
    return Path(location).absolute()


def _home_missing(shown: str) -> HomeMissing:
    return HomeMissing(
        f"There is no home at {shown}.",
        rule=f"A home is a directory with the file {FILE_NAME}, or a database; the first query or stream creates it.",
        remedy=f"Set {HOME_VARIABLE} to the home, or change to the directory in which the query was started.",
        path=shown,
    )
