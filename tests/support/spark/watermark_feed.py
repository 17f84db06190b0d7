"""Orders that arrive in small files, and a query that counts them: for tests of watermarks on Spark."""

import json
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

BASE = 1_790_000_000 // 60 * 60
"""The second from which times are counted."""

_names = count()


class Orders:
    """A directory of small files, one a micro-batch; times are seconds after BASE."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._spark, self._directory, self._files = spark, directory, count(1 + len(list(directory.glob("*.json"))))

    def add(self, *rows: tuple[int, str]) -> None:
        number = next(self._files)
        lines = [json.dumps({"t_us": (BASE + t) * 1_000_000, "p": p}) for t, p in rows]
        hidden = self._directory / f".{number}"
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (number, number))
        hidden.rename(self._directory / f"{number:04}.json")

    def frame(self) -> DataFrame:
        lines = self._spark.readStream.schema("t_us bigint, p string").option("maxFilesPerTrigger", 1)
        return lines.json(str(self._directory)).select(F.timestamp_micros("t_us").alias("t"), "p")


class Counting:
    """Counts per ten seconds in append mode, and can be stopped and started again on its checkpoint."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.table = f"counting_{next(_names)}"
        windows = frame.groupBy(F.window("t", "10 seconds")).count()
        rows = windows.select((F.unix_seconds("window.start") - BASE).alias("start"), "count")
        self._writer = rows.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
        self._sink = checkpoint.parent / f"{self.table}-out"
        self._spark = frame.sparkSession
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> "Counting":
        out = self._sink

        def write(batch: DataFrame, number: int) -> None:
            found = [[row["start"], row["count"]] for row in batch.collect()]
            out.mkdir(exist_ok=True)
            # Whoever looks meanwhile sees all of it or nothing.
            (out / f"{number}.part").write_text(json.dumps(found))
            (out / f"{number}.part").replace(out / f"{number}.json")

        writer = self._writer.foreachBatch(write)
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self

    def windows(self) -> list[tuple[int, int]]:
        files = self._sink.glob("*.json")
        return sorted((start, rows) for file in files for start, rows in json.loads(file.read_text()))

    def wait_for(self, expected: list[tuple[int, int]]) -> None:
        """Wait until exactly these windows have closed, and see that it stays so."""
        assert self.query is not None
        deadline = time.monotonic() + 120
        while self.windows() != expected and time.monotonic() < deadline and self.query.isActive:
            time.sleep(0.1)
        assert self.windows() == expected, self.query.exception()
        self.query.processAllAvailable()
        assert self.windows() == expected

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


Count = Callable[..., Counting]
