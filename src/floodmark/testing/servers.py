"""What servers that a test starts have in common: a process, a directory, free ports, and how they stop."""

import os
import random
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_STOP_SECONDS: Final = 20.0


class LocalServer(ABC):
    """A server with a process and a directory of its own, which are both gone when it stops."""

    __slots__ = ("_directory", "_process")

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """Stop it, whoever is connected, and remove its directory; to say so twice is no error."""
        if self._process is not None:
            stop_process(self._process)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def stop_process(process: "subprocess.Popen[bytes]") -> None:
    """Close the input of a server's process, which tells it to stop; if it does not, kill it with all its children."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_PORTS: Final = (12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports that are free, below those that connections get: a server takes them only seconds later.

    >>> len(set(free_ports(2)))
    2
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(*_PORTS)
        with socket.socket() as attempt:
            if port not in found and attempt.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found
