"""The format "floodmark": reads a stream continuously or as a snapshot, and passes topics on to `topic_reader`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from floodmark._util.times import time_in_unit
from floodmark.bindings import BoundStream, SourceOffset
from floodmark.bindings.offsets import BatchLimits, BoundRange, bound_ranges, next_offset, offset_at_cut
from floodmark.errors import EventsRemoved, SchemaInvalid
from floodmark.spark.private_options import SourceWithSecrets
from floodmark.spark.source.bound_reader import (
    IS_MARK,
    BoundReader,
    MarkRow,
    ReadTask,
    micros_from_unit,
    open_home,
    split_into_tasks,
)
from floodmark.spark.source.stream_settings import (
    MICROS_TYPE,
    ReadRange,
    StreamReadSettings,
    parse_time,
    settings_when_planned,
    stream_arrow_schema,
    stream_spark_schema,
)
from floodmark.spark.worker_checks import home_in_task
from floodmark.streams import Chunk, StreamSettings
from floodmark.streams.events import time_mask
from floodmark.streams.layout.retention import from_head

if TYPE_CHECKING:
    from floodmark.spark.source.topic_reader import TopicSource


class FloodmarkSource(SourceWithSecrets):
    """The data source behind `spark.readStream.format("floodmark").option("stream", "shop/orders")` and `spark.read`.

    With the option `subscribe` it reads Kafka topics.
    """

    format_name = "floodmark"

    def schema(self) -> StructType:
        """Return the columns of the stream, and `_segment`, `_offset`, `_ts` and `_w`."""
        topics = self._topics()
        if topics is not None:
            return topics.schema()
        settings = StreamReadSettings.of(self.options)
        return stream_spark_schema(open_home(settings.home).stream(settings.stream).settings, settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark calls it by this name
        """Return the reader of a streaming query."""
        topics = self._topics()
        if topics is not None:
            return topics.stream_reader(schema)
        settings, location = self._check_schema(schema)
        return StreamReader(settings, location)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        topics = self._topics()
        if topics is not None:
            return topics.reader(schema)
        settings, location = self._check_schema(schema)
        return StreamSnapshotReader(settings, location)

    def _topics(self) -> "TopicSource | None":
        if not any(name.lower() == "subscribe" for name in self.options):
            return None
        # Imported here: only topics need Kafka's client.
        from floodmark.spark.source.topic_reader import TopicSource

        return TopicSource(dict(self.options))

    def _check_schema(self, schema: StructType) -> tuple[StreamReadSettings, str]:
        """Return the settings and the home's location; refuse a schema other than the stream's."""
        settings = StreamReadSettings.of(self.options)
        home = open_home(settings.home)
        stream = home.stream(settings.stream).settings
        count = None if stream.schema is None else sum(name in schema.names for name in stream.schema.names)
        if settings.columns is None:
            # Columns may have been added since the DataFrame was made.
            settings = replace(settings, stream_columns=count)
        expected = stream_spark_schema(settings_when_planned(stream, settings), settings)
        if schema.simpleString() != expected.simpleString():
            raise SchemaInvalid(
                f"The query has the schema {schema.simpleString()}.",
                rule=f"The stream {settings.stream!r} has the schema {expected.simpleString()}.",
                remedy="Remove .schema(...): the schema is that of the stream.",
                schema=schema.simpleString(),
            )
        return settings, home.home.location


def _bound_stream(location: str, settings: StreamReadSettings) -> BoundStream:
    return BoundStream(open_home(location), settings.stream, source=settings.source, **settings.source_settings)


class StreamSnapshotReader(DataSourceReader):
    """Reads the rows bound up to a timestamp, by default now; the same timestamp gives the same rows at any time."""

    def __init__(self, settings: StreamReadSettings, location: str) -> None:
        self._settings = settings
        self._location = location

    def partitions(self) -> Sequence[ReadTask]:
        """Return the tasks."""
        settings = self._settings
        bound = _bound_stream(self._location, settings)
        bounds = ReadRange.of(settings, bound.stream)
        if settings.as_of is None:
            history = bound.tick(at_once=True)
            until = None
        else:
            history = bound.history()
            until = history.check_valid(time_in_unit(parse_time(settings.as_of, "asOf"), "us"))
        cut = bounds.start(bound)
        start = SourceOffset("", None, {}) if cut is None else offset_at_cut(history, "", bound.ends_at(cut))
        end = next_offset(history, start, BatchLimits(until=until, end=bounds.end(bound)))
        return split_into_tasks(bound_ranges(history, start, end), settings.rows_per_task, bounds.rows) or [
            ReadTask(())
        ]

    def read(self, partition: ReadTask) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_stream_task(self._location, self._settings, partition)


class StreamReader(BoundReader[BoundStream, StreamReadSettings]):
    """Reads a stream continuously."""

    def __init__(self, settings: StreamReadSettings, location: str) -> None:
        super().__init__(settings, location)
        self._read_range: ReadRange | None = None

    def read(self, partition: ReadTask) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_stream_task(self._location, self._settings, partition)

    def _open(self) -> BoundStream:
        return _bound_stream(self._location, self._settings)

    def _range(self, bound: BoundStream) -> ReadRange:
        if self._read_range is None:
            self._read_range = ReadRange.of(self._settings, bound.stream)
        return self._read_range

    def _starting_offsets(self, bound: BoundStream) -> Mapping[int, int] | None:
        start, head = self._range(bound).start(bound), bound.stream.head()
        if start is None:
            # From the first event on, unless retention has removed some.
            return bound.ends_at(head) if any(bound.ends_at(head).values()) else None
        return bound.ends_at(from_head(bound.stream.layout, start, head))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadTask]:
        """Return the tasks of a batch, or raise `EventsRemoved` if retention has removed some of its events."""
        bound = self._retry_while_away(self._bound_source)
        starts = self._retry_while_away(bound.stream.starts)
        before, after = SourceOffset.load(start), SourceOffset.load(end)
        for segment, first in starts.items():
            reached = before.cut.get(segment, 0)
            if before.ts is not None and reached < min(first, after.cut.get(segment, 0)):
                raise EventsRemoved(
                    f"The query continues at offset {reached} of segment {segment} of {bound.stream.name!r}, which "
                    f"begins at {first}.",
                    rule="Retention does not remove what a query holds, but its hold was released.",
                    remedy="Start the query with a new checkpoint: it begins at the head of the stream. Set a longer "
                    "release_after of the source, or a longer retention, to let queries pause for longer.",
                    stream=bound.stream.name,
                    segment=segment,
                    offset=reached,
                    start=first,
                )
        return super().partitions(start, end)

    def _ending_offsets(self, bound: BoundStream) -> Mapping[int, int] | None:
        return self._range(bound).end(bound)

    def _time_key(self, bound: BoundStream) -> tuple[str, str]:
        stream = bound.stream.settings
        return stream.key(self._settings.key), stream.unit

    def _is_limited(self) -> bool:
        return super()._is_limited() or bool(self._settings.max_bytes)

    def _max_rows(self, bound: BoundStream) -> int | None:
        settings = self._settings
        by_bytes = self._range(bound).rows_of(settings.max_bytes, bound)
        return min((limit for limit in (settings.max_rows, by_bytes) if limit is not None), default=None)

    def _tasks(self, bound: BoundStream, ranges: Sequence[BoundRange], mark: MarkRow | None) -> Sequence[ReadTask]:
        return split_into_tasks(ranges, self._settings.rows_per_task, self._range(bound).rows, mark)


def read_stream_task(location: str, settings: StreamReadSettings, task: ReadTask) -> Iterator[Any]:
    """Return the rows of a task, as Arrow batches."""
    with home_in_task("Every task reads the home."):
        stream = open_home(location).stream(settings.stream)
    planned = settings_when_planned(stream.settings, settings)
    schema = stream_arrow_schema(planned, settings)
    if task.mark is not None:
        yield _mark_row(planned, settings, schema, task.mark)
    only = task.only
    in_range = None if only is None else time_mask(stream.settings, only.key, only.lower, only.upper)
    for bound in task.ranges:
        for chunk in stream.read(bound.partition, bound.first, bound.end):
            batch = _stamp_rows(chunk, bound, stream.settings, schema)
            yield batch if in_range is None else batch.filter(in_range(chunk.batch))


def _stamp_rows(chunk: Chunk, bound: BoundRange, stream: StreamSettings, schema: Any) -> Any:
    """Return the rows of a chunk with the columns of the schema: those of the stream, and those the source adds."""
    count = chunk.batch.num_rows
    added: dict[str, Callable[[], Any]] = {
        "_segment": lambda: pa.array(np.full(count, bound.partition, np.int64)),
        "_offset": lambda: pa.array(np.arange(chunk.first, chunk.end)),
        "_ts": lambda: _constant(count, bound.ts),
        "_w": lambda: _stamps(count, bound.watermarks, stream),
        IS_MARK: lambda: pa.array(np.zeros(count, np.bool_)),
    }
    columns = [added[name]() if name in added else chunk.batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _mark_row(stream: StreamSettings, settings: StreamReadSettings, schema: Any, mark: MarkRow) -> Any:
    """Return a mark row: it has the mark in the event-time column, and the watermarks in `_w`."""
    values = {
        stream.time_columns[stream.key(settings.key)]: _constant(1, mark.micros),
        "_ts": _constant(1, mark.ts),
        "_w": _stamps(1, mark.watermarks, stream),
        IS_MARK: pa.array([True]),
    }
    return pa.RecordBatch.from_arrays(
        [values.get(field.name, pa.nulls(1, field.type)) for field in schema], schema=schema
    )


def _stamps(count: int, watermarks: Mapping[str, int], stream: StreamSettings) -> Any:
    children = [_constant(count, _micros(watermarks.get(key), stream)) for key in stream.keys]
    return pa.StructArray.from_arrays(children, names=list(stream.keys))


def _micros(time: int | None, stream: StreamSettings) -> int | None:
    return None if time is None else micros_from_unit(time, stream.unit)


def _constant(count: int, micros: int | None) -> Any:
    if micros is None:
        return pa.nulls(count, MICROS_TYPE)
    return pa.array(np.full(count, micros, np.int64)).cast(MICROS_TYPE)
