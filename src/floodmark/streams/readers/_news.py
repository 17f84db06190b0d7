"""Waiting for news in a store: one small question, asked again and again, until the answer is new or time is over."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import CompoundSelect, Text, and_, cast, literal, select, union_all

from floodmark._util.codec import from_json
from floodmark.control import Home
from floodmark.streams._schema import GROUPS, KEYS, SEGMENTS, STREAMS
from floodmark.streams.readers._requests import News, Wanted, WantedStream
from floodmark.streams.readers._state import GroupState

_POLL_SECONDS: Final = 0.005
_ASK_SECONDS: Final = 0.02
_GROUP, _STREAM, _SEGMENT, _KEY = range(4)


EndsElsewhere = Callable[[WantedStream], Mapping[int, int] | None]
"""Returns where a stream ends whose events are not in the store; None for one whose events are."""


def wait_for_news(home: Home, wanted: Wanted, seconds: float, elsewhere: EndsElsewhere = lambda known: None) -> News:
    """Return what holds now, as soon as something is newer than what is known, or when the time is over."""
    give_up = time.monotonic() + seconds
    question = _question(wanted)
    ask_at = 0.0
    ends: dict[int, Mapping[int, int]] = {}
    while True:
        if time.monotonic() >= ask_at:
            # That costs more than a look into the store.
            found = {known.stream_id: elsewhere(known) for known in wanted.streams if known.ends}
            ends = {stream: those for stream, those in found.items() if those is not None}
            ask_at = time.monotonic() + _ASK_SECONDS
        news = _look(home, wanted, question, ends)
        if news.is_new_to(wanted) or time.monotonic() >= give_up:
            return news
        time.sleep(min(_POLL_SECONDS, max(give_up - time.monotonic(), 0)))


def _question(wanted: Wanted) -> "CompoundSelect[Any]":
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


def _look(
    home: Home, wanted: Wanted, question: "CompoundSelect[Any]", elsewhere: Mapping[int, Mapping[int, int]]
) -> News:
    state = None
    with home.read() as connection:
        rows = list(connection.execute(question))
        groups = [(row[1], row[3]) for row in rows if row[0] == _GROUP]
        if groups != [(wanted.group.id, wanted.version)]:
            found = connection.execute(select(GROUPS.c.state).where(GROUPS.c.name == wanted.group.name)).scalar()
            state = None if found is None else GroupState.load(from_json(found))
    return News(tuple(_stream(known, rows, elsewhere.get(known.stream_id)) for known in wanted.streams), state)


def _stream(known: WantedStream, rows: Iterable[Any], elsewhere: Mapping[int, int] | None) -> WantedStream:
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
    return WantedStream(known.stream_id, version, ends, marks)
