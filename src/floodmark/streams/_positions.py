"""Positions: how far a writer or a reader has come, as {segment: offset}. What was never written is left out."""

import enum
from collections.abc import Iterable, Mapping

from floodmark._util.ints import INT64_MAX
from floodmark.errors import CutInvalid, ForeignSegment, PositionInvalid
from floodmark.streams._layout import Layout
from floodmark.streams._segments import Segment

Position = Mapping[int, int]
"""{segment id: offset}; an offset is the first one that is not included any more."""


class Standing(enum.Enum):
    """Where a position stands to a cut."""

    BEHIND = "behind"
    """Some of it lies before the cut and nothing after it."""
    MIXED = "mixed"
    """Some of it lies before the cut and some after it."""
    PASSED = "passed"
    """Nothing of it lies before the cut. To be exactly at the cut is to have passed it."""


def check_position(layout: Layout, position: object) -> dict[int, int]:
    """Return `position` as a dict, or refuse what is none, and a segment that is not of this stream.

    >>> check_position(Layout.create(2), {0: 10})
    {0: 10}
    >>> check_position(Layout.create(2), {0: 10, 1: -1})
    Traceback (most recent call last):
    floodmark.errors.PositionInvalid: The offset in segment 1 is -1. ... Leave a segment out ... [position-invalid]
    >>> check_position(Layout.create(2), {7: 10})
    Traceback (most recent call last):
    floodmark.errors.ForeignSegment: The position names segment 7. ... [foreign-segment]
    """
    if not isinstance(position, Mapping):
        raise PositionInvalid(
            f"The position is {position!r}.",
            rule="A position maps the ids of segments to offsets.",
            remedy="Pass for example {0: 100}.",
            position=position,
        )
    known = len(layout.segments)
    for number, offset in position.items():
        if not _is_whole(number) or not 0 <= number < known:
            raise ForeignSegment(
                f"The position names segment {number!r}.",
                rule=f"The segments of this stream are 0 to {known - 1}.",
                remedy="Take positions from this stream; one that was deleted and made again has other segments.",
                segment=number,
            )
        if not _is_whole(offset) or not 0 <= offset <= INT64_MAX:
            raise PositionInvalid(
                f"The offset in segment {number} is {offset!r}.",
                rule="It is a whole number from 0 on, of at most 63 bits.",
                remedy="Leave a segment out if nothing was written to it.",
                segment=number,
                offset=offset,
            )
    return dict(position)


def furthest(layout: Layout, positions: Iterable[Position]) -> dict[int, int]:
    """Return the least position that none of `positions` lies behind, in whatever order they come.

    In each segment the highest offset counts, and a segment drops out when one that came out of it is there:
    whoever is there has finished it.

    >>> layout = Layout.create(2).split(1)
    >>> furthest(layout, [{0: 5, 1: 90}, {0: 7, 2: 1}])
    {0: 7, 2: 1}
    """
    highest: dict[int, int] = {}
    for position in positions:
        for number, offset in position.items():
            if highest.get(number, -1) < offset:
                highest[number] = offset
    # The drop-outs are found among all of them at once; one by one, the order would decide.
    return {number: highest[number] for number in sorted(highest) if not layout.has_descendant(number, highest)}


def compare(layout: Layout, position: Position, cut: Position) -> Standing:
    """Return where a position stands to a cut.

    >>> layout, cut = Layout.create(2), {0: 10, 1: 10}
    >>> [compare(layout, {0: offset, 1: 10}, cut).value for offset in (9, 10, 11)]
    ['behind', 'passed', 'passed']
    >>> compare(layout, {0: 9, 1: 11}, cut).value
    'mixed'
    """
    if not position:
        raise PositionInvalid(
            "The position is empty.",
            rule="Only what is somewhere can be compared with a cut.",
            remedy="Leave a reader without segments out.",
            position={},
        )
    cut_segments = [layout.segment(number) for number in cut]
    is_before = is_after = False
    for number, offset in position.items():
        at = cut.get(number)
        if at is None:
            segment = layout.segment(number)
            other = _cut_segment(cut_segments, segment)
            # A common key means that one came out of the other, and the cut has only one side of a segment.
            is_after |= segment.id > other.id
            is_before |= segment.id < other.id
        else:
            is_after |= offset > at
            is_before |= offset < at
    if is_before:
        return Standing.MIXED if is_after else Standing.BEHIND
    return Standing.PASSED


def save_position(position: Position) -> dict[str, int]:
    """Return a position as a JSON object, whose names are text.

    >>> save_position({3: 17})
    {'3': 17}
    """
    return {str(number): position[number] for number in sorted(position)}


def load_position(saved: Mapping[str, int]) -> dict[int, int]:
    """Return the position that was saved.

    >>> load_position({"3": 17})
    {3: 17}
    """
    return {int(number): offset for number, offset in saved.items()}


def _cut_segment(cut_segments: Iterable[Segment], segment: Segment) -> Segment:
    for other in cut_segments:
        if other.overlaps(segment):
            return other
    raise CutInvalid(
        f"The cut has none of the keys of segment {segment}.",
        rule="A cut covers the whole key space.",
        remedy="Compare with a cut of the marks log, or complete it with cut_over().",
        segment=segment.id,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
