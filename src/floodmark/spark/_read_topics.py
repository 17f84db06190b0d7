"""Topics of Kafka in Spark, with a watermark that waits for the slowest partition."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from floodmark._util.times import Duration, duration_micros
from floodmark.control import Home
from floodmark.spark._marks import Operators, require_known_operators
from floodmark.spark._options import require_one_of
from floodmark.spark._read_stream import LateRows, _followed, _judged, _needed
from floodmark.spark._support import require_supported

if TYPE_CHECKING:
    from floodmark.bindings.topics.times import MarksChoice
    from floodmark.spark._topic_settings import OnBadValue, ValueFormat


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
    from floodmark.spark._topic_columns import event_time_column
    from floodmark.spark._topic_settings import TopicSettings

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
        "delay": _micros(delay, "delay"),
        "idle": _micros(idle, "idle"),
        "future": _micros(future, "future"),
        "marks": marks,
        "includeHeaders": str(include_headers).lower(),
        "startingOffsets": start if isinstance(start, str) else json.dumps(start),
        "maxRowsPerTrigger": None if max_rows is None else str(max_rows),
        "maxEventTimePerTrigger": _micros(max_event_time, "max_event_time", least=1),
        "align": align,
        "maxAhead": _micros(max_ahead, "max_ahead"),
        "settle": str(settle).lower(),
        "markRows": "true",
        "reader": uuid4().hex,
        **(options or {}),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = TopicSettings.of(chosen)
    column, time_key = event_time_column(settings), settings.time_key
    if columns is not None:
        chosen["columns"] = json.dumps(_needed(columns, column, late))
    read = spark.readStream.format("floodmark").options(**chosen).load()
    judged = _judged(_followed(read, column, time_key, operators), column, time_key, late)
    return judged if columns is None or late == "keep" or "_w" in columns else judged.drop("_w")


def _micros(duration: Duration | None, option: str, least: int = 0) -> str | None:
    return None if duration is None else f"{duration_micros(duration, option, least=least)} microseconds"
