"""Claims about ranges, against plain sets of numbers."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.ingest.calendar.ranges import (
    Range,
    Ranges,
    clip_ranges,
    gaps,
    intersect,
    merge_ranges,
    overlaps,
    subtract,
    total_length,
    union,
)

numbers = st.integers(0, 40)
loose = st.lists(st.tuples(numbers, numbers), max_size=8)


def points(ranges: Ranges) -> set[int]:
    return {point for lo, hi in ranges for point in range(lo, hi)}


def is_tidy(ranges: Ranges) -> bool:
    return all(lo < hi for lo, hi in ranges) and all(one.hi < other.lo for one, other in pairwise(ranges))


@given(loose)
def test_merging_keeps_every_point_in_the_fewest_ranges(ranges: list[tuple[int, int]]) -> None:
    result = merge_ranges(ranges)
    assert is_tidy(result)
    assert points(result) == {point for lo, hi in ranges for point in range(lo, hi)}
    assert total_length(result) == len(points(result))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(union, set.union), (subtract, set.difference), (intersect, set.intersection)],
    ids=["union", "subtract", "intersect"],
)
@given(one=loose, other=loose)
def test_sets_of_ranges_do_what_sets_do(
    ours: Callable[[Ranges, Ranges], Ranges],
    theirs: Callable[[set[int], set[int]], set[int]],
    one: list[tuple[int, int]],
    other: list[tuple[int, int]],
) -> None:
    result = ours(merge_ranges(one), merge_ranges(other))
    assert is_tidy(result)
    assert points(result) == theirs(points(merge_ranges(one)), points(merge_ranges(other)))


@given(loose, numbers, numbers)
def test_a_window_holds_what_is_in_it_and_gaps_hold_the_rest(some: list[tuple[int, int]], lo: int, hi: int) -> None:
    ranges, window = merge_ranges(some), set(range(lo, hi))
    inside, outside = clip_ranges(ranges, lo, hi), gaps(ranges, lo, hi)
    assert is_tidy(inside)
    assert is_tidy(outside)
    assert points(inside) == points(ranges) & window
    assert points(outside) == window - points(ranges)
    assert overlaps(ranges, lo, hi) == bool(points(ranges) & window)


def test_ranges_that_touch_become_one_and_empty_ones_vanish() -> None:
    assert merge_ranges([(3, 5), (1, 3), (7, 7), (9, 8)]) == [Range(1, 5)]
