"""Writers: who is heard, who was taken over, and why a watermark stands where it stands; and many of them at once."""

import time as clock

import pytest

from floodmark.errors import FloodmarkError, WriterSuperseded
from floodmark.streams import EntryKind, Layout, MarkEntry, MarkOutcome
from floodmark.streams.marks.watermark import Emit, WatermarkRules, decide_watermark, explain_watermark
from floodmark.streams.marks.writer_record import WriterRecord, WriterState

ONE = Layout.create(1)
RULES = WatermarkRules(timeout=60)


def writer(name: str, time: int, offset: int, now: int = 0, watermark: int | None = None) -> WriterRecord:
    return WriterRecord.open(name, now=now).note(time, {0: offset}, layout=ONE, now=now, watermark=watermark).record


def test_a_writer_that_is_opened_again_goes_on_and_the_older_one_is_not_heard() -> None:
    older = writer("w", 100, 10)
    newer = older.open_again(now=50)
    assert (newer.instance, newer.mark, newer.heard_at, newer.state) == (2, older.mark, 0, WriterState.ALIVE)
    with pytest.raises(WriterSuperseded) as failure:
        newer.note(101, {0: 11}, layout=ONE, now=51, instance=1)
    assert failure.value.fields == {"writer": "w", "instance": 1, "newest": 2}
    for late in (newer.idle, newer.close):
        with pytest.raises(WriterSuperseded):
            late(instance=1)
    assert newer.note(99, {0: 11}, layout=ONE, now=51, instance=2).outcome is MarkOutcome.TIME_WENT_BACK
    assert newer.note(101, {0: 11}, layout=ONE, now=51, instance=2).outcome is MarkOutcome.ACCEPTED


@pytest.mark.parametrize("state", [WriterState.IDLE, WriterState.TIMED_OUT])
def test_opening_again_does_not_wake_who_is_not_closed(state: WriterState) -> None:
    last = MarkEntry(1, EntryKind.WATERMARK, 100, 100, ("w",), {0: 10}, at=0)
    record = writer("w", 100, 10)
    if state is WriterState.IDLE:
        record = record.idle()
    else:
        (_, lost) = next(decide_watermark([record], last, RULES, layout=ONE, now=60).changes.updates())
        assert lost is not None
        record = lost
    again = record.open_again(now=70)
    assert (again.state, again.instance) == (state, 2)
    assert again.note(105, {0: 11}, layout=ONE, now=71, watermark=100).record.state is WriterState.ALIVE


def test_who_timed_out_stays_so_when_the_timeout_is_raised() -> None:
    last = MarkEntry(1, EntryKind.WATERMARK, 100, 100, ("w",), {0: 10}, at=0)
    (_, lost) = next(decide_watermark([writer("w", 100, 10)], last, RULES, layout=ONE, now=60).changes.updates())
    assert lost is not None
    decision = decide_watermark([lost], last, WatermarkRules(timeout=600), layout=ONE, now=61)
    assert isinstance(decision, Emit)
    assert decision.entry.kind is EntryKind.UNKNOWN


def test_opening_a_closed_writer_again_gives_it_a_timeout_to_speak() -> None:
    again = writer("w", 100, 10).close().open_again(now=50)
    assert (again.state, again.heard_at) == (WriterState.ALIVE, 50)


def test_since_when_a_writer_is_ahead() -> None:
    record = WriterRecord.open("w", now=0)
    since = []
    for now, time, watermark in ((1, 5, None), (2, 6, None), (3, 7, 6), (4, 8, 7), (5, 8, 8), (6, 9, 8), (7, 9, 8)):
        record = record.note(time, {}, layout=ONE, now=now, watermark=watermark).record
        since.append(record.ahead_since)
    assert since == [1, 1, 3, 4, None, 6, 6]
    assert record.idle().note(9, {}, layout=ONE, now=9, watermark=8).record.ahead_since == 9
    assert (record.heard_at, record.marked_since) == (7, 1)


@pytest.mark.parametrize("bad", ["", None, 7])
def test_a_writer_has_a_name(bad: str) -> None:
    with pytest.raises(FloodmarkError):
        WriterRecord.open(bad, now=0)


@pytest.mark.parametrize("option", ["timeout", "first_delay", "rate_floor", "forget_after"])
@pytest.mark.parametrize("value", [-1, 1.5, "60"])
def test_a_duration_is_not_below_zero(option: str, value: object) -> None:
    options: dict[str, object] = {"timeout": 60, option: value}
    with pytest.raises(FloodmarkError):
        WatermarkRules(**options)  # type: ignore[arg-type]


def test_why_says_who_holds_who_is_late_and_who_is_gone() -> None:
    last = MarkEntry(4, EntryKind.WATERMARK, 100, 120, ("ahead", "slow"), {0: 10}, at=10)
    records = [
        writer("ahead", 130, 20, now=20, watermark=100),
        writer("slow", 100, 5, now=12, watermark=100),
        WriterRecord.open("fresh", now=25),
        writer("late", 60, 5, now=21, watermark=100),
        writer("resting", 90, 5, now=5).idle(),
        writer("dead", 90, 5, now=-40),
        writer("over", 80, 12).close(),
    ]
    why = explain_watermark("orders", "order_time", records, last, RULES, layout=ONE, now=30)
    assert (why.watermark, why.holders, why.next_at) == (100, ("fresh", "slow"), 80)
    assert (why.set_aside, why.idle, why.closed, why.timed_out) == (("late",), ("resting",), ("over",), ("dead",))
    assert str(why).splitlines() == [
        "orders order_time: at 100, writers that are not ahead hold it: fresh, slow; decided at 80 at the latest",
        "  fresh: holds the watermark, no mark yet, last heard at 25, no longer waited for from 80",
        "  slow: holds the watermark, at 100, last heard at 12, no longer waited for from 72",
        "  ahead: ahead, at 130, last heard at 20",
        "  late: set aside until it is ahead, at 60, last heard at 21",
        "  resting: idle, at 90, last heard at 5",
        "  over: closed, at 80, last heard at 0",
        "  dead: timed out, at 90, last heard at -40",
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(EntryKind.IDLE, "at 100, all writers idle"), (EntryKind.UNKNOWN, "at 100, all writers gone")],
)
def test_why_says_that_nobody_is_there(kind: EntryKind, text: str) -> None:
    last = MarkEntry(4, kind, 100, 120, (), {0: 10}, at=10)
    records = [writer("w", 100, 5).idle()] if kind is EntryKind.IDLE else []
    why = explain_watermark("orders", "t", records, last, RULES, layout=ONE, now=30)
    assert str(why).splitlines()[0] == f"orders t: {text}, nothing changes until a writer notes time"
    moving = explain_watermark("orders", "t", [writer("w", 130, 9)], last, RULES, layout=ONE, now=30)
    assert "the next entry (watermark) is about to be written" in str(moving)


def test_ten_thousand_writers_are_decided_at_once() -> None:
    layout = Layout.create(16)
    before = decide_watermark([], None, RULES, layout=layout, now=0)
    records = [
        WriterRecord.open(f"w{number}", now=0)
        .note(1000 + number % 50, {s: number + s for s in range(16)}, layout=layout, now=1)
        .record
        for number in range(10_000)
    ]
    begun = clock.perf_counter()
    decision = decide_watermark(records, None, RULES, layout=layout, now=2, writers_version=7)
    assert clock.perf_counter() - begun < 0.5
    assert isinstance(decision, Emit)
    assert (decision.entry.lower, decision.entry.upper, decision.writers_version) == (1000, 1049, 7)
    assert decision.entry.cut == {s: 9_999 + s for s in range(16)}
    assert len(decision.entry.writers) == 10_000
    assert not isinstance(before, Emit)
