"""What Spark calls with each batch of a query that writes exactly once: it finds out which rows those are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from floodmark.bindings import SourceOffset
from floodmark.bindings.coordination import QueryReaders
from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.control import Home
from floodmark.errors import SinkCheckpointInvalid, SinkTimedOut
from floodmark.sinks import Batch, BatchOutcome, Drop, Progress, Start
from floodmark.sinks.gate import is_at_most
from floodmark.spark._offset_log import OffsetLog
from floodmark.spark._row_refusals import refused
from floodmark.spark._stream_rows import open_home


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


class WriterOver(Generic[S]):
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
        watermarks = told(self._query, batch)
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
            refusal = refused(str(error), self._query.sink)
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
        ends = place_of(self._log, self._readers(), query.sink, spark, number)
        starts: QueryPosition
        if not number:
            starts = {source: first_of(self._readers(), query.sink, offset)[1] for source, offset in ends.items()}
        elif self._ended is not None and self._ended[0] == number - 1:
            starts = self._ended[1]
        else:
            starts = place_of(self._log, self._readers(), query.sink, spark, number - 1)
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


def place_of(log: OffsetLog, readers: QueryReaders, sink: str, spark: SparkSession, number: int) -> QueryPosition:
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
    return {first_of(readers, sink, offset)[0]: offset for offset in offsets}


def first_of(readers: QueryReaders, sink: str, offset: SourceOffset) -> tuple[str, SourceOffset]:
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


def told(query: SinkQuery, batch: Batch) -> dict[str, int]:
    """Return what is true of time once a batch is written: by the time that all sources have come to.

    Windows come out in the batch after the one that has closed them.
    """
    place = batch.starts if batch.is_stateful else batch.ends
    found = {}
    for key in query.times:
        times = [_of_source(offset, key) for offset in place.values()]
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            found[key] = min(known) - query.lag
    return found


def _of_source(offset: SourceOffset, key: str) -> int | None:
    if key in offset.watermarks or len(offset.watermarks) != 1:
        return offset.watermarks.get(key)
    (only,) = offset.watermarks.values()
    return only
