"""Claims about write_stream into streams: each row once, and the watermark goes on to whoever reads them."""

import pickle
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.errors import InvalidOption, SinkTopicMissing, SinkTopicUnfit, StreamSealed
from floodmark.sinks import Sinks
from floodmark.sinks.target import COMMITTED, FAILPOINTS, ROWS_FLUSHED
from floodmark.spark.sink.address import SinkOptions, sink_spec
from floodmark.spark.sink.rows import RowFormat
from floodmark.streams import Stream, connect
from support.sinks.stream_process import broken_marks
from support.spark.sink_feed import Injected, fail_at
from support.spark.sink_shop import START, Shop, frame, rows_in, windows_in


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shop.trade()
    yield shop
    shop.close()


@pytest.fixture(autouse=True)
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


class Chain:
    """Queries over a shop, each with a checkpoint of its own."""

    def __init__(self, spark: SparkSession, shop: Shop, path: Path) -> None:
        self.spark, self.shop, self.path = spark, shop, path
        self.home = connect(shop.home)

    def run(
        self, frame: DataFrame, to: str, checkpoint: str = "kept", *, is_alone: bool = True, **options: Any
    ) -> Stream:
        """Run a query to its end, wait until its watermark has come, and return the stream."""
        name = to.replace("/", "-")
        place = self.path / f"{name}-{checkpoint}"
        given = {
            "name": name,
            "checkpoint": place,
            "home": self.shop.home,
            "trigger": {"availableNow": True},
            **options,
        }
        query = fm.write_stream(frame, to=f"stream://{to}", **given)
        query.awaitTermination()
        stream = self.home.stream(to)
        progress = Sinks(self.home.home).get(str(given["name"])).progress
        for key, mark in progress.marks.items() if progress is not None and is_alone else ():
            stream.await_mark(mark.time, key, timeout="30 seconds")
        return stream

    def frame(self, kind: str, max_rows: int | None = None) -> DataFrame:
        return frame(self.spark, kind, self.shop.home, max_rows)

    def windows_of(self, stream: str, size: str) -> DataFrame:
        read = fm.read_stream(self.spark, stream, home=self.shop.home, late="strict")
        return fm.window(read, size).groupBy("window").agg(F.sum("count").alias("count"))


@pytest.fixture
def chain(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(spark, shop, tmp_path)
    yield chain
    chain.home.close()


def watermark_of(stream: Stream, key: str = "t") -> float:
    lower = stream.marks(key)[-1].lower
    assert lower is not None
    return lower / 1e6 - START.timestamp()


def test_windows_become_a_stream_whose_time_is_their_last_moment(chain: Chain) -> None:
    tens = chain.run(chain.frame("windows"), "tens", partitions=2)
    assert tens.settings.ddl == "window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT, t TIMESTAMP"
    assert (dict(tens.settings.time_columns), len(tens.layout.current)) == ({"t": "t"}, 2)
    assert windows_in(tens) == chain.shop.wanted("windows")
    assert {row["window"]["end"] - row["t"] for row in rows_in(tens)} == {timedelta(microseconds=1)}
    assert watermark_of(tens) == pytest.approx(chain.shop.watermark - 1e-6, abs=1e-7)
    assert broken_marks(tens, "t") == []


@pytest.mark.long
@pytest.mark.parametrize("log", ["home", pytest.param("kafka", marks=pytest.mark.full)], indirect=True)
def test_windows_over_windows_over_streams_are_those_of_one_query(chain: Chain, log: str) -> None:
    for checkpoint in ("kept", "new"):
        tens = chain.run(chain.frame("windows"), "tens", checkpoint)
        thirties = chain.run(chain.windows_of("tens", "30 seconds"), "thirties", checkpoint)
        assert windows_in(tens) == chain.shop.wanted("windows")
        assert windows_in(thirties) == chain.shop.wanted("chained")
        assert watermark_of(thirties) <= watermark_of(tens) <= chain.shop.watermark
        assert broken_marks(thirties, "t") == []
        chain.shop.trade()
    assert (thirties.info.log is not None) == (log == "kafka")


@pytest.mark.parametrize(
    ("place", "is_kept"),
    [
        pytest.param(place, number % 2 == 0, marks=[] if place in (ROWS_FLUSHED, COMMITTED) else [pytest.mark.full])
        for number, place in enumerate(FAILPOINTS[4:])
    ],
)
def test_a_query_that_fails_at_any_step_goes_on(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, place: str, is_kept: bool
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, place)
        with pytest.raises((Injected, StreamingQueryException)):
            chain.run(chain.frame("windows"), "tens")
    tens = chain.run(chain.frame("windows"), "tens", "kept" if is_kept else "new")
    assert windows_in(tens) == chain.shop.wanted("windows")
    assert broken_marks(tens, "t") == []


def test_rows_without_state_are_told_apart_however_their_batches_are_cut(chain: Chain) -> None:
    orders = chain.run(chain.frame("rows", 23), "copy", key="id", partitions=2)
    assert dict(orders.settings.time_columns) == {"t": "t"}
    assert orders.settings.ddl == "id BIGINT, t TIMESTAMP"
    chain.shop.trade()
    chain.run(chain.frame("rows"), "copy", "new", key="id")
    assert Counter(row["id"] for row in rows_in(orders)) == chain.shop.wanted("rows")
    assert watermark_of(orders) == chain.shop.watermark
    assert all(orders.ends().values())


def test_a_join_of_streams_that_queries_have_written_goes_into_a_stream(chain: Chain, spark: SparkSession) -> None:
    home = chain.shop.home
    chain.run(chain.frame("rows"), "orders-2")
    chain.run(fm.read_stream(spark, "payments", home=home, late="strict"), "payments-2")
    orders = fm.read_stream(spark, "orders-2", home=home, late="strict").select("id", "t")
    payments = fm.read_stream(spark, "payments-2", home=home, late="strict")
    paid = payments.select(F.col("id").alias("paid"), F.col("t").alias("paid_at"))
    soon = F.expr("paid = id AND paid_at >= t AND paid_at <= t + INTERVAL 2 SECONDS")
    joined = chain.run(orders.join(paid, soon), "joined", times={"t": "t"}, lag="10 seconds")
    found = Counter(row["id"] for row in rows_in(joined))
    assert not found - chain.shop.wanted("joined")
    assert found
    assert broken_marks(joined, "t") == []
    assert watermark_of(joined) <= chain.shop.watermark - 10


def test_a_query_whose_input_is_idle_still_moves_the_watermark(chain: Chain) -> None:
    tens = chain.run(chain.frame("windows"), "tens")
    before = watermark_of(tens)
    for writer in chain.shop._writers:
        writer.note_time(START + timedelta(seconds=chain.shop.watermark + 100))
    chain.home.stream("orders").await_mark(START + timedelta(seconds=chain.shop.watermark + 100))
    chain.run(chain.frame("windows"), "tens")
    assert watermark_of(tens) == pytest.approx(before + 100)
    assert broken_marks(tens, "t") == []


def test_each_time_key_of_the_source_goes_on(chain: Chain, spark: SparkSession, tmp_path: Path) -> None:
    source = chain.home.create_stream("trips", "id BIGINT, out TIMESTAMP, home TIMESTAMP", time_columns=["out", "home"])
    with source.writer("w") as writer:
        writer.write({"id": 1, "out": START, "home": START + timedelta(seconds=5)})
        writer.note_time(START + timedelta(seconds=7), "out")
        writer.note_time(START + timedelta(seconds=3), "home")
        source.await_mark(START + timedelta(seconds=7), "out")
        source.await_mark(START + timedelta(seconds=3), "home")
        read = fm.read_stream(spark, "trips", home=chain.shop.home)
        trips = chain.run(read, "trips-2", times={"out": "out", "home": "home"})
    assert {key: watermark_of(trips, key) for key in ("out", "home")} == {"out": 7, "home": 3}


def test_two_queries_write_to_one_stream_and_the_slower_holds_its_watermark(chain: Chain) -> None:
    chain.run(chain.frame("rows"), "both", name="one")
    before = chain.shop.watermark
    chain.shop.trade()
    both = chain.run(chain.frame("rows"), "both", "other", name="two", is_alone=False, append=True)
    assert Counter(row["id"] for row in rows_in(both)).total() == 60 + 120
    assert watermark_of(both) == before


def test_a_sealed_stream_ends_the_query_and_a_deleted_one_is_not_made_anew(chain: Chain) -> None:
    tens = chain.run(chain.frame("windows"), "tens")
    there = windows_in(tens)
    tens.seal()
    chain.shop.trade()
    with pytest.raises(StreamSealed):
        chain.run(chain.frame("windows"), "tens")
    assert windows_in(tens) == there
    tens.delete()
    with pytest.raises(SinkTopicMissing):
        chain.run(chain.frame("windows"), "tens")


def test_a_row_that_is_too_early_is_refused_and_nothing_of_its_batch_is_seen(chain: Chain) -> None:
    early = chain.frame("windows").withColumn("first", F.col("window.start"))
    tens = chain.run(early, "tens", times={"t": "first"})
    there = windows_in(tens)
    chain.shop.trade()
    with pytest.raises(StreamingQueryException, match="Give the sink a `lag`"):
        chain.run(early, "tens", times={"t": "first"})
    assert windows_in(tens) == there


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "upsert", "key": "window"}, "mode"),
        ({"parallel": 2}, "parallel"),
        ({"max_rows": 5}, "max_rows"),
        ({"max_bytes": 5}, "max_bytes"),
        ({"progress_topic": "p"}, "progress_topic"),
        ({"staged": True}, "staged"),
        ({"times": {}}, "no time"),
        ({"times": {"count": "window.end"}}, "something else"),
    ],
)
def test_what_makes_no_sense_for_a_stream_is_refused(chain: Chain, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        chain.run(chain.frame("windows"), "tens", **options)
    assert "tens" not in [stream.name for stream in chain.home.streams()]


def test_what_writes_is_the_same_in_another_process(chain: Chain) -> None:
    form = RowFormat.of(chain.frame("windows").schema, times={"t": "`window`.end"})
    spec = sink_spec("stream://tens", "tens", form, SinkOptions(), chain.frame("windows").schema)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_stream_with_other_columns_is_refused_before_anything_is_written(chain: Chain) -> None:
    tens = chain.home.create_stream("tens", "n BIGINT, t TIMESTAMP", time_columns="t")
    with pytest.raises(SinkTopicUnfit, match="n BIGINT"):
        chain.run(chain.frame("windows"), "tens")
    assert sum(tens.tail().values()) == 0
