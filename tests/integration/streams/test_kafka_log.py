"""The log in Kafka, where it differs from one in tables: transactions (K5, K6), topics, and others who use them."""

import time
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import (
    EventInvalid,
    StreamDeleted,
    StreamExists,
    TopicRecreated,
    ValueUndecodable,
)
from floodmark.kafka import KafkaCluster, MarkRecord
from floodmark.streams import Controller, StreamHome, connect
from floodmark.streams.groups.requests import StreamSubscription
from floodmark.streams.kafka.connections import StreamTopics
from floodmark.streams.kafka.records import SEAL
from floodmark.testing import KafkaBroker, ManualClock
from support.kafka.kafka_homes import (
    CONSUMER,
    PRODUCER,
    Hook,
    Opener,
    Stopped,
    console,
    foreign_producer,
    in_thread,
    numbers_in,
    topic_of,
    write_by_hand,
)
from support.waiting import wait_until

# Transactions: K5, K6


def test_a_transaction_that_meets_a_seal_is_written_again_as_a_whole(opening: Opener, broker: KafkaBroker) -> None:
    """K5: else a part of it would lie behind the end of a segment."""
    hook, other = Hook(), opening()
    stream = opening(hook).create_stream("s", segments=2)
    writer = stream.transactional_writer("w")
    transaction = writer.begin()
    transaction.write_batch(list(range(20)), key=[f"key-{number}" for number in range(20)])
    hook.at("commit: sent", lambda: other.stream("s").merge([0, 1]))
    result = transaction.commit()
    assert numbers_in(stream) == list(range(20))
    assert list(result.position) == [2]


@pytest.mark.parametrize("place", ["commit: begun", "commit: sent", "commit: committed"])
def test_a_commit_is_brought_to_its_end_once_whoever_died_over_it(opening: Opener, place: str) -> None:
    hook, other = Hook(), opening()
    stream = opening(hook).create_stream("s", segments=2)
    writer = stream.transactional_writer("w")
    transaction = writer.begin()
    transaction.write_batch(list(range(20)), key=[f"key-{number}" for number in range(20)])
    hook.stop_at(place)
    with pytest.raises(Stopped):
        transaction.commit(time=5)
    other.local.maintain_topics(range(32))
    assert sorted(numbers_in(stream)) == list(range(20))
    result = transaction.result()
    assert (result.outcome is not None and result.outcome.value) == "accepted"
    assert stream.why().writers[0].time == 5


@pytest.mark.parametrize("place", ["commit: asked", "commit: begun", "commit: sent", "commit: committed"])
def test_a_commit_that_another_has_brought_to_its_end_meanwhile_is_not_done_again(opening: Opener, place: str) -> None:
    """Who was slow finds that the other is done, or is fenced; what was kept of the transaction is gone by then."""
    hook, other = Hook(), opening()
    stream = opening(hook).create_stream("s", segments=2)
    transaction = stream.transactional_writer("w").begin()
    transaction.write_batch(list(range(20)), key=[f"key-{number}" for number in range(20)])
    hook.at(place, lambda: other.local.maintain_topics(range(32)))
    result = transaction.commit(time=5)
    assert sorted(numbers_in(stream)) == list(range(20))
    assert (result.outcome is not None and result.outcome.value) == "accepted"
    assert stream.why().writers[0].time == 5


def test_a_commit_that_is_hidden_by_another_transaction_is_not_taken_for_none(
    opening: Opener, broker: KafkaBroker
) -> None:
    """Whoever goes on with it waits until it can be seen; else it would be there twice."""
    hook, other = Hook(), opening()
    stream = opening(hook).create_stream("s")
    hiding = foreign_producer(broker.servers, transactional_id=topic_of(stream))
    hiding.init_transactions(20)
    transaction = stream.transactional_writer("w").begin()
    transaction.write_batch([1, 2, 3])

    def hide() -> None:
        hiding.begin_transaction()
        hiding.produce(topic_of(stream), b"9", partition=0)
        hiding.flush(10)

    hook.at("commit: begun", hide)
    hook.stop_at("commit: committed")
    with pytest.raises(Stopped):
        transaction.commit()
    thread, outcome = in_thread(lambda: other.local.maintain_topics(range(32)))
    time.sleep(0.5)
    assert outcome == []
    hiding.abort_transaction(20)
    thread.join(20)
    assert (outcome, numbers_in(stream)) == ([True], [1, 2, 3])


@pytest.mark.parametrize("ending", ["committed", "aborted"])
def test_an_open_transaction_hides_what_comes_after_it(opening: Opener, broker: KafkaBroker, ending: str) -> None:
    """K6: only what is committed counts, and a sealed segment is read to its end, however long that takes."""
    home = opening()
    stream = home.create_stream("s")
    producer = foreign_producer(broker.servers, transactional_id=topic_of(stream))
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic_of(stream), str(number).encode(), partition=0)
    producer.flush(10)
    with stream.writer("w") as writer:
        writer.write(3)
    assert (stream.ends(), numbers_in(stream)) == ({0: 0}, [])
    stream.split(0)
    assert stream.ends()[0] == 4
    thread, outcome = in_thread(lambda: numbers_in(stream))
    time.sleep(0.5)
    assert outcome == []
    if ending == "committed":
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)
    thread.join(20)
    assert outcome == [[0, 1, 2, 3] if ending == "committed" else [3]]


# Topics


def test_for_a_name_that_is_taken_no_topic_is_made(opening: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    home, made = opening(), []
    home.create_stream("s")
    monkeypatch.setattr(StreamTopics, "make", lambda *asked: made.append(asked))
    with pytest.raises(StreamExists):
        home.create_stream("s")
    assert made == []


def test_of_a_stream_that_another_process_has_deleted_no_end_is_told(opening: Opener) -> None:
    """Who waits for news finds that it is gone, and gets no error on the way."""
    home = opening()
    stream = home.create_stream("s")
    known = StreamSubscription(stream.info.id, stream.info.version, stream.ends(), {})
    assert home.local._ends_in_kafka(known) == {0: 0}
    opening().stream("s").delete()
    assert home.local._ends_in_kafka(known) is None


def test_the_topics_of_a_stream_come_and_go_with_it(opening: Opener, cluster: KafkaCluster) -> None:
    home = opening()
    stream = home.create_stream("shop/come-and-go", segments=3)
    topic = topic_of(stream)
    assert cluster.topic(topic).partitions == 3
    assert f"{topic}.marks" in cluster.topics()
    with pytest.raises(StreamExists):
        home.create_stream("shop/come-and-go")
    assert [name for name in cluster.topics() if name.startswith("floodmark.shop.come-and-go-")] == [
        topic,
        f"{topic}.marks",
    ]
    stream.delete()
    wait_until(lambda: topic not in cluster.topics())
    with pytest.raises(StreamDeleted):
        stream.ends()


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(opening: Opener, cluster: KafkaCluster) -> None:
    stream = opening().create_stream("s")
    topic = topic_of(stream)
    cluster.delete_topics([topic])
    wait_until(lambda: topic not in cluster.topics())
    cluster.create_topic(topic, 1, {})
    with pytest.raises(TopicRecreated):
        opening().stream("s").ends()


def test_streams_stay_where_they_were_made(opening: Opener, tmp_path: Path) -> None:
    opening().create_stream("in/kafka")
    with connect(tmp_path / "home", controller=False) as plain:
        assert plain.create_stream("in/the/home").info.log is None
        for name in ("in/kafka", "in/the/home"):
            with plain.stream(name).writer("w") as writer:
                writer.write(1)
            assert numbers_in(plain.stream(name)) == [1]
        assert plain.stream("in/kafka").info.log is not None


def test_an_event_that_is_too_large_is_refused_and_the_others_are_not_touched(opening: Opener) -> None:
    stream = opening().create_stream("s")
    with stream.writer("w") as writer:
        writer.write(b"1")
        writer.flush()
        large = stream.writer("large")
        large.write(b"x" * (16 * 2**20))
        with pytest.raises(EventInvalid):
            large.flush()
        writer.write(b"2" + b" " * (2 * 2**20))
    assert numbers_in(stream) == [1, 2]


# Others who use Kafka


def test_kafkas_own_consumer_reads_what_a_writer_has_written(opening: Opener, broker: KafkaBroker) -> None:
    stream = opening().create_stream("s", "id BIGINT, customer STRING, at TIMESTAMP", time_columns="at")
    with stream.writer("w") as writer:
        writer.write_batch([{"id": 1, "customer": 'a "b"', "at": 0}, {"id": 2, "customer": None, "at": 1_500_000}])
    options = ("--bootstrap-server", broker.servers, "--topic", topic_of(stream), "--from-beginning")
    said = console(CONSUMER, *options, "--max-messages", "2", "--isolation-level", "read_committed")
    first, second = said.splitlines()
    assert first == r'{"id":1,"customer":"a \"b\"","at":"1970-01-01T00:00:00.000000Z"}'
    assert '"id":2' in second
    assert '"at":"1970-01-01T00:00:01.500000Z"' in second


def test_what_kafkas_own_producer_has_written_is_read(opening: Opener, broker: KafkaBroker) -> None:
    home = opening()
    plain, typed = home.create_stream("plain"), home.create_stream("typed", "id BIGINT")
    for stream, lines in ((plain, "1\n2\n"), (typed, '{"id": 7}\n{"id":8,"more":1}\n')):
        console(PRODUCER, "--bootstrap-server", broker.servers, "--topic", topic_of(stream), given=lines)
    assert numbers_in(plain) == [1, 2]
    assert [row["id"] for chunk in typed.read(0) for row in chunk.batch.to_pylist()] == [7, 8]


@pytest.mark.parametrize("value", [b"7", b"{", b'{"id": "x"}', None])
def test_a_record_that_is_no_event_is_never_passed_over(opening: Opener, broker: KafkaBroker, value: Any) -> None:
    stream = opening().create_stream("s", "id BIGINT")
    with stream.writer("w") as writer:
        writer.write({"id": 1})
    write_by_hand(broker, stream, value)
    with pytest.raises(ValueUndecodable) as refusal:
        list(stream.read(0))
    assert refusal.value.fields["place"] == 1


def test_a_record_that_ends_a_segment_is_no_event(opening: Opener, broker: KafkaBroker) -> None:
    """Whoever writes one by hand seals nothing by it: only the store can."""
    stream = opening().create_stream("s")
    write_by_hand(broker, stream, b"", headers=[(SEAL, b"1")])
    with stream.writer("w") as writer:
        writer.write(1)
    assert (numbers_in(stream), stream.ends()) == ([1], {0: 2})


def test_marks_retention_also_deletes_records_of_the_marks_topic(broker: KafkaBroker, tmp_path: Path) -> None:
    clock = ManualClock(10**12)

    def opened() -> StreamHome:
        return connect(tmp_path / "home", controller=False, clock=clock.now, log=broker.url)

    def mark(home: StreamHome, *times: int) -> None:
        controller = Controller(home)
        with home.stream("s").writer("w") as writer:
            for moment in times:
                clock.advance(60_000_000)
                writer.write({"id": moment})
                writer.note_time(moment)
                controller.step()

    def published(home: StreamHome) -> list[int]:
        topic = f"{topic_of(home.stream('s'))}.marks"
        connection = home.local._connections.to(broker.servers)
        begin, end = connection.cluster.starts(topic, [0])[0], connection.cluster.ends(topic, [0])[0]
        records = [record for part in connection.committed.read(topic, 0, begin, end) for record in part]
        return [MarkRecord.load(record.value()).seq for record in records]

    with opened() as home:
        options = {"writer_timeout": "1 day", "rate_floor": "0 seconds", "marks_retention": "70 seconds"}
        stream = home.create_stream("s", "id BIGINT", **options)  # type: ignore[arg-type]
        mark(home, 100, 200, 300, 400, 500)
        assert [entry.lower for entry in stream.marks()] == [400, 500]
        assert published(home)[-1] == 5
        assert 1 not in published(home)
        assert set(published(home)) >= {entry.seq for entry in stream.marks()}
    # A process that takes over finds the last record in what is left, and continues the numbers.
    with opened() as home:
        mark(home, 600, 700)
        numbers = published(home)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[-1] == home.stream("s").marks()[-1].seq
        assert numbers[0] > 2
