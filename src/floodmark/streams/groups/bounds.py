"""Where a group starts and ends: parsing cuts and times of the caller, and resolving them to positions."""

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
from floodmark.streams.groups.state import Checkpoint, GroupCut, StreamCut, StreamProgress
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, Standing, check_cut, compare_to_cut
from floodmark.streams.layout.retention import from_head, head_cut
from floodmark.streams.marks.log import LookupStatus, MarkEntry, MarksIndex, ending_at, starting_at, time_at

MarksByKey = Callable[[str], MarksIndex]
"""Returns the marks log of a stream for one of its keys."""


def parse_bounds(value: Any, streams: Sequence[StreamInfo]) -> dict[str, Bound]:
    """Return the bound of each stream from the `start` or `end` that a caller passed for a group.

    `value` is a `GroupCut`, a `Checkpoint`, {stream: cut or time}, a time, or a cut if the group has one stream.
    Streams that a dict does not name have no bound.
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
                f"The cut is of {_quoted(cuts)}, and the group reads {_quoted(names)}.",
                rule="A group cut has exactly the streams of the group.",
                remedy="Take the cut from a group of the same streams, or pass {stream: cut}.",
                streams=sorted(cuts),
            )
        value = cuts
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        for name in value:
            if name not in names:
                raise StreamNotInGroup(
                    f"A bound was given for {name!r}, which the group does not read.",
                    rule=f"The streams of the group are {_quoted(names)}.",
                    remedy=did_you_mean(name, names, otherwise="Leave this stream out."),
                    stream=name,
                )
        return {stream.name: _bound(value[stream.name], stream) for stream in streams if stream.name in value}
    if isinstance(value, Mapping) and len(streams) != 1:
        raise InvalidOption(
            f"One cut was given for {len(streams)} streams.",
            rule="A cut belongs to one stream.",
            remedy="Pass {stream: cut}, or a cut of a group (group.cut()).",
            value=value,
        )
    return {stream.name: _bound(value, stream) for stream in streams}


def _bound(value: Any, stream: StreamInfo) -> Bound:
    if value is None:
        return Bound()
    if isinstance(value, StreamCut):
        bound = Bound(value.cut, None, value.stream_id, value.places, value.since, value.lowers)
        _check_stream(bound, stream)
        return bound
    if isinstance(value, Mapping):
        return Bound(check_cut(stream.layout, value))
    return Bound(time=time_in_unit(value, stream.settings.unit))


def starting_progress(
    bounds: StreamBounds,
    stream: StreamInfo,
    ends: Mapping[int, int],
    marks: MarksByKey,
    starts: Mapping[int, int] | None = None,
) -> StreamProgress:
    """Return the progress of a new group in a stream, or refuse invalid bounds.

    `starts` are the starts of segments from which events were removed. A group that would start before the head of the
    stream starts at the head; one that would also end there reads nothing.
    """
    settings, layout = stream.settings, stream.layout
    key = settings.key(bounds.key)
    head = head_cut(layout, starts or {}, ends)
    position, since = _start(bounds, stream, ends, marks(key), head)
    end, until = _end(bounds, stream, marks(key))
    if end is not None and starts:
        end = from_head(layout, end, head)
    check_order(layout, position, end, since, until)
    places: dict[str, int] = {}
    lowers: dict[str, int] = {}
    times: dict[int, int] = {}
    for time_key in settings.keys:
        index, stored = marks(time_key), bounds.start.places.get(time_key)
        entry = _passed_entry(index, position, layout, stored)
        lower = None if entry is None else entry.window_lower
        if entry is not None:
            places[time_key] = entry.seq
            if time_key == key and entry.lower is not None:
                times = dict.fromkeys(position, entry.lower)
        elif stored is not None and stored < index.numbers().start:
            # Retention has deleted the entry that the cut has passed; what it stated still holds there.
            places[time_key], lower = stored, bounds.start.lowers.get(time_key)
        if lower is not None:
            lowers[time_key] = lower
    return StreamProgress(
        stream.name,
        stream.id,
        key,
        position,
        places,
        times=times,
        end=end,
        since=since,
        until=until,
        lowers=lowers,
    )


def check_order(
    layout: Layout, start: Position, end: Position | None, since: int | None = None, until: int | None = None
) -> None:
    """Refuse an end before the start.

    >>> check_order(Layout.create(1), {0: 15}, {0: 10})
    Traceback (most recent call last):
    floodmark.errors.BoundsReversed: The group would read from {0: 15} to {0: 10}. ... [bounds-reversed]
    """
    if end is not None and compare_to_cut(layout, end, start) is not Standing.PASSED:
        raise BoundsReversed(
            f"The group would read from {dict(start)} to {dict(end)}.",
            rule="In no segment is the end before the start.",
            remedy="Swap start and end, or take both from the same marks log.",
            start=dict(start),
            end=dict(end),
        )
    if since is not None and until is not None and until < since:
        raise BoundsReversed(
            f"The group would read from the time {since} to {until}.",
            rule="The end is not before the start.",
            remedy="Swap start and end.",
            start=since,
            end=until,
        )


def _start(
    bounds: StreamBounds, stream: StreamInfo, ends: Mapping[int, int], index: MarksIndex, head: Position
) -> tuple[dict[int, int], int | None]:
    start, layout = bounds.start, stream.layout
    if start.time is not None:
        _check_reached(starting_at(index, start.time).where, bounds, start.time)
        # A row of exactly this time may have been written before a mark of this time: start at a mark below it.
        lookup = starting_at(index, max(start.time - 1, INT64_MIN))
        return dict(head) if lookup.cut is None else from_head(layout, lookup.cut, head), start.time
    if start.cut is None:
        return dict(head), start.since
    _check_stream(start, stream)
    cut = check_cut(layout, start.cut)
    for segment, offset in cut.items():
        if offset > ends[segment]:
            raise OffsetOutOfRange(
                f"The group would begin at offset {offset} of segment {segment} of {stream.name!r}.",
                rule=f"The segment ends at {ends[segment]}.",
                remedy="Take the cut from stream.tail(), from the marks log, or from a group.",
                stream=stream.name,
                segment=segment,
                offset=offset,
                end=ends[segment],
            )
    return from_head(layout, cut, head), start.since


def _end(bounds: StreamBounds, stream: StreamInfo, index: MarksIndex) -> tuple[dict[int, int] | None, int | None]:
    end = bounds.end
    if end.time is not None:
        lookup = ending_at(index, end.time)
        _check_reached(lookup.where, bounds, end.time)
        return (None if lookup.cut is None else dict(lookup.cut)), end.time
    if end.cut is None:
        return None, None
    _check_stream(end, stream)
    return check_cut(stream.layout, end.cut), None


def _passed_entry(index: MarksIndex, position: Position, layout: Layout, stored: int | None) -> MarkEntry | None:
    """Return the newest entry that the position has passed: the `stored` one if it is valid, else by lookup."""
    if stored is not None and stored in index.numbers():
        entry = index.entry_from(stored)
        if entry.seq == stored and compare_to_cut(layout, position, entry.cut) is Standing.PASSED:
            return entry
    return time_at(index, position, layout).entry


def _check_reached(where: LookupStatus, bounds: StreamBounds, time: int) -> None:
    if where is LookupStatus.AFTER_LAST and not bounds.waits:
        raise TimeNotReached(
            f"The marks log of {bounds.stream!r} has not reached {time}.",
            rule="With after_last='refuse' the marks log must have reached the time.",
            remedy="Try again later, or pass after_last='wait'.",
            stream=bounds.stream,
            time=time,
        )


def _check_stream(bound: Bound, stream: StreamInfo) -> None:
    if bound.stream_id is not None and bound.stream_id != stream.id:
        raise ForeignCut(
            f"The cut was not taken from the current stream {stream.name!r}.",
            rule="A cut is valid only in the stream that it was taken from, not in a re-created one of the same name.",
            remedy="Start at the head of the new stream: pass stream.head().",
            stream=stream.name,
        )


def _quoted(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)))
