"""A clock that is set back: what waits for a time waits at most one more timeout, not until the clock has caught up."""

import pytest

from floodmark.control import Leases, Members
from floodmark.streams import Controller, StreamHome
from floodmark.streams.layout.layout import Layout
from floodmark.streams.marks.log import EntryKind, MarkEntry
from floodmark.streams.marks.watermark import Emit, WatermarkRules, classify_writers, decide_watermark
from floodmark.streams.marks.writer_record import WriterRecord
from floodmark.testing import ManualClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND
LAYOUT = Layout.create(1)
RULES = WatermarkRules(timeout=60 * SECOND)


def run_for(controllers: list[Controller], clock: ManualClock, seconds: int) -> None:
    """Run the rounds of some controllers for some seconds."""
    for _ in range(seconds):
        for controller in controllers:
            controller.step()
        clock.advance(SECOND)


@pytest.mark.parametrize("has_marked", [False, True])
@pytest.mark.parametrize("is_new_controller", [False, True])
def test_a_silent_writer_holds_the_watermark_for_one_timeout(
    home: StreamHome, local: StreamHome, clock: ManualClock, has_marked: bool, is_new_controller: bool
) -> None:
    stream = home.create_stream("s")
    live, silent = stream.writer("live"), stream.writer("silent")
    clock.advance(HOUR)
    if has_marked:
        silent.note_time(50)
    live.note_time(60)
    controller = Controller(local, name="a")
    run_for([controller], clock, 2)
    clock.advance(-HOUR)
    live.note_time(100)
    if is_new_controller:
        controller.stop()
        controller = Controller(local, name="b")
    run_for([controller], clock, 62)
    assert stream.marks()[-1].lower == 100


def test_without_any_new_mark_a_silent_writer_times_out(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    silent, live = stream.writer("silent"), stream.writer("live")
    clock.advance(HOUR)
    silent.note_time(50)
    live.note_time(60)
    live.note_time(100)
    controller = Controller(local)
    run_for([controller], clock, 2)
    clock.advance(-HOUR)
    run_for([controller], clock, 62)
    assert stream.marks()[-1].lower == 100


def test_the_first_watermark_is_delayed_once(home: StreamHome, local: StreamHome, clock: ManualClock) -> None:
    stream = home.create_stream("s", first_mark_delay="10 seconds")
    clock.advance(HOUR)
    stream.writer("w").note_time(100)
    controller = Controller(local)
    run_for([controller], clock, 2)
    clock.advance(-HOUR)
    run_for([controller], clock, 12)
    assert [entry.lower for entry in stream.marks()] == [100]


def test_a_dead_controller_loses_its_buckets_within_its_ttl(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    dead, other = Controller(local, name="dead"), Controller(local, name="other")
    run_for([dead], clock, 2)
    clock.advance(-HOUR)
    stream.writer("w").note_time(100)
    run_for([other], clock, 32)
    assert len(other.buckets) == len(dead.buckets)
    assert [entry.lower for entry in stream.marks()] == [100]


def test_a_lease_and_a_member_of_the_future_expire_after_their_ttl(local: StreamHome, clock: ManualClock) -> None:
    leases, members = Leases(local.home), Members(local.home)
    lease = leases.acquire("job", "dead", 10 * SECOND)
    members.join("dead", 10 * SECOND)
    clock.advance(-HOUR)
    assert [held.owner for held in leases.held()] == ["dead"]
    assert [member.name for member in members.alive()] == ["dead"]
    clock.advance(10 * SECOND)
    assert (leases.held(), members.alive()) == ((), ())
    assert leases.acquire("job", "other", 10 * SECOND) is not None
    assert lease is not None


def noted(record: WriterRecord, time: int, now: int, watermark: int | None) -> WriterRecord:
    return record.note(time, {0: time}, layout=LAYOUT, now=now, watermark=watermark).record


def test_a_live_writer_is_not_set_aside_because_another_was_ahead_for_long() -> None:
    """The fast writer has been ahead for an hour; the wait for the slow one begins again when the clock is set back."""
    fast = noted(WriterRecord.open("fast", now=0), 1_000, now=0, watermark=None)
    slow = noted(WriterRecord.open("slow", now=0), 100, now=HOUR, watermark=None)
    last = MarkEntry(1, EntryKind.WATERMARK, 100, 1_000, ("slow",), {0: 1_000}, at=HOUR)
    now = HOUR // 2
    decision = decide_watermark([fast, slow], last, RULES, layout=LAYOUT, now=now)
    assert not isinstance(decision, Emit)
    assert (decision.holders, decision.until) == (("slow",), now + RULES.timeout)
    stored = {before.writer: after for before, after in decision.changes.updates()}
    assert {name: record.heard_at for name, record in stored.items() if record} == {"fast": 0, "slow": now}
    records = [record for record in stored.values() if record is not None]
    later = decide_watermark(records, last, RULES, layout=LAYOUT, now=now + RULES.timeout)
    assert isinstance(later, Emit)
    assert later.entry.lower == 1_000
    assert not classify_writers(records, last, RULES, now + RULES.timeout - 1).lost
