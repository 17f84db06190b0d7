"""The log in Kafka, where it differs from one that is kept in tables: sealing, unknown outcomes, transactions."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import (
    EventInvalid,
    KafkaAway,
    StreamDeleted,
    StreamExists,
    StreamSealed,
    TopicRecreated,
    ValueUndecodable,
)
from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.streams import Stream, StreamHome, connect
from floodmark.streams.kafka_log._records import SEAL
from floodmark.streams.kafka_log._sending import Outgoing
from floodmark.testing import KafkaBroker
from kafka_homes import CONSUMER, PRODUCER, Hook, Stopped, console, foreign_producer, numbers_in, open_home, topic_of

Opener = Callable[..., StreamHome]


@pytest.fixture
def opening(broker: KafkaBroker, tmp_path: Path) -> Iterator[Opener]:
    """Give what opens the same home again, as another process would."""
    opened: list[StreamHome] = []

    def again(hook: Callable[[str], None] = lambda place: None) -> StreamHome:
        opened.append(open_home(str(tmp_path / "home"), broker.servers, hook))
        return opened[-1]

    yield again
    for home in opened:
        home.close()


@pytest.fixture
def cluster(broker: KafkaBroker) -> KafkaCluster:
    return KafkaCluster(KafkaSettings.of(broker.url))


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.005)


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


# Sealing: K1


def test_an_attempt_at_sealing_that_was_taken_over_does_not_say_where_the_segment_ends(opening: Opener) -> None:
    """K1: else what was acknowledged between the two records that end the segment would be lost."""
    hook, other, third = Hook(), opening(), opening()
    first = opening(hook)
    stream = first.create_stream("s")
    writer = third.stream("s").writer("w")
    threads: list[Any] = []

    def write_then_take_over() -> None:
        writer.write(7)
        threads.append(in_thread(writer.flush))
        wait_until(lambda: uncommitted_end(third, "s") >= 2)
        other.local.kafka_log._sealing.finish(other.stream("s").info)

    hook.at("seal: record written", write_then_take_over)
    stream.split(0)
    threads[0][0].join(20)
    assert (threads[0][1], numbers_in(stream)) == ([None], [7])
    assert stream.ends()[0] == 2, "the second record ends it, behind the event"


def test_who_wakes_up_from_a_sealing_that_is_over_does_not_end_the_next_one(opening: Opener) -> None:
    """K1: it has waited so long that the same stream is being sealed again."""
    hook, second = Hook(), Hook()
    first, other, third = opening(hook), opening(second), opening()
    stream = first.create_stream("s")

    def finish_and_begin_the_next() -> None:
        other.local.kafka_log._sealing.finish(other.stream("s").info)
        second.stop_at("seal: taken")
        with pytest.raises(Stopped):
            other.stream("s").split(1)

    hook.at("seal: record written", finish_and_begin_the_next)
    with third.stream("s").writer("w") as writer:
        writer.write(1, key="a")
        writer.flush()
        stream.split(0)
        writer.write(2, key="a")
        writer.flush()
    layout = third.stream("s").layout
    assert [segment.id for segment in layout.current] == [3, 4, 2]
    assert (third.stream("s").ends()[0], third.stream("s").ends()[1]) == (2, 0)
    assert numbers_in(third.stream("s")) == [1, 2]


def before_sending(home: StreamHome, stream: Stream, action: Callable[[], object]) -> None:
    """Let something happen once, after the next flush was routed and before it is sent."""
    connection, _ = home.local.kafka_log._connections.of(stream.info)
    send = connection.sender.send

    def late(topic: str, records: Any) -> Any:
        connection.sender.send = send  # type: ignore[method-assign]
        action()
        return send(topic, records)

    connection.sender.send = late  # type: ignore[method-assign]


def uncommitted_end(home: StreamHome, name: str, segment: int = 0) -> int:
    stream = home.stream(name)
    connection, topic = home.local.kafka_log._connections.of(stream.info)
    return connection.cluster.ends(topic, [segment], committed=False)[segment]


@pytest.mark.parametrize("place", ["seal: begun", "seal: taken", "seal: record written"])
@pytest.mark.parametrize("who", ["a controller", "a writer", "another scale", "a reader"])
def test_what_somebody_who_died_has_begun_to_seal_is_brought_to_its_end(opening: Opener, place: str, who: str) -> None:
    """K1: whoever takes over finishes every sealing it finds."""
    hook, other = Hook(), opening()
    first = opening(hook)
    stream = first.create_stream("s")
    with other.stream("s").writer("w") as writer:
        writer.write(1)
        writer.flush()
        hook.stop_at(place)
        with pytest.raises(Stopped):
            stream.split(0)
        if who == "a controller":
            other.local.tend_topics(range(32))
            assert other.stream("s").layout.is_sealed(0), "nobody has to ask"
        elif who == "another scale":
            other.stream("s").split(1)
        elif who == "a reader":
            assert other.stream("s").ends()[0] >= 1
        writer.write(2)
        writer.flush()
    assert numbers_in(other.stream("s")) == [1, 2]
    assert other.stream("s").layout.is_sealed(0)


def test_while_a_stream_is_scaled_its_settings_may_change(opening: Opener) -> None:
    hook = Hook()
    home = opening(hook)
    stream = home.create_stream("s")
    other = opening().stream("s")
    hook.at("seal: begun", lambda: other.alter(writer_timeout="5 seconds"))
    stream.split(0)
    assert stream.settings.writer_timeout == 5_000_000
    assert len(stream.layout.current) == 2


# Writers and the seal: K2, K4


def test_an_event_that_kafka_has_before_the_seal_counts_though_its_writer_was_stopped(opening: Opener) -> None:
    """K2: the writer is stopped between Kafka's acknowledgement and its own, and the segment is sealed meanwhile."""
    hook, other = Hook(), opening()
    stream = other.create_stream("s")
    writer = opening(hook).stream("s").writer("w")
    hook.at("append: acknowledged", lambda: stream.split(0))
    writer.write(1)
    writer.flush()
    writer.write(2)
    writer.flush()
    assert numbers_in(stream) == [1, 2]
    assert stream.ends()[0] == 1


def test_an_event_that_comes_behind_the_seal_goes_to_the_successor(opening: Opener) -> None:
    """K2: it was sent by an old layout, and Kafka has taken it."""
    other, home = opening(), opening()
    stream = other.create_stream("s")
    writer = home.stream("s").writer("w")
    writer.write(1)
    writer.flush()
    before_sending(home, stream, lambda: stream.split(0))
    writer.write(2)
    writer.flush()
    assert uncommitted_end(other, "s") == 3, "an event, the seal, and an event that does not count"
    assert (numbers_in(stream), stream.ends()[0]) == ([1, 2], 1)


def test_of_a_flush_that_meets_the_seal_each_event_is_there_once_and_in_order(opening: Opener) -> None:
    """K4: what lies before the seal counts, the rest goes on in its order."""
    hook, other = Hook(), opening()
    stream = other.create_stream("s", segments=2)
    writing = opening(hook)
    writer = writing.stream("s").writer("w")
    connection, _ = writing.local.kafka_log._connections.of(stream.info)
    send = connection.sender.send

    def half(topic: str, records: Any) -> Any:
        """Send half of the records, seal, and send the other half: as if the seal had come between."""
        headers = list(records.headers)
        columns = (records.partitions, records.keys, records.values, headers)
        connection.sender.send = send  # type: ignore[method-assign]
        send(topic, Outgoing(*(column[:50] for column in columns))).wait(10)
        stream.merge([0, 1])
        flight = send(topic, Outgoing(*(column[50:] for column in columns)))
        flight.wait(10)
        return flight

    connection.sender.send = half  # type: ignore[method-assign]
    keys = [f"key-{number % 7}" for number in range(100)]
    writer.write_batch(list(range(100)), key=keys)
    writer.flush()
    found = numbers_in(stream)
    assert sorted(found) == list(range(100))
    for key in range(7):
        assert [number for number in found if number % 7 == key] == list(range(key, 100, 7))
    assert writer.events_written == 100


@pytest.mark.parametrize("how", ["split", "seal"])
def test_a_reader_does_not_take_for_the_end_what_came_behind_the_seal(
    opening: Opener, broker: KafkaBroker, how: str
) -> None:
    """K2: it asks Kafka first and the store afterwards."""
    hook, other = Hook(), opening()
    stream = opening(hook).create_stream("s")

    def seal_and_write_on() -> None:
        if how == "split":
            other.stream("s").split(0)
        else:
            other.stream("s").seal()
        write_by_hand(broker, stream, b"9")

    hook.at("ends: seen", seal_and_write_on)
    assert stream.ends()[0] == 0
    assert stream.ends()[0] == 0
    assert list(stream.read(0, 0, 100)) == []


def test_a_reader_reads_no_further_than_what_was_there_when_the_segment_was_open(
    opening: Opener, broker: KafkaBroker
) -> None:
    """K2: the segment is sealed, and somebody writes on, after it was seen open."""
    home, other = opening(), opening()
    stream = home.create_stream("s")
    sealing = home.local.kafka_log._sealing
    sealed = sealing.sealed

    def late(*args: Any) -> Any:
        states = sealed(*args)
        other.stream("s").split(0)
        write_by_hand(broker, stream, b"9")
        return states

    sealing.sealed = late  # type: ignore[method-assign]
    assert list(stream.read(0, 0, 100)) == []


def write_by_hand(broker: KafkaBroker, stream: Stream, value: bytes | None, **more: Any) -> None:
    """Write a record to the first partition of a stream, past all writers."""
    producer = foreign_producer(broker.servers)
    producer.produce(topic_of(stream), value, partition=0, **more)
    assert producer.flush(10) == 0


def test_an_event_for_a_stream_that_is_sealed_is_refused(opening: Opener) -> None:
    stream = opening().create_stream("s", segments=2)
    writer = opening().stream("s").writer("w")
    stream.seal()
    writer.write(1)
    with pytest.raises(StreamSealed):
        writer.flush()
    assert numbers_in(stream) == []


# Outcomes that are not known: K3


@pytest.mark.parametrize("place", ["append: sent", "append: acknowledged"])
def test_a_writer_that_died_before_it_heard_of_its_events_finds_them(opening: Opener, place: str) -> None:
    """K3: Kafka has the events, the store does not know."""
    hook = Hook()
    home = opening(hook)
    stream = home.create_stream("s", segments=3)
    writer = stream.writer("w")
    writer.write_batch(list(range(10)), key=[str(number) for number in range(10)])
    writer.flush()
    hook.stop_at(place)
    writer.write_batch(list(range(10, 30)), key=[str(number) for number in range(10, 30)])
    with pytest.raises(Stopped):
        writer.flush()
    wait_until(lambda: sum(uncommitted_end(home, "s", segment) for segment in range(3)) == 30)
    again = opening().stream("s").writer("w")
    assert again.events_written == 30
    again.write(30)
    again.flush()
    assert sorted(numbers_in(stream)) == list(range(31))


@pytest.mark.parametrize("portion", [40, 3])
def test_of_a_flush_that_came_half_only_the_other_half_is_written_again(opening: Opener, portion: int) -> None:
    """K3: what is there is told by the numbers in the records, in whatever portions the events come again."""
    home = opening()
    stream = home.create_stream("s", segments=2)
    writer = stream.writer("w")
    connection, _ = home.local.kafka_log._connections.of(stream.info)
    send = connection.sender.send

    def half(topic: str, records: Any) -> Any:
        places = [place for place, partition in enumerate(records.partitions) if partition == 0]
        columns = (records.partitions, records.keys, records.values, list(records.headers))
        send(topic, Outgoing(*([column[place] for place in places] for column in columns))).wait(10)
        raise Stopped

    connection.sender.send = half  # type: ignore[method-assign]
    keys = [f"key-{number}" for number in range(40)]
    writer.write_batch(list(range(40)), key=keys)
    with pytest.raises(Stopped):
        writer.flush()
    other = opening().stream("s")
    half_there = numbers_in(other)
    assert 0 < len(half_there) < 40
    again = other.writer("w")
    first = again.events_written
    assert list(range(first)) == sorted(half_there)[:first], "all before it are there"
    assert first not in half_there
    for start in range(first, 40, portion):
        again.write_batch(list(range(start, min(start + portion, 40))), key=keys[start : min(start + portion, 40)])
        again.flush()
        # Whoever takes over in the middle knows as much.
        again._backend = opening().local
    assert sorted(numbers_in(other)) == list(range(40))
    assert (again.events_written, other.writer("w").events_written) == (40, 40)


def test_another_process_that_takes_a_flush_over_writes_what_is_missing(opening: Opener) -> None:
    """As services do, one of which dies: the same events come to another one, under the same numbers."""
    hook, other = Hook(), opening()
    home = opening(hook)
    stream = home.create_stream("s")
    writer = stream.writer("w")
    writer.write(1)
    hook.stop_at("append: acknowledged")
    with pytest.raises(Stopped):
        writer.flush()
    writer._backend = other.local
    writer.flush()
    writer.write(2)
    writer.flush()
    assert numbers_in(stream) == [1, 2]
    # And back: what the first one knew of the writer is not true any more.
    writer._backend = home.local
    writer.write(3)
    writer.flush()
    assert numbers_in(stream) == [1, 2, 3]


def away_once(home: StreamHome, stream: Stream) -> None:
    """Let Kafka be away for the next one who waits for records to arrive."""
    connection, _ = home.local.kafka_log._connections.of(stream.info)
    arrived = connection.arrived

    def away(topic: str, flight: Any) -> Any:
        connection.arrived = arrived  # type: ignore[method-assign]
        raise KafkaAway("Kafka is away.", rule="It is asked again.", remedy="Wait.")

    connection.arrived = away  # type: ignore[method-assign]


def test_a_writer_that_is_opened_again_waits_for_what_is_still_under_way(opening: Opener) -> None:
    """Else the events would come after it was looked which ones are there, and once more."""
    home = opening()
    stream = home.create_stream("s")
    older = stream.writer("w")
    older.write(1)
    away_once(home, stream)
    with pytest.raises(KafkaAway):
        older.flush()
    newer = stream.writer("w")
    assert newer.events_written == 1
    newer.write(2)
    newer.flush()
    assert numbers_in(stream) == [1, 2]


def test_a_flush_that_took_too_long_goes_on_and_comes_once(opening: Opener) -> None:
    home = opening()
    stream = home.create_stream("s")
    writer = stream.writer("w")
    writer.write(1)
    away_once(home, stream)
    with pytest.raises(KafkaAway):
        writer.flush()
    writer.flush()
    assert (numbers_in(stream), uncommitted_end(home, "s")) == ([1], 1)


def test_a_writer_that_was_closed_well_needs_no_search(opening: Opener) -> None:
    home = opening()
    stream = home.create_stream("s")
    with stream.writer("w") as writer:
        writer.write(1)
    log = home.local.kafka_log
    searched: list[int] = []
    numbers = log._numbers
    log._numbers = lambda *args: searched.append(1) or numbers(*args)  # type: ignore[method-assign, func-returns-value]
    with stream.writer("w") as writer:
        assert writer.events_written == 1
        writer.write(2)
    assert (searched, numbers_in(stream)) == ([], [1, 2])


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
    other.local.tend_topics(range(32))
    assert sorted(numbers_in(stream)) == list(range(20))
    result = transaction.result()
    assert (result.outcome is not None and result.outcome.value) == "accepted"
    assert stream.why().writers[0].time == 5


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
