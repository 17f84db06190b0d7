"""Holds while the store's clock is wrong: a jump forward releases none, a jump back delays a release once."""

import pytest

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import ClockJumped
from floodmark.testing import ManualClock

SECOND = 1_000_000
HOUR = 3_600 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(10**12)


@pytest.fixture
def own() -> ManualClock:
    return ManualClock(10**12)


@pytest.fixture
def bindings(home: Home, own: ManualClock) -> Bindings:
    bindings = Bindings(home, own_clock=own.now)
    bindings.register("S", kind="stream", identity=1, compaction_window="0 seconds", release_after="1 hour")
    upper = bindings.tick("S", {0: 5}).history.upper
    bindings.hold("S", "live", upper)
    return bindings


def test_a_jump_forward_releases_no_hold(bindings: Bindings, clock: ManualClock) -> None:
    clock.advance(24 * HOUR)
    for action in (
        lambda: bindings.tick("S", {0: 6}),
        lambda: bindings.compact("S"),
        lambda: bindings.release_older_than("2 hours"),
        lambda: bindings.release_older_than("2 hours", "S"),
    ):
        with pytest.raises(ClockJumped):
            action()
    assert [hold.holder for hold in bindings.holds()] == ["live"]


def test_days_without_a_tick_are_no_jump(bindings: Bindings, clock: ManualClock, own: ManualClock) -> None:
    clock.advance(24 * HOUR)
    own.advance(24 * HOUR)
    assert [hold.holder for hold in bindings.compact("S").released] == ["live"]


def test_after_a_jump_back_a_silent_owner_loses_its_hold_once_its_time_is_over(
    bindings: Bindings, clock: ManualClock
) -> None:
    clock.advance(-10 * HOUR)
    assert bindings.compact("S").released == ()
    clock.advance(HOUR)
    assert [hold.holder for hold in bindings.compact("S").released] == ["live"]
