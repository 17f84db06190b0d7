"""Services as processes of their own, and what others do by way of them until it is enough."""

import signal
import time
from typing import Any

from floodmark.streams import connect
from support import processes
from support.streams.stream_processes import KEYS


class Serving:
    """A process that runs `floodmark serve`."""

    def __init__(self, store: str, *options: str, environment: dict[str, str] | None = None) -> None:
        code = "import sys; from floodmark.cli import main; sys.exit(main(sys.argv[1:]))"
        options = ("serve", "--home", store, "--port", "0", *options)
        self.process = processes.start("-c", code, *options, environment=environment)

    @property
    def url(self) -> str:
        """Wait until it listens, and return where."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Floodmark listens at "), line + self.said()
        return line.split()[-1]

    def end(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        """Tell it to end, and return what it exits with."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)

    def said(self) -> str:
        """Return what it has said on its way, when it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def write_until(location: str, name: str, enough: Any, written: Any, seen: Any) -> None:
    """Write and note time, tell how many events and which time were acknowledged last, and wait before closing."""
    with connect(location) as home, home.stream("s").writer(name) as writer:
        number = time_noted = 0
        while not enough.is_set():
            for _ in range(5):
                writer.write([name, KEYS[number % 7], number], key=KEYS[number % 7])
                number += 1
            writer.flush()
            if writer.note_time(time_noted + 1).value == "accepted":
                time_noted += 1
            time.sleep(0.002)
        written.put((name, writer.events_written, time_noted))
        assert seen.wait(60)


def commit_until(location: str, name: str, enough: Any, written: Any, seen: Any) -> None:
    """Write in transactions, and tell how many events were committed, and which time with them."""
    with connect(location) as home, home.stream("s").transactional_writer(name) as writer:
        number = time_noted = 0
        while not enough.is_set():
            transaction = writer.begin()
            for _ in range(5):
                transaction.write([name, KEYS[number % 7], number], key=KEYS[number % 7])
                number += 1
            outcome = transaction.commit(time=time_noted + 1).outcome
            assert outcome is not None
            time_noted += outcome.value == "accepted"
            time.sleep(0.002)
        written.put((name, number, time_noted))
        assert seen.wait(60)
