"""Where readers and groups are in time: on real stores, with marks that writers have noted."""

import time
from typing import Any

import pytest

from floodmark.errors import ReaderClosed, StreamNotInGroup, UnknownKey
from floodmark.streams import Reader, Stream, StreamHome, TimeWindow, Writer
from support.streams.group_tools import NOW, crash, drain, payloads, settle
from support.waiting import wait_until


def window(reader: Any, stream: str | None = None, key: str | None = None) -> tuple[int | None, int | None] | None:
    found = reader.time_window(stream, key)
    return None if found is None else (found.lower, found.upper)


def mark(stream: Stream, writer: Writer, at: int) -> None:
    writer.note_time(at)
    stream.await_mark(at)


def key_in(stream: Stream, segment: int) -> str:
    """Return a key that belongs to a segment."""
    return next(key for key in map(str, range(1_000)) if stream.layout.route(key).id == segment)


def one_row(reader: Reader) -> int:
    batch = reader.read(NOW)
    assert batch is not None
    (row,) = payloads(batch)
    return int(row)


def test_s_39_the_window_after_a_read_is_that_of_what_was_read_before(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=2)
    keys = [key_in(stream, 0), key_in(stream, 1)]
    with stream.writer("w") as writer:
        mark(stream, writer, 0)
        for at, segment in ((100, 0), (200, 1), (300, 1), (400, 1)):
            writer.write(at, key=keys[segment])
            mark(stream, writer, at)
        group = live.create_group("g", "s")
        with group.reader("r", max_rows=1) as reader:
            assert window(reader) == (0, 100)
            found = []
            while (batch := reader.read(NOW)) is not None:
                found.append((batch.segment, payloads(batch)[0], window(reader)))
            assert found == [(0, 100, (0, 100)), (1, 200, (100, 200)), (1, 300, (200, 300)), (1, 400, (300, 400))]
            assert window(reader) == (400, None)
            reader.acknowledge()
            assert window(group) == (400, None)


def test_s_49_without_marks_nothing_is_known(live: StreamHome) -> None:
    live.create_stream("s")
    group = live.create_group("g", "s")
    with group.reader("r") as reader:
        assert (window(reader), window(group)) == (None, None)


def test_past_the_word_that_all_writers_had_gone_there_is_no_window(live: StreamHome) -> None:
    stream = live.create_stream("s")
    with stream.writer("w") as writer:
        writer.write(1)
        mark(stream, writer, 10)
    wait_until(lambda: len(stream.marks()) == 2)
    with live.create_group("g", "s").reader("r") as reader, stream.writer("again") as again:
        drain(reader)
        assert window(reader) is None
        mark(stream, again, 20)
        assert window(reader) == (20, None)


def test_all_readers_come_to_the_same_window_and_one_without_segments_holds_nothing(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=2)
    keys = [key_in(stream, 0), key_in(stream, 1)]
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("a") as a, group.reader("b") as b, group.reader("c") as c:
        settle(a, b, c)
        assert sorted(len(reader.segments) for reader in (a, b, c)) == [0, 1, 1]
        for key in keys:
            writer.write(1, key=key)
        mark(stream, writer, 10)
        drain(a)
        settle(a, b, c)
        assert {window(reader) for reader in (a, b, c, group)} == {(None, 10)}, "b has not read its segment"
        drain(b)
        settle(a, b, c)
        assert {window(reader) for reader in (a, b, c, group)} == {(10, None)}


def test_segments_that_nobody_reads_hold_the_window(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=2)
    group = live.create_group("g", "s")
    with stream.writer("w") as writer:
        for segment in (0, 1):
            writer.write(1, key=key_in(stream, segment))
        mark(stream, writer, 10)
        a, b = group.reader("a"), group.reader("b", ttl="5 minutes")
        settle(a, b)
        drain(a)
        crash(b)
        settle(a)
        assert window(a) == (None, 10)
        group.expel("b")
        drain(a)
        assert window(a) == (10, None)
        a.close()


def test_what_a_dead_reader_had_not_reported_is_not_passed(live: StreamHome) -> None:
    """The window is never ahead of what will be read again."""
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer:
        writer.write(1)
        mark(stream, writer, 10)
        dead = group.reader("dead")
        one_row(dead)
        dead._acknowledge()
        assert window(dead) == (10, None)
        crash(dead)
        assert window(group) == (None, 10)
        group.expel("dead")
        with group.reader("r") as reader:
            assert window(reader) == (None, 10)
            assert one_row(reader) == 1


def test_a_window_crosses_a_scale_without_a_checkpoint(live: StreamHome) -> None:
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("r") as reader:
        writer.write(1)
        mark(stream, writer, 10)
        stream.split(0)
        for segment in (1, 2):
            writer.write(2, key=key_in(stream, segment))
        mark(stream, writer, 20)
        stream.merge([1, 2])
        writer.write(3)
        mark(stream, writer, 30)
        assert sorted(drain(reader)) == [1, 2, 2, 3]
        assert window(reader) == (30, None)
        reader.acknowledge()
        assert group.cut()["s"].cut == {3: 1}


def test_marks_that_name_segments_a_reader_has_not_heard_of_are_no_trouble(live: StreamHome) -> None:
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("r") as reader:
        stream.split(0)
        writer.write(1, key=key_in(stream, 1))
        mark(stream, writer, 10)
        assert window(reader) == (None, 10)


def test_a_segment_that_grew_before_it_was_sealed_is_read_to_its_end(live: StreamHome) -> None:
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("r") as reader:
        writer.write(1)
        mark(stream, writer, 10)
        assert drain(reader) == [1]
        writer.write(2)
        writer.flush()
        stream.split(0)
        writer.write(3)
        mark(stream, writer, 20)
        assert window(reader) == (10, 20), "by this it hears of the new segments, and not of the event before them"
        assert drain(reader) == [2, 3]


def test_a_group_over_two_streams_has_two_windows(live: StreamHome) -> None:
    streams = [live.create_stream(name) for name in ("s", "t")]
    group = live.create_group("g", ["s", "t"])
    writers = [stream.writer("w") for stream in streams]
    for stream, writer, at in zip(streams, writers, (10, 20), strict=True):
        writer.write(at)
        mark(stream, writer, at)
    with group.reader("r") as reader:
        assert sorted(drain(reader)) == [10, 20]
        assert (window(reader, "s"), window(reader, "t")) == ((10, None), (20, None))
        with pytest.raises(StreamNotInGroup):
            reader.time_window("u")
        with pytest.raises(StreamNotInGroup):
            reader.time_window()
        with pytest.raises(StreamNotInGroup):
            group.time_window()
    assert (window(group, "s"), window(group, "t")) == ((10, None), (20, None))
    for writer in writers:
        writer.close()


def test_each_key_has_a_window_of_its_own(live: StreamHome) -> None:
    stream = live.create_stream("s", schema="sold BIGINT, paid BIGINT", time_columns=["sold", "paid"])
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("r") as reader:
        writer.write({"sold": 10, "paid": 5})
        writer.note_time(10, "sold")
        stream.await_mark(10, "sold")
        while reader.read(NOW) is not None:
            pass
        assert (window(reader), window(reader, key="paid")) == ((10, None), None)
        writer.note_time(5, "paid")
        stream.await_mark(5, "paid")
        assert window(reader, key="paid") == (5, None)
        with pytest.raises(UnknownKey):
            reader.time_window(key="payed")
        reader.acknowledge()
        settle(reader)
        assert dict(group.cut()["s"].places) == {"sold": 1, "paid": 1}


def test_a_new_reader_begins_at_the_stored_place(live: StreamHome) -> None:
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer:
        for at in range(1, 20):
            writer.write(at)
            mark(stream, writer, at)
        with group.reader("r") as reader:
            drain(reader)
            reader.time_window()
        assert group.cut()["s"].places == {"time": 19}
        with group.reader("r") as reader:
            assert reader.time_window() == TimeWindow(19, None)


def test_reading_can_end_when_time_moves(live: StreamHome) -> None:
    stream = live.create_stream("s")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("r") as reader:
        begun = time.monotonic()
        assert reader.read(NOW, wakes_on_time=True) is None
        mark(stream, writer, 10)
        assert reader.read("20 seconds", wakes_on_time=True) is None
        assert window(reader) == (10, None)
        writer.write(1)
        writer.flush()
        assert reader.read("20 seconds", wakes_on_time=True) is not None
        assert reader.read("20 seconds", wakes_on_time=True) is None, "what was read counts now"
        with group.reader("other"):
            assert reader.read("20 seconds", wakes_on_time=True) is None, "another reader came"
        assert time.monotonic() - begun < 15


def test_a_closed_reader_is_not_used(live: StreamHome) -> None:
    live.create_stream("s")
    reader = live.create_group("g", "s").reader("r")
    reader.close()
    reader.close()
    for use in (reader.read, reader.time_window, reader.acknowledge):
        with pytest.raises(ReaderClosed):
            use()
