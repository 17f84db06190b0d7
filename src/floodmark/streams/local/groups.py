"""Reader groups in the store, each change one transaction on the newest state; and waiting for news."""

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
from floodmark.streams.groups.bounds import check_order, starting_progress
from floodmark.streams.groups.requests import (
    GroupRef,
    NewGroup,
    News,
    Report,
    StreamBounds,
    StreamSubscription,
    Subscription,
)
from floodmark.streams.groups.state import GroupState, StreamProgress, check_group_name, find_group_stream
from floodmark.streams.groups.transitions import (
    Facts,
    StreamFacts,
    cancel_checkpoint,
    expel_reader,
    join_reader,
    leave_reader,
    refresh_group,
    reset_group,
    start_checkpoint,
    sync_reader,
)
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.tables import GROUPS, KEYS, SEGMENTS, STREAMS
from floodmark.streams.marks.log import ending_at
from floodmark.streams.ports import StreamLog

GroupChange = Callable[[GroupState, Facts, int], GroupState]


class GroupStore:
    """Stores the reader groups of a home."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Use the groups of this home."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def create(self, group: NewGroup) -> GroupState:
        """Create a group under an unused name."""
        names = [bounds.stream for bounds in group.streams]
        if not names:
            raise InvalidOption(
                f"The group {group.name!r} has no streams.",
                rule="A group reads at least one stream.",
                remedy="Pass at least one stream to create_group().",
                group=group.name,
            )
        if len(set(names)) < len(names):
            raise DuplicateName(
                f"The streams of the group {group.name!r} are {', '.join(map(repr, names))}.",
                rule="A group reads each stream once.",
                remedy="Name each stream once.",
                streams=names,
            )
        check_group_name("group", group.name)
        all_progress = tuple(
            self._starting_progress(bounds, self._catalog.find(bounds.stream)) for bounds in group.streams
        )
        state = GroupState(group.name, group.id, all_progress, created_at=self._home.now())
        state = refresh_group(state, self._facts(all_progress), state.created_at)
        with self._home.write() as connection:
            if insert_if_absent(connection, GROUPS, _group_row(state)):
                return state
            existing = _state_of(connection.execute(select(GROUPS).where(GROUPS.c.name == group.name)).one())
        if existing.group_id == group.id:
            return existing
        raise GroupExists(
            f"The group {group.name!r} already exists.",
            rule="Each group of a home has a unique name.",
            remedy="Open it with group(), delete it first, or choose another name.",
            group=group.name,
        )

    def find(self, name: str) -> GroupState:
        """Return the group with a name, or raise `UnknownGroup`."""
        with self._home.read() as connection:
            row = connection.execute(select(GROUPS).where(GROUPS.c.name == name)).one_or_none()
            if row is not None:
                return _state_of(row)
            names = connection.execute(select(GROUPS.c.name)).scalars().all()
        raise UnknownGroup(
            f"There is no group {name!r}.",
            rule="A group must be created before it is used.",
            remedy=did_you_mean(str(name), names, otherwise="Create it with create_group()."),
            group=name,
        )

    def all(self) -> list[GroupState]:
        """Return all groups, sorted by name."""
        with self._home.read() as connection:
            return [_state_of(row) for row in connection.execute(select(GROUPS).order_by(GROUPS.c.name))]

    def delete(self, group: GroupRef) -> None:
        """Delete a group."""
        with self._home.write() as connection:
            connection.execute(delete(GROUPS).where(GROUPS.c.name == group.name, GROUPS.c.group_id == group.id))

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Add a reader."""
        check_group_name("reader", reader)
        return self._change(group, lambda state, facts, now: join_reader(state, reader, instance, ttl, facts, now))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Store the progress of a reader and return the state of the group."""
        return self._change(group, lambda state, facts, now: sync_reader(state, report, facts, now))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Store the final progress of a reader and remove it."""
        self._change(group, lambda state, facts, now: leave_reader(state, report, facts, now))

    def expel(self, group: GroupRef, reader: str, instance_id: str) -> GroupState:
        """Remove a reader."""
        return self._change(group, lambda state, facts, now: expel_reader(state, reader, instance_id, facts, now))

    def refresh(self, group: GroupRef) -> GroupState:
        """Apply changes that depend on time only."""
        return self._change(group, refresh_group)

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Start a checkpoint; without readers it is complete at once."""
        check_group_name("checkpoint", name)

        def transition(state: GroupState, facts: Facts, now: int) -> GroupState:
            return refresh_group(
                start_checkpoint(refresh_group(state, facts, now), checkpoint, name, timeout, now), facts, now
            )

        return self._change(group, transition)

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Cancel an incomplete checkpoint."""
        return self._change(
            group, lambda state, facts, now: refresh_group(cancel_checkpoint(state, checkpoint), facts, now)
        )

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Move a group to new positions."""
        by_name = {bounds.stream: bounds for bounds in streams}
        all_progress = []
        for progress in self._find(group).progress:
            if progress.name not in by_name:
                raise InvalidOption(
                    f"The reset has no position for the stream {progress.name!r}.",
                    rule="A reset needs a position in each stream of the group.",
                    remedy=f"Pass a cut or a time for {progress.name!r} too.",
                    group=group.name,
                    stream=progress.name,
                )
            stream = find_group_stream(self._catalog, progress)
            moved = self._starting_progress(replace(by_name[progress.name], key=progress.key), stream)
            check_order(stream.layout, moved.position, progress.end, moved.since, progress.until)
            all_progress.append(replace(moved, end=progress.end, until=progress.until))
        return self._change(
            group, lambda state, facts, now: reset_group(state, tuple(all_progress), reset_id, facts, now)
        )

    def _change(self, group: GroupRef, transition: GroupChange) -> GroupState:
        """Apply a transition, retrying after a lost race. A heartbeat that is not due yet is not stored."""

        def attempt() -> GroupState:
            before = self._find(group)
            # Gathered before the transaction, to keep it short: facts about a stream stay true.
            facts = self._facts(before.progress)
            if not _is_worth_keeping(before, transition(before, facts, self._home.now())):
                return before
            with self._home.write() as connection:
                is_group = (GROUPS.c.name == group.name, GROUPS.c.group_id == group.id)
                row = connection.execute(select(GROUPS).where(*is_group).with_for_update()).one_or_none()
                if row is None:
                    raise LostRace
                state = _state_of(row)
                _check_facts(state, facts)
                after = replace(transition(state, facts, self._home.now(connection)), version=state.version + 1)
                values = {"version": after.version, "state": to_json(after.save(), "state")}
                connection.execute(update(GROUPS).where(*is_group).values(values))
            return after

        return retry_on_conflict(attempt)

    def _find(self, group: GroupRef) -> GroupState:
        with self._home.read() as connection:
            row = connection.execute(select(GROUPS).where(GROUPS.c.name == group.name)).one_or_none()
        if row is not None and row.group_id == group.id:
            return _state_of(row)
        is_recreated = row is not None
        raise GroupDeleted(
            f"The group {group.name!r} was deleted{' and created again' if is_recreated else ''}.",
            rule="Readers of a deleted group cannot be used any more.",
            remedy="Open the new group with group()." if is_recreated else "Create it again with create_group().",
            group=group.name,
            created_anew=is_recreated,
        )

    def _starting_progress(self, bounds: StreamBounds, stream: StreamInfo) -> StreamProgress:
        try:
            ends, starts = self._log.ends(stream), self._log.starts(stream)
            marks = lambda key: MarksTable(self._home, stream.id, key)  # noqa: E731
            return starting_progress(bounds, stream, ends, marks, starts)
        except UnknownSegment:
            # The stream was scaled meanwhile, and its marks log refers to new segments.
            return self._starting_progress(bounds, self._catalog.refresh(stream))

    def _facts(self, all_progress: Iterable[StreamProgress]) -> dict[str, StreamFacts]:
        return {progress.name: self._facts_of(progress) for progress in all_progress}

    def _facts_of(self, progress: StreamProgress) -> StreamFacts:
        stream = find_group_stream(self._catalog, progress)
        # Read the ends after the layout: a segment sealed in this layout then has its final end.
        ends = self._log.ends(stream)
        index = MarksTable(self._home, stream.id, progress.key)
        newest = index.newest()
        oldest = None
        if newest is not None and not progress.position.keys() <= progress.times.keys():
            oldest = next((entry.lower for entry in index.page(0, 1)), None)
        is_unresolved = progress.until is not None and progress.end is None
        return StreamFacts(
            layout=stream.layout,
            ends=ends,
            is_sealed=stream.is_sealed,
            oldest=oldest,
            newest=None if newest is None else newest.lower,
            end=ending_at(index, progress.until).cut if is_unresolved and progress.until is not None else None,
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
    """Raise `LostRace` if the group has reached segments that did not exist when the facts were gathered."""
    all_progress = (*state.progress, *(() if state.pending is None else state.pending.progress))
    if any(max(progress.position) >= len(facts[progress.name].layout.segments) for progress in all_progress):
        raise LostRace


def _is_worth_keeping(before: GroupState, after: GroupState) -> bool:
    """Return whether a transition changed more than heartbeats that are not due yet."""
    beats = {reader.id: reader.beat_at for reader in before.readers}
    readers = tuple(replace(reader, beat_at=beats.get(reader.id, reader.beat_at)) for reader in after.readers)
    if replace(after, readers=readers) != before:
        return True
    return any(abs(reader.beat_at - beats[reader.id]) * 4 >= reader.ttl for reader in after.readers)


_POLL_SECONDS: Final = 0.005
_KAFKA_POLL_SECONDS: Final = 0.02
_GROUP, _STREAM, _SEGMENT, _KEY = range(4)


ExternalEnds = Callable[[StreamSubscription], Mapping[int, int] | None]
"""Returns the segment ends of a stream with events in Kafka; None for events in the store."""


def wait_for_news(
    home: Home, subscription: Subscription, seconds: float, elsewhere: ExternalEnds = lambda stream: None
) -> News:
    """Return the current state as soon as anything is newer than the subscription, or when the time is over."""
    give_up = time.monotonic() + seconds
    query = _news_query(subscription)
    next_kafka_read = 0.0
    ends: dict[int, Mapping[int, int]] = {}
    while True:
        if time.monotonic() >= next_kafka_read:
            # Kafka is polled less often than the store, because it costs more.
            external = {stream.stream_id: elsewhere(stream) for stream in subscription.streams if stream.ends}
            ends = {stream_id: stream_ends for stream_id, stream_ends in external.items() if stream_ends is not None}
            next_kafka_read = time.monotonic() + _KAFKA_POLL_SECONDS
        news = _read_news(home, subscription, query, ends)
        if news.is_new_to(subscription) or time.monotonic() >= give_up:
            return news
        time.sleep(min(_POLL_SECONDS, max(give_up - time.monotonic(), 0)))


def _news_query(subscription: Subscription) -> "CompoundSelect[Any]":
    ids = [stream.stream_id for stream in subscription.streams]
    no_name = literal("", Text)
    is_group = GROUPS.c.name == subscription.group.name
    queries = [
        select(literal(_GROUP), GROUPS.c.group_id, no_name, GROUPS.c.version).where(is_group),
        select(literal(_STREAM), STREAMS.c.stream_id, no_name, STREAMS.c.version).where(STREAMS.c.stream_id.in_(ids)),
    ]
    for stream in subscription.streams:
        if stream.ends:
            is_segment = and_(SEGMENTS.c.stream_id == stream.stream_id, SEGMENTS.c.segment.in_(sorted(stream.ends)))
            columns = (SEGMENTS.c.stream_id, cast(SEGMENTS.c.segment, Text), SEGMENTS.c.end_offset)
            queries.append(select(literal(_SEGMENT), *columns).where(is_segment))
        if stream.marks:
            is_key = and_(KEYS.c.stream_id == stream.stream_id, KEYS.c.time_key.in_(sorted(stream.marks)))
            queries.append(select(literal(_KEY), KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.last_seq).where(is_key))
    return union_all(*queries)


def _read_news(
    home: Home, subscription: Subscription, query: "CompoundSelect[Any]", elsewhere: Mapping[int, Mapping[int, int]]
) -> News:
    state = None
    with home.read() as connection:
        rows = list(connection.execute(query))
        groups = [(row[1], row[3]) for row in rows if row[0] == _GROUP]
        if groups != [(subscription.group.id, subscription.version)]:
            saved = connection.execute(select(GROUPS.c.state).where(GROUPS.c.name == subscription.group.name)).scalar()
            state = None if saved is None else GroupState.load(from_json(saved))
    streams = (_stream_news(stream, rows, elsewhere.get(stream.stream_id)) for stream in subscription.streams)
    return News(tuple(streams), state)


def _stream_news(
    last_seen: StreamSubscription, rows: Iterable[Any], elsewhere: Mapping[int, int] | None
) -> StreamSubscription:
    version, ends, marks = -1, dict(last_seen.ends), dict(last_seen.marks)
    if elsewhere is not None:
        ends = {segment: elsewhere.get(segment, end) for segment, end in ends.items()}
    for kind, stream, name, number in rows:
        if stream != last_seen.stream_id or kind == _GROUP:
            continue
        if kind == _STREAM:
            version = number
        elif kind == _SEGMENT:
            if elsewhere is None:
                ends[int(name)] = number
        else:
            marks[name] = number
    return StreamSubscription(last_seen.stream_id, version, ends, marks)
