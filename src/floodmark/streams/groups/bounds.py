"""Where a group begins and ends: cuts and times as people give them, and the places that they stand for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from floodmark._util.ints import INT64_MIN
from floodmark._util.text import did_you_mean
from floodmark._util.times import time_in_unit
from floodmark.errors import (
    BoundsReversed,
    ForeignCut,
    InvalidOption,
    OffsetOutOfRange,
    StreamNotInGroup,
    TimeNotReached,
)
from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.requests import Bound, StreamBounds
from floodmark.streams.groups.state import Checkpoint, GroupCut, StreamCut, StreamPart
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, Standing, check_cut, compare
from floodmark.streams.marks.log import MarksIndex, Whereabouts, ending_at, starting_at, time_at

MarksByKey = Callable[[str], MarksIndex]
"""The marks log of a stream, for each of its keys."""


def bounds_of(value: Any, streams: Sequence[StreamInfo]) -> dict[str, Bound]:
    """Return for each stream where to begin or end, of what a caller gave for all of them.

    That is a `GroupCut`, {stream: cut or time}, a time, or for one stream its cut. Streams that are not named in a
    dict have no bound.
    """
    if value is None:
        return {}
    if isinstance(value, Checkpoint):
        value = value.cut
    names = [stream.name for stream in streams]
    if isinstance(value, GroupCut):
        cuts = {cut.stream: cut for cut in value.cuts}
        if set(cuts) != set(names):
            raise ForeignCut(
                f"The cut is of {_named(cuts)}, and the group reads {_named(names)}.",
                rule="A cut of a group has a place in each of its streams, and in no other.",
                remedy="Take a cut of a group of the same streams, or name the places as {stream: cut}.",
                streams=sorted(cuts),
            )
        value = cuts
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        for name in value:
            if name not in names:
                raise StreamNotInGroup(
                    f"A place was given in {name!r}.",
                    rule=f"The streams of the group are {_named(names)}.",
                    remedy=did_you_mean(name, names, otherwise="Leave it out."),
                    stream=name,
                )
        return {stream.name: _bound(value[stream.name], stream) for stream in streams if stream.name in value}
    if isinstance(value, Mapping) and len(streams) != 1:
        raise InvalidOption(
            f"One cut was given for {len(streams)} streams.",
            rule="A cut is of one stream.",
            remedy="Pass {stream: cut}, or a cut of a group.",
            value=value,
        )
    return {stream.name: _bound(value, stream) for stream in streams}


def _bound(value: Any, stream: StreamInfo) -> Bound:
    if value is None:
        return Bound()
    if isinstance(value, StreamCut):
        bound = Bound(value.cut, None, value.stream_id, value.places, value.since)
        _check_stream(bound, stream)
        return bound
    if isinstance(value, Mapping):
        return Bound(check_cut(stream.layout, value))
    return Bound(time=time_in_unit(value, stream.settings.unit))


def starting_part(bounds: StreamBounds, stream: StreamInfo, ends: Mapping[int, int], marks: MarksByKey) -> StreamPart:
    """Return what a group reads of a stream, at its beginning; refuse places that are none."""
    settings, layout = stream.settings, stream.layout
    key = settings.key(bounds.key)
    position, since = _start(bounds, stream, ends, marks(key))
    end, until = _end(bounds, stream, marks(key))
    check_order(layout, position, end, since, until)
    places: dict[str, int] = {}
    times: dict[int, int] = {}
    for one in settings.keys:
        index = marks(one)
        place = _place(index, position, layout, bounds.start.places.get(one))
        if place is not None:
            places[one] = place
            lower = index.entry(place).lower
            if one == key and lower is not None:
                times = dict.fromkeys(position, lower)
    return StreamPart(stream.name, stream.id, key, position, places, times=times, end=end, since=since, until=until)


def check_order(
    layout: Layout, start: Position, end: Position | None, since: int | None = None, until: int | None = None
) -> None:
    """Refuse an end that lies before the start.

    >>> check_order(Layout.create(1), {0: 15}, {0: 10})
    Traceback (most recent call last):
    floodmark.errors.BoundsReversed: The group would read from {0: 15} to {0: 10}. ... [bounds-reversed]
    """
    if end is not None and compare(layout, end, start) is not Standing.PASSED:
        raise BoundsReversed(
            f"The group would read from {dict(start)} to {dict(end)}.",
            rule="In no segment does the end lie before the start.",
            remedy="Swap them, or take both from the same marks log.",
            start=dict(start),
            end=dict(end),
        )
    if since is not None and until is not None and until < since:
        raise BoundsReversed(
            f"The group would read from the time {since} to {until}.",
            rule="The end does not lie before the start.",
            remedy="Swap them.",
            start=since,
            end=until,
        )


def _start(
    bounds: StreamBounds, stream: StreamInfo, ends: Mapping[int, int], index: MarksIndex
) -> tuple[dict[int, int], int | None]:
    start, layout = bounds.start, stream.layout
    head = {segment.id: 0 for segment in layout.segments_of(0)}
    if start.time is not None:
        _check_reached(starting_at(index, start.time).where, bounds, start.time)
        # A row of exactly this time may have been written before a mark of this time: begin at a mark below it.
        found = starting_at(index, max(start.time - 1, INT64_MIN))
        return (head if found.cut is None else dict(found.cut)), start.time
    if start.cut is None:
        return head, start.since
    _check_stream(start, stream)
    cut = check_cut(layout, start.cut)
    for segment, offset in cut.items():
        if offset > ends[segment]:
            raise OffsetOutOfRange(
                f"The group would begin at offset {offset} of segment {segment} of {stream.name!r}.",
                rule=f"The segment ends at {ends[segment]}.",
                remedy="Take cuts from tail(), from the marks log, or from a group.",
                stream=stream.name,
                segment=segment,
                offset=offset,
                end=ends[segment],
            )
    return cut, start.since


def _end(bounds: StreamBounds, stream: StreamInfo, index: MarksIndex) -> tuple[dict[int, int] | None, int | None]:
    end = bounds.end
    if end.time is not None:
        found = ending_at(index, end.time)
        _check_reached(found.where, bounds, end.time)
        return (None if found.cut is None else dict(found.cut)), end.time
    if end.cut is None:
        return None, None
    _check_stream(end, stream)
    return check_cut(stream.layout, end.cut), None


def _place(index: MarksIndex, position: Position, layout: Layout, stored: int | None) -> int | None:
    """Return the newest entry that is known to be passed: the one that a cut carries, if it fits, else look it up."""
    is_kept = stored is not None and stored in index.numbers()
    if stored is not None and is_kept and compare(layout, position, index.entry(stored).cut) is Standing.PASSED:
        return stored
    found = time_at(index, position, layout).entry
    return None if found is None else found.seq


def _check_reached(where: Whereabouts, bounds: StreamBounds, time: int) -> None:
    if where is Whereabouts.AFTER_LAST and not bounds.waits:
        raise TimeNotReached(
            f"The marks log of {bounds.stream!r} has not come to {time}.",
            rule="With after_last='refuse' a time must lie inside the log.",
            remedy="Try again later, or pass after_last='wait'.",
            stream=bounds.stream,
            time=time,
        )


def _check_stream(bound: Bound, stream: StreamInfo) -> None:
    if bound.stream_id is not None and bound.stream_id != stream.id:
        raise ForeignCut(
            f"The cut is of another stream than {stream.name!r} is now.",
            rule="A cut counts in the stream that it was taken from.",
            remedy="If that stream was deleted and created anew, its cuts went with it: begin at the head.",
            stream=stream.name,
        )


def _named(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)))
