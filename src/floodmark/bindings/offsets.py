"""Offsets of a reader of a bound source: their order, where the next batch ends, and which rows are in it.

Pure rules: no clock, no I/O.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from floodmark.bindings.history import BindingHistory
from floodmark.errors import SnapshotInvalid
from floodmark.progress import Coalescer

InputState = Literal["active", "idle", "unknown", "timed out", "finished"]
"""The state of an input of a query: that of its source, "timed out" after a longer silence than the query waits for, or
"finished" where the query ends."""


class Mark(NamedTuple):
    """What a reader promises to Spark: after it, rows have no time of this key before `micros`."""

    key: str
    micros: int


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A position in a source. It means the same rows for all readers, also after a restart.

    >>> offset = SourceOffset("a1b2", 2000, {0: 7}, {"at": 50})
    >>> SourceOffset.load(offset.save()) == offset
    True
    """

    incarnation: str
    """Id of the query run that it belongs to; a query that starts over gets a new one."""
    ts: int | None
    """The timestamp read last, perhaps not completely; None before the first."""
    cut: Mapping[int, int]
    """The next offset to read of each partition."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The watermarks of the last timestamp that was read completely."""
    step: int = 0
    """A number that rises with each empty batch at this position. It is odd once an empty batch has followed the last
    mark: windows that the mark has closed were emitted in it."""
    mark: Mark | None = None
    """The mark said to Spark at the end of the batch; None if none was, or by a version that did not store it."""
    state: InputState | None = None
    """The state of an input that does not hold the watermark while it is not active; None for one that always does."""

    def save(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        return {
            "incarnation": self.incarnation,
            "ts": self.ts,
            "cut": {str(partition): end for partition, end in sorted(self.cut.items())},
            "watermarks": dict(sorted(self.watermarks.items())),
            "step": self.step,
            **({} if self.mark is None else {"mark": list(self.mark)}),
            **({} if self.state is None else {"state": self.state}),
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "SourceOffset":
        """Return a saved offset."""
        try:
            cut = {int(partition): int(end) for partition, end in saved["cut"].items()}
            watermarks = {str(key): int(time) for key, time in saved["watermarks"].items()}
            ts = None if saved["ts"] is None else int(saved["ts"])
            mark = None if saved.get("mark") is None else Mark(str(saved["mark"][0]), int(saved["mark"][1]))
            state = saved.get("state")
            if state not in (None, *get_args(InputState)):
                raise ValueError(state)
            return cls(str(saved["incarnation"]), ts, cut, watermarks, int(saved["step"]), mark, state)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise SnapshotInvalid(
                f"The offset {saved!r:.200} cannot be read.",
                rule="An offset has the fields incarnation, ts, cut, watermarks and step, and perhaps mark and state.",
                remedy="Start the query with a new checkpoint.",
            ) from error

    @property
    def needs_empty_batch(self) -> bool:
        """Whether no empty batch has followed its mark."""
        return bool(self.watermarks or self.mark) and self.step % 2 == 0

    def is_at_end_of_ts(self, history: BindingHistory) -> bool:
        """Return whether all rows bound up to its timestamp were read."""
        if self.ts is None:
            return True
        return all(self.cut.get(partition, 0) >= end for partition, end in cut_upto(history, self.ts).items())


def cut_upto(history: BindingHistory, ts: int | None) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, which may be compacted; {} before the first."""
    return {} if ts is None or ts < history.origin else history.cut_at(max(ts, history.since))


def position_key(source: str, ordinal: int) -> str:
    """Return the key of a reader in the positions of a query: its source, and a number if it is not the first reader.

    >>> position_key("orders", 1), source_of_key(position_key("orders", 2))
    ('orders', 'orders')
    """
    # A source has no line breaks in its name.
    return source if ordinal == 1 else f"{source}\n{ordinal}"


def source_of_key(key: str) -> str:
    """Return the source of a key of a query's positions."""
    return key.partition("\n")[0]


QueryPosition = Mapping[str, SourceOffset]
"""The position of a query in all of its sources: {key: offset}; see `position_key`."""


@dataclass(frozen=True, slots=True)
class BatchStop:
    """A position where a batch must end in all sources at once; a source that is there first waits for the others."""

    position: QueryPosition
    in_one: bool
    """Whether a single batch must lead here from the stop before, however large; else any number of batches may."""

    def save(self) -> dict[str, Any]:
        """Return the stop as JSON values."""
        return {"place": save_query_position(self.position), "in_one": self.in_one}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "BatchStop":
        """Return a saved stop."""
        return cls(load_query_position(saved["place"]), bool(saved["in_one"]))


def compare_offsets(one: SourceOffset, other: SourceOffset) -> int | None:
    """Return -1, 0 or 1 if `one` lies before, at or after `other`; None if neither lies before the other.

    A partition left out of a cut was not read. Empty steps count; the incarnation does not.

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
    # Timestamps also advance without rows; but the later offset must not have read less.
    by_ts = _sign(_ts_or_lowest(one.ts), _ts_or_lowest(other.ts))
    if by_ts:
        return by_ts if by_rows in (0, by_ts) else None
    return by_rows or _sign(one.step, other.step)


def add_empty_batch(offset: SourceOffset) -> SourceOffset:
    """Return the offset after the empty batch that follows a mark.

    >>> add_empty_batch(SourceOffset("q", 1, {0: 5}, {"at": 50})).step
    1
    """
    return replace(offset, step=offset.step + 1)


def repeat_mark(offset: SourceOffset) -> SourceOffset:
    """Return the offset after an empty batch that only says the mark again.

    Spark restores one watermark for a whole query, and takes an input that has said nothing since the restart for one
    at 0. So each reader says its mark in the first batch of a run, also if it has nothing new.

    >>> repeated = repeat_mark(SourceOffset("q", 1, {0: 5}, {"at": 50}, step=1))
    >>> repeated.step, repeated.needs_empty_batch
    (3, False)
    """
    return replace(offset, step=offset.step + 2)


def raise_mark(start: SourceOffset, end: SourceOffset, mark: Mark | None) -> SourceOffset:
    """Return the end of a batch with a mark: this one, or that of the batch before if it is later.

    So a mark never goes back, also not that of an input which was left out while it was idle.

    >>> start = SourceOffset("q", 1, {0: 5}, mark=Mark("at", 50))
    >>> raise_mark(start, SourceOffset("q", 2, {0: 7}), Mark("at", 40)).mark
    Mark(key='at', micros=50)
    """
    said = [one for one in (start.mark, end.mark, mark) if one is not None]
    return replace(end, mark=max(said, key=lambda one: one.micros, default=None))


@dataclass(frozen=True, slots=True)
class QueryInput:
    """The mark of an input of a query in microseconds, and whether the others need not wait for it."""

    micros: int | None
    is_left_out: bool = False


def released_mark(own: int | None, others: Sequence[QueryInput]) -> int | None:
    """Return the mark up to which an input that is not active lets the others pass; None if it does not rise.

    Spark's watermark is the minimum over the inputs of a query, so an input that is not active raises its own mark to
    the minimum of the active ones; if none is active, to the highest mark of all. `others` must be as of the beginning
    of the batch: after their unread rows, an input would promise more than the query has read.

    >>> released_mark(5, [QueryInput(100), QueryInput(40)]), released_mark(50, [QueryInput(40)])
    (40, None)
    >>> released_mark(5, [QueryInput(100), QueryInput(None)])
    >>> released_mark(5, [QueryInput(100, is_left_out=True), QueryInput(40, is_left_out=True)])
    100
    """
    inputs = [QueryInput(own, is_left_out=True), *others]
    merged = Coalescer(range(len(inputs)), keys=[_MARK])
    for name, one in enumerate(inputs):
        if one.micros is not None:
            merged.watermark(name, _MARK, one.micros)
    for name, one in enumerate(inputs):
        if one.is_left_out:
            merged.idle(name)
    least = merged.current(_MARK) if others else None
    return least if least is not None and (own is None or least > own) else None


def change_state(offset: SourceOffset, state: InputState, mark: Mark | None) -> SourceOffset:
    """Return the offset after an empty batch by which an input tells its state, and a higher mark if it has one.

    >>> idle = change_state(SourceOffset("q", 1, {0: 5}, {"at": 50}, step=1), "idle", None)
    >>> released = change_state(idle, "idle", Mark("at", 70))
    >>> (idle.step, idle.needs_empty_batch), (released.step, released.needs_empty_batch)
    ((3, False), (4, True))
    """
    if mark is None:
        return replace(offset, step=offset.step + 2, state=state)
    return replace(offset, step=offset.step // 2 * 2 + 2, state=state, mark=mark)


def clip_to_stop(source: str, stops: Sequence[BatchStop], start: SourceOffset, end: SourceOffset) -> SourceOffset:
    """Return where a batch of a source from `start` to `end` must end so that it does not pass the first stop.

    A source that has reached the first stop stays there until the stop is removed.

    >>> at = lambda end: SourceOffset("q", 1, {0: end})
    >>> stops = (BatchStop({"s": at(5)}, in_one=False), BatchStop({"s": at(9)}, in_one=True))
    >>> clip_to_stop("s", stops, at(0), at(3)).cut, clip_to_stop("s", stops, at(3), at(7)).cut
    ({0: 3}, {0: 5})
    >>> clip_to_stop("s", stops, at(5), at(7)).cut, clip_to_stop("s", stops[1:], at(5), at(7)).cut
    ({0: 5}, {0: 9})
    """
    stop = next((stop for stop in stops if source in stop.position), None)
    if stop is None:
        return end
    limit = replace(stop.position[source], incarnation=start.incarnation)
    if compare_offsets(start, limit) != -1:
        return start
    is_before_stop = compare_offsets(start, end) == -1 and compare_offsets(end, limit) == -1
    return end if is_before_stop and not stop.in_one else limit


def save_query_position(position: QueryPosition) -> dict[str, Any]:
    """Return a query position as JSON values."""
    return {source: offset.save() for source, offset in sorted(position.items())}


def load_query_position(saved: Mapping[str, Any]) -> dict[str, SourceOffset]:
    """Return a saved query position."""
    return {str(source): SourceOffset.load(offset) for source, offset in saved.items()}


_MARK: Final = "mark"


def _ts_or_lowest(ts: int | None) -> float | int:
    return float("-inf") if ts is None else ts


def _sign(one: float, other: float) -> int:
    return (one > other) - (one < other)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How far a batch may go. It always contains at least the next row or the next timestamp without rows."""

    rows: int | None = None
    event_time: tuple[str, int] | None = None
    """A time key, and by how much its watermark may rise."""
    time_at_most: tuple[str, int] | None = None
    """A time key, and a watermark not to exceed unless the very next timestamp does."""
    until: int | None = None
    """The last timestamp to read."""
    end: Mapping[int, int] | None = None
    """The cut where reading ends for good; partitions left out are not read."""
    at_marks: bool = False
    """Whether the batch ends where a watermark rises, followed by an empty batch."""


@dataclass(frozen=True, slots=True)
class BoundRange:
    """Offsets of one partition that are bound to one timestamp, and the watermarks by which their rows are judged."""

    partition: int
    first: int
    end: int
    ts: int
    watermarks: Mapping[str, int]


def next_offset(history: BindingHistory, start: SourceOffset, limits: BatchLimits = BatchLimits()) -> SourceOffset:  # noqa: B008
    """Return where a batch that begins at `start` ends; `start` itself if there is nothing to read.

    Timestamps are read whole as long as the limits allow. A timestamp that alone has too many rows is read in several
    batches, in partition order, so that successors of a sealed segment are read after it.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> start = SourceOffset("q", None, {})
    >>> next_offset(history, start).cut, next_offset(history, start, BatchLimits(rows=7)).cut
    ({0: 9}, {0: 5})
    >>> inside = next_offset(history, start, BatchLimits(rows=3))
    >>> inside.cut, inside.watermarks
    ({0: 3}, {})
    """
    if limits.at_marks and start.needs_empty_batch and start.is_at_end_of_ts(history):
        return add_empty_batch(start)
    ticks = _timestamps_ahead(history, start, limits)
    if not ticks or not _has_news(history, start, limits, ticks[-1]):
        return start
    allowed = _count_by_rows(history, start, limits, ticks)
    if not allowed or not _has_news(history, start, limits, ticks[allowed - 1]):
        # The next timestamp with news has more rows than the limit.
        return _end_inside_timestamp(history, start, limits, ticks[allowed])
    ts = ticks[_count_by_time(history, start, limits, ticks[:allowed]) - 1]
    cut = _read_upto(history, start, limits, ts)
    return SourceOffset(start.incarnation, ts, cut, _watermarks_reached(history, start, ts, cut))


def offset_at_cut(history: BindingHistory, incarnation: str, cut: Mapping[int, int]) -> SourceOffset:
    """Return the offset of a reader that begins at a cut: in the first timestamp with unread rows.

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
    """Return the offset ranges between two offsets, by partition and timestamp.

    The time of what was bound below `since` is lost, so those ranges have no watermarks.

    >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
    >>> for bound in bound_ranges(
    ...     history, SourceOffset("q", None, {}), next_offset(history, SourceOffset("q", None, {}))
    ... ):
    ...     print(bound.first, bound.end, bound.ts, bound.watermarks)
    0 5 1 {}
    5 9 2 {'at': 50}
    """
    ranges: list[BoundRange] = []
    for partition, last in sorted(end.cut.items()):
        first = start.cut.get(partition, 0)
        column = history.columns.get(partition)
        if column is None or first >= last:
            continue
        row = int(np.searchsorted(column.values, first, side="right"))
        while first < last:
            ts, stop = int(column.ts[row]), min(int(column.values[row]), last)
            has_time = ts > history.since or not history.is_compacted
            watermarks = history.watermark_before(ts) if has_time else {}
            ranges.append(BoundRange(partition, first, stop, max(ts, history.since), watermarks))
            first, row = stop, row + 1
    return ranges


def _timestamps_ahead(history: BindingHistory, start: SourceOffset, limits: BatchLimits) -> list[int]:
    """Return the bound timestamps from `start` on, up to the one where reading ends."""
    last = history.upper - 1 if limits.until is None else min(limits.until, history.upper - 1)
    begun = history.origin if start.ts is None else start.ts
    side: Literal["left", "right"] = "right" if start.ts is not None and start.is_at_end_of_ts(history) else "left"
    times = [
        column.ts[np.searchsorted(column.ts, begun, side=side) :]
        for column in (*history.columns.values(), *history.steps.values())
    ]
    bound = np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)
    # What was bound below `since` counts as bound at `since`.
    ticks: list[int] = np.unique(np.maximum(bound[bound <= last], history.since)).tolist()
    if limits.end is not None:
        final = _cut_within_limits(history, history.upper - 1, limits)
        del ticks[bisect_left(ticks, True, key=lambda ts: _cut_within_limits(history, ts, limits) == final) + 1 :]
    return ticks


def _has_news(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> bool:
    """Return whether reading up to a timestamp yields a row or a watermark that `start` does not have."""
    has_rows = _count_rows(start, _cut_within_limits(history, ts, limits)) > 0
    return has_rows or _watermarks_at(history, start, limits, ts) != start.watermarks


def _watermarks_at(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> dict[str, int]:
    return _watermarks_reached(history, start, ts, _read_upto(history, start, limits, ts))


def _read_upto(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ts: int) -> dict[int, int]:
    """Return the cut after reading up to a timestamp; it never goes back behind `start`."""
    ends = _cut_within_limits(history, ts, limits)
    cut = {**start.cut, **{partition: max(end, start.cut.get(partition, 0)) for partition, end in ends.items()}}
    return dict(sorted(cut.items()))


def _watermarks_reached(
    history: BindingHistory, start: SourceOffset, ts: int, cut: Mapping[int, int]
) -> dict[str, int]:
    """Return the watermarks at `cut`: those of the last timestamp read completely, at most `ts`."""
    unread = history.frontier({partition: cut.get(partition, 0) for partition in history.columns})
    first_open = max(min(unread, ts + 1), history.since)
    return {**start.watermarks, **history.watermark_before(first_open)}


def _count_by_rows(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ticks: list[int]) -> int:
    """Return how many of the timestamps the row limit allows."""
    if limits.rows is None:
        return len(ticks)
    return bisect_right(ticks, limits.rows, key=lambda ts: _count_rows(start, _cut_within_limits(history, ts, limits)))


def _count_by_time(history: BindingHistory, start: SourceOffset, limits: BatchLimits, ticks: list[int]) -> int:
    """Return how many of the timestamps the watermark limits allow; at least up to the first with news."""
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
    """Return an offset inside a timestamp that has more rows than a batch may have."""
    cut, left = dict(start.cut), limits.rows or 0
    for partition, end in sorted(_cut_within_limits(history, ts, limits).items()):
        count = min(left, max(end - cut.get(partition, 0), 0))
        if count:
            cut[partition] = cut.get(partition, 0) + count
            left -= count
    cut = dict(sorted(cut.items()))
    return SourceOffset(start.incarnation, ts, cut, _watermarks_reached(history, start, ts, cut))


def _cut_within_limits(history: BindingHistory, ts: int, limits: BatchLimits) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, at most up to `limits.end`."""
    cut = cut_upto(history, ts)
    if limits.end is None:
        return cut
    return {partition: min(end, limits.end.get(partition, 0)) for partition, end in cut.items()}


def _count_rows(start: SourceOffset, cut: Mapping[int, int]) -> int:
    return sum(max(end - start.cut.get(partition, 0), 0) for partition, end in cut.items())
