"""Reading with a group: each event once, predecessors before successors, up to the end, from both stores."""

from collections.abc import Callable

import pytest

from floodmark.streams import StreamHome
from floodmark.streams.readers import reader as _reader
from support.streams.group_tools import NOW, counts, crash, drain, fill, payloads, settle


def test_readers_share_the_segments_and_read_each_event_once(home: StreamHome) -> None:
    home.create_stream("s", segments=7)
    fill(home, "s", 500)
    group = home.create_group("g", "s")
    with group.reader("a") as a, group.reader("b") as b, group.reader("c") as c:
        settle(a, b, c)
        assert counts(group) == [2, 2, 3]
        assert sorted(drain(a, b, c)) == list(range(500))
        fill(home, "s", 100, first=500)
        assert sorted(drain(a, b, c)) == list(range(500, 600))
    assert group.cut()["s"].cut == home.stream("s").tail()
    assert group.readers() == ()


def test_batches_have_at_most_so_many_rows_and_lie_side_by_side(home: StreamHome) -> None:
    home.create_stream("s")
    fill(home, "s", 100)
    with home.create_group("g", "s").reader("r", max_rows=30) as reader:
        ranges = []
        while (batch := reader.read(NOW)) is not None:
            assert len(batch) == batch.end - batch.first
            ranges.append((batch.stream, batch.segment, batch.first, batch.end))
    assert ranges == [("s", 0, 0, 30), ("s", 0, 30, 60), ("s", 0, 60, 90), ("s", 0, 90, 100)]


def test_a_reader_that_gets_a_segment_of_which_it_has_not_heard_goes_on(
    home: StreamHome, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s")
    fill(home, "s", 5)
    with home.create_group("g", "s").reader("r") as reader:
        assert len(reader.read(NOW) or ()) == 5
        new_home().stream("s").split(0)
        # What is acknowledged is the end of a segment that is sealed by now: the store gives the ones after it.
        reader.acknowledge()
        fill(home, "s", 7, first=5)
        assert sorted(drain(reader)) == list(range(5, 12))
    assert stream.layout.epoch == 1


def test_segments_are_read_in_turn(home: StreamHome) -> None:
    home.create_stream("s", segments=3)
    fill(home, "s", 60)
    with home.create_group("g", "s").reader("r", max_rows=2) as reader:
        segments = [batch.segment for batch in (reader.read(NOW) for _ in range(9)) if batch is not None]
    assert segments == [0, 1, 2] * 3


def test_what_was_read_to_the_end_is_reported_before_it_is_due(
    home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reader, "_SYNC_SECONDS", 60.0)
    home.create_stream("s")
    fill(home, "s", 5)
    group = home.create_group("g", "s")
    with group.reader("r") as reader:
        assert reader.read(NOW) is not None
        assert reader.read("500 milliseconds") is None
        assert group.cut()["s"].cut == {0: 5}


def test_what_was_not_acknowledged_is_read_again(home: StreamHome) -> None:
    home.create_stream("s")
    fill(home, "s", 4)
    group = home.create_group("g", "s")

    def fail_in_the_second_batch() -> None:
        with group.reader("r", max_rows=2) as reader:
            for batch in reader:
                assert payloads(batch) == [0, 1], "an error of the application"

    with pytest.raises(AssertionError, match="an error of the application"):
        fail_in_the_second_batch()
    assert group.cut()["s"].cut == {0: 2}
    with group.reader("r") as reader:
        assert drain(reader) == [2, 3]
    with group.reader("r") as reader:
        assert drain(reader) == []


def test_a_reader_that_crashed_is_replaced_from_its_acknowledged_position(
    home: StreamHome, clock: object, new_home: Callable[[], StreamHome]
) -> None:
    home.create_stream("s", segments=2)
    fill(home, "s", 40)
    group = home.create_group("g", "s")
    dead = new_home().group("g").reader("dead", max_rows=5, ttl="10 seconds")
    first = [payloads(dead.read(NOW)) for _ in range(3)]  # type: ignore[arg-type]
    dead.acknowledge()
    lost = payloads(dead.read(NOW))  # type: ignore[arg-type]
    crash(dead)
    with group.reader("other") as other:
        assert drain(other) == []
        clock.advance(10_000_000)  # type: ignore[attr-defined]
        settle(other)
        rest = drain(other)
    done = [number for batch in first for number in batch]
    assert sorted(done + rest) == list(range(40))
    assert set(lost) <= set(rest)


def test_iteration_ends_when_a_sealed_stream_is_read(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=2)
    fill(home, "s", 10)
    stream.split(0)
    fill(home, "s", 10, first=10)
    stream.seal()
    group = home.create_group("g", "s")
    with group.reader("r") as reader:
        found = [number for batch in reader for number in payloads(batch)]
        assert reader.is_finished
    assert sorted(found) == list(range(20))
    assert group.is_finished
