"""Run by test_ingest_crash.py: a job on Spark, in a driver that dies at some step of a cell."""

import json
import os
import signal
import sys
from contextlib import closing

from floodmark.ingest import Ingestion, load_job, run_job, with_units
from floodmark.spark import session
from floodmark.spark.ingest.job import SparkExecutor
from floodmark.streams import connect
from support.spark.spark_feed import SHORT_LIVED


def main(file: str, place: str, kill: str, times: int) -> None:
    """Run a job; die when a failpoint is met for the nth time."""
    left = times

    def die(reached: str) -> None:
        nonlocal left
        left -= reached == kill
        if reached == kill and left == 0:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    job = with_units(load_job(file).job)
    spark = session("floodmark-ingest-crash", conf=SHORT_LIVED)
    with connect(place) as home, closing(SparkExecutor(home, job, spark, workers=2, failpoint=die)) as executor:
        result = run_job(Ingestion(home.home), job, executor, owner="driver", workers=2, ttl=1_000_000)
    print(json.dumps({"succeeded": result.succeeded, "failed": result.failed, "errors": result.errors}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
