"""Run by test_target_crash.py: one query into each kind of target, held in a transaction until it is killed."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext

import floodmark as fm
from floodmark.sinks.target import COMMITTED, ROWS_FLUSHED
from floodmark.spark.sink import query as _write_stream
from floodmark.streams.kafka import commits as _commits
from support.spark.sink_shop import frame
from support.spark.spark_feed import SHORT_LIVED, SMALL_BATCHES

STREAM_IN_KAFKA = "stream-kafka"
PLACES = {
    "atomic": ROWS_FLUSHED,
    "parallel": ROWS_FLUSHED,
    "staged": ROWS_FLUSHED,
    "stream": ROWS_FLUSHED,
    # Its rows lie in the home until the commit is decided; then they are sent in a transaction of Kafka.
    STREAM_IN_KAFKA: "before Kafka's commit",
    "delta": ROWS_FLUSHED,
    "file": ROWS_FLUSHED,
    "upsert": ROWS_FLUSHED,
    "upsert-committed": COMMITTED,
}
"""Where each query is held."""


def target(name: str, directory: Path, servers: str) -> dict[str, Any]:
    """Return the address of a target, and the options that it needs."""
    topic = f"kafka://{servers}/{directory.name}-{name}"
    upsert = {"to": f"delta://{directory}/{name}", "mode": "upsert", "key": "id"}
    options: dict[str, dict[str, Any]] = {
        "atomic": {"to": topic, "timeout": "3 minutes"},
        "parallel": {"to": topic, "parallel": 2, "key": "id", "timeout": "3 minutes"},
        "staged": {"to": topic, "staged": True, "partitions": 2},
        "stream": {"to": "stream://rows", "timeout": "3 minutes"},
        STREAM_IN_KAFKA: {"to": "stream://rows-in-kafka", "timeout": "3 minutes"},
        "delta": {"to": f"delta://{directory}/delta"},
        "file": {"to": f"file://{directory}/file"},
        "upsert": upsert,
        "upsert-committed": upsert,
    }
    return options[name]


def held_at(place: str, name: str, held: str) -> Callable[[str], None]:
    """Return a failpoint at which its process tells that it is there, and waits until it is killed."""

    def hold(reached: str) -> None:
        # The driver of the parallel one commits a transaction of its own when it starts.
        if reached == place and (name != "parallel" or TaskContext.get() is not None):
            (Path(held) / f"{name}.{os.getpid()}").touch()
            while True:
                time.sleep(60)

    return hold


def hold_all(held: str) -> None:
    """Let every query of this process be held at its place."""
    spec_of: Any = vars(_write_stream)["sink_spec"]

    def held_spec(to: str, sink: str, *more: Any) -> Any:
        return dataclasses.replace(spec_of(to, sink, *more), failpoint=held_at(PLACES[sink], sink, held))

    vars(_write_stream)["sink_spec"] = held_spec
    hold = held_at(PLACES[STREAM_IN_KAFKA], STREAM_IN_KAFKA, held)
    vars(_commits)["_CommitProducer"].commit = lambda _: hold(PLACES[STREAM_IN_KAFKA])


def main(settings: dict[str, Any]) -> None:
    """Run the queries until they have read everything, or until they are killed."""
    held = settings["held"]
    if held:
        hold_all(held)
    directory = Path(settings["directory"])
    # Tasks that are held leave room for others.
    own = {"spark.master": "local[6]", "spark.sql.shuffle.partitions": "1"}
    spark = fm.session("floodmark-targets", conf={**SHORT_LIVED, **SMALL_BATCHES, **own})
    for name in PLACES:
        query = fm.write_stream(
            frame(spark, "rows", directory / "home").select("id", "t", "_ts"),
            name=name,
            checkpoint=directory / "checkpoints" / name,
            home=directory / "home",
            trigger={"availableNow": True},
            **target(name, directory, settings["servers"]),
        )
        # One after the other: many that start at once take long to get their Python processes.
        while query.isActive and not (held and any(Path(held).glob(f"{name}.*"))):
            time.sleep(0.05)
        if not query.isActive:
            query.awaitTermination()
    while held:
        time.sleep(60)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
