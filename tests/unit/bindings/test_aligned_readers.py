"""Readers that move on together know of each other how far they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.bindings.coordination import AlignedReaders
from floodmark.control import Home
from floodmark.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000_000)


@pytest.fixture
def together(tmp_path: Path, clock: ManualClock) -> Iterator[AlignedReaders]:
    with Home.open(tmp_path, clock=clock.now) as home:
        yield AlignedReaders(home, "orders and payments")


def test_the_slowest_other_is_the_lowest_that_has_anything_to_read(together: AlignedReaders) -> None:
    together.report("a", 50, is_caught_up=False)
    together.report("b", 20, is_caught_up=True)
    together.report("c", 30, is_caught_up=False)
    assert (together.slowest_other("a"), together.slowest_other("c")) == (30, 50)


def test_nobody_is_waited_for_who_has_no_time_or_is_silent(together: AlignedReaders, clock: ManualClock) -> None:
    assert together.slowest_other("a") is None
    together.report("b", None, is_caught_up=False)
    assert together.slowest_other("a") is None
    together.report("b", 5, is_caught_up=False)
    clock.advance(61_000_000)
    assert together.slowest_other("a") is None


def test_another_alignment_is_not_heard(together: AlignedReaders, tmp_path: Path, clock: ManualClock) -> None:
    with Home.open(tmp_path, clock=clock.now) as home:
        AlignedReaders(home, "others").report("b", 5, is_caught_up=False)
    assert together.slowest_other("a") is None


def test_a_dead_reader_is_not_waited_for_until_a_clock_set_back_has_caught_up(
    together: AlignedReaders, clock: ManualClock
) -> None:
    together.report("dead", 5, is_caught_up=False)
    clock.advance(-900_000_000)
    assert together.slowest_other("a") == 5
    clock.advance(61_000_000)
    assert together.slowest_other("a") is None
