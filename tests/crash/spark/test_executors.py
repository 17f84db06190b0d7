"""Executors without the package are named before a query starts."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

from support.spark import SCRIPTS


def test_an_executor_without_the_package_is_named_with_the_remedy(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    done = subprocess.run(
        [sys.executable, SCRIPTS / "bare_executor_script.py", tmp_path, bare],
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert f"Python at {bare} on " in result["error"]
    assert "cannot import Floodmark: No module named 'floodmark'" in result["error"]
    assert "[executor-unfit]" in result["error"]
    assert "Traceback" not in result["error"]
    assert result["unchecked"] == ["id", "t", "_segment", "_offset", "_ts", "_w"]
