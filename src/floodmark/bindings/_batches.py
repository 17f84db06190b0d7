"""Where the next batch of a bound source ends, and which rows of which timestamps are in it."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from floodmark.bindings._history import BindingHistory
from floodmark.bindings._source_offset import SourceOffset, cut_upto


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a batch may go. At least the next row, or the next timestamp without rows, is always in it."""

    rows: int | None = None
    event_time: tuple[str, int] | None = None
    """A key, and how far its watermark may move."""
    time_at_most: tuple[str, int] | None = None
    """A key, and a watermark that is not passed unless the very next timestamp does."""
    until: int | None = None
    """The last timestamp to be read."""
    end: Mapping[int, int] | None = None
    """Where reading ends for good; a partition that is not named is not read."""
    at_marks: bool = False
    """Whether the batch ends where a watermark moves, with an empty step after it."""


@dataclass(frozen=True, slots=True)
class BoundRange:
    """Rows of one partition that are bound to one timestamp, and the watermarks that they are judged by."""

    partition: int
    first: int
    end: int
    ts: int
    watermarks: Mapping[str, int]


def next_offset(history: BindingHistory, start: SourceOffset, limits: Limits = Limits()) -> SourceOffset:  # noqa: B008
    """Return where a batch that begins at `start` ends; `start` itself if there is nothing to be read.

    Timestamps are read whole as long as the limits allow. One that alone is too large is read in several batches; then
    its partitions come in their order, so that what took the place of a segment comes after it.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> start = SourceOffset("q", None, {})
    >>> next_offset(history, start).cut, next_offset(history, start, Limits(rows=7)).cut
    ({0: 9}, {0: 5})
    >>> inside = next_offset(history, start, Limits(rows=3))
    >>> inside.cut, inside.watermarks
    ({0: 3}, {})
    """
    if limits.at_marks and start.step == 0 and start.watermarks and start.is_at_end_of_ts(history):
        return replace(start, step=1)
    ticks = _ticks(history, start, limits)
    if not ticks or not _moves(history, start, limits, ticks[-1]):
        return start
    allowed = _count_by_rows(history, start, limits, ticks)
    if not allowed or not _moves(history, start, limits, ticks[allowed - 1]):
        # The next one with anything in it alone has too many rows.
        return _inside(history, start, limits, ticks[allowed])
    ts = ticks[_count_by_time(history, start, limits, ticks[:allowed]) - 1]
    cut = _read_upto(history, start, limits, ts)
    return SourceOffset(start.incarnation, ts, cut, _reached(history, start, ts, cut))


def offset_at(history: BindingHistory, incarnation: str, cut: Mapping[int, int]) -> SourceOffset:
    """Return where a reader is that begins at a cut: in the first timestamp of which it has anything to read.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> offset_at(history, "q", {0: 7}).ts, offset_at(history, "q", {0: 7}).watermarks
    (2, {'at': 50})
    """
    first = min(
        history.frontier({partition: cut.get(partition, 0) for partition in history.columns}), history.upper - 1
    )
    if first < history.origin:
        return SourceOffset(incarnation, None, dict(cut))
    start = SourceOffset(incarnation, first, dict(sorted(cut.items())))
    return replace(start, watermarks=_reached(history, start, first, cut))


def bound_ranges(history: BindingHistory, start: SourceOffset, end: SourceOffset) -> list[BoundRange]:
    """Return the rows between two offsets, by partition and timestamp.

    What was bound below `since` has lost its place in time: it is judged by no watermark.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> for part in bound_ranges(
    ...     history, SourceOffset("q", None, {}), next_offset(history, SourceOffset("q", None, {}))
    ... ):
    ...     print(part.first, part.end, part.ts, part.watermarks)
    0 5 1 {}
    5 9 2 {'at': 50}
    """
    found: list[BoundRange] = []
    for partition, last in sorted(end.cut.items()):
        first = start.cut.get(partition, 0)
        column = history.columns.get(partition)
        if column is None or first >= last:
            continue
        row = int(np.searchsorted(column.values, first, side="right"))
        while first < last:
            ts, stop = int(column.ts[row]), min(int(column.values[row]), last)
            has_place = ts > history.since or not history.is_compacted
            watermarks = history.watermark_before(ts) if has_place else {}
            found.append(BoundRange(partition, first, stop, max(ts, history.since), watermarks))
            first, row = stop, row + 1
    return found


def _ticks(history: BindingHistory, start: SourceOffset, limits: Limits) -> list[int]:
    """Return the timestamps from `start` on at which something is bound, up to the one in which reading ends."""
    last = history.upper - 1 if limits.until is None else min(limits.until, history.upper - 1)
    begun = history.origin if start.ts is None else start.ts
    side: Literal["left", "right"] = "right" if start.ts is not None and start.is_at_end_of_ts(history) else "left"
    times = [
        column.ts[np.searchsorted(column.ts, begun, side=side) :]
        for column in (*history.columns.values(), *history.steps.values())
    ]
    found = np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)
    # What was bound below `since` counts as bound there.
    ticks: list[int] = np.unique(np.maximum(found[found <= last], history.since)).tolist()
    if limits.end is not None:
        final = _clipped(history, history.upper - 1, limits)
        del ticks[bisect_left(ticks, True, key=lambda ts: _clipped(history, ts, limits) == final) + 1 :]
    return ticks


def _moves(history: BindingHistory, start: SourceOffset, limits: Limits, ts: int) -> bool:
    """Return whether up to a timestamp there is anything that `start` has not: a row, or a watermark."""
    has_rows = _rows(start, _clipped(history, ts, limits)) > 0
    return has_rows or _time_at(history, start, limits, ts) != start.watermarks


def _time_at(history: BindingHistory, start: SourceOffset, limits: Limits, ts: int) -> dict[str, int]:
    return _reached(history, start, ts, _read_upto(history, start, limits, ts))


def _read_upto(history: BindingHistory, start: SourceOffset, limits: Limits, ts: int) -> dict[int, int]:
    """Return how far each partition was read after a timestamp was; one that was read further before stays so."""
    ends = _clipped(history, ts, limits)
    cut = {**start.cut, **{partition: max(end, start.cut.get(partition, 0)) for partition, end in ends.items()}}
    return dict(sorted(cut.items()))


def _reached(history: BindingHistory, start: SourceOffset, ts: int, cut: Mapping[int, int]) -> dict[str, int]:
    """Return the watermarks where `ts` was read up to `cut`: those of the timestamps that were read to their ends."""
    unread = history.frontier({partition: cut.get(partition, 0) for partition in history.columns})
    first_open = max(min(unread, ts + 1), history.since)
    return {**start.watermarks, **history.watermark_before(first_open)}


def _count_by_rows(history: BindingHistory, start: SourceOffset, limits: Limits, ticks: list[int]) -> int:
    """Return how many of the timestamps may be read by their number of rows."""
    if limits.rows is None:
        return len(ticks)
    return bisect_right(ticks, limits.rows, key=lambda ts: _rows(start, _clipped(history, ts, limits)))


def _count_by_time(history: BindingHistory, start: SourceOffset, limits: Limits, ticks: list[int]) -> int:
    """Return how many of the timestamps may be read by what their watermarks say; at least one that has anything."""
    allowed = len(ticks)
    if limits.at_marks:
        allowed = bisect_left(ticks, True, key=lambda ts: _time_at(history, start, limits, ts) != start.watermarks) + 1
    if limits.event_time is not None:
        key, most = limits.event_time
        steps = history.steps.get(key)
        base = start.watermarks.get(key, None if steps is None else int(steps.values[0]))
        if base is not None:
            within = bisect_right(
                ticks, base + most, key=lambda ts: _time_at(history, start, limits, ts).get(key, base)
            )
            allowed = min(allowed, within)
    if limits.time_at_most is not None:
        name, most_time = limits.time_at_most
        within = bisect_right(
            ticks, most_time, key=lambda ts: _time_at(history, start, limits, ts).get(name, most_time)
        )
        allowed = min(allowed, within)
    first = bisect_left(ticks, True, key=lambda ts: _moves(history, start, limits, ts)) + 1
    return min(max(allowed, first), len(ticks))


def _inside(history: BindingHistory, start: SourceOffset, limits: Limits, ts: int) -> SourceOffset:
    """Return an offset inside of a timestamp that has more rows than a batch may have."""
    cut, left = dict(start.cut), limits.rows or 0
    for partition, end in sorted(_clipped(history, ts, limits).items()):
        taken = min(left, max(end - cut.get(partition, 0), 0))
        if taken:
            cut[partition] = cut.get(partition, 0) + taken
            left -= taken
    cut = dict(sorted(cut.items()))
    return SourceOffset(start.incarnation, ts, cut, _reached(history, start, ts, cut))


def _clipped(history: BindingHistory, ts: int, limits: Limits) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, but not beyond where reading ends for good."""
    cut = cut_upto(history, ts)
    if limits.end is None:
        return cut
    return {partition: min(end, limits.end.get(partition, 0)) for partition, end in cut.items()}


def _rows(start: SourceOffset, cut: Mapping[int, int]) -> int:
    return sum(max(end - start.cut.get(partition, 0), 0) for partition, end in cut.items())
