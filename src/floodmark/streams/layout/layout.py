"""The layout of a stream: how segments divide its key space in each epoch, and which segment replaced which.

A key is hashed to a point in [0, 1): the first 53 bits of its 8-byte BLAKE2b digest (text as UTF-8), as a fraction.
The point is the same in every process, release and language. A float holds 53 bits exactly, so a point never rounds
up to 1. A segment takes the keys of a half-open range of [0, 1); its id is never reused.
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
"""The routing key of an event. Events with the same key stay in order."""

_SHIFT = 11
_UNIT = 2.0**-53


def key_point(key: Key) -> float:
    """Return the point of a key in the key space [0, 1).

    >>> key_point("customer-7")
    0.4123318747867929
    >>> key_point("customer-7") == key_point(b"customer-7")
    True
    """
    return (stable_hash(key) >> _SHIFT) * _UNIT


def key_points(keys: Sequence[Key]) -> NDArray[np.float64]:
    """Return the points of many keys at once.

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
    """Return a 64-bit hash of the key that is the same in every process and release.

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
            remedy="Convert it first, for example with str(key).",
            key=key,
        ) from error


KeyRange = tuple[float, float]
"""A half-open range [low, high) of the key space, as (low, high)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One ordered log of a stream. It takes the keys in [low, high) from its epoch on, until it is sealed.

    Ids increase over the life of a stream, so a segment of a later epoch always has a greater id.

    >>> Segment(0, epoch=0, low=0.0, high=0.5)
    Segment(id=0, epoch=0, low=0.0, high=0.5)
    """

    id: int
    epoch: int
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse a negative id or epoch, and a range outside the key space."""
        for what, number in (("id", self.id), ("epoch", self.epoch)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidValue(
                    f"The {what} of a segment is {number!r}.",
                    rule="It is a whole number of at least 0.",
                    remedy="Take segments from the layout of the stream (stream.layout.segments).",
                    what=what,
                    value=number,
                )
        check_range((self.low, self.high))

    def overlaps(self, other: "Segment | KeyRange") -> bool:
        """Return whether the two ranges have a key in common.

        >>> Segment(0, 0, 0.0, 0.5).overlaps(Segment(1, 0, 0.5, 1.0))
        False
        """
        low, high = (other.low, other.high) if isinstance(other, Segment) else other
        return self.low < high and low < self.high

    def __str__(self) -> str:
        """Return the id and the range as text."""
        return f"{self.id} {show_range((self.low, self.high))}"


def check_range(keys: object) -> KeyRange:
    """Return `keys` as a range of the key space, or raise `RangeOutOfSpace`.

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
        remedy="Pass two numbers, for example (0, 0.5); the range includes low and excludes high.",
        range=keys,
    )


def check_disjoint(ranges: Iterable[object]) -> list[KeyRange]:
    """Return the ranges sorted. Refuse an invalid range, and two ranges that overlap.

    >>> check_disjoint([(0.5, 1), (0, 0.5)])
    [(0.0, 0.5), (0.5, 1.0)]
    """
    checked = sorted(check_range(keys) for keys in ranges)
    for before, after in pairwise(checked):
        if after[0] < before[1]:
            raise RangesOverlap(
                f"The ranges {show_range(before)} and {show_range(after)} overlap.",
                rule="Each key belongs to exactly one segment.",
                remedy="End each range where the next one begins.",
                ranges=[before, after],
            )
    return checked


def uncovered_ranges(required: Iterable[KeyRange], ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the pieces of `required` that no range of `ranges` covers. The ranges of each argument are disjoint.

    >>> uncovered_ranges([(0.0, 1.0)], [(0.25, 0.5), (0.75, 1.0)])
    [(0.0, 0.25), (0.5, 0.75)]
    """
    gaps: list[KeyRange] = []
    covering = sorted(ranges)
    for low, high in sorted(required):
        covered_to = low
        for start, end in covering:
            if end <= covered_to or start >= high:
                continue
            if start > covered_to:
                gaps.append((covered_to, start))
            covered_to = end
        if covered_to < high:
            gaps.append((covered_to, high))
    return gaps


def show_range(keys: KeyRange) -> str:
    """Return a range as text.

    >>> show_range((0.0, 0.5))
    '[0, 0.5)'
    """
    return f"[{keys[0]:g}, {keys[1]:g})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Layout:
    """All segments that a stream has ever had.

    In each epoch the open segments divide the key space; scaling the stream starts the next epoch. A layout is
    immutable: `split`, `merge` and `replace` return a new one.

    >>> layout = Layout.create(2).split(1)
    >>> print(layout)
    epoch 1: 0 [0, 0.5), 2 [0.5, 0.75), 3 [0.75, 1)
    >>> [segment.id for segment in layout.successors(1)]
    [2, 3]
    >>> layout.route("customer-7").id
    0
    """

    segments: tuple[Segment, ...]
    """All segments, open and sealed; the id of a segment is its index here."""
    sealed_in: tuple[int | None, ...]
    """For each segment the epoch in which it was replaced, or None while it is open."""
    current: tuple[Segment, ...] = field(init=False, compare=False, repr=False)
    """The open segments, in key order."""
    _born: tuple[tuple[Segment, ...], ...] = field(init=False, compare=False, repr=False)
    _lows: list[float] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the segments by epoch, and the open ones by key."""
        current = [s for s, sealed in zip(self.segments, self.sealed_in, strict=True) if sealed is None]
        current.sort(key=lambda segment: segment.low)
        born: list[list[Segment]] = [[] for _ in range(self.segments[-1].epoch + 1)] if self.segments else []
        for segment in self.segments:
            born[segment.epoch].append(segment)
        object.__setattr__(self, "current", tuple(current))
        object.__setattr__(self, "_born", tuple(map(tuple, born)))
        object.__setattr__(self, "_lows", [segment.low for segment in current])

    @classmethod
    def create(cls, segments: int = 1) -> "Layout":
        """Return the layout of a new stream with equally wide segments.

        >>> print(Layout.create(4))
        epoch 0: 0 [0, 0.25), 1 [0.25, 0.5), 2 [0.5, 0.75), 3 [0.75, 1)
        """
        ends = split_points((0.0, 1.0), check_segment_count(segments))
        segments_made = tuple(Segment(number, 0, low, high) for number, (low, high) in enumerate(pairwise(ends)))
        return cls(segments_made, (None,) * len(segments_made))

    @property
    def epoch(self) -> int:
        """The current epoch: how many times the stream was scaled."""
        return len(self._born) - 1

    def segment(self, number: int) -> Segment:
        """Return a segment by its id, open or sealed."""
        if isinstance(number, int) and 0 <= number < len(self.segments):
            return self.segments[number]
        raise UnknownSegment(
            f"There is no segment {number!r}.",
            rule=f"The segments of this stream are 0 to {len(self.segments) - 1}.",
            remedy="Take segment ids from stream.layout.segments.",
            segment=number,
        )

    def is_sealed(self, number: int) -> bool:
        """Return whether a segment is sealed, that is, was replaced by others."""
        return self.sealed_in[self.segment(number).id] is not None

    def segments_of(self, epoch: int) -> tuple[Segment, ...]:
        """Return the segments that were open in an epoch, in key order.

        >>> [segment.id for segment in Layout.create(2).split(1).segments_of(0)]
        [0, 1]
        """
        if epoch == self.epoch:
            return self.current
        open_then = [
            segment
            for segment, sealed in zip(self.segments, self.sealed_in, strict=True)
            if segment.epoch <= epoch and (sealed is None or sealed > epoch)
        ]
        return tuple(sorted(open_then, key=lambda segment: segment.low))

    def predecessors(self, number: int) -> tuple[Segment, ...]:
        """Return the segments that this one replaced. Readers read them before it.

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
        """Return the segments that replaced this one; none while it is open."""
        segment = self.segment(number)
        sealed = self.sealed_in[number]
        return () if sealed is None else tuple(other for other in self._born[sealed] if other.overlaps(segment))

    def has_descendant(self, number: int, among: Collection[int]) -> bool:
        """Return whether any segment of `among` descends from this one: is a successor, or a successor of a successor.

        A reader that reads a descendant has read this segment to its end.

        >>> layout = Layout.create(2).merge([0, 1]).split(2)
        >>> layout.has_descendant(0, [4])  # 4 has none of the keys of 0, but replaced 2, which replaced 0
        True
        >>> layout.has_descendant(4, [0])
        False
        """
        segment, sealed = self.segment(number), self.sealed_in[number]
        if sealed is None:
            return False
        later = [other for other in map(self.segment, among) if other.epoch >= sealed]
        if any(other.overlaps(segment) for other in later):
            # Of two segments with a common key, the later one descends from the earlier one.
            return True
        low, high = segment.low, segment.high
        newest = max((other.epoch for other in later), default=0)
        # In each epoch the descendants of a segment cover one contiguous range of keys, and it only grows.
        for epoch in range(sealed, newest + 1):
            for born in self._born[epoch]:
                if born.overlaps((low, high)):
                    low, high = min(low, born.low), max(high, born.high)
            if any(other.epoch >= epoch and other.overlaps((low, high)) for other in later):
                return True
        return False

    def route(self, key: Key) -> Segment:
        """Return the open segment that a key belongs to."""
        return self.current[bisect_right(self._lows, key_point(key)) - 1]

    def split(self, number: int, parts: int = 2) -> "Layout":
        """Seal a segment and replace it with `parts` equally wide ones."""
        segment = self.segment(number)
        ends = split_points((segment.low, segment.high), check_segment_count(parts, least=2))
        return self.replace([number], list(pairwise(ends)))

    def merge(self, numbers: Iterable[int]) -> "Layout":
        """Seal adjacent segments and replace them with one.

        >>> print(Layout.create(3).merge([1, 0]))
        epoch 1: 3 [0, 0.666667), 2 [0.666667, 1)
        """
        sealed = [self.segment(number) for number in numbers]
        return self.replace([segment.id for segment in sealed], [check_merge(sealed)])

    def replace(self, sealed: Iterable[int], ranges: Iterable[KeyRange]) -> "Layout":
        """Seal segments and replace them with new ones that cover exactly the same keys.

        >>> print(Layout.create(2).replace([0, 1], [(0, 0.6), (0.6, 1)]))
        epoch 1: 2 [0, 0.6), 3 [0.6, 1)
        """
        to_seal = [self.segment(number) for number in sealed]
        new_ranges = check_replacement(to_seal, ranges, self.current)
        epoch = self.epoch + 1
        new_segments = [Segment(number, epoch, *keys) for number, keys in enumerate(new_ranges, len(self.segments))]
        sealed_in: list[int | None] = [*self.sealed_in, *(None for _ in new_segments)]
        for segment in to_seal:
            sealed_in[segment.id] = epoch
        return Layout((*self.segments, *new_segments), tuple(sealed_in))

    def save(self) -> Snapshot:
        """Return all segments as JSON values.

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
            segments = tuple(Segment(number, epoch, low, high) for number, (epoch, low, high, _) in enumerate(rows))
            layout = cls(segments, tuple(sealed_in for *_, sealed_in in rows))
            _check_history(layout)
            return layout

    def __str__(self) -> str:
        """Return the open segments as text."""
        return f"epoch {self.epoch}: {', '.join(map(str, self.current))}"


def _check_history(layout: Layout) -> None:
    """Refuse segments that scaling cannot have produced."""
    epochs = [segment.epoch for segment in layout.segments]
    whole = [(0.0, 1.0)]
    open_ranges = [(segment.low, segment.high) for segment in layout.current]
    seals_fit = all(
        seal is None or segment.epoch < seal <= layout.epoch
        for segment, seal in zip(layout.segments, layout.sealed_in, strict=True)
    )
    covers_key_space = (
        not uncovered_ranges(whole, open_ranges) and sum(high - low for low, high in open_ranges) < 1.0 + 1e-9
    )
    if not epochs or epochs[0] != 0 or epochs != sorted(epochs) or not seals_fit or not covers_key_space:
        raise InvalidValue(
            "The saved segments are not a valid layout.",
            rule="Epochs count from 0, a segment is sealed after its own epoch, and open segments cover the key space.",
            remedy="Pass to load() only what save() returned, unchanged.",
        )


def check_replacement(
    sealed: Sequence[Segment], ranges: Iterable[object], current: Sequence[Segment]
) -> list[KeyRange]:
    """Return the ranges in key order, or refuse ranges that cannot replace the segments `sealed`.

    >>> current = [Segment(0, 0, 0.0, 0.5), Segment(1, 0, 0.5, 1.0)]
    >>> check_replacement(current[:1], [(0.2, 0.5), (0, 0.2)], current)
    [(0.0, 0.2), (0.2, 0.5)]
    >>> check_replacement(current[:1], [(0, 0.2)], current)
    Traceback (most recent call last):
    floodmark.errors.RangesMissing: No new segment takes the keys [0.2, 0.5). ... [ranges-missing]
    """
    _check_open(sealed, current)
    new_ranges = check_disjoint(ranges)
    kept = [segment for segment in current if segment not in sealed]
    for keys in new_ranges:
        for segment in kept:
            if segment.overlaps(keys):
                raise RangesOverlap(
                    f"The new range {show_range(keys)} overlaps the segment {segment}, which stays open.",
                    rule="Each key belongs to exactly one segment.",
                    remedy=f"Seal the segment {segment.id} too, or take its keys out of the new ranges.",
                    ranges=[keys, (segment.low, segment.high)],
                    segment=segment.id,
                )
    missing = uncovered_ranges([(segment.low, segment.high) for segment in sealed], new_ranges)
    if missing:
        raise RangesMissing(
            f"No new segment takes the keys {', '.join(map(show_range, missing))}.",
            rule="The new segments cover exactly the keys of the segments they replace.",
            remedy="Add new ranges for the missing keys.",
            missing=missing,
        )
    return new_ranges


def check_merge(segments: Sequence[Segment]) -> KeyRange:
    """Return the key range of several adjacent segments, or refuse segments that are not adjacent.

    >>> check_merge([Segment(0, 0, 0.0, 0.25), Segment(2, 0, 0.5, 1.0)])
    Traceback (most recent call last):
    floodmark.errors.RangesMissing: Between the segments lie the keys [0.25, 0.5). ... [ranges-missing]
    """
    if len(segments) < 2:
        raise InvalidValue(
            f"merge() was called with {len(segments)} segments.",
            rule="At least two segments are merged.",
            remedy="Pass the ids of two or more adjacent segments.",
            segments=[segment.id for segment in segments],
        )
    low, high = min(segment.low for segment in segments), max(segment.high for segment in segments)
    between = uncovered_ranges([(low, high)], [(segment.low, segment.high) for segment in segments])
    if between:
        raise RangesMissing(
            f"Between the segments lie the keys {', '.join(map(show_range, between))}.",
            rule="Only adjacent segments can be merged.",
            remedy="Also pass the segments that have the keys in between.",
            missing=between,
        )
    return low, high


def check_segment_count(count: object, least: int = 1) -> int:
    """Return `count` if it is a valid number of segments, or raise `InvalidOption`.

    >>> check_segment_count(0)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The number of segments is 0. It must be at least 1. ... [invalid-option]
    """
    if isinstance(count, int) and not isinstance(count, bool) and count >= least:
        return count
    raise InvalidOption(
        f"The number of segments is {count!r}.",
        rule=f"It must be at least {least}.",
        remedy=f"Pass a whole number of at least {least}; the stream can be scaled later.",
        segments=count,
    )


def split_points(keys: KeyRange, parts: int) -> list[float]:
    """Return the boundaries that divide `keys` into `parts` equally wide ranges.

    >>> split_points((0.5, 1.0), 2)
    [0.5, 0.75, 1.0]
    """
    low, high = keys
    return [low, *(low + (high - low) * index / parts for index in range(1, parts)), high]


def _check_open(sealed: Sequence[Segment], current: Sequence[Segment]) -> None:
    if not sealed:
        raise InvalidValue(
            "No segment to seal was named.",
            rule="New segments replace open segments.",
            remedy="Pass the ids of the segments to replace.",
        )
    if len(set(sealed)) < len(sealed):
        raise DuplicateName(
            f"The segments to seal are {[segment.id for segment in sealed]}.",
            rule="Each segment is named once.",
            remedy="Remove the duplicates.",
            segments=[segment.id for segment in sealed],
        )
    for segment in sealed:
        if segment not in current:
            raise SegmentSealed(
                f"The segment {segment} is already sealed.",
                rule="Only an open segment can be sealed.",
                remedy=f"Name open segments: {', '.join(str(s.id) for s in current)}.",
                segment=segment.id,
            )
