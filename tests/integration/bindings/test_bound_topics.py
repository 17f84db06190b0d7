"""Topics as a bound source: what is bound when, with which watermark, and what is refused."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from floodmark.bindings import BoundTopics, TimeRule
from floodmark.bindings.topics.partitions import MAX_PARTITIONS, join_partition, parse_offsets, split_partition
from floodmark.bindings.topics.times import ReportedTime, ReportedTimes
from floodmark.control import Home
from floodmark.errors import (
    InvalidOption,
    KafkaAway,
    SourceRecreated,
    SourceTruncated,
    TopicCompacted,
    TopicRecreated,
    TopicTrimmed,
    UnknownTopic,
)
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.testing import KafkaBroker, ManualClock
from support.kafka.topic_feed import BASE_MILLIS, SECOND, TopicFeed
from support.waiting import wait_until

BY_COLUMN = TimeRule(key="at", is_read=True)
Bind = Callable[..., BoundTopics]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000 * SECOND)


@pytest.fixture
def home(tmp_path: Path, clock: ManualClock) -> Iterator[Home]:
    with Home.open(tmp_path / "home", clock=clock.now) as home:
        yield home


@pytest.fixture
def feed(broker: KafkaBroker, topic_name: str) -> TopicFeed:
    return TopicFeed(broker.servers, topic_name)


@pytest.fixture
def bind(home: Home, feed: TopicFeed) -> Bind:
    def bind(*topics: str, **more: Any) -> BoundTopics:
        return BoundTopics(home, feed.cluster, topics or [feed.name], **more)

    return bind


def kafka_time(seconds: int) -> int:
    return (BASE_MILLIS + seconds * 1000) * 1000


@pytest.mark.parametrize(("place", "partition"), [(0, 0), (0, MAX_PARTITIONS - 1), (3, 0), (7, 12)])
def test_a_number_stands_for_one_partition_of_one_topic(place: int, partition: int) -> None:
    assert split_partition(join_partition(place, partition)) == (place, partition)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "7",
        '{"orders": 3}',
        '{"orders": {"0": 1}}',
        '{"orders": {"0": 1, "1": 2, "2": 3}}',
        '{"orders": {"0": 1, "1": -3}}',
        '{"orders": {"0": 1, "1": true}}',
        '{"orders": {"0": 1, "1": 2}, "others": {"0": 1}}',
    ],
)
def test_offsets_that_do_not_name_each_partition_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets is"):
        parse_offsets(text, "startingOffsets", ["orders"], {"orders": 2})


def test_what_a_topic_has_is_bound_with_the_watermark_there(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind()
    feed.write(0, "a", "b", at=5_000)
    feed.write(1, "c", at=3_000)
    first = bound.tick()
    assert (first.ends, first.watermarks) == ({0: 2, 1: 1}, {"timestamp": kafka_time(3)})
    assert first.watermark_before(first.origin) == {}
    feed.write(1, "d", at=9_000)
    assert bound.tick().ends == {0: 2, 1: 1}, "the tick is not due"
    clock.advance(SECOND)
    second = bound.tick()
    assert (second.ends, second.watermarks) == ({0: 2, 1: 2}, {"timestamp": kafka_time(5)})
    assert second.watermark_before(int(second.columns[1].ts[-1])) == {"timestamp": kafka_time(3)}


def test_nothing_is_bound_while_nothing_is_new(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind()
    feed.write(0, "a")
    upper = bound.tick().upper
    for _ in range(3):
        clock.advance(10 * SECOND)
        assert bound.tick().upper == upper


def test_an_empty_partition_holds_the_watermark_until_it_is_idle(
    feed: TopicFeed, bind: Bind, clock: ManualClock
) -> None:
    bound = bind(rule=TimeRule(idle=30 * SECOND))
    feed.write(0, "a", at=5_000)
    assert bound.tick().watermarks == {}
    assert bound.why().holders == (f"{feed.name}-1",)
    clock.advance(20 * SECOND)
    feed.write(0, "b", at=6_000)
    assert bound.tick().watermarks == {}
    clock.advance(15 * SECOND)
    idle = bound.tick()
    assert (idle.ends, idle.watermarks) == ({0: 2, 1: 0}, {"timestamp": kafka_time(6)})
    feed.write(1, "late", at=1_000)
    feed.write(0, "c", at=9_000)
    clock.advance(SECOND)
    assert bound.tick().watermarks == {"timestamp": kafka_time(6)}, "it holds, and nothing goes back"
    assert bound.why().holders == (f"{feed.name}-1",)


def test_after_the_clock_was_set_back_a_silent_partition_becomes_idle_once_its_time_is_over(
    feed: TopicFeed, bind: Bind, clock: ManualClock
) -> None:
    bound = bind(rule=TimeRule(idle=30 * SECOND))
    feed.write(0, "a", at=5_000)
    feed.write(1, "a", at=1_000)
    bound.tick()
    clock.advance(-100 * SECOND)
    assert bound.tick().watermarks == {"timestamp": kafka_time(1)}
    clock.advance(25 * SECOND)
    feed.write(0, "b", at=9_000)
    bound.tick()
    clock.advance(6 * SECOND)
    assert bound.tick().watermarks == {"timestamp": kafka_time(9)}


def test_two_who_bind_and_one_who_comes_later_have_the_same_bindings(
    feed: TopicFeed, bind: Bind, clock: ManualClock
) -> None:
    one, other = bind(), bind()
    for number in range(5):
        feed.write(number % 2, "a", at=number * 1_000)
        clock.advance(SECOND)
        (one if number % 2 else other).tick()
    assert one.history().pairs() == other.history().pairs() == bind().history().pairs()
    assert one.history().watermarks == bind().tick().watermarks


def test_a_time_whose_record_is_trimmed_stays_known(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    feed.write(0, "ahead", at=50_000)
    feed.write(0, "a", at=1_000)
    feed.write(1, "b", at=2_000)
    bind().tick()
    feed.trim({0: 1})
    feed.write(1, "c", at=60_000)
    clock.advance(SECOND)
    assert bind().tick().watermarks == {"timestamp": kafka_time(50)}


def test_a_new_partition_is_found_and_holds_until_it_has_a_row(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind()
    feed.write(0, "a", at=1_000)
    feed.write(1, "b", at=1_000)
    bound.tick()
    feed.grow(3)
    feed.write(2, "c", at=500)
    feed.write(0, "d", at=2_000)
    feed.write(1, "d", at=2_000)
    clock.advance(SECOND)
    grown = bound.tick()
    assert (grown.ends, grown.watermarks) == ({0: 2, 1: 2, 2: 1}, {"timestamp": kafka_time(1)})
    assert bound.why().holders == (f"{feed.name}-2",)


def test_a_topic_that_was_made_anew_is_refused_by_who_runs_and_by_who_starts(
    feed: TopicFeed, bind: Bind, clock: ManualClock
) -> None:
    bound = bind()
    feed.write(0, "a", "b")
    bound.tick()
    feed.cluster.delete_topics([feed.name])
    wait_until(lambda: feed.cluster.find_topic(feed.name) is None)
    feed.cluster.create_topic(feed.name, 2, {})
    feed.write(0, "x", "y", "z")
    clock.advance(SECOND)
    with pytest.raises(TopicRecreated, match=f"{feed.name}.*created again"):
        bound.tick()
    with pytest.raises(TopicRecreated):
        bind()
    assert bind(source="new").tick().ends == {0: 3, 1: 0}


def test_a_topic_that_is_gone_is_named(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind()
    feed.cluster.delete_topics([feed.name])
    wait_until(lambda: feed.cluster.find_topic(feed.name) is None)
    clock.advance(SECOND)
    bound._refreshed = 0
    with pytest.raises(UnknownTopic, match=feed.name):
        bound.tick()
    with pytest.raises(UnknownTopic, match="There is no topic 'nonsense'"):
        bind("nonsense")


def test_other_topics_times_or_isolation_under_the_same_id_are_refused(feed: TopicFeed, bind: Bind) -> None:
    other = TopicFeed(feed.settings.servers, f"{feed.name}-other")
    bind(source="orders")
    with pytest.raises(SourceRecreated, match="what was bound under its id"):
        bind(other.name, source="orders")
    with pytest.raises(InvalidOption, match="bound with time = 'timestamp', and now it is 'at'"):
        bind(source="orders", rule=BY_COLUMN)
    with pytest.raises(InvalidOption, match="bound with committed = True"):
        bind(source="orders", committed=False)
    assert len({bind().source, bind(rule=BY_COLUMN).source, bind(committed=False).source, bind(other.name).source}) == 4


def test_several_topics_are_one_source(feed: TopicFeed, bind: Bind) -> None:
    other = TopicFeed(feed.settings.servers, f"{feed.name}-b")
    feed.write(1, "a", at=7_000)
    feed.write(0, "a", at=5_000)
    other.write(0, "a", "b", at=3_000)
    other.write(1, "a", at=9_000)
    bound = bind(other.name, feed.name)
    history = bound.tick()
    assert (history.ends, history.watermarks) == (
        {0: 1, 1: 1, MAX_PARTITIONS: 2, MAX_PARTITIONS + 1: 1},
        {"timestamp": kafka_time(3)},
    )
    assert bound.why().holders == (f"{other.name}-0",)


def test_what_is_not_committed_is_not_bound(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    feed.write(0, "a", at=1_000)
    feed.write(1, "a", at=1_000)
    open_one = feed.transaction(0, ["x", "y"], end="open")
    bound, uncommitted = bind(), bind(committed=False)
    history = bound.tick()
    assert (history.ends, history.watermarks) == ({0: 1, 1: 1}, {"timestamp": kafka_time(1)})
    assert uncommitted.tick().ends == {0: 3, 1: 1}
    open_one.commit_transaction(30)
    clock.advance(SECOND)
    wait_until(lambda: bound.tick(at_once=True).ends[0] == 4)
    feed.write(1, "b", at=999_000)
    assert bound.tick(at_once=True).watermarks == {"timestamp": kafka_time(900)}


def test_the_time_of_what_was_aborted_does_not_count(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    feed.write(0, "a", at=2_000)
    feed.write(1, "a", at=3_000)
    feed.transaction(0, ["x"], end="abort")
    feed.transaction(1, ["x"], end="abort", at=1)
    bound = bind()
    history = bound.tick()
    assert (history.ends, history.watermarks) == ({0: 3, 1: 3}, {"timestamp": kafka_time(2)})


def test_a_record_from_the_far_future_does_not_move_time(
    broker: KafkaBroker, topic_name: str, home: Home, clock: ManualClock
) -> None:
    # By default a broker refuses what is more than an hour ahead of its clock.
    feed = TopicFeed(broker.servers, topic_name, 2, **{"message.timestamp.after.max.ms": str(2**62)})
    clock.advance(kafka_time(0) - clock.now())
    feed.write(0, "a", at=5_000)
    feed.write(1, "b", at=7_000)
    feed.write(0, "from the year 2100", at=80 * 365 * 86_400_000)
    careless = BoundTopics(home, feed.cluster, [feed.name], source="careless")
    assert careless.tick(at_once=True).watermarks == {"timestamp": kafka_time(7)}, "the other partition holds it"
    careful = BoundTopics(home, feed.cluster, [feed.name], source="careful", rule=TimeRule(future=60 * SECOND))
    assert careful.tick(at_once=True).watermarks == {"timestamp": kafka_time(5)}


COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}


def clean_often(feed: TopicFeed) -> None:
    """Let the broker look for topics to compact every 100 ms instead of every 15 s."""
    entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    for done in feed.cluster._admin().incremental_alter_configs([resource]).values():
        done.result()


def offsets_left(feed: TopicFeed) -> list[int]:
    end = feed.cluster.ends(feed.name, [0])[0]
    return [record.offset() for records in Fetcher(feed.settings).read(feed.name, 0, 0, end) for record in records]


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_kafka_compacts_is_refused(broker: KafkaBroker, topic_name: str, home: Home, policy: str) -> None:
    feed = TopicFeed(broker.servers, topic_name, 1, **{"cleanup.policy": policy})
    with pytest.raises(TopicCompacted) as refusal:
        BoundTopics(home, feed.cluster, [feed.name])
    assert refusal.value.fields == {"topic": feed.name, "policy": policy}


def test_a_compacted_topic_that_is_accepted_loses_bound_records_and_no_timestamp_changes(
    broker: KafkaBroker, topic_name: str, home: Home, clock: ManualClock
) -> None:
    feed = TopicFeed(broker.servers, topic_name, 1, **COMPACTED)
    clean_often(feed)
    bound = BoundTopics(home, feed.cluster, [feed.name], compacted="accept")
    feed.write(0, "a", "b", "c", key="k")
    first = bound.tick()
    assert offsets_left(feed) == [0, 1, 2]
    clock.advance(2 * SECOND)

    later = itertools.count(1)

    def write_and_look() -> bool:
        # A segment is complete, and so may be compacted, once a record is 100 ms later than its first.
        feed.write(0, "d", key="k", at=1_000 * next(later))
        # What was bound first goes in one or several steps: each leaves the newest record of what it compacts.
        return offsets_left(feed)[0] > 2

    wait_until(write_and_look, pause=0.1)
    left = offsets_left(feed)
    second = bound.tick()
    assert second.cut_at(first.upper - 1) == {0: 3}, "and its timestamps are as they were"
    assert {second.ts_of(0, offset) for offset in left} == {first.upper}, "what is left has its own"


def test_a_topic_that_is_compacted_from_now_on_stops_its_readers(
    feed: TopicFeed, bind: Bind, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind()
    feed.write(0, "a")
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, feed.name, incremental_configs=[entry])
    for done in feed.cluster._admin().incremental_alter_configs([resource]).values():
        done.result()
    monkeypatch.setattr("floodmark.bindings.topics.bound_topics._POLICY_SECONDS", 0.0)
    with pytest.raises(TopicCompacted):
        bound.tick(at_once=True)


def test_a_topic_that_is_shorter_than_what_is_bound_is_refused(
    feed: TopicFeed, bind: Bind, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind()
    feed.write(0, "a", "b")
    bound.tick()
    clock.advance(SECOND)
    told = iter([{0: 1, 1: 0}, {0: 2, 1: 0}, *[{0: 1, 1: 0}] * 2])
    monkeypatch.setattr(feed.cluster, "ends", lambda *_, **__: next(told))
    assert bound.tick().ends == {0: 2, 1: 0}, "a broker that did not know better is asked again"
    with pytest.raises(SourceTruncated, match="ends at 1, but is bound up to 2"):
        bound.tick()


def test_a_trimmed_topic_begins_at_what_is_left(feed: TopicFeed, bind: Bind) -> None:
    feed.write(0, "a", "b", "c")
    feed.trim({0: 2})
    bound = bind()
    assert bound.resolve_offsets("earliest") == {0: 2, 1: 0}
    assert bound.resolve_offsets("latest") == {0: 3, 1: 0}
    assert bound.resolve_offsets(f'{{"{feed.name}": {{"0": -2, "1": -1}}}}') == {0: 2, 1: 0}
    with pytest.raises(TopicTrimmed, match="begins at 2"):
        bound.resolve_offsets(f'{{"{feed.name}": {{"0": 1, "1": 0}}}}')
    with pytest.raises(InvalidOption, match="ends at 0"):
        bound.resolve_offsets(f'{{"{feed.name}": {{"0": 2, "1": 1}}}}')


def test_times_that_are_read_count_from_the_next_binding_on(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind(rule=BY_COLUMN)
    feed.write(0, "a", "b")
    feed.write(1, "c")
    assert bound.tick().watermarks == {}
    bound.times.report({0: ReportedTime(70, 2)})
    assert bound.tick_time().watermarks == {}, "the other partition has said nothing"
    bound.times.report({1: ReportedTime(40, 1)})
    upper = bound.history().upper
    told = bound.tick_time()
    assert (told.ends, told.watermarks) == ({0: 2, 1: 1}, {"at": 40})
    assert told.watermark_before(upper) == {}
    assert bound.tick_time().upper == told.upper


def test_what_is_not_bound_yet_says_nothing_of_time(feed: TopicFeed, bind: Bind) -> None:
    bound = bind()
    feed.write(0, "a", at=1_000)
    feed.write(1, "a", at=1_000)
    before = bound.tick()
    feed.write(0, "b", at=9_000)
    feed.write(1, "b", at=9_000)
    assert (bound.tick_time().ends, bound.tick_time().watermarks) == (before.ends, before.watermarks)
    assert bound.tick(at_once=True).watermarks == {"timestamp": kafka_time(9)}


def test_a_partition_with_unread_rows_is_not_idle(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    bound = bind(rule=TimeRule(key="at", is_read=True, idle=10 * SECOND))
    feed.write(0, "a", "b")
    feed.write(1, "c")
    bound.tick()
    bound.times.report({0: ReportedTime(70, 2)})
    clock.advance(60 * SECOND)
    assert bound.tick().watermarks == {}
    assert [view.is_caught_up for view in bound.why().partitions] == [True, False]
    bound.skip_to({0: 0, 1: 1})
    assert bound.tick().watermarks == {"at": 70}


def test_reports_only_ever_raise_what_is_known(home: Home, bind: Bind) -> None:
    times = ReportedTimes(home, bind(rule=BY_COLUMN).source)
    for told in (ReportedTime(50, 3), ReportedTime(70, 2), ReportedTime(None, 5), ReportedTime(60, 1)):
        times.report({0: told})
    times.report({1: ReportedTime(None, 4)})
    assert times.read() == {0: ReportedTime(70, 5), 1: ReportedTime(None, 4)}


def test_marks_hold_where_their_cuts_are_passed(feed: TopicFeed, bind: Bind, clock: ManualClock) -> None:
    feed.create_marks()
    bound = bind()
    feed.write(0, "a", "b")
    feed.mark(1, 40, {0: 1, 1: 0})
    feed.mark(2, 90, {0: 2, 1: 1})
    feed.mark(2, 5_000, {0: 0, 1: 0})
    assert bound.tick().watermarks == {"timestamp": 40}, "a number that is not above the last is ignored"
    feed.write(1, "c")
    clock.advance(SECOND)
    assert bound.tick().watermarks == {"timestamp": 90}
    feed.mark(3, 2, {0: 2, 1: 1}, unit="s")
    clock.advance(SECOND)
    assert bound.tick().watermarks == {"timestamp": 2_000_000}
    assert bind().why().holders == (f"{feed.name}.marks",)
    assert "timestamp" not in bind(source="mine", marks="ignore", rule=BY_COLUMN).tick().watermarks


def test_a_mark_behind_what_is_bound_does_not_count_though_its_cut_is_there(feed: TopicFeed, bind: Bind) -> None:
    feed.create_marks()
    feed.write(0, "a")
    bound = bind()
    bound.tick()
    feed.write(0, "b")
    feed.mark(1, 40, {0: 1})
    feed.mark(2, 90, {0: 2})
    seen = bound._take_snapshot(bound.history())
    assert seen.watermark_status(bound.history(), seen.ends).watermark == 90
    assert bound.tick_time().watermarks == {"timestamp": 40}, "somebody has seen more, and has not bound it"
    assert bound.tick(at_once=True).watermarks == {"timestamp": 90}


def test_marks_of_several_keys_need_one_to_be_named(feed: TopicFeed, bind: Bind) -> None:
    feed.create_marks()
    feed.write(0, "a")
    feed.mark(1, 40, {0: 1}, key="at")
    feed.mark(1, 30, {0: 1}, key="paid")
    with pytest.raises(InvalidOption, match="has the time keys at, paid"):
        bind().tick()
    assert bind(marks_key="paid").tick().watermarks == {"timestamp": 30}


def test_marks_are_there_for_all_topics_or_for_none(feed: TopicFeed, bind: Bind) -> None:
    other = TopicFeed(feed.settings.servers, f"{feed.name}-b")
    with pytest.raises(UnknownTopic, match="has no marks topic"):
        bind(marks="require")
    feed.create_marks()
    with pytest.raises(InvalidOption, match="some have a marks topic"):
        bind(feed.name, other.name)
    other.create_marks()
    both = bind(feed.name, other.name, marks="require")
    feed.write(0, "a")
    feed.mark(1, 40, {0: 1})
    assert both.tick().watermarks == {}
    other.mark(1, 30, {0: 0})
    assert both.tick(at_once=True).watermarks == {"timestamp": 30}


@pytest.mark.usefixtures("short_requests")
def test_a_broker_that_is_away_is_an_error_in_bounded_time(home: Home) -> None:
    nowhere = KafkaCluster(KafkaSettings.of("127.0.0.1:1"), patience=0.5)
    start = time.monotonic()
    with pytest.raises(KafkaAway, match=r"127\.0\.0\.1:1"):
        BoundTopics(home, nowhere, ["orders"])
    assert time.monotonic() - start < 15
