"""Events of which their writer has never heard whether Kafka has them: K3."""

from typing import Any

import pytest

from floodmark.errors import (
    KafkaAway,
)
from floodmark.streams.kafka.connections import OutgoingRecords
from support.kafka.kafka_homes import Hook, Opener, Stopped, away_once, numbers_in, uncommitted_end
from support.waiting import wait_until


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
        send(topic, OutgoingRecords(*([column[place] for place in places] for column in columns))).wait(10)
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


def test_what_another_process_has_tried_in_between_is_not_overlooked(opening: Opener) -> None:
    """The other one dies over the very event that the first one would have written next."""
    hook, home = Hook(), opening()
    other = opening(hook)
    writer = home.create_stream("s").writer("w")
    writer.write(1)
    writer.flush()
    writer.write(2)
    writer._backend = other.local
    hook.stop_at("append: acknowledged")
    with pytest.raises(Stopped):
        writer.flush()
    writer._backend = home.local
    writer.flush()
    assert numbers_in(home.stream("s")) == [1, 2]


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
    numbers = log._read_numbers
    log._read_numbers = lambda *args: searched.append(1) or numbers(*args)  # type: ignore[method-assign, func-returns-value]
    with stream.writer("w") as writer:
        assert writer.events_written == 1
        writer.write(2)
    assert (searched, numbers_in(stream)) == ([], [1, 2])


def test_only_what_came_after_the_last_flush_is_searched(opening: Opener) -> None:
    home = opening()
    stream = home.create_stream("s")
    writer = stream.writer("w")
    for number in range(3):
        writer.write(number)
        writer.flush()
    log = opening().local.kafka_log
    searched: list[tuple[int, int]] = []
    numbers = log._read_numbers

    def searching(stream: Any, segment: int, start: int, end: int, writer: str) -> Any:
        searched.append((start, end))
        return numbers(stream, segment, start, end, writer)

    log._read_numbers = searching  # type: ignore[method-assign]
    log._resume(stream.info, writer._opened.author, 3)
    assert searched == [(3, 3)]
