"""A topic as a target, against a real broker: what it refuses, where rows go, how transactions are cut."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodmark.bindings import SourceOffset
from floodmark.control import Home
from floodmark.errors import (
    InvalidOption,
    KafkaAway,
    SinkBatchInvalid,
    SinkBindingsMissing,
    SinkFenced,
    SinkProgressInvalid,
    SinkProgressMissing,
    SinkTimedOut,
    SinkTopicMissing,
    SinkTopicUnfit,
    SinkVersionOld,
    StateError,
)
from floodmark.kafka import KafkaSettings
from floodmark.sinks import (
    Batch,
    Begin,
    BeginElsewhere,
    CommitPoint,
    KafkaTarget,
    OutRow,
    Resume,
    Sink,
    TargetOptions,
    Write,
    partition_of,
)
from floodmark.sinks.kafka.rows import OutRows, RowColumns
from floodmark.sinks.kafka.target import SinkProducer
from floodmark.sinks.kafka.topics import ProgressTopicReader
from floodmark.sinks.startup import SourceBounds
from floodmark.testing import KafkaBroker
from support.examples import examples
from support.kafka.kafka_homes import foreign_producer
from support.sinks.sink_places import START, Spot, batch, place
from support.sinks.sink_process import bind, chain
from support.sinks.sink_topics import Topics

FAST = TargetOptions(partitions=2, timeout=10.0)


def everything(sources: Any) -> dict[str, SourceBounds]:
    return {source: SourceBounds(0, 0, 10**18) for source in sources}


@pytest.fixture
def topics(broker: KafkaBroker, topic_name: str) -> Topics:
    return Topics(broker.servers, topic_name)


@pytest.fixture
def opened(broker: KafkaBroker, topic_name: str) -> Iterator[Any]:
    """Give what makes a target, as another process would."""
    made: list[KafkaTarget] = []

    def make(options: TargetOptions = FAST, hook: Any = lambda place: None, sink: str = "K") -> KafkaTarget:
        made.append(KafkaTarget(KafkaSettings.of(broker.url), topic_name, sink, options, failpoint=hook))
        return made[-1]

    yield make
    for target in made:
        target.close()


@pytest.mark.parametrize("append", [False, True], ids=["begins", "appends"])
def test_progress_that_the_home_knows_and_the_progress_topic_has_lost_is_not_begun_anew(
    home: Home, opened: Any, topics: Topics, append: bool
) -> None:
    bind(home)
    places = chain(home)
    sink = Sink(home, opened(replace(FAST, append=append)))
    sink.start()
    sink.write(Batch.of("q1", {"S": (places[0], places[1])}, is_stateful=False), lambda _: rows(0, 10, 1))
    sink.close()
    topics.cluster.delete_topics([f"{topics.topic}.progress"])
    with pytest.raises(SinkProgressInvalid, match=r"has written 10 rows, but its progress topic .* records 0"):
        Sink(home, opened(replace(FAST, append=append))).start()
    # A topic that was deleted with its progress topic begins anew.
    topics.cluster.delete_topics([topics.topic])
    assert Sink(home, opened(replace(FAST, append=append))).start() == Begin(topics.topic)


def test_the_process_that_started_last_writes_although_an_earlier_one_has_fenced_it(
    home: Home, opened: Any, topics: Topics
) -> None:
    bind(home)
    places = chain(home)
    batches = [Batch.of("q1", {"S": (places[n], places[n + 1])}, is_stateful=False) for n in range(2)]
    paused = opened()
    earlier = Sink(home, paused)
    earlier.start()
    newest = Sink(home, opened())
    newest.start()
    for number, given in enumerate(batches):
        # As if it had been paused just before it fences: it finds out when it has done so.
        paused.forget_fence()
        paused.start(everything)
        with pytest.raises(SinkFenced):
            earlier.start()
        outcome = newest.write(given, lambda _, n=number: rows(10 * n, 10 * n + 10, n + 1))  # type: ignore[misc]
        assert outcome.rows == 10
    with pytest.raises(SinkFenced):
        earlier.start()
    assert topics.numbers() == list(range(20))


def rows(first: int, last: int, ts: int) -> list[list[OutRow]]:
    return [[(f"k{number}".encode(), str(number).encode(), ts, None, None) for number in range(first, last)]]


def one(start: Spot, end: Spot) -> Batch:
    return batch(place(S=start), place(S=end), stateful=False)


def begun(target: KafkaTarget) -> KafkaTarget:
    target.start(everything)
    target.write(rows(0, 10, 1), one(START, (1, 10)), watermarks={"at": 100})
    return target


def test_a_row_goes_where_other_clients_put_its_key_and_has_its_timestamp(opened: Any, topics: Topics) -> None:
    target = opened(replace(FAST, partitions=5))
    target.start(everything)
    keys = [*(f"key-{number}".encode() for number in range(50)), b"", None]
    given: list[OutRow] = [(key, str(number).encode(), 7, None, None) for number, key in enumerate(keys)]
    given.append((b"key-0", b"99", 7, 4, [("source", b"S")]))
    target.write([given], one(START, (7, 53)))
    found = {int(record.value()): record for record in topics.records(topics.topic, committed=True)}
    assert {number: found[number].partition() for number in range(52)} == {
        number: partition_of(key, 5) for number, key in enumerate(keys)
    }
    assert (found[99].partition(), found[99].headers()) == (4, [("source", b"S"), ("floodmark.ts", b"7")])
    assert found[0].headers() == [("floodmark.ts", b"7")]


def test_a_batch_without_rows_is_recorded_and_time_goes_on(opened: Any, topics: Topics) -> None:
    target = begun(opened())
    progress = target.write([], one((1, 10), (2, 10)), watermarks={"at": 150})
    assert (progress.rows, progress.total, progress.ends["S"].ts) == (0, 10, 2)
    assert [(mark.lower, mark.seq, mark.writers) for mark in topics.marks()] == [(100, 1, ("K",)), (150, 2, ("K",))]
    target.write([], one((2, 10), (3, 10)), watermarks={"at": 150})
    assert len(topics.marks()) == 2, "time that stands is not told again"
    again = opened()
    start = again.start(everything)
    assert isinstance(start, Resume)
    assert start.progress == target.progress


def test_a_mark_covers_the_rows_before_it(opened: Any, topics: Topics) -> None:
    begun(opened())
    (mark,) = topics.marks()
    ends = {record.partition(): record.offset() + 1 for record in topics.records(topics.topic, committed=True)}
    assert mark.cut == ends


def test_a_target_that_is_not_started_writes_nothing(opened: Any) -> None:
    with pytest.raises(StateError, match="not started"):
        opened().write([], one(START, (1, 10)))


def test_after_an_error_in_the_rows_nothing_is_seen_and_the_target_starts_again(opened: Any, topics: Topics) -> None:
    target = begun(opened())

    def broken() -> Iterator[list[OutRow]]:
        yield rows(10, 15, 2)[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        target.write(broken(), one((1, 10), (2, 20)))
    with pytest.raises(StateError, match="not started"):
        target.write([], one((1, 10), (2, 20)))
    topics.check(10)
    assert isinstance(target.start(everything), Resume)
    target.write(rows(10, 20, 2), one((1, 10), (2, 20)), watermarks={"at": 200})
    topics.check(20)


def test_a_transaction_does_not_begin_before_there_are_rows(opened: Any) -> None:
    """Else the time that Spark takes to compute them would count."""
    target = opened(replace(FAST, timeout=1.0))
    target.start(everything)

    def slowly() -> Iterator[list[OutRow]]:
        time.sleep(1.5)
        yield from rows(0, 10, 1)

    assert target.write(slowly(), one(START, (1, 10))).total == 10


def test_after_two_transactions_that_took_too_long_a_sink_ends(opened: Any, topics: Topics) -> None:
    target = opened(replace(FAST, timeout=1.0))
    target.start(everything)

    def slowly() -> Iterator[list[OutRow]]:
        yield from rows(0, 5, 1)
        time.sleep(1.2)
        yield from rows(5, 10, 1)

    for again in (True, False):
        told = r"had 10 rows after 1\.\d s, and its timeout is 1 s; the brokers allow 900 s"
        with pytest.raises(SinkTimedOut, match=told) as caught:
            target.write(slowly(), one(START, (1, 10)))
        assert caught.value.fields["again"] is again
        if again:
            target.start(everything)
    with pytest.raises(SinkTimedOut):
        target.start(everything)
    topics.check(0)


def test_a_batch_in_time_ends_the_count_of_those_that_were_not(opened: Any) -> None:
    target = opened(replace(FAST, timeout=1.0))

    def slowly() -> Iterator[list[OutRow]]:
        yield from rows(0, 5, 1)
        time.sleep(1.2)

    for _ in range(2):
        target.start(everything)
        with pytest.raises(SinkTimedOut):
            target.write(slowly(), one((1, 10), (2, 15)) if target.progress else one(START, (1, 10)))
        target.start(everything)
        first = target.progress.ends["S"] if target.progress else SourceOffset("q", None, {})
        target.write([], Batch("q1", {"S": first}, {"S": SourceOffset("q", (first.ts or 0) + 1, {0: 10})}, False))


@pytest.mark.parametrize("has_written", [False, True], ids=["before it writes", "after it has written"])
def test_a_sink_that_took_too_long_does_not_fence_the_one_that_took_over(
    home: Home, opened: Any, topics: Topics, has_written: bool
) -> None:
    bind(home)
    places = chain(home)
    slow, quick = Sink(home, opened(replace(FAST, timeout=1.0))), Sink(home, opened())
    slow.start()
    given = Batch.of("q1", {"S": (places[0], places[1])}, is_stateful=False)

    def slowly(_: object) -> Iterator[list[OutRow]]:
        yield from rows(0, 5, 1)
        quick.start()
        if has_written:
            quick.write(given, lambda _: rows(0, 10, 1))
        time.sleep(1.2)
        yield from rows(5, 10, 1)

    with pytest.raises(SinkTimedOut):
        slow.write(given, slowly)
    with pytest.raises(SinkFenced):
        slow.start()
    assert quick.write(given, lambda _: rows(0, 10, 1)).rows == (0 if has_written else 10)
    assert topics.numbers() == list(range(10))


def test_the_older_of_two_processes_is_fenced_for_good(opened: Any, topics: Topics) -> None:
    """Scenarios 23 and 34: it does not fence the other one in turn."""
    older = begun(opened())
    newer = opened()
    newer.start(everything)
    for _ in range(2):
        with pytest.raises(SinkFenced):
            older.write(rows(10, 20, 2), one((1, 10), (2, 20)))
    with pytest.raises(SinkFenced):
        older.start(everything)
    newer.write(rows(10, 20, 2), one((1, 10), (2, 20)), watermarks={"at": 200})
    topics.check(20)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_producer_that_is_fenced_says_so_whatever_is_asked_of_it(topics: Topics, bulk: bool) -> None:
    topics.cluster.create_topic(topics.topic, 1, {})

    def make() -> SinkProducer:
        return SinkProducer(topics.settings, f"id-{topics.topic}", "K", timeout=10.0, linger=0.0, bulk=bulk)

    older = make()
    older.begin()

    def send(first: int) -> None:
        texts = pa.array([b"%d" % number for number in range(first, first + 5)])
        older.send(topics.topic, RowColumns(texts, texts, pa.array([1] * 5)), stamp=not bulk)

    send(0)
    older.flush()
    make()

    def go_on() -> None:
        # Kafka may say so before the last of them is sent.
        send(5)
        older.flush()

    with pytest.raises(SinkFenced):
        go_on()
    refused: list[Callable[[], Any]] = [
        lambda: send(5),
        lambda: older.put(topics.topic, b"v", b"k", 0),
        older.commit,
        older.abort,
    ]
    for ask in refused:
        with pytest.raises(SinkFenced):
            ask()


def test_two_sinks_do_not_fence_each_other(opened: Any, topics: Topics) -> None:
    one_sink = begun(opened(replace(FAST, marks=False)))
    other = opened(replace(FAST, marks=False, append=True), sink="L")
    assert other.start(everything) == Begin(topics.topic)
    other.write(rows(0, 10, 1), one(START, (1, 10)))
    one_sink.write(rows(10, 20, 2), one((1, 10), (2, 20)))
    assert (_total(one_sink), _total(other), len(topics.rows())) == (20, 10, 30)


def limited(**limits: int) -> TargetOptions:
    return replace(FAST, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (limited(max_rows=15), [2, 4, 5]),
        (limited(max_rows=10), [1, 2, 3, 4, 5]),
        (limited(max_rows=1_000), [5]),
        (limited(max_bytes=70), [2, 4, 5]),
        (FAST, [5]),
    ],
)
def test_a_large_batch_is_cut_between_timestamps(
    opened: Any, topics: Topics, options: TargetOptions, expected: list[int]
) -> None:
    target = opened(options)
    target.start(everything)
    pieces = [
        [(b"k%d" % number, b"%03d" % number, number // 10 + 1, None, None) for number in range(first, first + 7)]
        for first in range(0, 49, 7)
    ] + [[(b"k", b"049", 5, None, None)]]

    def split(ts: int) -> CommitPoint:
        return CommitPoint(place(S=(ts, ts * 10)), {"at": ts * 100})

    target.write(pieces, one(START, (5, 50)), Write(), watermarks={"at": 500}, split=split)
    told = topics.progress()
    assert [progress.ends["S"].ts for progress in told] == expected
    assert [progress.starts["S"].ts for progress in told] == [None, *expected[:-1]]
    assert (sum(progress.rows for progress in told), told[-1].total) == (50, 50)
    assert [mark.lower for mark in topics.marks()] == [ts * 100 for ts in expected]
    assert topics.numbers() == list(range(50))


def test_windows_are_not_cut(opened: Any, topics: Topics) -> None:
    target = opened(limited(max_rows=1))
    target.start(everything)
    given = batch(place(S=START), place(S=(2, 20)), stateful=True)
    target.write([*rows(0, 5, 1), *rows(5, 9, 2)], given, split=lambda ts: CommitPoint(place(S=(ts, 9))))
    assert [progress.rows for progress in topics.progress()] == [9]


def test_rows_out_of_order_are_not_cut(opened: Any, topics: Topics) -> None:
    target = opened(limited(max_rows=1))
    target.start(everything)
    with pytest.raises(SinkBatchInvalid, match="timestamp 1 comes after one of 2"):
        target.write(
            [*rows(0, 5, 2), *rows(5, 9, 1)], one(START, (2, 9)), split=lambda ts: CommitPoint(place(S=(ts, 9)))
        )
    topics.check(0)


# What it finds when it starts.


def test_a_sink_that_finds_records_and_no_progress_refuses_unless_it_may_append(opened: Any, topics: Topics) -> None:
    """Scenario 31."""
    begun(opened())
    topics.cluster.delete_topics([f"{topics.topic}.progress"])
    time.sleep(0.5)
    with pytest.raises(SinkProgressMissing):
        opened().start(everything)
    assert len(topics.rows()) == 10
    target = opened(replace(FAST, append=True))
    assert target.start(everything) == Begin(topics.topic)
    target.write(rows(10, 20, 2), one((1, 10), (2, 20)), watermarks={"at": 200})
    assert [mark.seq for mark in topics.marks()] == [1, 2], "the numbers of marks go on"


def test_a_sink_whose_topic_is_gone_or_made_anew_refuses(opened: Any, topics: Topics) -> None:
    begun(opened())
    topics.cluster.delete_topics([topics.topic])
    time.sleep(0.5)
    with pytest.raises(SinkTopicMissing, match="is gone"):
        opened().start(everything)
    topics.cluster.create_topic(topics.topic, 2, {})
    with pytest.raises(SinkTopicMissing, match="created again"):
        opened().start(everything)


def test_a_sink_without_bindings_refuses_or_begins_elsewhere_and_goes_on_there(opened: Any, topics: Topics) -> None:
    """Scenario 30."""
    begun(opened())
    with pytest.raises(SinkBindingsMissing):
        opened().start(lambda sources: {})
    by_choice = replace(FAST, on_missing_bindings="nonce")
    target = opened(by_choice)
    start = target.start(lambda sources: {})
    assert isinstance(start, BeginElsewhere)
    assert start.topic == target.topic != topics.topic
    target.write(rows(0, 5, 1), one(START, (1, 5)))
    again = opened(by_choice)
    resumed = again.start(everything)
    assert isinstance(resumed, Resume)
    assert resumed.progress == target.progress
    assert again.topic == start.topic
    assert (len(topics.rows()), again.progress.total) == (10, 5), "the topic is as it was"


def test_a_newer_version_ends_the_older(opened: Any) -> None:
    """Scenario 39."""
    begun(opened(replace(FAST, version=2)))
    with pytest.raises(SinkVersionOld, match="ours=1 theirs=2"):
        opened().start(everything)


@pytest.mark.parametrize(
    ("partitions", "settings"), [(2, {"cleanup.policy": "compact"}), (1, {}), (1, {"cleanup.policy": "compact,delete"})]
)
def test_a_progress_topic_that_could_lose_its_order_or_its_records_is_refused(
    opened: Any, topics: Topics, partitions: int, settings: dict[str, str]
) -> None:
    topics.cluster.create_topic(f"{topics.topic}.progress", partitions, settings)
    with pytest.raises(SinkTopicUnfit):
        opened().start(everything)


def test_a_marks_topic_of_several_partitions_is_refused(opened: Any, topics: Topics) -> None:
    topics.cluster.create_topic(f"{topics.topic}.marks", 2, {})
    with pytest.raises(SinkTopicUnfit):
        opened().start(everything)


def test_a_record_of_its_own_that_cannot_be_read_stops_a_sink(opened: Any, topics: Topics, broker: KafkaBroker) -> None:
    begun(opened())
    foreign = foreign_producer(broker.servers)
    foreign.produce(f"{topics.topic}.progress", b"?", b"other")
    foreign.flush(10)
    assert isinstance(opened().start(everything), Resume)
    foreign.produce(f"{topics.topic}.progress", b"?", b"K")
    foreign.flush(10)
    with pytest.raises(SinkProgressInvalid):
        opened().start(everything)


def test_progress_that_vanished_under_a_running_sink_is_an_error(opened: Any, topics: Topics) -> None:
    target = begun(opened())
    topics.cluster.delete_topics([f"{topics.topic}.progress"])
    time.sleep(0.5)
    with pytest.raises(SinkProgressInvalid, match="has written 10 rows"):
        target.start(everything)


def test_a_scan_waits_for_open_transactions_and_does_not_take_them_for_the_end(
    opened: Any, topics: Topics, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: what an open transaction hides may be its own, and running out of time is not "no progress"."""
    topic = f"{topics.topic}.progress"
    begun(opened())
    foreign = foreign_producer(broker.servers, transactional_id=f"other-{topic}", transaction_timeout_ms=60_000)
    foreign.init_transactions(30)
    foreign.begin_transaction()
    foreign.produce(topic, b"{}", b"other")
    foreign.flush(10)
    own = foreign_producer(broker.servers)
    newest = replace(topics.progress()[-1], total=11)
    own.produce(topic, newest.save(), b"K")
    own.flush(10)
    monkeypatch.setattr("floodmark.sinks.kafka.topics.CLEANUP_SECONDS", 1.0)
    scan = ProgressTopicReader(topics.settings, topic, timeout=0.5)
    with pytest.raises(KafkaAway, match="could not be read up to"):
        scan.read("K", topics.cluster)
    threading.Timer(0.7, lambda: foreign.commit_transaction(10)).start()
    patient = ProgressTopicReader(topics.settings, topic, timeout=20)
    assert patient.read("K", topics.cluster)["K"] == newest


@pytest.mark.parametrize("option", ["version", "partitions", "timeout", "max_rows", "max_bytes"])
def test_options_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        TargetOptions(**{option: 0})  # type: ignore[arg-type]


# With a broker of its own.


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_million_rows_go_through_one_transaction_in_little_memory(opened: Any, topics: Topics, is_bulk: bool) -> None:
    """Scenario 38."""
    target = opened(replace(FAST, timeout=60.0, stamp=not is_bulk, headers=not is_bulk))
    target.start(everything)
    value, rows = b"x" * 100, examples(1_000_000)

    def pieces() -> Iterator[OutRows]:
        for first in range(0, rows, 10_000):
            keys = [b"%d" % number for number in range(first, first + 10_000)]
            if is_bulk:
                yield RowColumns(pa.array(keys), pa.array([value] * 10_000), pa.array([1] * 10_000))
            else:
                yield [(key, value, 1, None, None) for key in keys]

    before = _resident()
    progress = target.write(pieces(), one(START, (1, rows)))
    assert _resident() - before < 500
    assert progress.total == rows
    assert len(topics.progress()) == 1
    assert sum(topics.cluster.ends(topics.topic, range(2)).values()) >= rows


def _resident() -> float:
    """Return the megabytes that this process has in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1_024
    raise AssertionError(json.dumps("no VmRSS"))


def _total(target: KafkaTarget) -> int:
    assert target.progress is not None
    return target.progress.total
