"""The steps of a group: each takes the state, what is known and the time, and gives the next state. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from floodmark.errors import GroupReset, ReaderExists, ReaderExpelled
from floodmark.streams.readers._assignment import plan
from floodmark.streams.readers._checkpointing import advanced, without_deadline, without_reader
from floodmark.streams.readers._positions_of_group import StreamFacts, moved, settled
from floodmark.streams.readers._requests import Report
from floodmark.streams.readers._state import GroupState, ReaderRecord, Share, StreamPart

Facts = Mapping[str, StreamFacts]
"""What is known of the streams of a group, by their names."""

KEPT_CHECKPOINTS: Final = 16


def joined(state: GroupState, reader: str, instance: str, ttl: int, facts: Facts, now: int) -> GroupState:
    """Take a reader in. The same instance may join twice; another one only when the first is not alive any more."""
    state = without_the_dead(state, now)
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
    return tended(_beaten(state, reader, now), facts, now)


def synced(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Take what a reader says of itself."""
    return tended(_reported(state, report, facts, now), facts, now)


def left(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    """Take the last word of a reader, and let it go. One that is gone already leaves nothing behind."""
    there = state.reader(report.reader)
    if there is None or there.instance != report.instance or report.generation != state.generation:
        return state
    return tended(without_reader(_reported(state, report, facts, now), report.reader), facts, now)


def expelled(state: GroupState, reader: str, instance: str, facts: Facts, now: int) -> GroupState:
    """Send a reader away. What it acknowledged stays; the rest is read by others."""
    there = state.reader(reader)
    if there is not None and there.instance == instance:
        state = without_reader(state, reader)
    return tended(state, facts, now)


def tended(state: GroupState, facts: Facts, now: int) -> GroupState:
    """Return the state with everything settled that follows from it: who is dead, what is finished, who reads what."""
    state = without_deadline(without_the_dead(state, now), now)
    state = replace(state, parts=tuple(settled(part, facts[part.name], now) for part in state.parts))
    state = _without_finished(advanced(state, facts, now, KEPT_CHECKPOINTS))
    return state if state.pending is not None else _planned(state, facts)


def without_the_dead(state: GroupState, now: int) -> GroupState:
    """Send the readers away whose time has run out."""
    if any(reader.beat_at > now for reader in state.readers):
        # The clock has gone back: who is dead must not live until it is where it was.
        readers = (replace(reader, beat_at=min(reader.beat_at, now)) for reader in state.readers)
        state = replace(state, readers=tuple(readers))
    for reader in state.readers:
        if now - reader.beat_at >= reader.ttl:
            state = without_reader(state, reader.id)
    return state


def reset(state: GroupState, parts: tuple[StreamPart, ...], reset_id: str, facts: Facts, now: int) -> GroupState:
    """Begin a new generation at other places, without readers and without the checkpoint that is under way."""
    if state.reset_id == reset_id:
        return state
    state = replace(state, parts=parts, readers=(), generation=state.generation + 1, pending=None, reset_id=reset_id)
    return tended(state, facts, now)


def _reported(state: GroupState, report: Report, facts: Facts, now: int) -> GroupState:
    check_member(state, report)
    record = state.reader(report.reader)
    assert record is not None
    own = {share: offset for share, offset in report.positions.items() if share in record.shares}
    pending = state.pending
    if pending is not None and report.reader in pending.waits_for:
        pending = replace(pending, parts=_moved(pending.parts, own, facts, now))
        if report.confirms == pending.id:
            confirmed = (*pending.confirmed, report.reader)
            pending = replace(pending, waits_for=pending.waits_for - {report.reader}, confirmed=confirmed)
    parts = tuple(_noted(part, record, report) for part in _moved(state.parts, own, facts, now))
    state = replace(state, parts=parts, pending=pending)
    kept = record.shares - report.released
    return _beaten(_with_reader(state, replace(record, shares=kept, giving=record.giving & kept)), record.id, now)


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


def _moved(
    parts: tuple[StreamPart, ...], positions: Mapping[Share, int], facts: Facts, now: int
) -> tuple[StreamPart, ...]:
    def of(name: str) -> dict[int, int]:
        return {segment: offset for (stream, segment), offset in positions.items() if stream == name}

    return tuple(moved(part, of(part.name), facts[part.name], now) for part in parts)


def _noted(part: StreamPart, record: ReaderRecord, report: Report) -> StreamPart:
    """Return the part with what a reader knows of its time; that never goes back either."""
    times, places = dict(part.times), dict(part.places)
    for (stream, segment), time in report.times.items():
        if stream == part.name and (stream, segment) in record.shares and segment in part.position:
            times[segment] = max(time, times.get(segment, time))
    for (stream, key), place in report.places.items():
        if stream == part.name:
            places[key] = max(place, places.get(key, place))
    return replace(part, times=times, places=places)


def _beaten(state: GroupState, reader: str, now: int) -> GroupState:
    record = state.reader(reader)
    return state if record is None else _with_reader(state, replace(record, beat_at=now))


def _with_reader(state: GroupState, record: ReaderRecord) -> GroupState:
    return _each(state, lambda reader: record if reader.id == record.id else reader)


def _each(state: GroupState, change: Callable[[ReaderRecord], ReaderRecord]) -> GroupState:
    return replace(state, readers=tuple(map(change, state.readers)))


def _without_finished(state: GroupState) -> GroupState:
    """Take segments from their readers that are finished, or have been replaced."""
    live = {(part.name, number) for part in state.parts for number in part.position if number not in part.finished}

    def change(reader: ReaderRecord) -> ReaderRecord:
        if reader.shares <= live:
            return reader
        return replace(reader, shares=reader.shares & live, giving=reader.giving & live)

    return _each(state, change)


def _planned(state: GroupState, facts: Facts) -> GroupState:
    lags = {(part.name, number): facts[part.name].lag(part, number) for part in state.parts for number in part.position}
    readers = {reader.id: reader.shares - reader.giving for reader in state.readers}
    is_giving = any(reader.giving for reader in state.readers)
    made = plan(readers, state.unassigned(), lags, is_giving=is_giving)

    def change(reader: ReaderRecord) -> ReaderRecord:
        taken = {share for share, taker in made.assigned.items() if taker == reader.id}
        asked = {made.given_back} if made.given_back in reader.shares else set()
        if not taken and not asked:
            return reader
        return replace(reader, shares=reader.shares | taken, giving=reader.giving | asked)

    return _each(state, change)
