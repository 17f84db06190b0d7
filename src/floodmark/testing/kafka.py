"""A real Kafka broker for tests, private to the program that starts it; its jars are downloaded once per user."""

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
    # There is only one broker.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Abort timed-out transactions soon, for tests of them.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Delete topics at once.
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
# After a kill the broker waits until its former session has expired, by default nine seconds.
_SETTINGS_AFTER_KILL: Final = (
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
# The standard input of this shell ends when the program stops the broker or is killed; then it kills the broker.
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
    """A Kafka broker on loopback, with its data in a temporary directory, which is removed when it stops.

    It needs Java 17. The first time, its jars (about 70 MB) are downloaded from Maven Central to the user's cache
    directory. It starts in about four seconds. If the program dies, the broker stops by itself.

        with KafkaBroker() as broker:
            home = floodmark.connect(log=broker.url)

    To test a crash of the broker, call `kill` and then `start`: acknowledged records are kept. `settings` are lines of
    its server.properties. With `users`, {name: password}, it requires SASL PLAIN authentication; the first user is a
    superuser, and the others have the permissions in the broker's ACLs.
    """

    __slots__ = ("_controller_port", "_port", "_settings")

    def __init__(self, settings: Mapping[str, str] | None = None, *, users: Mapping[str, str] | None = None) -> None:
        """Prepare a broker; `start` or `with` starts it."""
        super().__init__()
        self._settings = {**_sasl_settings(users or {}), **(settings or {})}
        self._port = self._controller_port = 0

    @property
    def servers(self) -> str:
        """Its host and port, as in `bootstrap.servers`."""
        if self._directory is None:
            raise ServerNotStarted(
                "The Kafka broker is not running.",
                rule="It has an address between start and stop.",
                remedy="Call start(), or use the broker in a with statement.",
            )
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Its URL, for `floodmark.connect`."""
        return f"kafka://{self.servers}"

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        assert self._directory is not None
        return int((self._directory / "pid").read_text())

    def start(self) -> None:
        """Start it and return when it listens. A killed broker continues with its data."""
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
        """Kill it with SIGKILL, as in a crash."""
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
        settings = _SETTINGS_AFTER_KILL if was_killed else ()
        command = self._java(jars, "kafka.Kafka", str(self._directory / "server.properties"), *settings)
        output = self._directory / "output"
        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, str(self._directory / "pid"), *command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C goes to the tests only, which then stop the broker
            )
        deadline = monotonic() + _START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or monotonic() > deadline:
                reason = output.read_text(errors="replace").strip()[-2_000:]
                raise _not_started(reason or "it does not listen")
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
    """Return the settings of a broker that authenticates its clients and checks the permissions of each user."""
    if not users:
        return {}
    first = next(iter(users))
    passwords = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    login = f'username="{first}" password="{users[first]}"'
    return {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {login} {passwords};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{first};User:ANONYMOUS",
    }


def _not_started(reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The Kafka broker did not start: {reason}.",
        rule="It needs Java 17, a writable temporary directory, two free ports, and some memory.",
        remedy="Correct what the message names; set TMPDIR to use another temporary directory.",
        reason=reason,
    )


KAFKA_VERSION: Final = "4.1.2"
"""The version of the broker."""

_DOWNLOAD_SECONDS: Final = 600
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
"""The group, name and version of an artifact in Maven Central."""


def broker_jars() -> Path:
    """Return the directory with the jars of the broker and of Kafka's tools; download them the first time."""
    return fetch_jars(f"kafka-{KAFKA_VERSION}-with-tools", _BROKER_ARTIFACTS)


def fetch_jars(name: str, artifacts: tuple[Artifact, ...], *, with_dependencies: bool = True) -> Path:
    """Return the cache directory `name` with the jars of artifacts; if it does not exist, download them with Ivy."""
    directory = _cache_directory() / name
    with _locked(directory.with_name(f"{name}.lock")):
        if not directory.is_dir():
            _download(directory, name, artifacts, with_dependencies)
    return directory


def find_java() -> str:
    """Return the path of the program `java`."""
    home = os.environ.get("JAVA_HOME")
    # An empty JAVA_HOME counts as not set.
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise ServerNotStarted(
            "There is no Java to start a Kafka broker with.",
            rule="A broker needs Java 17 or newer: JAVA_HOME, or `java` on the path.",
            remedy="Install Java, such as the package openjdk-17-jre-headless, or set JAVA_HOME to its directory.",
        )
    return java


def _download(directory: Path, name: str, artifacts: tuple[Artifact, ...], with_dependencies: bool) -> None:
    """Download into a temporary directory and rename it, so that `directory` is always complete."""
    line = '    <dependency org="{}" name="{}" rev="{}" transitive="{}"/>'
    lines = [line.format(*artifact, str(with_dependencies).lower()) for artifact in artifacts]
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        module, jars = Path(temporary, "ivy.xml"), Path(temporary, "jars")
        module.write_text(_IVY_MODULE.format(name=name, dependencies="\n".join(lines)))
        jars.mkdir()
        command = [find_java(), "-jar", str(_find_ivy()), "-ivy", str(module)]
        command += ["-cache", str(directory.parent / "ivy"), "-warn"]
        command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False, cwd=temporary
            )
        except subprocess.TimeoutExpired as error:
            raise _download_failed(name, f"timeout after {_DOWNLOAD_SECONDS} seconds") from error
        if done.returncode or not any(jars.iterdir()):
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise _download_failed(name, " ".join(lines[-3:]) or "Ivy returned no files")
        jars.rename(directory)


def _find_ivy() -> Path:
    package = find_spec("pyspark")
    directories = [] if package is None else [Path(path) for path in package.submodule_search_locations or ()]
    for jar in (jar for directory in directories for jar in directory.glob("jars/ivy-*.jar")):
        return jar
    raise MissingPackage(
        "PySpark is not installed, or has no jars, so the Kafka broker cannot be downloaded.",
        rule="The broker is downloaded with Ivy, which is among the jars of PySpark.",
        remedy="Install PySpark: pip install pyspark.",
        package="pyspark",
    )


def _cache_directory() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "floodmark"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock on a file, so that only one program at a time downloads."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_failed(name: str, reason: str) -> ServerNotStarted:
    return ServerNotStarted(
        f"The jars of {name} could not be downloaded: {reason}.",
        rule="The first time, they are downloaded from Maven Central to the user's cache directory.",
        remedy="Check that this machine can reach Maven Central, and start the broker again.",
        reason=reason,
    )
