"""How tests start and end child processes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Child = subprocess.Popen[str]


def start(target: str | Path, *args: str, environment: Mapping[str, str] | None = None) -> Child:
    """Start Python with a module, a script (a path) or code (`-c`), in a session of its own and with text pipes."""
    if target == "-c" or isinstance(target, Path):
        command = [sys.executable, str(target), *args]
    else:
        command = [sys.executable, "-m", target, *args]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )


def finish(process: Child, seconds: float = 60) -> tuple[int, str]:
    """Wait for a process; return its exit code and what it printed, first to stdout and then to stderr.

    A process that takes longer is killed, and the wait fails.
    """
    try:
        printed, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, printed + errors


def run(target: str | Path, *args: str, seconds: float = 60) -> tuple[int, str]:
    """Start a process and wait for its end."""
    return finish(start(target, *args), seconds)


def wait_for_line(process: Child, line: str) -> None:
    """Wait until a process prints exactly this line; fail if it prints another, or ends."""
    assert process.stdout is not None
    printed = process.stdout.readline()
    assert printed.strip() == line, printed + finish(process)[1]


def error_code(printed: str) -> str:
    """Return the code of the error in the last line "error <code>" of what a process printed, or all of it."""
    codes = [line.removeprefix("error ") for line in printed.splitlines() if line.startswith("error ")]
    return codes[-1] if codes else printed.strip()
