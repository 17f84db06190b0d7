"""The groups of a home, kept in its store: each change is one transaction, built on the newest state."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, delete, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark._util.text import did_you_mean
from floodmark._util.times import UNITS_PER_SECOND
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import (
    DuplicateName,
    GroupDeleted,
    GroupExists,
    InvalidOption,
    UnknownGroup,
    UnknownSegment,
)
from floodmark.streams._catalog import Catalog, StreamInfo
from floodmark.streams._log import StreamLog
from floodmark.streams._marks_log import ending_at
from floodmark.streams._marks_table import MarksTable
from floodmark.streams._schema import GROUPS
from floodmark.streams.readers._bounds import check_order, part_of
from floodmark.streams.readers._checkpointing import cancelled, started
from floodmark.streams.readers._lookup import find_stream
from floodmark.streams.readers._names import check_name
from floodmark.streams.readers._positions_of_group import StreamFacts
from floodmark.streams.readers._requests import GroupRef, NewGroup, Report, StreamBounds
from floodmark.streams.readers._state import GroupState, StreamPart
from floodmark.streams.readers._steps import Facts, expelled, joined, left, reset, synced, tended

Step = Callable[[GroupState, Facts, int], GroupState]


class GroupStore:
    """Keeps the reader groups of a home."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Keep them in this home."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def create(self, group: NewGroup) -> GroupState:
        """Make a group under a name that no other has."""
        names = [bounds.stream for bounds in group.streams]
        if not names:
            raise InvalidOption(
                f"The group {group.name!r} has no streams.",
                rule="A group reads at least one stream.",
                remedy="Name its streams.",
                group=group.name,
            )
        if len(set(names)) < len(names):
            raise DuplicateName(
                f"The streams of the group {group.name!r} are {', '.join(map(repr, names))}.",
                rule="A group reads a stream once.",
                remedy="Name each one once.",
                streams=names,
            )
        check_name("group", group.name)
        parts = tuple(self._part(bounds, self._catalog.find(bounds.stream)) for bounds in group.streams)
        state = GroupState(group.name, group.id, parts, created_at=self._home.now())
        state = tended(state, self._facts(parts), state.created_at)
        with self._home.write() as connection:
            if insert_if_absent(connection, GROUPS, _row(state)):
                return state
            there = _state_of(connection.execute(select(GROUPS).where(GROUPS.c.name == group.name)).one())
        if there.group_id == group.id:
            return there
        raise GroupExists(
            f"There is a group {group.name!r} already.",
            rule="A name belongs to one group.",
            remedy="Open it with group(), delete it first, or take another name.",
            group=group.name,
        )

    def find(self, name: str) -> GroupState:
        """Return the group of a name, or refuse a name that none has."""
        with self._home.read() as connection:
            row = connection.execute(select(GROUPS).where(GROUPS.c.name == name)).one_or_none()
            if row is not None:
                return _state_of(row)
            known = connection.execute(select(GROUPS.c.name)).scalars().all()
        raise UnknownGroup(
            f"There is no group {name!r}.",
            rule="A group is created before it is used.",
            remedy=did_you_mean(str(name), known, otherwise="Create it with create_group()."),
            group=name,
        )

    def all(self) -> list[GroupState]:
        """Return all groups, by their names."""
        with self._home.read() as connection:
            return [_state_of(row) for row in connection.execute(select(GROUPS).order_by(GROUPS.c.name))]

    def delete(self, group: GroupRef) -> None:
        """Forget a group."""
        with self._home.write() as connection:
            connection.execute(delete(GROUPS).where(GROUPS.c.name == group.name, GROUPS.c.group_id == group.id))

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Take a reader in."""
        check_name("reader", reader)
        return self._change(group, lambda state, facts, now: joined(state, reader, instance, ttl, facts, now))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Take what a reader says of itself, and return where the group is then."""
        return self._change(group, lambda state, facts, now: synced(state, report, facts, now))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Take the last word of a reader."""
        self._change(group, lambda state, facts, now: left(state, report, facts, now))

    def expel(self, group: GroupRef, reader: str, instance: str) -> GroupState:
        """Send a reader away."""
        return self._change(group, lambda state, facts, now: expelled(state, reader, instance, facts, now))

    def tend(self, group: GroupRef) -> GroupState:
        """Settle what time alone changes."""
        return self._change(group, tended)

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Begin a checkpoint; with nobody to wait for it is complete at once."""
        check_name("checkpoint", name)

        def step(state: GroupState, facts: Facts, now: int) -> GroupState:
            return tended(started(tended(state, facts, now), checkpoint, name, timeout, now), facts, now)

        return self._change(group, step)

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Give a checkpoint up that is not complete."""
        return self._change(group, lambda state, facts, now: tended(cancelled(state, checkpoint), facts, now))

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Set a group to other places."""
        by_name = {bounds.stream: bounds for bounds in streams}
        parts = []
        for part in self._find(group).parts:
            if part.name not in by_name:
                raise InvalidOption(
                    f"No place is given in {part.name!r}.",
                    rule="A group is set to a place in each of its streams.",
                    remedy="Name a cut or a time for this one too.",
                    group=group.name,
                    stream=part.name,
                )
            stream = find_stream(self._catalog, part)
            moved = self._part(replace(by_name[part.name], key=part.key), stream)
            check_order(stream.layout, moved.position, part.end, moved.since, part.until)
            parts.append(replace(moved, end=part.end, until=part.until))
        return self._change(group, lambda state, facts, now: reset(state, tuple(parts), reset_id, facts, now))

    def _change(self, group: GroupRef, step: Step) -> GroupState:
        """Take a step, again if others were quicker; a step that changes nothing but a sign of life may be left out."""

        def attempt() -> GroupState:
            known = self._find(group)
            # Gathered before the transaction: what is true of a stream stays true, and others are kept waiting less.
            facts = self._facts(known.parts)
            if not _is_worth_keeping(known, step(known, facts, self._home.now())):
                return known
            with self._home.write() as connection:
                here = (GROUPS.c.name == group.name, GROUPS.c.group_id == group.id)
                row = connection.execute(select(GROUPS).where(*here).with_for_update()).one_or_none()
                if row is None:
                    raise LostRace
                state = _state_of(row)
                _check_facts(state, facts)
                after = replace(step(state, facts, self._home.now(connection)), version=state.version + 1)
                values = {"version": after.version, "state": to_json(after.save(), "state")}
                connection.execute(update(GROUPS).where(*here).values(values))
            return after

        return retry_on_conflict(attempt)

    def _find(self, group: GroupRef) -> GroupState:
        with self._home.read() as connection:
            row = connection.execute(select(GROUPS).where(GROUPS.c.name == group.name)).one_or_none()
        if row is not None and row.group_id == group.id:
            return _state_of(row)
        is_anew = row is not None
        raise GroupDeleted(
            f"The group {group.name!r} was deleted{', and created anew' if is_anew else ''}.",
            rule="What was opened on a group ends with it.",
            remedy="Open the new one with group()." if is_anew else "Create it again, or stop using it.",
            group=group.name,
            created_anew=is_anew,
        )

    def _part(self, bounds: StreamBounds, stream: StreamInfo) -> StreamPart:
        try:
            ends = self._log.ends(stream)
            return part_of(bounds, stream, ends, lambda key: MarksTable(self._home, stream.id, key))
        except UnknownSegment:
            # The stream was scaled meanwhile, and its marks log has come to segments that were not there before.
            return self._part(bounds, self._catalog.refresh(stream))

    def _facts(self, parts: Iterable[StreamPart]) -> dict[str, StreamFacts]:
        return {part.name: self._facts_of(part) for part in parts}

    def _facts_of(self, part: StreamPart) -> StreamFacts:
        stream = find_stream(self._catalog, part)
        # What is sealed by then has its final end, since that is asked for afterwards.
        ends = self._log.ends(stream)
        index = MarksTable(self._home, stream.id, part.key)
        newest = index.newest()
        oldest = None
        if newest is not None and not part.position.keys() <= part.times.keys():
            oldest = next((entry.lower for entry in index.page(0, 1)), None)
        is_unresolved = part.until is not None and part.end is None
        return StreamFacts(
            layout=stream.layout,
            ends=ends,
            is_sealed=stream.is_sealed,
            oldest=oldest,
            newest=None if newest is None else newest.lower,
            end=ending_at(index, part.until).cut if is_unresolved and part.until is not None else None,
            unit_seconds=UNITS_PER_SECOND[stream.settings.unit],
        )


def _row(state: GroupState) -> dict[str, Any]:
    return {
        "name": state.name,
        "group_id": state.group_id,
        "version": state.version,
        "state": to_json(state.save(), "state"),
        "created_at": state.created_at,
    }


def _state_of(row: Row[Any]) -> GroupState:
    return GroupState.load(from_json(row.state))


def _check_facts(state: GroupState, facts: Facts) -> None:
    """Begin anew if the group has come to segments that were not there when the facts were gathered."""
    parts = (*state.parts, *(() if state.pending is None else state.pending.parts))
    if any(max(part.position) >= len(facts[part.name].layout.segments) for part in parts):
        raise LostRace


def _is_worth_keeping(before: GroupState, after: GroupState) -> bool:
    """Return whether a step changed more than signs of life that come long before they are needed."""
    beats = {reader.id: reader.beat_at for reader in before.readers}
    readers = tuple(replace(reader, beat_at=beats.get(reader.id, reader.beat_at)) for reader in after.readers)
    if replace(after, readers=readers) != before:
        return True
    return any(abs(reader.beat_at - beats[reader.id]) * 4 >= reader.ttl for reader in after.readers)
