"""Sets of times as sorted lists of half-open ranges that neither overlap nor touch.

All functions take and return such lists. Their cost grows with the number of ranges, not with their lengths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """The half-open range from `lo` (included) to `hi` (excluded)."""

    lo: int
    hi: int


Ranges = Sequence[Range]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the union of ranges that may be unsorted, overlapping or empty.

    >>> merge_ranges([(5, 7), (1, 3), (3, 4), (9, 9)])
    [Range(lo=1, hi=4), Range(lo=5, hi=7)]
    """
    result: list[Range] = []
    for pair in sorted(ranges):
        lo, hi = pair
        if lo >= hi:
            continue
        if result and lo <= result[-1].hi:
            if hi > result[-1].hi:
                result[-1] = Range(result[-1].lo, hi)
        else:
            # Reuse the object: creating Range objects dominates the cost of this function.
            result.append(pair if isinstance(pair, Range) else Range(lo, hi))
    return result


def union(one: Ranges, other: Ranges) -> Ranges:
    """Return the union of two sets.

    >>> union([Range(1, 3)], [Range(2, 5)])
    [Range(lo=1, hi=5)]
    """
    if not one or not other:
        return one or other
    return merge_ranges([*one, *other])


def subtract(one: Ranges, other: Ranges) -> Ranges:
    """Return the first set without the second.

    >>> subtract([Range(0, 10)], [Range(2, 3), Range(5, 20)])
    [Range(lo=0, hi=2), Range(lo=3, hi=5)]
    """
    if not one or not other:
        return one
    result: list[Range] = []
    first, count = 0, len(other)
    for start, hi in one:
        while first < count and other[first].hi <= start:
            first += 1
        lo, index = start, first
        while index < count and other[index].lo < hi:
            if other[index].lo > lo:
                result.append(Range(lo, other[index].lo))
            lo = max(lo, other[index].hi)
            index += 1
        if lo < hi:
            result.append(Range(lo, hi))
    return result


def intersect(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two sets.

    >>> intersect([Range(0, 10)], [Range(2, 3), Range(5, 20)])
    [Range(lo=2, hi=3), Range(lo=5, hi=10)]
    """
    result: list[Range] = []
    i = j = 0
    while i < len(one) and j < len(other):
        lo, hi = max(one[i].lo, other[j].lo), min(one[i].hi, other[j].hi)
        if lo < hi:
            result.append(Range(lo, hi))
        if one[i].hi < other[j].hi:
            i += 1
        else:
            j += 1
    return result


def clip_ranges(ranges: Ranges, lo: int, hi: int) -> Ranges:
    """Return the part of a set between `lo` and `hi`, clipped by binary search.

    >>> clip_ranges([Range(0, 10), Range(20, 30)], 5, 25)
    [Range(lo=5, hi=10), Range(lo=20, hi=25)]
    """
    if lo >= hi:
        return []
    first = bisect_right(ranges, lo, key=lambda range_: range_.hi)
    last = bisect_left(ranges, hi, key=lambda range_: range_.lo)
    clipped = list(ranges[first:last])
    if clipped and clipped[0].lo < lo:
        clipped[0] = Range(lo, clipped[0].hi)
    if clipped and clipped[-1].hi > hi:
        clipped[-1] = Range(clipped[-1].lo, hi)
    return clipped


def gaps(ranges: Ranges, lo: int, hi: int) -> Ranges:
    """Return the ranges between `lo` and `hi` that a set does not cover.

    >>> gaps([Range(0, 10), Range(20, 30)], 5, 40)
    [Range(lo=10, hi=20), Range(lo=30, hi=40)]
    """
    if lo >= hi:
        return []
    covered = clip_ranges(ranges, lo, hi)
    if not covered:
        return [Range(lo, hi)]
    between = [Range(one.hi, other.lo) for one, other in pairwise(covered)]
    head = [Range(lo, covered[0].lo)] if covered[0].lo > lo else []
    tail = [Range(covered[-1].hi, hi)] if covered[-1].hi < hi else []
    return [*head, *between, *tail]


def overlaps(ranges: Ranges, lo: int, hi: int) -> bool:
    """Return whether a set overlaps the range from `lo` to `hi`.

    >>> overlaps([Range(0, 10)], 10, 20)
    False
    """
    first = bisect_right(ranges, lo, key=lambda range_: range_.hi)
    return lo < hi and first < len(ranges) and ranges[first].lo < hi


def total_length(ranges: Ranges) -> int:
    """Return the sum of the lengths of the ranges.

    >>> total_length([Range(0, 10), Range(20, 30)])
    20
    """
    return sum(hi - lo for lo, hi in ranges)
