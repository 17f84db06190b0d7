"""Parallel mode against a real broker: tasks end anywhere, run twice, and are followed by others."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from floodmark.control import Home
from floodmark.errors import SinkBatchInvalid, SinkFenced, SinkGroupsUnequal, SinkLayoutChanged, SinkTopicUnfit
from floodmark.kafka import KafkaSettings
from floodmark.sinks import (
    Batch,
    Begin,
    GroupedSink,
    GroupedTarget,
    GroupLayout,
    GroupResult,
    GroupWriter,
    Resume,
    Sinks,
)
from floodmark.testing import KafkaBroker
from support.examples import is_full
from support.kafka.kafka_homes import Hook, Stopped
from support.sinks.group_process import OPTIONS, PLACES, TWO, everything, numbered, rows_for, work
from support.sinks.sink_places import START, batch, place
from support.sinks.sink_process import bind, chain
from support.sinks.sink_topics import Topics

THREE = GroupLayout(partitions=4, groups=3)
IN_A_TASK = (
    "sink: fenced",
    "sink: started",
    "sink: before the transaction",
    "sink: some rows sent",
    "sink: rows flushed",
    "sink: progress flushed",
    "sink: committed",
)


@pytest.fixture
def topics(broker: KafkaBroker, topic_name: str) -> Topics:
    return Topics(broker.servers, topic_name)


@pytest.fixture
def opened(broker: KafkaBroker, topic_name: str) -> Iterator[Any]:
    made: list[GroupedTarget] = []

    def make(layout: GroupLayout = TWO) -> GroupedTarget:
        made.append(GroupedTarget(KafkaSettings.of(broker.url), topic_name, "K", layout, OPTIONS))
        return made[-1]

    yield make
    for target in made:
        target.close()


def whole(target: GroupedTarget, given: Batch) -> None:
    results = [work(writer, given) for writer in target.writers(given)]
    if results:
        target.close_batch(given, results, watermarks={"at": 100 * (given.ends["S"].ts or 0)})


def test_groups_write_and_the_driver_closes(opened: Any, topics: Topics) -> None:
    target = opened()
    assert target.start(everything) == Begin(topics.topic)
    whole(target, numbered(1))
    whole(target, numbered(2))
    assert target.writers(numbered(2)) == [], "all of it was written"
    again = opened()
    assert isinstance(again.start(everything), Resume)
    assert again.writers(numbered(2)) == []
    whole(again, numbered(3))
    assert topics.numbers() == list(range(30))
    assert [mark.lower for mark in topics.marks()] == [100, 200, 300]
    told = [(progress.start, progress.rows, progress.total) for progress in topics.progress()]
    assert told == [(1, 0, 0), (1, 10, 10), (1, 10, 20), (2, 10, 20), (2, 10, 30)]


@pytest.mark.parametrize("layout", [TWO, THREE], ids=["the same layout", "another layout"])
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_tasks_of_an_earlier_driver_write_nothing_once_another_has_started(
    opened: Any, topics: Topics, layout: GroupLayout, stateful: bool
) -> None:
    """However late they come: before the new driver has written, while it writes, and when it has ended."""
    target, given = opened(), replace(numbered(1), is_stateful=stateful)
    target.start(everything)
    late = target.writers(given)
    successor = opened(layout)
    successor.start(everything, query_id="q2")
    for writer in late:
        with pytest.raises(SinkFenced):
            work(writer, given)
    # The new query cuts its batches otherwise.
    for first, last in ((START, (1, 5)), ((1, 5), (2, 20)), ((2, 20), (3, 30))):
        whole(successor, batch(place(S=first), place(S=last), stateful=stateful, query_id="q2"))
        for writer in late:
            with pytest.raises(SinkFenced):
                work(writer, given)
    assert topics.numbers() == list(range(30))
    assert isinstance(opened(layout).start(everything, query_id="q2"), Resume)


def test_the_driver_that_started_last_goes_on_if_an_earlier_one_comes_back(
    home: Home, opened: Any, topics: Topics
) -> None:
    bind(home)
    places = chain(home)
    paused = opened()
    earlier = GroupedSink(home, paused)
    earlier.start("q1")
    newest = GroupedSink(home, opened())
    newest.start("q2")
    given = Batch.of("q2", {"S": (places[0], places[1])}, is_stateful=False)
    runs: list[int] = []

    def run(writers: Sequence[GroupWriter]) -> list[GroupResult]:
        if not runs:
            paused.forget_fence()
            paused.start(everything)
        runs.append(len(writers))
        return [work(writer, given) for writer in writers]

    assert newest.write(given, run).rows == 10
    assert len(runs) == 2
    with pytest.raises(SinkFenced):
        earlier.start("q1")
    assert topics.numbers() == list(range(10))


@pytest.mark.parametrize("place_", IN_A_TASK)
@pytest.mark.parametrize("group", [0, 1])
def test_a_task_that_ends_anywhere_is_followed_by_one_that_writes_the_rest(
    opened: Any, topics: Topics, place_: str, group: int
) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    writers, hook = target.writers(given), Hook()
    hook.stop_at(place_)
    with pytest.raises(Stopped):
        work(writers[group], given, hook)
    with pytest.raises(SinkGroupsUnequal):
        target.close_batch(given, [])
    successor = opened()
    successor.start(everything)
    whole(successor, given)
    assert topics.numbers() == list(range(10))
    assert topics.progress()[-1].total == 10


def test_of_two_attempts_at_a_task_one_writes(opened: Any, topics: Topics) -> None:
    target, given, hook = opened(), numbered(1), Hook()
    target.start(everything)
    first, second = target.writers(given)
    late: list[GroupResult] = []
    hook.at("sink: rows flushed", lambda: late.append(work(first, given)))
    with pytest.raises(SinkFenced):
        work(first, given, hook)
    assert work(first, given) == replace(late[0], rows=0), "it was written, and is not again"
    target.close_batch(given, [late[0], work(second, given)])
    assert topics.numbers() == list(range(10))


def test_what_all_groups_have_written_is_closed_by_the_next_driver(opened: Any, topics: Topics) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    for writer in target.writers(given):
        work(writer, given)
    successor = opened(THREE)
    start = successor.start(everything)
    assert isinstance(start, Resume)
    assert (start.progress.total, start.progress.ends, start.progress.layout) == (
        10,
        given.ends,
        THREE._replace(version=2),
    )
    whole(successor, numbered(2))
    assert topics.numbers() == list(range(20))
    assert topics.progress()[-1].total == 20


def test_a_layout_changes_only_when_all_groups_are_equally_far(opened: Any, topics: Topics) -> None:
    target = opened()
    target.start(everything)
    whole(target, numbered(1))
    writers = target.writers(numbered(2))
    work(writers[0], numbered(2))
    with pytest.raises(SinkLayoutChanged):
        opened(THREE).start(everything)
    same = opened()
    same.start(everything)
    with pytest.raises(SinkFenced):
        work(writers[1], numbered(2), _fencing(same))
    whole(same, numbered(2))
    other = opened(THREE)
    other.start(everything)
    whole(other, numbered(3))
    assert topics.numbers() == list(range(30))
    assert topics.progress()[-1].total == 30


def _fencing(driver: GroupedTarget) -> Hook:
    """Let a driver start while a task has its rows sent."""
    hook = Hook()
    hook.at("sink: rows flushed", lambda: driver.start(everything))
    return hook


def test_rows_without_state_are_cut_otherwise_by_another_query(opened: Any, topics: Topics) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    work(target.writers(given)[0], given)
    successor = opened()
    successor.start(everything, query_id="q2")
    wide = batch(place(S=START), place(S=(3, 25)), stateful=False, query_id="q2")
    results = []
    for writer in successor.writers(wide):
        written = writer.base if writer.group else None
        pieces = [
            [row for row in piece if written is not None or int(row[1] or b"") >= 10]
            for piece in rows_for(writer, wide)
        ]
        results.append(writer.write(lambda _, pieces=pieces: pieces, wide))
    successor.close_batch(wide, results)
    assert topics.numbers() == list(range(25))
    assert topics.progress()[-1].total == 25


def test_a_batch_that_ends_before_what_a_group_has_written_is_closed(opened: Any, topics: Topics) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    work(target.writers(given)[0], given)
    for end, starts in (((1, 4), START), ((1, 10), (1, 4))):
        successor = opened()
        successor.start(everything, query_id="q2")
        whole(successor, batch(place(S=starts), place(S=end), stateful=False, query_id="q2"))
    whole(successor, numbered(2))
    assert topics.numbers() == list(range(20))
    assert topics.progress()[-1].total == 20


def test_a_topic_with_too_few_partitions_for_a_layout_is_refused(opened: Any, topics: Topics) -> None:
    topics.cluster.create_topic(topics.topic, 3, {})
    with pytest.raises(SinkTopicUnfit):
        opened().start(everything)


def test_windows_that_are_written_in_part_are_left_to_the_query_that_wrote_them(opened: Any, topics: Topics) -> None:
    target = opened()
    target.start(everything)
    whole(target, numbered(1, stateful=True))
    given = numbered(2, stateful=True)
    work(target.writers(given)[1], given)
    with pytest.raises(SinkGroupsUnequal):
        opened().start(everything, query_id="q2")
    same = opened()
    same.start(everything, query_id="q1")
    assert [stop.position["S"].ts for stop in same.batch_stops(place(S=(1, 10)), is_stateful=True)] == [2]
    whole(same, given)
    assert same.batch_stops(place(S=(2, 20)), is_stateful=True) == ()
    assert topics.numbers() == list(range(20))


def test_another_query_that_has_built_its_state_is_taken_on_by_all_groups(opened: Any, topics: Topics) -> None:
    target = opened()
    target.start(everything)
    whole(target, numbered(1, stateful=True))
    whole(target, numbered(2, stateful=True))
    for number in (1, 2, 3):
        whole(target, numbered(number, stateful=True, query_id="q2"))
    assert topics.numbers() == list(range(30))
    assert [(one.query_id, one.rows, one.total) for one in topics.progress()][-2:] == [("q2", 10, 20), ("q2", 10, 30)]


def test_a_sink_of_groups_holds_what_it_needs_and_is_known_to_its_home(home: Home, opened: Any, topics: Topics) -> None:
    bind(home)
    places, sinks = chain(home), Sinks(home)
    for number in range(1, 4):
        sink = GroupedSink(home, opened())
        sink.start("q1")
        given = Batch.of("q1", {"S": (places[number - 1], places[number])}, is_stateful=False)

        def run(writers: Sequence[GroupWriter], given: Batch = given) -> list[GroupResult]:
            return [work(writer, given) for writer in writers]

        assert sink.write(given, run).rows == 10
        assert sink.write(given, run).rows == 0
        assert [hold.ts for hold in sinks.holds("K")] == [max((places[number].ts or 0) - 1, places[1].ts or 0)]
    assert (sinks.get("K").mode, sinks.get("K").progress) == ("parallel", topics.progress()[-1])
    assert topics.numbers() == list(range(30))


def test_a_row_that_came_to_the_wrong_group_is_refused(opened: Any, topics: Topics) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    writer = target.writers(given)[0]
    for partition in (1, None, 4):
        with pytest.raises(SinkBatchInvalid, match="came to group 0 of 2"):
            writer.write(lambda _, at=partition: [[(b"k", b"1", 1, at, None)]], given)
    assert topics.numbers() == []


def test_a_writer_can_be_sent_to_another_process(opened: Any) -> None:
    target = opened()
    target.start(everything)
    for writer in target.writers(numbered(1)):
        assert pickle.loads(pickle.dumps(writer)) == writer


@pytest.mark.parametrize("seed", range(4 if is_full() else 1))
def test_whatever_ends_where_each_row_is_there_once(opened: Any, topics: Topics, seed: int) -> None:
    dice = Random(seed)
    target, number = opened(), 1
    target.start(everything)
    while number < len(PLACES):
        given = numbered(number)
        results: list[GroupResult] = []
        writers = target.writers(given)
        for writer in writers:
            hook = Hook()
            if dice.random() < 0.5:
                hook.stop_at(dice.choice(IN_A_TASK))
            try:
                results.append(work(writer, given, hook))
            except Stopped:
                if dice.random() < 0.5:
                    results.append(work(writer, given))
        try:
            if writers:
                target.close_batch(given, results)
            number += 1
        except SinkGroupsUnequal:
            target = opened()
            target.start(everything)
        if dice.random() < 0.2:
            number = max(number - 1, 1)
    assert topics.numbers() == list(range(40))
    assert topics.progress()[-1].total == 40
