"""Writers note time: what is taken, what is not, and what the watermark makes of it."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from floodmark.streams import Controller, EntryKind, MarkOutcome, StreamHome
from floodmark.testing import ManualClock
from support.streams.reading import code_of, payloads
from support.waiting import wait_until

SECOND = 1_000_000


@pytest.fixture
def controller(local: StreamHome) -> Controller:
    return Controller(local)


def lowers(stream: Any, key: str | None = None) -> list[int | None]:
    return [entry.lower for entry in stream.marks(key) if entry.kind is EntryKind.WATERMARK]


def settle(controller: Controller, clock: ManualClock, rounds: int = 4) -> None:
    """Let the controller look a few times, past the rate floor."""
    for _ in range(rounds):
        controller.step()
        clock.advance(10_000)


def test_a_mark_covers_what_was_written_before_it(home: StreamHome, controller: Controller, clock: ManualClock) -> None:
    stream = home.create_stream("s", segments=2)
    writer = stream.writer("w")
    for number in range(10):
        writer.write(number, key=str(number))
    assert writer.note_time(100) is MarkOutcome.ACCEPTED
    assert len(payloads(stream, 0)) + len(payloads(stream, 1)) == 10
    settle(controller, clock)
    (entry,) = stream.marks()
    assert (entry.seq, entry.lower, entry.upper, entry.writers) == (1, 100, 100, ("w",))
    assert entry.cut == stream.tail()


def test_a_writer_that_is_opened_again_covers_what_was_flushed_before_and_never_marked(
    home: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    stream = home.create_stream("s", segments=2)
    first = stream.writer("w")
    for number in range(10):
        first.write(number, key=str(number))
    first.flush()
    # It is gone without a word, and whoever takes its place writes nothing.
    again = stream.writer("w")
    assert again.note_time(100) is MarkOutcome.ACCEPTED
    settle(controller, clock)
    (entry,) = stream.marks()
    assert (entry.lower, entry.cut) == (100, stream.tail())


def test_the_outcome_says_what_became_of_a_mark(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")
    assert [writer.note_time(t).value for t in (5, 5, 4, 6)] == ["accepted", "accepted", "time went back", "accepted"]
    registry, info = stream._backend.registry, stream.info
    writer.write(1)
    writer.note_time(7)
    author = writer._opened.author
    assert registry.note(info, author, "time", 8, {0: 0}) is MarkOutcome.POSITION_WENT_BACK
    assert code_of(lambda: registry.note(info, author, "time", 8, {3: 0})) == "foreign-segment"
    (view,) = stream.why().writers
    assert view.time == 7


@pytest.mark.parametrize(
    ("bad", "code"),
    [(1.5, "not-int64"), ("5", "not-int64"), (2**63, "not-int64"), (2**63 - 1, "reserved-time"), (True, "not-int64"),
     (datetime(2026, 1, 1), "naive-time"), (None, "not-int64")],  # noqa: DTZ001
)  # fmt: skip
def test_a_time_that_is_none_is_refused_and_nothing_is_stored(home: StreamHome, bad: Any, code: str) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")
    writer.write(1)
    assert code_of(lambda: writer.note_time(bad)) == code
    assert code_of(lambda: writer.note_time(5, key="tmie")) == "unknown-key"
    assert stream.tail() == {0: 0}
    assert stream.why().writers[0].time is None


@pytest.mark.parametrize(("unit", "expected"), [("s", 1), ("ms", 1_500), ("us", 1_500_000), ("ns", 1_500_000_000)])
def test_datetimes_are_taken_in_the_unit_of_the_stream(home: StreamHome, unit: str, expected: int) -> None:
    stream = home.create_stream("s", unit=unit)
    stream.writer("w").note_time(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC))
    assert stream.why().writers[0].time == expected


def test_negative_times_are_times(home: StreamHome, controller: Controller, clock: ManualClock) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")
    writer.note_time(-(2**63))
    settle(controller, clock)
    writer.note_time(-5)
    settle(controller, clock)
    assert lowers(stream) == [-(2**63), -5]


def test_keys_have_watermarks_of_their_own(home: StreamHome, controller: Controller, clock: ManualClock) -> None:
    stream = home.create_stream("s", "a TIMESTAMP, b TIMESTAMP", time_columns=["a", "b"])
    w1, w2 = stream.writer("w1"), stream.writer("w2")
    w1.note_time(10)
    w2.note_time(20)
    w1.note_time(7, key="b")
    settle(controller, clock)
    assert (lowers(stream), lowers(stream, "b")) == ([10], [])
    assert stream.why("b").holders == ("w2",)
    w2.note_time(9, key="b")
    settle(controller, clock)
    assert lowers(stream, "b") == [7]


def test_an_opened_writer_holds_the_watermark_up_to_its_timeout(
    home: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    stream = home.create_stream("s", writer_timeout="5 seconds")
    w1 = stream.writer("w1")
    silent = stream.writer("silent")
    w1.note_time(100)
    settle(controller, clock)
    assert (lowers(stream), stream.why().holders) == ([], ("silent",))
    clock.advance(3 * SECOND)
    w1.note_time(101)
    clock.advance(2 * SECOND)
    settle(controller, clock)
    assert (lowers(stream), stream.why().timed_out) == ([101], ("silent",))
    assert silent.note_time(50).value == "accepted"
    settle(controller, clock)
    assert stream.why().set_aside == ("silent",)
    w1.note_time(110)
    settle(controller, clock)
    assert lowers(stream) == [101, 110]


def test_who_registers_is_told_what_to_be_ahead_of(
    home: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")
    assert writer.watermarks == {"time": None}
    writer.note_time(100)
    settle(controller, clock)
    assert stream.writer("late").watermarks == {"time": 100}


def test_idle_writers_are_not_waited_for(home: StreamHome, controller: Controller, clock: ManualClock) -> None:
    stream = home.create_stream("s")
    w1, w2 = stream.writer("w1"), stream.writer("w2")
    w1.note_time(10)
    w2.write(1)
    w2.mark_idle()
    settle(controller, clock)
    (entry,) = stream.marks()
    assert (entry.lower, entry.cut, stream.why().idle) == (10, {0: 1}, ("w2",))
    w1.mark_idle()
    settle(controller, clock)
    assert stream.marks()[-1].kind is EntryKind.IDLE
    w2.note_time(20)
    settle(controller, clock)
    assert lowers(stream) == [10, 20]


def test_a_closed_writer_that_is_ahead_counts_once_and_then_all_is_unknown(
    home: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    w1, w2 = stream.writer("w1"), stream.writer("w2")
    w1.note_time(10)
    w2.note_time(30)
    w1.write("last")
    w1.close()
    settle(controller, clock)
    w2.close()
    settle(controller, clock, 8)
    entries = stream.marks()
    assert [(entry.kind.value, entry.lower) for entry in entries] == [
        ("watermark", 10),
        ("watermark", 30),
        ("unknown", 30),
    ]
    assert entries[-1].cut == {0: 1}
    assert stream.why().writers == ()
    again = stream.writer("w1")
    assert again.instance == 2
    again.note_time(40)
    settle(controller, clock)
    assert stream.marks()[-1].lower == 40


def test_the_numbers_of_instances_outlive_the_records(
    home: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    old = stream.writer("w")
    stream.writer("w").close()
    settle(controller, clock)
    assert stream.why().writers == ()
    assert code_of(lambda: old.note_time(5)) == "writer-superseded"
    assert stream.writer("w").instance == 3


# -- automatic time


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_automatic_time_is_the_clock_and_ends_with_the_writer(home: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s", unit="ms")
    writer = stream.writer("w", automatic="5 milliseconds")
    writer.write("covered")
    assert code_of(lambda: writer.note_time(1)) == "automatic-time"
    wait_until(lambda: stream.why().writers[0].time is not None)
    assert stream.why().writers[0].time == clock.now() // 1000
    assert stream.tail() == {0: 1}
    assert "floodmark time w" in threads()
    writer.close()
    assert "floodmark time w" not in threads()


def test_what_goes_wrong_in_the_background_is_told_at_the_next_call(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w", automatic="5 milliseconds")
    stream.writer("w")
    wait_until(lambda: "floodmark time w" not in threads())
    assert code_of(lambda: writer.write(1)) == "writer-superseded"
    writer.close()
