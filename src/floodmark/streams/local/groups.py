"""The reader groups of a home in its store, each change one transaction on the newest state, and waiting for news."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import CompoundSelect, Row, Text, and_, cast, delete, literal, select, union_all, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark._util.text import did_you_mean
from floodmark._util.times import UNITS_PER_SECOND
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import DuplicateName, GroupDeleted, GroupExists, InvalidOption, UnknownGroup, UnknownSegment
from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.bounds import check_order, starting_part
from floodmark.streams.groups.requests import (
    GroupRef,
    NewGroup,
    News,
    Report,
    StreamBounds,
    StreamSubscription,
    Subscription,
)
from floodmark.streams.groups.state import GroupState, StreamPart, check_group_name, find_group_stream
from floodmark.streams.groups.transitions import (
    Facts,
    StreamFacts,
    cancel_checkpoint,
    expel_reader,
    join_reader,
    leave_reader,
    reset_group,
    start_checkpoint,
    sync_reader,
    tend_group,
)
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.tables import GROUPS, KEYS, SEGMENTS, STREAMS
from floodmark.streams.marks.log import ending_at
from floodmark.streams.ports import StreamLog

GroupChange = Callable[[GroupState, Facts, int], GroupState]


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
        check_group_name("group", group.name)
        parts = tuple(self._part(bounds, self._catalog.find(bounds.stream)) for bounds in group.streams)
        state = GroupState(group.name, group.id, parts, created_at=self._home.now())
        state = tend_group(state, self._facts(parts), state.created_at)
        with self._home.write() as connection:
            if insert_if_absent(connection, GROUPS, _group_row(state)):
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
        check_group_name("reader", reader)
        return self._change(group, lambda state, facts, now: join_reader(state, reader, instance, ttl, facts, now))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Take what a reader says of itself, and return where the group is then."""
        return self._change(group, lambda state, facts, now: sync_reader(state, report, facts, now))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Take the last word of a reader."""
        self._change(group, lambda state, facts, now: leave_reader(state, report, facts, now))

    def expel(self, group: GroupRef, reader: str, instance: str) -> GroupState:
        """Send a reader away."""
        return self._change(group, lambda state, facts, now: expel_reader(state, reader, instance, facts, now))

    def tend(self, group: GroupRef) -> GroupState:
        """Settle what time alone changes."""
        return self._change(group, tend_group)

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Begin a checkpoint; with nobody to wait for it is complete at once."""
        check_group_name("checkpoint", name)

        def step(state: GroupState, facts: Facts, now: int) -> GroupState:
            return tend_group(
                start_checkpoint(tend_group(state, facts, now), checkpoint, name, timeout, now), facts, now
            )

        return self._change(group, step)

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Give a checkpoint up that is not complete."""
        return self._change(
            group, lambda state, facts, now: tend_group(cancel_checkpoint(state, checkpoint), facts, now)
        )

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
            stream = find_group_stream(self._catalog, part)
            moved = self._part(replace(by_name[part.name], key=part.key), stream)
            check_order(stream.layout, moved.position, part.end, moved.since, part.until)
            parts.append(replace(moved, end=part.end, until=part.until))
        return self._change(group, lambda state, facts, now: reset_group(state, tuple(parts), reset_id, facts, now))

    def _change(self, group: GroupRef, step: GroupChange) -> GroupState:
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
            return starting_part(bounds, stream, ends, lambda key: MarksTable(self._home, stream.id, key))
        except UnknownSegment:
            # The stream was scaled meanwhile, and its marks log has come to segments that were not there before.
            return self._part(bounds, self._catalog.refresh(stream))

    def _facts(self, parts: Iterable[StreamPart]) -> dict[str, StreamFacts]:
        return {part.name: self._facts_of(part) for part in parts}

    def _facts_of(self, part: StreamPart) -> StreamFacts:
        stream = find_group_stream(self._catalog, part)
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


def _group_row(state: GroupState) -> dict[str, Any]:
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


_POLL_SECONDS: Final = 0.005
_ASK_SECONDS: Final = 0.02
_GROUP, _STREAM, _SEGMENT, _KEY = range(4)


ExternalEnds = Callable[[StreamSubscription], Mapping[int, int] | None]
"""Returns where a stream ends whose events are not in the store; None for one whose events are."""


def wait_for_news(
    home: Home, wanted: Subscription, seconds: float, elsewhere: ExternalEnds = lambda known: None
) -> News:
    """Return what holds now, as soon as something is newer than what is known, or when the time is over."""
    give_up = time.monotonic() + seconds
    question = _news_query(wanted)
    ask_at = 0.0
    ends: dict[int, Mapping[int, int]] = {}
    while True:
        if time.monotonic() >= ask_at:
            # That costs more than a look into the store.
            found = {known.stream_id: elsewhere(known) for known in wanted.streams if known.ends}
            ends = {stream: those for stream, those in found.items() if those is not None}
            ask_at = time.monotonic() + _ASK_SECONDS
        news = _read_news(home, wanted, question, ends)
        if news.is_new_to(wanted) or time.monotonic() >= give_up:
            return news
        time.sleep(min(_POLL_SECONDS, max(give_up - time.monotonic(), 0)))


def _news_query(wanted: Subscription) -> "CompoundSelect[Any]":
    ids = [stream.stream_id for stream in wanted.streams]
    nothing = literal("", Text)
    parts = [
        select(literal(_GROUP), GROUPS.c.group_id, nothing, GROUPS.c.version).where(GROUPS.c.name == wanted.group.name),
        select(literal(_STREAM), STREAMS.c.stream_id, nothing, STREAMS.c.version).where(STREAMS.c.stream_id.in_(ids)),
    ]
    for stream in wanted.streams:
        if stream.ends:
            here = and_(SEGMENTS.c.stream_id == stream.stream_id, SEGMENTS.c.segment.in_(sorted(stream.ends)))
            columns = (SEGMENTS.c.stream_id, cast(SEGMENTS.c.segment, Text), SEGMENTS.c.end_offset)
            parts.append(select(literal(_SEGMENT), *columns).where(here))
        if stream.marks:
            here = and_(KEYS.c.stream_id == stream.stream_id, KEYS.c.time_key.in_(sorted(stream.marks)))
            parts.append(select(literal(_KEY), KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.last_seq).where(here))
    return union_all(*parts)


def _read_news(
    home: Home, wanted: Subscription, question: "CompoundSelect[Any]", elsewhere: Mapping[int, Mapping[int, int]]
) -> News:
    state = None
    with home.read() as connection:
        rows = list(connection.execute(question))
        groups = [(row[1], row[3]) for row in rows if row[0] == _GROUP]
        if groups != [(wanted.group.id, wanted.version)]:
            found = connection.execute(select(GROUPS.c.state).where(GROUPS.c.name == wanted.group.name)).scalar()
            state = None if found is None else GroupState.load(from_json(found))
    return News(tuple(_stream_news(known, rows, elsewhere.get(known.stream_id)) for known in wanted.streams), state)


def _stream_news(
    known: StreamSubscription, rows: Iterable[Any], elsewhere: Mapping[int, int] | None
) -> StreamSubscription:
    version, ends, marks = -1, dict(known.ends), dict(known.marks)
    if elsewhere is not None:
        ends = {segment: elsewhere.get(segment, end) for segment, end in ends.items()}
    for kind, stream, name, number in rows:
        if stream != known.stream_id or kind == _GROUP:
            continue
        if kind == _STREAM:
            version = number
        elif kind == _SEGMENT:
            if elsewhere is None:
                ends[int(name)] = number
        else:
            marks[name] = number
    return StreamSubscription(known.stream_id, version, ends, marks)
