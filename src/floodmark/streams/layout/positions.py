"""Positions ({segment: offset}) and cuts (positions that cover the whole key space exactly once).

A position may leave out segments that were never written.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from floodmark._util.ints import INT64_MAX
from floodmark.errors import CutInvalid, ForeignSegment, PositionInvalid
from floodmark.streams.layout.layout import KeyRange, Layout, Segment, show_range, uncovered_ranges

Position = Mapping[int, int]
"""{segment id: offset}; the offset is exclusive: everything before it is included."""


class Standing(enum.Enum):
    """How a position compares to a cut."""

    BEHIND = "behind"
    """At least one segment is before the cut, and none after it."""
    MIXED = "mixed"
    """Some segments are before the cut and some after it."""
    PASSED = "passed"
    """No segment is before the cut. A position exactly at the cut has passed it."""


def check_position(layout: Layout, position: object) -> dict[int, int]:
    """Return `position` as a dict. Refuse invalid offsets, and segments that this stream does not have.

    >>> check_position(Layout.create(2), {0: 10})
    {0: 10}
    >>> check_position(Layout.create(2), {0: 10, 1: -1})
    Traceback (most recent call last):
    floodmark.errors.PositionInvalid: The offset in segment 1 is -1. ... Leave the segment out ... [position-invalid]
    >>> check_position(Layout.create(2), {7: 10})
    Traceback (most recent call last):
    floodmark.errors.ForeignSegment: The position names segment 7. ... [foreign-segment]
    """
    if not isinstance(position, Mapping):
        raise PositionInvalid(
            f"The position is {position!r}.",
            rule="A position maps segment ids to offsets.",
            remedy="Pass for example {0: 100}.",
            position=position,
        )
    segment_count = len(layout.segments)
    for number, offset in position.items():
        if not _is_whole(number) or not 0 <= number < segment_count:
            raise ForeignSegment(
                f"The position names segment {number!r}.",
                rule=f"The segments of this stream are 0 to {segment_count - 1}.",
                remedy="Take positions from this stream; they do not survive deleting and re-creating it.",
                segment=number,
            )
        if not _is_whole(offset) or not 0 <= offset <= INT64_MAX:
            raise PositionInvalid(
                f"The offset in segment {number} is {offset!r}.",
                rule="An offset is a whole number from 0 to 2**63 - 1.",
                remedy="Leave the segment out if nothing was written to it.",
                segment=number,
                offset=offset,
            )
    return dict(position)


def furthest_position(layout: Layout, positions: Iterable[Position]) -> dict[int, int]:
    """Return the least position that has passed all of `positions`. Their order does not matter.

    Each segment gets its highest offset. A segment is dropped if one of its descendants is present: a writer or
    reader that is in a descendant has finished the segment.

    >>> layout = Layout.create(2).split(1)
    >>> furthest_position(layout, [{0: 5, 1: 90}, {0: 7, 2: 1}])
    {0: 7, 2: 1}
    """
    highest: dict[int, int] = {}
    for position in positions:
        for number, offset in position.items():
            if highest.get(number, -1) < offset:
                highest[number] = offset
    # Check descendants against all segments at once: merging one position at a time would depend on their order.
    return {number: highest[number] for number in sorted(highest) if not layout.has_descendant(number, highest)}


def compare_to_cut(layout: Layout, position: Position, cut: Position) -> Standing:
    """Return how a position compares to a cut.

    >>> layout, cut = Layout.create(2), {0: 10, 1: 10}
    >>> [compare_to_cut(layout, {0: offset, 1: 10}, cut).value for offset in (9, 10, 11)]
    ['behind', 'passed', 'passed']
    >>> compare_to_cut(layout, {0: 9, 1: 11}, cut).value
    'mixed'
    """
    if not position:
        raise PositionInvalid(
            "The position is empty.",
            rule="Only a position with at least one segment can be compared with a cut.",
            remedy="Pass the position of a reader that has segments.",
            position={},
        )
    cut_segments = [layout.segment(number) for number in cut]
    is_before = is_after = False
    for number, offset in position.items():
        cut_offset = cut.get(number)
        if cut_offset is None:
            segment = layout.segment(number)
            other = _cut_segment(cut_segments, segment)
            # Two segments with a common key: the one with the greater id descends from the other.
            is_after |= segment.id > other.id
            is_before |= segment.id < other.id
        else:
            is_after |= offset > cut_offset
            is_before |= offset < cut_offset
    if is_before:
        return Standing.MIXED if is_after else Standing.BEHIND
    return Standing.PASSED


def save_position(position: Position) -> dict[str, int]:
    """Return a position as a JSON object: its keys are strings.

    >>> save_position({3: 17})
    {'3': 17}
    """
    return {str(number): position[number] for number in sorted(position)}


def load_position(saved: Mapping[str, int]) -> dict[int, int]:
    """Return the position that `save_position` saved.

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
        remedy="Take the cut from the marks log, stream.head() or stream.tail().",
        segment=segment.id,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_WHOLE: KeyRange = (0.0, 1.0)


def cut_over(layout: Layout, positions: Iterable[Position], before: Position | None = None) -> dict[int, int]:
    """Return the least cut that has passed all `positions` and the cut `before`.

    Keys that no position covers are filled with segments of the newest epoch in use, at offset 0. Keys that
    `before` covers need no filling.

    >>> layout = Layout.create(2).replace([0, 1], [(0, 0.6), (0.6, 1)])
    >>> cut_over(layout, [{1: 50, 2: 20}])
    {2: 20, 3: 0}
    >>> cut_over(Layout.create(2), [{0: 5}], before={0: 1, 1: 9})
    {0: 5, 1: 9}
    """
    cut = furthest_position(layout, positions if before is None else [*positions, before])
    if not cut:
        return {segment.id: 0 for segment in layout.segments_of(0)}
    while missing := uncovered_ranges([_WHOLE], _ranges(layout, cut)):
        epoch = max(layout.segment(number).epoch for number in cut)
        beginning = {
            segment.id: 0
            for segment in layout.segments_of(epoch)
            if segment.id not in cut and any(segment.overlaps(keys) for keys in missing)
        }
        # An added segment may drop an older one with a wider range, which opens a new gap: repeat.
        cut = furthest_position(layout, [cut, beginning])
    return cut


def check_cut(layout: Layout, cut: object) -> dict[int, int]:
    """Return `cut` as a dict, or refuse a position that does not cover the key space exactly once.

    >>> check_cut(Layout.create(2), {0: 5, 1: 9})
    {0: 5, 1: 9}
    >>> check_cut(Layout.create(2), {0: 5})
    Traceback (most recent call last):
    floodmark.errors.CutInvalid: The cut has no segment for the keys [0.5, 1). ... [cut-invalid]
    """
    position = check_position(layout, cut)
    segments = sorted((layout.segment(number) for number in position), key=lambda segment: segment.low)
    for segment, following in pairwise(segments):
        if segment.overlaps(following):
            raise _descendant_in_cut(*sorted((segment.id, following.id)))
    missing = uncovered_ranges([_WHOLE], _ranges(layout, position))
    if missing:
        raise CutInvalid(
            f"The cut has no segment for the keys {', '.join(map(show_range, missing))}.",
            rule="A cut covers the whole key space.",
            remedy="Add the segments that have these keys, at offset 0 if nothing of them was read.",
            missing=missing,
        )
    for number in sorted(position):
        newer = [other for other in position if other > number and layout.has_descendant(number, [other])]
        if newer:
            raise _descendant_in_cut(number, newer[0])
    return position


def replace_finished(layout: Layout, position: Position, finished: Iterable[int]) -> dict[int, int]:
    """Return a group's position with finished segments replaced by their successors.

    A segment begins when all its predecessors are finished. A finished segment stays until all its successors have
    begun.

    >>> layout = Layout.create(2).merge([0, 1])
    >>> replace_finished(layout, {0: 7, 1: 9}, finished=[0])
    {0: 7, 1: 9}
    >>> replace_finished(layout, {0: 7, 1: 9}, finished=[0, 1])
    {2: 0}
    """
    reading = dict(position)
    done = {number for number in finished if number in reading}
    for number in done:
        for segment in layout.successors(number):
            if all(before.id in done for before in layout.predecessors(segment.id)):
                reading.setdefault(segment.id, 0)
    replaced = {number for number in done if _all_begun(layout.successors(number), reading)}
    return {number: offset for number, offset in sorted(reading.items()) if number not in replaced}


def _all_begun(segments: Sequence[Segment], reading: Position) -> bool:
    return bool(segments) and all(segment.id in reading for segment in segments)


def _ranges(layout: Layout, position: Iterable[int]) -> list[KeyRange]:
    return [(segment.low, segment.high) for segment in map(layout.segment, position)]


def _descendant_in_cut(older: int, newer: int) -> CutInvalid:
    return CutInvalid(
        f"The cut has segment {older} and its descendant, segment {newer}.",
        rule="A reader enters a segment only after finishing the segments it replaced.",
        remedy=f"Leave segment {older} out, or segment {newer} if it was not begun.",
        segments=[older, newer],
    )


def expand_cut(layout: Layout, cut: Position, ends: Mapping[int, int]) -> dict[int, int]:
    """Return the offset of a cut in every segment up to it: sealed segments before the cut are included at their end.

    >>> expand_cut(Layout.create(1).split(0), {1: 4, 2: 0}, {0: 9, 1: 7, 2: 5})
    {0: 9, 1: 4, 2: 0}
    """
    offsets: dict[int, int] = {}
    for segment in layout.segments:
        if segment.id in cut:
            offsets[segment.id] = cut[segment.id]
        elif layout.has_descendant(segment.id, cut):
            offsets[segment.id] = ends[segment.id]
    return offsets
