"""The same marks through Spark Connect, where there is no JVM to reach into."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.spark import SCRIPTS
from support.spark.spark_feed import SHORT_LIVED

ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Without this, Connect takes port 15002 or fails, and another run on this machine may have it.
    "SPARK_TESTING": "1",
    "JDK_JAVA_OPTIONS": SHORT_LIVED["spark.driver.extraJavaOptions"],
}


def test_marks_move_the_watermark_through_connect(tmp_path: Path) -> None:
    script = SCRIPTS / "connect_script.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "feed")],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session",
        "steps": [[], [[0.0, 1]], [[0.0, 1]], [[0.0, 1], [10.0, 1]]],
        "refusal": {"columns": ["t"]},
        "own": [[[0.0, 1]], [[3.0, "b"]]],
        "stream": [2, 1],
        "sunk": [1, 2, 11, 25],
        "windows": [[1, 2]] * 3,
        "ingested": [4, [], True],
    }
