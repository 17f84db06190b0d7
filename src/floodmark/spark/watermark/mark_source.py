"""The marks of a frame as Spark reads them.

As a stream: one row a step, the watermark (in microseconds) that it promises. As a table: one row, the watermark that
the batch which reads it runs under.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from floodmark.control import BatchWatermarks, Home, QueryBatch, WatermarkSteps
from floodmark.spark.watermark.chain import MarkOffset, WatermarkChain, WatermarkSettings
from floodmark.spark.watermark.late import current_batch

MARKS_FORMAT = "floodmark_marks"
# Spark keeps this many batches to go back to, unless it is told otherwise.
_BATCHES_KEPT = 100


class MarkSource(DataSource):
    """Registered with a session by `with_watermark`; its options name the home, the settings and the frame."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return MARKS_FORMAT

    def schema(self) -> str:
        """Return the one column."""
        return "w bigint"

    def simpleStreamReader(self, schema: StructType) -> "MarkReader":  # noqa: N802 - Spark calls it by this name
        """Return a reader of these options."""
        return MarkReader(self.options["home"], self.options["settings"], self.options["frame"])

    def reader(self, schema: StructType) -> "BatchWatermarkReader":
        """Return a reader of what a batch runs under."""
        settings = WatermarkSettings.from_json(self.options["settings"])
        return BatchWatermarkReader(self.options["home"], self.options["frame"], settings.column)


class MarkReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query runs, and reads there too: one number needs no executor."""

    def __init__(self, home: str, settings: str, frame: str) -> None:
        self._home, self._settings, self._frame = home, WatermarkSettings.from_json(settings), frame
        self._chain_once: WatermarkChain | None = None
        self._places: BatchWatermarks | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it by this name
        """Say something after every batch, so that the query ends only when nothing follows from its last rows."""
        self._chain().steps_every_batch = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark calls it by this name
        """Return where a query without a checkpoint begins."""
        return self._chain().initial().to_json()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """Return the next mark and its offset, or nothing and the same offset."""
        before = MarkOffset.from_json(start)
        after = self._chain().advance(before)
        self._say_place(before, after)
        return (iter(()) if after == before else _mark_rows(after)), after.to_json()

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """Return the mark of a batch that runs again."""
        before, after = MarkOffset.from_json(start), MarkOffset.from_json(end)
        self._say_place(before, after)
        return _mark_rows(after)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what Spark will not ask for again."""
        self._chain().forget_before(MarkOffset.from_json(end), _BATCHES_KEPT)

    def _chain(self) -> WatermarkChain:
        if self._chain_once is None:
            home = Home.open_existing(self._home)
            if self._settings.late != "drop":
                self._places = BatchWatermarks(home)
            self._chain_once = WatermarkChain(
                WatermarkSteps(home),
                self._settings,
                self._frame,
                mint=lambda: uuid4().hex,
                clock=now_micros,
                sleep=lambda micros: time.sleep(micros / 1e6),
            )
        return self._chain_once

    def _say_place(self, before: MarkOffset, after: MarkOffset) -> None:
        """Tell the tasks of the next batch which rows are late: a mark counts from the batch after its own."""
        self._chain()
        if self._places is None:
            return
        if after.incarnation != before.incarnation:
            self._places.leave(self._frame, before.incarnation)
        self._places.place(self._frame, after.incarnation, before.watermark, after.watermark, now_micros())


class BatchWatermarkReader(DataSourceReader):
    """Reads in a task, because only there the batch is known."""

    def __init__(self, home: str, frame: str, column: str) -> None:
        self._home, self._frame, self._column = home, frame, column

    def read(self, partition: InputPartition) -> Iterator[tuple[int | None]]:
        """Return the watermark of the batch that the task belongs to."""
        query, run, batch_id = current_batch()
        with Home.open_existing(self._home) as home:
            yield (BatchWatermarks(home).of(QueryBatch(query, run, batch_id, self._frame, self._column)),)


def _mark_rows(offset: MarkOffset) -> Iterator[tuple[Any, ...]]:
    return iter(() if offset.watermark is None else ((offset.watermark,),))


def now_micros() -> int:
    """Return what time it is, in microseconds since the epoch."""
    return time.time_ns() // 1000
