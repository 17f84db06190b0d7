"""What retention may remove: pure rules on the segments of a stream, their batches, and what readers still need.

A stream is removed from its head on. In each segment a start offset rises over whole batches that are due, up to the
first offset that a reader may still read; a segment is touched only when all segments it replaced are gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark._util.ints import INT64_MIN
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, cut_over


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Events of a segment that are removed together. `at` is their time of arrival; None if it is not known."""

    first: int
    end: int
    at: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A reader that may still read events from a position on.

    >>> print(Claim("group", "billing", {0: 20}))
    the group 'billing' at {0: 20}
    """

    kind: str
    """"group", "checkpoint", "query", "sink", or "transaction"."""
    name: str
    offsets: Position
    """The first offset it may read in each segment; 0 in a segment that is left out."""

    def __str__(self) -> str:
        """Return the claim as text."""
        return f"the {self.kind} {self.name!r} at {dict(self.offsets)}"


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The starts of segments after a run, where retention alone would put them, and the claims it waits for."""

    starts: Mapping[int, int]
    due: Mapping[int, int]
    waits_for: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """What retention of a stream has removed, what is due, and which readers it waits for.

    >>> status = RetentionStatus("shop/orders", {0: 20}, {0: 50}, (Claim("group", "billing", {0: 20}),), age=60 * 10**6)
    >>> print(status)
    shop/orders begins at {0: 20}, keeps 60 s; due up to {0: 50}, waits for the group 'billing' at {0: 20}
    """

    stream: str
    head: Position
    due: Position
    """How far each segment would be removed if no reader needed its events."""
    waits_for: tuple[Claim, ...] = ()
    age: int | None = None
    """The retention in microseconds; None for no limit."""
    size: int | None = None
    """The retention in bytes; None for no limit."""

    def __str__(self) -> str:
        """Return the status as one line of text."""
        limits = [] if self.age is None else [f"{self.age / 1e6:g} s"]
        limits += [] if self.size is None else [f"{self.size} bytes"]
        text = f"{self.stream} begins at {dict(self.head)}, keeps {' and '.join(limits) or 'everything'}"
        if not self.waits_for:
            return text
        return f"{text}; due up to {dict(self.due)}, waits for {', '.join(map(str, self.waits_for))}"

    def save(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {
            "stream": self.stream,
            "head": _save(self.head),
            "due": _save(self.due),
            "waits_for": [
                {"kind": claim.kind, "name": claim.name, "offsets": _save(claim.offsets)} for claim in self.waits_for
            ],
            "age": self.age,
            "size": self.size,
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "RetentionStatus":
        """Return the status that `save` saved."""
        claims = tuple(Claim(claim["kind"], claim["name"], _load(claim["offsets"])) for claim in saved["waits_for"])
        head, due = _load(saved["head"]), _load(saved["due"])
        return cls(saved["stream"], head, due, claims, saved["age"], saved["size"])


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """What a stream has of a segment: offsets from `start` to before `end`, and the oldest of its batches."""

    start: int
    end: int
    batches: Sequence[StoredBatch] = field(default=())


def head_cut(layout: Layout, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return the cut before the first event that retention has left.

    >>> layout = Layout.create(1).split(0)
    >>> head_cut(layout, {0: 4}, {0: 9, 1: 5, 2: 0}), head_cut(layout, {0: 9, 1: 2}, {0: 9, 1: 5, 2: 0})
    ({0: 4}, {1: 2, 2: 0})
    """
    head = {segment.id: starts.get(segment.id, 0) for segment in layout.segments_of(0)}
    if any(starts.values()):
        for epoch in range(1, layout.epoch + 1):
            replaced = _replaced_in(layout, epoch)
            if all(number in head and starts.get(number, 0) >= ends[number] for number in replaced):
                born = {one.id: starts.get(one.id, 0) for one in layout.segments if one.epoch == epoch}
                head = {number: start for number, start in head.items() if number not in replaced} | born
    return head


def from_head(layout: Layout, cut: Position, head: Position) -> dict[int, int]:
    """Return a cut, or the head where the cut lies before it.

    >>> from_head(Layout.create(2), {0: 3, 1: 9}, {0: 5, 1: 5})
    {0: 5, 1: 9}
    """
    return cut_over(layout, [cut], before=head)


def due_by_time(batches: Sequence[StoredBatch], before: int) -> int:
    """Return how many leading batches arrived before a time.

    A batch whose arrival is not known arrived no later than the next one whose arrival is.

    >>> due_by_time([StoredBatch(0, 2, None, 1), StoredBatch(2, 3, 10, 1), StoredBatch(3, 4, 20, 1)], before=20)
    2
    """
    count = 0
    for place, batch in enumerate(batches):
        if batch.at is None:
            continue
        if batch.at >= before:
            break
        count = place + 1
    return count


def due_by_size(segments: Mapping[int, SegmentRange], total: int, keep: int) -> dict[int, int]:
    """Return how many leading batches of each segment to remove so that at least `keep` bytes are left.

    The oldest batches of all segments go first.

    >>> batches = [StoredBatch(0, 1, 5, 10), StoredBatch(1, 2, 7, 10)]
    >>> due_by_size({0: SegmentRange(0, 2, batches), 1: SegmentRange(0, 1, [StoredBatch(0, 1, 6, 10)])}, 30, 15)
    {0: 1, 1: 0}
    """
    counts = dict.fromkeys(segments, 0)
    for _, number, size in sorted(_by_arrival(segments)):
        if total - size < keep:
            break
        total -= size
        counts[number] += 1
    return counts


def _by_arrival(segments: Mapping[int, SegmentRange]) -> Iterator[tuple[int, int, int]]:
    """Give (arrival, segment, size) of each batch; within a segment the arrivals do not fall."""
    for number, one in segments.items():
        arrival = INT64_MIN
        for batch in one.batches:
            arrival = arrival if batch.at is None else max(arrival, batch.at)
            yield arrival, number, batch.size


def decide_retention(
    layout: Layout,
    segments: Mapping[int, SegmentRange],
    claims: Iterable[Claim],
    *,
    now: int,
    age: int | None,
    size: int | None = None,
    total: int = 0,
) -> RetentionDecision:
    """Return how far each segment is removed.

    Args:
        layout: The layout of the stream, at least as new as `segments`.
        segments: What the stream has of each segment.
        claims: The readers; no event at or after their offsets is removed.
        now: The time by the clock that the arrivals were taken from.
        age: Events that arrived this long ago are due; None for no limit.
        size: The oldest events are due as long as this many bytes are left; None for no limit.
        total: The bytes of all events.

    >>> segments = {0: SegmentRange(0, 9, [StoredBatch(0, 4, 10, 1), StoredBatch(4, 8, 20, 1)])}
    >>> decision = decide_retention(Layout.create(1), segments, [Claim("group", "g", {0: 5})], now=100, age=50)
    >>> decision.starts, decision.due, [claim.name for claim in decision.waits_for]
    ({0: 4}, {0: 8}, ['g'])
    """
    counts = {} if size is None else due_by_size(segments, total, size)
    due: dict[int, int] = {}
    starts: dict[int, int] = {}
    waits_for: list[Claim] = []
    everyone = list(claims)
    for number, one in sorted(segments.items()):
        count = counts.get(number, 0)
        if age is not None:
            count = max(count, due_by_time(one.batches, now - age + 1))
        due[number] = one.batches[count - 1].end if count else one.start
        start = one.start
        # The head is a cut: the successors of a change of the layout are begun together.
        replaced = _replaced_in(layout, layout.segment(number).epoch)
        if all(starts[before] >= segments[before].end for before in replaced):
            first_claimed = min((claim.offsets.get(number, 0) for claim in everyone), default=due[number])
            for batch in one.batches[:count]:
                if batch.end > first_claimed:
                    holders = [claim for claim in everyone if claim.offsets.get(number, 0) < batch.end]
                    waits_for += [claim for claim in holders if claim not in waits_for]
                    break
                start = batch.end
        starts[number] = start
    return RetentionDecision(starts, due, tuple(waits_for))


def _replaced_in(layout: Layout, epoch: int) -> list[int]:
    """Return the segments that were replaced when an epoch began."""
    return [number for number, sealed in enumerate(layout.sealed_in) if sealed == epoch]


def _save(position: Position) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(position.items())}


def _load(saved: Mapping[str, int]) -> dict[int, int]:
    return {int(number): offset for number, offset in saved.items()}
