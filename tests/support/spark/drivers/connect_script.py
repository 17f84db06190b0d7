"""Run by test_marks_connect.py in a process of its own: one process cannot hold both kinds of Spark session."""

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.errors import UnsupportedFrame
from floodmark.spark import (
    follow_marks,
    ingest_job,
    late,
    read_closed,
    read_stream,
    window,
    with_watermark,
    write_stream,
)
from floodmark.streams import connect
from support.spark.ingest_shop import SQLITE, fill_sqlite, in_sqlite, job_file, landed, orders
from support.spark.spark_feed import FAR_FUTURE, Feed, Running, mark, row, seconds


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
        own = count_by_own_watermark(spark, directory.with_name("own"))
        stream = count_a_stream(spark, directory.with_name("streams"))
        return {
            "session": type(spark).__module__,
            "steps": steps,
            "refusal": refusal,
            "own": own,
            "stream": stream,
            "sunk": sink_a_stream(spark, directory.with_name("streams")),
            "windows": sink_windows(spark, directory.with_name("streams")),
            "ingested": ingest(spark, directory.with_name("ingested")),
        }
    finally:
        spark.stop()


def count_by_own_watermark(spark: SparkSession, directory: Path) -> object:
    feed = Feed(spark, directory)
    frame, home = feed.frame().drop("mark"), directory.with_name("home")
    rows = with_watermark(frame, "t", per=["key"], operators="windows", late="route", home=home)
    counts = rows.groupBy(F.window("t", "10 seconds")).count()
    query = Running(spark, counts.select(seconds("window.start"), "count"), feed)
    found = query.step(row(1), row(12, "a"), row(25, "b"))
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        time.sleep(0.2)
        found = query.settle()
    query.step(row(3, "b"), row(13))
    behind = late(query.query, home=home).select(seconds("t"), "key").collect()
    query.stop()
    return [found, [list(one) for one in behind]]


def count_a_stream(spark: SparkSession, path: Path) -> object:
    with connect(path) as home:
        stream = home.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
        with stream.writer("w") as writer:
            writer.write_batch([{"id": n, "t": datetime.fromtimestamp(n, UTC)} for n in (1, 2, 11, 25)])
            writer.note_time(20_000_000)
            stream.await_mark(20_000_000)
    rows = read_stream(spark, "orders", home=path, late="strict", operators="windows")
    counts = rows.groupBy(F.window("t", "10 seconds")).count().select("count")
    out = counts.writeStream.format("memory").queryName("of_a_stream").trigger(availableNow=True)
    out.option("checkpointLocation", str(path / "checkpoint")).start().awaitTermination(60)
    return [row["count"] for row in spark.table("of_a_stream").collect()]


def sink_a_stream(spark: SparkSession, path: Path) -> object:
    for _ in range(2):
        rows = read_stream(spark, "orders", home=path)
        to, checkpoint = f"delta://{path / 'table'}", path / "sunk"
        query = write_stream(rows, to=to, name="out", home=path, checkpoint=checkpoint, trigger={"availableNow": True})
        query.awaitTermination(60)
    return sorted(row[0] for row in landed(path / "table", "SELECT id FROM t"))


def sink_windows(spark: SparkSession, path: Path) -> object:
    """Write windows to each target that needs no server; return their counts."""
    targets = {"delta": f"delta://{path / 'windows'}", "file": f"file://{path / 'files'}", "stream": "stream://windows"}
    for kind, to in targets.items():
        rows = window(read_stream(spark, "orders", home=path, operators="windows"), "10 seconds")
        counts, checkpoint = rows.groupBy("window").count(), path / f"windows-{kind}"
        write_stream(
            counts, to=to, name=f"windows-{kind}", home=path, checkpoint=checkpoint, trigger={"availableNow": True}
        ).awaitTermination(60)
    with connect(path) as home:
        stream = home.stream("windows")
        written = [row["count"] for chunk in stream.read(0) for row in chunk.batch.to_pylist()]
    return [
        sorted(row[0] for row in landed(path / "windows", "SELECT count FROM t")),
        sorted(row["count"] for row in read_closed(spark, targets["file"]).collect()),
        sorted(written),
    ]


def ingest(spark: SparkSession, path: Path) -> object:
    path.mkdir()
    fill_sqlite(path / "shop.db", orders(40))
    file = job_file(path / "orders.toml", SQLITE, 'path = "landed"\nmode = "merge"\nkeys = ["id"]')
    result = ingest_job(file, home=path / "home", spark=spark)
    return [result.succeeded, list(result.errors), landed(path / "landed") == in_sqlite(path / "shop.db")]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
