"""What may be sealed and put in its place: the new ranges have exactly the keys of the segments they replace."""

from collections.abc import Iterable, Sequence

from floodmark.errors import DuplicateName, InvalidOption, InvalidValue, RangesMissing, RangesOverlap, SegmentSealed
from floodmark.streams._segments import KeyRange, Segment, check_disjoint, show_range, uncovered


def check_replacement(
    sealed: Sequence[Segment], ranges: Iterable[object], current: Sequence[Segment]
) -> list[KeyRange]:
    """Return the ranges in the order of their keys, if they can take the place of the segments `sealed`.

    >>> open_ones = [Segment(0, 0, 0.0, 0.5), Segment(1, 0, 0.5, 1.0)]
    >>> check_replacement(open_ones[:1], [(0.2, 0.5), (0, 0.2)], open_ones)
    [(0.0, 0.2), (0.2, 0.5)]
    >>> check_replacement(open_ones[:1], [(0, 0.2)], open_ones)
    Traceback (most recent call last):
    floodmark.errors.RangesMissing: No new segment takes the keys [0.2, 0.5). ... [ranges-missing]
    """
    _check_open(sealed, current)
    fresh = check_disjoint(ranges)
    kept = [segment for segment in current if segment not in sealed]
    for keys in fresh:
        for segment in kept:
            if segment.overlaps(keys):
                raise RangesOverlap(
                    f"The new range {show_range(keys)} overlaps the segment {segment}, which stays open.",
                    rule="A key belongs to one segment.",
                    remedy=f"Seal the segment {segment.id} too, or leave its keys out.",
                    ranges=[keys, (segment.low, segment.high)],
                    segment=segment.id,
                )
    missing = uncovered([(segment.low, segment.high) for segment in sealed], fresh)
    if missing:
        raise RangesMissing(
            f"No new segment takes the keys {', '.join(map(show_range, missing))}.",
            rule="The new segments have exactly the keys of those that are sealed.",
            remedy="Add ranges for them.",
            missing=missing,
        )
    return fresh


def check_merge(segments: Sequence[Segment]) -> KeyRange:
    """Return the range of one segment in the place of several that lie side by side.

    >>> check_merge([Segment(0, 0, 0.0, 0.25), Segment(2, 0, 0.5, 1.0)])
    Traceback (most recent call last):
    floodmark.errors.RangesMissing: Between the segments lie the keys [0.25, 0.5). ... [ranges-missing]
    """
    if len(segments) < 2:
        raise InvalidValue(
            f"{len(segments)} segments are to be merged.",
            rule="At least two are merged.",
            remedy="Name the segments that lie side by side.",
            segments=[segment.id for segment in segments],
        )
    low, high = min(segment.low for segment in segments), max(segment.high for segment in segments)
    between = uncovered([(low, high)], [(segment.low, segment.high) for segment in segments])
    if between:
        raise RangesMissing(
            f"Between the segments lie the keys {', '.join(map(show_range, between))}.",
            rule="Segments that are merged lie side by side.",
            remedy="Merge those between them too.",
            missing=between,
        )
    return low, high


def check_segment_count(count: object, least: int = 1) -> int:
    """Return how many segments there shall be, or refuse the number.

    >>> check_segment_count(0)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The number of segments is 0. It must be at least 1. ... [invalid-option]
    """
    if isinstance(count, int) and not isinstance(count, bool) and count >= least:
        return count
    raise InvalidOption(
        f"The number of segments is {count!r}.",
        rule=f"It must be at least {least}.",
        remedy="Pass a whole number; a stream can be scaled later.",
        segments=count,
    )


def cut_points(keys: KeyRange, parts: int) -> list[float]:
    """Return the ends of `parts` equally wide ranges; the outer ones are exactly those of `keys`.

    >>> cut_points((0.5, 1.0), 2)
    [0.5, 0.75, 1.0]
    """
    low, high = keys
    return [low, *(low + (high - low) * place / parts for place in range(1, parts)), high]


def _check_open(sealed: Sequence[Segment], current: Sequence[Segment]) -> None:
    if not sealed:
        raise InvalidValue(
            "No segment is to be sealed.",
            rule="New segments take the place of old ones.",
            remedy="Name the segments whose keys the new ones get.",
        )
    if len(set(sealed)) < len(sealed):
        raise DuplicateName(
            f"The segments to be sealed are {[segment.id for segment in sealed]}.",
            rule="A segment is sealed once.",
            remedy="Name each one once.",
            segments=[segment.id for segment in sealed],
        )
    for segment in sealed:
        if segment not in current:
            raise SegmentSealed(
                f"The segment {segment} is sealed already.",
                rule="Only an open segment can be sealed.",
                remedy=f"Read the layout again: the open segments are {', '.join(str(s.id) for s in current)}.",
                segment=segment.id,
            )
