"""The home: a directory with one SQLite file, or a database in PostgreSQL, that keeps everything that must survive."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sqlalchemy import Connection

from floodmark.control.migrations.runner import is_home, migrate
from floodmark.control.store.base import Store
from floodmark.control.store.change_counters import ChangeAnnouncer, ChangeCounters
from floodmark.control.store.postgres import POSTGRES_SCHEMES, PostgresStore, parse_postgres_url
from floodmark.control.store.sqlite import FILE_NAME, SqliteStore
from floodmark.errors import HomeClosed, HomeMissing, HomeUnusable, InvalidOption

HOME_VARIABLE: Final = "FLOODMARK_HOME"


class Home:
    """Where Floodmark keeps what must survive. Many threads and processes may have the same one open.

    >>> with Home.open() as home:
    ...     home.path.name
    'home'

    Each change is one transaction, which is on the disk when `write` ends, or has never been.
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
    def open(cls, where: str | Path | None = None, *, clock: Callable[[], int] | None = None) -> "Home":
        """Open the home at this place, and make it if there is none; bring an older one up to date.

        The place is a directory, or a database: `postgresql://USER@HOST/DATABASE`, which must be there. Without one
        it is where the environment variable FLOODMARK_HOME says, else `.floodmark` in the working directory. A test
        may bring a `clock`, which then stands for that of the store.
        """
        place = _resolve_location(where)
        if isinstance(place, str):
            return cls._open(PostgresStore(parse_postgres_url(place)), clock)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeUnusable(
                f"The home {os.fspath(place)} cannot be made: {error.strerror}.",
                rule="A home is a directory that this user may write to.",
                remedy="Check the path and its permissions; name another home with FLOODMARK_HOME.",
                path=os.fspath(place),
            ) from error
        return cls._open(SqliteStore(place, create=True), clock)

    @classmethod
    def open_existing(cls, where: str | Path | None = None, *, clock: Callable[[], int] | None = None) -> "Home":
        """Open a home that is there; make nothing where there is none.

        >>> Home.open_existing("nowhere")
        Traceback (most recent call last):
        floodmark.errors.HomeMissing: There is no home at ...nowhere. ... [home-missing]
        """
        place = _resolve_location(where)
        if isinstance(place, str):
            return cls._open(PostgresStore(parse_postgres_url(place)), clock, must_exist=True)
        if not (place / FILE_NAME).is_file():
            raise _home_missing(os.fspath(place))
        return cls._open(SqliteStore(place, create=False), clock)

    @classmethod
    def _open(cls, store: Store, clock: Callable[[], int] | None, *, must_exist: bool = False) -> "Home":
        try:
            with store.explained():
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
        """The directory; only a home in SQLite has one. `location` is what every home has."""
        if self._store.directory is None:
            raise HomeUnusable(
                f"The home {self._store.shown} has no directory.",
                rule="A home in SQLite has one; one in PostgreSQL is a database.",
                remedy="Use Home.location, which names either.",
                path=self._store.shown,
            )
        return self._store.directory

    @property
    def location(self) -> str:
        """What opens this home again, in this process or another: the directory, or the URL.

        A URL that was given with a password still has it, or it would open nothing. To show where a home is, use
        `repr`.
        """
        return self._store.location

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection whose changes are kept together at the end, or on an error not at all.

        What you build on, read with a lock (`with_for_update`): it stays true until the end. In SQLite one writes at
        a time, and everything does. In PostgreSQL, lock the row that owns the rest first, then read the rest.

        >>> from sqlalchemy import text
        >>> with Home.open() as home, home.write() as connection:
        ...     connection.execute(text("SELECT COUNT(*) FROM streaming_query")).scalar()
        0
        """
        self._check_open()
        with self._store.explained(), self._store.writer.begin() as connection:
            announcing = ChangeAnnouncer(connection)
            try:
                yield connection
                announcing.count()
            finally:
                announcing.end()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the home from its first statement on, and waits for nobody."""
        self._check_open()
        with self._store.explained(), self._store.reader.connect() as connection:
            yield connection

    def now(self, connection: Connection | None = None) -> int:
        """Return the time in microseconds since the epoch, by the one clock that all who use this home share.

        That is the server's, or for SQLite the host's. It may go back. Inside of a transaction pass its connection.

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

    def changes(self, *topics: str) -> dict[str, int]:
        """Return how often each of these topics has changed, or each that ever did; see `announce_change`.

        It costs so little that a process may ask every 10 ms. Who has seen a number and sees another one reads again.

        >>> with Home.open() as home:
        ...     home.changes("stream/orders", "stream/payments")
        {'stream/orders': 0, 'stream/payments': 0}
        """
        self._check_open()
        return self._counters.read(topics)

    def close(self) -> None:
        """Let go of the store; to say so twice is no error."""
        self._is_closed = True
        is_ours = self._process == os.getpid()
        if is_ours:
            self._counters.close()
        self._store.reader.dispose(close=is_ours)

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
                rule="A home is used between open and close.",
                remedy="Open it again.",
                path=self._shown,
            )
        if self._process != os.getpid():
            # This is the child of a fork. It must not use, nor even close, what the parent has opened.
            self._abandoned += [self._store.reader.pool, self._counters]
            self._store.reader.dispose(close=False)
            self._counters = ChangeCounters(self._store)
            self._process = os.getpid()


def _resolve_location(where: str | Path | None) -> Path | str:
    """Return the directory of a home or the URL of one: as given, or as the environment says, or the default."""
    given = where or os.environ.get(HOME_VARIABLE) or ".floodmark"
    scheme, colon, _ = os.fspath(given).partition(":")
    if isinstance(given, str) and "://" in given:
        if scheme in POSTGRES_SCHEMES:
            return given
        raise InvalidOption(
            f"The home is at {scheme}://...",
            rule="A home is a local directory, or a database at postgresql://...",
            remedy="Name one of these; an object store or another database cannot hold a home.",
            scheme=scheme,
        )
    if colon and scheme in POSTGRES_SCHEMES:
        raise InvalidOption(
            "A URL was given as a path, which changes it.",
            rule="A directory may be a path; a URL is a string.",
            remedy="Pass the URL itself, as 'postgresql://...'.",
            scheme=scheme,
        )
    return Path(given).absolute()


def _home_missing(shown: str) -> HomeMissing:
    return HomeMissing(
        f"There is no home at {shown}.",
        rule=f"A home is a directory with the file {FILE_NAME}, or a database; a query with a watermark makes it.",
        remedy=f"Name it, or set {HOME_VARIABLE}, or change to where the query was started.",
        path=shown,
    )
