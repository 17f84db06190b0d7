"""The layout of a stream: which segments share its key space, epoch by epoch, and which came out of which."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.errors import InvalidValue, UnknownSegment
from floodmark.progress import Snapshot
from floodmark.streams._key_points import Key, check_point, key_point, key_points
from floodmark.streams._scaling import check_merge, check_replacement, check_segment_count, cut_points
from floodmark.streams._segments import KeyRange, Segment, uncovered


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
        ends = cut_points((0.0, 1.0), check_segment_count(segments))
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
        ends = cut_points((segment.low, segment.high), check_segment_count(parts, least=2))
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
