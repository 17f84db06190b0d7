"""Streams and topics as streaming DataFrames with a watermark, and the treatment of late rows by their position."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from floodmark._util.options import rename_options, require_names, require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings import Bindings
from floodmark.bindings.sources import NEVER, check_source_settings
from floodmark.control import Home
from floodmark.errors import InvalidOption, KafkaAway, UnsupportedFrame
from floodmark.spark.columns import EVENT_TIME_METADATA, TIME_KEY_METADATA, as_event_time, column_of, quote_name
from floodmark.spark.executors import Needs, checks_executors, require_executors
from floodmark.spark.private_options import private_home, register_source
from floodmark.spark.sessions import require_supported, spark_is_classic
from floodmark.spark.source.bound_reader import IS_MARK, OnIdle
from floodmark.spark.source.stream_reader import FloodmarkSource
from floodmark.spark.source.stream_settings import ReadRange, StreamReadSettings, stream_arrow_schema
from floodmark.spark.watermark.listener import session_listener
from floodmark.spark.watermark.marks import Operators, require_known_operators, spark_watermark
from floodmark.streams import Position, Stream, StreamHome
from floodmark.streams.backend import LocalBackend
from floodmark.streams.layout.positions import save_position

if TYPE_CHECKING:
    from floodmark.bindings.topics.bound_topics import CompactedChoice
    from floodmark.bindings.topics.times import MarksChoice
    from floodmark.spark.source.topic_settings import OnBadValue, ValueFormat

_STREAM_PARAMETERS: Final = {
    "startingTime": "start",
    "startingCut": "start",
    "endingTime": "end",
    "endingCut": "end",
    "maxRowsPerTrigger": "max_rows",
    "maxBytesPerTrigger": "max_bytes",
    "maxEventTimePerTrigger": "max_event_time",
    "maxAhead": "max_ahead",
}
"""The options of the format, and the parameters of `read_stream` that set them."""

_TOPIC_PARAMETERS: Final = {
    **_STREAM_PARAMETERS,
    "subscribe": "topics",
    "kafka.bootstrap.servers": "servers",
    "valueFormat": "value_format",
    "avroSchema": "avro_schema",
    "avroFramed": "avro_framed",
    "onBadValue": "on_bad_value",
    "deadLetterTopic": "dead_letter_topic",
    "timestampColumn": "timestamp_column",
    "timestampUnit": "timestamp_unit",
    "includeHeaders": "include_headers",
    "startingOffsets": "start",
}

LateRows = Literal["keep", "strict", "only"]
"""What happens to rows behind the watermark of their position."""

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
    on_idle: OnIdle = "hold",
    idle_after: Duration | None = None,
    operators: Operators = "any",
    source: str | None = None,
    tick: Duration | None = None,
    compaction_window: Duration | EllipsisType | None = ...,
) -> DataFrame:
    """Return a stream as a streaming DataFrame, with the watermark that its writers have stated.

    ```python
    import floodmark as fm
    from pyspark.sql import functions as F

    orders = fm.read_stream(fm.session(), "shop/orders", late="strict")
    per_minute = orders.groupBy(F.window("order_time", "1 minute")).count()
    ```

    Besides the columns of the stream a row has its position (`_segment`, `_offset`), the timestamp it is bound to
    (`_ts`), and the watermark of each time key at that timestamp (`_w`). These are the same in every query, however its
    batches are cut and however often it is restarted.

    Args:
        spark: The session.
        stream: The name of the stream, such as "shop/orders".
        home: The home of the stream: a directory or a PostgreSQL URL; by default `.floodmark`.
        columns: The columns to read, by default all. Spark does not push a selection down to a Python source, so naming
            columns saves time. The event time is always read; `_segment`, `_offset`, `_ts` and `_w` only if named.
        key: The time key whose column is the event time; by default the first.
        late: What happens to a row whose time is before the watermark of its position. "keep" leaves it to Spark's
            operators, which drop rows that are too late in their batch. "strict" removes it: then windows, chained
            windows and interval joins depend on the data alone. "only" returns the removed rows, with `_key`,
            `_watermark` and `_lateness` in microseconds. For single windows `fm.window` keeps more rows than "strict".
        start: The time or cut at which to begin; by default the head. Rows before a time are left out.
        end: The time or cut at which to end; by default never. With a time, reading ends once the watermark reaches it.
        max_rows: The most rows of a batch.
        max_bytes: About the most bytes of a batch.
        max_event_time: How far the watermark may advance in a batch, such as "1 hour" for a query over the past.
        align: The name of a group of queries that advance together; all of them must name it.
        max_ahead: How far the query may be ahead of the slowest query of its group that still has rows to read.
        settle: Whether batches end where the watermark advances, followed by an empty batch. Then the result of
            dropDuplicatesWithinWatermark depends on the data alone, too.
        on_idle: What the stream does to the watermark of a query that unites or joins it with others, while all of its
            writers are idle, closed or timed out, or after its `end`. "hold": the query waits for its next mark.
            "release": the others pass; rows of the stream that are behind the watermark when it revives are late. It
            lets through what other inputs of `read_stream`, `read_topics` and `with_watermark` have reached in the
            query's last batch, as recorded by the program that has started the query. A release is stored in the
            checkpoint, and repeated by a batch that runs again.
        idle_after: With on_idle="release", after this long without rows or marks the stream counts as idle, too, if the
            query has read all of it; by default never.
        operators: As in `follow_marks`.
        source: The id of the binding history, by default the name of the stream. Queries with the same id share it.
        tick: The interval at which timestamps are closed, at least 100 milliseconds; by default 1 second. It is a
            setting of the source, as is `compaction_window`: the first query sets it, all queries share it, and
            `floodmark bindings alter` changes it. Another value than that of the source is refused.
        compaction_window: How far back timestamps stay readable, such as "30 days"; None: all. By default 7 days for a
            new source. Timestamps that a query or sink still needs are kept in any case.

    Returns:
        A streaming DataFrame with a watermark on the event-time column.

    Raises:
        UnknownStream: There is no such stream.
        UnsupportedFrame: The stream has no TIMESTAMP column for the time key.
        InvalidOption: An option has an invalid value.
    """
    require_one_of("late", late, get_args(LateRows))
    require_known_operators(operators)
    require_supported(spark)
    idle_options = _idle_options(on_idle, idle_after)
    opened_home = Home.open_existing(home)
    with StreamHome(LocalBackend(opened_home), controller=False) as streams, rename_options(_STREAM_PARAMETERS):
        opened = streams.stream(stream)
        time_key = opened.settings.key(key)
        column = _stream_event_time_column(opened, time_key)
        private = private_home(opened_home)
        values: dict[str, str | None] = {
            "stream": stream,
            "home": opened_home.address,
            "key": time_key,
            "columns": None if columns is None else json.dumps(_columns_to_read(columns, column, late)),
            "marks": "true",
            "checkWorkers": None if checks_executors(spark) else "false",
            "reader": reader_id(source or stream),
            "settle": str(settle).lower(),
            **idle_options,
            **_range_options("starting", start),
            **_range_options("ending", end),
            "align": align,
            "maxAhead": _duration_option(max_ahead, "max_ahead"),
            "source": source,
            **_source_options(tick, compaction_window),
            "maxRowsPerTrigger": None if max_rows is None else str(max_rows),
            "maxBytesPerTrigger": None if max_bytes is None else str(max_bytes),
            "maxEventTimePerTrigger": _duration_option(max_event_time, "max_event_time", least=1),
        }
        options = {name: value for name, value in values.items() if value is not None}
        # Checked here too: an error of the worker that reads would come as a traceback inside Spark's.
        settings = StreamReadSettings.of(options)
        stream_arrow_schema(opened.settings, settings)
        ReadRange.of(settings, opened)
    require_executors(spark, Needs(home=opened_home.location))
    if on_idle == "release":
        session_listener(spark).watch_inputs(opened_home.location)
    read = spark.readStream.format(_source_format(spark, private)).options(**options).load()
    rows = _select_by_lateness(_follow_mark_rows(read, column, time_key, operators), column, time_key, late)
    return rows if columns is None or late == "keep" or "_w" in columns else rows.drop("_w")


def window(df: DataFrame, duration: str, slide: str | None = None) -> DataFrame:
    """Return the rows of a stream with a column `window`, once for each window that is open at the row's position.

    ```python
    import floodmark as fm

    orders = fm.read_stream(fm.session(), "shop/orders")
    per_minute = fm.window(orders, "1 minute").groupBy("window").count()
    ```

    A late row still counts as long as the watermark of its position has not passed the end of its window. A row whose
    windows are all closed is left out. The result depends on the stream alone, not on how batches are cut.

    Args:
        df: What `read_stream` or `read_topics` returns, with its event time and `_w`.
        duration: The length of a window, such as "1 minute".
        slide: The time between the starts of two windows; by default `duration`.

    Returns:
        The rows with the column `window`, to group by; it replaces a column of that name.

    Raises:
        UnsupportedFrame: The DataFrame is another one, or its event time or `_w` was dropped.
    """
    event_time = _require_stamped_event_time(df)
    stamp = _stamped_watermark(event_time.metadata[TIME_KEY_METADATA])
    # Not withColumn: on Spark Connect it drops the metadata of the new column, which makes it an event time.
    others = [field.name for field in df.schema.fields if field.name.lower() != "window"]
    kept = ["*"] if len(others) == len(df.schema.fields) else [column_of(name) for name in others]
    opened = df.select(*kept, F.window(column_of(event_time.name), duration, slide).alias("window"))
    return opened.where(stamp.isNull() | (F.col("window.end") > stamp))


def read_bindings(spark: SparkSession, source: str, *, home: str | Path | None = None) -> DataFrame:
    """Return the bindings of a source as a DataFrame: the offsets of each partition by timestamp.

    ```python
    import floodmark as fm

    fm.read_bindings(fm.session(), "shop/orders").where("partition = 0").orderBy("ts").show()
    ```

    Args:
        spark: The session.
        source: The id of the binding history: by default the name of the stream.
        home: The home of the bindings: a directory or a PostgreSQL URL; by default `.floodmark`.

    Returns:
        A batch DataFrame with the columns `source`, `partition`, `ts` in microseconds, `first_offset` and `end_offset`.
    """
    with Home.open_existing(home) as opened_home:
        return spark.createDataFrame(Bindings(opened_home).table(source))


def _follow_mark_rows(read: DataFrame, column: str, key: str, operators: Operators) -> DataFrame:
    """Return the data rows, with the watermark that mark rows have in the event-time column."""
    watermark = F.when(column_of(IS_MARK), spark_watermark(column_of(column), operators))
    moved = read.withColumn(IS_MARK, watermark).withWatermark(IS_MARK, "0 seconds")
    # The second term is an optimizer barrier, as in follow_marks.
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
        "The DataFrame has no event time of read_stream or read_topics, or no `_w`.",
        rule="window compares each row with the watermark in `_w`.",
        remedy="Call window on what read_stream returns, before columns are selected or renamed.",
    )


def _stamped_watermark(key: str) -> Column:
    return F.col(f"_w.{quote_name(key)}")


def _stream_event_time_column(stream: Stream, key: str) -> str:
    column, schema = stream.settings.time_columns[key], stream.settings.schema
    kind: Any = None if column is None or schema is None else schema.field(column).type
    if column is None or kind is None or not pa.types.is_timestamp(kind) or kind.tz is None:
        raise UnsupportedFrame(
            f"The stream {stream.name!r} has no column of type TIMESTAMP for the key {key!r}.",
            rule="Spark's event time must be a column of that type.",
            remedy="Create the stream with a schema and time_columns, or use spark.readStream.format('floodmark').",
            stream=stream.name,
            key=key,
        )
    return column


def _columns_to_read(columns: Sequence[str], event_time: str, late: LateRows) -> list[str]:
    """Return the columns to read: the named ones, the event time, and `_w` if late rows are selected by it."""
    return list(dict.fromkeys([*require_names("columns", columns), event_time, *(() if late == "keep" else ("_w",))]))


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
    tick: Duration | None = None,
    compaction_window: Duration | EllipsisType | None = ...,
    compacted: "CompactedChoice" = "fail",
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
    on_idle: OnIdle = "hold",
    idle_after: Duration | None = None,
    operators: Operators = "any",
    connect_timeout: Duration | None = "5 seconds",
) -> DataFrame:
    """Return Kafka topics as a streaming DataFrame, with a watermark that is the minimum over their partitions.

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

    Without `value_format` it has the columns of Spark's own source: key, value, topic, partition, offset, timestamp,
    timestampType. With it, it has the columns of the values, then Kafka's with the prefix `_kafka_`. Each row also has
    the timestamp it is bound to (`_ts`) and the watermark there (`_w`); both are the same in every query with the same
    `source`, however often it is restarted.

    The watermark of a partition is its newest event time minus `delay`. An empty partition holds the watermark back.
    Event times in values become known when the rows are read, and count from the next binding on.

    Args:
        spark: The session.
        topics: The name of a topic, or several.
        servers: The brokers, such as "localhost:9092".
        options: Options of Kafka's client, such as {"kafka.sasl.password": ...}. They are never shown or stored.
        home: Where bindings are stored: a directory or a PostgreSQL URL; by default `.floodmark`.
        source: The id of the binding history; by default the cluster and the topics.
        tick: As in `read_stream`.
        compaction_window: As in `read_stream`.
        compacted: What happens if Kafka compacts one of the topics, and so deletes records that were read. "fail", the
            default, refuses it. "accept" reads it: records that are left keep their timestamps, and no query gets one
            twice, but a replay, a batch that is computed again and a later query may lack records, so that their
            results differ.
        columns: The columns to read, by default all. The event time is always read. With on_bad_value="fail" only the
            columns that are read are checked.
        value_format: "json" (needs `schema`) or "avro" (needs `avro_schema`); by default values stay bytes.
        schema: The columns of the values, as a Spark DDL schema.
        avro_schema: The schema that Avro values were written with, as JSON text or a mapping.
        avro_framed: Whether Avro values begin with a schema registry id.
        on_bad_value: What happens to a value that cannot be decoded. "fail", the default, fails the query; "null" gives
            a row of nulls with the reason in `_bad`; "dead-letter" sends the record to `dead_letter_topic` and leaves
            the row out (a retried task may send it twice).
        dead_letter_topic: The topic for records with bad values.
        timestamp_column: The column of the values that is the event time; by default Kafka's timestamp. It is a
            TIMESTAMP, or a BIGINT with `timestamp_unit`, which becomes the column `_event_time`.
        timestamp_unit: "s", "ms" or "us".
        key: The name of the time key; also selects the key of a marks topic that has several.
        delay: How much out of order the rows of a partition may be.
        idle: After this long without new rows a partition that was read to its end no longer holds the watermark back.
        future: Rows further ahead of the clock than this do not move the watermark; by default all rows do.
        marks: Whether a marks topic beside a topic states the watermark: "auto" if there is one, "require" or "ignore".
        include_headers: Whether there is a column with the headers.
        start: Where a query without a checkpoint begins: "earliest", "latest", or {topic: {partition: offset}}.
        late: As in `read_stream`.
        max_rows: The most rows of a batch.
        max_event_time: How far the watermark may advance in a batch.
        align: As in `read_stream`.
        max_ahead: As in `read_stream`.
        settle: As in `read_stream`.
        on_idle: As in `read_stream`; topics are idle while all of their partitions are, by `idle`.
        idle_after: As in `read_stream`.
        operators: As in `follow_marks`.
        connect_timeout: How long a broker may take to answer when the topics are looked up; None does not look them up.

    Returns:
        A streaming DataFrame with a watermark on the event-time column.

    Raises:
        InvalidOption: An option has an invalid value, or lacks another one.
        UnknownColumn: There is no column `timestamp_column`, or one of `columns`.
        SchemaInvalid: The schema cannot be parsed, or collides with columns that the source adds.
        UnknownTopic: There is no such topic.
        KafkaAway: No broker answers within `connect_timeout`.
    """
    # Imported here: only topics need Kafka's client.
    from floodmark.kafka import KafkaSettings
    from floodmark.kafka.settings import OPTION_PREFIX
    from floodmark.spark.source.topic_settings import (
        TopicSettings,
        check_topics,
        topic_arrow_schema,
        topic_event_time_column,
        value_decoder,
    )

    require_one_of("late", late, get_args(LateRows))
    require_known_operators(operators)
    require_supported(spark)
    names = [topics] if isinstance(topics, str) else require_names("topics", topics)
    client = {name.lower(): value for name, value in (options or {}).items() if name.lower().startswith(OPTION_PREFIX)}
    with Home.open(home) as opened_home:
        private = private_home(opened_home) | KafkaSettings.of(servers, client).private_options()
    values: dict[str, Any] = {
        "subscribe": ",".join(names),
        "kafka.bootstrap.servers": servers,
        "home": opened_home.address,
        "source": source,
        **_source_options(tick, compaction_window),
        "compacted": compacted,
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
        **_idle_options(on_idle, idle_after),
        "markRows": "true",
        "checkWorkers": None if checks_executors(spark) else "false",
        "reader": reader_id(source or json.dumps([servers, *names])),
        **{name: value for name, value in (options or {}).items() if name.lower() not in client},
    }
    reader_options = {name: value for name, value in values.items() if value is not None}
    with rename_options(_TOPIC_PARAMETERS):
        settings = TopicSettings.of({**reader_options, **private})
        column, time_key = topic_event_time_column(settings), settings.time_key
        if columns is not None:
            reader_options["columns"] = json.dumps(_columns_to_read(columns, column, late))
            settings = replace(settings, columns=tuple(json.loads(reader_options["columns"])))
        # Checked here too: an error of the worker that reads would come as a traceback inside Spark's.
        topic_arrow_schema(settings)
        value_decoder(settings)
        if connect_timeout is not None:
            seconds = duration_micros(connect_timeout, "connect_timeout", least=1) / 1e6
            # A client of Spark Connect may be outside of Kafka's network: there the probe looks for the brokers.
            with nullcontext() if spark_is_classic(spark) or not checks_executors(spark) else suppress(KafkaAway):
                check_topics(settings, seconds)
    # Only tasks that find event times in the values report them to the home.
    reports_to = opened_home.location if timestamp_column is not None else None
    require_executors(spark, Needs(reports_to, settings.kafka.servers, tuple(sorted(settings.kafka.options.items()))))
    if on_idle == "release":
        session_listener(spark).watch_inputs(opened_home.location)
    read = spark.readStream.format(_source_format(spark, private)).options(**reader_options).load()
    rows = _select_by_lateness(_follow_mark_rows(read, column, time_key, operators), column, time_key, late)
    return rows if columns is None or late == "keep" or "_w" in columns else rows.drop("_w")


def _source_format(spark: SparkSession, private: Mapping[str, str]) -> str:
    """Return the format that reads streams and topics with these private options."""
    # Spark finds the format without private options by itself.
    return register_source(spark, FloodmarkSource, private) if private else FloodmarkSource.format_name


def _source_options(tick: Duration | None, compaction_window: Duration | EllipsisType | None) -> dict[str, str]:
    """Return the options of a query for settings of its source; one that is not given has no option."""
    given: dict[str, Duration | None] = {} if tick is None else {"tick": tick}
    if compaction_window is not ...:
        given["compaction_window"] = compaction_window
    names = {"tick": "tick", "compaction_window": "compactionWindow"}
    checked = check_source_settings(given)
    return {names[name]: NEVER if value is None else f"{value} microseconds" for name, value in checked.items()}


def reader_id(source: str) -> str:
    """Return a new id of a DataFrame; ids of DataFrames that read the same source end alike.

    >>> [reader_id("orders").partition("-")[2] for _ in range(2)]
    ['1c168adb00d208e4', '1c168adb00d208e4']
    """
    return f"{uuid4().hex}-{sha256(source.encode()).hexdigest()[:16]}"


def _idle_options(on_idle: OnIdle, idle_after: Duration | None) -> dict[str, str]:
    require_one_of("on_idle", on_idle, get_args(OnIdle))
    quiet = _duration_option(idle_after, "idle_after", least=1)
    if quiet is not None and on_idle == "hold":
        raise InvalidOption(
            "idle_after is given, and on_idle is 'hold'.",
            rule="Only an input with on_idle='release' stops to hold the watermark.",
            remedy="Pass on_idle='release' too, or leave idle_after out.",
            option="idle_after",
            value=idle_after,
        )
    return {"onIdle": on_idle, **({} if quiet is None else {"idleAfter": quiet})}


def _duration_option(duration: Duration | None, option: str, least: int = 0) -> str | None:
    return None if duration is None else f"{duration_micros(duration, option, least=least)} microseconds"
