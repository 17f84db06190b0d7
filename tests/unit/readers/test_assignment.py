"""Who reads which segment: fair, stable, starving nobody, and by time where there are marks."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.streams.groups.state import SegmentRef
from floodmark.streams.groups.transitions import Assignment, assign_segments

Readers = dict[str, set[SegmentRef]]


def shares(*numbers: int) -> set[SegmentRef]:
    return {("s", number) for number in numbers}


def applied(readers: Mapping[str, set[SegmentRef]], made: Assignment) -> tuple[Readers, set[SegmentRef]]:
    """Return what the readers have after a plan, and what was given back."""
    given = set() if made.released is None else {made.released}
    after = {
        name: (have | {share for share, reader in made.assigned.items() if reader == name}) - given
        for name, have in readers.items()
    }
    return after, given


def settled(
    readers: Mapping[str, set[SegmentRef]], free: set[SegmentRef], lags: Mapping[SegmentRef, int]
) -> tuple[Readers, int]:
    """Follow plans until there is nothing left to do, and return who has what, and how often a segment moved."""
    now, waiting = dict(readers), set(free)
    for moves in range(200):
        made = assign_segments(now, waiting, lags)
        if made == Assignment():
            return now, moves
        now, waiting = applied(now, made)
    raise AssertionError("it never ends")


ROWS: dict[str, tuple[dict[str, set[int]], set[int], dict[int, int], dict[int, str], int | None]] = {
    "nobody is there": ({}, {0, 1}, {}, {}, None),
    "one takes all": ({"a": set()}, {0, 1}, {}, {0: "a", 1: "a"}, None),
    "numbers decide without marks": ({"a": {0, 1}, "b": {2}}, {3}, {}, {3: "b"}, None),
    "who has nothing comes first": ({"a": {0}, "b": set()}, {1}, {0: 0, 1: 90}, {1: "b"}, None),
    "who is less behind takes more": ({"a": {0}, "b": {1, 2, 3}}, {4}, {0: 60}, {4: "b"}, None),
    "the furthest behind goes first": ({"a": {0}, "b": {1}}, {2, 3}, {0: 5, 3: 60}, {3: "b", 2: "a"}, None),
    "a difference of one is left": ({"a": {0, 1}, "b": {2}}, set(), {}, {}, None),
    "a difference of two is not": ({"a": {0, 1, 2}, "b": {3}}, set(), {}, {}, 0),
    "a reader that comes gets a segment": ({"a": {0, 1}, "b": set()}, set(), {}, {}, 0),
    "one segment cannot be shared": ({"a": {0}, "b": set()}, set(), {0: 900}, {}, None),
    "a lagging reader sheds load": ({"a": {0, 1}, "b": {2, 3}}, set(), {0: 60, 1: 50}, {}, 1),
    "not for less than a quarter": ({"a": {0, 1}, "b": {2, 3}}, set(), {0: 40, 1: 5, 2: 1}, {}, None),
    "a quarter is clear": ({"a": {0, 1}, "b": {2}}, set(), {0: 30, 1: 10}, {}, 1),
    "what helps most is given": ({"a": {0, 1, 2}, "b": {3}}, set(), {0: 10, 1: 40, 2: 30}, {}, 1),
    "whichever it is": ({"a": {0, 1, 2}, "b": {3}}, set(), {0: 10, 1: 30, 2: 40}, {}, 2),
    "nor so that it becomes worse": ({"a": {0, 1}, "b": {2, 3}}, set(), {0: 60, 1: 50, 2: 60, 3: 45}, {}, None),
    "a lag that cannot be shared keeps nobody from being served": (
        {"a": {0}, "b": {1, 2, 3}, "c": set()},
        set(),
        {0: 900},
        {},
        1,
    ),
}


@pytest.mark.parametrize(("have", "free", "lags", "assigned", "given_back"), ROWS.values(), ids=ROWS)
def test_a_plan(
    have: dict[str, set[int]], free: set[int], lags: dict[int, int], assigned: dict[int, str], given_back: int | None
) -> None:
    made = assign_segments(
        {name: shares(*numbers) for name, numbers in have.items()},
        shares(*free),
        {("s", number): lag for number, lag in lags.items()},
    )
    assert {number: reader for (_, number), reader in made.assigned.items()} == assigned
    assert made.released == (None if given_back is None else ("s", given_back))


def test_nothing_is_asked_for_while_a_segment_is_on_its_way() -> None:
    readers = {"a": shares(0, 1, 2, 3), "b": shares()}
    assert assign_segments(readers, [], {}, is_releasing=True) == Assignment()
    assert assign_segments(readers, [], {}).released is not None


READERS = st.integers(1, 5)
OWNERS = st.lists(st.integers(0, 5), max_size=12)
LAGS = st.lists(st.integers(0, 100), min_size=12, max_size=12)


def start(readers: int, owners: list[int]) -> tuple[Readers, set[SegmentRef]]:
    names = [f"r{number}" for number in range(readers)]
    have = {name: {("s", n) for n, owner in enumerate(owners) if owner == at} for at, name in enumerate(names)}
    return have, {("s", n) for n, owner in enumerate(owners) if owner >= readers}


@given(READERS, OWNERS)
def test_without_marks_the_numbers_differ_by_one_at_most(readers: int, owners: list[int]) -> None:
    have, _ = settled(*start(readers, owners), {})
    sizes = [len(one) for one in have.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(owners)


@given(READERS, OWNERS, LAGS)
def test_plans_end_lose_nothing_starve_nobody_and_are_stable(readers: int, owners: list[int], lags: list[int]) -> None:
    by_share = {("s", number): lag for number, lag in enumerate(lags)}
    have, moves = settled(*start(readers, owners), by_share)
    found = [share for one in have.values() for share in one]
    assert sorted(found) == [("s", number) for number in range(len(owners))]
    assert moves <= 4 * len(owners) + 2
    if len(owners) >= readers:
        assert all(have.values()), "each has a segment while there are enough"
    assert assign_segments(have, [], by_share) == Assignment()


@given(READERS, OWNERS, LAGS)
def test_a_free_segment_never_goes_back_to_the_reader_that_was_asked_for_it(
    readers: int, owners: list[int], lags: list[int]
) -> None:
    by_share = {("s", number): lag for number, lag in enumerate(lags)}
    have, free = start(readers, owners)
    while True:
        made = assign_segments(have, free, by_share)
        if made == Assignment():
            return
        now = {**{share: name for name, one in have.items() for share in one}, **made.assigned}
        have, free = applied(have, made)
        if made.released is not None:
            assert assign_segments(have, free, by_share).assigned[made.released] != now[made.released]
