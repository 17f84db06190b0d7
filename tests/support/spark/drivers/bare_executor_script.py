"""Build a query on a cluster whose executors lack the package; print the error and how long it took, as JSON.

Run by test_executors.py, in a process of its own. The second argument is a Python without packages.
"""

import json
import os
import sys
import time
from pathlib import Path

import floodmark as fm
from floodmark.errors import FloodmarkError
from floodmark.spark.executors import SETTING
from floodmark.streams import connect


def main(directory: Path, bare: str) -> dict[str, object]:
    launcher = directory / "python"
    launcher.write_text(f'#!/bin/sh\nif [ -n "$BARE" ]; then exec {bare} "$@"; fi\nexec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    conf = {
        # Executors are processes of their own, as on a cluster of several machines.
        "spark.master": "local-cluster[1,1,512]",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.BARE": "1",
        "spark.pyspark.python": str(launcher),
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    os.environ["PYSPARK_PYTHON"] = str(launcher)
    spark = fm.session(conf=conf)
    with connect(directory / "home") as home:
        home.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
    begun, found = time.monotonic(), None
    try:
        fm.read_stream(spark, "orders", home=directory / "home")
    except FloodmarkError as error:
        found = str(error)
    seconds = time.monotonic() - begun
    spark.conf.set(SETTING, "false")
    columns = fm.read_stream(spark, "orders", home=directory / "home").columns
    spark.stop()
    return {"error": found, "seconds": seconds, "unchecked": columns}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
