"""The function that Spark calls with each batch of a query that writes exactly once.

Where a batch begins and ends is read from Spark's offset log, which is written before the batch runs.
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
from floodmark.bindings.offsets import BatchStop, QueryPosition, source_of_key
from floodmark.control import Home
from floodmark.errors import SinkCheckpointInvalid, SinkInputUnbound, SinkTimedOut
from floodmark.sinks import Batch, BatchOutcome, Drop, Progress, Start, Write, WriteFrom
from floodmark.sinks.gate import SplitAt, is_at_most, is_same, misaligned_error
from floodmark.spark.sink.rows import RowFormat, parse_refusal
from floodmark.spark.source.bound_reader import open_home


class SinkWriter(Protocol):
    """Writes the batches of a query to one kind of target."""

    @property
    def progress(self) -> Progress | None:
        """How far the target is written."""

    def start(self, query_id: str | None) -> Start:
        """Fence earlier writers of the sink, read its progress, and decide how to continue."""

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where batches must end if the query continues from `starts`; None for a new query."""

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""

    def close(self) -> None:
        """Release clients and connections."""


class StartedSink(Protocol):
    """The sinks of `floodmark.sinks`, to which writers delegate; the methods are those of `SinkWriter`."""

    @property
    def progress(self) -> Progress | None:
        """See `SinkWriter`."""

    def start(self) -> Start:
        """See `SinkWriter`."""

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """See `SinkWriter`."""

    def close(self) -> None:
        """See `SinkWriter`."""


S = TypeVar("S", bound=StartedSink)


class BaseSinkWriter(Generic[S]):
    """A writer that delegates everything but `write` to its sink."""

    def __init__(self, sink: S) -> None:
        """Write to this sink."""
        self._sink = sink

    @property
    def progress(self) -> Progress | None:
        """How far the target is written."""
        return self._sink.progress

    def start(self, query_id: str | None) -> Start:
        """Fence earlier writers and read the progress."""
        return self._sink.start()

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where batches must end."""
        return self._sink.batch_stops(starts, is_stateful=is_stateful)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


class SinkSpec(Protocol):
    """Everything needed to open a writer; it can be pickled to the process that runs the batches."""

    def open(self, home: Home) -> SinkWriter:
        """Return the writer."""


@dataclass(frozen=True, slots=True)
class SinkQuery:
    """A query and its sink."""

    sink: str
    location: str
    checkpoint: str
    is_stateful: bool
    spec: SinkSpec
    times: tuple[str, ...]
    """The time keys of the target."""
    lag: int
    """How far its rows may be behind the watermark, in microseconds."""
    run: str = ""
    """The run of the query that was announced to its readers."""
    stops: tuple[BatchStop, ...] = ()


class BatchSink:
    """Writes the batches of a query, one after the other. A pickled copy in another process starts its own writer."""

    def __init__(self, query: SinkQuery, writer: SinkWriter | None = None) -> None:
        """Use a writer that was started, or start one with the first batch."""
        self._query = query
        self._writer = writer
        self._log = OffsetLog(query.checkpoint)
        self._query_id: str | None = None
        self._last_end: tuple[int, QueryPosition] | None = None
        self._passed = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"query": self._query}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["query"])  # type: ignore[misc]

    def __call__(self, df: DataFrame, number: int) -> None:
        """Write the rows of a batch, unless they are already written."""
        spark = df.sparkSession
        batch = self.batch(spark, number)
        writer = self._started_writer(batch.query_id)
        watermarks = output_watermarks(self._query, batch, self._log.watermark(spark, number))
        try:
            self._write(writer, df, batch, watermarks)
        except SinkTimedOut as error:
            if not error.fields["again"]:
                raise
            writer.start(batch.query_id)
            self._write(writer, df, batch, watermarks)
        passed = sum(is_at_most(stop.position, batch.ends) for stop in self._query.stops)
        if passed > self._passed:
            # Readers look this up before the next batch, so all of them pass the stop in the same batch.
            self._readers().record_passed(self._query.run, passed)
            self._passed = passed

    def _write(self, writer: SinkWriter, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> None:
        try:
            outcome = writer.write(df, batch, watermarks)
        except Exception as error:
            # Spark wraps a refused row in different exceptions, so it is recognised by its message.
            refusal = parse_refusal(str(error), self._query.sink)
            if refusal is None:
                raise
            raise refusal from error
        if isinstance(outcome.decision, Drop) and batch.is_stateful:
            # The rows are already written, but Spark must still update its state.
            df.write.format("noop").mode("overwrite").save()

    def batch(self, spark: SparkSession, number: int) -> Batch:
        """Return where a batch begins and ends, from Spark's offset log."""
        query = self._query
        if self._query_id is None:
            self._query_id = self._log.query_id(spark)
        ends = batch_end(self._log, self._readers(), query.sink, spark, number)
        starts: QueryPosition
        if not number:
            starts = {
                source: source_and_start(self._readers(), query.sink, offset)[1] for source, offset in ends.items()
            }
        elif self._last_end is not None and self._last_end[0] == number - 1:
            starts = self._last_end[1]
        else:
            starts = batch_end(self._log, self._readers(), query.sink, spark, number - 1)
        self._last_end = number, ends
        return Batch(str(self._query_id), starts, ends, query.is_stateful, is_first=not number)

    def _readers(self) -> QueryReaders:
        return QueryReaders(self._home())

    def _home(self) -> Home:
        return open_home(self._query.location).home

    def _started_writer(self, query_id: str) -> SinkWriter:
        if self._writer is None:
            self._writer = self._query.spec.open(self._home())
            self._writer.start(query_id)
        return self._writer


Offsets = tuple[dict[str, Any] | None, ...]
"""Where a batch ends in each source, in Spark's order; None for a source without rows so far."""


class OffsetLog:
    """Reads the offsets and the query id of a checkpoint.

    A checkpoint on the local file system is read directly, another one through Spark.
    """

    def __init__(self, checkpoint: str) -> None:
        """Read the checkpoint in this directory."""
        self._checkpoint = checkpoint.rstrip("/")
        parts = urlsplit(checkpoint)
        self._local = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
        self._last_read: tuple[int, list[str]] | None = None

    def query_id(self, spark: SparkSession) -> str | None:
        """Return the id of the query; None before its first start."""
        text = self._text(spark, "metadata")
        return None if text is None else str(json.loads(text)["id"])

    def last_committed(self, spark: SparkSession) -> int | None:
        """Return the number of the last committed batch."""
        return max(self._numbers(spark, "commits"), default=None)

    def last_logged(self, spark: SparkSession) -> int | None:
        """Return the number of the last batch whose offsets were logged."""
        return max(self._numbers(spark, "offsets"), default=None)

    def offsets(self, spark: SparkSession, batch: int) -> Offsets | None:
        """Return where a batch ends; None if its offsets are not in the log."""
        lines = self._lines(spark, batch)
        return None if lines is None else tuple(None if line == _NO_OFFSET else json.loads(line) for line in lines[1:])

    def watermark(self, spark: SparkSession, batch: int) -> int:
        """Return Spark's watermark in a batch that is logged, in milliseconds."""
        lines = self._lines(spark, batch)
        return 0 if lines is None else int(json.loads(lines[0])["batchWatermarkMs"])

    def _lines(self, spark: SparkSession, batch: int) -> list[str] | None:
        """Return metadata of a batch, and where it ends in each source, one line each; None if it is not logged."""
        if self._last_read is not None and self._last_read[0] == batch:
            return self._last_read[1]
        text = self._text(spark, f"offsets/{batch}")
        if text is None:
            return None
        version, *lines = text.strip().split("\n")
        try:
            if version.strip() not in _FORMAT_VERSIONS:
                raise ValueError(version)
            for line in lines:
                if line != _NO_OFFSET:
                    json.loads(line)
        except ValueError as error:
            raise SinkCheckpointInvalid(
                f"The offsets of batch {batch} in {self._checkpoint} are {text!r:.200}.",
                rule=f"They must have Spark's offset log format {', '.join(_FORMAT_VERSIONS)}.",
                remedy="Set spark.sql.streaming.offsetLog.formatVersion to 1, and start with a new checkpoint.",
                checkpoint=self._checkpoint,
                batch=batch,
            ) from error
        self._last_read = batch, lines
        return lines

    def _numbers(self, spark: SparkSession, folder: str) -> list[int]:
        if self._local is not None:
            directory = self._local / folder
            names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
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
            files = spark.read.format("binaryFile").load(pattern).select("path").collect()
        except PySparkException:
            # No file matches.
            return []
        return [str(row[0]).rpartition("/")[2] for row in files]


def batch_end(log: OffsetLog, readers: QueryReaders, sink: str, spark: SparkSession, number: int) -> QueryPosition:
    """Return where a batch of a query ends in each source; refuse a checkpoint of another sink."""
    logged = log.offsets(spark, number)
    if logged is None or any(offset is None for offset in logged):
        raise SinkCheckpointInvalid(
            f"The checkpoint has no end of batch {number} of the sink {sink!r}.",
            rule="The sink needs the ends of batches to know which rows it has written.",
            remedy="Start the query with a new checkpoint: rows that were written are not written again.",
            sink=sink,
            batch=number,
        )
    offsets = [SourceOffset.load(offset) for offset in logged if offset is not None]
    position: dict[str, SourceOffset] = {}
    for offset in offsets:
        source = source_and_start(readers, sink, offset)[0]
        if source in position:
            raise SinkInputUnbound(
                f"The query of the sink {sink!r} reads the source {source!r} twice.",
                rule="Progress is recorded by source, and each source has one position.",
                remedy="Pass another source= to the second read_stream or read_topics, such as "
                f"source={source + '-again'!r}, and start with a new checkpoint.",
                inputs=[source],
            )
        position[source] = offset
    return position


def source_and_start(readers: QueryReaders, sink: str, offset: SourceOffset) -> tuple[str, SourceOffset]:
    """Return the key of an offset in positions, and where its query has begun; refuse an offset of another query."""
    reader = readers.find(offset.incarnation)
    if reader is None or reader.query != sink:
        whose = "of no sink of this home" if reader is None else f"of the sink {reader.query!r}"
        raise SinkCheckpointInvalid(
            f"An offset of a query that writes to the sink {sink!r} is {whose}.",
            rule="A checkpoint belongs to one sink, and its sources must be in the sink's home.",
            remedy="Pass the same home= to the readers and to write_stream, and start with a new checkpoint.",
            sink=sink,
        )
    return reader.key, reader.first


def output_watermarks(query: SinkQuery, batch: Batch, spark_watermark: int) -> dict[str, int]:
    """Return the watermark of each time key once a batch is written: the minimum over its sources, minus the lag.

    A stateful query emits windows in the batch after the one that has closed them, so its watermark is one batch older.
    `spark_watermark` is Spark's watermark in the batch, in milliseconds. It may lag behind the marks of the sources: if
    Spark runs a batch again after a restart, inputs without news in it say their marks only in the next one. Nothing is
    returned then, since windows before the marks are not emitted yet.
    """
    position = batch.starts if batch.is_stateful else batch.ends
    marks = [offset.mark.micros for offset in position.values() if offset.mark is not None]
    # Spark's watermark is up to a millisecond before the mark that it stands for.
    if batch.is_stateful and len(marks) == len(position) and min(marks) > (spark_watermark + 1) * 1000:
        return {}
    watermarks = {}
    for key in query.times:
        by_source = [_source_watermark(offset, key) for offset in position.values()]
        stated = [time for time in by_source if time is not None]
        if stated and len(stated) == len(by_source):
            watermarks[key] = min(stated) - query.lag
    return watermarks


def _source_watermark(offset: SourceOffset, key: str) -> int | None:
    if offset.state is not None and offset.mark is not None and offset.mark.key == key:
        # An input that was released while it was idle has promised Spark more than its own watermark.
        return offset.mark.micros
    if key in offset.watermarks or len(offset.watermarks) != 1:
        return offset.watermarks.get(key)
    (only,) = offset.watermarks.values()
    return only


def default_row_ts(batch: Batch) -> int:
    """Return the timestamp of rows without `_ts`: the last timestamp of the batch."""
    return max((offset.ts or 0 for offset in batch.ends.values()), default=0)


def published_watermarks(form: RowFormat, batch: Batch, progress: Progress | None) -> dict[str, int]:
    """Return the watermark of each time key that readers of the target already have.

    Rows of a stateful query must not be earlier. A row of a stateless query may be: it was late in the source, too.
    """
    if progress is None or not batch.is_stateful or not is_same(batch.starts, progress.ends):
        # The batch repeats rows that were written before that watermark; they are not written again.
        return {}
    return {key: progress.marks[key].time for key, _ in form.times if key in progress.marks}


def last_written_ts(decision: Write | WriteFrom, batch: Batch, form: RowFormat, bindings: Bindings) -> int | None:
    """Return the last timestamp of the batch whose rows are already written; None if none are."""
    if isinstance(decision, Write):
        return None
    if len(batch.starts) == 1 and form.has_ts:
        ((source, after),) = decision.after.items()
        if after.is_at_end_of_ts(bindings.history(source_of_key(source))):
            return after.ts
    raise misaligned_error(SplitAt((BatchStop(decision.after, in_one=False),)), batch)


_FORMAT_VERSIONS: Final = ("v1",)
_NO_OFFSET: Final = "-"
