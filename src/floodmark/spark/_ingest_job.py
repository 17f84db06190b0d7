"""Run a job on Spark: extract what is due, and land it."""

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from floodmark.ingest import Ingestion, Job, Outcome, Run, RunResult, load_job, run_job, with_units
from floodmark.ingest._running import check_runnable
from floodmark.spark._ingest_executor import SparkExecutor
from floodmark.spark._session import session
from floodmark.streams import StreamHome, connect


def ingest_job(
    job: Job | str | Path,
    *,
    home: str | Path | StreamHome | None = None,
    spark: SparkSession | None = None,
    workers: int = 8,
    owner: str | None = None,
    on_row: Callable[[Run, Outcome], None] | None = None,
) -> RunResult:
    """Read what a job has due, and land it in its table or stream; return what became of it.

    ```python
    import floodmark as fm

    result = fm.ingest_job("orders.toml", home="warehouse")
    print(result.succeeded, result.failed, result.rows)
    ```

    `job` is one, or its file. `workers` rows of the plan are extracted at once; a row that fails fails alone, stays
    due, and is told in `errors` of the result. Without `spark`, a session on this machine is started, or the one that
    is there is used. `on_row` is called with the run and what became of a row, as it is recorded.
    """
    found = job if isinstance(job, Job) else load_job(job).job
    check_runnable(found)
    whole = with_units(found)
    who = owner or f"{socket.gethostname()}:{os.getpid()}"
    spark = spark if spark is not None else SparkSession.getActiveSession() or session("floodmark-ingest")
    if isinstance(home, StreamHome):
        return _run(home, whole, spark, who, workers, on_row)
    with connect(home) as opened:
        return _run(opened, whole, spark, who, workers, on_row)


def _run(
    home: StreamHome,
    job: Job,
    spark: SparkSession,
    owner: str,
    workers: int,
    on_row: Callable[[Run, Outcome], None] | None,
) -> RunResult:
    with closing(SparkExecutor(home, job, spark, workers=workers)) as executor:
        return run_job(Ingestion(home.home), job, executor, owner=owner, workers=workers, on_row=on_row)
