"""Rows of a stream as Spark gets them: its own columns, and where in the stream and in time each row lies."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from floodmark._util.text import did_you_mean
from floodmark._util.times import UNITS_PER_SECOND
from floodmark.bindings.offsets import BoundRange
from floodmark.control import Home
from floodmark.errors import HomeMissing, HomeOutOfReach, UnknownColumn
from floodmark.spark._stream_settings import ReadSettings
from floodmark.streams import Chunk, StreamHome, StreamSettings
from floodmark.streams.backend import LocalBackend
from floodmark.streams.events import PAYLOAD_SCHEMA, time_mask

IS_MARK: Final = "_is_mark"
"""The column that tells a row with the watermark from a row of the stream."""

_MICROS: Final = pa.timestamp("us", "UTC")
_homes: dict[str, StreamHome] = {}

Mark = tuple[int, Mapping[str, int]]
"""A timestamp, and the watermarks where it was read to its end."""


@dataclass(frozen=True, slots=True)
class TimeFilter:
    """Rows whose time lies outside are left out; times are in the unit of the stream."""

    key: str
    lower: int | None
    upper: int | None


class RangePart(InputPartition):
    """What one task reads: rows that are bound, by timestamp; or the one row that tells where the watermark is."""

    def __init__(
        self, ranges: tuple[BoundRange, ...], only: TimeFilter | None = None, mark: Mark | None = None
    ) -> None:
        self.ranges = ranges
        self.only = only
        self.mark = mark


def open_home(location: str | None) -> StreamHome:
    """Return the home at a place, opened once in each process."""
    known = _homes.get(location or "")
    if known is None:
        known = _homes[location or ""] = StreamHome(LocalBackend(Home.open_existing(location)), controller=False)
    return known


def spark_schema(stream: StreamSettings, settings: ReadSettings) -> StructType:
    """Return the columns that are read of a stream, and those that are added.

    Each may be null, since a row that only tells the watermark has no data.
    """
    return from_arrow_schema(arrow_schema(stream, settings), prefer_timestamp_ntz=True)


def arrow_schema(stream: StreamSettings, settings: ReadSettings) -> Any:
    """Return the columns that are read of a stream, and those that are added, as Arrow has them."""
    payload = PAYLOAD_SCHEMA if stream.schema is None else stream.schema
    stamps = pa.struct([(key, _MICROS) for key in stream.keys])
    places = [("_segment", pa.int64()), ("_offset", pa.int64()), ("_ts", _MICROS), ("_w", stamps)]
    known = [*(field.with_nullable(True) for field in payload), *(pa.field(*column) for column in places)]
    if settings.columns is not None:
        fields = {field.name: field for field in known}
        for name in settings.columns:
            if name not in fields:
                raise UnknownColumn(
                    f"The stream {settings.stream!r} has no column {name!r}.",
                    rule=f"Its columns are {', '.join(fields)}.",
                    remedy=did_you_mean(name, fields, otherwise="Leave it out."),
                    column=name,
                )
        known = [fields[name] for name in settings.columns]
    return pa.schema([*known, pa.field(IS_MARK, pa.bool_())] if settings.marks else known)


def read_part(location: str, settings: ReadSettings, part: RangePart) -> Iterator[Any]:
    """Return the rows of a part, as Arrow batches."""
    try:
        stream = open_home(location).stream(settings.stream)
    except HomeMissing as error:
        raise HomeOutOfReach(
            f"A task cannot see the home {location}.",
            rule="Every executor reads the home; one in a directory is only seen on the machine that has it.",
            remedy="Keep the home in PostgreSQL and the events in Kafka, or run Spark on one machine.",
            path=location,
        ) from error
    schema = arrow_schema(stream.settings, settings)
    if part.mark is not None:
        yield _mark_row(stream.settings, settings, schema, part.mark)
    only = part.only
    wanted = None if only is None else time_mask(stream.settings, only.key, only.lower, only.upper)
    for bound in part.ranges:
        for chunk in stream.read(bound.partition, bound.first, bound.end):
            batch = _stamped(chunk, bound, stream.settings, schema)
            yield batch if wanted is None else batch.filter(wanted(chunk.batch))


def to_micros(time: int, unit: str) -> int:
    """Return a time of a stream in microseconds, rounded down."""
    return time * UNITS_PER_SECOND["us"] // UNITS_PER_SECOND[unit]


def _stamped(chunk: Chunk, bound: BoundRange, stream: StreamSettings, schema: Any) -> Any:
    """Return the columns of the schema, be they of the rows or of the place where they lie."""
    count = chunk.batch.num_rows
    places: dict[str, Callable[[], Any]] = {
        "_segment": lambda: pa.array(np.full(count, bound.partition, np.int64)),
        "_offset": lambda: pa.array(np.arange(chunk.first, chunk.end)),
        "_ts": lambda: _constant(count, bound.ts),
        "_w": lambda: _stamps(count, bound.watermarks, stream),
        IS_MARK: lambda: pa.array(np.zeros(count, np.bool_)),
    }
    columns = [places[name]() if name in places else chunk.batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _mark_row(stream: StreamSettings, settings: ReadSettings, schema: Any, mark: Mark) -> Any:
    """Return a row that says where the watermark is: in the column of the event time, and in `_w`."""
    ts, watermarks = mark
    time = watermarks.get(stream.key(settings.key))
    values = {
        stream.time_columns[stream.key(settings.key)]: _constant(1, _micros(time, stream)),
        "_ts": _constant(1, ts),
        "_w": _stamps(1, watermarks, stream),
        IS_MARK: pa.array([True]),
    }
    return pa.RecordBatch.from_arrays(
        [values.get(field.name, pa.nulls(1, field.type)) for field in schema], schema=schema
    )


def _stamps(count: int, watermarks: Mapping[str, int], stream: StreamSettings) -> Any:
    children = [_constant(count, _micros(watermarks.get(key), stream)) for key in stream.keys]
    return pa.StructArray.from_arrays(children, names=list(stream.keys))


def _micros(time: int | None, stream: StreamSettings) -> int | None:
    return None if time is None else to_micros(time, stream.unit)


def _constant(count: int, micros: int | None) -> Any:
    if micros is None:
        return pa.nulls(count, _MICROS)
    return pa.array(np.full(count, micros, np.int64)).cast(_MICROS)
