"""A stream that is written step by step under a clock that stands still, and queries that read it in portions."""

import random
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.bindings import BoundStream
from floodmark.streams import Controller, StreamHome, connect
from floodmark.testing import ManualClock

SECOND = 1_000_000
BASE = 1_790_000_000 // 60 * 60 * SECOND
"""The microsecond from which times are counted, in seconds."""

Frame = Callable[[], DataFrame]
_names = count()


class StreamFeed:
    """A stream with one writer; whatever it writes, marks and binds is done when the call returns."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        segments: int = 2,
        name: str = "orders",
        beside: "StreamFeed | None" = None,
    ) -> None:
        """Create the stream in a home of its own, or in that of the feed `beside`."""
        self.spark, self.path, self.name, self._beside = spark, path, name, beside
        self.clock: ManualClock = ManualClock(BASE) if beside is None else beside.clock
        self.home: StreamHome = (
            connect(path / "home", controller=False, clock=self.clock.now) if beside is None else beside.home
        )
        self.stream = self.home.create_stream(
            name, "id BIGINT, t TIMESTAMP, item STRING", segments=segments, time_columns="t", rate_floor="0 seconds"
        )
        self._controller: Controller = Controller(self.home) if beside is None else beside._controller
        self._writer = self.stream.writer("w")
        self._ids = count()
        self.bound = BoundStream(self.home, name)

    def write(self, *times: int, item: str = "tea") -> None:
        rows = [{"id": next(self._ids), "t": _moment(t), "item": item} for t in times]
        self._writer.write_batch(rows, key=[str(row["id"]) for row in rows])
        self._writer.flush()

    def mark(self, time: int) -> None:
        self._writer.note_time(BASE + time * SECOND)
        self._controller.step()

    def bind(self) -> None:
        """Let a timestamp end here."""
        self.clock.advance(SECOND)
        self.bound.tick(at_once=True)

    def play(self, steps: Iterable[Any]) -> None:
        """Take steps: a list of times is written, a number is noted as the time, None ends a timestamp."""
        for step in steps:
            if step is None:
                self.bind()
            elif isinstance(step, int):
                self.mark(step)
            else:
                self.write(*step)

    def read(self, **options: Any) -> DataFrame:
        return fm.read_stream(self.spark, self.name, home=self.path / "home", **options)

    def collect(self, frame: DataFrame, checkpoint: str | None = None) -> list[tuple[Any, ...]]:
        """Run a query until it has read everything, and return the rows that it has put out in this run."""
        batches: dict[int, list[tuple[Any, ...]]] = {}

        def keep(batch: DataFrame, number: int) -> None:
            batches[number] = [tuple(row) for row in batch.collect()]

        place = self.path / (checkpoint or f"checkpoint-{next(_names)}")
        writer = frame.writeStream.foreachBatch(keep).outputMode("append")
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [row for number in sorted(batches) for row in batches[number]]

    def mark_idle(self) -> None:
        self._writer.mark_idle()
        self._controller.step()

    def close(self) -> None:
        self._writer.close()
        if self._beside is None:
            self.home.close()


def history(seed: int) -> list[Any]:
    """Return what a writer does: rows near its time, some of them late, marks, ends of timestamps."""
    chosen = random.Random(seed)
    steps: list[Any] = []
    time = 0
    for _ in range(6):
        steps.append([max(0, time + 5 * chosen.randint(-3, 3)) for _ in range(chosen.randint(1, 3))])
        if chosen.random() < 0.6:
            time += 5 * chosen.randint(0, 3)
            steps.append(time)
        if chosen.random() < 0.7:
            steps.append(None)
    return [*steps, time + 100, None]


def tumbling(feed: StreamFeed, limits: Any) -> DataFrame:
    """Return how many rows there are in every ten seconds, and the sum of their ids."""
    rows = feed.read(late="strict", operators="windows", **limits)
    return (
        rows.groupBy(F.window("t", "10 seconds"))
        .agg(F.count("*"), F.sum("id"))
        .select("window.start", "count(1)", "sum(id)")
    )


def seconds(row: Row, *columns: str) -> tuple[Any, ...]:
    """Return columns of a row, times as seconds after BASE."""
    return tuple(after_base(row[column]) for column in columns)


def after_base(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else int(value.timestamp()) - BASE // SECOND


def _moment(time: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(BASE // SECOND + time, UTC)
