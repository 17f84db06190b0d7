"""What a task gives of a partition: where rows lie, what they say of time, and what it tells the home."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodmark.bindings import Bindings
from floodmark.bindings.offsets import BoundRange
from floodmark.bindings.topics.times import ReportedTime, ReportedTimes
from floodmark.control import Home
from floodmark.errors import HomeOutOfReach, ValueUndecodable
from floodmark.kafka import Fetcher
from floodmark.spark.source.topic_reader import RecordBatchBuilder, TopicReadTask, read_topic_task
from floodmark.spark.source.topic_settings import TopicSettings, topic_arrow_schema
from floodmark.testing import KafkaBroker
from support.kafka.topic_feed import TopicFeed

NUMBERS = {"valueFormat": "json", "schema": "at BIGINT", "timestampColumn": "at", "timestampUnit": "us"}


@pytest.fixture
def feed(broker: KafkaBroker, topic_name: str) -> TopicFeed:
    return TopicFeed(broker.servers, topic_name, 1)


def rows(feed: TopicFeed, home: Path, ranges: list[BoundRange], **options: str) -> list[dict[str, Any]]:
    given = {"subscribe": feed.name, "kafka.bootstrap.servers": feed.settings.servers, **options}
    read = read_topic_task(str(home), TopicSettings.of(given), TopicReadTask(tuple(ranges), "s"))
    return [row for batch in read for row in pa.Table.from_batches([batch]).to_pylist()]


def test_a_row_lies_in_its_timestamp_also_where_offsets_have_gaps(feed: TopicFeed, tmp_path: Path) -> None:
    feed.transaction(0, ["a", "b"], end="commit")
    feed.transaction(0, ["c"], end="abort")
    feed.write(0, "d", "e")
    ranges = [
        BoundRange(0, 1, 3, 10, {}),
        BoundRange(0, 3, 6, 20, {"timestamp": 7}),
        BoundRange(0, 6, 7, 30, {"timestamp": 8}),
    ]
    wanted = '["value", "offset", "_ts", "_w"]'
    found = rows(feed, tmp_path, ranges, columns=wanted)
    micros = [(one["_ts"].microsecond, one["_w"]["timestamp"]) for one in found]
    assert [(one["value"], one["offset"]) for one in found] == [(b"b", 1), (b"d", 5), (b"e", 6)]
    assert [(ts, w and w.microsecond) for ts, w in micros] == [(10, None), (20, 7), (30, 8)]


def test_a_row_from_the_far_future_is_read_and_tells_nothing_of_time(feed: TopicFeed, tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        Bindings(home).register("s", kind="kafka", identity=1)
        now = home.now()
        feed.write(0, f'{{"at": {now}}}', f'{{"at": {now + 10**15}}}')
        found = rows(feed, tmp_path, [BoundRange(0, 0, 2, 10, {})], columns='["at"]', future="1 hour", **NUMBERS)
        assert [one["at"] for one in found] == [now, now + 10**15]
        assert ReportedTimes(home, "s").read() == {0: ReportedTime(now, 2)}


def test_batches_may_fall_anywhere(feed: TopicFeed) -> None:
    feed.write(0, '{"at": 5}', '{"at": 9}')
    feed.transaction(0, ['{"at": 7}'], end="commit")
    feed.write(0, '{"at": 8}')
    records = [record for part in Fetcher(feed.settings).read(feed.name, 0, 0, 5) for record in part]
    given = {"subscribe": feed.name, "kafka.bootstrap.servers": feed.settings.servers, **NUMBERS}
    settings = TopicSettings.of({**given, "columns": '["at", "_kafka_offset", "_ts"]'})
    ranges = [BoundRange(0, 0, 2, 10, {}), BoundRange(0, 2, 5, 20, {})]
    for cuts in ([4], [1, 4], [2, 3, 4], [1, 2, 3, 4]):
        made = RecordBatchBuilder(settings, topic_arrow_schema(settings), ranges)
        batches = [made.batch(records[first:end]) for first, end in zip([0, *cuts], cuts, strict=False)]
        found = pa.Table.from_batches(batches).to_pylist()
        assert [(one["at"], one["_kafka_offset"], one["_ts"].microsecond) for one in found] == [
            (5, 0, 10),
            (9, 1, 10),
            (7, 2, 20),
            (8, 4, 20),
        ]
        assert made.newest == 9


def test_a_task_tells_the_home_the_greatest_time_and_how_far_it_has_read(feed: TopicFeed, tmp_path: Path) -> None:
    feed.write(0, '{"at": 5}', '{"at": 9}', '{"at": 7}', "{}", None)
    with Home.open(tmp_path / "home") as home:
        Bindings(home).register("s", kind="kafka", identity=1)
        times = ReportedTimes(home, "s")
        rows(feed, tmp_path / "home", [BoundRange(0, 0, 1, 10, {})], columns='["_kafka_offset"]', **NUMBERS)
        assert times.read() == {0: ReportedTime(5, 1)}, "also if nobody asks for the column"
        for _ in range(2):
            rows(feed, tmp_path / "home", [BoundRange(0, 0, 2, 10, {}), BoundRange(0, 2, 5, 20, {})], **NUMBERS)
        assert times.read() == {0: ReportedTime(9, 5)}


def test_a_task_that_fails_tells_nothing_of_time(feed: TopicFeed, tmp_path: Path) -> None:
    feed.write(0, '{"at": 5}', "nonsense")
    with Home.open(tmp_path / "home") as home:
        Bindings(home).register("s", kind="kafka", identity=1)
        with pytest.raises(ValueUndecodable) as refused:
            rows(feed, tmp_path / "home", [BoundRange(0, 0, 2, 10, {})], **NUMBERS)
        assert {name: refused.value.fields[name] for name in ("topic", "partition", "offset")} == {
            "topic": feed.name,
            "partition": 0,
            "offset": 1,
        }
        assert ReportedTimes(home, "s").read() == {}


def test_a_task_that_cannot_see_the_home_says_what_to_do(feed: TopicFeed, tmp_path: Path) -> None:
    feed.write(0, '{"at": 5}')
    with pytest.raises(HomeOutOfReach, match="go by Kafka's timestamp"):
        rows(feed, tmp_path / "nowhere", [BoundRange(0, 0, 1, 10, {})], **NUMBERS)
    assert len(rows(feed, tmp_path / "nowhere", [BoundRange(0, 0, 1, 10, {})])) == 1


def test_a_value_is_bad_for_a_dead_letter_whatever_columns_are_read(feed: TopicFeed, tmp_path: Path) -> None:
    letters = TopicFeed(feed.settings.servers, f"{feed.name}-dead", 1)
    feed.write(0, '{"id": 1, "n": "x"}', '{"id": 2, "n": 3}')
    options = {"valueFormat": "json", "schema": "id BIGINT, n BIGINT", "columns": '["id"]'}
    whole = [BoundRange(0, 0, 2, 10, {})]
    assert rows(feed, tmp_path, whole, **options) == [{"id": 1}, {"id": 2}]
    dead = {"onBadValue": "dead-letter", "deadLetterTopic": letters.name}
    assert rows(feed, tmp_path, whole, **options, **dead) == [{"id": 2}]
    assert letters.cluster.ends(letters.name, [0]) == {0: 1}
