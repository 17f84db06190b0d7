"""Segments: half-open ranges of the key space [0, 1), each with an id that a later one never reuses."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from floodmark.errors import InvalidValue, RangeOutOfSpace, RangesOverlap

KeyRange = tuple[float, float]
"""A half-open range of the key space: (low, high), with the low end inside."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One ordered log of a stream: it takes the keys in [low, high) from its epoch on, until it is sealed.

    Ids count through the life of a stream, so a segment of a later epoch always has a greater id.

    >>> Segment(0, epoch=0, low=0.0, high=0.5)
    Segment(id=0, epoch=0, low=0.0, high=0.5)
    """

    id: int
    epoch: int
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse a negative id or epoch, and a range that is not in the key space."""
        for what, number in (("id", self.id), ("epoch", self.epoch)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidValue(
                    f"The {what} of a segment is {number!r}.",
                    rule="It is a whole number from 0 on.",
                    remedy="Take segments from the layout of their stream.",
                    what=what,
                    value=number,
                )
        check_range((self.low, self.high))

    def overlaps(self, other: "Segment | KeyRange") -> bool:
        """Return whether a key can belong to both.

        >>> Segment(0, 0, 0.0, 0.5).overlaps(Segment(1, 0, 0.5, 1.0))
        False
        """
        low, high = (other.low, other.high) if isinstance(other, Segment) else other
        return self.low < high and low < self.high

    def __str__(self) -> str:
        """Return the id and the range, for a person."""
        return f"{self.id} {show_range((self.low, self.high))}"


def check_range(keys: object) -> KeyRange:
    """Return `keys` as a range of the key space, or refuse it.

    >>> check_range((0, 0.5))
    (0.0, 0.5)
    >>> check_range((0.5, 0.5))
    Traceback (most recent call last):
    floodmark.errors.RangeOutOfSpace: The range of keys is (0.5, 0.5). ... [range-out-of-space]
    """
    if isinstance(keys, Sequence) and len(keys) == 2 and all(_is_number(end) for end in keys):
        low, high = float(keys[0]), float(keys[1])
        if 0.0 <= low < high <= 1.0:
            return low, high
    raise RangeOutOfSpace(
        f"The range of keys is {keys!r}.",
        rule="A range is (low, high) with 0 <= low < high <= 1.",
        remedy="Give both ends as numbers; the low end is inside, the high end is not.",
        range=keys,
    )


def check_disjoint(ranges: Iterable[object]) -> list[KeyRange]:
    """Return the ranges, sorted; refuse one that is none, and two that overlap.

    >>> check_disjoint([(0.5, 1), (0, 0.5)])
    [(0.0, 0.5), (0.5, 1.0)]
    """
    found = sorted(check_range(keys) for keys in ranges)
    for before, after in pairwise(found):
        if after[0] < before[1]:
            raise RangesOverlap(
                f"The ranges {show_range(before)} and {show_range(after)} overlap.",
                rule="A key belongs to one segment.",
                remedy="Let each range end where the next one begins.",
                ranges=[before, after],
            )
    return found


def uncovered(wanted: Iterable[KeyRange], ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the parts of `wanted` that are in none of `ranges`; both are disjoint.

    >>> uncovered([(0.0, 1.0)], [(0.25, 0.5), (0.75, 1.0)])
    [(0.0, 0.25), (0.5, 0.75)]
    """
    gaps: list[KeyRange] = []
    have = sorted(ranges)
    for low, high in sorted(wanted):
        at = low
        for start, end in have:
            if end <= at or start >= high:
                continue
            if start > at:
                gaps.append((at, start))
            at = end
        if at < high:
            gaps.append((at, high))
    return gaps


def show_range(keys: KeyRange) -> str:
    """Return a range as it is written.

    >>> show_range((0.0, 0.5))
    '[0, 0.5)'
    """
    return f"[{keys[0]:g}, {keys[1]:g})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
