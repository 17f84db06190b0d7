"""Sets of moments as ranges: half-open, in order, apart from each other.

A set is a list of `Range` in which each ends before the next begins. All functions take and return such sets, and take
time that grows with the number of ranges, never with their lengths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """From `lo` on, up to but without `hi`."""

    lo: int
    hi: int


Ranges = Sequence[Range]


def merged(ranges: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the set of all that these ranges hold, in whatever order they come; empty ones hold nothing.

    >>> merged([(5, 7), (1, 3), (3, 4), (9, 9)])
    [Range(lo=1, hi=4), Range(lo=5, hi=7)]
    """
    result: list[Range] = []
    for one in sorted(ranges):
        lo, hi = one
        if lo >= hi:
            continue
        if result and lo <= result[-1].hi:
            if hi > result[-1].hi:
                result[-1] = Range(result[-1].lo, hi)
        else:
            # To make ranges anew is most of what this would cost.
            result.append(one if isinstance(one, Range) else Range(lo, hi))
    return result


def union(one: Ranges, other: Ranges) -> Ranges:
    """Return what either holds.

    >>> union([Range(1, 3)], [Range(2, 5)])
    [Range(lo=1, hi=5)]
    """
    if not one or not other:
        return one or other
    return merged([*one, *other])


def subtract(one: Ranges, other: Ranges) -> Ranges:
    """Return what the first holds and the second does not.

    >>> subtract([Range(0, 10)], [Range(2, 3), Range(5, 20)])
    [Range(lo=0, hi=2), Range(lo=3, hi=5)]
    """
    if not one or not other:
        return one
    result: list[Range] = []
    place, many = 0, len(other)
    for start, hi in one:
        while place < many and other[place].hi <= start:
            place += 1
        lo, at = start, place
        while at < many and other[at].lo < hi:
            if other[at].lo > lo:
                result.append(Range(lo, other[at].lo))
            lo = max(lo, other[at].hi)
            at += 1
        if lo < hi:
            result.append(Range(lo, hi))
    return result


def intersect(one: Ranges, other: Ranges) -> Ranges:
    """Return what both hold.

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


def within(ranges: Ranges, lo: int, hi: int) -> Ranges:
    """Return what a set holds from `lo` to `hi`; many ranges elsewhere cost nothing.

    >>> within([Range(0, 10), Range(20, 30)], 5, 25)
    [Range(lo=5, hi=10), Range(lo=20, hi=25)]
    """
    if lo >= hi:
        return []
    first = bisect_right(ranges, lo, key=lambda one: one.hi)
    last = bisect_left(ranges, hi, key=lambda one: one.lo)
    found = list(ranges[first:last])
    if found and found[0].lo < lo:
        found[0] = Range(lo, found[0].hi)
    if found and found[-1].hi > hi:
        found[-1] = Range(found[-1].lo, hi)
    return found


def gaps(ranges: Ranges, lo: int, hi: int) -> Ranges:
    """Return what a set leaves out from `lo` to `hi`.

    >>> gaps([Range(0, 10), Range(20, 30)], 5, 40)
    [Range(lo=10, hi=20), Range(lo=30, hi=40)]
    """
    if lo >= hi:
        return []
    held = within(ranges, lo, hi)
    if not held:
        return [Range(lo, hi)]
    between = [Range(one.hi, other.lo) for one, other in pairwise(held)]
    head = [Range(lo, held[0].lo)] if held[0].lo > lo else []
    tail = [Range(held[-1].hi, hi)] if held[-1].hi < hi else []
    return [*head, *between, *tail]


def touches(ranges: Ranges, lo: int, hi: int) -> bool:
    """Tell whether a set holds anything from `lo` to `hi`.

    >>> touches([Range(0, 10)], 10, 20)
    False
    """
    first = bisect_right(ranges, lo, key=lambda one: one.hi)
    return lo < hi and first < len(ranges) and ranges[first].lo < hi


def size(ranges: Ranges) -> int:
    """Return how much a set holds.

    >>> size([Range(0, 10), Range(20, 30)])
    20
    """
    return sum(one.hi - one.lo for one in ranges)
