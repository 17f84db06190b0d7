"""Sealing a segment of Kafka, while writers write and readers read: K1, K2, K4."""

from typing import Any

import pytest

from floodmark.errors import (
    StreamSealed,
)
from floodmark.streams.kafka.connections import OutgoingRecords
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import (
    Hook,
    Opener,
    Stopped,
    before_sending,
    in_thread,
    numbers_in,
    uncommitted_end,
    write_by_hand,
)
from support.waiting import wait_until

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
        other.local.kafka_log._sealer.finish(other.stream("s").info)

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
        other.local.kafka_log._sealer.finish(other.stream("s").info)
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
            other.local.maintain_topics(range(32))
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
        send(topic, OutgoingRecords(*(column[:50] for column in columns))).wait(10)
        stream.merge([0, 1])
        flight = send(topic, OutgoingRecords(*(column[50:] for column in columns)))
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
    sealing = home.local.kafka_log._sealer
    sealed = sealing.await_sealed

    def late(*args: Any) -> Any:
        states = sealed(*args)
        other.stream("s").split(0)
        write_by_hand(broker, stream, b"9")
        return states

    sealing.await_sealed = late  # type: ignore[assignment, method-assign]
    assert list(stream.read(0, 0, 100)) == []


def test_an_event_for_a_stream_that_is_sealed_is_refused(opening: Opener) -> None:
    stream = opening().create_stream("s", segments=2)
    writer = opening().stream("s").writer("w")
    stream.seal()
    writer.write(1)
    with pytest.raises(StreamSealed):
        writer.flush()
    assert numbers_in(stream) == []
