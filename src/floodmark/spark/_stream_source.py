"""The format "floodmark": streams and topics, as a stream of rows or as a snapshot of one moment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from floodmark._util.times import time_in_unit
from floodmark.bindings import BoundStream, SourceOffset
from floodmark.bindings.offsets import BatchLimits, bound_ranges, next_offset, offset_at_cut
from floodmark.errors import SchemaInvalid
from floodmark.spark._bound_reader import parts_of
from floodmark.spark._stream_bounds import Bounds
from floodmark.spark._stream_reader import StreamReader
from floodmark.spark._stream_rows import RangePart, open_home, read_part, spark_schema
from floodmark.spark._stream_settings import ReadSettings, time_from

if TYPE_CHECKING:
    from floodmark.spark._topic_source import TopicSource


class StreamSource(DataSource):
    """`spark.readStream.format("floodmark").option("stream", "shop/orders")`, and the same with `spark.read`.

    With the option `subscribe` it reads topics of Kafka.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "floodmark"

    def schema(self) -> StructType:
        """Return the columns of the stream, and `_segment`, `_offset`, `_ts` and `_w`."""
        topics = self._topics()
        if topics is not None:
            return topics.schema()
        settings = ReadSettings.of(self.options)
        return spark_schema(open_home(settings.home).stream(settings.stream).settings, settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark calls it by this name
        """Return what reads the stream as it grows."""
        topics = self._topics()
        if topics is not None:
            return topics.stream_reader(schema)
        settings, location = self._checked(schema)
        return StreamReader(settings, location)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the stream as it was at one moment."""
        topics = self._topics()
        if topics is not None:
            return topics.reader(schema)
        settings, location = self._checked(schema)
        return SnapshotReader(settings, location)

    def _topics(self) -> "TopicSource | None":
        if not any(name.lower() == "subscribe" for name in self.options):
            return None
        # Whoever reads streams needs no client for Kafka.
        from floodmark.spark._topic_source import TopicSource

        return TopicSource(dict(self.options))

    def _checked(self, schema: StructType) -> tuple[ReadSettings, str]:
        settings = ReadSettings.of(self.options)
        home = open_home(settings.home)
        known = self.schema()
        if schema.simpleString() != known.simpleString():
            raise SchemaInvalid(
                f"The query has the schema {schema.simpleString()}.",
                rule=f"What is read of the stream {settings.stream!r} has {known.simpleString()}.",
                remedy="Leave the schema out; it is that of the stream.",
                schema=schema.simpleString(),
            )
        return settings, home.home.location


class SnapshotReader(DataSourceReader):
    """Reads what was bound at a timestamp: the same rows whenever it is asked."""

    def __init__(self, settings: ReadSettings, location: str) -> None:
        self._settings = settings
        self._location = location

    def partitions(self) -> Sequence[RangePart]:
        """Return what the tasks read."""
        settings = self._settings
        bound = BoundStream(open_home(self._location), settings.stream, source=settings.source)
        bounds = Bounds.of(settings, bound.stream)
        if settings.as_of is None:
            history = bound.tick(at_once=True)
            until = None
        else:
            history = bound.history()
            until = history.check_valid(time_in_unit(time_from(settings.as_of, "asOf"), "us"))
        cut = bounds.start(bound)
        start = SourceOffset("", None, {}) if cut is None else offset_at_cut(history, "", bound.ends_at(cut))
        end = next_offset(history, start, BatchLimits(until=until, end=bounds.end(bound)))
        return parts_of(bound_ranges(history, start, end), settings.rows_per_task, bounds.rows) or [RangePart(())]

    def read(self, partition: RangePart) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_part(self._location, self._settings, partition)
