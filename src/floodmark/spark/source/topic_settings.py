"""What is read of Kafka topics: the options as text, the settings they mean, the columns."""

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
from floodmark.bindings.topics.times import MarksChoice
from floodmark.errors import InvalidOption, SchemaInvalid, UnknownColumn
from floodmark.kafka import KafkaSettings
from floodmark.kafka.codecs.avro import AvroDecoder, schema_of_avro
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.spark.source.bound_reader import IS_MARK, ROWS_PER_TASK
from floodmark.spark.source.stream_settings import parse_count, parse_flag, parse_names

OnBadValue = Literal["fail", "null", "dead-letter"]
ValueFormat = Literal["json", "avro"]

OPTIONS: Final = {
    "subscribe": "the topics, with commas between them",
    "kafka.bootstrap.servers": "the brokers; other options that begin with kafka. are those of librdkafka",
    "home": "where bindings are kept; by default that of the environment",
    "source": "the id under which they are kept; by default the cluster and the topics",
    "columns": "which columns to read, as a JSON list; by default all",
    "valueFormat": "json or avro; by default values are bytes",
    "schema": "the columns of the values, as Spark writes schemas",
    "avroSchema": "the schema that Avro values were written with",
    "avroFramed": "whether Avro values begin with the id of a schema registry",
    "onBadValue": "fail, null or dead-letter: what becomes of values that cannot be decoded",
    "deadLetterTopic": "the topic that such records are sent to",
    "timestampColumn": "the column of the values that is the event time; by default Kafka's timestamp is",
    "timestampUnit": "s, ms or us, if that column is a number",
    "key": "the name of the time key; by default timestampColumn, or timestamp",
    "delay": "how much out of order rows of a partition come",
    "idle": "after how long a partition without anything new is waited for no more; by default never",
    "future": "how far ahead of the clock a row may be and still move the watermark; by default any",
    "marks": "auto, require or ignore: whether the marks topic beside each topic tells the time",
    "includeHeaders": "whether there is a column with the headers",
    "startingOffsets": "earliest, latest, or JSON: where a query without a checkpoint begins",
    "endingOffsets": "latest, or JSON: where a batch ends",
    "asOf": "read what was bound at this timestamp; in a batch only",
    "maxRowsPerTrigger": "how many rows a batch may have",
    "maxOffsetsPerTrigger": "the same, as Spark's own source calls it",
    "maxEventTimePerTrigger": "how far the watermark may move in a batch",
    "align": "a name that other queries have too: none runs ahead of the slowest",
    "maxAhead": "how far ahead of the slowest it may be",
    "settle": "whether batches end where the watermark moves, with an empty one after it",
    "rowsPerTask": "how many rows a task reads, at most",
    "patience": "for how long brokers that do not answer are waited for",
    "markRows": "whether a row without data tells where the watermark is; see read_topics",
    "reader": "what tells this DataFrame from others; read_topics gives it, and write_stream needs it",
}
"""The options, which Spark gives in small letters, and what each says."""

_CLIENT_PREFIX: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_OPTION_NAMES: Final = {name.lower(): name for name in OPTIONS}
_TIME_UNITS: Final = ("s", "ms", "us")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What is to be read of topics, and in which portions. Secrets are in `kafka` alone, which does not show them."""

    topics: tuple[str, ...]
    kafka: KafkaSettings
    committed: bool = True
    home: str | None = field(default=None, repr=False)
    source: str | None = None
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
    reader: str | None = None

    @property
    def rule(self) -> TimeRule:
        """How time follows from the records."""
        return TimeRule(self.time_key, self.timestamp_column is not None, self.delay, self.idle, self.future)

    @property
    def time_key(self) -> str:
        """The name of the one time key."""
        return self.key or self.timestamp_column or "timestamp"

    @property
    def marks_key(self) -> str | None:
        """Which key of a marks topic with several is meant."""
        return self.key or self.timestamp_column

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "TopicSettings":
        """Return the settings that options say, or refuse them.

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
        # What somebody meant to be a secret is not shown because its name is wrong.
        others = {
            name: "***"
            for name in options
            if name.lower() not in _OPTION_NAMES and not name.lower().startswith(_CLIENT_PREFIX)
        }
        refuse_unknown_options(others, OPTIONS)
        given = {_OPTION_NAMES[name.lower()]: value for name, value in options.items() if name.lower() in _OPTION_NAMES}
        _check_together(given)
        idle, future, event_time = (given.get(name) for name in ("idle", "future", "maxEventTimePerTrigger"))
        isolation = client.pop(_ISOLATION, "read_committed")
        require_one_of(_ISOLATION, isolation, ("read_committed", "read_uncommitted"))
        return cls(
            topics=_parse_topics(given),
            kafka=_client_settings(client),
            committed=isolation == "read_committed",
            home=given.get("home"),
            source=given.get("source"),
            columns=parse_names(given, "columns"),
            value_format=_parse_choice(given, "valueFormat", None, get_args(ValueFormat)),
            schema=given.get("schema"),
            avro_schema=given.get("avroSchema"),
            avro_framed=parse_flag(given, "avroFramed"),
            on_bad=_parse_choice(given, "onBadValue", "fail", get_args(OnBadValue)),
            dead_letter_topic=given.get("deadLetterTopic"),
            timestamp_column=given.get("timestampColumn"),
            timestamp_unit=_parse_choice(given, "timestampUnit", None, _TIME_UNITS),
            key=given.get("key"),
            delay=duration_micros(given.get("delay", "0 seconds"), "delay"),
            idle=None if idle is None else duration_micros(idle, "idle", least=1),
            future=None if future is None else duration_micros(future, "future"),
            marks=_parse_choice(given, "marks", "auto", get_args(MarksChoice)),
            include_headers=parse_flag(given, "includeHeaders"),
            starting_offsets=given.get("startingOffsets", "earliest"),
            ending_offsets=given.get("endingOffsets", "latest"),
            as_of=given.get("asOf"),
            max_rows=parse_count(given, "maxRowsPerTrigger") or parse_count(given, "maxOffsetsPerTrigger"),
            max_event_time=None
            if event_time is None
            else duration_micros(event_time, "maxEventTimePerTrigger", least=1),
            align=given.get("align"),
            max_ahead=duration_micros(given.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=parse_flag(given, "settle"),
            rows_per_task=parse_count(given, "rowsPerTask") or ROWS_PER_TASK,
            patience=duration_micros(given.get("patience", "30 seconds"), "patience"),
            mark_rows=parse_flag(given, "markRows"),
            reader=given.get("reader"),
        )


_OPTION_PAIRS: Final = (
    # An option, what else must be there, and whether it must be or must not.
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


def _check_together(given: Mapping[str, str]) -> None:
    for one, other, must in _OPTION_PAIRS:
        if one in given and (other in given) is not must:
            raise InvalidOption(
                f"The option {one} is given {'without' if must else 'with'} {other}.",
                rule=f"{one}: {OPTIONS[one]}. {other}: {OPTIONS[other]}.",
                remedy=f"Give {other} too, or leave {one} out." if must else "Leave one out.",
                option=one,
                value=given[one],
            )
    wants_letters = given.get("onBadValue") == "dead-letter"
    if wants_letters != ("deadLetterTopic" in given):
        raise InvalidOption(
            f"onBadValue is {given.get('onBadValue', 'fail')!r}, and deadLetterTopic {given.get('deadLetterTopic')!r}.",
            rule="Bad values are sent to the topic that deadLetterTopic names.",
            remedy="Give both onBadValue = dead-letter and deadLetterTopic, or neither.",
            option="deadLetterTopic",
        )
    kind, needs = given.get("valueFormat"), {"json": "schema", "avro": "avroSchema"}
    if kind in needs and needs[kind] not in given:
        raise InvalidOption(
            f"valueFormat is {kind!r}, without {needs[kind]}.",
            rule=f"{needs[kind]}: {OPTIONS[needs[kind]]}.",
            remedy=f"Give {needs[kind]}.",
            option=needs[kind],
        )


def _parse_topics(given: Mapping[str, str]) -> tuple[str, ...]:
    topics = tuple(sorted({name.strip() for name in given.get("subscribe", "").split(",") if name.strip()}))
    if not topics:
        raise InvalidOption(
            "No topic was named.",
            rule="The option subscribe names what is read.",
            remedy="Write .option('subscribe', 'orders').",
            option="subscribe",
        )
    return topics


def _client_settings(given: Mapping[str, str]) -> KafkaSettings:
    servers = given.get(_SERVERS)
    if not servers:
        raise InvalidOption(
            f"{_SERVERS} is not given.",
            rule="It says where the brokers are.",
            remedy=f"Write .option('{_SERVERS}', 'localhost:9092').",
            option=_SERVERS,
        )
    return KafkaSettings.of(servers, {name: value for name, value in given.items() if name != _SERVERS})


def _parse_choice(given: Mapping[str, str], option: str, default: Any, known: tuple[str, ...]) -> Any:
    if option not in given:
        return default
    require_one_of(option, given[option], known)
    return given[option]


MICROS_TYPE: Final = pa.timestamp("us", "UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KAFKA_COLUMN_PREFIX: Final = "_kafka_"
"""What the columns of Kafka begin with where values are decoded, whatever columns these have."""
EVENT_TIME_COLUMN: Final = "_event_time"
"""The event time as a timestamp, where it is a number in the values."""
BAD_COLUMN: Final = "_bad"
"""Why a value could not be decoded."""

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
    """Return the columns that are read of topics, as Spark has them."""
    return from_arrow_schema(topic_arrow_schema(settings), prefer_timestamp_ntz=True)


def topic_arrow_schema(settings: TopicSettings) -> Any:
    """Return the columns that are read of topics; each may be null, since a row that tells the watermark has no data.

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
        fields = [one.with_nullable(True) for one in values]
        fields += [pa.field(KAFKA_COLUMN_PREFIX + name, kind) for name, kind in of_kafka if name != "value"]
        fields += [pa.field(BAD_COLUMN, pa.string())] if settings.on_bad == "null" else []
        fields += [pa.field(EVENT_TIME_COLUMN, MICROS_TYPE)] if settings.timestamp_unit is not None else []
    fields += [pa.field("_ts", MICROS_TYPE), pa.field("_w", pa.struct([(settings.time_key, MICROS_TYPE)]))]
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


def topic_event_time_column(settings: TopicSettings) -> str:
    """Return the column that is the event time."""
    if settings.timestamp_column is None:
        return "timestamp" if settings.value_format is None else KAFKA_COLUMN_PREFIX + "timestamp"
    return settings.timestamp_column if settings.timestamp_unit is None else EVENT_TIME_COLUMN


def value_decoder(settings: TopicSettings) -> Any:
    """Return what decodes the columns that are asked for, and the event time; None if there are none of values."""
    known = value_schema(settings)
    if known is None:
        return None
    asked = set(known.names if settings.columns is None else settings.columns) | {settings.timestamp_column}
    if BAD_COLUMN in asked or settings.on_bad == "dead-letter":
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
    is_right = kind == MICROS_TYPE if unit is None else kind == pa.int64()
    if not is_right:
        raise InvalidOption(
            f"timestampColumn is {column!r}, of the Arrow type {kind}, and timestampUnit is {unit!r}.",
            rule="It is a TIMESTAMP, or a BIGINT with timestampUnit.",
            remedy="Declare it so in the schema, and give timestampUnit for a number alone.",
            option="timestampColumn",
            value=column,
        )
