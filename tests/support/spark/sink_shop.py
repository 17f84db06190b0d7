"""A shop whose orders and payments go through four queries into topics, and what must come out of each."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from json import loads
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.streams import Stream, connect

START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("rows", "windows", "chained", "joined")
"""What queries do: nothing, count in windows, count windows in larger ones, and join two streams."""


class Shop:
    """Writes orders, and payments for most of them; times go on, and every row is on time."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.home = directory / "home"
        self._connected = connect(self.home)
        schema = "id BIGINT, t TIMESTAMP"
        self._streams = [
            self._connected.create_stream(name, schema, segments=2, time_columns="t", rate_floor="0 seconds")
            for name in ("orders", "payments")
        ]
        self._writers = [stream.writer("till") for stream in self._streams]
        self._random = random.Random(seed)
        self._ids = 0
        self.orders: dict[int, float] = {}
        self.payments: dict[int, float] = {}
        self.watermark = 0.0

    def trade(self, seconds: int = 40, rows: int = 60) -> None:
        """Let so much time pass, with rows in between, each after the watermark before it."""
        for _ in range(4):
            orders, payments = {}, {}
            for _ in range(rows // 4):
                # On a coarse grid, so that rows lie on the ends of windows, and just where the watermark is.
                orders[self._ids] = self.watermark + self._random.randrange(seconds // 2) / 2
                if self._random.random() < 0.8:
                    payments[self._ids] = orders[self._ids] + self._random.randrange(8) / 2
                self._ids += 1
            self.watermark += seconds // 4
            for writer, found in zip(self._writers, (orders, payments), strict=True):
                rows_of = [{"id": id_, "t": START + timedelta(seconds=at)} for id_, at in found.items()]
                if rows_of:
                    writer.write_batch(rows_of, key=[str(id_) for id_ in found])
                writer.note_time(START + timedelta(seconds=self.watermark))
            self.orders |= orders
            self.payments |= payments
        for stream in self._streams:
            stream.await_mark(START + timedelta(seconds=self.watermark))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._connected.close()

    def wanted(self, kind: str) -> Counter[Any]:
        """Return what a query must have written by now."""
        windows = Counter(int(at // 10) for at in self.orders.values())
        # One that ends at the watermark is still open: see follow_marks.
        closed = {window: n for window, n in windows.items() if (window + 1) * 10 < self.watermark}
        if kind == "rows":
            return Counter(self.orders.keys())
        if kind == "windows":
            return Counter({(window * 10, n): 1 for window, n in closed.items()})
        if kind == "chained":
            larger: Counter[int] = Counter()
            for window, n in closed.items():
                larger[window // 3] += n
            return Counter({(w * 30, n): 1 for w, n in larger.items() if (w + 1) * 30 < self.watermark})
        return Counter(
            id_ for id_, at in self.payments.items() if id_ in self.orders and 0 <= at - self.orders[id_] <= 2
        )


def frame(spark: SparkSession, kind: str, home: Path, max_rows: int | None = None) -> DataFrame:
    """Return what a query of this kind reads and computes."""
    orders = fm.read_stream(spark, "orders", home=home, late="strict", max_rows=max_rows)
    if kind == "rows":
        return orders
    if kind == "joined":
        payments = fm.read_stream(spark, "payments", home=home, late="strict", max_rows=max_rows)
        paid = payments.select(F.col("id").alias("paid"), F.col("t").alias("paid_at"))
        soon = F.expr("paid = id AND paid_at >= t AND paid_at <= t + INTERVAL 2 SECONDS")
        return orders.select("id", "t").join(paid, soon)
    windows = fm.window(orders, "10 seconds").groupBy("window").count()
    if kind == "windows":
        return windows
    return windows.groupBy(F.window(F.window_time("window"), "30 seconds")).agg(F.sum("count").alias("count"))


def result(kind: str, value: bytes) -> Any:
    """Return what a record says, as `Shop.wanted` has it."""
    row = loads(value)
    if kind in ("rows", "joined"):
        return row["id"]
    start = datetime.fromisoformat(row["window"]["start"])
    return int((start - START).total_seconds()), row["count"]


def found(servers: str, topic: str, kind: str, *, committed: bool = True) -> Counter[Any]:
    """Return what is in a topic."""
    settings = KafkaSettings.of(servers)
    cluster = KafkaCluster(settings)
    known = cluster.find_topic(topic)
    if known is None:
        return Counter()
    parts = range(known.partitions)
    fetcher = Fetcher(settings, committed=committed)
    starts, ends = cluster.starts(topic, parts), cluster.ends(topic, parts, committed=committed)
    try:
        return Counter(
            result(kind, record.value())
            for part in parts
            for piece in fetcher.read(topic, part, starts[part], ends[part])
            for record in piece
        )
    finally:
        fetcher.close()


def rows_in(stream: Stream) -> list[dict[str, Any]]:
    """Return the rows of a stream, segment by segment."""
    return [
        row
        for segment in stream.layout.segments
        for chunk in stream.read(segment.id)
        for row in chunk.batch.to_pylist()
    ]


def windows_in(stream: Stream) -> Counter[tuple[int, int]]:
    """Return the windows of a stream, as (start in seconds, count)."""
    rows = rows_in(stream)
    return Counter((int((row["window"]["start"] - START).total_seconds()), row["count"]) for row in rows)
