"""Writes batches of a query to a stream: the driver collects the rows and writes them in one transaction."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, TimestampType

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import InvalidOption
from floodmark.sinks import (
    Batch,
    BatchOutcome,
    KeyedRows,
    Sink,
    StreamShape,
    StreamTarget,
    TargetOptions,
    Write,
    WriteFrom,
)
from floodmark.sinks.target import Failpoint, no_failpoint
from floodmark.spark.columns import EVENT_TIME_METADATA, column_of, quote_name
from floodmark.spark.sink.batch_sink import BaseSinkWriter, last_written_ts, published_watermarks
from floodmark.spark.sink.rows import DIFF_COLUMN, TS_COLUMN, RowFormat, is_data_column, refuse_early, repeat_by_diff
from floodmark.spark.transfer import bring_to_driver, decode_batches, pack_rows
from floodmark.streams import StreamHome, connect
from floodmark.streams.definition import check_stream_name

KEY_COLUMN: Final = "_key"
"""The column with the keys of the rows, while they are sent to the driver."""
_writing_homes: dict[tuple[str, tuple[tuple[str, str], ...]], StreamHome] = {}


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The stream that a sink writes to, and how it writes."""

    stream: str
    sink: str
    options: TargetOptions
    form: RowFormat
    shape: StreamShape
    times: tuple[tuple[str, str], ...] = ()
    """Time columns that are added to the rows, and their expressions."""
    windows: frozenset[str] = frozenset()
    """The time keys whose times are the last microseconds of windows."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of Kafka's client."""
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "StreamWriter":
        """Return the writer."""
        return StreamWriter(home, self)


def stream_spec(
    name: str, sink: str, form: RowFormat, schema: StructType, options: TargetOptions, client: Mapping[str, str]
) -> StreamSpec:
    """Return the spec of a writer of rows with this schema to a stream.

    The stream gets the columns of the rows. A time that is not one of them gets a column with the name of its key. So
    do windows, whose time is a microsecond before their end, as in Spark's `window_time`.
    """
    columns = [field for field in schema.fields if is_data_column(field.name)]
    if not form.times:
        raise InvalidOption(
            "The rows have no time.",
            rule="A stream has a time key, by which its readers get the watermark of the query.",
            remedy="Keep the event time or the window as a column, or name a time column, such as times={'at': 'at'}.",
            option="times",
        )
    names = {field.name.lower() for field in columns}
    time_columns: dict[str, str] = {}
    added: dict[str, str] = {}
    windows = set()
    for key, text in form.times:
        matches = [field.name for field in columns if text in (field.name, quote_name(field.name))]
        if matches:
            time_columns[key] = matches[0]
            continue
        if key.lower() in names:
            raise InvalidOption(
                f"The time of the key {key!r} is {text}, and the rows have a column {key!r} that is something else.",
                rule="A time that is not a column of the rows gets a column with the name of its key.",
                remedy="Rename that column, or add the time as a column with df.withColumn and name that in `times`.",
                option="times",
            )
        is_window = text in {
            f"{quote_name(field.name)}.end" for field in columns if EVENT_TIME_METADATA in field.metadata
        }
        if is_window:
            windows.add(key)
        time_columns[key] = key
        added[key] = f"{text} - INTERVAL 1 MICROSECOND" if is_window else text
    fields = [*columns, *(StructField(name, TimestampType()) for name in added)]
    arrow = to_arrow_schema(StructType(fields), timezone="UTC", error_on_duplicated_field_names_in_struct=True)
    shape = StreamShape(arrow, time_columns, options.partitions)
    check_stream_name(name)
    return StreamSpec(name, sink, options, form, shape, tuple(added.items()), frozenset(windows), dict(client))


class StreamWriter(BaseSinkWriter[Sink[Iterable[KeyedRows]]]):
    """Collects the rows of a batch on the driver, and writes them in one transaction."""

    def __init__(self, home: Home, spec: StreamSpec) -> None:
        """Write as the spec says; `start` is the first access to the stream."""
        self._spec = spec
        self._bindings = Bindings(home)
        streams = _open_writing_home(home.location, spec.client)
        target = StreamTarget(streams, spec.stream, spec.shape, spec.sink, spec.options, failpoint=spec.failpoint)
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""
        # A window that ends at the watermark may still be emitted, and its time is a microsecond earlier.
        stated = {key: time - (key in self._spec.windows) for key, time in watermarks.items()}
        return self._sink.write(batch, partial(self._rows, df, batch), watermarks=stated)

    def _rows(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> Iterator[Any]:
        spec = self._spec
        after = last_written_ts(decision, batch, spec.form, self._bindings)
        published = published_watermarks(spec.form, batch, self.progress)
        rows = arrange_rows(df, spec, after=after, published=published)
        return _keyed_rows(bring_to_driver(pack_rows(rows)))


def arrange_rows(df: DataFrame, spec: StreamSpec, *, after: int | None, published: Mapping[str, int]) -> DataFrame:
    """Return rows with the columns of the stream, and `_key` if they have keys.

    Rows up to the timestamp `after` are left out. A row that must not be written, or is earlier than a `published`
    watermark, fails Spark's job; `parse_refusal` makes an error of that.
    """
    form = spec.form
    if after is not None:
        df = df.where(F.unix_micros(column_of(TS_COLUMN)) > after)
    added = dict(spec.times)
    columns: dict[str, Column] = {
        name: F.expr(added[name]) if name in added else column_of(name) for name in spec.shape.schema.names
    }
    for key, watermark in sorted(published.items()):
        time = columns[spec.shape.times[key]]
        columns[spec.shape.times[key]] = refuse_early(time, time, key, watermark)
    selected = [column.alias(name) for name, column in columns.items()]
    if form.key:
        selected.append(form.key_column().alias(KEY_COLUMN))
    if not form.has_diff:
        return df.select(*selected)
    return df.select(*selected, repeat_by_diff().alias(DIFF_COLUMN)).drop(DIFF_COLUMN)


def _keyed_rows(blocks: Iterator[Any]) -> Iterator[KeyedRows]:
    for (block,) in blocks:
        for batch in decode_batches(block):
            index = batch.schema.get_field_index(KEY_COLUMN)
            if index < 0:
                yield KeyedRows(batch)
            else:
                yield KeyedRows(batch.remove_column(index), batch.column(index))


def _open_writing_home(location: str, client: Mapping[str, str]) -> StreamHome:
    """Return the home at a location, opened once per process; unlike `open_home` with a controller of watermarks."""
    key = location, tuple(sorted(client.items()))
    home = _writing_homes.get(key)
    if home is None:
        home = _writing_homes[key] = connect(location, log_options=client or None)
    return home
