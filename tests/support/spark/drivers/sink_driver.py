"""Run by tests of sinks: four queries that write to topics, in one driver that dies at some step of one of them."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floodmark as fm
from floodmark.spark.sink import query as _write_stream
from support.spark.sink_shop import frame
from support.spark.spark_feed import SHORT_LIVED

PARALLEL = {"windows": 2, "rows": 2}
"""Which kinds are written by tasks, in a run that says so."""


def dies_at(place: str, times: int) -> Callable[[str], None]:
    """Return a failpoint at which its process is killed when it comes there for the nth time."""
    left = [times]

    def check(reached: str) -> None:
        if reached == place:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return check


def main(settings: dict[str, Any]) -> None:
    """Run the queries until they have read everything, unless one dies."""
    spec_of: Any = vars(_write_stream)["sink_spec"]
    place, kind, times = settings.get("kill") or ("", "", 0)

    def with_failpoint(to: str, sink: str, *more: Any) -> Any:
        spec = spec_of(to, sink, *more)
        return dataclasses.replace(spec, failpoint=dies_at(place, times)) if sink == kind else spec

    vars(_write_stream)["sink_spec"] = with_failpoint
    home, checkpoints = Path(settings["home"]), Path(settings["checkpoints"])
    spark = fm.session("floodmark-sinks", conf=SHORT_LIVED)
    queries = [
        fm.write_stream(
            frame(spark, kind, home, settings.get("max_rows")),
            to=f"kafka://{settings['servers']}/{settings['prefix']}{kind}",
            name=kind,
            checkpoint=checkpoints / kind,
            home=home,
            trigger={"availableNow": True},
            key="id" if kind in ("rows", "joined") else None,
            times={"t": "t"} if kind == "joined" else None,
            lag="10 seconds" if kind == "joined" else "0 seconds",
            parallel=PARALLEL.get(kind) if settings.get("parallel") else None,
        )
        for kind in settings["kinds"]
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
