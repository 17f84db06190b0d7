"""The stream of marks: a Spark source of one row a step, the watermark (in microseconds) that it promises."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from floodmark.control import Home, WatermarkSteps
from floodmark.spark._chain import MarkOffset, WatermarkChain
from floodmark.spark._settings import WatermarkSettings

FORMAT = "floodmark_marks"
# Spark keeps this many batches to go back to, unless it is told otherwise.
_BATCHES_KEPT = 100


class MarkSource(DataSource):
    """Registered with a session by `with_watermark`; its options name the home, the settings and the frame."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column."""
        return "w bigint"

    def simpleStreamReader(self, schema: StructType) -> "MarkReader":  # noqa: N802 - Spark calls it by this name
        """Return a reader of these options."""
        return MarkReader(self.options["home"], self.options["settings"], self.options["frame"])


class MarkReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver as long as its query runs, and reads there too: one number needs no executor."""

    def __init__(self, home: str, settings: str, frame: str) -> None:
        self._place = home, settings, frame
        self._chain_once: WatermarkChain | None = None

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
        return (iter(()) if after == before else _marks(after)), after.to_json()

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """Return the mark of a batch that runs again."""
        return _marks(MarkOffset.from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what Spark will not ask for again."""
        self._chain().forget_before(MarkOffset.from_json(end), _BATCHES_KEPT)

    def _chain(self) -> WatermarkChain:
        if self._chain_once is None:
            home, settings, frame = self._place
            self._chain_once = WatermarkChain(
                WatermarkSteps(Home.open_existing(home)),
                WatermarkSettings.from_json(settings),
                frame,
                mint=lambda: uuid4().hex,
                clock=now_micros,
                sleep=lambda micros: time.sleep(micros / 1e6),
            )
        return self._chain_once


def _marks(offset: MarkOffset) -> Iterator[tuple[Any, ...]]:
    return iter(() if offset.watermark is None else ((offset.watermark,),))


def now_micros() -> int:
    """Return what time it is, in microseconds since the epoch."""
    return time.time_ns() // 1000
