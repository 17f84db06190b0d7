"""Which columns topics have in Spark: those of Kafka, those of decoded values, and where each row lies in time."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, SchemaInvalid, UnknownColumn
from floodmark.kafka.codecs.avro import AvroDecoder, schema_of_avro
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.spark._stream_rows import IS_MARK
from floodmark.spark._topic_settings import TopicSettings
from floodmark.streams.ddl import parse_ddl

MICROS: Final = pa.timestamp("us", "UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PREFIX: Final = "_kafka_"
"""What the columns of Kafka begin with where values are decoded, whatever columns these have."""
EVENT_TIME: Final = "_event_time"
"""The event time as a timestamp, where it is a number in the values."""
BAD: Final = "_bad"
"""Why a value could not be decoded."""

_OF_KAFKA: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", MICROS),
    ("timestampType", pa.int32()),
)


def spark_schema(settings: TopicSettings) -> StructType:
    """Return the columns that are read of topics, as Spark has them."""
    return from_arrow_schema(arrow_schema(settings), prefer_timestamp_ntz=True)


def arrow_schema(settings: TopicSettings) -> Any:
    """Return the columns that are read of topics; each may be null, since a row that tells the watermark has no data.

    >>> options = {"subscribe": "orders", "kafka.bootstrap.servers": "one:9092"}
    >>> arrow_schema(TopicSettings.of(options)).names
    ['key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType', '_ts', '_w']
    >>> decoded = {"valueFormat": "json", "schema": "id BIGINT", "columns": '["id", "_kafka_offset"]'}
    >>> arrow_schema(TopicSettings.of({**options, **decoded})).names
    ['id', '_kafka_offset']
    """
    values = value_schema(settings)
    of_kafka = [*_OF_KAFKA, *([("headers", HEADERS)] if settings.include_headers else [])]
    fields: list[Any]
    if values is None:
        fields = [pa.field(*column) for column in of_kafka]
    else:
        fields = [one.with_nullable(True) for one in values]
        fields += [pa.field(PREFIX + name, kind) for name, kind in of_kafka if name != "value"]
        fields += [pa.field(BAD, pa.string())] if settings.on_bad == "null" else []
        fields += [pa.field(EVENT_TIME, MICROS)] if settings.timestamp_unit is not None else []
    fields += [pa.field("_ts", MICROS), pa.field("_w", pa.struct([(settings.time_key, MICROS)]))]
    known = {one.name: one for one in fields}
    if len(known) < len(fields):
        raise SchemaInvalid(
            f"The values of {', '.join(settings.topics)} have a column that is called as one of the source's own.",
            rule=f"The source adds {', '.join(name for name in known if name.startswith('_'))}.",
            remedy="Read the values as bytes, or decode them under another name.",
            schema=str(settings.schema or settings.avro_schema),
        )
    for name in settings.columns or ():
        if name not in known:
            raise UnknownColumn(
                f"There is no column {name!r} of the topics {', '.join(settings.topics)}.",
                rule=f"The columns are {', '.join(known)}.",
                remedy=did_you_mean(name, known, otherwise="Leave it out."),
                column=name,
            )
    wanted = fields if settings.columns is None else [known[name] for name in settings.columns]
    return pa.schema([*wanted, pa.field(IS_MARK, pa.bool_())] if settings.mark_rows else wanted)


def value_schema(settings: TopicSettings) -> Any:
    """Return the columns of decoded values; None if they stay bytes."""
    if settings.value_format is None:
        return None
    known = schema_of_avro(settings.avro_schema or "") if settings.schema is None else parse_ddl(settings.schema)
    _check_time_column(settings, known)
    return known


def event_time_column(settings: TopicSettings) -> str:
    """Return the column that is the event time."""
    if settings.timestamp_column is None:
        return "timestamp" if settings.value_format is None else PREFIX + "timestamp"
    return settings.timestamp_column if settings.timestamp_unit is None else EVENT_TIME


def decoder_of(settings: TopicSettings) -> Any:
    """Return what decodes the columns that are asked for, and the event time; None if there are none of values."""
    known = value_schema(settings)
    if known is None:
        return None
    asked = set(known.names if settings.columns is None else settings.columns) | {settings.timestamp_column}
    if BAD in asked or settings.on_bad == "dead-letter":
        # Whether a value is bad must not depend on which columns are read.
        asked = set(known.names)
    wanted = pa.schema([one for one in known if one.name in asked])
    if not len(wanted):
        return None
    if settings.value_format == "json":
        return JsonDecoder(wanted)
    return AvroDecoder(wanted, settings.avro_schema or "", framed=settings.avro_framed)


def _check_time_column(settings: TopicSettings, known: Any) -> None:
    column, unit = settings.timestamp_column, settings.timestamp_unit
    if column is None:
        return
    if column not in known.names:
        raise UnknownColumn(
            f"The values have no column {column!r}.",
            rule=f"timestampColumn is one of {', '.join(known.names)}.",
            remedy=did_you_mean(column, known.names, otherwise="Leave it out for Kafka's timestamp."),
            column=column,
        )
    kind = known.field(column).type
    is_right = kind == MICROS if unit is None else kind == pa.int64()
    if not is_right:
        raise InvalidOption(
            f"timestampColumn is {column!r}, of the Arrow type {kind}, and timestampUnit is {unit!r}.",
            rule="It is a TIMESTAMP, or a BIGINT with timestampUnit.",
            remedy="Declare it so in the schema, and give timestampUnit for a number alone.",
            option="timestampColumn",
            value=column,
        )
