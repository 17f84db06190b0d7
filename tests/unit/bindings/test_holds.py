"""Claims about holds and compaction, in SQLite and in PostgreSQL."""

from threading import Event, Thread
from typing import Any

import pytest

from floodmark.bindings import Bindings
from floodmark.bindings.holds import since_after_compaction
from floodmark.control import Home
from floodmark.errors import InvalidOption, InvalidValue, TimestampNotValid, UnknownHold
from floodmark.testing import ManualClock
from support.bindings.bound_sources import MS, Source, check_rows, count

SECOND = 1000
MINUTE = 60 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(500 * MS)


@pytest.fixture
def source(home: Home, clock: ManualClock) -> Source:
    """Give a source that is bound at 500, 2000, 3000 and 4000, and whose open timestamp is 5000."""
    made = Source(home, clock)
    for now, end in ((1200, 5), (2200, 8), (3200, 8), (4200, 9)):
        made.at(now).tick(p0=end)
    made.bindings.alter("S", compaction_window="0 seconds")
    return made


SINCE = {
    "C5: the lowest of several holds": ((0, 5000, 0, [2000, 3000]), 2000),
    "C5: a window behind upper": ((0, 5000, 1500, []), 3500),
    "C5: a hold that is above the window": ((0, 5000, 1500, [4000]), 3500),
    "C5: a hold that is below the window": ((0, 5000, 1500, [600]), 600),
    "C3 and C8: at most the last closed timestamp": ((0, 5000, 0, []), 4999),
    "C8: a hold on what is open": ((0, 5000, 0, [5000]), 4999),
    "C4: without a window never": ((7, 5000, None, [2000]), 7),
    "never back, by a window": ((4000, 5000, 3000, []), 4000),
    "never back, by a hold": ((4000, 5000, 0, [10]), 4000),
}


@pytest.mark.parametrize(("given", "since"), SINCE.values(), ids=SINCE)
def test_how_far_timestamps_are_given_up(given: tuple[int, int, int | None, list[int]], since: int) -> None:
    assert since_after_compaction(*given) == since


def test_c1_and_c2_what_is_stored_moves_forward_and_is_never_unbound(source: Source, home: Home) -> None:
    source.bindings.mint("S", {1: 4}, {"at": 7}, expected_upper=5000 * MS)
    source.bindings.mint("S", {0: 9}, expected_upper=source.history.upper)
    source.hold("K", 5000)
    done = source.bindings.compact("S")
    assert (done.since, done.moved, done.held_by) == (5000 * MS, True, ("K",))
    assert source.pairs()[0] == (5000, 9)
    assert source.pairs(1)[0] == (5000, 4), "also what was not named in the last mint"
    source.bindings.release("S", "K")
    assert source.bindings.compact("S").held_by == ()
    assert [len(source.pairs(partition)) for partition in (0, 1)] == [1, 1]
    assert Bindings(home).history("S").ends == {0: 9, 1: 4}
    assert not source.bindings.compact("S").moved


def test_c4_without_a_window_nothing_is_given_up(source: Source) -> None:
    source.bindings.alter("S", compaction_window=None)
    done = source.bindings.compact("S")
    assert (done.since, done.moved, done.held_by) == (500 * MS, False, ())
    assert len(source.pairs()) == 4


def test_c5_each_holder_holds_its_own_and_drops_it_alone(source: Source) -> None:
    for holder, ts in (("K1", 2000), ("K2", 3000), ("q", 2000)):
        source.hold(holder, ts)
    for holder, since in (("K1", 2000), ("q", 3000)):
        assert source.bindings.release("S", holder)
        source.bindings.compact("S")
        assert source.since == since
    assert not source.bindings.release("S", "K1"), "it is gone already"


def test_c6_a_hold_that_advances_lets_compaction_follow_also_without_data(source: Source, home: Home) -> None:
    source.hold("K", 4000)
    for number in range(5, 30):
        source.at(1000 * number + 200).tick()
        hold = source.bindings.advance_hold("S", "K", source.history.upper - 1)
        assert hold.behind == 1
    assert count(home)["pair"] <= 3
    assert source.since >= 28_000


def test_c7_rows_stay_bounded_and_are_never_none(source: Source, home: Home) -> None:
    for number in range(5, 60):
        source.at(1000 * number + 200).tick(p0=9 + number, p1=number, p2=1)
        assert 1 <= count(home)["pair"] <= 3 * 3
    check_rows(home)


def test_compaction_in_passing_does_what_compact_does(source: Source, home: Home) -> None:
    source.hold("K", 3000)
    source.bindings.mint("S", {0: 9}, {"at": 5}, expected_upper=5000 * MS)
    assert source.since == 500, "to mint alone compacts nothing"
    source.at(6200).tick()
    assert source.since == 3000
    assert source.history.pairs() == Bindings(home).history("S").pairs()
    assert source.history.watermarks == Bindings(home).history("S").watermarks == {"at": 5}


def test_s8_the_watermark_before_since_stays_for_rows_bound_at_since(source: Source, home: Home) -> None:
    source.bindings.alter("S", compaction_window=None)
    for number in range(5, 10):
        source.at(1000 * number + 200).bindings.tick("S", {0: number + 5}, {"at": number, "paid": number // 3})
    before = source.history
    source.bindings.alter("S", compaction_window="0 seconds")
    source.hold("K", 7000)
    source.bindings.compact("S")
    for history in (source.history, Bindings(home).history("S")):
        for ts in range(7000, 10_000, 500):
            assert history.watermark_at(ts * MS) == before.watermark_at(ts * MS)
            assert history.watermark_before(ts * MS) == before.watermark_before(ts * MS)
    assert count(home)["watermark"] == 6, "at: 6 to 9; paid: 2 and 3"


def test_a_sink_that_must_know_what_it_has_written_holds_the_timestamp_before_the_next(source: Source) -> None:
    written_below = 2000
    source.hold("K", written_below - 0.001)
    source.bindings.compact("S")
    found = [source.ts_of(0, offset) for offset in range(9)]
    assert [ts is not None and ts < written_below for ts in found] == [True] * 5 + [False] * 4
    source.hold("K", written_below)
    source.bindings.compact("S")
    assert source.ts_of(0, 0) == written_below, "at since itself it cannot be told"


HELD = {499: False, 500: True, 4999: True, 5000: True, 5001: False, 10**9: False}


@pytest.mark.parametrize(("ts", "is_possible"), HELD.items())
def test_only_what_is_there_can_be_held(source: Source, ts: int, is_possible: bool) -> None:
    if is_possible:
        source.hold("K", ts)
        return
    with pytest.raises(TimestampNotValid, match=rf"{ts * MS} of 'S' cannot be held: .*\[500000, 5000000\]"):
        source.hold("K", ts)
    assert source.bindings.holds() == ()


def test_a_hold_moves_forward_only_and_may_be_taken_anew_further_back(source: Source) -> None:
    source.hold("K", 2000)
    assert source.bindings.advance_hold("S", "K", 3000 * MS).ts == 3000 * MS
    assert source.bindings.advance_hold("S", "K", 2500 * MS).ts == 3000 * MS
    source.hold("K", 2500)
    assert source.bindings.holds("S")[0].ts == 2500 * MS
    source.bindings.compact("S")
    with pytest.raises(TimestampNotValid):
        source.hold("K", 2499)
    with pytest.raises(TimestampNotValid):
        source.bindings.advance_hold("S", "K", 5001 * MS)


def test_a_hold_that_was_released_is_not_moved(source: Source) -> None:
    source.hold("K", 2000)
    source.bindings.release("S", "K")
    with pytest.raises(UnknownHold, match="'K' has no hold on 'S'"):
        source.bindings.advance_hold("S", "K", 3000 * MS)


def test_who_holds_has_a_name_and_a_kind(source: Source) -> None:
    with pytest.raises(InvalidOption, match="Did you mean 'sink'"):
        source.bindings.hold("S", "K", 2000 * MS, "snk")
    with pytest.raises(InvalidValue, match="holder"):
        source.bindings.hold("S", "", 2000 * MS)
    with pytest.raises(InvalidOption, match="age"):
        source.bindings.release_older_than("0 seconds")


def test_holds_are_listed_with_their_age_and_how_far_behind_they_are(source: Source) -> None:
    source.bindings.register("other", kind="kafka", identity=1)
    source.hold("K2", 3000)
    source.at(5200).hold("K1", 2000, "query")
    source.at(6200).bindings.advance_hold("S", "K2", 3500 * MS)
    source.bindings.hold("other", "K1", source.bindings.source("other").upper)
    source.at(8200)
    listed = source.bindings.holds("S")
    assert [(hold.holder, hold.kind, hold.ts // MS, hold.behind // MS) for hold in listed] == [
        ("K1", "query", 2000, 3000),
        ("K2", "sink", 3500, 1500),
    ]
    assert [(hold.silent_for // MS, hold.unmoved_for // MS) for hold in listed] == [(3000, 3000), (2000, 2000)]
    assert [(hold.source, hold.holder) for hold in source.bindings.holds()] == [
        ("S", "K1"),
        ("S", "K2"),
        ("other", "K1"),
    ]
    assert source.bindings.holds()[:2] == listed


def run_for(source: Source, minutes: int, each: Any) -> None:
    """Tick every half minute, and do something after each tick."""
    start = source.clock.now() // MS
    for number in range(1, 2 * minutes + 1):
        source.at(start + number * MINUTE // 2).tick()
        each()


def test_a_hold_that_stops_moving_is_warned_about_though_its_owner_lives(source: Source) -> None:
    source.hold("stuck", 2000)
    source.hold("alive", 2000)

    def each() -> None:
        source.bindings.advance_hold("S", "stuck", 2000 * MS)
        source.bindings.advance_hold("S", "alive", source.history.upper - 1)

    run_for(source, 9, each)
    assert source.bindings.warnings() == ()
    run_for(source, 2, each)
    (warning,) = source.bindings.warnings("S")
    assert warning.startswith("The sink 'stuck' has held 'S' at 1970-01-01 00:00:02 UTC for 660 s")
    source.hold("stuck", 2000)
    assert source.bindings.warnings() == (warning,), "to start again at the same place is not to move"
    source.bindings.advance_hold("S", "stuck", source.history.upper - 1)
    assert source.bindings.warnings() == ()


def test_a_hold_that_is_far_behind_and_moves_is_not_warned_about(source: Source) -> None:
    source.hold("slow", 2000)
    moved = iter(range(2001, 3000))
    run_for(source, 15, lambda: source.bindings.advance_hold("S", "slow", next(moved) * MS))
    assert source.bindings.holds()[0].behind > 14 * MINUTE * MS
    assert source.bindings.warnings() == ()


def test_only_who_keeps_compaction_back_is_named(source: Source) -> None:
    source.hold("newest", 4999.999)
    assert source.bindings.compact("S").held_by == ()
    assert source.since == 4999.999


def test_a_hold_on_a_source_that_nobody_ticks_has_not_stopped_moving(source: Source) -> None:
    source.hold("K", 4999)
    source.at(60 * MINUTE)
    assert source.bindings.warnings() == ()


def test_holds_are_released_when_their_owners_are_silent_for_too_long(source: Source) -> None:
    source.hold("old", 2000)
    source.at(10 * MINUTE).hold("alive", 2000)
    source.hold("older", 2000)
    source.at(30 * MINUTE).bindings.advance_hold("S", "alive", 2000 * MS)
    assert source.bindings.release_older_than("40 minutes") == ()
    released = source.bindings.release_older_than("20 minutes", "S")
    assert [hold.holder for hold in released] == ["old", "older"]
    assert [hold.holder for hold in source.bindings.holds()] == ["alive"]
    assert source.bindings.release_older_than("20 minutes") == ()


def test_a_source_may_be_told_to_release_silent_holds_by_itself(source: Source) -> None:
    source.bindings.alter("S", release_after="20 minutes")
    source.hold("silent", 2000)
    run_for(source, 19, lambda: None)
    assert source.since == 2000
    run_for(source, 2, lambda: None)
    assert source.bindings.holds() == ()
    assert source.since > 20 * MINUTE
    source.hold("again", source.upper)
    source.at(60 * MINUTE)
    assert [hold.holder for hold in source.bindings.compact("S").released] == ["again"]


@pytest.mark.parametrize("first", ["hold", "compact"])
def test_s1_a_hold_and_a_compaction_at_once_do_not_both_win(source: Source, home: Home, first: str) -> None:
    checked, go_on = Event(), Event()
    outcome: list[Any] = []

    def pause(place: str) -> None:
        if place == "hold: before the commit":
            checked.set()
            assert go_on.wait(20)

    def hold() -> None:
        try:
            outcome.append(Bindings(home, failpoint=pause).hold("S", "K", 1000 * MS))
        except TimestampNotValid as refusal:
            outcome.append(refusal)
            checked.set()

    def compact() -> None:
        outcome.append(Bindings(home).compact("S"))

    if first == "compact":
        compact()
    holding = Thread(target=hold)
    holding.start()
    assert checked.wait(20)
    compacting = Thread(target=compact)
    compacting.start()
    compacting.join(0.3)
    assert compacting.is_alive() is (first == "hold"), "who compacts waits for who has checked and not committed"
    go_on.set()
    holding.join(20)
    compacting.join(20)
    held = [hold.ts for hold in source.bindings.holds("S")]
    assert held == ([1000 * MS] if first == "hold" else [])
    assert source.since == (1000 if first == "hold" else 4999.999)
    check_rows(home)
