"""Run by test_stream_crash.py: a query over a stream that is killed inside a batch, or goes on where it was killed."""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import floodmark as fm
from support.spark.spark_feed import SHORT_LIVED


def main(directory: Path, kill_in: int) -> None:
    """Count rows per ten seconds, and keep each batch in a file of its own; die in one of them."""
    spark = fm.session("floodmark-stream-crash", conf=SHORT_LIVED)
    rows = fm.read_stream(spark, "orders", home=directory / "home", late="strict", operators="windows", max_rows=3)
    counts = rows.groupBy(F.window("t", "10 seconds")).agg(F.count("*").alias("n"), F.sum("id").alias("ids"))

    def write(batch: DataFrame, number: int) -> None:
        found = [[row["start"], row["n"], row["ids"]] for row in batch.collect()]
        if number == kill_in:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        (directory / "out").mkdir(exist_ok=True)
        (directory / "out" / f"{number}.json").write_text(json.dumps(found))

    out = counts.select(F.unix_seconds("window.start").alias("start"), "n", "ids").writeStream.foreachBatch(write)
    query = out.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
