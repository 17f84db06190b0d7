"""Queries that write to tables of Delta Lake, to directories and to topics without transactions."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.errors import FloodmarkError, InvalidOption, SinkProgressMissing, TableUnfit, UnsupportedFrame
from floodmark.kafka import KafkaSettings
from floodmark.sinks import Sinks
from floodmark.sinks.manifest.target import Manifest, ManifestPart
from floodmark.sinks.manifest.topic import PlainProducer, TopicManifestLog
from floodmark.testing import KafkaBroker
from support.spark.sink_shop import Shop
from support.spark.stream_feed import BASE, SECOND, StreamFeed
from support.spark.table_shop import KINDS, found, start, table
from support.waiting import wait_until


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[StreamFeed]:
    """Give a stream of which three rows are bound."""
    feed = StreamFeed(spark, tmp_path)
    feed.play([[1, 2, 3], 4, None])
    yield feed
    feed.close()


Write = Callable[..., None]


@pytest.fixture
def write(stream: StreamFeed, tmp_path: Path) -> Write:
    """Give what writes rows to a target, and waits until all are written."""

    def run(
        df: DataFrame, to: str = "delta", name: str = "out", checkpoint: str = "checkpoint", **options: Any
    ) -> None:
        query = fm.write_stream(
            df,
            to=f"{to}://{tmp_path}/out",
            name=name,
            checkpoint=tmp_path / checkpoint,
            home=tmp_path / "home",
            trigger={"availableNow": True},
            **options,
        )
        query.awaitTermination()

    return run


@pytest.mark.parametrize(
    "target", ["delta", pytest.param("topic", marks=pytest.mark.long), pytest.param("file", marks=pytest.mark.full)]
)
def test_each_row_and_window_is_written_once_with_and_without_the_checkpoint(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, target: str
) -> None:
    shop = Shop(tmp_path)
    for checkpoints, max_rows in (("checkpoints", None), ("checkpoints", 31), ("others", 101)):
        shop.trade()
        for kind in KINDS:
            query = start(
                spark,
                target,
                kind,
                tmp_path,
                servers=broker.servers,
                checkpoints=checkpoints,
                max_rows=max_rows,
            )
            query.awaitTermination()
        for kind in KINDS:
            assert found(spark, target, kind, tmp_path, broker.servers) == shop.wanted(kind), (checkpoints, kind)
    shop.close()


def test_columns_keep_their_types_and_those_of_the_source_are_left_out(
    stream: StreamFeed, write: Write, tmp_path: Path
) -> None:
    told = {
        "flag": "id % 2 = 0",
        "tiny": "CAST(id AS TINYINT)",
        "real": "CAST(id AS FLOAT)",
        "price": "CAST(1.50 AS DECIMAL(10, 2))",
        "day": "DATE '1500-02-03'",
        "moment": "TIMESTAMP '0099-01-01 00:00:00.000001Z'",
        "local": "TIMESTAMP_NTZ '2026-01-01 12:00:00.5'",
        "raw": "X'00ff'",
        "many": "array(1, NULL)",
        "named": "map('a', 1L)",
        "inside": "named_struct('x', named_struct('y', item))",
        "nothing": "CAST(NULL AS STRING)",
    }
    write(stream.read().selectExpr("*", *(f"{value} AS {name}" for name, value in told.items())))
    (row,) = table(tmp_path / "out", "SELECT * FROM t WHERE id = 1")
    assert row == {
        "id": 1,
        "t": datetime.fromtimestamp(BASE // SECOND + 2, UTC),
        "item": "tea",
        "flag": False,
        "tiny": 1,
        "real": 1.0,
        "price": Decimal("1.50"),
        "day": date(1500, 2, 3),
        "moment": datetime(99, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "local": datetime(2026, 1, 1, 12, 0, 0, 500_000),  # noqa: DTZ001
        "raw": b"\x00\xff",
        "many": [1, None],
        "named": [("a", 1)],
        "inside": {"x": {"y": "tea"}},
        "nothing": None,
    }


@pytest.mark.parametrize("to", ["delta", "file"])
def test_the_timestamp_of_a_row_is_there_for_whoever_asks(
    spark: SparkSession, stream: StreamFeed, write: Write, tmp_path: Path, to: str
) -> None:
    stream.play([[5], 6, None])
    write(stream.read(), to, with_ts=True)
    if to == "delta":
        rows = {row["id"]: row["_ts"] for row in table(tmp_path / "out")}
    else:
        closed = fm.read_closed(spark, tmp_path / "out", with_ts=True)
        assert fm.read_closed(spark, f"file://{tmp_path}/out").columns == ["id", "t", "item"]
        rows = {row["id"]: row["_ts"] for row in closed.collect()}
    assert rows[0] == rows[1] == rows[2] < rows[3]


def test_what_is_known_of_time_is_in_the_commit(stream: StreamFeed, write: Write, tmp_path: Path) -> None:
    write(stream.read())
    (commit,) = DeltaTable(str(tmp_path / "out")).history(1)
    assert json.loads(commit["floodmark.marks"]) == {"t": BASE + 4 * SECOND}
    closing = json.loads(commit["floodmark.closing"])
    assert (closing["sink"], closing["progress"]["total"], closing["number"]) == ("out", 3, 2)


def test_rows_are_written_as_often_as_they_say(stream: StreamFeed, write: Write, tmp_path: Path) -> None:
    write(stream.read().withColumn("_diff", F.col("id").cast("int")))
    assert [row["id"] for row in table(tmp_path / "out", "SELECT id FROM t ORDER BY id")] == [1, 2, 2]


@pytest.mark.parametrize("to", ["delta", pytest.param("file", marks=pytest.mark.full)])
def test_a_row_that_is_taken_back_is_refused_and_nothing_of_its_batch_is_seen(
    spark: SparkSession, stream: StreamFeed, write: Write, tmp_path: Path, to: str
) -> None:
    with pytest.raises(StreamingQueryException, match="sink-row-refused"):
        write(stream.read().withColumn("_diff", F.lit(1) - F.col("id").cast("int")), to)
    read = fm.read_closed(spark, tmp_path / "out").count() if to == "file" else len(table(tmp_path / "out"))
    assert read == 0


@pytest.mark.parametrize(
    ("to", "column"),
    [
        ("delta", "CAST(id AS STRING) AS id"),
        ("file", "id, 1 AS more"),
        pytest.param("delta", "id, 1 AS more", marks=pytest.mark.full),
        pytest.param("file", "CAST(id AS STRING) AS id", marks=pytest.mark.full),
    ],
)
def test_other_columns_than_those_of_the_table_are_refused_before_anything_is_written(
    stream: StreamFeed, write: Write, tmp_path: Path, to: str, column: str
) -> None:
    write(stream.read().selectExpr("id", "_ts"), to)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    stream.play([[5], 6, None])
    with pytest.raises(TableUnfit):
        write(stream.read().selectExpr(*column.split(", "), "_ts"), to, checkpoint="another")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == files


def test_a_table_with_rows_of_others_is_refused_unless_asked(stream: StreamFeed, write: Write, tmp_path: Path) -> None:
    write(stream.read().select("id"), name="first")
    with pytest.raises(SinkProgressMissing):
        write(stream.read().select("id"), name="second", checkpoint="second")
    write(stream.read().select("id"), name="second", checkpoint="second", append=True)
    assert [row["id"] for row in table(tmp_path / "out", "SELECT id FROM t ORDER BY id")] == [0, 0, 1, 1, 2, 2]


def test_rows_go_to_the_partitions_of_a_table_that_has_some(stream: StreamFeed, write: Write, tmp_path: Path) -> None:
    fields = [("id", "long"), ("item", "string"), ("odd", "boolean")]
    columns = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": columns}))
    DeltaTable.create(str(tmp_path / "out"), schema, partition_by=["item", "odd"])
    stream.write(5, item="a/b c=%")
    stream.play([6, None])
    write(stream.read().selectExpr("id", "item", "id % 2 = 1 AS odd"))
    rows = table(tmp_path / "out", "SELECT id, item, odd FROM t ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [
        (0, "tea", False),
        (1, "tea", True),
        (2, "tea", False),
        (3, "a/b c=%", True),
    ]


def test_whoever_starts_last_writes_and_the_other_ends(stream: StreamFeed, write: Write, tmp_path: Path) -> None:
    df = stream.read().select("id", "_ts")
    running = fm.write_stream(
        df, to=f"delta://{tmp_path}/out", name="out", checkpoint=tmp_path / "first", home=tmp_path / "home"
    )
    try:
        wait_until(lambda: (tmp_path / "out").exists() and len(table(tmp_path / "out")) == 3, 60)
        # In one session no two queries have the same name.
        other = fm.read_stream(stream.spark.newSession(), "orders", home=tmp_path / "home")
        write(other.select("id", "_ts"), checkpoint="second")
        stream.play([[5], 6, None])
        wait_until(lambda: not running.isActive, 60)
        assert "sink-fenced" in str(running.exception())
    finally:
        running.stop()
    write(stream.read().select("id", "_ts"), checkpoint="second")
    assert [row["id"] for row in table(tmp_path / "out", "SELECT id FROM t ORDER BY id")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("to", "options", "error"),
    [
        ("delta://relative/path", {}, InvalidOption),
        ("file://relative", {}, InvalidOption),
        ("file:///nowhere", {"mode": "upsert", "key": "id"}, InvalidOption),
        ("delta:///nowhere", {"mode": "upsert", "key": ["id", "_offset"]}, InvalidOption),
        ("delta:///nowhere", {"parallel": 2}, InvalidOption),
        ("file:///nowhere", {"max_rows": 5}, InvalidOption),
        ("delta:///nowhere", {"on_missing_bindings": "nonce"}, InvalidOption),
        ("kafka://one:9092/topic", {"staged": True, "parallel": 2}, InvalidOption),
    ],
)
def test_what_a_target_cannot_do_is_refused(
    stream: StreamFeed, tmp_path: Path, to: str, options: dict[str, Any], error: type[FloodmarkError]
) -> None:
    with pytest.raises(error):
        fm.write_stream(stream.read(), to=to, name="out", checkpoint=tmp_path / "c", home=tmp_path / "home", **options)
    assert Sinks(stream.home.home).all() == ()


@pytest.mark.parametrize("column", ["count(*)", "a b"])
def test_names_that_tables_do_not_have_are_refused(stream: StreamFeed, write: Write, column: str) -> None:
    with pytest.raises(UnsupportedFrame, match="column"):
        write(stream.read().withColumn(column, F.lit(1)))


def test_types_that_tables_do_not_have_are_refused(stream: StreamFeed, write: Write) -> None:
    with pytest.raises(UnsupportedFrame, match=r"inside\.x has the type interval"):
        write(stream.read().selectExpr("named_struct('x', INTERVAL '1' DAY) AS inside"))


@pytest.mark.parametrize("source", ["kafka://one:9092", "delta:///data", "file://data"])
def test_what_nobody_can_read_back_is_refused(spark: SparkSession, source: str) -> None:
    with pytest.raises(InvalidOption):
        fm.read_closed(spark, source)


def test_a_directory_of_others_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TableUnfit):
        fm.read_closed(spark, tmp_path)


def test_a_directory_whose_name_has_signs_of_patterns_is_read(
    spark: SparkSession, stream: StreamFeed, tmp_path: Path
) -> None:
    odd = tmp_path / "a{b}[c] *d"
    for _ in range(2):
        query = fm.write_stream(
            stream.read().select("id", "_ts"),
            to=f"file://{odd}",
            name="odd",
            checkpoint=tmp_path / "odd",
            home=tmp_path / "home",
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    assert fm.read_closed(spark, odd).count() == 3
    assert fm.read_closed(spark, odd, sink="nobody").count() == 0


def test_rows_of_a_topic_that_came_twice_or_are_not_closed_are_left_out(
    spark: SparkSession, broker: KafkaBroker, topic_name: str
) -> None:
    settings = KafkaSettings.of(broker.servers)
    log = TopicManifestLog(settings, topic_name, "K", partitions=2)
    log.create()
    log.open()
    assert log.newest() is None
    producer = PlainProducer(settings)
    rows = [[(b"a", b"1", 5, 0, None), (None, b"2", 6, 1, [("own", b"x")])]]
    # What passes things on from one cluster to another may do so twice.
    for _ in range(2):
        producer.send(topic_name, "ab.0.0", rows)
    producer.send(topic_name, "ab.0.1", rows)
    producer.put(topic_name, b"from somebody else", b"a", 0)
    source = f"kafka://{broker.servers}/{topic_name}"
    assert fm.read_closed(spark, source).count() == 0
    assert log.add(Manifest("K", 1, "t", "ab", (ManifestPart("ab.0.0", 2),)))
    found = sorted(tuple(row) for row in fm.read_closed(spark, source).selectExpr("value", "key").collect())
    assert found == [(b"1", b"a"), (b"2", None)]
    told = fm.read_closed(spark, source, sink="K", with_ts=True).selectExpr("value", "unix_micros(_ts)").collect()
    assert sorted(tuple(row) for row in told) == [(b"1", 5), (b"2", 6)]
    assert fm.read_closed(spark, source, sink="nobody").count() == 0
    log.close()
