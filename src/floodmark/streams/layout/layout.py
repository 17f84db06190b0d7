"""The layout of a stream: which segments share its key space, epoch by epoch, and which came out of which.

The point of a key is the first 53 bits of its BLAKE2b digest of 8 bytes (text as UTF-8), read as a fraction of 1:
the same in every process, release and language. 53 bits are what a float keeps, so the point is exact and never
rounds up to 1. A segment has the keys of a half-open range of [0, 1), and an id that is never used again.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.errors import (
    DuplicateName,
    InvalidOption,
    InvalidValue,
    KeyOutOfSpace,
    RangeOutOfSpace,
    RangesMissing,
    RangesOverlap,
    SegmentSealed,
    UnknownSegment,
)
from floodmark.progress import Snapshot

Key = str | bytes
"""What events are routed by: those of one key stay in order."""

_SHIFT = 11
_UNIT = 2.0**-53


def key_point(key: Key) -> float:
    """Return the point of a key in [0, 1).

    >>> key_point("customer-7")
    0.4123318747867929
    >>> key_point("customer-7") == key_point(b"customer-7")
    True
    """
    return (stable_hash(key) >> _SHIFT) * _UNIT


def key_points(keys: Sequence[Key]) -> NDArray[np.float64]:
    """Return the points of many keys.

    >>> key_points(["customer-7", "customer-8"]).round(3).tolist()
    [0.412, 0.627]
    """
    try:
        digests = [
            blake2b(key.encode() if isinstance(key, str) else key, digest_size=8, usedforsecurity=False).digest()
            for key in keys
        ]
    except (TypeError, AttributeError, UnicodeEncodeError):
        for key in keys:
            stable_hash(key)
        raise
    numbers = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)
    return (numbers >> np.uint64(_SHIFT)).astype(np.float64) * _UNIT


def stable_hash(key: Key) -> int:
    """Return 64 bits that depend on nothing but the key.

    >>> stable_hash(7)
    Traceback (most recent call last):
    floodmark.errors.KeyOutOfSpace: The key is 7. It must be text or bytes. ... [key-out-of-space]
    """
    try:
        raw = key.encode() if isinstance(key, str) else key
        return int.from_bytes(blake2b(raw, digest_size=8, usedforsecurity=False).digest())
    except (TypeError, UnicodeEncodeError) as error:
        raise KeyOutOfSpace(
            f"The key is {key!r}.",
            rule="It must be text or bytes.",
            remedy="Write the value that should stay in order as text.",
            key=key,
        ) from error


def check_point(point: object) -> float:
    """Return `point` if it lies in the key space, or refuse it.

    >>> check_point(1.0)
    Traceback (most recent call last):
    floodmark.errors.KeyOutOfSpace: The point is 1.0. The key space is [0, 1). ... [key-out-of-space]
    """
    if isinstance(point, int | float) and not isinstance(point, bool) and 0.0 <= point < 1.0:
        return float(point)
    raise KeyOutOfSpace(
        f"The point is {point!r}.",
        rule="The key space is [0, 1).",
        remedy="Route by the key itself, or pass a point from 0 to below 1.",
        point=point,
    )


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


@dataclass(frozen=True, slots=True)
class Layout:
    """All segments a stream ever had. In each epoch they share the key space; scaling begins the next epoch.

    A layout does not change: scaling returns a new one.

    >>> layout = Layout.create(2).split(1)
    >>> print(layout)
    epoch 1: 0 [0, 0.5), 2 [0.5, 0.75), 3 [0.75, 1)
    >>> [segment.id for segment in layout.successors(1)]
    [2, 3]
    >>> layout.route("customer-7").id
    0
    """

    segments: tuple[Segment, ...]
    """All that ever were; the id of a segment is its place here."""
    sealed_in: tuple[int | None, ...]
    """For each segment the epoch in which others took its place, or None while it is open."""
    current: tuple[Segment, ...] = field(init=False, compare=False, repr=False)
    """The open segments, in the order of their keys."""
    _born: tuple[tuple[Segment, ...], ...] = field(init=False, compare=False, repr=False)
    _lows: list[float] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the segments by epoch, and the open ones by their keys."""
        open_ones = [s for s, sealed in zip(self.segments, self.sealed_in, strict=True) if sealed is None]
        open_ones.sort(key=lambda segment: segment.low)
        born: list[list[Segment]] = [[] for _ in range(self.segments[-1].epoch + 1)] if self.segments else []
        for segment in self.segments:
            born[segment.epoch].append(segment)
        object.__setattr__(self, "current", tuple(open_ones))
        object.__setattr__(self, "_born", tuple(map(tuple, born)))
        object.__setattr__(self, "_lows", [segment.low for segment in open_ones])

    @classmethod
    def create(cls, segments: int = 1) -> "Layout":
        """Return the layout of a new stream with equally wide segments.

        >>> print(Layout.create(4))
        epoch 0: 0 [0, 0.25), 1 [0.25, 0.5), 2 [0.5, 0.75), 3 [0.75, 1)
        """
        ends = split_points((0.0, 1.0), check_segment_count(segments))
        made = tuple(Segment(place, 0, low, high) for place, (low, high) in enumerate(pairwise(ends)))
        return cls(made, (None,) * len(made))

    @property
    def epoch(self) -> int:
        """The number of the current epoch: how often the stream was scaled."""
        return len(self._born) - 1

    def segment(self, number: int) -> Segment:
        """Return a segment by its id, open or sealed."""
        if isinstance(number, int) and 0 <= number < len(self.segments):
            return self.segments[number]
        raise UnknownSegment(
            f"There is no segment {number!r}.",
            rule=f"The segments of this stream are 0 to {len(self.segments) - 1}.",
            remedy="Take the ids from the layout of this stream.",
            segment=number,
        )

    def is_sealed(self, number: int) -> bool:
        """Return whether others have taken the place of a segment."""
        return self.sealed_in[self.segment(number).id] is not None

    def segments_of(self, epoch: int) -> tuple[Segment, ...]:
        """Return the segments that shared the key space in an epoch, in the order of their keys.

        >>> [segment.id for segment in Layout.create(2).split(1).segments_of(0)]
        [0, 1]
        """
        if epoch == self.epoch:
            return self.current
        found = [
            segment
            for segment, sealed in zip(self.segments, self.sealed_in, strict=True)
            if segment.epoch <= epoch and (sealed is None or sealed > epoch)
        ]
        return tuple(sorted(found, key=lambda segment: segment.low))

    def predecessors(self, number: int) -> tuple[Segment, ...]:
        """Return the segments that this one took the place of: they are read before it.

        >>> [segment.id for segment in Layout.create(2).merge([0, 1]).predecessors(2)]
        [0, 1]
        """
        segment = self.segment(number)
        return tuple(
            other
            for other in self.segments[: segment.id]
            if self.sealed_in[other.id] == segment.epoch and other.overlaps(segment)
        )

    def successors(self, number: int) -> tuple[Segment, ...]:
        """Return the segments that took the place of this one; none while it is open."""
        segment = self.segment(number)
        sealed = self.sealed_in[number]
        return () if sealed is None else tuple(other for other in self._born[sealed] if other.overlaps(segment))

    def has_descendant(self, number: int, among: Collection[int]) -> bool:
        """Return whether any of the segments `among` came out of this one, directly or through others.

        Whoever reads one of those has read this one to its end.

        >>> layout = Layout.create(2).merge([0, 1]).split(2)
        >>> layout.has_descendant(0, [4])  # 4 has none of the keys of 0, but came out of 2, which came out of 0
        True
        >>> layout.has_descendant(4, [0])
        False
        """
        segment, sealed = self.segment(number), self.sealed_in[number]
        if sealed is None:
            return False
        later = [other for other in map(self.segment, among) if other.epoch >= sealed]
        if any(other.overlaps(segment) for other in later):
            # In every epoch the segments share the key space: of two with a common key, one came out of the other.
            return True
        low, high = segment.low, segment.high
        newest = max((other.epoch for other in later), default=0)
        # What came out of a segment has, in each epoch, one range of keys without gaps; it only grows.
        for epoch in range(sealed, newest + 1):
            for born in self._born[epoch]:
                if born.overlaps((low, high)):
                    low, high = min(low, born.low), max(high, born.high)
            if any(other.epoch >= epoch and other.overlaps((low, high)) for other in later):
                return True
        return False

    def segment_at(self, point: float) -> Segment:
        """Return the open segment that has a point of the key space.

        >>> Layout.create(2).segment_at(0.5).id
        1
        """
        return self.current[bisect_right(self._lows, check_point(point)) - 1]

    def route(self, key: Key) -> Segment:
        """Return the open segment that a key belongs to."""
        return self.current[bisect_right(self._lows, key_point(key)) - 1]

    def route_many(self, keys: Sequence[Key]) -> NDArray[np.int64]:
        """Return the id of the open segment of each key.

        >>> Layout.create(4).route_many(["customer-7", "customer-8"]).tolist()
        [1, 2]
        """
        places = np.searchsorted(np.asarray(self._lows), key_points(keys), side="right") - 1
        return np.array([segment.id for segment in self.current], dtype=np.int64)[places]

    def split(self, number: int, parts: int = 2) -> "Layout":
        """Seal a segment and put equally wide ones in its place."""
        segment = self.segment(number)
        ends = split_points((segment.low, segment.high), check_segment_count(parts, least=2))
        return self.replace([number], list(pairwise(ends)))

    def merge(self, numbers: Iterable[int]) -> "Layout":
        """Seal segments that lie side by side and put one in their place.

        >>> print(Layout.create(3).merge([1, 0]))
        epoch 1: 3 [0, 0.666667), 2 [0.666667, 1)
        """
        sealed = [self.segment(number) for number in numbers]
        return self.replace([segment.id for segment in sealed], [check_merge(sealed)])

    def replace(self, sealed: Iterable[int], ranges: Iterable[KeyRange]) -> "Layout":
        """Seal segments and put new ones in their place, which must have exactly their keys.

        >>> print(Layout.create(2).replace([0, 1], [(0, 0.6), (0.6, 1)]))
        epoch 1: 2 [0, 0.6), 3 [0.6, 1)
        """
        going = [self.segment(number) for number in sealed]
        fresh = check_replacement(going, ranges, self.current)
        epoch = self.epoch + 1
        made = [Segment(len(self.segments) + place, epoch, *keys) for place, keys in enumerate(fresh)]
        seals: list[int | None] = [*self.sealed_in, *(None for _ in made)]
        for segment in going:
            seals[segment.id] = epoch
        return Layout((*self.segments, *made), tuple(seals))

    def save(self) -> Snapshot:
        """Return the whole history as JSON values.

        >>> layout = Layout.create(2).split(0)
        >>> Layout.load(layout.save()) == layout
        True
        """
        rows = zip(self.segments, self.sealed_in, strict=True)
        return new_snapshot("layout", segments=[[s.epoch, s.low, s.high, sealed] for s, sealed in rows])

    @classmethod
    def load(cls, saved: Snapshot) -> "Layout":
        """Return the layout that was saved."""
        with open_snapshot(saved, "layout") as state:
            rows = state["segments"]
            made = tuple(Segment(place, epoch, low, high) for place, (epoch, low, high, _) in enumerate(rows))
            layout = cls(made, tuple(seal for *_, seal in rows))
            _check_history(layout)
            return layout

    def __str__(self) -> str:
        """Return the open segments for a person."""
        return f"epoch {self.epoch}: {', '.join(map(str, self.current))}"


def _check_history(layout: Layout) -> None:
    """Refuse a history that scaling cannot have made."""
    epochs = [segment.epoch for segment in layout.segments]
    whole = [(0.0, 1.0)]
    open_ranges = [(segment.low, segment.high) for segment in layout.current]
    seals_fit = all(
        seal is None or segment.epoch < seal <= layout.epoch
        for segment, seal in zip(layout.segments, layout.sealed_in, strict=True)
    )
    is_shared = not uncovered(whole, open_ranges) and sum(high - low for low, high in open_ranges) < 1.0 + 1e-9
    if not epochs or epochs[0] != 0 or epochs != sorted(epochs) or not seals_fit or not is_shared:
        raise InvalidValue(
            "The segments do not form a history.",
            rule="Epochs count from 0, a segment is sealed after its own epoch, and the open ones share the key space.",
            remedy="Load what save() returned.",
        )


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


def split_points(keys: KeyRange, parts: int) -> list[float]:
    """Return the ends of `parts` equally wide ranges; the outer ones are exactly those of `keys`.

    >>> split_points((0.5, 1.0), 2)
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
