"""Run by test_crash.py: a query over orders that is killed inside a batch, or goes on where the killed one was."""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from floodmark.spark import late, session, with_watermark
from support.spark.spark_feed import SHORT_LIVED
from support.spark.watermark_feed import BASE, Orders


def main(directory: Path, kill: str) -> dict[str, object]:
    """Count orders; with `kill` die in the batch of the last file, "before" or "after" its rows were looked at."""
    spark = session("floodmark-crash", conf=SHORT_LIVED)
    orders = Orders(spark, directory / "orders")
    frame = with_watermark(orders.frame(), "t", per=["p"], operators="windows", late="route", home=directory / "home")
    counts = frame.groupBy(F.window("t", "10 seconds")).count()
    is_armed = False

    def write(batch: DataFrame, number: int) -> None:
        if is_armed and kill == "before":
            _die()
        found = [[row["start"], row["count"]] for row in batch.collect()]
        if is_armed and kill == "after":
            _die()
        (directory / "out").mkdir(exist_ok=True)
        (directory / "out" / f"{number}.json").write_text(json.dumps(found))

    starts = counts.select((F.unix_seconds("window.start") - BASE).alias("start"), "count")
    writer = starts.writeStream.outputMode("append").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.foreachBatch(write).start()
    try:
        if kill:
            orders.add((1, "a"), (2, "b"))
            orders.add((31, "a"), (35, "b"))
            # From here on only a moves on, b holds the watermark at 35, and batches run under an unchanged mark.
            orders.add((40, "a"))
            orders.add((41, "a"))
            query.processAllAvailable()
            is_armed = True
            orders.add((42, "a"), (7, "b"), (43, "a"))
            query.processAllAvailable()
        orders.add((70, "a"), (61, "b"))
        query.processAllAvailable()
        query.processAllAvailable()
        rows = late(query).select((F.unix_seconds("t") - BASE).alias("t"), F.unix_seconds("_watermark").alias("w"))
        return {"late": sorted([row["t"], row["w"] - BASE] for row in rows.collect())}
    finally:
        query.stop()
        spark.stop()


def _die() -> None:
    """End this process and the JVM at once, as a machine that loses power does."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
