"""A driver that is killed between staging, commit and coverage: another one goes on, and each row is there once."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from floodmark.ingest.landing.table import COMMITTED, STAGED
from support.spark.drivers import ingest_driver
from support.spark.ingest_shop import SQLITE, fill_sqlite, in_sqlite, job_file, landed, orders


def drive(file: Path, kill: str = "", times: int = 1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ingest_driver.__file__, str(file), str(file.parent / "home"), kill, str(times)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("mode", "kill", "times"),
    [
        ("append", COMMITTED, 2),
        pytest.param("merge", COMMITTED, 3, marks=pytest.mark.full),
        ("replace", STAGED, 3),
    ],
)
def test_another_driver_goes_on_where_one_was_killed(tmp_path: Path, mode: str, kill: str, times: int) -> None:
    fill_sqlite(tmp_path / "shop.db", orders(400))
    keys = '\nkeys = ["id"]' if mode == "merge" else ""
    file = job_file(tmp_path / "orders.toml", SQLITE, f'path = "landed"\nmode = "{mode}"{keys}')
    first = drive(file, kill, times)
    assert first.returncode == -signal.SIGKILL, first.stderr
    time.sleep(1.2)  # until its lease is over
    second = drive(file)
    assert second.returncode == 0, second.stderr
    told = json.loads(second.stdout.splitlines()[-1])
    assert (told["failed"], told["errors"]) == (0, [])
    assert landed(tmp_path / "landed") == in_sqlite(tmp_path / "shop.db")


def test_the_command_lands_what_is_due_and_says_what_has_failed(tmp_path: Path) -> None:
    fill_sqlite(tmp_path / "shop.db", [*orders(40), (100, "north", 1.0, "wrong", "2020-01-03 99:00:00")])
    file = job_file(tmp_path / "orders.toml", SQLITE, 'path = "landed"\nmode = "replace"')
    start = "import sys; from floodmark.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "ingest", "run", str(file), "--home", str(tmp_path / "home")]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["succeeded"], told["failed"], told["rows"]) == (1, 3, 1, 30)
    assert "updated_at" in told["errors"][0]
    assert "[cells-failed]" in done.stderr
    assert len(landed(tmp_path / "landed")) == 30
