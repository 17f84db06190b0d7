"""Checkpoints of a group under way: begun, confirmed reader by reader, complete or given up. No I/O."""

from collections.abc import Mapping
from dataclasses import replace

from floodmark.errors import CheckpointPending
from floodmark.streams.readers._cut_values import Checkpoint, GroupCut
from floodmark.streams.readers._positions_of_group import StreamFacts, settled
from floodmark.streams.readers._state import GroupState, PendingCheckpoint


def started(state: GroupState, checkpoint: str, name: str, timeout: int, now: int) -> GroupState:
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


def cancelled(state: GroupState, checkpoint: str) -> GroupState:
    """Give a checkpoint up; one that is complete, or was given up before, stays as it is."""
    is_it = state.pending is not None and state.pending.id == checkpoint
    return replace(state, pending=None) if is_it else state


def advanced(state: GroupState, facts: Mapping[str, StreamFacts], now: int, kept: int) -> GroupState:
    """Complete the checkpoint that is under way, if nobody is waited for any more."""
    pending = state.pending
    if pending is None:
        return state
    pending = replace(pending, parts=tuple(settled(part, facts[part.name], now) for part in pending.parts))
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


def without_deadline(state: GroupState, now: int) -> GroupState:
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


def without_reader(state: GroupState, reader: str) -> GroupState:
    """Let a reader go; a checkpoint has what it acknowledged, and waits for it no more."""
    pending = state.pending
    if pending is not None and reader in pending.waits_for:
        missing = (*pending.missing, reader)
        pending = replace(pending, waits_for=pending.waits_for - {reader}, missing=missing)
    readers = tuple(one for one in state.readers if one.id != reader)
    return replace(state, readers=readers, pending=pending)
