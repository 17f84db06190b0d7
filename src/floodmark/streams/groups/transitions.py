"""The transitions of a group: each takes the state, facts about its streams and the time, and returns the next state.

Readers join, report, leave and expire. Positions move forward, and from finished segments to their successors.
Checkpoints complete. Free segments are assigned by their lag; an assigned segment changes its reader one at a time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from floodmark._util.times import past_time
from floodmark.errors import CheckpointPending, GroupReset, OffsetOutOfRange, ReaderExists, ReaderExpelled
from floodmark.streams.groups.requests import Report
from floodmark.streams.groups.state import (
    Checkpoint,
    GroupCut,
    GroupState,
    PendingCheckpoint,
    ReaderRecord,
    SegmentRef,
    StreamProgress,
    instance_id,
)
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, replace_finished


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts about a stream that a transition needs. Stale facts are safe: they stay true, and are only incomplete."""

    layout: Layout
    ends: Mapping[int, int]
    """The end of each segment; the end of a sealed segment is final."""
    is_sealed: bool = False
    """Whether the stream takes no more events."""
    oldest: int | None = None
    """The `lower` of the first entry of the marks log, for the key of the group."""
    newest: int | None = None
    """The `lower` of its last watermark."""
    end: Position | None = None
    """The cut of the group's end time, once the marks log has reached it."""
    unit_seconds: int = 1_000_000
    """How many units of the stream's time make a second."""

    def final_end(self, segment: int) -> int | None:
        """Return the final end of a segment, or None while it takes events."""
        return self.ends[segment] if self.is_sealed or self.layout.is_sealed(segment) else None

    def lag(self, progress: StreamProgress, segment: int) -> int:
        """Return by how many seconds a segment is behind the newest watermark; 0 without marks."""
        time = progress.times.get(segment, self.oldest)
        if time is None or self.newest is None:
            return 0
        return max(0, self.newest - time) // self.unit_seconds


Facts = Mapping[str, StreamFacts]
"""Facts about the streams of a group, by stream name."""

KEPT_CHECKPOINTS: Final = 16


def join_reader(state: GroupState, reader: str, instance: str, ttl: int, facts: Facts, now: int) -> GroupState:
    """Add a reader. Joining is idempotent per instance; a live reader with the same id is an error."""
    state = expel_dead_readers(state, now)
    present = state.reader(reader)
    if present is not None and present.instance_id != instance_id(instance):
        raise ReaderExists(
            f"The reader {reader!r} of the group {state.name!r} is alive.",
            rule="A reader id belongs to one reader at a time.",
            remedy="Use another id, close that reader, or, if its process is dead, call group.expel(id).",
            group=state.name,
            reader=reader,
        )
    if present is None:
        record = ReaderRecord(reader, instance_id(instance), ttl, now)
        state = replace(state, readers=tuple(sorted((*state.readers, record), key=lambda member: member.id)))
    return refresh_group(_with_heartbeat(state, reader, now), facts, now)


def sync_reader(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Apply the report of a reader."""
    return refresh_group(_apply_report(state, report, facts, now), facts, now)


def leave_reader(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Apply the last report of a reader and remove it. Does nothing if the reader is no longer a member."""
    record = state.reader(report.reader)
    if record is None or record.instance_id != instance_id(report.instance) or report.generation != state.generation:
        return state
    return refresh_group(remove_reader(_apply_report(state, report, facts, now), report.reader), facts, now)


def expel_reader(state: GroupState, reader: str, expelled_id: str, facts: Facts, now: int) -> GroupState:
    """Remove a reader, by the public id of its instance. What it acknowledged stays; other readers read the rest."""
    record = state.reader(reader)
    if record is not None and record.instance_id == expelled_id:
        state = remove_reader(state, reader)
    return refresh_group(state, facts, now)


def refresh_group(state: GroupState, facts: Facts, now: int) -> GroupState:
    """Expel dead readers, pass finished segments, complete or expire the checkpoint, and assign free segments."""
    state = expire_checkpoint(expel_dead_readers(state, now), now)
    state = replace(state, progress=_pass_all_finished(state.progress, facts, now))
    state = _release_finished(complete_checkpoint(state, facts, now, KEPT_CHECKPOINTS))
    return state if state.pending is not None else _with_assignment(state, facts)


def expel_dead_readers(state: GroupState, now: int) -> GroupState:
    """Remove the readers whose last heartbeat is older than their ttl."""
    if any(reader.beat_at > now for reader in state.readers):
        # The clock was set back: count the ttl from now, or dead readers would stay until the clock catches up.
        readers = (replace(reader, beat_at=past_time(reader.beat_at, now)) for reader in state.readers)
        state = replace(state, readers=tuple(readers))
    for reader in state.readers:
        if now - reader.beat_at >= reader.ttl:
            state = remove_reader(state, reader.id)
    return state


def reset_group(
    state: GroupState, progress: tuple[StreamProgress, ...], reset_id: str, facts: Facts, now: int
) -> GroupState:
    """Start a new generation at another position, without readers and without the pending checkpoint. Idempotent."""
    if state.reset_id == reset_id:
        return state
    state = replace(
        state, progress=progress, readers=(), generation=state.generation + 1, pending=None, reset_id=reset_id
    )
    return refresh_group(state, facts, now)


def _apply_report(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    check_member(state, report)
    record = state.reader(report.reader)
    assert record is not None
    own = {ref: offset for ref, offset in report.positions.items() if ref in record.segments}
    pending = state.pending
    if pending is not None and report.reader in pending.waits_for:
        pending = replace(pending, progress=_move_streams(pending.progress, own, facts, now))
        if report.confirms == pending.id:
            confirmed = (*pending.confirmed, report.reader)
            pending = replace(pending, waits_for=pending.waits_for - {report.reader}, confirmed=confirmed)
    moved = _move_streams(state.progress, own, facts, now)
    progress = tuple(_apply_times(stream, record, report) for stream in moved)
    state = replace(state, progress=progress, pending=pending)
    kept = record.segments - report.released
    return _with_heartbeat(
        _with_reader(state, replace(record, segments=kept, releasing=record.releasing & kept)), record.id, now
    )


def check_member(state: GroupState, report: Report) -> None:
    """Raise `GroupReset` or `ReaderExpelled` if the reporting reader is no longer a member."""
    if report.generation != state.generation:
        raise GroupReset(
            f"The group {state.name!r} was reset while the reader {report.reader!r} was open.",
            rule="Readers opened before a reset cannot continue after it.",
            remedy="Open the reader again: it starts at the position that the group was reset to.",
            group=state.name,
            reader=report.reader,
            generation=state.generation,
        )
    record = state.reader(report.reader)
    if record is None or record.instance_id != instance_id(report.instance):
        raise ReaderExpelled(
            f"The reader {report.reader!r} is no longer in the group {state.name!r}.",
            rule="A reader without a heartbeat for longer than its ttl, or one that is expelled, loses its segments.",
            remedy="Open it again, with a longer ttl if it is slow; what it did not acknowledge is read again.",
            group=state.name,
            reader=report.reader,
        )


def _move_streams(
    streams: tuple[StreamProgress, ...], positions: Mapping[SegmentRef, int], facts: Facts, now: int
) -> tuple[StreamProgress, ...]:
    def offsets_in(name: str) -> dict[int, int]:
        return {segment: offset for (stream, segment), offset in positions.items() if stream == name}

    return tuple(move_forward(stream, offsets_in(stream.name), facts[stream.name], now) for stream in streams)


def _pass_all_finished(streams: tuple[StreamProgress, ...], facts: Facts, now: int) -> tuple[StreamProgress, ...]:
    return tuple(pass_finished_segments(progress, facts[progress.name], now) for progress in streams)


def _apply_times(progress: StreamProgress, record: ReaderRecord, report: Report) -> StreamProgress:
    """Apply the event times of a report; they never go back."""
    times, places, lowers = dict(progress.times), dict(progress.places), dict(progress.lowers)
    for (stream, segment), time in report.times.items():
        if stream == progress.name and (stream, segment) in record.segments and segment in progress.position:
            times[segment] = max(time, times.get(segment, time))
    for (stream, key), place in report.places.items():
        if stream == progress.name and (key not in places or place > places[key]):
            places[key] = place
            lowers.pop(key, None)
            if (stream, key) in report.lowers:
                lowers[key] = report.lowers[stream, key]
    return replace(progress, times=times, places=places, lowers=lowers)


def _with_heartbeat(state: GroupState, reader: str, now: int) -> GroupState:
    record = state.reader(reader)
    return state if record is None else _with_reader(state, replace(record, beat_at=now))


def _with_reader(state: GroupState, record: ReaderRecord) -> GroupState:
    return _change_readers(state, lambda reader: record if reader.id == record.id else reader)


def _change_readers(state: GroupState, change: Callable[[ReaderRecord], ReaderRecord]) -> GroupState:
    return replace(state, readers=tuple(map(change, state.readers)))


def _release_finished(state: GroupState) -> GroupState:
    """Take finished and replaced segments away from their readers."""
    unfinished = state.unfinished()

    def change(reader: ReaderRecord) -> ReaderRecord:
        if reader.segments <= unfinished:
            return reader
        return replace(reader, segments=reader.segments & unfinished, releasing=reader.releasing & unfinished)

    return _change_readers(state, change)


def _with_assignment(state: GroupState, facts: Facts) -> GroupState:
    lags = {
        (progress.name, number): facts[progress.name].lag(progress, number)
        for progress in state.progress
        for number in progress.position
    }
    readers = {reader.id: reader.segments - reader.releasing for reader in state.readers}
    is_releasing = any(reader.releasing for reader in state.readers)
    assignment = assign_segments(readers, state.unassigned(), lags, is_releasing=is_releasing)

    def change(reader: ReaderRecord) -> ReaderRecord:
        assigned = {ref for ref, taker in assignment.assigned.items() if taker == reader.id}
        to_release = {assignment.released} if assignment.released in reader.segments else set()
        if not assigned and not to_release:
            return reader
        return replace(reader, segments=reader.segments | assigned, releasing=reader.releasing | to_release)

    return _change_readers(state, change)


def start_checkpoint(state: GroupState, checkpoint: str, name: str, timeout: int, now: int) -> GroupState:
    """Start a checkpoint that waits for all current readers. Idempotent per checkpoint id."""
    if any(done.id == checkpoint for done in state.checkpoints):
        return state
    if state.pending is not None:
        if state.pending.id == checkpoint:
            return state
        raise CheckpointPending(
            f"The checkpoint {state.pending.name!r} of the group {state.name!r} is still pending.",
            rule="A group takes one checkpoint at a time.",
            remedy="Wait until it completes or reaches its timeout, then try again.",
            group=state.name,
            checkpoint=state.pending.name,
            waits_for=sorted(state.pending.waits_for),
        )
    readers = frozenset(reader.id for reader in state.readers)
    pending = PendingCheckpoint(checkpoint, name, now, now + timeout, state.progress, readers)
    return replace(state, pending=pending)


def cancel_checkpoint(state: GroupState, checkpoint: str) -> GroupState:
    """Abandon a pending checkpoint. Does nothing if it completed or was abandoned before."""
    is_pending = state.pending is not None and state.pending.id == checkpoint
    return replace(state, pending=None) if is_pending else state


def complete_checkpoint(state: GroupState, facts: Facts, now: int, kept: int) -> GroupState:
    """Complete the pending checkpoint if all readers have confirmed; keep the newest `kept` checkpoints."""
    pending = state.pending
    if pending is None:
        return state
    pending = replace(pending, progress=_pass_all_finished(pending.progress, facts, now))
    if pending.waits_for:
        return replace(state, pending=pending)
    complete = Checkpoint(
        id=pending.id,
        name=pending.name,
        group=state.name,
        group_id=state.group_id,
        cut=GroupCut(tuple(progress.cut for progress in pending.progress)),
        at=now,
        confirmed=tuple(sorted(pending.confirmed)),
        missing=tuple(sorted(pending.missing)),
    )
    return replace(state, pending=None, checkpoints=(*state.checkpoints, complete)[-kept:])


def expire_checkpoint(state: GroupState, now: int) -> GroupState:
    """Abandon a pending checkpoint after its deadline.

    Its requester may be dead, and segments are not assigned while it is pending. If the clock was set back, the
    deadline moves with it, so the checkpoint waits at most one more timeout.
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
    """Remove a reader. A pending checkpoint keeps what it acknowledged and no longer waits for it."""
    pending = state.pending
    if pending is not None and reader in pending.waits_for:
        missing = (*pending.missing, reader)
        pending = replace(pending, waits_for=pending.waits_for - {reader}, missing=missing)
    readers = tuple(record for record in state.readers if record.id != reader)
    return replace(state, readers=readers, pending=pending)


def stop_offset(layout: Layout, end: Position | None, segment: int) -> int | None:
    """Return the offset at which a group that ends at a cut stops in a segment; None if it reads all of it.

    >>> layout = Layout.create(1).split(0)
    >>> [stop_offset(layout, {1: 5, 2: 0}, segment) for segment in (0, 1, 2)]
    [None, 5, 0]
    >>> stop_offset(layout, {0: 9}, 1)  # after the cut
    0
    """
    if end is None:
        return None
    if segment in end:
        return end[segment]
    return None if layout.has_descendant(segment, end) else 0


def sealed_together(layout: Layout, segment: int) -> set[int]:
    """Return the segments that must be replaced together with `segment`, because they share successors.

    >>> layout = Layout.create(3).replace([0, 1], [(0, 0.5), (0.5, 2 / 3)])
    >>> sealed_together(layout, 0), sealed_together(layout, 2)
    ({0, 1}, {2})
    """
    together: set[int] = set()
    waiting = [segment]
    while waiting:
        number = waiting.pop()
        if number not in together:
            together.add(number)
            for successor in layout.successors(number):
                waiting += [predecessor.id for predecessor in layout.predecessors(successor.id)]
    return together


def pass_finished_segments(progress: StreamProgress, facts: StreamFacts, now: int) -> StreamProgress:
    """Replace segments that were read to their end by their successors, repeatedly.

    Segments that were sealed together are replaced together, so that the position is always a cut and a checkpoint can
    be taken at any time. For a split or a merge this adds no wait.

    >>> progress = StreamProgress("s", 7, "time", {0: 4}, times={0: 100})
    >>> after = pass_finished_segments(progress, StreamFacts(Layout.create(1).split(0), {0: 4, 1: 3, 2: 0}), now=60)
    >>> after.position, after.times
    ({1: 0, 2: 0}, {1: 100, 2: 100})
    """
    layout = facts.layout
    end = progress.end if progress.end is not None or progress.until is None else facts.end
    progress = replace(progress, end=end)
    while True:
        read_to_end, finished = set(), set()
        for segment, offset in progress.position.items():
            final, stop = facts.final_end(segment), stop_offset(layout, end, segment)
            if stop is not None and (offset >= stop or offset == final):
                finished.add(segment)
            elif offset == final:
                finished.add(segment)
                if layout.is_sealed(segment):
                    read_to_end.add(segment)
        ready = [segment for segment in read_to_end if sealed_together(layout, segment) <= read_to_end]
        if not ready:
            return replace(progress, finished=frozenset(finished))
        progress = _replace_segments(progress, layout, ready, now)


def move_forward(progress: StreamProgress, offsets: Mapping[int, int], facts: StreamFacts, now: int) -> StreamProgress:
    """Move segments forward to acknowledged offsets. Lower offsets, and segments not in the position, are ignored."""
    position, moved = dict(progress.position), dict(progress.moved)
    for segment, offset in offsets.items():
        if segment not in position or offset <= position[segment]:
            continue
        if offset > facts.ends[segment]:
            raise OffsetOutOfRange(
                f"Offset {offset} of segment {segment} of {progress.name!r} was acknowledged.",
                rule=f"The segment ends at {facts.ends[segment]}.",
                remedy="Acknowledge only offsets of batches that were read.",
                stream=progress.name,
                segment=segment,
                offset=offset,
                end=facts.ends[segment],
            )
        position[segment] = offset
        moved[segment] = now
    return replace(progress, position=position, moved=moved)


def _replace_segments(progress: StreamProgress, layout: Layout, ready: list[int], now: int) -> StreamProgress:
    position = replace_finished(layout, progress.position, ready)
    times = {segment: time for segment, time in progress.times.items() if segment in position}
    moved = {segment: at for segment, at in progress.moved.items() if segment in position}
    for segment in position:
        if segment not in progress.position:
            moved[segment] = now
            inherited = [progress.times.get(predecessor.id) for predecessor in layout.predecessors(segment)]
            known_times = [time for time in inherited if time is not None]
            if known_times and len(known_times) == len(inherited):
                times[segment] = min(known_times)
    return replace(progress, position=position, times=times, moved=moved)


_MIN_GAIN_DIVISOR: Final = 4
"""A segment moves because of lag only if that reduces the greater lag by at least 1/4."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment plan: the reader of each free segment, and one segment that its reader should release."""

    assigned: Mapping[SegmentRef, str] = field(default_factory=dict)
    released: SegmentRef | None = None


@dataclass(slots=True)
class _ReaderLoad:
    """The load of a reader: the sum of the lags of its segments, and their number."""

    reader: str
    lags: dict[SegmentRef, int]
    lag: int = field(init=False)

    def __post_init__(self) -> None:
        self.lag = sum(self.lags.values())

    def take(self, ref: SegmentRef, lag: int) -> None:
        self.lags[ref] = lag
        self.lag += lag

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort by least lag, then by fewest segments: a reader without segments comes first."""
        return self.lag, len(self.lags), self.reader


def assign_segments(
    readers: Mapping[str, Iterable[SegmentRef]],
    free: Iterable[SegmentRef],
    lags: Mapping[SegmentRef, int],
    *,
    is_releasing: bool = False,
) -> Assignment:
    """Assign the free segments to readers, and choose at most one segment to move between readers.

    The segment with the greatest lag is assigned first, to the reader with the least lag. No segment is moved while
    another one is being released (`is_releasing`), or for a small gain, so the assignment is stable.

    >>> assign_segments({"r1": [], "r2": []}, [("s", 0), ("s", 1), ("s", 2)], {("s", 2): 60}).assigned
    {('s', 2): 'r1', ('s', 0): 'r2', ('s', 1): 'r2'}
    >>> assign_segments({"r1": [("s", 0), ("s", 1)], "r2": []}, [], {}).released
    ('s', 0)
    """
    loads = [_ReaderLoad(reader, {ref: lags.get(ref, 0) for ref in refs}) for reader, refs in readers.items()]
    if not loads:
        return Assignment()
    assigned: dict[SegmentRef, str] = {}
    for ref in sorted(free, key=lambda ref: (-lags.get(ref, 0), ref)):
        load = min(loads, key=lambda load: load.order)
        load.take(ref, lags.get(ref, 0))
        assigned[ref] = load.reader
    if is_releasing:
        return Assignment(assigned)
    moved = _move_to_reduce_lag(loads)
    return Assignment(assigned, _move_to_balance_counts(loads) if moved is None else moved)


def _move_to_reduce_lag(loads: list[_ReaderLoad]) -> SegmentRef | None:
    """Return the segment to move from the reader with the most lag to the one with the least, if the gain is clear."""
    giver = max(loads, key=lambda load: (load.lag, load.reader))
    taker = min(loads, key=lambda load: (load.lag, load.reader))
    best: tuple[int, int, SegmentRef] | None = None
    for ref, lag in giver.lags.items():
        left = max(giver.lag - lag, taker.lag + lag)
        if (giver.lag - left) * _MIN_GAIN_DIVISOR >= giver.lag > left:
            best = min(best or (left, lag, ref), (left, lag, ref))
    return None if best is None else best[2]


def _move_to_balance_counts(loads: list[_ReaderLoad]) -> SegmentRef | None:
    """Return a segment to move from a reader with many segments to one with few, if that does not raise the lag.

    The moves terminate: each one reduces the greatest lag, or keeps the lags and evens out the segment counts.
    """
    best: tuple[int, int, SegmentRef] | None = None
    for giver in loads:
        for taker in loads:
            difference = len(giver.lags) - len(taker.lags)
            if difference < 2:
                continue
            for ref, lag in giver.lags.items():
                if taker.lag + lag <= giver.lag:
                    choice = (-difference, taker.lag + lag, ref)
                    best = min(best or choice, choice)
    return None if best is None else best[2]
