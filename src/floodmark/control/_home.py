"""The home: one directory with one SQLite file, in which everything that must survive is kept."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from sqlalchemy import Connection, Engine, Pool

from floodmark.control._migrations import migrate
from floodmark.control._sqlite import connect, explained, writer_of
from floodmark.errors import HomeClosed, HomeMissing, HomeUnusable

HOME_VARIABLE: Final = "FLOODMARK_HOME"
FILE_NAME: Final = "home.db"


class Home:
    """Where Floodmark keeps what must survive. Many threads and processes may have the same one open.

    >>> with Home.open() as home:
    ...     home.path.name
    'home'

    Each change is one transaction, which is on the disk when `write` ends, or has never been.
    """

    __slots__ = ("_abandoned", "_engine", "_file", "_is_closed", "_path", "_process", "_writer")

    def __init__(self, path: Path, engine: Engine) -> None:
        """Use `Home.open` or `Home.open_existing`."""
        self._path = path
        self._file = path / FILE_NAME
        self._engine = engine
        self._writer = writer_of(engine)
        self._process = os.getpid()
        self._abandoned: list[Pool] = []
        self._is_closed = False

    @classmethod
    def open(cls, path: str | Path | None = None) -> "Home":
        """Open the home in this directory, and make it if there is none; bring an older one up to date.

        Without a path it is where the environment variable FLOODMARK_HOME says, else `.floodmark` in the working
        directory.
        """
        directory = home_directory(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeUnusable(
                f"The home {os.fspath(directory)} cannot be made: {error.strerror}.",
                rule="A home is a directory that this user may write to.",
                remedy="Check the path and its permissions; name another home with FLOODMARK_HOME.",
                path=os.fspath(directory),
            ) from error
        return cls._open(directory, create=True)

    @classmethod
    def open_existing(cls, path: str | Path | None = None) -> "Home":
        """Open a home that is there; make nothing where there is none.

        >>> Home.open_existing("nowhere")
        Traceback (most recent call last):
        floodmark.errors.HomeMissing: There is no home at ...nowhere. ... [home-missing]
        """
        directory = home_directory(path)
        if not (directory / FILE_NAME).is_file():
            raise HomeMissing(
                f"There is no home at {os.fspath(directory)}.",
                rule=f"A home is a directory with the file {FILE_NAME}, which a query with a watermark makes.",
                remedy=f"Name its directory, or set {HOME_VARIABLE}, or change to where the query was started.",
                path=os.fspath(directory),
            )
        return cls._open(directory, create=False)

    @classmethod
    def _open(cls, directory: Path, *, create: bool) -> "Home":
        file = directory / FILE_NAME
        engine = connect(file, create=create)
        try:
            with explained(file):
                migrate(engine, file)
        except BaseException:
            engine.dispose()
            raise
        return cls(directory, engine)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection whose changes are kept together at the end, or on an error not at all.

        One writes at a time, so what is read in here stays true until the end.

        >>> from sqlalchemy import text
        >>> with Home.open() as home, home.write() as connection:
        ...     connection.execute(text("SELECT COUNT(*) FROM streaming_query")).scalar()
        0
        """
        self._check_open()
        with explained(self._file), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the home from its first statement on, and waits for nobody."""
        self._check_open()
        with explained(self._file), self._engine.connect() as connection:
            yield connection

    def close(self) -> None:
        """Let go of the file; to say so twice is no error."""
        self._is_closed = True
        self._engine.dispose(close=self._process == os.getpid())

    def __enter__(self) -> "Home":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise HomeClosed(
                f"The home {os.fspath(self._path)} has been closed.",
                rule="A home is used between open and close.",
                remedy="Open it again.",
                path=os.fspath(self._path),
            )
        if self._process != os.getpid():
            # This is the child of a fork. SQLite must not use, nor even close, what the parent has opened.
            self._abandoned.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._process = os.getpid()


def home_directory(path: str | Path | None) -> Path:
    """Return where the home is: `path`, or what the environment says, or the default."""
    return Path(path or os.environ.get(HOME_VARIABLE) or ".floodmark").absolute()
