"""PostgreSQL servers of the tests that start, stop and fail on their own, and leave nothing behind."""

import os
import tempfile
from pathlib import Path

import psycopg
import pytest

from floodmark.errors import FloodmarkError
from floodmark.testing import PostgresServer
from floodmark.testing import postgres as _postgres
from support.processes import finish, start
from support.waiting import wait_until


def directory_of(url: str) -> Path:
    return Path(url.partition("?host=")[2])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])


def test_it_stops_with_people_connected_and_leaves_nothing_behind() -> None:
    server = PostgresServer()
    server.start()
    server.start()
    directory = directory_of(server.url)
    pid = pid_of(directory)
    connection = psycopg.connect(server.url)
    server.stop()
    server.stop()
    connection.close()
    assert not directory.exists()
    assert not is_running(pid)
    with pytest.raises(FloodmarkError, match="between start and stop") as refusal:
        _ = server.url
    assert refusal.value.code == "server-not-started"


START_AND_TELL = """
from floodmark.testing import PostgresServer
server = PostgresServer()
server.start()
print(server.url, flush=True)
input()
"""


def test_it_stops_by_itself_when_its_program_is_killed() -> None:
    program = start("-c", START_AND_TELL)
    assert program.stdout is not None
    directory = directory_of(program.stdout.readline().strip())
    pid = pid_of(directory)
    program.kill()
    finish(program)
    wait_until(lambda: not directory.exists() and not is_running(pid))


def test_what_keeps_it_from_starting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def remembered(**options: str) -> str:
        made.append(mkdtemp(**options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", remembered)
    monkeypatch.setattr(_postgres, "_SMALL", ("-c", "nonsense_setting=1"))
    with pytest.raises(FloodmarkError, match="nonsense_setting") as refusal:
        PostgresServer().start()
    assert refusal.value.code == "server-not-started"
    assert not Path(made[0]).exists()
