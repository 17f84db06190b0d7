"""Readers of Kafka topics: continuous or as a snapshot; tasks fetch the records and decode their values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from floodmark._util.times import time_in_unit
from floodmark.bindings import BindingHistory, BoundTopics, SourceOffset
from floodmark.bindings.offsets import BatchLimits, BoundRange, bound_ranges, next_offset, offset_at_cut
from floodmark.bindings.topics.partitions import split_partition
from floodmark.bindings.topics.times import ReportedTime, ReportedTimes
from floodmark.control import Home
from floodmark.errors import InvalidOption, SchemaInvalid, ValueUndecodable
from floodmark.kafka import Fetcher, KafkaCluster, Records
from floodmark.kafka.consumer import collector_paused
from floodmark.kafka.producer import DeadLetters
from floodmark.spark.source.bound_reader import IS_MARK, BoundReader, MarkRow, ReadTask, open_home, split_into_tasks
from floodmark.spark.source.stream_settings import parse_time
from floodmark.spark.source.topic_settings import (
    BAD_COLUMN,
    EVENT_TIME_COLUMN,
    HEADERS_TYPE,
    KAFKA_COLUMN_PREFIX,
    MICROS_TYPE,
    TopicSettings,
    topic_arrow_schema,
    topic_spark_schema,
    value_decoder,
)
from floodmark.spark.source.topic_settings import topic_event_time_column as event_time_column_of
from floodmark.spark.worker_checks import home_in_task


class TopicReadTask(ReadTask):
    """The input of one task, and the source to which it reports the event times of its rows."""

    def __init__(self, ranges: tuple[BoundRange, ...], source: str, mark: MarkRow | None = None) -> None:
        super().__init__(ranges, None, mark)
        self.source = source


class TopicSnapshotReader(DataSourceReader):
    """Reads the rows bound up to a timestamp, by default now, as far as Kafka still has them."""

    def __init__(self, settings: TopicSettings, location: str) -> None:
        self._settings = settings
        self._location = location

    def partitions(self) -> Sequence[TopicReadTask]:
        """Return the tasks."""
        settings = self._settings
        bound = open_bound_topics(settings, self._location, patience=settings.patience / 1e6)
        if settings.as_of is None:
            history, until = bound.tick(at_once=True), None
        else:
            history = bound.history()
            until = history.check_valid(time_in_unit(parse_time(settings.as_of, "asOf"), "us"))
        start = offset_at_cut(history, "", bound.resolve_offsets(settings.starting_offsets))
        end = (
            None
            if settings.ending_offsets == "latest"
            else bound.resolve_offsets(settings.ending_offsets, "endingOffsets")
        )
        if history.upper > history.origin:
            last = next_offset(history, start, BatchLimits(until=until, end=end))
        else:
            last = SourceOffset("", None, {})
        tasks = topic_tasks(bound, settings, bound_ranges(history, start, last), None)
        return tasks or [TopicReadTask((), bound.source)]

    def read(self, partition: TopicReadTask) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_topic_task(self._location, self._settings, partition)


class TopicReader(BoundReader[BoundTopics, TopicSettings]):
    """Reads topics continuously."""

    look_seconds = BoundTopics.poll_seconds

    def read(self, partition: TopicReadTask) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_topic_task(self._location, self._settings, partition)

    def _open(self) -> BoundTopics:
        # Without retries: `_retry_while_away` retries the whole action.
        return open_bound_topics(self._settings, self._location, patience=0)

    def _starting_offsets(self, bound: BoundTopics) -> Mapping[int, int] | None:
        first = bound.resolve_offsets(self._settings.starting_offsets)
        bound.skip_to(first)
        return first if any(first.values()) else None

    def _time_key(self, bound: BoundTopics) -> tuple[str, str]:
        return self._settings.time_key, "us"

    def _bind_final_times(self, bound: BoundTopics) -> BindingHistory | None:
        return bound.tick_time()

    def _tasks(self, bound: BoundTopics, ranges: Sequence[BoundRange], mark: MarkRow | None) -> Sequence[TopicReadTask]:
        return topic_tasks(bound, self._settings, ranges, mark)

    def _retry_seconds(self) -> float:
        return self._settings.patience / 1e6


class TopicSource:
    """The topics of a query: makes its readers from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Parse the options."""
        if any(name.lower() in ("stream", "path") for name in options):
            raise InvalidOption(
                "Both a stream and topics to subscribe to are named.",
                rule="A DataFrame reads a stream of a home, or topics of Kafka.",
                remedy="Leave the option stream or subscribe out; for both, unite two DataFrames with df.unionByName.",
                option="subscribe",
            )
        self._settings = TopicSettings.of(options)

    def schema(self) -> StructType:
        """Return the columns."""
        return topic_spark_schema(self._settings)

    def stream_reader(self, schema: StructType) -> TopicReader:
        """Return the reader of a streaming query."""
        self._check(schema)
        for option, is_given in (
            ("asOf", self._settings.as_of is not None),
            ("endingOffsets", self._settings.ending_offsets != "latest"),
        ):
            if is_given:
                raise InvalidOption(
                    f"{option} is given for a streaming query.",
                    rule="It is an option of batch queries.",
                    remedy=f"Use spark.read instead of spark.readStream, or leave {option} out.",
                    option=option,
                )
        return TopicReader(self._settings, self._location())

    def reader(self, schema: StructType) -> TopicSnapshotReader:
        """Return the reader of a batch query."""
        self._check(schema)
        return TopicSnapshotReader(self._settings, self._location())

    def _location(self) -> str:
        # Creates the home if it is missing: users of topics need not create one first.
        with Home.open(self._settings.home) as home:
            return home.location

    def _check(self, schema: StructType) -> None:
        expected = self.schema()
        value_decoder(self._settings)
        if schema.simpleString() != expected.simpleString():
            raise SchemaInvalid(
                f"The query has the schema {schema.simpleString()}.",
                rule=f"The topics {', '.join(self._settings.topics)} have the schema {expected.simpleString()}.",
                remedy="Remove .schema(...), and set the schema of the values with .option('schema', ...).",
                schema=schema.simpleString(),
            )


def open_bound_topics(settings: TopicSettings, location: str, *, patience: float) -> BoundTopics:
    """Return the topics of these settings, with their bindings in the home at a location."""
    return BoundTopics(
        open_home(location).home,
        KafkaCluster(settings.kafka, patience=patience),
        settings.topics,
        source=settings.source,
        rule=settings.rule,
        marks=settings.marks,
        marks_key=settings.marks_key,
        committed=settings.committed,
        compacted=settings.compacted,
        **settings.source_settings,
    )


def topic_tasks(
    bound: BoundTopics, settings: TopicSettings, ranges: Sequence[BoundRange], mark: MarkRow | None
) -> list[TopicReadTask]:
    """Return the tasks that read these ranges."""
    tasks = split_into_tasks(ranges, settings.rows_per_task, None, mark)
    return [TopicReadTask(task.ranges, bound.source, task.mark) for task in tasks]


_MICROS_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MOST_MICROS: Final = 2**63 - 1
_fetchers: dict[tuple[Any, bool], Fetcher] = {}
_dead_letter_producers: dict[tuple[Any, str], DeadLetters] = {}


def read_topic_task(location: str, settings: TopicSettings, task: TopicReadTask) -> Iterator[Any]:
    """Return the rows of a task, as Arrow batches; after the last one report their newest event time to the home."""
    schema = topic_arrow_schema(settings)
    if task.mark is not None:
        yield _mark_row(settings, schema, task.mark)
    if not task.ranges:
        return
    topic_index, partition = split_partition(task.ranges[0].partition)
    topic, first, end = settings.topics[topic_index], task.ranges[0].first, task.ranges[-1].end
    # Event times in values are known only to the task that decodes them, so it reports them.
    home = None if settings.timestamp_column is None else _home_of_task(location)
    rows = RecordBatchBuilder(settings, schema, task.ranges, None if home is None else settings.rule.latest(home.now()))
    for records in _fetcher(settings).read(topic, partition, first, end, wait_to=end):
        with collector_paused():
            batch = rows.batch(records)
        if batch.num_rows:
            yield batch
    if home is not None:
        ReportedTimes(home, task.source).report({task.ranges[0].partition: ReportedTime(rows.newest, end)})


def _home_of_task(location: str) -> Home:
    rule = "If the event time is in the values, every task reports it to the home."
    with home_in_task(rule, "Keep the home in PostgreSQL, run Spark on one machine, or go by Kafka's timestamp."):
        return open_home(location).home


class RecordBatchBuilder:
    """Makes Arrow batches of records, and keeps their newest event time; times after `latest` are ignored."""

    def __init__(
        self, settings: TopicSettings, schema: Any, ranges: Sequence[BoundRange], latest: int | None = None
    ) -> None:
        self.newest: int | None = None
        self._latest = latest
        self._settings = settings
        self._schema = schema
        self._decoder = value_decoder(settings)
        self._ends = np.array([bound.end for bound in ranges], np.int64)
        self._ts = np.array([bound.ts for bound in ranges], np.int64)
        self._w = pa.array([bound.watermarks.get(settings.time_key) for bound in ranges], pa.int64())
        self._prefix = "" if settings.value_format is None else KAFKA_COLUMN_PREFIX

    def batch(self, records: Records) -> Any:
        """Return the rows of these records."""
        decoded, reasons = None, None
        if self._decoder is not None:
            result = self._decoder.decode(list(map(Message.value, records)))
            decoded = result.batch
            if result.bad:
                reasons = self._handle_bad_values(records, result.bad)
                if reasons is None:
                    kept = np.ones(len(records), np.bool_)
                    kept[[bad.index for bad in result.bad]] = False
                    decoded = decoded.filter(pa.array(kept))
                    records = [record for record, is_kept in zip(records, kept, strict=True) if is_kept]
        built = _RecordColumns(records, decoded, reasons, self)
        if self._settings.timestamp_column is not None and decoded is not None:
            self._update_newest(built.event_time())
        columns = [built.column(field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _handle_bad_values(self, records: Records, bad: Sequence[Any]) -> dict[int, str] | None:
        """Return {index: reason} of the bad values; None if their records were sent to the dead-letter topic."""
        settings = self._settings
        if settings.on_bad == "null":
            return {value.index: value.reason for value in bad}
        if settings.dead_letter_topic is not None:
            letters = ((records[value.index], value.reason) for value in bad)
            _dead_letters(settings, settings.dead_letter_topic).send(letters)
            return None
        record, reason = records[bad[0].index], bad[0].reason
        raise ValueUndecodable(
            f"The value at offset {record.offset()} of {record.topic()}, partition {record.partition()}, cannot be "
            f"decoded: {reason}.",
            rule="With onBadValue=fail every value must fit valueFormat and schema.",
            remedy="Change the schema or the producer, or set onBadValue to null or dead-letter.",
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
            reason=reason,
        )

    def _update_newest(self, times: Any) -> None:
        micros = times.cast(pa.int64())
        if self._latest is not None:
            micros = micros.filter(pc.less_equal(micros, self._latest))
        newest = pc.max(micros).as_py()
        if newest is not None:
            self.newest = newest if self.newest is None else max(self.newest, newest)


class _RecordColumns:
    """The columns of some records, each computed when it is needed."""

    def __init__(
        self, records: Records, decoded: Any, reasons: dict[int, str] | None, rows: RecordBatchBuilder
    ) -> None:
        self._records = records
        self._decoded = decoded
        self._reasons = reasons
        self._rows = rows
        self._times: list[tuple[int, int]] | None = None

    def column(self, field: Any) -> Any:
        """Return the column of this name."""
        rows, name = self._rows, field.name
        if rows._prefix and self._decoded is not None and name in self._decoded.schema.names:
            return self._decoded.column(name)
        make: dict[str, Callable[[], Any]] = {
            "_ts": lambda: pa.array(rows._ts[self._range()]).cast(MICROS_TYPE),
            "_w": self._watermarks,
            IS_MARK: lambda: pa.array(np.zeros(len(self._records), np.bool_)),
            BAD_COLUMN: lambda: pa.array(
                [(self._reasons or {}).get(row) for row in range(len(self._records))], pa.string()
            ),
            EVENT_TIME_COLUMN: self.event_time,
        }
        return make[name]() if name in make else self._of_kafka(name.removeprefix(rows._prefix))

    def event_time(self) -> Any:
        """Return the event times of decoded rows."""
        settings = self._rows._settings
        times = self._decoded.column(settings.timestamp_column)
        if settings.timestamp_unit is None:
            return times
        per_unit = _MICROS_PER_UNIT[settings.timestamp_unit]
        # Null if the time does not fit into 64 bits of microseconds.
        fits = pc.less_equal(pc.abs(pc.if_else(pc.equal(times, -(2**63)), 0, times)), _MOST_MICROS // per_unit)
        return pc.multiply(pc.if_else(fits, times, None), per_unit).cast(MICROS_TYPE)

    def _of_kafka(self, name: str) -> Any:
        records, count = self._records, len(self._records)
        if name == "value":
            return pa.array(list(map(Message.value, records)), pa.binary())
        if name == "key":
            return pa.array(list(map(Message.key, records)), pa.binary())
        if name == "topic":
            return pa.repeat(pa.scalar(records[0].topic() if count else ""), count)
        if name == "partition":
            return pa.array(np.full(count, records[0].partition() if count else 0, np.int32))
        if name == "offset":
            return pa.array(self._offsets())
        if name == "timestamp":
            # -1 stands for no timestamp.
            millis = np.fromiter(map(itemgetter(1), self._stamps()), np.int64, count)
            return pa.array(millis * 1000, mask=millis == -1).cast(MICROS_TYPE)
        if name == "timestampType":
            # In the client 0 is "not available" and 1 "create time"; in Spark's own source 0 is "create time".
            return pa.array(np.fromiter(map(itemgetter(0), self._stamps()), np.int32, count) - np.int32(1))
        return pa.array([_headers(record) for record in records], HEADERS_TYPE)

    def _watermarks(self) -> Any:
        times = self._rows._w.take(pa.array(self._range())).cast(MICROS_TYPE)
        return pa.StructArray.from_arrays([times], names=[self._rows._settings.time_key])

    def _stamps(self) -> list[tuple[int, int]]:
        if self._times is None:
            self._times = list(map(Message.timestamp, self._records))
        return self._times

    def _offsets(self) -> Any:
        records = self._records
        # Offsets rise strictly: if the count fits the first and the last, there are no gaps.
        if records and records[-1].offset() - records[0].offset() == len(records) - 1:
            return np.arange(records[0].offset(), records[-1].offset() + 1)
        return np.fromiter(map(Message.offset, records), np.int64, len(records))

    def _range(self) -> Any:
        """Return for each record the index of its range."""
        if len(self._rows._ends) == 1:
            return np.zeros(len(self._records), np.int64)
        return np.searchsorted(self._rows._ends, self._offsets(), side="right")


def _headers(record: Any) -> list[dict[str, Any]] | None:
    headers = record.headers()
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


def _mark_row(settings: TopicSettings, schema: Any, mark: MarkRow) -> Any:
    """Return a mark row: it has the mark in the event-time column, and the watermark in `_w`."""
    time = pa.array([mark.watermarks.get(settings.time_key)], pa.int64()).cast(MICROS_TYPE)
    values = {
        event_time_column_of(settings): pa.array([mark.micros], pa.int64()).cast(MICROS_TYPE),
        "_ts": pa.array([mark.ts], pa.int64()).cast(MICROS_TYPE),
        "_w": pa.StructArray.from_arrays([time], names=[settings.time_key]),
        IS_MARK: pa.array([True]),
    }
    columns = [values.get(field.name, pa.nulls(1, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fetcher(settings: TopicSettings) -> Fetcher:
    """Return the fetcher of a cluster, made once per process."""
    key = (settings.kafka, settings.committed)
    if key not in _fetchers:
        _fetchers[key] = Fetcher(settings.kafka, committed=settings.committed, patience=settings.patience / 1e6)
    return _fetchers[key]


def _dead_letters(settings: TopicSettings, topic: str) -> DeadLetters:
    key = (settings.kafka, topic)
    if key not in _dead_letter_producers:
        _dead_letter_producers[key] = DeadLetters(settings.kafka, topic, patience=settings.patience / 1e6)
    return _dead_letter_producers[key]
