"""A driver that is killed in the middle of a batch: what it had promised holds after the restart."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark import SCRIPTS

SCRIPT = SCRIPTS / "crash_script.py"


def run(directory: Path, kill: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), kill],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    "kill", [pytest.param("before", marks=pytest.mark.full), pytest.param("after", marks=pytest.mark.smoke)]
)
def test_a_batch_that_was_killed_runs_again_under_the_watermark_it_had(tmp_path: Path, kill: str) -> None:
    killed = run(tmp_path, kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    finished = run(tmp_path, "")
    assert finished.returncode == 0, finished.stderr[-3000:]
    # The row at 7 was behind the watermark of its batch, where b stood.
    assert json.loads(finished.stdout.splitlines()[-1]) == {"late": [[7, 35]]}
    windows = sorted(tuple(one) for file in (tmp_path / "out").glob("*.json") for one in json.loads(file.read_text()))
    assert windows == [(0, 2), (30, 2), (40, 4)]
