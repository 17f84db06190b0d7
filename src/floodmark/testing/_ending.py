"""How a server that a test has started comes to its end."""

import os
import signal
import subprocess
from typing import Final

_STOP_SECONDS: Final = 20.0


def end(process: "subprocess.Popen[bytes]") -> None:
    """Close the input of a server's process, which tells it to stop; if it does not, kill it with all its children."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
