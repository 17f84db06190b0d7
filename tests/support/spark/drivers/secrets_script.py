"""Run queries whose home and Kafka have passwords; print everything that Spark shows of them.

Run by test_secrets.py, in a process of its own: a Spark session on the JVM or through Spark Connect, with an event log.
"""

import io
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.streams import connect

MODES = ("simple", "extended", "codegen", "cost", "formatted")


def main(kind: str, directory: Path, home: str, servers: str, topic: str, password: str) -> None:
    log = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
    log["spark.eventLog.dir"] = (directory / "log").as_uri()
    (directory / "log").mkdir()
    if kind == "connect":
        builder = SparkSession.builder.remote("local[1]").config("spark.connect.grpc.binding.address", "127.0.0.1")
        for key, value in {**log, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    else:
        spark = fm.session(cores=1, conf={**log, "spark.sql.shuffle.partitions": "1"})
    with connect(home) as opened:
        stream = opened.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
        with stream.writer("w") as writer:
            writer.write_batch([{"id": 1, "t": datetime.fromtimestamp(1, UTC)}])
            writer.note_time(2_000_000)
    secrets = {"kafka.sasl.password": password, "kafka.ssl.key.password": password}
    secrets["kafka.sasl.oauthbearer.config"] = f"principal={password}"
    topics = fm.read_topics(spark, topic, servers=servers, home=home, options=secrets)
    (directory / "rows").mkdir()
    (directory / "rows" / "one.json").write_text('{"timestamp": "2026-01-01T00:00:00Z"}')
    rows = spark.readStream.schema("timestamp TIMESTAMP").json(str(directory / "rows"))
    frames = {
        "stream": fm.window(fm.read_stream(spark, "orders", home=home), "1 minute").groupBy("window").count(),
        "topics": topics.select("value"),
        "watermark": fm.with_watermark(rows, "timestamp", home=home).groupBy(F.window("timestamp", "1 minute")).count(),
        "late": fm.with_watermark(rows, "timestamp", home=home, late="count"),
    }
    for name, frame in frames.items():
        print(shown(frame, name, directory))
    query = fm.write_stream(
        fm.read_stream(spark, "orders", home=home),
        to=f"delta://{directory / 'table'}",
        name="sink",
        home=home,
        checkpoint=directory / "sink",
        trigger={"availableNow": True},
    )
    query.awaitTermination(60)
    print("sink", query.lastProgress, query.exception())
    spark.stop()


def shown(frame: DataFrame, name: str, directory: Path) -> str:
    texts = io.StringIO()
    with redirect_stdout(texts):
        for mode in MODES:
            frame.explain(mode=mode)
        writer = frame.writeStream.format("noop").queryName(name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(directory / name)).start()
        print(query.awaitTermination(60))
        query.explain(extended=True)
        print(name, query.lastProgress, query.recentProgress, query.exception())
    return texts.getvalue()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
