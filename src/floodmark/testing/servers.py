"""The base of servers that a test starts: their process, their directory, free ports, and how they stop."""

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
    """A server with its own process and directory; stopping it ends the process and removes the directory."""

    __slots__ = ("_directory", "_process")

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """Stop it, even with open connections, and remove its directory. Idempotent."""
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
    """Close the input of a server's process, on which it stops; after a timeout, kill it with all its children."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_PORT_RANGE: Final = (12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return free ports. They are below the ephemeral range, so that they stay free until a server listens on them.

    >>> len(set(free_ports(2)))
    2
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(*_PORT_RANGE)
        with socket.socket() as attempt:
            if port not in ports and attempt.connect_ex(("127.0.0.1", port)) != 0:
                ports.append(port)
    return ports
