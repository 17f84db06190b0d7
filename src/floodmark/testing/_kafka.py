"""A real Kafka broker for tests, private to the program that starts it."""

import base64
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from floodmark.errors import ServerNotStarted
from floodmark.testing._ending import Server
from floodmark.testing._kafka_files import broker_jars, java
from floodmark.testing._ports import free_ports

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


class KafkaBroker(Server):
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
        self._settings = {**_only_for(users or {}), **(settings or {})}
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
        return [java(), *options, logging, "-cp", f"{jars}/*", *arguments]

    def _listens(self) -> bool:
        with socket.socket() as attempt:
            attempt.settimeout(1)
            return attempt.connect_ex(("127.0.0.1", self._port)) == 0


def _only_for(users: Mapping[str, str]) -> dict[str, str]:
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
