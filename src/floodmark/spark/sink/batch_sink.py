"""What Spark calls with each batch of a query that writes exactly once, and how it knows which rows those are.

Where a batch begins and ends is in Spark's offset log, which is written before the batch runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from floodmark.bindings import Bindings, SourceOffset
from floodmark.bindings.coordination import QueryReaders
from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.control import Home
from floodmark.errors import SinkCheckpointInvalid, SinkTimedOut
from floodmark.sinks import Batch, BatchOutcome, Drop, Progress, Start, Write, WriteFrom
from floodmark.sinks.gate import SplitAt, is_at_most, is_same, misaligned_error
from floodmark.spark.sink.rows import RowFormat, parse_refusal
from floodmark.spark.source.bound_reader import open_home


class SinkWriter(Protocol):
    """Writes batches of a query to one kind of target."""

    @property
    def progress(self) -> Progress | None:
        """What was written."""

    def start(self, query_id: str | None) -> Start:
        """Fence whoever wrote before, read what was written, and decide."""

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch unless it was written."""

    def close(self) -> None:
        """Let go."""


class StartedSink(Protocol):
    """What writers of all kinds have behind them."""

    @property
    def progress(self) -> Progress | None:
        """What was written."""

    def start(self) -> Start:
        """Fence whoever wrote before, read what was written, and decide."""

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query must end."""

    def close(self) -> None:
        """Let go."""


S = TypeVar("S", bound=StartedSink)


class BaseSinkWriter(Generic[S]):
    """A writer that only has to bring the rows: the rest is its sink's."""

    def __init__(self, sink: S) -> None:
        """Write to this sink."""
        self._sink = sink

    @property
    def progress(self) -> Progress | None:
        """What was written."""
        return self._sink.progress

    def start(self, query_id: str | None) -> Start:
        """Fence whoever wrote before, read what was written, and decide."""
        return self._sink.start()

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return self._sink.cuts(starts, is_stateful=is_stateful)

    def close(self) -> None:
        """Let go."""
        self._sink.close()


class SinkSpec(Protocol):
    """What makes a writer, in whichever process the batches come to."""

    def open(self, home: Home) -> SinkWriter:
        """Return the writer."""


@dataclass(frozen=True, slots=True)
class SinkQuery:
    """A query, and where it writes."""

    sink: str
    location: str
    checkpoint: str
    is_stateful: bool
    spec: SinkSpec
    times: tuple[str, ...]
    """The time keys of the target."""
    lag: int
    """How far its rows are behind the watermark, in microseconds."""
    stops: tuple[BatchStop, ...] = ()


class BatchSink:
    """Takes the batches of a query, one after the other. A copy of it in another process starts anew."""

    def __init__(self, query: SinkQuery, writer: SinkWriter | None = None) -> None:
        """Write with a writer that has been started, or with one of its own."""
        self._query = query
        self._writer = writer
        self._log = OffsetLog(query.checkpoint)
        self._query_id: str | None = None
        self._ended: tuple[int, QueryPosition] | None = None
        self._passed = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"query": self._query}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["query"])  # type: ignore[misc]

    def __call__(self, df: DataFrame, number: int) -> None:
        """Write the rows of a batch, if they are not written yet."""
        spark = df.sparkSession
        batch = self.batch(spark, number)
        writer = self._started(batch.query_id)
        watermarks = output_watermarks(self._query, batch)
        try:
            self._write(writer, df, batch, watermarks)
        except SinkTimedOut as error:
            if not error.fields["again"]:
                raise
            writer.start(batch.query_id)
            self._write(writer, df, batch, watermarks)
        passed = sum(is_at_most(stop.place, batch.ends) for stop in self._query.stops)
        if passed > self._passed:
            # The readers ask for it before the next batch, and so all of them go on in the same one.
            self._readers().passed(self._query.sink, passed)
            self._passed = passed

    def _write(self, writer: SinkWriter, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> None:
        try:
            outcome = writer.write(df, batch, watermarks)
        except Exception as error:
            # Spark tells it as one of its errors, or as one of Java's, by how the rows were asked for.
            refusal = parse_refusal(str(error), self._query.sink)
            if refusal is None:
                raise
            raise refusal from error
        if isinstance(outcome.decision, Drop) and batch.is_stateful:
            # What was written stays so, but Spark must have the state that led to it.
            df.write.format("noop").mode("overwrite").save()

    def batch(self, spark: SparkSession, number: int) -> Batch:
        """Return where a batch begins and ends, by Spark's own log."""
        query = self._query
        if self._query_id is None:
            self._query_id = self._log.query_id(spark)
        ends = batch_end(self._log, self._readers(), query.sink, spark, number)
        starts: QueryPosition
        if not number:
            starts = {
                source: source_and_start(self._readers(), query.sink, offset)[1] for source, offset in ends.items()
            }
        elif self._ended is not None and self._ended[0] == number - 1:
            starts = self._ended[1]
        else:
            starts = batch_end(self._log, self._readers(), query.sink, spark, number - 1)
        self._ended = number, ends
        return Batch(str(self._query_id), starts, ends, query.is_stateful)

    def _readers(self) -> QueryReaders:
        return QueryReaders(self._home())

    def _home(self) -> Home:
        return open_home(self._query.location).home

    def _started(self, query_id: str) -> SinkWriter:
        if self._writer is None:
            self._writer = self._query.spec.open(self._home())
            self._writer.start(query_id)
        return self._writer


Offsets = tuple[dict[str, Any] | None, ...]
"""Of each source, in Spark's order, where a batch ends; None where it has not begun."""


class OffsetLog:
    """The checkpoint of a query, as far as it tells places.

    It is read as files where it is on this machine, and else by Spark, which knows other file systems.
    """

    def __init__(self, checkpoint: str) -> None:
        """Read the checkpoint at this place."""
        self._checkpoint = checkpoint.rstrip("/")
        parts = urlsplit(checkpoint)
        self._local = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None

    def query_id(self, spark: SparkSession) -> str | None:
        """Return the id of the query; None before it was ever started."""
        text = self._text(spark, "metadata")
        return None if text is None else str(json.loads(text)["id"])

    def last_committed(self, spark: SparkSession) -> int | None:
        """Return the number of the last batch that was done."""
        return max(self._numbers(spark, "commits"), default=None)

    def has_begun(self, spark: SparkSession) -> bool:
        """Return whether the end of any batch was ever chosen."""
        return bool(self._numbers(spark, "offsets"))

    def offsets(self, spark: SparkSession, batch: int) -> Offsets | None:
        """Return where a batch ends; None if that is not known any more."""
        text = self._text(spark, f"offsets/{batch}")
        if text is None:
            return None
        form, *lines = text.strip().split("\n")
        try:
            if form.strip() not in _FORMAT_VERSIONS:
                raise ValueError(form)
            # The line after the form is about the query.
            return tuple(None if line == _NO_OFFSET else json.loads(line) for line in lines[1:])
        except ValueError as error:
            raise SinkCheckpointInvalid(
                f"The offsets of batch {batch} in {self._checkpoint} are {text!r:.200}.",
                rule=f"They are written as Spark does it, in form {', '.join(_FORMAT_VERSIONS)}.",
                remedy="Set spark.sql.streaming.offsetLog.formatVersion to 1, and start with a new checkpoint.",
                checkpoint=self._checkpoint,
                batch=batch,
            ) from error

    def _numbers(self, spark: SparkSession, folder: str) -> list[int]:
        if self._local is not None:
            place = self._local / folder
            names = [path.name for path in place.iterdir()] if place.is_dir() else []
        else:
            names = self._list(spark, f"{self._checkpoint}/{folder}/*")
        return [int(name) for name in names if name.isdecimal()]

    def _text(self, spark: SparkSession, name: str) -> str | None:
        if self._local is not None:
            path = self._local / name
            return path.read_text() if path.is_file() else None
        if name.rpartition("/")[2] not in self._list(spark, f"{self._checkpoint}/{name}"):
            return None
        rows = spark.read.text(f"{self._checkpoint}/{name}", wholetext=True).collect()
        return str(rows[0][0]) if rows else None

    def _list(self, spark: SparkSession, pattern: str) -> list[str]:
        try:
            found = spark.read.format("binaryFile").load(pattern).select("path").collect()
        except PySparkException:
            # Nothing is there.
            return []
        return [str(row[0]).rpartition("/")[2] for row in found]


def batch_end(log: OffsetLog, readers: QueryReaders, sink: str, spark: SparkSession, number: int) -> QueryPosition:
    """Return where a batch of a query ends, in each of its sources, or refuse a checkpoint that is not the sink's."""
    found = log.offsets(spark, number)
    if found is None or any(offset is None for offset in found):
        raise SinkCheckpointInvalid(
            f"The checkpoint does not say where batch {number} of the sink {sink!r} ends.",
            rule="What is written is known by where batches begin and end.",
            remedy="Start the query with a new checkpoint: what was written is not written again.",
            sink=sink,
            batch=number,
        )
    offsets = [SourceOffset.load(offset) for offset in found if offset is not None]
    return {source_and_start(readers, sink, offset)[0]: offset for offset in offsets}


def source_and_start(readers: QueryReaders, sink: str, offset: SourceOffset) -> tuple[str, SourceOffset]:
    """Return of which source an offset is, and where its query has begun, or refuse one of another query."""
    reader = readers.find(offset.incarnation)
    if reader is None or reader.query != sink:
        whose = "of no sink of this home" if reader is None else f"of the sink {reader.query!r}"
        raise SinkCheckpointInvalid(
            f"An offset of a query that writes to the sink {sink!r} is {whose}.",
            rule="A checkpoint belongs to one sink, and its sources are in the sink's home.",
            remedy="Read and write with the same home, and start with a new checkpoint.",
            sink=sink,
        )
    return reader.source, reader.first


def output_watermarks(query: SinkQuery, batch: Batch) -> dict[str, int]:
    """Return what is true of time once a batch is written: by the time that all sources have come to.

    Windows come out in the batch after the one that has closed them.
    """
    place = batch.starts if batch.is_stateful else batch.ends
    found = {}
    for key in query.times:
        times = [_source_watermark(offset, key) for offset in place.values()]
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            found[key] = min(known) - query.lag
    return found


def _source_watermark(offset: SourceOffset, key: str) -> int | None:
    if key in offset.watermarks or len(offset.watermarks) != 1:
        return offset.watermarks.get(key)
    (only,) = offset.watermarks.values()
    return only


def default_row_ts(batch: Batch) -> int:
    """Return the timestamp of rows that have none of their own: the last one of the batch."""
    return max((offset.ts or 0 for offset in batch.ends.values()), default=0)


def published_watermarks(form: RowFormat, batch: Batch, progress: Progress | None) -> dict[str, int]:
    """Return what readers were told of time by key; a row without state may be late, and is so for them too."""
    if progress is None or not batch.is_stateful or not is_same(batch.starts, progress.ends):
        # What was written before is not written again, however early it is.
        return {}
    return {key: progress.marks[key].time for key, _ in form.times if key in progress.marks}


def last_written_ts(decision: Write | WriteFrom, batch: Batch, form: RowFormat, bindings: Bindings) -> int | None:
    """Return the last timestamp whose rows were written; None if all are to be written."""
    if isinstance(decision, Write):
        return None
    if len(batch.starts) == 1 and form.has_ts:
        ((source, after),) = decision.after.items()
        if after.is_at_end_of_ts(bindings.history(source)):
            return after.ts
    raise misaligned_error(SplitAt((BatchStop(decision.after, in_one=False),)), batch)


_FORMAT_VERSIONS: Final = ("v1",)
_NO_OFFSET: Final = "-"
