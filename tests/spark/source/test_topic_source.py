"""Topics of Kafka in Spark: what rows say of themselves, what watermark they get, and what is refused."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import floodmark as fm
from floodmark.errors import FloodmarkError, InvalidOption, KafkaAway, SchemaInvalid, UnknownColumn, UnknownTopic
from floodmark.spark.source.stream_reader import FloodmarkSource
from floodmark.testing import KafkaBroker
from floodmark.testing.kafka import broker_jars, find_java
from support.kafka.topic_feed import BASE_MILLIS, TopicFeed

SCHEMA = "id BIGINT, t TIMESTAMP"
_names = count()


@pytest.fixture
def feed(broker: KafkaBroker, topic_name: str) -> TopicFeed:
    return TopicFeed(broker.servers, topic_name)


@pytest.fixture
def read(spark: SparkSession, feed: TopicFeed, tmp_path: Path) -> Callable[..., DataFrame]:
    def read(*topics: str, **more: Any) -> DataFrame:
        given = {"servers": feed.settings.servers, "home": tmp_path / "home", **more}
        return fm.read_topics(spark, topics or feed.name, **given)

    return read


@pytest.fixture
def collect(tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    def collect(frame: DataFrame, checkpoint: str | None = None) -> list[tuple[Any, ...]]:
        """Run a query until it has read everything, and return the rows that it has put out in this run."""
        batches: dict[int, list[tuple[Any, ...]]] = {}

        def keep(batch: DataFrame, number: int) -> None:
            batches[number] = [tuple(row) for row in batch.collect()]

        place = tmp_path / (checkpoint or f"checkpoint-{next(_names)}")
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(place))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [row for number in sorted(batches) for row in batches[number]]

    return collect


Read = Callable[..., DataFrame]
Collect = Callable[..., list[tuple[Any, ...]]]


def order(number: Any, seconds: float = 0) -> str:
    return json.dumps({"id": number, "t": moment(seconds).isoformat()})


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(BASE_MILLIS / 1000 + seconds, UTC)


def after_base(value: datetime | None) -> float | None:
    return None if value is None else value.timestamp() - BASE_MILLIS / 1000


def windows(frame: DataFrame, column: str = "t") -> DataFrame:
    return frame.groupBy(F.window(column, "10 seconds")).count().select("window.start", "count")


def counted(rows: list[tuple[Any, ...]]) -> dict[float | None, int]:
    return {after_base(start): number for start, number in sorted(rows)}


def test_without_a_format_rows_are_as_in_sparks_own_source(
    spark: SparkSession, feed: TopicFeed, tmp_path: Path
) -> None:
    feed.write(0, b"\x00a", at=1_000, key="k", headers=[("h", b"1"), ("h", None)])
    feed.write(1, None, at=2_000)
    reader = spark.read.format("floodmark").option("subscribe", feed.name).option("home", str(tmp_path / "home"))
    reader = reader.option("kafka.bootstrap.servers", feed.settings.servers).option("includeHeaders", "true")
    frame = reader.load()
    assert [(one.name, one.dataType.simpleString()) for one in frame.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("_ts", "timestamp"),
        ("_w", "struct<timestamp:timestamp>"),
    ]
    one, other = (row.asDict(recursive=True) for row in frame.orderBy("partition").collect())
    assert (bytes(one["key"]), bytes(one["value"]), one["topic"], one["offset"]) == (b"k", b"\x00a", feed.name, 0)
    assert one["headers"] == [{"key": "h", "value": bytearray(b"1")}, {"key": "h", "value": None}]
    assert (after_base(one["timestamp"].astimezone(UTC)), one["timestampType"]) == (1, 0)
    assert (other["key"], other["value"], other["headers"]) == (None, None, None)
    assert (one["_ts"], one["_w"]) == (other["_ts"], {"timestamp": None})


def test_a_lagging_partition_is_waited_for_and_loses_no_row(feed: TopicFeed, read: Read, collect: Collect) -> None:
    frame = windows(read(operators="windows", late="strict"), "timestamp")
    for partition, seconds in ((0, 1), (0, 55), (1, 2)):
        feed.write(partition, "x", at=seconds * 1_000)
    assert collect(frame, "cp") == [], "plain Spark would take 55 for the watermark"
    feed.write(1, "x", at=3_000)
    feed.write(1, "x", at=31_000)
    feed.write(0, "x", at=61_000)
    assert counted(collect(frame, "cp")) == {0: 3}


def test_times_in_values_close_windows_in_the_run_that_has_read_them(
    feed: TopicFeed, read: Read, collect: Collect
) -> None:
    frame = windows(
        read(value_format="json", schema=SCHEMA, timestamp_column="t", operators="windows", delay="2 seconds")
    )
    feed.write(0, order(1, 1), order(2, 13))
    feed.write(1, order(3, 2), order(4, 22))
    assert counted(collect(frame, "cp")) == {0: 2}
    feed.write(0, order(5, 22))
    assert counted(collect(frame, "cp")) == {10: 1}


def test_an_idle_partition_is_left_out(feed: TopicFeed, read: Read, collect: Collect) -> None:
    options = {"value_format": "json", "schema": SCHEMA, "timestamp_column": "t", "operators": "windows"}
    feed.write(0, order(1, 1), order(2, 13))
    assert collect(windows(read(idle="1 hour", **options)), "cp") == []
    assert counted(collect(windows(read(idle="1 microsecond", **options)), "cp")) == {0: 1}


def test_a_number_may_be_the_event_time(feed: TopicFeed, read: Read, collect: Collect) -> None:
    frame = read(value_format="json", schema="at BIGINT", timestamp_column="at", timestamp_unit="ms")
    feed.write(0, f'{{"at": {BASE_MILLIS + 1_500}}}', '{"at": 9223372036854775807}', "{}")
    feed.write(1, f'{{"at": {BASE_MILLIS + 2_000}}}')
    rows = collect(frame.select("at", "_event_time"), "cp")
    assert {after_base(t) for _, t in rows} == {None, 1.5, 2}
    feed.write(0, '{"at": 1}')
    assert [after_base(w) for (w,) in collect(frame.select("_w.at"), "cp")] == [1.5]


def test_json_values_become_columns_and_the_columns_of_kafka_follow(
    feed: TopicFeed, read: Read, collect: Collect
) -> None:
    feed.write(0, order(7, 1), None, key="k", at=3_000)
    frame = read(value_format="json", schema=SCHEMA)
    assert frame.columns == [
        "id",
        "t",
        *(f"_kafka_{name}" for name in ("key", "topic", "partition", "offset", "timestamp", "timestampType")),
        "_ts",
        "_w",
    ]
    rows = collect(frame.select("id", "t", "_kafka_key", "_kafka_topic", "_kafka_offset"))
    found = [(number, after_base(t), *rest) for number, t, *rest in sorted(rows, key=lambda row: row[4])]
    assert found == [(7, 1, bytearray(b"k"), feed.name, 0), (None, None, bytearray(b"k"), feed.name, 1)]
    assert read(value_format="json", schema=SCHEMA, columns=["id"]).columns == ["id", "_kafka_timestamp"]


def test_avro_values_become_columns(feed: TopicFeed, read: Read, collect: Collect) -> None:
    import io

    import fastavro

    avro = {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": ["null", "string"]}],
    }
    for partition, (frame_bytes, row) in enumerate(
        [(b"", {"id": 1, "item": "tea"}), (b"\0\0\0\0\7", {"id": 2, "item": None})]
    ):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(avro), row)
        feed.write(partition, frame_bytes + buffer.getvalue())
    plain = read(value_format="avro", avro_schema=avro, on_bad_value="null", source="plain")
    framed = read(value_format="avro", avro_schema=avro, avro_framed=True, on_bad_value="null", source="framed")
    assert {row[:2] for row in collect(plain.where("_bad is null").select("id", "item"))} == {(1, "tea")}
    assert {row[:2] for row in collect(framed.where("_bad is null").select("id", "item"))} == {(2, None)}


def test_a_bad_value_ends_the_query_and_is_named(feed: TopicFeed, read: Read, collect: Collect) -> None:
    feed.write(1, order(1), '{"id": "x"}')
    with pytest.raises(Exception, match=f"offset 1 of {feed.name}, partition 1, cannot be decoded: .*'id' is 'x'"):
        collect(read(value_format="json", schema=SCHEMA))


def test_a_bad_value_may_be_null_and_says_why(feed: TopicFeed, read: Read, collect: Collect) -> None:
    feed.write(0, order(1), "nonsense", None)
    rows = collect(read(value_format="json", schema=SCHEMA, on_bad_value="null").select("id", "_bad", "_kafka_offset"))
    (good, bad, tombstone) = sorted(rows, key=lambda row: row[2])
    assert (good[:2], tombstone[:2]) == ((1, None), (None, None))
    assert bad[0] is None
    assert "nonsense" in bad[1]


def test_a_bad_value_may_go_to_a_topic_of_its_own(feed: TopicFeed, read: Read, collect: Collect) -> None:
    letters = TopicFeed(feed.settings.servers, f"{feed.name}-dead", 1)
    feed.write(1, order(1), "nonsense", order(2), at=5_000, key="k", headers=[("mine", b"1")])
    frame = read(
        value_format="json", schema=SCHEMA, on_bad_value="dead-letter", dead_letter_topic=letters.name, columns=["id"]
    )
    assert sorted(number for number, _ in collect(frame)) == [1, 2]
    from floodmark.kafka import Fetcher

    ((letter,),) = Fetcher(feed.settings).read(letters.name, 0, 0, 1)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"k", b"nonsense", BASE_MILLIS + 5_000)
    headers = dict(letter.headers())
    assert {name: headers[name] for name in ("mine", "topic", "partition", "offset")} == {
        "mine": b"1",
        "topic": feed.name.encode(),
        "partition": b"1",
        "offset": b"1",
    }
    assert b"nonsense" in headers["reason"]


def test_a_query_goes_on_from_its_checkpoint_and_two_with_one_id_see_the_same(
    feed: TopicFeed, read: Read, collect: Collect
) -> None:
    frame = read(source="shared").select("topic", "partition", "offset", "_ts", "_w.timestamp")
    rows: list[tuple[Any, ...]] = []
    for number in range(3):
        feed.write(0, f"a{number}", at=number * 1_000)
        feed.write(1, f"b{number}", at=number * 1_000 + 500)
        rows += collect(frame, "cp")
    assert [len(rows), len(set(rows))] == [6, 6]
    limited = read(source="shared", max_rows=1).select("topic", "partition", "offset", "_ts", "_w.timestamp")
    assert sorted(collect(limited), key=str) == sorted(rows, key=str)
    assert {after_base(w) for *_, w in rows} == {None, 0, 1}


def test_a_query_begins_where_it_is_told(feed: TopicFeed, read: Read, collect: Collect) -> None:
    feed.write(0, "a", "b", "c")
    feed.write(1, "d")
    frame = read(start={feed.name: {0: 2, 1: -2}}).select("partition", "offset")
    assert sorted(collect(frame)) == [(0, 2), (1, 0)]
    latest = read(start="latest").select("partition", "offset")
    assert collect(latest, "cp") == []
    feed.write(0, "e")
    assert collect(latest, "cp") == [(0, 3)]


def test_a_snapshot_ends_where_it_is_told_or_as_of_a_timestamp(
    spark: SparkSession, feed: TopicFeed, read: Read, collect: Collect, tmp_path: Path
) -> None:
    feed.write(0, "a", "b", "c")
    ((ts,),) = set(collect(read(source="s").select(F.unix_micros("_ts"))))
    feed.write(0, "d")

    def snapshot(**options: str) -> list[int]:
        given = {
            "subscribe": feed.name,
            "home": str(tmp_path / "home"),
            "kafka.bootstrap.servers": feed.settings.servers,
            "source": "s",
            **options,
        }
        return sorted(row.offset for row in spark.read.format("floodmark").options(**given).load().collect())

    assert snapshot() == [0, 1, 2, 3]
    assert snapshot(asOf=str(ts)) == [0, 1, 2]
    assert snapshot(endingOffsets=json.dumps({feed.name: {"0": 2, "1": -1}})) == [0, 1]
    assert snapshot(startingOffsets=json.dumps({feed.name: {"0": 2, "1": 0}})) == [2, 3]


def test_what_is_not_committed_is_not_read(feed: TopicFeed, read: Read, collect: Collect) -> None:
    feed.transaction(0, ["gone"], end="abort")
    feed.transaction(0, ["there"], end="commit")
    open_one = feed.transaction(1, ["hidden"], end="open")
    frame = read().select(F.col("value").cast("string"))
    assert collect(frame, "cp") == [("there",)]
    uncommitted = read(options={"kafka.isolation.level": "read_uncommitted"}).select(F.col("value").cast("string"))
    assert {value for (value,) in collect(uncommitted)} == {"gone", "there", "hidden"}
    open_one.commit_transaction(30)
    assert collect(frame, "cp") == [("hidden",)]


def test_a_trimmed_topic_is_read_from_what_is_left_but_what_was_bound_is_missed(
    feed: TopicFeed, read: Read, collect: Collect
) -> None:
    feed.write(0, "a", "b")
    feed.trim({0: 1})
    frame = read().select("offset")
    assert collect(frame, "cp") == [(1,)]
    feed.write(0, "c", "d")
    feed.trim({0: 3})
    with pytest.raises(Exception, match="has no record 2 in partition 0 any more"):
        collect(frame, "cp")
    assert collect(frame) == [(3,)]


def test_a_topic_that_gets_partitions_is_read_on(feed: TopicFeed, read: Read, collect: Collect) -> None:
    frame = read().select("partition", "offset")
    feed.write(0, "a")
    first = collect(frame, "cp")
    feed.grow(3)
    feed.write(2, "b", "c")
    assert [*first, *sorted(collect(frame, "cp"))] == [(0, 0), (2, 0), (2, 1)]


def test_marks_of_a_topic_close_windows_and_tell_which_are_open_at_a_row(
    feed: TopicFeed, read: Read, collect: Collect
) -> None:
    feed.create_marks()
    options = {"value_format": "json", "schema": SCHEMA, "timestamp_column": "t", "operators": "windows"}
    frame = fm.window(read(marks="require", **options), "10 seconds").groupBy("window").count()
    frame = frame.select("window.start", "count")
    feed.write(0, order(1, 1), order(2, 35))
    feed.mark(1, BASE_MILLIS * 1000 + 15_000_000, {0: 2}, key="t")
    assert counted(collect(frame, "cp")) == {0: 1}
    feed.write(0, order(3, 2), order(4, 12))
    feed.mark(2, BASE_MILLIS * 1000 + 20_000_000, {0: 4}, key="t")
    assert counted(collect(frame, "cp")) == {10: 1}


def test_what_another_client_has_written_is_read(feed: TopicFeed, read: Read, collect: Collect) -> None:
    options = ["--bootstrap-server", feed.settings.servers, "--topic", feed.name]
    options += ["--property", "parse.key=true", "--property", "key.separator=:"]
    command = [find_java(), "-cp", f"{broker_jars()}/*", "org.apache.kafka.tools.ConsoleProducer", *options]
    done = subprocess.run(command, input="a:tea\nb:café\n".encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    text = (F.col(name).cast("string") for name in ("key", "value"))
    assert sorted(collect(read().select(*text))) == [("a", "tea"), ("b", "café")]


def test_secrets_are_shown_nowhere(
    spark: SparkSession, feed: TopicFeed, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secrets = {"kafka.sasl.password": "hunter22", "kafka.ssl.key.password": "hunter22", "kafka.sasl.username": "me"}
    frame = fm.read_topics(spark, feed.name, servers=feed.settings.servers, home=tmp_path / "home", options=secrets)
    frame.explain(True)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        query.processAllAvailable()
        query.explain(True)
    finally:
        query.stop()
    with pytest.raises(FloodmarkError) as refused:
        fm.read_topics(spark, "a", servers="one:1", home=tmp_path / "home", options={"kafak.sasl.password": "hunter22"})
    told = capfd.readouterr()
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    shown = f"{told.out}{told.err}{refused.value}{refused.value.fields}{query.lastProgress}"
    assert "hunter22" not in shown
    assert b"hunter22" not in kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nonsense-topic"}, "There is no topic 'nonsense-topic'"),
        ({"subscribe": "x", "stream": "orders"}, "Both a stream and topics"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is not given"),
        ({"valueFormat": "json"}, "valueFormat is 'json', without schema"),
        ({"valueFormat": "json", "schema": "_w BIGINT"}, "with the name of one that the source adds"),
        (
            {"valueFormat": "json", "schema": "t STRING", "timestampColumn": "t"},
            "It must be a TIMESTAMP without timestampUnit, or a BIGINT",
        ),
        ({"valueFormat": "json", "schema": "t STRING", "timestampColumn": "tt"}, "no column 'tt'"),
        ({"timestampColumn": "t"}, "timestampColumn is given without valueFormat"),
        ({"onBadValue": "dead-letter", "valueFormat": "json", "schema": "t STRING"}, "deadLetterTopic None"),
        ({"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "is given with maxRowsPerTrigger"),
        ({"kafka.sasl.jaas.config": "x"}, "belongs to the Java client"),
        ({"kafka.nonsense": "x"}, "No such configuration property"),
        ({"columns": '["vallue"]'}, "Did you mean 'value'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    broker: KafkaBroker, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    given = {"subscribe": "x", "kafka.bootstrap.servers": broker.servers, "home": str(tmp_path / "home"), **options}
    with pytest.raises(FloodmarkError, match=message):
        FloodmarkSource(given).reader(FloodmarkSource(given).schema()).partitions()


def test_a_query_that_goes_on_has_no_end_and_the_schema_of_the_options(broker: KafkaBroker, tmp_path: Path) -> None:
    given = {"subscribe": "x", "kafka.bootstrap.servers": broker.servers, "home": str(tmp_path / "home")}
    known = FloodmarkSource(given).schema()
    for option, value in (("asOf", "5"), ("endingOffsets", "{}")):
        with pytest.raises(InvalidOption, match=f"{option} is given for a streaming query"):
            FloodmarkSource({**given, option: value}).streamReader(known)
    with pytest.raises(SchemaInvalid, match="The topics x have the schema"):
        FloodmarkSource(given).reader(StructType([]))


JSON = {"value_format": "json", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"value_format": "json"}, InvalidOption, "value_format is 'json', without schema"),
        ({"value_format": "jsn"}, InvalidOption, "value_format is 'jsn'"),
        ({**JSON, "schema": "id BIGNT"}, SchemaInvalid, "BIGNT"),
        ({**JSON, "timestamp_column": "tt"}, UnknownColumn, "timestamp_column is one of id, t"),
        ({**JSON, "timestamp_column": "id"}, InvalidOption, "timestamp_column is 'id', of the Arrow type int64"),
        ({**JSON, "columns": ["idd"]}, UnknownColumn, "Did you mean 'id'"),
        ({"columns": "value"}, InvalidOption, r"columns=\['value'\]"),
        ({"timestamp_column": "t"}, InvalidOption, "timestamp_column is given without value_format"),
        ({"max_rows": 0}, InvalidOption, "max_rows is '0'"),
        ({"max_ahead": "1 second"}, InvalidOption, "max_ahead is given without align"),
        ({"start": {"another": {0: 1}}}, InvalidOption, "^start "),
        ({"start": "newest"}, InvalidOption, "^start "),
        ({"marks": "require"}, UnknownTopic, "has no marks topic"),
        ({"value_format": "avro", "avro_schema": "{}"}, SchemaInvalid, "Avro"),
        ({"options": {"kafka.nonsense": "x"}}, InvalidOption, "No such configuration property"),
    ],
)
def test_read_topics_refuses_wrong_options_itself_and_by_their_python_names(
    read: Read, options: dict[str, Any], error: type[FloodmarkError], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        read(**options)
    assert not re.search(r"[a-z]+(Format|Column|Unit|PerTrigger|Ahead|Offsets)\b", str(refused.value))


def test_a_topic_that_does_not_exist_is_refused_by_read_topics(read: Read, feed: TopicFeed) -> None:
    with pytest.raises(UnknownTopic, match=f"Did you mean '{feed.name}'"):
        read(feed.name + "s")


def test_a_broker_that_is_away_is_reported_when_the_topics_are_named(spark: SparkSession, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(KafkaAway, match=r"Kafka at 127\.0\.0\.1:1 failed at reading the topic orders"):
        fm.read_topics(spark, "orders", servers="127.0.0.1:1", home=tmp_path / "home", connect_timeout="1 second")
    assert time.monotonic() - begun < 4


def test_a_broker_that_is_away_at_the_start_is_an_error_in_bounded_time(
    spark: SparkSession, tmp_path: Path, collect: Collect, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"patience": "1 second"}
    frame = fm.read_topics(
        spark, "orders", servers="127.0.0.1:1", home=tmp_path / "home", options=options, connect_timeout=None
    )
    with pytest.raises(Exception, match=r"Kafka at 127\.0\.0\.1:1 failed at reading the"):
        collect(frame)
    assert "rdkafka" not in capfd.readouterr().err
