"""What servers that a test starts have in common: how they come to their end."""

import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_STOP_SECONDS: Final = 20.0


class Server(ABC):
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
            end(self._process)
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


def end(process: "subprocess.Popen[bytes]") -> None:
    """Close the input of a server's process, which tells it to stop; if it does not, kill it with all its children."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
