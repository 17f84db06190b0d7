"""Run by test_marks_connect.py in a process of its own: one process cannot hold both kinds of Spark session."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.errors import UnsupportedFrame
from floodmark.spark import follow_marks
from spark_feed import FAR_FUTURE, Feed, Running, mark, row, seconds


def main(directory: Path) -> dict[str, object]:
    builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.address", "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    try:
        feed = Feed(spark, directory)
        rows = follow_marks(feed.frame(), "t", "mark")
        counts = rows.where("key = 'a'").groupBy(F.window("t", "10 seconds")).count()
        query = Running(spark, counts.select(seconds("window.start"), "count"), feed)
        steps = [
            query.step(row(1), row(FAR_FUTURE)),
            query.step(mark(11)),
            query.step(row(2), row(11)),
            query.step(mark(21)),
        ]
        query.stop()
        try:
            follow_marks(feed.frame().withWatermark("t", "1 minute"), "t", "mark")
            refusal = None
        except UnsupportedFrame as error:
            refusal = error.fields
        return {"session": type(spark).__module__, "steps": steps, "refusal": refusal}
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
