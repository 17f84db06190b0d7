"""Offsets of a reader of a bound source: their order, where the next batch ends, and which rows are in it.

There is no clock and no I/O here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from floodmark.bindings.history import BindingHistory
from floodmark.errors import SnapshotInvalid


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A place in a source. It reads the same today and after a restart, for everybody who reads the source.

    >>> offset = SourceOffset("a1b2", 2000, {0: 7}, {"at": 50})
    >>> SourceOffset.load(offset.save()) == offset
    True
    """

    incarnation: str
    """Which query it belongs to: one that starts anew has another."""
    ts: int | None
    """The timestamp that was read last, perhaps not to its end; None before the first."""
    cut: Mapping[int, int]
    """How far each partition was read."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """How far time has come: that of the last timestamp that was read to its end."""
    step: int = 0
    """How many empty steps were taken here."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "incarnation": self.incarnation,
            "ts": self.ts,
            "cut": {str(partition): end for partition, end in sorted(self.cut.items())},
            "watermarks": dict(sorted(self.watermarks.items())),
            "step": self.step,
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "SourceOffset":
        """Return what was saved."""
        try:
            cut = {int(partition): int(end) for partition, end in saved["cut"].items()}
            watermarks = {str(key): int(time) for key, time in saved["watermarks"].items()}
            ts = None if saved["ts"] is None else int(saved["ts"])
            return cls(str(saved["incarnation"]), ts, cut, watermarks, int(saved["step"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotInvalid(
                f"An offset is {saved!r:.200}.",
                rule="It has an incarnation, ts, cut, watermarks and step, as this release writes them.",
                remedy="Start the query with a new checkpoint.",
            ) from error

    def is_at_end_of_ts(self, history: BindingHistory) -> bool:
        """Return whether all that is bound up to its timestamp was read."""
        if self.ts is None:
            return True
        return all(self.cut.get(partition, 0) >= end for partition, end in cut_upto(history, self.ts).items())


def cut_upto(history: BindingHistory, ts: int | None) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, also one that was compacted; nothing before the first."""
    return {} if ts is None or ts < history.origin else history.cut_at(max(ts, history.since))


QueryPosition = Mapping[str, SourceOffset]
"""Where a query is, in all of its sources: {source: offset}."""


@dataclass(frozen=True, slots=True)
class BatchStop:
    """A place at which a batch must end, in all sources at once: one that is there first waits for the others."""

    place: QueryPosition
    in_one: bool
    """Whether one batch goes there from the stop before, however large it is; else it may take any number."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"place": save_query_position(self.place), "in_one": self.in_one}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "BatchStop":
        """Return what was saved."""
        return cls(load_query_position(saved["place"]), bool(saved["in_one"]))


def compare_offsets(one: SourceOffset, other: SourceOffset) -> int | None:
    """Return -1, 0 or 1 if `one` lies before, at or behind `other`, and None if neither can be said.

    A partition that is not named was not read. Empty steps at one place count. Of which query an offset is does not.

    >>> inside, whole = SourceOffset("q", 2, {0: 7}), SourceOffset("q", 2, {0: 9})
    >>> (
    ...     compare_offsets(inside, whole),
    ...     compare_offsets(whole, SourceOffset("r", 2, {0: 9})),
    ...     compare_offsets(whole, inside),
    ... )
    (-1, 0, 1)
    >>> compare_offsets(SourceOffset("q", 2, {0: 7, 1: 1}), SourceOffset("q", 2, {0: 5, 1: 3})) is None
    True
    """
    partitions = one.cut.keys() | other.cut.keys()
    behind = any(one.cut.get(partition, 0) < other.cut.get(partition, 0) for partition in partitions)
    ahead = any(one.cut.get(partition, 0) > other.cut.get(partition, 0) for partition in partitions)
    if behind and ahead:
        return None
    by_rows = ahead - behind
    # Time goes on also where no row comes; but whoever is later has not read less.
    by_ts = _sign(_ts_or_lowest(one.ts), _ts_or_lowest(other.ts))
    if by_ts:
        return by_ts if by_rows in (0, by_ts) else None
    return by_rows or _sign(one.step, other.step)


def clip_to_stop(source: str, stops: Sequence[BatchStop], start: SourceOffset, wanted: SourceOffset) -> SourceOffset:
    """Return where a batch of a source ends that would go from `start` to `wanted`, if it must not pass a stop.

    A source that has come to the first of the stops waits there, until that is none any more.

    >>> at = lambda end: SourceOffset("q", 1, {0: end})
    >>> stops = (BatchStop({"s": at(5)}, in_one=False), BatchStop({"s": at(9)}, in_one=True))
    >>> clip_to_stop("s", stops, at(0), at(3)).cut, clip_to_stop("s", stops, at(3), at(7)).cut
    ({0: 3}, {0: 5})
    >>> clip_to_stop("s", stops, at(5), at(7)).cut, clip_to_stop("s", stops[1:], at(5), at(7)).cut
    ({0: 5}, {0: 9})
    """
    stop = next((stop for stop in stops if source in stop.place), None)
    if stop is None:
        return wanted
    end = replace(stop.place[source], incarnation=start.incarnation)
    if compare_offsets(start, end) != -1:
        return start
    is_on_the_way = compare_offsets(start, wanted) == -1 and compare_offsets(wanted, end) == -1
    return wanted if is_on_the_way and not stop.in_one else end


def save_query_position(place: QueryPosition) -> dict[str, Any]:
    """Return a place as JSON values."""
    return {source: offset.save() for source, offset in sorted(place.items())}


def load_query_position(saved: Mapping[str, Any]) -> dict[str, SourceOffset]:
    """Return a place that was saved."""
    return {str(source): SourceOffset.load(offset) for source, offset in saved.items()}


def _ts_or_lowest(ts: int | None) -> float | int:
    return float("-inf") if ts is None else ts


def _sign(one: float, other: float) -> int:
    return (one > other) - (one < other)


@dataclass(frozen=True, slots=True)
class BatchLimits:
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


def next_offset(history: BindingHistory, start: SourceOffset, limits: BatchLimits = BatchLimits()) -> SourceOffset:  # noqa: B008
    """Return where a batch that begins at `start` ends; `start` itself if there is nothing to be read.

    Timestamps are read whole as long as the limits allow. One that alone is too large is read in several batches; then
    its partitions come in their order, so that what took the place of a segment comes after it.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> start = SourceOffset("q", None, {})
    >>> next_offset(history, start).cut, next_offset(history, start, BatchLimits(rows=7)).cut
    ({0: 9}, {0: 5})
    >>> inside = next_offset(history, start, BatchLimits(rows=3))
    >>> inside.cut, inside.watermarks
    ({0: 3}, {})
    """
    if limits.at_marks and start.step == 0 and start.watermarks and start.is_at_end_of_ts(history):
        return replace(start, step=1)
    ticks = _timestamps_ahead(history, start, limits)
    if not ticks or not _has_news(history, start, limits, ticks[-1]):
        return start
    allowed = _count_by_rows(history, start, limits, ticks)
    if not allowed or not _has_news(history, start, limits, ticks[allowed - 1]):
        # The next one with anything in it alone has too many rows.
        return _end_inside_timestamp(history, start, limits, ticks[allowed])
    ts = ticks[_count_by_time(history, start, limits, ticks[:allowed]) - 1]
    cut = _read_upto(history, start, limits, ts)
    return SourceOffset(start.incarnation, ts, cut, _watermarks_reached(history, start, ts, cut))


def offset_at_cut(history: BindingHistory, incarnation: str, cut: Mapping[int, int]) -> SourceOffset:
    """Return where a reader is that begins at a cut: in the first timestamp of which it has anything to read.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> offset_at_cut(history, "q", {0: 7}).ts, offset_at_cut(history, "q", {0: 7}).watermarks
    (2, {'at': 50})
    """
    first = min(
        history.frontier({partition: cut.get(partition, 0) for partition in history.columns}), history.upper - 1
    )
    if first < history.origin:
        return SourceOffset(incarnation, None, dict(cut))
    start = SourceOffset(incarnation, first, dict(sorted(cut.items())))
    return replace(start, watermarks=_watermarks_reached(history, start, first, cut))


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


def _timestamps_ahead(history: BindingHistory, start: SourceOffset, limits: BatchLimits) -> list[int]:
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
        final = _cut_within_limits(history, history.upper - 1, limits)
        del ticks[bisect_left(ticks, True, key=lambda ts: _cut_within_limits(history, ts, limits) == final) + 1 :]
    return ticks


def _has_news(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> bool:
    """Return whether up to a timestamp there is anything that `start` has not: a row, or a watermark."""
    has_rows = _count_rows(start, _cut_within_limits(history, ts, limits)) > 0
    return has_rows or _watermarks_at(history, start, limits, ts) != start.watermarks


def _watermarks_at(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> dict[str, int]:
    return _watermarks_reached(history, start, ts, _read_upto(history, start, limits, ts))


def _read_upto(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> dict[int, int]:
    """Return how far each partition was read after a timestamp was; one that was read further before stays so."""
    ends = _cut_within_limits(history, ts, limits)
    cut = {**start.cut, **{partition: max(end, start.cut.get(partition, 0)) for partition, end in ends.items()}}
    return dict(sorted(cut.items()))


def _watermarks_reached(
    history: BindingHistory, start: SourceOffset, ts: int, cut: Mapping[int, int]
) -> dict[str, int]:
    """Return the watermarks where `ts` was read up to `cut`: those of the timestamps that were read to their ends."""
    unread = history.frontier({partition: cut.get(partition, 0) for partition in history.columns})
    first_open = max(min(unread, ts + 1), history.since)
    return {**start.watermarks, **history.watermark_before(first_open)}


def _count_by_rows(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ticks: list[int]) -> int:
    """Return how many of the timestamps may be read by their number of rows."""
    if limits.rows is None:
        return len(ticks)
    return bisect_right(ticks, limits.rows, key=lambda ts: _count_rows(start, _cut_within_limits(history, ts, limits)))


def _count_by_time(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ticks: list[int]) -> int:
    """Return how many of the timestamps may be read by what their watermarks say; at least one that has anything."""
    allowed = len(ticks)
    if limits.at_marks:
        allowed = (
            bisect_left(ticks, True, key=lambda ts: _watermarks_at(history, start, limits, ts) != start.watermarks) + 1
        )
    if limits.event_time is not None:
        key, most = limits.event_time
        steps = history.steps.get(key)
        base = start.watermarks.get(key, None if steps is None else int(steps.values[0]))
        if base is not None:
            within = bisect_right(
                ticks, base + most, key=lambda ts: _watermarks_at(history, start, limits, ts).get(key, base)
            )
            allowed = min(allowed, within)
    if limits.time_at_most is not None:
        name, most_time = limits.time_at_most
        within = bisect_right(
            ticks, most_time, key=lambda ts: _watermarks_at(history, start, limits, ts).get(name, most_time)
        )
        allowed = min(allowed, within)
    first = bisect_left(ticks, True, key=lambda ts: _has_news(history, start, limits, ts)) + 1
    return min(max(allowed, first), len(ticks))


def _end_inside_timestamp(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> SourceOffset:
    """Return an offset inside of a timestamp that has more rows than a batch may have."""
    cut, left = dict(start.cut), limits.rows or 0
    for partition, end in sorted(_cut_within_limits(history, ts, limits).items()):
        taken = min(left, max(end - cut.get(partition, 0), 0))
        if taken:
            cut[partition] = cut.get(partition, 0) + taken
            left -= taken
    cut = dict(sorted(cut.items()))
    return SourceOffset(start.incarnation, ts, cut, _watermarks_reached(history, start, ts, cut))


def _cut_within_limits(history: BindingHistory, ts: int, limits: BatchLimits) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, but not beyond where reading ends for good."""
    cut = cut_upto(history, ts)
    if limits.end is None:
        return cut
    return {partition: min(end, limits.end.get(partition, 0)) for partition, end in cut.items()}


def _count_rows(start: SourceOffset, cut: Mapping[int, int]) -> int:
    return sum(max(end - start.cut.get(partition, 0), 0) for partition, end in cut.items())
