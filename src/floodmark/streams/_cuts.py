"""Cuts: positions that cover the whole key space once, so that a reader can begin or end at them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from floodmark.errors import CutInvalid
from floodmark.streams._layout import Layout
from floodmark.streams._positions import Position, check_position, furthest
from floodmark.streams._segments import KeyRange, Segment, show_range, uncovered

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


def after_finished(layout: Layout, position: Position, finished: Iterable[int]) -> dict[int, int]:
    """Return a group's position with segments that were read to their end replaced by those that came after.

    A segment begins when all it takes the place of are finished; a finished one stays until all that come after it
    have begun.

    >>> layout = Layout.create(2).merge([0, 1])
    >>> after_finished(layout, {0: 7, 1: 9}, finished=[0])
    {0: 7, 1: 9}
    >>> after_finished(layout, {0: 7, 1: 9}, finished=[0, 1])
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


def whole_cut(layout: Layout, cut: Position, ends: Mapping[int, int]) -> dict[int, int]:
    """Return a cut as the ends of all segments that it has passed or lies in.

    >>> whole_cut(Layout.create(1).split(0), {1: 4, 2: 0}, {0: 9, 1: 7, 2: 5})
    {0: 9, 1: 4, 2: 0}
    """
    found: dict[int, int] = {}
    for segment in layout.segments:
        if segment.id in cut:
            found[segment.id] = cut[segment.id]
        elif layout.has_descendant(segment.id, cut):
            found[segment.id] = ends[segment.id]
    return found
