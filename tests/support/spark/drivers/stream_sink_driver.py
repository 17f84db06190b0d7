"""Run by test_stream_sink_crash.py: windows into a stream, windows over these into a topic; it may die on the way."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.sinks import Sinks
from floodmark.spark.sink import address as _sink_targets
from floodmark.spark.sink import query as _write_stream
from floodmark.streams import connect
from support.spark.drivers.sink_driver import dies_at
from support.spark.sink_shop import frame
from support.spark.spark_feed import SHORT_LIVED


def over_windows(spark: SparkSession, home: Path) -> DataFrame:
    """Return what is in the stream of windows, in larger ones."""
    tens = fm.read_stream(spark, "tens", home=home, late="strict")
    return fm.window(tens, "30 seconds").groupBy("window").agg(F.sum("count").alias("count"))


def main(settings: dict[str, Any]) -> None:
    """Run both queries until they have read everything, unless one dies."""
    spec_of = _sink_targets.sink_spec
    place, dying, times = settings.get("kill") or ("", "", 0)

    def with_failpoint(to: str, sink: str, *more: Any) -> Any:
        spec: Any = spec_of(to, sink, *more)
        return dataclasses.replace(spec, failpoint=dies_at(place, times)) if sink == dying else spec

    vars(_write_stream)["sink_spec"] = with_failpoint
    home, checkpoints = Path(settings["home"]), Path(settings["checkpoints"])
    spark = fm.session("floodmark-stream-sinks", conf={**SHORT_LIVED, "spark.sql.shuffle.partitions": "2"})
    given: dict[str, Any] = {"home": home, "trigger": {"availableNow": True}}
    windows = frame(spark, "windows", home, settings.get("max_rows"))
    fm.write_stream(
        windows, to="stream://tens", name="tens", checkpoint=checkpoints / "tens", **given
    ).awaitTermination()
    with connect(home) as streams:
        progress = Sinks(streams.home).get("tens").progress
        if progress is not None and "t" in progress.marks:
            streams.stream("tens").await_mark(progress.marks["t"].time)
    address = f"kafka://{settings['servers']}/{settings['topic']}"
    larger = over_windows(spark, home)
    fm.write_stream(
        larger, to=address, name="thirties", checkpoint=checkpoints / "thirties", **given
    ).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
