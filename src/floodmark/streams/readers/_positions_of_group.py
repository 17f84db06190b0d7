"""How the position of a group moves: forward, from finished segments to those that came after, up to its end."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from floodmark.errors import OffsetOutOfRange
from floodmark.streams._cuts import after_finished
from floodmark.streams._layout import Layout
from floodmark.streams._positions import Position
from floodmark.streams.readers._state import StreamPart


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What is known of a stream when a group takes a step. It only grows: facts that are old are still true."""

    layout: Layout
    ends: Mapping[int, int]
    """The end of each segment; that of a sealed one is final."""
    is_sealed: bool = False
    """Whether the stream takes no more events."""
    oldest: int | None = None
    """The `lower` of the first entry of the marks log, by the key of the group."""
    newest: int | None = None
    """The `lower` of its last watermark."""
    end: Position | None = None
    """The cut that the end time of the group stands for, if the log has come there."""
    unit_seconds: int = 1_000_000
    """How many units of the stream's time are a second."""

    def final_end(self, segment: int) -> int | None:
        """Return where a segment ends for ever, or None while it takes events."""
        return self.ends[segment] if self.is_sealed or self.layout.is_sealed(segment) else None

    def lag(self, part: StreamPart, segment: int) -> int:
        """Return by how many seconds a segment is behind the newest watermark: 0 where there are no marks."""
        time = part.times.get(segment, self.oldest)
        if time is None or self.newest is None:
            return 0
        return max(0, self.newest - time) // self.unit_seconds


def stop_at(layout: Layout, end: Position | None, segment: int) -> int | None:
    """Return the offset at which a group that ends at a cut has enough of a segment; None if it needs all of it.

    >>> layout = Layout.create(1).split(0)
    >>> [stop_at(layout, {1: 5, 2: 0}, segment) for segment in (0, 1, 2)]
    [None, 5, 0]
    >>> stop_at(layout, {0: 9}, 1)  # behind the cut
    0
    """
    if end is None:
        return None
    if segment in end:
        return end[segment]
    return None if layout.has_descendant(segment, end) else 0


def sealed_together(layout: Layout, segment: int) -> set[int]:
    """Return the segments that hang together with one: what came after any of them needs others of them too.

    >>> layout = Layout.create(3).replace([0, 1], [(0, 0.5), (0.5, 2 / 3)])
    >>> sealed_together(layout, 0), sealed_together(layout, 2)
    ({0, 1}, {2})
    """
    found: set[int] = set()
    waiting = [segment]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            for after in layout.successors(one):
                waiting += [before.id for before in layout.predecessors(after.id)]
    return found


def settled(part: StreamPart, facts: StreamFacts, now: int) -> StreamPart:
    """Return the part with segments that were read to their end replaced, as often as that is possible.

    Segments that were sealed together are replaced together: so the position is a cut at every moment, and a
    checkpoint can be taken anywhere. For a split or a merge that costs nothing.

    >>> part = StreamPart("s", 7, "time", {0: 4}, times={0: 100})
    >>> after = settled(part, StreamFacts(Layout.create(1).split(0), {0: 4, 1: 3, 2: 0}), now=60)
    >>> after.position, after.times
    ({1: 0, 2: 0}, {1: 100, 2: 100})
    """
    layout = facts.layout
    end = part.end if part.end is not None or part.until is None else facts.end
    part = replace(part, end=end)
    while True:
        read_out, finished = set(), set()
        for segment, offset in part.position.items():
            final, stop = facts.final_end(segment), stop_at(layout, end, segment)
            if stop is not None and (offset >= stop or offset == final):
                finished.add(segment)
            elif offset == final:
                finished.add(segment)
                if layout.is_sealed(segment):
                    read_out.add(segment)
        ready = [segment for segment in read_out if sealed_together(layout, segment) <= read_out]
        if not ready:
            return replace(part, finished=frozenset(finished))
        part = _replaced(part, layout, ready, now)


def moved(part: StreamPart, offsets: Mapping[int, int], facts: StreamFacts, now: int) -> StreamPart:
    """Return the part with segments moved on; nothing moves back, and segments that are not open are left out."""
    position, times = dict(part.position), dict(part.moved)
    for segment, offset in offsets.items():
        if segment not in position or offset <= position[segment]:
            continue
        if offset > facts.ends[segment]:
            raise OffsetOutOfRange(
                f"Offset {offset} of segment {segment} of {part.name!r} was acknowledged.",
                rule=f"The segment ends at {facts.ends[segment]}.",
                remedy="Acknowledge what was read.",
                stream=part.name,
                segment=segment,
                offset=offset,
                end=facts.ends[segment],
            )
        position[segment] = offset
        times[segment] = now
    return replace(part, position=position, moved=times)


def _replaced(part: StreamPart, layout: Layout, ready: list[int], now: int) -> StreamPart:
    position = after_finished(layout, part.position, ready)
    times = {segment: time for segment, time in part.times.items() if segment in position}
    since = {segment: at for segment, at in part.moved.items() if segment in position}
    for segment in position:
        if segment not in part.position:
            since[segment] = now
            before = [part.times.get(one.id) for one in layout.predecessors(segment)]
            known = [time for time in before if time is not None]
            if known and len(known) == len(before):
                times[segment] = min(known)
    return replace(part, position=position, times=times, moved=since)
