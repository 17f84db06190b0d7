"""The options of a query that reads Kafka topics: their parsing, the columns, and the decoder of values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from floodmark._util.ddl import parse_ddl
from floodmark._util.options import refuse_unknown_options, require_one_of
from floodmark._util.text import did_you_mean
from floodmark._util.times import duration_micros
from floodmark.bindings import TimeRule
from floodmark.bindings.sources import check_source_settings
from floodmark.bindings.topics.bound_topics import CompactedChoice
from floodmark.bindings.topics.partitions import parse_offsets
from floodmark.bindings.topics.times import MarksChoice, TopicMarks
from floodmark.errors import InvalidOption, SchemaInvalid, UnknownColumn
from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.kafka.codecs.avro import AvroDecoder, schema_of_avro
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.spark.source.bound_reader import IS_MARK, ROWS_PER_TASK, OnIdle
from floodmark.spark.source.stream_settings import (
    given_source_settings,
    parse_count,
    parse_flag,
    parse_names,
    parse_on_idle,
)

OnBadValue = Literal["fail", "null", "dead-letter"]
ValueFormat = Literal["json", "avro"]

OPTIONS: Final = {
    "subscribe": "the topics, separated by commas",
    "kafka.bootstrap.servers": "the brokers; other options that begin with kafka. are those of librdkafka",
    "home": "where bindings are stored; by default the home of the environment",
    "source": "the id of the binding history; by default the cluster and the topics",
    "tick": "the interval at which timestamps are closed, if the source is new",
    "compactionWindow": "how far back timestamps stay readable that no query holds, or never, if the source is new",
    "compacted": "fail or accept: whether topics that Kafka compacts are refused",
    "columns": "the columns to read, as a JSON list; by default all",
    "valueFormat": "json or avro; by default values are bytes",
    "schema": "the columns of the values, as a Spark DDL schema",
    "avroSchema": "the schema that Avro values were written with",
    "avroFramed": "whether Avro values begin with a schema registry id",
    "onBadValue": "fail, null or dead-letter: what happens to values that cannot be decoded",
    "deadLetterTopic": "the topic that such records are sent to",
    "timestampColumn": "the column of the values that is the event time; by default Kafka's timestamp",
    "timestampUnit": "s, ms or us, if that column is a number",
    "key": "the name of the time key; by default timestampColumn, or timestamp",
    "delay": "how much out of order the rows of a partition may be",
    "idle": "after how long without new rows a partition no longer holds the watermark back; by default never",
    "future": "rows further ahead of the clock do not move the watermark; by default all rows do",
    "marks": "auto, require or ignore: whether a marks topic beside each topic states the watermark",
    "includeHeaders": "whether there is a column with the headers",
    "startingOffsets": "earliest, latest, or JSON: where a query without a checkpoint begins",
    "endingOffsets": "latest, or JSON: where a batch query ends",
    "asOf": "read the rows bound up to this timestamp; in a batch query only",
    "maxRowsPerTrigger": "the most rows of a batch",
    "maxOffsetsPerTrigger": "the same, as Spark's own source calls it",
    "maxEventTimePerTrigger": "how far the watermark may advance in a batch",
    "align": "the name of a group of queries of which none runs ahead of the slowest",
    "maxAhead": "how far the query may be ahead of the slowest of its group",
    "settle": "whether batches end where the watermark advances, followed by an empty batch",
    "rowsPerTask": "the most rows of a task",
    "patience": "how long to retry if no broker answers",
    "markRows": "whether each batch has a row with the watermark and no data; set by read_topics",
    "checkWorkers": "whether worker processes compare their version of the package with the driver's",
    "onIdle": "hold or release: whether a source without active writers lets the other inputs of a query pass",
    "idleAfter": "after how long without news the source counts as idle, if all of it is read; by default never",
    "reader": "the id of the DataFrame; set by read_topics, needed by write_stream",
}
"""The options and their meaning. Spark passes option names in lower case."""

_CLIENT_PREFIX: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_OPTION_NAMES: Final = {name.lower(): name for name in OPTIONS}
_TIME_UNITS: Final = ("s", "ms", "us")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The parsed options of a query that reads topics. Only `kafka` has secrets, and its repr hides them."""

    topics: tuple[str, ...]
    kafka: KafkaSettings
    committed: bool = True
    home: str | None = field(default=None, repr=False)
    source: str | None = None
    tick: str | None = None
    compaction_window: str | None = None
    compacted: CompactedChoice = "fail"
    columns: tuple[str, ...] | None = None
    value_format: str | None = None
    schema: str | None = None
    avro_schema: str | None = None
    avro_framed: bool = False
    on_bad: str = "fail"
    dead_letter_topic: str | None = None
    timestamp_column: str | None = None
    timestamp_unit: str | None = None
    key: str | None = None
    delay: int = 0
    idle: int | None = None
    future: int | None = None
    marks: MarksChoice = "auto"
    include_headers: bool = False
    starting_offsets: str = "earliest"
    ending_offsets: str = "latest"
    as_of: str | None = None
    max_rows: int | None = None
    max_event_time: int | None = None
    align: str | None = None
    max_ahead: int = 0
    settle: bool = False
    rows_per_task: int = ROWS_PER_TASK
    patience: int = 30_000_000
    mark_rows: bool = False
    check_workers: bool = True
    reader: str | None = None
    on_idle: OnIdle = "hold"
    idle_after: int | None = None

    @property
    def rule(self) -> TimeRule:
        """How the watermark follows from the records."""
        return TimeRule(self.time_key, self.timestamp_column is not None, self.delay, self.idle, self.future)

    @property
    def source_settings(self) -> dict[str, Any]:
        """The settings of the source that the options state."""
        return given_source_settings(self.tick, self.compaction_window)

    @property
    def time_key(self) -> str:
        """The name of the one time key."""
        return self.key or self.timestamp_column or "timestamp"

    @property
    def marks_key(self) -> str | None:
        """The key to use of a marks topic that has several."""
        return self.key or self.timestamp_column

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "TopicSettings":
        """Return the settings that options describe.

        >>> settings = TopicSettings.of(
        ...     {"subscribe": "orders, returns", "kafka.bootstrap.servers": "one:9092", "kafka.sasl.password": "pssst"}
        ... )
        >>> settings.topics, settings.kafka
        (('orders', 'returns'), KafkaSettings('one:9092', sasl.password=***))
        >>> TopicSettings.of({"subscribe": "orders", "maxOffsetPerTrigger": "1000"})
        Traceback (most recent call last):
        floodmark.errors.InvalidOption: There is no option 'maxOffsetPerTrigger'. ... 'maxOffsetsPerTrigger'? ...
        """
        client = {name.lower(): value for name, value in options.items() if name.lower().startswith(_CLIENT_PREFIX)}
        # Hide the values: one may be a secret with a misspelled name.
        unknown = {
            name: "***"
            for name in options
            if name.lower() not in _OPTION_NAMES and not name.lower().startswith(_CLIENT_PREFIX)
        }
        refuse_unknown_options(unknown, OPTIONS)
        texts = {_OPTION_NAMES[name.lower()]: value for name, value in options.items() if name.lower() in _OPTION_NAMES}
        _check_combinations(texts)
        check_source_settings(given_source_settings(texts.get("tick"), texts.get("compactionWindow")))
        idle, future, event_time = (texts.get(name) for name in ("idle", "future", "maxEventTimePerTrigger"))
        quiet = texts.get("idleAfter")
        isolation = client.pop(_ISOLATION, "read_committed")
        require_one_of(_ISOLATION, isolation, ("read_committed", "read_uncommitted"))
        return cls(
            topics=_parse_topics(texts),
            kafka=_client_settings(client),
            committed=isolation == "read_committed",
            home=texts.get("home"),
            source=texts.get("source"),
            tick=texts.get("tick"),
            compaction_window=texts.get("compactionWindow"),
            compacted=_parse_choice(texts, "compacted", "fail", get_args(CompactedChoice)),
            columns=parse_names(texts, "columns"),
            value_format=_parse_choice(texts, "valueFormat", None, get_args(ValueFormat)),
            schema=texts.get("schema"),
            avro_schema=texts.get("avroSchema"),
            avro_framed=parse_flag(texts, "avroFramed"),
            on_bad=_parse_choice(texts, "onBadValue", "fail", get_args(OnBadValue)),
            dead_letter_topic=texts.get("deadLetterTopic"),
            timestamp_column=texts.get("timestampColumn"),
            timestamp_unit=_parse_choice(texts, "timestampUnit", None, _TIME_UNITS),
            key=texts.get("key"),
            delay=duration_micros(texts.get("delay", "0 seconds"), "delay"),
            idle=None if idle is None else duration_micros(idle, "idle", least=1),
            future=None if future is None else duration_micros(future, "future"),
            marks=_parse_choice(texts, "marks", "auto", get_args(MarksChoice)),
            include_headers=parse_flag(texts, "includeHeaders"),
            starting_offsets=texts.get("startingOffsets", "earliest"),
            ending_offsets=texts.get("endingOffsets", "latest"),
            as_of=texts.get("asOf"),
            max_rows=parse_count(texts, "maxRowsPerTrigger") or parse_count(texts, "maxOffsetsPerTrigger"),
            max_event_time=None
            if event_time is None
            else duration_micros(event_time, "maxEventTimePerTrigger", least=1),
            align=texts.get("align"),
            max_ahead=duration_micros(texts.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=parse_flag(texts, "settle"),
            rows_per_task=parse_count(texts, "rowsPerTask") or ROWS_PER_TASK,
            patience=duration_micros(texts.get("patience", "30 seconds"), "patience"),
            mark_rows=parse_flag(texts, "markRows"),
            check_workers=parse_flag(texts, "checkWorkers", default="true"),
            reader=texts.get("reader"),
            on_idle=parse_on_idle(texts),
            idle_after=None if quiet is None else duration_micros(quiet, "idleAfter", least=1),
        )


_OPTION_PAIRS: Final = (
    # An option, another option, and whether the first requires (True) or excludes (False) the second.
    ("timestampColumn", "valueFormat", True),
    ("timestampUnit", "timestampColumn", True),
    ("schema", "valueFormat", True),
    ("avroSchema", "valueFormat", True),
    ("avroFramed", "avroSchema", True),
    ("onBadValue", "valueFormat", True),
    ("maxAhead", "align", True),
    ("maxOffsetsPerTrigger", "maxRowsPerTrigger", False),
    ("endingOffsets", "asOf", False),
)


def _check_combinations(texts: Mapping[str, str]) -> None:
    for option, other, is_required in _OPTION_PAIRS:
        if option in texts and (other in texts) is not is_required:
            raise InvalidOption(
                f"The option {option} is given {'without' if is_required else 'with'} {other}.",
                rule=f"{option}: {OPTIONS[option]}. {other}: {OPTIONS[other]}.",
                remedy=f"Set {other} too, or leave {option} out." if is_required else f"Leave {option} or {other} out.",
                option=option,
                value=texts[option],
            )
    sends_letters = texts.get("onBadValue") == "dead-letter"
    if sends_letters != ("deadLetterTopic" in texts):
        raise InvalidOption(
            f"onBadValue is {texts.get('onBadValue', 'fail')!r}, and deadLetterTopic {texts.get('deadLetterTopic')!r}.",
            rule="With onBadValue=dead-letter, bad records are sent to deadLetterTopic.",
            remedy="Set both onBadValue=dead-letter and deadLetterTopic, or neither.",
            option="deadLetterTopic",
        )
    kind, needs = texts.get("valueFormat"), {"json": "schema", "avro": "avroSchema"}
    if kind in needs and needs[kind] not in texts:
        raise InvalidOption(
            f"valueFormat is {kind!r}, without {needs[kind]}.",
            rule=f"{needs[kind]}: {OPTIONS[needs[kind]]}.",
            remedy=f"Set the option {needs[kind]}.",
            option=needs[kind],
        )


def _parse_topics(texts: Mapping[str, str]) -> tuple[str, ...]:
    topics = tuple(sorted({name.strip() for name in texts.get("subscribe", "").split(",") if name.strip()}))
    if not topics:
        raise InvalidOption(
            "The option subscribe names no topic.",
            rule="It names the topics to read.",
            remedy="Write .option('subscribe', 'orders').",
            option="subscribe",
        )
    return topics


def _client_settings(options: Mapping[str, str]) -> KafkaSettings:
    servers = options.get(_SERVERS)
    if not servers:
        raise InvalidOption(
            f"{_SERVERS} is not given.",
            rule="It has the addresses of the brokers.",
            remedy=f"Write .option('{_SERVERS}', 'localhost:9092').",
            option=_SERVERS,
        )
    return KafkaSettings.of(servers, {name: value for name, value in options.items() if name != _SERVERS})


def _parse_choice(texts: Mapping[str, str], option: str, default: Any, choices: tuple[str, ...]) -> Any:
    if option not in texts:
        return default
    require_one_of(option, texts[option], choices)
    return texts[option]


MICROS_TYPE: Final = pa.timestamp("us", "UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KAFKA_COLUMN_PREFIX: Final = "_kafka_"
"""The prefix of Kafka's columns if values are decoded, so that they do not collide with columns of the values."""
EVENT_TIME_COLUMN: Final = "_event_time"
"""The event time as a timestamp, if it is a number in the values."""
BAD_COLUMN: Final = "_bad"
"""The reason why a value could not be decoded."""

_KAFKA_COLUMNS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", MICROS_TYPE),
    ("timestampType", pa.int32()),
)


def topic_spark_schema(settings: TopicSettings) -> StructType:
    """Return the schema of a query, as Spark's: see `topic_arrow_schema`."""
    return from_arrow_schema(topic_arrow_schema(settings), prefer_timestamp_ntz=True)


def topic_arrow_schema(settings: TopicSettings) -> Any:
    """Return the schema of a query. All columns are nullable, since a mark row has no data.

    >>> options = {"subscribe": "orders", "kafka.bootstrap.servers": "one:9092"}
    >>> topic_arrow_schema(TopicSettings.of(options)).names
    ['key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType', '_ts', '_w']
    >>> decoded = {"valueFormat": "json", "schema": "id BIGINT", "columns": '["id", "_kafka_offset"]'}
    >>> topic_arrow_schema(TopicSettings.of({**options, **decoded})).names
    ['id', '_kafka_offset']
    """
    values = value_schema(settings)
    of_kafka = [*_KAFKA_COLUMNS, *([("headers", HEADERS_TYPE)] if settings.include_headers else [])]
    fields: list[Any]
    if values is None:
        fields = [pa.field(*column) for column in of_kafka]
    else:
        fields = [value.with_nullable(True) for value in values]
        fields += [pa.field(KAFKA_COLUMN_PREFIX + name, kind) for name, kind in of_kafka if name != "value"]
        fields += [pa.field(BAD_COLUMN, pa.string())] if settings.on_bad == "null" else []
        fields += [pa.field(EVENT_TIME_COLUMN, MICROS_TYPE)] if settings.timestamp_unit is not None else []
    fields += [pa.field("_ts", MICROS_TYPE), pa.field("_w", pa.struct([(settings.time_key, MICROS_TYPE)]))]
    by_name = {field.name: field for field in fields}
    if len(by_name) < len(fields):
        raise SchemaInvalid(
            f"The values of {', '.join(settings.topics)} have a column with the name of one that the source adds.",
            rule=f"The source adds {', '.join(name for name in by_name if name.startswith('_'))}.",
            remedy="Leave valueFormat out to read the values as bytes, or rename the column in the producer.",
            schema=str(settings.schema or settings.avro_schema),
        )
    for name in settings.columns or ():
        if name not in by_name:
            raise UnknownColumn(
                f"There is no column {name!r} of the topics {', '.join(settings.topics)}.",
                rule=f"The columns are {', '.join(by_name)}.",
                remedy=did_you_mean(name, by_name, otherwise="Leave it out."),
                column=name,
            )
    selected = fields if settings.columns is None else [by_name[name] for name in settings.columns]
    return pa.schema([*selected, pa.field(IS_MARK, pa.bool_())] if settings.mark_rows else selected)


def value_schema(settings: TopicSettings) -> Any:
    """Return the columns of decoded values; None if values stay bytes."""
    if settings.value_format is None:
        return None
    values = schema_of_avro(settings.avro_schema or "") if settings.schema is None else parse_ddl(settings.schema)
    _check_time_column(settings, values)
    return values


def topic_event_time_column(settings: TopicSettings) -> str:
    """Return the name of the event-time column."""
    if settings.timestamp_column is None:
        return "timestamp" if settings.value_format is None else KAFKA_COLUMN_PREFIX + "timestamp"
    return settings.timestamp_column if settings.timestamp_unit is None else EVENT_TIME_COLUMN


def check_topics(settings: TopicSettings, seconds: float) -> None:
    """Raise an error if no broker answers within some seconds, a topic is missing, or an offset is not one of it.

    It changes nothing in Kafka or in the home.
    """
    cluster = KafkaCluster(settings.kafka, patience=0, timeout=seconds)
    partitions = {name: cluster.topic(name).partitions for name in settings.topics}
    TopicMarks.find(cluster, settings.topics, settings.marks, settings.marks_key)
    if settings.starting_offsets.strip().lower() not in ("earliest", "latest"):
        parse_offsets(settings.starting_offsets, "startingOffsets", settings.topics, partitions)


def value_decoder(settings: TopicSettings) -> Any:
    """Return the decoder of the selected columns and the event time; None if no column of the values is read."""
    values = value_schema(settings)
    if values is None:
        return None
    selected = set(values.names if settings.columns is None else settings.columns) | {settings.timestamp_column}
    if BAD_COLUMN in selected or settings.on_bad == "dead-letter":
        # Whether a value is bad must not depend on which columns are read.
        selected = set(values.names)
    decoded = pa.schema([value for value in values if value.name in selected])
    if not len(decoded):
        return None
    if settings.value_format == "json":
        return JsonDecoder(decoded)
    return AvroDecoder(decoded, settings.avro_schema or "", framed=settings.avro_framed)


def _check_time_column(settings: TopicSettings, values: Any) -> None:
    column, unit = settings.timestamp_column, settings.timestamp_unit
    if column is None:
        return
    if column not in values.names:
        raise UnknownColumn(
            f"The values have no column {column!r}.",
            rule=f"timestampColumn is one of {', '.join(values.names)}.",
            remedy=did_you_mean(column, values.names, otherwise="Leave it out for Kafka's timestamp."),
            column=column,
        )
    kind = values.field(column).type
    is_valid = kind == MICROS_TYPE if unit is None else kind == pa.int64()
    if not is_valid:
        raise InvalidOption(
            f"timestampColumn is {column!r}, of the Arrow type {kind}, and timestampUnit is {unit!r}.",
            rule="It must be a TIMESTAMP without timestampUnit, or a BIGINT with timestampUnit.",
            remedy="Declare the column as TIMESTAMP in the schema, or as BIGINT and set timestampUnit to s, ms or us.",
            option="timestampColumn",
            value=column,
        )
