"""Claims about which timestamp is open when, and which clocks are believed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.bindings.minting import own_clock
from floodmark.bindings.timestamps import MAX_CLOCK_LEAD, check_clock, is_due, next_boundary, next_ts, open_ts
from floodmark.errors import ClockJumped

BOUNDARIES = [(1234, 2000), (2000, 3000), (0, 1000), (999, 1000), (-1, 0), (-1000, 0)]


@pytest.mark.parametrize(("now", "boundary"), BOUNDARIES)
def test_b5_the_next_boundary_is_the_next_multiple_of_the_tick(now: int, boundary: int) -> None:
    assert next_boundary(now, 1000) == boundary


DUE = {
    "the first tick is due at once": (500, None, True),
    "not twice in an interval": (1999, 1200, False),
    "at the boundary": (2000, 1200, True),
    "long after": (500_000, 1200, True),
    "B8: the clock went back": (1200, 5000, True),
    "the clock went back a little": (5000, 5900, False),
}


@pytest.mark.parametrize(("now", "minted_at", "due"), DUE.values(), ids=DUE)
def test_b5_one_tick_in_an_interval(now: int, minted_at: int | None, due: bool) -> None:
    assert is_due(now, minted_at, 1000) is due


NEXT = {
    "B5: the end of the interval": (1200, 500, 2000),
    "B8: the clock went back": (1200, 7000, 7001),
    "B8: the clock stands still": (1200, 2000, 2001),
    "just before the boundary": (1999, 1999, 2000),
}


@pytest.mark.parametrize(("now", "ts", "opened"), NEXT.values(), ids=NEXT)
def test_the_next_timestamp_is_above_the_last_whatever_the_clock_says(now: int, ts: int, opened: int) -> None:
    assert next_ts(now, 1000, ts) == opened


OPEN = {
    "the open one": (1200, 500, 500),
    "the open one is ahead of the clock": (1200, 9000, 9000),
    "it has been open for almost two ticks": (2499, 500, 500),
    "nobody has ticked for two ticks": (2500, 500, 3000),
    "nobody has ticked for days": (172_800_123, 500, 172_801_000),
}


@pytest.mark.parametrize(("now", "upper", "ts"), OPEN.values(), ids=OPEN)
def test_what_is_seen_is_bound_to_the_open_timestamp_unless_that_is_long_past(now: int, upper: int, ts: int) -> None:
    assert open_ts(now, 1000, upper) == ts


@given(st.lists(st.integers(-10_000, 10_000), min_size=1), st.integers(1, 3000))
def test_whatever_a_clock_does_timestamps_rise_and_keep_near_it_while_it_goes_on(moves: list[int], tick: int) -> None:
    now, upper, minted_at = 50_000, 50_000, None
    highest = now
    for move in moves:
        now += move
        highest = max(highest, now)
        if is_due(now, minted_at, tick):
            ts = open_ts(now, tick, upper)
            assert ts >= upper
            assert now - 2 * tick < ts, "never long past"
            upper, minted_at = next_ts(now, tick, ts), now
            assert upper > ts
            assert upper <= next_boundary(highest, tick) + len(moves), "only a clock that went on takes it along"


JUMPS = {
    "no more than an hour on": (MAX_CLOCK_LEAD, 0, 0, False),
    "an hour on, and the other clock is behind": (MAX_CLOCK_LEAD + 1, 0, 0, True),
    "two days on, and the other clock says so": (48 * MAX_CLOCK_LEAD, 48 * MAX_CLOCK_LEAD, 0, False),
    "two days on, and the other clock almost says so": (48 * MAX_CLOCK_LEAD, 47 * MAX_CLOCK_LEAD, 0, False),
    "two days on, and the other clock says one": (48 * MAX_CLOCK_LEAD, 24 * MAX_CLOCK_LEAD, 0, True),
    "the other clock is ahead": (48 * MAX_CLOCK_LEAD, 900 * MAX_CLOCK_LEAD, 0, False),
    "the other clock is behind, and nothing jumps": (48 * MAX_CLOCK_LEAD, 0, 47 * MAX_CLOCK_LEAD, False),
    "the clock went back": (0, 48 * MAX_CLOCK_LEAD, 48 * MAX_CLOCK_LEAD, False),
}


@pytest.mark.parametrize(("now", "own", "upper", "is_refused"), JUMPS.values(), ids=JUMPS)
def test_a_jump_is_where_two_clocks_disagree(now: int, own: int, upper: int, is_refused: bool) -> None:
    if not is_refused:
        check_clock(now, own, upper, "orders")
        return
    with pytest.raises(ClockJumped, match=f"store says {now}.* process says {own}") as refusal:
        check_clock(now, own, upper, "orders")
    assert refusal.value.fields == {"source": "orders", "now": now, "own": own, "upper": upper}


def test_the_own_clock_agrees_with_the_hosts_which_has_not_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(own_clock() - time.time_ns() // 1000) < 60_000_000
    before = own_clock()
    monkeypatch.setattr(time, "time_ns", lambda: 2**62)
    assert before <= own_clock() < before + 60_000_000, "whoever sets the host's clock does not move it"
