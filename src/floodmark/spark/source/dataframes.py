"""Streams and topics as streaming DataFrames, with their watermark, and what is late in them by its place."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from floodmark._util.options import require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import UnsupportedFrame
from floodmark.spark.columns import EVENT_TIME_METADATA, TIME_KEY_METADATA, as_event_time, column_of, quote_name
from floodmark.spark.sessions import require_supported
from floodmark.spark.source.bound_reader import IS_MARK
from floodmark.spark.watermark.marks import Operators, require_known_operators, spark_watermark
from floodmark.streams import Position, Stream, StreamHome
from floodmark.streams.backend import LocalBackend
from floodmark.streams.layout.positions import save_position

if TYPE_CHECKING:
    from floodmark.bindings.topics.times import MarksChoice
    from floodmark.spark.source.topic_settings import OnBadValue, ValueFormat

LateRows = Literal["keep", "strict", "only"]


TimeOrCut = datetime | int | Position
"""A time, as a datetime or in the unit of the stream, or a cut."""


def read_stream(
    spark: SparkSession,
    stream: str,
    *,
    home: str | Path | None = None,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    late: LateRows = "keep",
    start: TimeOrCut | None = None,
    end: TimeOrCut | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    max_event_time: Duration | None = None,
    align: str | None = None,
    max_ahead: Duration = "0 seconds",
    settle: bool = False,
    operators: Operators = "any",
    source: str | None = None,
) -> DataFrame:
    """Return a stream as a streaming DataFrame, with the watermark that its writers have noted.

    ```python
    import floodmark as fm
    from pyspark.sql import functions as F

    orders = fm.read_stream(fm.session(), "shop/orders", late="strict")
    per_minute = orders.groupBy(F.window("order_time", "1 minute")).count()
    ```

    It has the columns of the stream, and where each row lies: `_segment` and `_offset`, the timestamp `_ts` that it is
    bound to, and the watermarks there, `_w`, one for each time key. These stay the same for every query, however its
    batches are cut and however often it is started again.

    With `columns` only those are read: Spark cannot tell the source by itself which ones a query needs. The event time
    is always among them; `_segment`, `_offset`, `_ts` and `_w` only if they are named.

    `late` says what becomes of a row whose time is before the watermark of its place. "keep" leaves it to Spark's
    operators, which drop what is too late for the batch it happens to be in. With "strict" it is taken out, and
    windows, chained windows and joins over an interval of time are a function of the data alone. "only" gives the rows
    that "strict" takes out, with `_key`, `_watermark` and `_lateness` (in microseconds); `fm.window` is less strict.
    `key` names the time key whose column is the event time, by default the first; `operators` is that of
    `follow_marks`.

    `start` and `end` are times or cuts. By time, rows outside are left out, and nothing is read any more once the
    writers have come to the end. `max_rows`, `max_bytes` and `max_event_time` bound a batch: with
    `max_event_time="1 hour"` a query over the past moves on by an hour at a time. Those that name the same `align` move
    on together: while another has anything to read, none is more than `max_ahead` and a timestamp before it. `settle`
    ends batches where the watermark moves and lets an empty one follow, so that deduplication within the watermark is a
    function of the data too. Two queries that read under the same `source`, by default the name of the stream, share
    one history of bindings.
    """
    require_one_of("late", late, get_args(LateRows))
    require_known_operators(operators)
    require_supported(spark)
    kept = Home.open_existing(home)
    with StreamHome(LocalBackend(kept), controller=False) as streams:
        opened = streams.stream(stream)
        time_key = opened.settings.key(key)
        column = _stream_event_time_column(opened, time_key)
        location = kept.location
    options = {
        "stream": stream,
        "home": location,
        "key": time_key,
        **({} if columns is None else {"columns": json.dumps(_columns_to_read(columns, column, late))}),
        "marks": "true",
        "reader": uuid4().hex,
        "settle": str(settle).lower(),
        **_range_options("starting", start),
        **_range_options("ending", end),
        **({} if align is None else {"align": align}),
        "maxAhead": f"{duration_micros(max_ahead, 'max_ahead')} microseconds",
        **({} if source is None else {"source": source}),
        **({} if max_rows is None else {"maxRowsPerTrigger": str(max_rows)}),
        **({} if max_bytes is None else {"maxBytesPerTrigger": str(max_bytes)}),
    }
    if max_event_time is not None:
        options["maxEventTimePerTrigger"] = f"{duration_micros(max_event_time, 'max_event_time', least=1)} microseconds"
    read = spark.readStream.format("floodmark").options(**options).load()
    judged = _select_by_lateness(_follow_mark_rows(read, column, time_key, operators), column, time_key, late)
    return judged if columns is None or late == "keep" or "_w" in columns else judged.drop("_w")


def window(df: DataFrame, duration: str, slide: str | None = None) -> DataFrame:
    """Return a stream's rows with a column `window` for each window that is still open at the place of the row.

    ```python
    import floodmark as fm

    orders = fm.read_stream(fm.session(), "shop/orders")
    per_minute = fm.window(orders, "1 minute").groupBy("window").count()
    ```

    A row that comes after the watermark has passed its time, but not the end of its window, still counts; one whose
    windows are all closed at its place is left out. That depends on the stream alone, not on how batches fall.
    """
    event_time = _require_stamped_event_time(df)
    stamp = _stamped_watermark(event_time.metadata[TIME_KEY_METADATA])
    opened = df.withColumn("window", F.window(column_of(event_time.name), duration, slide))
    return opened.where(stamp.isNull() | (F.col("window.end") > stamp))


def read_bindings(spark: SparkSession, source: str, *, home: str | Path | None = None) -> DataFrame:
    """Return the bindings of a source as a DataFrame: which offsets of which partition are bound to which timestamp.

    ```python
    import floodmark as fm

    fm.read_bindings(fm.session(), "shop/orders").where("partition = 0").orderBy("ts").show()
    ```

    The columns are `source`, `partition`, `ts` in microseconds, `first_offset` and `end_offset`.
    """
    with Home.open_existing(home) as kept:
        return spark.createDataFrame(Bindings(kept).table(source))


def _follow_mark_rows(read: DataFrame, column: str, key: str, operators: Operators) -> DataFrame:
    """Return the data rows, with the watermark that the rows without data tell in the column of the event time."""
    told = F.when(column_of(IS_MARK), spark_watermark(column_of(column), operators))
    moved = read.withColumn(IS_MARK, told).withWatermark(IS_MARK, "0 seconds")
    # The second term is never true, but Spark does not know: see follow_marks.
    data = moved.where(column_of(IS_MARK).isNull() | (F.spark_partition_id() < 0))
    fields = [field for field in read.schema.fields if field.name != IS_MARK]
    return data.select(
        *(_event_time(field, key) if field.name == column else column_of(field.name) for field in fields)
    )


def _select_by_lateness(data: DataFrame, column: str, key: str, late: LateRows) -> DataFrame:
    if late == "keep":
        return data
    is_late = column_of(column) < _stamped_watermark(key)
    if late == "strict":
        return data.where(~F.coalesce(is_late, F.lit(False)))
    lateness = F.timestamp_diff("MICROSECOND", column_of(column), _stamped_watermark(key))
    return data.where(is_late).select(
        "*", F.lit(key).alias("_key"), _stamped_watermark(key).alias("_watermark"), lateness.alias("_lateness")
    )


def _event_time(field: StructField, key: str) -> Column:
    return as_event_time(StructField(field.name, field.dataType, metadata={**field.metadata, TIME_KEY_METADATA: key}))


def _require_stamped_event_time(df: DataFrame) -> StructField:
    names = {field.name for field in df.schema.fields}
    for field in df.schema.fields:
        if EVENT_TIME_METADATA in field.metadata and TIME_KEY_METADATA in field.metadata and "_w" in names:
            return field
    raise UnsupportedFrame(
        "The DataFrame does not come from read_stream, or has lost its event time or `_w` on the way.",
        rule="A row is judged by the watermark that the source has stamped on it.",
        remedy="Call it on what read_stream returns, before other columns are selected.",
    )


def _stamped_watermark(key: str) -> Column:
    return F.col(f"_w.{quote_name(key)}")


def _stream_event_time_column(stream: Stream, key: str) -> str:
    column, schema = stream.settings.time_columns[key], stream.settings.schema
    kind: Any = None if column is None or schema is None else schema.field(column).type
    if column is None or kind is None or not pa.types.is_timestamp(kind) or kind.tz is None:
        raise UnsupportedFrame(
            f"The stream {stream.name!r} has no column of type TIMESTAMP for the key {key!r}.",
            rule="Spark's event time is a column of that type.",
            remedy="Create the stream with a schema and time_columns; or read it with format('floodmark').",
            stream=stream.name,
            key=key,
        )
    return column


def _columns_to_read(columns: Sequence[str], event_time: str, late: LateRows) -> list[str]:
    """Return the columns to be read: those that are asked for, and those without which rows cannot be judged."""
    return list(dict.fromkeys([*columns, event_time, *(() if late == "keep" else ("_w",))]))


def _range_options(which: str, bound: TimeOrCut | None) -> dict[str, str]:
    if bound is None:
        return {}
    if isinstance(bound, datetime):
        return {f"{which}Time": bound.isoformat()}
    if isinstance(bound, int):
        return {f"{which}Time": str(bound)}
    return {f"{which}Cut": json.dumps(save_position(bound))}


def read_topics(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    servers: str,
    options: Mapping[str, str] | None = None,
    home: str | Path | None = None,
    source: str | None = None,
    columns: Sequence[str] | None = None,
    value_format: "ValueFormat | None" = None,
    schema: str | None = None,
    avro_schema: str | Mapping[str, Any] | None = None,
    avro_framed: bool = False,
    on_bad_value: "OnBadValue | None" = None,
    dead_letter_topic: str | None = None,
    timestamp_column: str | None = None,
    timestamp_unit: str | None = None,
    key: str | None = None,
    delay: Duration = "0 seconds",
    idle: Duration | None = None,
    future: Duration | None = None,
    marks: "MarksChoice" = "auto",
    include_headers: bool = False,
    start: str | Mapping[str, Mapping[int, int]] = "earliest",
    late: LateRows = "keep",
    max_rows: int | None = None,
    max_event_time: Duration | None = None,
    align: str | None = None,
    max_ahead: Duration | None = None,
    settle: bool = False,
    operators: Operators = "any",
) -> DataFrame:
    """Return topics of Kafka as a streaming DataFrame, with a watermark that is the least over their partitions.

    ```python
    import floodmark as fm
    from pyspark.sql import functions as F

    orders = fm.read_topics(
        fm.session(),
        "orders",
        servers="localhost:9092",
        value_format="json",
        schema="id BIGINT, amount DOUBLE, order_time TIMESTAMP",
        timestamp_column="order_time",
        delay="10 seconds",
        idle="5 minutes",
    )
    per_minute = orders.groupBy(F.window("order_time", "1 minute")).count()
    ```

    Without a `value_format` it has the columns of Spark's own source: key, value, topic, partition, offset, timestamp,
    timestampType, and headers with `include_headers`. With "json" and a `schema`, or "avro" and an `avro_schema`, it
    has the columns of the values, and then those of Kafka with `_kafka_` before their names. `_ts` is the timestamp
    that a row is bound to, and `_w` the watermark there; both stay the same for every query that reads under the same
    `source`, however often it is started again.

    A value that cannot be decoded ends the query, unless `on_bad_value` is "null", which gives a row of nulls and says
    why in `_bad`, or "dead-letter", which sends the record to `dead_letter_topic` and leaves it out; a task that runs
    again may send it twice. If only some `columns` are read, a query that fails on bad values looks at those alone.

    The event time is `timestamp_column`, a TIMESTAMP, or a BIGINT with `timestamp_unit`, which is then `_event_time`;
    without it, Kafka's own timestamp. The watermark of a partition is its greatest time less `delay`, that of the
    source the least of them. One that is empty holds it, until it has had nothing new for `idle` and everything in it
    was read. A row that is further ahead of the clock than `future` does not move it. Times in values are known when
    they were read, and count from the next binding on. If a topic has a marks topic beside it, that tells the
    watermark; `marks` can "require" or "ignore" it, and `key` names one of several.

    `start` is "earliest", "latest", or offsets by topic and partition. `options` are those of Kafka's client, such as
    {"kafka.sasl.password": ...}, which are not shown anywhere. `late`, `operators`, and what bounds or aligns batches
    are those of `read_stream`.
    """
    # Loaded here: whoever does not read topics needs no client for Kafka.
    from floodmark.spark.source.topic_settings import TopicSettings, topic_event_time_column

    require_one_of("late", late, get_args(LateRows))
    require_known_operators(operators)
    require_supported(spark)
    names = [topics] if isinstance(topics, str) else list(topics)
    with Home.open(home) as kept:
        location = kept.location
    given: dict[str, Any] = {
        "subscribe": ",".join(names),
        "kafka.bootstrap.servers": servers,
        "home": location,
        "source": source,
        "valueFormat": value_format,
        "schema": schema,
        "avroSchema": json.dumps(avro_schema) if isinstance(avro_schema, Mapping) else avro_schema,
        "avroFramed": "true" if avro_framed else None,
        "onBadValue": on_bad_value,
        "deadLetterTopic": dead_letter_topic,
        "timestampColumn": timestamp_column,
        "timestampUnit": timestamp_unit,
        "key": key,
        "delay": _duration_option(delay, "delay"),
        "idle": _duration_option(idle, "idle"),
        "future": _duration_option(future, "future"),
        "marks": marks,
        "includeHeaders": str(include_headers).lower(),
        "startingOffsets": start if isinstance(start, str) else json.dumps(start),
        "maxRowsPerTrigger": None if max_rows is None else str(max_rows),
        "maxEventTimePerTrigger": _duration_option(max_event_time, "max_event_time", least=1),
        "align": align,
        "maxAhead": _duration_option(max_ahead, "max_ahead"),
        "settle": str(settle).lower(),
        "markRows": "true",
        "reader": uuid4().hex,
        **(options or {}),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = TopicSettings.of(chosen)
    column, time_key = topic_event_time_column(settings), settings.time_key
    if columns is not None:
        chosen["columns"] = json.dumps(_columns_to_read(columns, column, late))
    read = spark.readStream.format("floodmark").options(**chosen).load()
    judged = _select_by_lateness(_follow_mark_rows(read, column, time_key, operators), column, time_key, late)
    return judged if columns is None or late == "keep" or "_w" in columns else judged.drop("_w")


def _duration_option(duration: Duration | None, option: str, least: int = 0) -> str | None:
    return None if duration is None else f"{duration_micros(duration, option, least=least)} microseconds"
