"""Positions, {segment: offset} without segments never written, and cuts: positions that cover the key space once."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from floodmark._util.ints import INT64_MAX
from floodmark.errors import CutInvalid, ForeignSegment, PositionInvalid
from floodmark.streams.layout.layout import KeyRange, Layout, Segment, show_range, uncovered

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


_WHOLE: KeyRange = (0.0, 1.0)


def cut_over(layout: Layout, positions: Iterable[Position], before: Position | None = None) -> dict[int, int]:
    """Return the least cut that neither a position nor the cut `before` lies behind.

    Keys that nobody has come to are filled from the newest epoch that somebody has, at its beginning. The cut
    `before` counts first: keys that it covers need no filling.

    >>> layout = Layout.create(2).replace([0, 1], [(0, 0.6), (0.6, 1)])
    >>> cut_over(layout, [{1: 50, 2: 20}])
    {2: 20, 3: 0}
    >>> cut_over(Layout.create(2), [{0: 5}], before={0: 1, 1: 9})
    {0: 5, 1: 9}
    """
    cut = furthest(layout, positions if before is None else [*positions, before])
    if not cut:
        return {segment.id: 0 for segment in layout.segments_of(0)}
    while missing := uncovered([_WHOLE], _ranges(layout, cut)):
        epoch = max(layout.segment(number).epoch for number in cut)
        beginning = {
            segment.id: 0
            for segment in layout.segments_of(epoch)
            if segment.id not in cut and any(segment.overlaps(keys) for keys in missing)
        }
        # A segment that is put in may push out older ones with more keys than its own: then there is a new gap.
        cut = furthest(layout, [cut, beginning])
    return cut


def check_cut(layout: Layout, cut: object) -> dict[int, int]:
    """Return `cut` as a dict, or refuse what does not cover the key space once.

    >>> check_cut(Layout.create(2), {0: 5, 1: 9})
    {0: 5, 1: 9}
    >>> check_cut(Layout.create(2), {0: 5})
    Traceback (most recent call last):
    floodmark.errors.CutInvalid: The cut does not say where it is for the keys [0.5, 1). ... [cut-invalid]
    """
    position = check_position(layout, cut)
    segments = sorted((layout.segment(number) for number in position), key=lambda segment: segment.low)
    for one, other in pairwise(segments):
        if one.overlaps(other):
            raise _both_sides(min(one.id, other.id), max(one.id, other.id))
    missing = uncovered([_WHOLE], _ranges(layout, position))
    if missing:
        raise CutInvalid(
            f"The cut does not say where it is for the keys {', '.join(map(show_range, missing))}.",
            rule="A cut covers the whole key space.",
            remedy="Add the segments that have these keys, at 0 if nothing of them was read.",
            missing=missing,
        )
    for number in sorted(position):
        newer = [other for other in position if other > number and layout.has_descendant(number, [other])]
        if newer:
            raise _both_sides(number, newer[0])
    return position


def is_cut(layout: Layout, position: Position) -> bool:
    """Return whether a position of this stream covers the key space once.

    >>> is_cut(Layout.create(2), {0: 5}), is_cut(Layout.create(2), {0: 5, 1: 0})
    (False, True)
    """
    try:
        check_cut(layout, position)
    except CutInvalid:
        return False
    return True


def replace_finished(layout: Layout, position: Position, finished: Iterable[int]) -> dict[int, int]:
    """Return a group's position with segments that were read to their end replaced by those that came after.

    A segment begins when all it takes the place of are finished; a finished one stays until all that come after it
    have begun.

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
    over = {number for number in done if _all_begun(layout.successors(number), reading)}
    return {number: offset for number, offset in sorted(reading.items()) if number not in over}


def _all_begun(segments: Sequence[Segment], reading: Position) -> bool:
    return bool(segments) and all(segment.id in reading for segment in segments)


def _ranges(layout: Layout, position: Iterable[int]) -> list[KeyRange]:
    return [(segment.low, segment.high) for segment in map(layout.segment, position)]


def _both_sides(older: int, newer: int) -> CutInvalid:
    return CutInvalid(
        f"The cut has segment {older}, and segment {newer} that came out of it.",
        rule="Whoever is in the newer one has finished the older one.",
        remedy="Leave the older one out, or the newer one if it was not begun.",
        segments=[older, newer],
    )


def expand_cut(layout: Layout, cut: Position, ends: Mapping[int, int]) -> dict[int, int]:
    """Return a cut as the ends of all segments that it has passed or lies in.

    >>> expand_cut(Layout.create(1).split(0), {1: 4, 2: 0}, {0: 9, 1: 7, 2: 5})
    {0: 9, 1: 4, 2: 0}
    """
    found: dict[int, int] = {}
    for segment in layout.segments:
        if segment.id in cut:
            found[segment.id] = cut[segment.id]
        elif layout.has_descendant(segment.id, cut):
            found[segment.id] = ends[segment.id]
    return found
