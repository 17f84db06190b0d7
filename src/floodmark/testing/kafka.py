"""A real Kafka broker for tests, private to the program that starts it; its jars are fetched once a user."""

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from floodmark.errors import MissingPackage, ServerNotStarted
from floodmark.testing.servers import LocalServer, free_ports

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0

_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # One broker keeps one copy of everything.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # So that a test of a transaction that takes too long is over soon.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A topic that is deleted goes at once.
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
# It waits until the one that was killed counts as gone, by default nine seconds.
_AFTER_A_KILL: Final = (
    "--override=broker.session.timeout.ms=2000",
    "--override=broker.heartbeat.interval.ms=500",
)
_LOGGING: Final = """status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c %m%n
"""
# Its input ends when this program stops the broker, and also when this program is killed. Then the broker must stop.
_UNTIL_INPUT_ENDS: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
broker=$!
echo $broker > "$0"
{ read -r _ <&3; kill -9 $broker; } &
reader=$!
wait $broker
kill $reader
"""


class KafkaBroker(LocalServer):
    """A Kafka broker on loopback, in a directory for temporary files, which is gone when it stops.

    Its files are fetched from Maven Central the first time, about 70 MB, and kept in the user's cache directory; it
    needs Java 17. It starts in about four seconds. If the program dies, it stops by itself.

        with KafkaBroker() as broker:
            home = floodmark.connect(log=broker.url)

    `kill` and `start` again show what a crash of the broker does: what it has acknowledged is there afterwards.
    `settings` are lines of its server.properties. With `users`, {name: password}, it lets in nobody else (SASL, PLAIN),
    and only the first of them may do anything; the others may do what its ACLs allow.
    """

    __slots__ = ("_controller_port", "_port", "_settings")

    def __init__(self, settings: Mapping[str, str] | None = None, *, users: Mapping[str, str] | None = None) -> None:
        """Prepare one that is started by `start`, or by `with`."""
        super().__init__()
        self._settings = {**_sasl_settings(users or {}), **(settings or {})}
        self._port = self._controller_port = 0

    @property
    def servers(self) -> str:
        """Where it listens, as Kafka's clients want it: host and port."""
        if self._directory is None:
            raise ServerNotStarted(
                "The Kafka broker does not run.",
                rule="It has an address between start and stop.",
                remedy="Call start, or use it in a with statement.",
            )
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Where it listens, as `floodmark.connect` wants it."""
        return f"kafka://{self.servers}"

    @property
    def pid(self) -> int:
        """The process of the broker itself."""
        assert self._directory is not None
        return int((self._directory / "pid").read_text())

    def start(self) -> None:
        """Start it, and return when it listens; one that was killed goes on with what it had."""
        if self._process is not None:
            return
        jars = broker_jars()
        try:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="floodmark-kafka-"))
                self._port, self._controller_port = free_ports(2)
                self._format(jars)
            self._run(jars)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """Kill it as a crash would: it has no time to write anything."""
        if self._process is not None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(_STOP_SECONDS)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def _format(self, jars: Path) -> None:
        assert self._directory is not None
        listeners = f"CLIENT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}"
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": listeners,
            "advertised.listeners": f"CLIENT://127.0.0.1:{self._port}",
            "log.dirs": str(self._directory / "data"),
            **self._settings,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self._directory / "server.properties").write_text(lines)
        (self._directory / "log4j2.properties").write_text(_LOGGING.format(log=self._directory / "log"))
        cluster = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
        # An id that begins with a dash would be taken for an option.
        command = self._java(jars, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}")
        command += ["-c", str(self._directory / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._directory)
        if done.returncode:
            raise _not_started(done.stderr.strip() or done.stdout.strip())

    def _run(self, jars: Path) -> None:
        assert self._directory is not None
        was_killed = (self._directory / "pid").exists()
        settings = _AFTER_A_KILL if was_killed else ()
        command = self._java(jars, "kafka.Kafka", str(self._directory / "server.properties"), *settings)
        with (self._directory / "said").open("ab") as said:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, str(self._directory / "pid"), *command],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                cwd=self._directory,
                start_new_session=True,  # an interrupt at the keyboard is for the tests, which then stop it
            )
        give_up = monotonic() + _START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or monotonic() > give_up:
                said_last = (self._directory / "said").read_text(errors="replace").strip()[-2_000:]
                raise _not_started(said_last or "it does not listen")
            sleep(0.05)

    def _java(self, jars: Path, *arguments: str) -> list[str]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = f"-Dlog4j2.configurationFile={self._directory}/log4j2.properties"
        return [find_java(), *options, logging, "-cp", f"{jars}/*", *arguments]

    def _listens(self) -> bool:
        with socket.socket() as attempt:
            attempt.settimeout(1)
            return attempt.connect_ex(("127.0.0.1", self._port)) == 0


def _sasl_settings(users: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker that asks for a password, and looks at what each user may do."""
    if not users:
        return {}
    first = next(iter(users))
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    login = f'username="{first}" password="{users[first]}"'
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {login} {known};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{first};User:ANONYMOUS",
    }


def _not_started(reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The Kafka broker did not start: {reason}.",
        rule="It needs Java 17, a directory for temporary files, two free ports, and some memory.",
        remedy="See what it says; TMPDIR names another directory.",
        reason=reason,
    )


KAFKA_VERSION: Final = "4.1.2"
"""The Kafka that is started."""

_FETCH_SECONDS: Final = 600
_IVY_MODULE: Final = """<ivy-module version="2.0">
  <info organisation="floodmark" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->master,runtime">
{dependencies}
  </dependencies>
</ivy-module>
"""
_BROKER_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
)

Artifact = tuple[str, str, str]
"""The group, name and version of something that Maven Central has."""


def broker_jars() -> Path:
    """Return the directory with the jars of a broker, and of Kafka's own programs; the first time they are fetched."""
    return fetch_jars(f"kafka-{KAFKA_VERSION}-with-tools", _BROKER_ARTIFACTS)


def fetch_jars(name: str, artifacts: tuple[Artifact, ...], *, with_dependencies: bool = True) -> Path:
    """Return the directory of this name with the jars of these artifacts; where it is not there yet, fetch them.

    Ivy does that, which PySpark brings along.
    """
    place = _cache_directory() / name
    with _locked(place.with_name(f"{name}.lock")):
        if not place.is_dir():
            _fetch(place, name, artifacts, with_dependencies)
    return place


def find_java() -> str:
    """Return the program that runs Java."""
    home = os.environ.get("JAVA_HOME")
    # What is set to nothing is not set.
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise ServerNotStarted(
            "There is no Java to start a Kafka broker with.",
            rule="A broker needs Java 17 or newer: JAVA_HOME, or `java` on the path.",
            remedy="Install it, such as the package openjdk-17-jre-headless.",
        )
    return found


def _fetch(place: Path, name: str, artifacts: tuple[Artifact, ...], with_dependencies: bool) -> None:
    """Fetch into a directory beside the place, so that what has the right name is whole."""
    line = '    <dependency org="{}" name="{}" rev="{}" transitive="{}"/>'
    lines = [line.format(*artifact, str(with_dependencies).lower()) for artifact in artifacts]
    with tempfile.TemporaryDirectory(dir=place.parent) as beside:
        wanted, jars = Path(beside, "ivy.xml"), Path(beside, "jars")
        wanted.write_text(_IVY_MODULE.format(name=name, dependencies="\n".join(lines)))
        jars.mkdir()
        command = [
            find_java(),
            "-jar",
            str(_find_ivy()),
            "-ivy",
            str(wanted),
            "-cache",
            str(place.parent / "ivy"),
            "-warn",
        ]
        command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False, cwd=beside
            )
        except subprocess.TimeoutExpired as error:
            raise _not_fetched(name, f"nothing came within {_FETCH_SECONDS} seconds") from error
        if done.returncode or not any(jars.iterdir()):
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise _not_fetched(name, " ".join(lines[-3:]) or "nothing came")
        jars.rename(place)


def _find_ivy() -> Path:
    package = find_spec("pyspark")
    places = [] if package is None else [Path(place) for place in package.submodule_search_locations or ()]
    for jar in (jar for place in places for jar in place.glob("jars/ivy-*.jar")):
        return jar
    raise MissingPackage(
        "There is nothing to fetch a Kafka broker with: PySpark is not installed, or came without its jars.",
        rule="Ivy fetches it, which PySpark brings along.",
        remedy="Install pyspark from its wheel.",
        package="pyspark",
    )


def _cache_directory() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "floodmark"
    place.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one program at a time fetch."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _not_fetched(name: str, reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The files of {name} could not be fetched: {reason}.",
        rule="They come from Maven Central the first time, and are kept in the user's cache directory.",
        remedy="Check the network, and try again.",
        reason=reason,
    )
