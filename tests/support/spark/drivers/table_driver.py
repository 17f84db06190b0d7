"""Run by test_table_crash.py: queries into all kinds of targets, in a driver that dies at some step of one of them."""

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import floodmark as fm
from floodmark.sinks.target import SOME_ROWS_SENT
from floodmark.spark.sink import address as _sink_targets
from floodmark.spark.sink import query as _write_stream
from support.spark.sink_shop import frame
from support.spark.spark_feed import SHORT_LIVED
from support.spark.table_shop import KINDS, TARGETS, start


def dies_at(place: str, times: int) -> Callable[[str], None]:
    """Return a failpoint at which the driver is killed with all that it has started; a task dies alone."""
    left = [times]

    def check(reached: str) -> None:
        context = TaskContext.get()
        if reached == SOME_ROWS_SENT and context is not None:
            if context.attemptNumber() == 0:
                # Let what was sent arrive.
                time.sleep(2)
                os.kill(os.getpid(), signal.SIGKILL)
        elif reached == place:
            left[0] -= 1
            if left[0] == 0:
                os.killpg(os.getpgrp(), signal.SIGKILL)

    return check


def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, but fail after some of them when it is tried for the first time."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("this task is to be tried again")


def main(settings: dict[str, Any]) -> None:
    """Run the queries until they have read everything, unless one dies."""
    spec_of = _sink_targets.sink_spec
    place, victim, times = settings.get("kill") or ("", "", 0)

    def with_failpoint(to: str, sink: str, *more: Any) -> Any:
        spec: Any = spec_of(to, sink, *more)
        own = dies_at(place if sink == victim else "", times)
        return dataclasses.replace(spec, failpoint=own) if sink == victim or sink == "topic-rows" else spec

    vars(_write_stream)["sink_spec"] = with_failpoint
    directory = Path(settings["directory"])
    # Each task may fail once.
    spark = fm.session("floodmark-tables", conf={**SHORT_LIVED, "spark.master": "local[2,4]"})
    for target in TARGETS:
        for kind in KINDS:
            rows = frame(spark, kind, directory / "home", settings.get("max_rows"))
            if kind == "rows" and target != "topic":
                rows = rows.mapInArrow(stumble, rows.schema)
            servers, checkpoints = settings["servers"], settings["checkpoints"]
            query = start(spark, target, kind, directory, servers=servers, checkpoints=checkpoints, df=rows)
            query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
