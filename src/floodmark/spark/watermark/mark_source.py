"""The Spark data source that feeds the computed watermark of a frame into a query.

Read as a stream it has one row per step: the watermark in microseconds. Read as a table it has one row: the watermark
of the batch that reads it.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from floodmark.control import BatchWatermarks, Home, QueryBatch, WatermarkSteps
from floodmark.spark.private_options import SourceWithSecrets
from floodmark.spark.watermark.chain import MarkOffset, WatermarkChain, WatermarkSettings
from floodmark.spark.watermark.late import current_batch
from floodmark.spark.worker_checks import home_in_task

# Spark's default for spark.sql.streaming.minBatchesToRetain.
_BATCHES_KEPT = 100


class MarkSource(SourceWithSecrets):
    """Registered with a session by `with_watermark`; its options name the home, the settings and the frame."""

    format_name = "floodmark_marks"

    def schema(self) -> str:
        """Return the schema: the watermark in microseconds."""
        return "w bigint"

    def simpleStreamReader(self, schema: StructType) -> "MarkReader":  # noqa: N802 - Spark calls it by this name
        """Return the stream reader."""
        return MarkReader(self.options["home"], self.options["settings"], self.options["frame"])

    def reader(self, schema: StructType) -> "BatchWatermarkReader":
        """Return the reader of the current batch's watermark."""
        settings = WatermarkSettings.from_json(self.options["settings"])
        return BatchWatermarkReader(self.options["home"], self.options["frame"], settings.column)


class MarkReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Computes the next watermark, on the driver, as long as its query runs."""

    def __init__(self, home: str, settings: str, frame: str) -> None:
        self._home, self._settings, self._frame = home, WatermarkSettings.from_json(settings), frame
        self._opened_chain: WatermarkChain | None = None
        self._batch_watermarks: BatchWatermarks | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark calls it by this name
        """Step after every batch with rows, so that the query ends only after the watermark of its last rows."""
        self._chain().steps_every_batch = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark calls it by this name
        """Return the first offset of a query without a checkpoint."""
        return self._chain().initial().to_json()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        """Return the next mark and its offset, or nothing and the same offset."""
        before = MarkOffset.from_json(start)
        after = self._chain().advance(before)
        self._publish_batch_watermark(before, after)
        return (iter(()) if after == before else _mark_rows(after)), after.to_json()

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """Return the mark of a batch that is run again."""
        before, after = MarkOffset.from_json(start), MarkOffset.from_json(end)
        self._chain().note_replay()
        self._publish_batch_watermark(before, after)
        return _mark_rows(after)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the steps that Spark can no longer return to."""
        self._chain().forget_before(MarkOffset.from_json(end), _BATCHES_KEPT)

    def _chain(self) -> WatermarkChain:
        if self._opened_chain is None:
            home = Home.open_existing(self._home)
            if self._settings.late != "drop":
                self._batch_watermarks = BatchWatermarks(home)
            self._opened_chain = WatermarkChain(
                WatermarkSteps(home),
                self._settings,
                self._frame,
                mint=lambda: uuid4().hex,
                clock=now_micros,
                sleep=lambda micros: time.sleep(micros / 1e6),
            )
        return self._opened_chain

    def _publish_batch_watermark(self, before: MarkOffset, after: MarkOffset) -> None:
        """Store the watermark by which tasks decide which rows are late; a mark takes effect in the batch after it."""
        self._chain()
        if self._batch_watermarks is None:
            return
        if after.incarnation != before.incarnation:
            self._batch_watermarks.remove_frame(self._frame, before.incarnation)
        self._batch_watermarks.set_frame(
            self._frame, after.incarnation, before.watermark, after.watermark, now_micros()
        )


class BatchWatermarkReader(DataSourceReader):
    """Reads the watermark of the current batch, in a task: only the task context has the number of the batch."""

    def __init__(self, home: str, frame: str, column: str) -> None:
        self._home, self._frame, self._column = home, frame, column

    def read(self, partition: InputPartition) -> Iterator[tuple[int | None]]:
        """Return the watermark of the batch that the task belongs to."""
        query, run, batch_id = current_batch()
        rule = "All values of `late` but 'drop' read the watermark of the batch from the home, in tasks."
        with home_in_task(rule), Home.open_existing(self._home) as home:
            yield (BatchWatermarks(home).of(QueryBatch(query, run, batch_id, self._frame, self._column)),)


def _mark_rows(offset: MarkOffset) -> Iterator[tuple[Any, ...]]:
    return iter(() if offset.watermark is None else ((offset.watermark,),))


def now_micros() -> int:
    """Return the current time in microseconds since the epoch."""
    return time.time_ns() // 1000
