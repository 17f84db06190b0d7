"""Claims about write_stream on a real broker: what is written, once, in which form, and what is refused."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.control import Home
from floodmark.errors import (
    InvalidOption,
    SinkBindingsMissing,
    SinkCheckpointInvalid,
    SinkExists,
    SinkFenced,
    SinkInputUnbound,
    SinkProgressMissing,
    SinkTopicMissing,
    SinkVersionOld,
    UnsupportedFrame,
)
from floodmark.sinks import TS_HEADER, Sinks
from floodmark.sinks.target import COMMITTED, FAILPOINTS, ROWS_FLUSHED
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import CONSUMER, console
from support.spark.sink_feed import SinkFeed, fail_at
from support.spark.stream_feed import BASE, SECOND

STEPS: list[Any] = [[1, 5, 9], 10, None, [12, 17], 20, None, [25, 21, 33], 30, None, [31, 44], 42, None]
"""Rows of two windows and more, each bound to a timestamp of its own; the last watermark is 42."""
MORE: list[Any] = [[43, 52, 47], 50, None, [51, 60], 61, None]
WINDOWS = Counter({(0, 3): 1, (10, 2): 1, (20, 2): 1, (30, 2): 1})
"""Those that are closed after the first steps, and after the others."""
ALL_WINDOWS = Counter({(0, 3): 1, (10, 2): 1, (20, 2): 1, (30, 2): 1, (40, 3): 1, (50, 2): 1})


@pytest.fixture
def empty_sink(spark: SparkSession, tmp_path: Path, broker: KafkaBroker, topic_name: str) -> Iterator[SinkFeed]:
    feed = SinkFeed(spark, tmp_path, broker.servers, topic_name)
    yield feed
    feed.close()


@pytest.fixture
def sink(empty_sink: SinkFeed) -> SinkFeed:
    empty_sink.play(STEPS)
    return empty_sink


@pytest.mark.parametrize("parallel", [None, pytest.param(2, marks=pytest.mark.long)])
def test_windows_are_written_by_a_query_that_has_started_before_the_first_event(
    empty_sink: SinkFeed, parallel: int | None
) -> None:
    sink = empty_sink
    for _ in range(2):
        # The second time as if the first run had died in its only batch.
        assert sink.run(sink.windows(), parallel=parallel) == 1
        (sink.path / "sink" / "commits" / "0").unlink()
    assert sink.records() == []
    sink.play(STEPS)
    sink.run(sink.windows(), parallel=parallel)
    assert sink.counts() == WINDOWS
    sink.play(MORE)
    sink.run(sink.windows(), parallel=parallel)
    assert sink.counts() == ALL_WINDOWS


@pytest.mark.long
def test_windows_are_written_by_a_query_that_has_started_on_an_empty_topic(
    empty_sink: SinkFeed, spark: SparkSession
) -> None:
    sink = empty_sink
    topic = f"{sink.topic}-in"
    sink.cluster.create_topic(topic, 2, {})

    def windows() -> Any:
        rows = fm.read_topics(
            spark,
            topic,
            servers=sink.servers,
            home=sink.path / "home",
            value_format="json",
            schema="id BIGINT, t TIMESTAMP",
            timestamp_column="t",
            key="t",
            operators="windows",
        )
        return fm.window(rows, "10 seconds").groupBy("window").agg(F.count("*").alias("n"))

    sink.run(windows())
    assert sink.records() == []
    feeding = SinkFeed(spark, sink.path / "feeding", sink.servers, topic)
    feeding.play(STEPS)
    feeding.run(feeding.read().select("id", "t"), key="id", append=True)
    feeding.close()
    sink.run(windows())
    assert sink.counts() == WINDOWS


@pytest.mark.parametrize("parallel", [None, pytest.param(2, marks=pytest.mark.full)])
def test_rows_are_written_once_however_the_query_is_started_again(sink: SinkFeed, parallel: int | None) -> None:
    sink.run(sink.read(max_rows=4), parallel=parallel)
    assert sink.ids() == list(range(10))
    sink.play(MORE)
    sink.run(sink.read(), parallel=parallel)
    assert sink.ids() == list(range(15))
    sink.forget()
    sink.run(sink.read(max_rows=6), parallel=parallel)
    assert sink.ids() == list(range(15))
    assert sink.marks() == sorted(set(sink.marks()))
    assert sink.marks()[-1] == 61
    assert sink.progress()[-1].total == 15


@pytest.mark.long
@pytest.mark.parametrize("parallel", [pytest.param(None, marks=pytest.mark.full), 2])
def test_windows_are_written_once_from_every_checkpoint(sink: SinkFeed, parallel: int | None) -> None:
    sink.run(sink.windows(max_rows=4), parallel=parallel)
    assert sink.counts() == WINDOWS
    sink.keep()
    sink.play(MORE)
    sink.run(sink.windows(), parallel=parallel)
    assert sink.counts() == ALL_WINDOWS
    # An older checkpoint, and other batches than before.
    sink.run(sink.windows(max_rows=3), "kept", parallel=parallel)
    assert sink.counts() == ALL_WINDOWS
    sink.forget()
    sink.run(sink.windows(max_rows=7), parallel=parallel)
    assert sink.counts() == ALL_WINDOWS
    sink.play([[70], 75, None])
    sink.run(sink.windows(), parallel=parallel)
    assert sink.counts() == ALL_WINDOWS + Counter({(60, 1): 1})


def test_of_two_queries_that_start_together_one_writes_and_both_checkpoints_stay_usable(sink: SinkFeed) -> None:
    def run(checkpoint: str) -> str:
        try:
            sink.run(sink.read(max_rows=4), checkpoint)
        except (SinkFenced, StreamingQueryException) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(run, ("one", "two")))
    assert "" in errors
    assert all("[sink-fenced]" in error for error in errors if error)
    assert sink.ids() == list(range(10))
    sink.play(MORE)
    for checkpoint in ("one", "two"):
        assert run(checkpoint) == ""
    assert sink.ids() == list(range(15))


TIERS: dict[str, list[pytest.MarkDecorator]] = {ROWS_FLUSHED: [pytest.mark.long], COMMITTED: []}


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=TIERS.get(place, [pytest.mark.full])) for place in FAILPOINTS[3:]],
)
def test_a_query_that_fails_at_any_step_goes_on_without_loss(
    sink: SinkFeed, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patched:
        fail_at(patched, place, 3)
        with pytest.raises(StreamingQueryException, match=place):
            sink.run(sink.windows(max_rows=3))
    if FAILPOINTS.index(place) % 2:
        sink.forget()
    sink.play(MORE)
    sink.run(sink.windows(max_rows=4))
    assert sink.counts() == ALL_WINDOWS


@pytest.mark.long
def test_kafkas_own_consumer_finds_each_row_once_and_none_that_was_given_up(
    sink: SinkFeed, monkeypatch: pytest.MonkeyPatch, broker: KafkaBroker
) -> None:
    with monkeypatch.context() as patched:
        fail_at(patched, "sink: rows flushed", 1)
        with pytest.raises(StreamingQueryException, match="sink: rows flushed"):
            sink.run(sink.read())
    sink.run(sink.read())
    options = ("--bootstrap-server", broker.servers, "--topic", sink.topic, "--from-beginning", "--timeout-ms", "5000")

    def ids(isolation: str, *more: str) -> list[int]:
        said = console(CONSUMER, *options, "--isolation-level", isolation, *more).splitlines()
        # It also says there that it has waited long enough.
        return sorted(json.loads(line)["id"] for line in said if line.startswith("{"))

    assert ids("read_committed") == list(range(10))
    # It ends at once when it has so many.
    assert ids("read_uncommitted", "--max-messages", "20") == sorted(2 * list(range(10)))


def test_each_row_has_its_timestamp_and_those_rise_in_each_partition(sink: SinkFeed) -> None:
    sink.run(sink.read(), partitions=2, key="id", max_rows=1)
    found = [(r.partition(), int(dict(r.headers())[TS_HEADER]), r.key()) for r in sink.records()]
    assert {key for *_, key in found} == {str(number).encode() for number in range(10)}
    assert all(one[0] != other[0] or one[1] <= other[1] for one, other in pairwise(found))
    assert len({ts for _, ts, _ in found}) == 4
    # A transaction is full with its first timestamp, and ends there.
    told = sink.progress()
    assert [one.rows for one in told] == [3, 2, 3, 2]
    assert [one.ends["orders"].ts for one in told] == sorted({ts for _, ts, _ in found})


def test_a_batch_that_was_written_in_part_goes_on_at_the_next_timestamp(
    sink: SinkFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fail_at(patched, "sink: committed", 2)
        with pytest.raises(StreamingQueryException, match="sink: committed"):
            sink.run(sink.read(), max_rows=1)
    assert sink.ids() == list(range(5))
    sink.run(sink.read(), max_rows=1)
    assert sink.ids() == list(range(10))


def test_values_are_json_unless_they_are_there_already(sink: SinkFeed) -> None:
    rows = sink.read().select(F.col("item").alias("key"), F.concat("item", F.col("id")).alias("value"))
    sink.run(rows)
    assert {(r.key(), r.value()) for r in sink.records()} == {(b"tea", f"tea{n}".encode()) for n in range(10)}
    assert sink.marks() == []


def test_a_row_is_written_as_often_as_its_diff_says(sink: SinkFeed) -> None:
    sink.run(sink.read().withColumn("_diff", F.when(F.col("id") == 4, 3).when(F.col("id") == 5, 0).otherwise(1)))
    assert sink.ids() == [0, 1, 2, 3, 4, 4, 4, 6, 7, 8, 9]


def test_an_upsert_writes_the_newest_and_what_is_taken_back_as_a_tombstone(sink: SinkFeed) -> None:
    even = F.col("id") % 2
    sink.run(
        sink.read().select("id", even.alias("k"), F.when(F.col("id") == 8, -1).otherwise(1).alias("_diff"), "_ts"),
        mode="upsert",
        key="k",
    )
    newest: dict[bytes, Any] = {}
    for record in sink.records():
        newest[record.key()] = record.value()
    assert newest[b"1"] is not None
    assert json.loads(newest[b"1"])["id"] == 9
    # Row 8 takes back what had its key, in the same timestamp as row 9 comes.
    assert newest[b"0"] is None


@pytest.mark.long
def test_windows_that_are_still_open_are_told_and_later_told_anew(sink: SinkFeed) -> None:
    def run(checkpoint: str = "sink") -> dict[int, int]:
        windows = sink.windows().withColumn("start", F.col("window.start").cast("long") - BASE // SECOND)
        sink.run(windows, checkpoint, mode="upsert", key="start", output_mode="update")
        newest = {int(record.key()): json.loads(record.value())["n"] for record in sink.records()}
        return dict(sorted(newest.items()))

    assert run() == {0: 3, 10: 2, 20: 2, 30: 2, 40: 1}
    sink.play(MORE)
    assert run() == {0: 3, 10: 2, 20: 2, 30: 2, 40: 3, 50: 2, 60: 1}
    written = len(sink.records())
    assert run("another") == {0: 3, 10: 2, 20: 2, 30: 2, 40: 3, 50: 2, 60: 1}
    assert len(sink.records()) == written, "what was written is not written again"


@pytest.mark.parametrize(
    ("column", "value", "options", "message", "parallel"),
    [
        ("_diff", -1, {}, "A row has a _diff below 0", 2),
        pytest.param("_diff", -1, {}, "A row has a _diff below 0", None, marks=pytest.mark.full),
        ("item", None, {"mode": "upsert", "key": "item"}, "A row has no key", None),
        pytest.param("item", None, {"mode": "upsert", "key": "item"}, "A row has no key", 2, marks=pytest.mark.full),
    ],
)
def test_a_row_that_must_not_be_written_leaves_nothing_of_its_batch(
    sink: SinkFeed, column: str, value: Any, options: dict[str, Any], message: str, parallel: int | None
) -> None:
    bad = F.col("id") == 7
    kind = "int" if column == "_diff" else "string"
    rows = sink.read().withColumn(column, F.when(bad, F.lit(value).cast(kind)).otherwise(F.lit(1).cast(kind)))
    with pytest.raises(StreamingQueryException, match=message):
        sink.run(rows, parallel=parallel, **options)
    assert sink.records() == []


@pytest.mark.long
def test_a_window_that_is_earlier_than_what_was_told_is_refused_with_the_lag_to_use(sink: SinkFeed) -> None:
    starts = {"t": "window.start"}
    sink.run(sink.windows(), times=starts)
    other = {"to": f"kafka://{sink.servers}/{sink.topic}-other", "name": "other", "checkpoint": "other"}
    sink.run(sink.windows(), times=starts, lag="10 seconds", **other)
    # The window from 40 on closes, and readers were told that nothing before 42 comes.
    sink.play(MORE)
    with pytest.raises(StreamingQueryException, match="Give the sink a `lag`"):
        sink.run(sink.windows(), times=starts)
    assert sink.counts() == WINDOWS
    sink.run(sink.windows(), times=starts, lag="10 seconds", **other)
    sink.topic = f"{sink.topic}-other"
    assert sink.counts() == ALL_WINDOWS
    assert sink.marks()[-1] == 51


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a continuous trigger": ({"trigger": {"continuous": "1 second"}}, InvalidOption, "continuous"),
    "a real-time trigger": ({"trigger": {"realTime": "5 minutes"}}, InvalidOption, "real-time"),
    "another scheme": ({"to": "kafak://localhost:9092/t"}, InvalidOption, "Did you mean 'kafka'"),
    "an address without a topic": ({"to": "kafka://localhost:9092"}, InvalidOption, "one topic"),
    "a mode that does not exist": ({"mode": "upsrt"}, InvalidOption, "Did you mean 'upsert'"),
    "an upsert without a key": ({"mode": "upsert"}, InvalidOption, "No key is named"),
    "a limit of nothing": ({"max_rows": 0}, InvalidOption, "max_rows"),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    sink: SinkFeed, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sink.run(sink.read(), **options)
    assert sink.cluster.find_topic(sink.topic) is None
    with Home.open(sink.path / "home") as home:
        assert Sinks(home).all() == ()


def test_a_source_may_be_read_twice_by_one_query(sink: SinkFeed) -> None:
    """Once behind the other, and with a checkpoint that was lost in between."""

    def both(first: int, second: int) -> Any:
        return sink.read(max_rows=first).union(sink.read(max_rows=second))

    sink.run(both(4, 3))
    assert sink.ids() == sorted([*range(10), *range(10)])
    sink.play(MORE)
    sink.forget()
    sink.run(both(3, 5))
    assert sink.ids() == sorted([*range(15), *range(15)])
    assert len(sink.progress()[-1].ends) == 2
    with Home.open(sink.path / "home") as home:
        assert [hold.source for hold in Sinks(home).holds(sink.topic)] == ["orders"]
        assert len(Sinks(home).explain(sink.topic)) == 4


def test_input_without_bindings_is_refused_by_name(sink: SinkFeed, spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    with pytest.raises(SinkInputUnbound, match="rate"):
        sink.run(sink.read().join(rate, F.col("id") == F.col("value")))
    frame = sink.read()
    with pytest.raises(SinkInputUnbound, match="one DataFrame twice"):
        sink.run(frame.select("id").union(frame.select("id")))
    with pytest.raises(UnsupportedFrame, match="not a streaming one"):
        sink.run(spark.range(3))


def test_a_name_a_topic_and_a_checkpoint_belong_to_one_sink(sink: SinkFeed) -> None:
    sink.run(sink.read())
    with pytest.raises(SinkExists, match="writes to"):
        sink.run(sink.read(), to=f"kafka://{sink.servers}/{sink.topic}-other")
    with pytest.raises(SinkProgressMissing, match="has records"):
        sink.run(sink.read(), name="another", checkpoint="another")
    with pytest.raises(SinkCheckpointInvalid, match=f"of the sink {sink.topic!r}"):
        sink.run(sink.read(), name="third", to=f"kafka://{sink.servers}/{sink.topic}-third")
    sink.run(sink.read(), name="another", checkpoint="another", append=True)
    assert sink.ids() == sorted([*range(10), *range(10)])


def test_an_older_version_a_missing_topic_and_a_missing_home_are_refused(sink: SinkFeed) -> None:
    sink.run(sink.read(), version=2)
    with pytest.raises(SinkVersionOld, match="ours=1 theirs=2"):
        sink.run(sink.read(), version=1)
    other = SinkFeed(sink.spark, sink.path / "elsewhere", sink.servers, sink.topic)
    with pytest.raises(SinkBindingsMissing, match="refusing to append"):
        other.run(other.read(), version=2)
    other.run(other.read(), version=2, on_missing_bindings="nonce")
    other.close()
    sink.cluster.delete_topics([sink.topic])
    with pytest.raises(SinkTopicMissing, match="is gone"):
        sink.run(sink.read(), version=2)


@pytest.mark.long
def test_a_query_of_two_sources_is_written_once_and_ends_batches_of_both_where_it_must(
    sink: SinkFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(**options: Any) -> Any:
        left = sink.read(late="strict", **options).select("id", "t")
        right = sink.read(late="strict", source="again", **options).select(
            F.col("id").alias("other"), F.col("t").alias("u")
        )
        return left.join(right, F.expr("id = other AND u >= t AND u <= t"))

    with monkeypatch.context() as patched:
        fail_at(patched, "sink: committed", 3)
        with pytest.raises(StreamingQueryException):
            sink.run(joined(max_rows=3), times={})
    sink.forget()
    sink.play(MORE)
    sink.run(joined(max_rows=5), times={})
    assert sink.ids() == list(range(15))
    assert set(sink.progress()[-1].ends) == {"orders", "again"}


def test_a_home_knows_its_sinks_and_what_they_hold(sink: SinkFeed) -> None:
    sink.run(sink.read())
    with Home.open(sink.path / "home") as home:
        (info,) = Sinks(home).all()
        assert (info.name, info.mode) == (sink.topic, "atomic")
        assert info.progress == sink.progress()[-1]
        assert [hold.source for hold in Sinks(home).holds(sink.topic)] == ["orders"]


def test_topics_can_be_read_and_written(sink: SinkFeed, spark: SparkSession) -> None:
    sink.run(sink.read().select("id", "t"), partitions=2, key="id")
    second = SinkFeed(spark, sink.path / "second", sink.servers, f"{sink.topic}-again")
    rows = fm.read_topics(
        spark,
        sink.topic,
        servers=sink.servers,
        home=second.path / "home",
        value_format="json",
        schema="id BIGINT, t TIMESTAMP",
        timestamp_column="t",
        key="t",
    )
    second.run(rows.select("id", "t", "_ts"))
    assert second.ids() == list(range(10))
    # The marks topic of the first tells the second how far time has come.
    assert second.marks() == [42]
    second.close()
