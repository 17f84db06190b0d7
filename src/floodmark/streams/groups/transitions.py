"""The transitions of a group: each takes the state, facts about its streams and the time, and returns the next state.

Readers join, report, leave and die; positions move forward and pass from finished segments to their successors;
checkpoints complete; free segments are assigned by how far each is behind in time, one move at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from floodmark.errors import CheckpointPending, GroupReset, OffsetOutOfRange, ReaderExists, ReaderExpelled
from floodmark.streams.groups.requests import Report
from floodmark.streams.groups.state import (
    Checkpoint,
    GroupCut,
    GroupState,
    PendingCheckpoint,
    ReaderRecord,
    SegmentRef,
    StreamPart,
)
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, replace_finished


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


Facts = Mapping[str, StreamFacts]
"""What is known of the streams of a group, by their names."""

KEPT_CHECKPOINTS: Final = 16


def join_reader(state: GroupState, reader: str, instance: str, ttl: int, facts: Facts, now: int) -> GroupState:
    """Take a reader in. The same instance may join twice; another one only when the first is not alive any more."""
    state = expel_dead_readers(state, now)
    there = state.reader(reader)
    if there is not None and there.instance != instance:
        raise ReaderExists(
            f"The reader {reader!r} of the group {state.name!r} is alive.",
            rule="A reader id belongs to one reader at a time.",
            remedy="Take another id, close that reader, or expel it if it is dead.",
            group=state.name,
            reader=reader,
        )
    if there is None:
        record = ReaderRecord(reader, instance, ttl, now)
        state = replace(state, readers=tuple(sorted((*state.readers, record), key=lambda one: one.id)))
    return tend_group(_with_heartbeat(state, reader, now), facts, now)


def sync_reader(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Take what a reader says of itself."""
    return tend_group(_apply_report(state, report, facts, now), facts, now)


def leave_reader(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Take the last word of a reader, and let it go. One that is gone already leaves nothing behind."""
    there = state.reader(report.reader)
    if there is None or there.instance != report.instance or report.generation != state.generation:
        return state
    return tend_group(remove_reader(_apply_report(state, report, facts, now), report.reader), facts, now)


def expel_reader(state: GroupState, reader: str, instance: str, facts: Facts, now: int) -> GroupState:
    """Send a reader away. What it acknowledged stays; the rest is read by others."""
    there = state.reader(reader)
    if there is not None and there.instance == instance:
        state = remove_reader(state, reader)
    return tend_group(state, facts, now)


def tend_group(state: GroupState, facts: Facts, now: int) -> GroupState:
    """Return the state with everything settled that follows from it: who is dead, what is finished, who reads what."""
    state = expire_checkpoint(expel_dead_readers(state, now), now)
    state = replace(state, parts=tuple(pass_finished_segments(part, facts[part.name], now) for part in state.parts))
    state = _release_finished(complete_checkpoint(state, facts, now, KEPT_CHECKPOINTS))
    return state if state.pending is not None else _with_assignment(state, facts)


def expel_dead_readers(state: GroupState, now: int) -> GroupState:
    """Send the readers away whose time has run out."""
    if any(reader.beat_at > now for reader in state.readers):
        # The clock has gone back: who is dead must not live until it is where it was.
        readers = (replace(reader, beat_at=min(reader.beat_at, now)) for reader in state.readers)
        state = replace(state, readers=tuple(readers))
    for reader in state.readers:
        if now - reader.beat_at >= reader.ttl:
            state = remove_reader(state, reader.id)
    return state


def reset_group(state: GroupState, parts: tuple[StreamPart, ...], reset_id: str, facts: Facts, now: int) -> GroupState:
    """Begin a new generation at other places, without readers and without the checkpoint that is under way."""
    if state.reset_id == reset_id:
        return state
    state = replace(state, parts=parts, readers=(), generation=state.generation + 1, pending=None, reset_id=reset_id)
    return tend_group(state, facts, now)


def _apply_report(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    check_member(state, report)
    record = state.reader(report.reader)
    assert record is not None
    own = {share: offset for share, offset in report.positions.items() if share in record.shares}
    pending = state.pending
    if pending is not None and report.reader in pending.waits_for:
        pending = replace(pending, parts=_move_parts(pending.parts, own, facts, now))
        if report.confirms == pending.id:
            confirmed = (*pending.confirmed, report.reader)
            pending = replace(pending, waits_for=pending.waits_for - {report.reader}, confirmed=confirmed)
    parts = tuple(_note_times(part, record, report) for part in _move_parts(state.parts, own, facts, now))
    state = replace(state, parts=parts, pending=pending)
    kept = record.shares - report.released
    return _with_heartbeat(
        _with_reader(state, replace(record, shares=kept, giving=record.giving & kept)), record.id, now
    )


def check_member(state: GroupState, report: Report) -> None:
    """Refuse a reader that is not one any more."""
    if report.generation != state.generation:
        raise GroupReset(
            f"The group {state.name!r} was reset while the reader {report.reader!r} was open.",
            rule="What was opened before a reset does not go on after it.",
            remedy="Open the reader again: it begins where the group was set to.",
            group=state.name,
            reader=report.reader,
            generation=state.generation,
        )
    record = state.reader(report.reader)
    if record is None or record.instance != report.instance:
        raise ReaderExpelled(
            f"The reader {report.reader!r} is not in the group {state.name!r} any more.",
            rule="A reader that is silent for longer than its ttl, or is expelled, has its segments read by others.",
            remedy="Open it again, with a longer ttl if it is slow; what it did not acknowledge is read again.",
            group=state.name,
            reader=report.reader,
        )


def _move_parts(
    parts: tuple[StreamPart, ...], positions: Mapping[SegmentRef, int], facts: Facts, now: int
) -> tuple[StreamPart, ...]:
    def of(name: str) -> dict[int, int]:
        return {segment: offset for (stream, segment), offset in positions.items() if stream == name}

    return tuple(move_forward(part, of(part.name), facts[part.name], now) for part in parts)


def _note_times(part: StreamPart, record: ReaderRecord, report: Report) -> StreamPart:
    """Return the part with what a reader knows of its time; that never goes back either."""
    times, places = dict(part.times), dict(part.places)
    for (stream, segment), time in report.times.items():
        if stream == part.name and (stream, segment) in record.shares and segment in part.position:
            times[segment] = max(time, times.get(segment, time))
    for (stream, key), place in report.places.items():
        if stream == part.name:
            places[key] = max(place, places.get(key, place))
    return replace(part, times=times, places=places)


def _with_heartbeat(state: GroupState, reader: str, now: int) -> GroupState:
    record = state.reader(reader)
    return state if record is None else _with_reader(state, replace(record, beat_at=now))


def _with_reader(state: GroupState, record: ReaderRecord) -> GroupState:
    return _change_readers(state, lambda reader: record if reader.id == record.id else reader)


def _change_readers(state: GroupState, change: Callable[[ReaderRecord], ReaderRecord]) -> GroupState:
    return replace(state, readers=tuple(map(change, state.readers)))


def _release_finished(state: GroupState) -> GroupState:
    """Take segments from their readers that are finished, or have been replaced."""
    live = {(part.name, number) for part in state.parts for number in part.position if number not in part.finished}

    def change(reader: ReaderRecord) -> ReaderRecord:
        if reader.shares <= live:
            return reader
        return replace(reader, shares=reader.shares & live, giving=reader.giving & live)

    return _change_readers(state, change)


def _with_assignment(state: GroupState, facts: Facts) -> GroupState:
    lags = {(part.name, number): facts[part.name].lag(part, number) for part in state.parts for number in part.position}
    readers = {reader.id: reader.shares - reader.giving for reader in state.readers}
    is_giving = any(reader.giving for reader in state.readers)
    made = assign_segments(readers, state.unassigned(), lags, is_giving=is_giving)

    def change(reader: ReaderRecord) -> ReaderRecord:
        taken = {share for share, taker in made.assigned.items() if taker == reader.id}
        asked = {made.given_back} if made.given_back in reader.shares else set()
        if not taken and not asked:
            return reader
        return replace(reader, shares=reader.shares | taken, giving=reader.giving | asked)

    return _change_readers(state, change)


def start_checkpoint(state: GroupState, checkpoint: str, name: str, timeout: int, now: int) -> GroupState:
    """Begin a checkpoint that waits for every reader of now. To ask for the same one again changes nothing."""
    if any(done.id == checkpoint for done in state.checkpoints):
        return state
    if state.pending is not None:
        if state.pending.id == checkpoint:
            return state
        raise CheckpointPending(
            f"The checkpoint {state.pending.name!r} of the group {state.name!r} is under way.",
            rule="A group takes one checkpoint at a time.",
            remedy="Wait for it to end; it is given up after its timeout.",
            group=state.name,
            checkpoint=state.pending.name,
            waits_for=sorted(state.pending.waits_for),
        )
    readers = frozenset(reader.id for reader in state.readers)
    pending = PendingCheckpoint(checkpoint, name, now, now + timeout, state.parts, readers)
    return replace(state, pending=pending)


def cancel_checkpoint(state: GroupState, checkpoint: str) -> GroupState:
    """Give a checkpoint up; one that is complete, or was given up before, stays as it is."""
    is_it = state.pending is not None and state.pending.id == checkpoint
    return replace(state, pending=None) if is_it else state


def complete_checkpoint(state: GroupState, facts: Mapping[str, StreamFacts], now: int, kept: int) -> GroupState:
    """Complete the checkpoint that is under way, if nobody is waited for any more."""
    pending = state.pending
    if pending is None:
        return state
    pending = replace(
        pending, parts=tuple(pass_finished_segments(part, facts[part.name], now) for part in pending.parts)
    )
    if pending.waits_for:
        return replace(state, pending=pending)
    complete = Checkpoint(
        id=pending.id,
        name=pending.name,
        group=state.name,
        group_id=state.group_id,
        cut=GroupCut(tuple(part.cut for part in pending.parts)),
        at=now,
        confirmed=tuple(sorted(pending.confirmed)),
        missing=tuple(sorted(pending.missing)),
    )
    return replace(state, pending=None, checkpoints=(*state.checkpoints, complete)[-kept:])


def expire_checkpoint(state: GroupState, now: int) -> GroupState:
    """Give up a checkpoint whose time is over: whoever asked for it may be dead, and nothing is shared out meanwhile.

    A clock that has gone back gives it its whole time once more, and no longer.
    """
    pending = state.pending
    if pending is None or not pending.waits_for:
        return state
    if now < pending.begun_at:
        shift = pending.begun_at - now
        pending = replace(pending, begun_at=now, deadline=pending.deadline - shift)
        return replace(state, pending=pending)
    return replace(state, pending=None) if now >= pending.deadline else state


def remove_reader(state: GroupState, reader: str) -> GroupState:
    """Let a reader go; a checkpoint has what it acknowledged, and waits for it no more."""
    pending = state.pending
    if pending is not None and reader in pending.waits_for:
        missing = (*pending.missing, reader)
        pending = replace(pending, waits_for=pending.waits_for - {reader}, missing=missing)
    readers = tuple(one for one in state.readers if one.id != reader)
    return replace(state, readers=readers, pending=pending)


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


def pass_finished_segments(part: StreamPart, facts: StreamFacts, now: int) -> StreamPart:
    """Return the part with segments that were read to their end replaced, as often as that is possible.

    Segments that were sealed together are replaced together: so the position is a cut at every moment, and a
    checkpoint can be taken anywhere. For a split or a merge that costs nothing.

    >>> part = StreamPart("s", 7, "time", {0: 4}, times={0: 100})
    >>> after = pass_finished_segments(part, StreamFacts(Layout.create(1).split(0), {0: 4, 1: 3, 2: 0}), now=60)
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
        part = _replace_segments(part, layout, ready, now)


def move_forward(part: StreamPart, offsets: Mapping[int, int], facts: StreamFacts, now: int) -> StreamPart:
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


def _replace_segments(part: StreamPart, layout: Layout, ready: list[int], now: int) -> StreamPart:
    position = replace_finished(layout, part.position, ready)
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


_CLEAR_PART: Final = 4
"""A move for the sake of time must take at least one part in so many off the greater load."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to do: which free segments go to whom, and which segment its reader should give back."""

    assigned: Mapping[SegmentRef, str] = field(default_factory=dict)
    given_back: SegmentRef | None = None


@dataclass(slots=True)
class _ReaderLoad:
    """What a reader has to do: the sum of the lags of its segments, and how many they are."""

    reader: str
    lags: dict[SegmentRef, int]
    lag: int = field(init=False)

    def __post_init__(self) -> None:
        self.lag = sum(self.lags.values())

    def take(self, share: SegmentRef, lag: int) -> None:
        self.lags[share] = lag
        self.lag += lag

    @property
    def order(self) -> tuple[int, int, str]:
        """The least behind comes first, then who has the fewest: so whoever has nothing is before all others."""
        return self.lag, len(self.lags), self.reader


def assign_segments(
    readers: Mapping[str, Iterable[SegmentRef]],
    free: Iterable[SegmentRef],
    lags: Mapping[SegmentRef, int],
    *,
    is_giving: bool = False,
) -> Assignment:
    """Return who reads the free segments, and which segment should change hands.

    The segment furthest behind goes first, to the reader that has the least to catch up with. Nobody is asked for a
    segment while another one is on its way (`is_giving`), or for little: what does not change gives the same plan.

    >>> assign_segments({"r1": [], "r2": []}, [("s", 0), ("s", 1), ("s", 2)], {("s", 2): 60}).assigned
    {('s', 2): 'r1', ('s', 0): 'r2', ('s', 1): 'r2'}
    >>> assign_segments({"r1": [("s", 0), ("s", 1)], "r2": []}, [], {}).given_back
    ('s', 0)
    """
    loads = [_ReaderLoad(reader, {share: lags.get(share, 0) for share in shares}) for reader, shares in readers.items()]
    if not loads:
        return Assignment()
    assigned: dict[SegmentRef, str] = {}
    for share in sorted(free, key=lambda share: (-lags.get(share, 0), share)):
        load = min(loads, key=lambda load: load.order)
        load.take(share, lags.get(share, 0))
        assigned[share] = load.reader
    if is_giving:
        return Assignment(assigned)
    moved = _to_catch_up(loads)
    return Assignment(assigned, _to_share_out(loads) if moved is None else moved)


def _to_catch_up(loads: list[_ReaderLoad]) -> SegmentRef | None:
    """Return what the reader furthest behind should give to the one least behind, if that helps clearly."""
    giver = max(loads, key=lambda load: (load.lag, load.reader))
    taker = min(loads, key=lambda load: (load.lag, load.reader))
    best: tuple[int, int, SegmentRef] | None = None
    for share, lag in giver.lags.items():
        left = max(giver.lag - lag, taker.lag + lag)
        if (giver.lag - left) * _CLEAR_PART >= giver.lag > left:
            best = min(best or (left, lag, share), (left, lag, share))
    return None if best is None else best[2]


def _to_share_out(loads: list[_ReaderLoad]) -> SegmentRef | None:
    """Return what a reader with many segments should give to one with few, if that leaves nobody further behind.

    So each move takes something off the greatest lag, or leaves the lags and evens out the numbers: the moves end.
    """
    best: tuple[int, int, SegmentRef] | None = None
    for giver in loads:
        for taker in loads:
            difference = len(giver.lags) - len(taker.lags)
            if difference < 2:
                continue
            for share, lag in giver.lags.items():
                if taker.lag + lag <= giver.lag:
                    choice = (-difference, taker.lag + lag, share)
                    best = min(best or choice, choice)
    return None if best is None else best[2]
