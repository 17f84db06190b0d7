"""A driver that spark-submit starts keeps the settings of its command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.spark import SCRIPTS


def test_spark_submit_wins_over_the_defaults_of_a_session(tmp_path: Path) -> None:
    given = {
        "spark.driver.host": "localhost",
        "spark.sql.shuffle.partitions": "7",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    options = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [str(submit), "--master", "local[1]", "--name", "submitted", *options, str(SCRIPTS / "submitted_script.py")],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "has no effect" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "spark.master": "local[1]",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": None,
        "spark.app.name": "submitted",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "7",
    }
