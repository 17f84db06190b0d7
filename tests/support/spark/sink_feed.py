"""A stream that is fed step by step, and queries over it that write to topics of a real broker."""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord
from floodmark.sinks import Progress
from floodmark.spark.sink import query as _write_stream
from support.spark.stream_feed import BASE, SECOND, StreamFeed

Frame = Callable[..., DataFrame]


class SinkFeed(StreamFeed):
    """A stream, and a topic for what queries make of it."""

    def __init__(self, spark: SparkSession, path: Path, servers: str, topic: str) -> None:
        super().__init__(spark, path)
        self.servers, self.topic = servers, topic
        self.settings = KafkaSettings.of(servers)
        self.cluster = KafkaCluster(self.settings)

    def windows(self, **options: Any) -> DataFrame:
        """Return counts in windows of ten seconds; one that ends at the watermark is closed."""
        read = self.read(operators="windows", **options)
        return fm.window(read, "10 seconds").groupBy("window").agg(F.count("*").alias("n"))

    def start(self, frame: DataFrame, checkpoint: str = "sink", **options: Any) -> Any:
        """Start a query that ends when it has read everything."""
        given = {"to": f"kafka://{self.servers}/{self.topic}", "name": self.topic, "trigger": {"availableNow": True}}
        return fm.write_stream(
            frame, **{**given, "checkpoint": self.path / checkpoint, "home": self.path / "home", **options}
        )

    def run(self, frame: DataFrame, checkpoint: str = "sink", **options: Any) -> int:
        """Run a query to its end, and return how many batches it had."""
        query = self.start(frame, checkpoint, **options)
        query.awaitTermination()
        return len(query.recentProgress)

    def records(self, topic: str | None = None, *, committed: bool = True) -> list[Any]:
        """Return the records of a topic, partition by partition."""
        name = topic or self.topic
        known = self.cluster.find_topic(name)
        if known is None:
            return []
        parts, fetcher = range(known.partitions), Fetcher(self.settings, committed=committed)
        starts, ends = self.cluster.starts(name, parts), self.cluster.ends(name, parts, committed=committed)
        try:
            return [
                record
                for part in parts
                for piece in fetcher.read(name, part, starts[part], ends[part])
                for record in piece
            ]
        finally:
            fetcher.close()

    def ids(self) -> list[int]:
        """Return the ids of the rows that were written."""
        return sorted(json.loads(record.value())["id"] for record in self.records())

    def counts(self) -> Counter[tuple[int, int]]:
        """Return the windows that were written, as (start in seconds, count)."""
        rows = [json.loads(record.value()) for record in self.records()]
        return Counter((_seconds(row["window"]["start"]), row["n"]) for row in rows)

    def marks(self) -> list[int]:
        """Return the times that were told, in seconds."""
        found = self.records(f"{self.topic}.marks")
        return [((MarkRecord.load(record.value()).lower or 0) - BASE) // SECOND for record in found]

    def progress(self) -> list[Progress]:
        """Return what was recorded."""
        found = self.records(f"{self.topic}.progress")
        return [Progress.load(record.value()) for record in found if record.key() == self.topic.encode()]

    def keep(self, checkpoint: str = "sink", *, as_: str = "kept") -> None:
        """Keep a checkpoint as it is."""
        shutil.copytree(self.path / checkpoint, self.path / as_)

    def forget(self, checkpoint: str = "sink") -> None:
        """Delete a checkpoint."""
        shutil.rmtree(self.path / checkpoint)


def fail_at(monkeypatch: pytest.MonkeyPatch, place: str, times: int = 1) -> None:
    """Let sinks that are started from now on fail when they come to a place for the nth time."""
    spec_of: Any = vars(_write_stream)["sink_spec"]
    left = [times]

    def check(reached: str) -> None:
        if reached == place:
            left[0] -= 1
            if left[0] == 0:
                raise Injected(place)

    def with_failpoint(*given: Any) -> Any:
        return dataclasses.replace(spec_of(*given), failpoint=check)

    monkeypatch.setattr(_write_stream, "sink_spec", with_failpoint)


class Injected(Exception):
    """What a test has let happen."""


def _seconds(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp()) - BASE // SECOND
