"""The options of topics that Spark reads, as text, and what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from floodmark._util.times import duration_micros
from floodmark.bindings import TimeRule
from floodmark.bindings.topics.times import MarksChoice
from floodmark.errors import InvalidOption
from floodmark.kafka import KafkaSettings
from floodmark.spark._options import require_no_others, require_one_of
from floodmark.spark._stream_settings import ROWS_PER_TASK, count_of, names_of, truth_of

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

_KAFKA: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_ISOLATION: Final = "kafka.isolation.level"
_KNOWN: Final = {name.lower(): name for name in OPTIONS}
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
        client = {name.lower(): value for name, value in options.items() if name.lower().startswith(_KAFKA)}
        # What somebody meant to be a secret is not shown because its name is wrong.
        others = {name: "***" for name in options if name.lower() not in _KNOWN and not name.lower().startswith(_KAFKA)}
        require_no_others(others, OPTIONS)
        given = {_KNOWN[name.lower()]: value for name, value in options.items() if name.lower() in _KNOWN}
        _check_together(given)
        idle, future, event_time = (given.get(name) for name in ("idle", "future", "maxEventTimePerTrigger"))
        isolation = client.pop(_ISOLATION, "read_committed")
        require_one_of(_ISOLATION, isolation, ("read_committed", "read_uncommitted"))
        return cls(
            topics=_topics(given),
            kafka=_client(client),
            committed=isolation == "read_committed",
            home=given.get("home"),
            source=given.get("source"),
            columns=names_of(given, "columns"),
            value_format=_one_of(given, "valueFormat", None, get_args(ValueFormat)),
            schema=given.get("schema"),
            avro_schema=given.get("avroSchema"),
            avro_framed=truth_of(given, "avroFramed"),
            on_bad=_one_of(given, "onBadValue", "fail", get_args(OnBadValue)),
            dead_letter_topic=given.get("deadLetterTopic"),
            timestamp_column=given.get("timestampColumn"),
            timestamp_unit=_one_of(given, "timestampUnit", None, _TIME_UNITS),
            key=given.get("key"),
            delay=duration_micros(given.get("delay", "0 seconds"), "delay"),
            idle=None if idle is None else duration_micros(idle, "idle", least=1),
            future=None if future is None else duration_micros(future, "future"),
            marks=_one_of(given, "marks", "auto", get_args(MarksChoice)),
            include_headers=truth_of(given, "includeHeaders"),
            starting_offsets=given.get("startingOffsets", "earliest"),
            ending_offsets=given.get("endingOffsets", "latest"),
            as_of=given.get("asOf"),
            max_rows=count_of(given, "maxRowsPerTrigger") or count_of(given, "maxOffsetsPerTrigger"),
            max_event_time=None
            if event_time is None
            else duration_micros(event_time, "maxEventTimePerTrigger", least=1),
            align=given.get("align"),
            max_ahead=duration_micros(given.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=truth_of(given, "settle"),
            rows_per_task=count_of(given, "rowsPerTask") or ROWS_PER_TASK,
            patience=duration_micros(given.get("patience", "30 seconds"), "patience"),
            mark_rows=truth_of(given, "markRows"),
            reader=given.get("reader"),
        )


_PAIRS: Final = (
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
    for one, other, must in _PAIRS:
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


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    topics = tuple(sorted({name.strip() for name in given.get("subscribe", "").split(",") if name.strip()}))
    if not topics:
        raise InvalidOption(
            "No topic was named.",
            rule="The option subscribe names what is read.",
            remedy="Write .option('subscribe', 'orders').",
            option="subscribe",
        )
    return topics


def _client(given: Mapping[str, str]) -> KafkaSettings:
    servers = given.get(_SERVERS)
    if not servers:
        raise InvalidOption(
            f"{_SERVERS} is not given.",
            rule="It says where the brokers are.",
            remedy=f"Write .option('{_SERVERS}', 'localhost:9092').",
            option=_SERVERS,
        )
    return KafkaSettings.of(servers, {name: value for name, value in given.items() if name != _SERVERS})


def _one_of(given: Mapping[str, str], option: str, default: Any, known: tuple[str, ...]) -> Any:
    if option not in given:
        return default
    require_one_of(option, given[option], known)
    return given[option]
