"""A binding history: the timestamp of each offset of each partition, and the watermarks at these timestamps.

A history is immutable: appending, extending and compacting return a new one. Pure rules: no clock, no I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Final, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from floodmark._util.ints import check_int64, check_watermark
from floodmark.errors import BindingInvalid, InvalidValue, OffsetNotBound, TimestampNotValid
from floodmark.progress.columns import Int64Array, int64_column

_MAX_TEXT_LENGTH: Final = 500


def check_ends(ends: Mapping[int, int]) -> dict[int, int]:
    """Return {partition: offset} with ints, or raise an error if an end is not valid.

    >>> check_ends({0: -1})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The offset of partition 0 is -1. ... [invalid-value]
    """
    if not isinstance(ends, Mapping):
        raise InvalidValue(
            f"The ends are {ends!r}.",
            rule="Ends are a map from partition to offset.",
            remedy="Pass for example {0: 120, 1: 80}; an end is the offset after the last record.",
            ends=ends,
        )
    checked = {check_int64(partition, "partition"): check_int64(end, "offset") for partition, end in ends.items()}
    for partition, end in checked.items():
        if partition < 0 or end < 0:
            raise InvalidValue(
                f"The offset of partition {partition} is {end}.",
                rule="Partitions and offsets are 0 or greater.",
                remedy=f"Leave out partition {partition} if its end is not known.",
                partition=partition,
                offset=end,
            )
    return checked


def check_watermarks(watermarks: Mapping[str, int]) -> dict[str, int]:
    """Return {key: watermark}, or raise an error if a key or watermark is not valid.

    >>> check_watermarks({"": 5})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The time key is ''. ... [invalid-value]
    """
    return {check_text("time key", key): check_watermark(time) for key, time in watermarks.items()}


def check_text(what: str, value: object) -> str:
    """Return a source id, holder or time key, or raise an error if it is not valid.

    >>> check_text("source", "kafka/orders")
    'kafka/orders'
    """
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT_LENGTH and value.isprintable():
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule=f"A {what} is 1 to {_MAX_TEXT_LENGTH} printable characters.",
        remedy=f"Set a {what} such as 'orders' that stays the same across restarts.",
        what=what,
        value=value,
    )


_MIN_CAPACITY = 16


class _SeriesBuffer:
    """Arrays shared by the versions of a series. Only the newest version may append in place."""

    __slots__ = ("filled", "lock", "ts", "values")

    def __init__(self, capacity: int) -> None:
        self.ts: Int64Array = np.empty(capacity, np.int64)
        self.values: Int64Array = np.empty(capacity, np.int64)
        self.filled = 0
        self.lock = Lock()


class TimeSeries:
    """An immutable series of (ts, value) rows with rising timestamps.

    >>> series = TimeSeries.of([500, 2000], [5, 8])
    >>> longer = series.append(3000, 8)
    >>> series.ts.tolist(), longer.ts.tolist(), longer.values.tolist()
    ([500, 2000], [500, 2000, 3000], [5, 8, 8])
    """

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, buffer: _SeriesBuffer, start: int, stop: int) -> None:
        """Use `of`, `append` and `from_row` instead."""
        self._buffer = buffer
        self._start = start
        self._stop = stop

    @classmethod
    def of(cls, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "TimeSeries":
        """Return a series of these rows."""
        return cls(_SeriesBuffer(max(_MIN_CAPACITY, 2 * len(ts))), 0, 0).extend(ts, values)

    @property
    def ts(self) -> Int64Array:
        """The timestamps."""
        return self._buffer.ts[self._start : self._stop]

    @property
    def values(self) -> Int64Array:
        """The values."""
        return self._buffer.values[self._start : self._stop]

    @property
    def last(self) -> int:
        """The last value, or 0 if there is none."""
        return int(self._buffer.values[self._stop - 1]) if self._stop > self._start else 0

    def __len__(self) -> int:
        return self._stop - self._start

    def append(self, ts: int, value: int) -> "TimeSeries":
        """Return a series with one more row, in constant time."""
        return self.extend([ts], [value])

    def extend(self, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "TimeSeries":
        """Return a series with more rows."""
        buffer, start, stop = self._buffer, self._start, self._stop
        with buffer.lock:
            after = stop + len(ts)
            if buffer.filled != stop or after > len(buffer.ts):
                # Another version has appended here, or the buffer is full: copy the rows to a new buffer.
                moved = _SeriesBuffer(max(_MIN_CAPACITY, 2 * (after - start)))
                moved.ts[: stop - start] = self.ts
                moved.values[: stop - start] = self.values
                buffer, start, stop, after = moved, 0, stop - start, after - start
            buffer.ts[stop:after] = ts
            buffer.values[stop:after] = values
            buffer.filled = after
        return TimeSeries(buffer, start, after)

    def from_row(self, row: int) -> "TimeSeries":
        """Return a series without the rows before this one, without copying."""
        return TimeSeries(self._buffer, self._start + row, self._stop) if row > 0 else self


_EMPTY_SERIES: Final = TimeSeries.of([], [])

_DENSE_FACTOR: Final = 4

SourceState = Literal["active", "idle", "unknown"]
"""Whether rows are to be expected: "idle" if all writers have declared themselves idle, "unknown" if all have closed or
timed out."""
STATE_NAMES: Final[tuple[SourceState, ...]] = get_args(SourceState)


class Pair(NamedTuple):
    """One row of a history: offsets `[first, end)` of the partition are bound to `ts`."""

    partition: int
    ts: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class BindingHistory:
    """The bindings of one source at one moment.

    Each partition has pairs (ts, end): the offsets from the end before up to this one are bound to ts.

    >>> history = BindingHistory.start(500).append(500, {0: 5}, upper=2000).append(2000, {0: 8}, upper=3000)
    >>> history.ts_of(0, 4), history.ts_of(0, 5), history.ts_of(0, 8)
    (500, 2000, None)
    >>> history.cut_at(1999), history.cut_at(2000)
    ({0: 5}, {0: 8})

    It is readable in [since, upper). Offsets bound below `since` count as bound at `since`.

    >>> history.compact(2000).ts_of(0, 4)
    2000
    """

    source: str
    origin: int
    """The first timestamp of the source."""
    since: int
    upper: int
    """The open timestamp, to which nothing is bound yet."""
    columns: Mapping[int, TimeSeries]
    steps: Mapping[str, TimeSeries]
    states: TimeSeries = _EMPTY_SERIES
    """The changes of the source's state, as indexes into `STATE_NAMES`."""

    @classmethod
    def start(cls, ts: int, source: str = "") -> "BindingHistory":
        """Return the empty history of a new source with this first timestamp."""
        return cls(source, ts, ts, ts, {}, {})

    @property
    def is_compacted(self) -> bool:
        """Whether timestamps were compacted; then offsets bound at `since` may be older."""
        return self.since > self.origin

    @property
    def partitions(self) -> tuple[int, ...]:
        """The known partitions."""
        return tuple(sorted(self.columns))

    @property
    def ends(self) -> dict[int, int]:
        """How far each partition is bound."""
        return {partition: column.last for partition, column in sorted(self.columns.items())}

    @property
    def watermarks(self) -> dict[str, int]:
        """The watermarks at `ends`."""
        return {key: column.last for key, column in sorted(self.steps.items())}

    @property
    def state(self) -> SourceState:
        """The state of the source at `ends`; "active" until another one is bound.

        >>> history = BindingHistory.start(1).append(1, {0: 5}, state="idle")
        >>> history.append(2, {0: 5}).state, history.append(2, {0: 6}, state="active").state
        ('idle', 'active')
        """
        return STATE_NAMES[self.states.last]

    def append(
        self,
        ts: int,
        ends: Mapping[int, int],
        *,
        upper: int | None = None,
        watermarks: Mapping[str, int] | None = None,
        state: SourceState | None = None,
    ) -> "BindingHistory":
        """Return the history with one more timestamp, to which all offsets up to these ends are bound.

        A new partition is bound from offset 0; a partition left out keeps its last pair. A watermark below the last one
        of its key is ignored. The state stays as it is without a new one.

        >>> BindingHistory.start(500).append(500, {0: 11}).append(2000, {0: 9})
        Traceback (most recent call last):
        floodmark.errors.BindingInvalid: The end of partition 0 would go back from 11 to 9. ... [binding-invalid]
        """
        after = ts + 1 if upper is None else upper
        if not self.upper <= ts < after:
            raise BindingInvalid(
                f"The timestamp {ts} was to be bound, and {after} to be opened, while {self.upper} is open.",
                rule="Only the open timestamp or a later one can be bound, and the next open timestamp lies after it.",
                remedy="Use the timestamps that open_ts() and next_ts() return.",
                ts=ts,
                upper=after,
                open=self.upper,
            )
        columns, steps = dict(self.columns), dict(self.steps)
        for partition, end in check_ends(ends).items():
            column = columns.get(partition)
            if column is not None and end < column.last:
                raise BindingInvalid(
                    f"The end of partition {partition} would go back from {column.last} to {end}.",
                    rule="Bound offsets stay bound.",
                    remedy=f"Pass {column.last} or more; a partition that really ends at {end} was truncated.",
                    partition=partition,
                    bound=column.last,
                    end=end,
                )
            columns[partition] = TimeSeries.of([ts], [end]) if column is None else column.append(ts, end)
        for key, watermark in self.risen(watermarks or {}).items():
            series = steps.get(key)
            steps[key] = TimeSeries.of([ts], [watermark]) if series is None else series.append(ts, watermark)
        states = self.states if state in (None, self.state) else self.states.append(ts, STATE_NAMES.index(state))
        return replace(self, upper=after, columns=columns, steps=steps, states=states)

    def risen(self, watermarks: Mapping[str, int]) -> dict[str, int]:
        """Return the watermarks that are above the last ones of their keys.

        >>> BindingHistory.start(0).append(0, {}, watermarks={"at": 50}).risen({"at": 40, "paid": 7})
        {'paid': 7}
        """
        checked = check_watermarks(watermarks)
        return {key: time for key, time in checked.items() if key not in self.steps or time > self.steps[key].last}

    def compact(self, since: int) -> "BindingHistory":
        """Return the history in which offsets bound below `since` are bound at `since`; no offset becomes unbound.

        >>> history = BindingHistory.start(42).append(42, {0: 4}).append(43, {0: 5}).append(44, {0: 6}).compact(44)
        >>> history.pairs()
        (Pair(partition=0, ts=44, first=0, end=6),)
        """
        if since <= self.since:
            return self
        if since >= self.upper:
            raise BindingInvalid(
                f"The history was to be compacted to {since}, but {self.upper} is open.",
                rule="The last closed timestamp stays readable.",
                remedy=f"Compact to {self.upper - 1} at most.",
                since=since,
                upper=self.upper,
            )
        # Keep the last row at or below `since`; lookups raise its timestamp to `since`.
        columns = {
            partition: column.from_row(int(np.searchsorted(column.ts, since, side="right")) - 1)
            for partition, column in self.columns.items()
        }
        # Rows bound at `since` are judged by the watermark before it, so that step stays.
        steps = {key: column.from_row(int(np.searchsorted(column.ts, since)) - 1) for key, column in self.steps.items()}
        states = self.states.from_row(int(np.searchsorted(self.states.ts, since, side="right")) - 1)
        return replace(self, since=since, columns=columns, steps=steps, states=states)

    def ts_of(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of an offset, or None if it is not bound yet."""
        check_ends({partition: offset})
        column = self.columns.get(partition)
        if column is None or offset >= column.last:
            return None
        return max(int(column.ts[np.searchsorted(column.values, offset, side="right")]), self.since)

    def ts_of_many(self, partition: int, offsets: ArrayLike, unbound: int | None = None) -> Int64Array:
        """Return the timestamps of many offsets; fastest if they are sorted.

        Offsets not bound yet get `unbound`; without it they raise OffsetNotBound.

        >>> BindingHistory.start(0).append(0, {7: 2}).append(1, {7: 3}).ts_of_many(7, [0, 1, 2, 2])
        array([0, 0, 1, 1])
        """
        offset_array = int64_column(offsets, "offset")
        if not len(offset_array):
            return offset_array
        low, high = int(offset_array.min()), int(offset_array.max())
        check_ends({partition: low})
        column = self.columns.get(partition, _EMPTY_SERIES)
        if high >= column.last and unbound is None:
            raise OffsetNotBound(
                f"Partition {partition} of {self.source!r} is bound up to {column.last}, but {high} was asked for.",
                rule="An offset has a timestamp once a tick has bound it.",
                remedy=f"Read only offsets below {column.last}, or tick the source first.",
                source=self.source,
                partition=partition,
                offset=high,
                end=column.last,
            )
        if (offset_array[1:] >= offset_array[:-1]).all():
            return self._sorted_lookup(column, offset_array, unbound)
        if high - low < _DENSE_FACTOR * len(offset_array):
            return self._sorted_lookup(column, np.arange(low, high + 1), unbound)[offset_array - low]
        rows = np.searchsorted(column.values, offset_array, side="right")
        return self._timestamps_by_row(column, unbound)[rows]

    def cut_at(self, ts: int) -> dict[int, int]:
        """Return how far each partition is bound at a readable timestamp."""
        self.check_valid(ts)
        return self._cut(ts)

    def pairs(self, lower: int | None = None, upper: int | None = None) -> tuple[Pair, ...]:
        """Return the pairs with lower <= ts < upper, by partition and timestamp."""
        pairs: list[Pair] = []
        for partition, column in sorted(self.columns.items()):
            first = 0
            for ts, end in zip(np.maximum(column.ts, self.since).tolist(), column.values.tolist(), strict=True):
                if (lower is None or ts >= lower) and (upper is None or ts < upper):
                    pairs.append(Pair(partition, ts, first, end))
                first = end
        return tuple(pairs)

    def frontier(self, positions: Mapping[int, int], open_ts: int | None = None) -> int:
        """Return the lowest timestamp that a reader at these positions may still read.

        `positions` are the next offsets to read. A reader without unread offsets is at the open timestamp.

        >>> history = BindingHistory.start(500).append(500, {0: 5}, upper=2000)
        >>> history.frontier({0: 4}), history.frontier({0: 5}), history.frontier({})
        (500, 2000, 2000)
        """
        still_open = self.upper if open_ts is None else open_ts
        bound = (self.ts_of(partition, offset) for partition, offset in positions.items())
        return min((ts for ts in bound if ts is not None), default=still_open)

    def watermark_at(self, ts: int) -> dict[str, int]:
        """Return the watermarks that hold once `ts` is read completely."""
        self.check_valid(ts)
        return self._watermarks_at(ts, "right")

    def watermark_before(self, ts: int) -> dict[str, int]:
        """Return the watermarks by which rows bound at `ts` are judged: those of the binding before it.

        >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
        >>> history.watermark_before(1), history.watermark_before(2)
        ({}, {'at': 50})
        """
        if not self.since <= check_int64(ts, "timestamp") <= self.upper:
            fact = f"is not in [{self.since}, {self.upper}], so what was bound before it is not known"
            raise self._not_valid(ts, fact)
        return self._watermarks_at(ts, "left")

    def check_valid(self, ts: int) -> int:
        """Return the timestamp, or raise TimestampNotValid if it cannot be read.

        >>> BindingHistory.start(500, "orders").append(500, {0: 5}, upper=2000).check_valid(2000)
        Traceback (most recent call last):
        floodmark.errors.TimestampNotValid: The timestamp 2000 of 'orders' is not in [500, 2000). ...
        """
        if not self.since <= check_int64(ts, "timestamp") < self.upper:
            raise self._not_valid(ts, f"is not in [{self.since}, {self.upper})")
        return ts

    def read_ts(self) -> int:
        """Return the newest readable timestamp.

        >>> BindingHistory.start(500).append(500, {0: 5}, upper=2000).read_ts()
        1999
        """
        if self.upper == self.origin:
            raise self._not_valid(self.upper, "is open, and there is no earlier one")
        return max(self.upper - 1, self.since)

    def _sorted_lookup(self, column: TimeSeries, offsets: Int64Array, unbound: int | None) -> Int64Array:
        """Return the timestamps of sorted offsets: it searches the few ends in the many offsets."""
        first, last = np.searchsorted(column.values, offsets[[0, -1]], side="right")
        timestamps = self._timestamps_by_row(column, unbound)[first : last + 1]
        bounds = np.searchsorted(offsets, column.values[first:last])
        return np.repeat(timestamps, np.diff(bounds, prepend=0, append=len(offsets)))

    def _timestamps_by_row(self, column: TimeSeries, unbound: int | None) -> Int64Array:
        """Return the timestamp of each row, and one more for offsets after the last row."""
        return np.append(np.maximum(column.ts, self.since), self.upper if unbound is None else unbound)

    def _cut(self, ts: int) -> dict[int, int]:
        cut = {}
        for partition, column in sorted(self.columns.items()):
            # Pairs below `since` count as pairs at `since`.
            rows = int(np.searchsorted(column.ts, ts, side="right"))
            if rows:
                cut[partition] = int(column.values[rows - 1])
        return cut

    def _watermarks_at(self, ts: int, side: str) -> dict[str, int]:
        watermarks = {}
        for key, column in sorted(self.steps.items()):
            rows = int(np.searchsorted(column.ts, ts, side=side))  # type: ignore[call-overload]
            if rows:
                watermarks[key] = int(column.values[rows - 1])
        return watermarks

    def _not_valid(self, ts: int, fact: str) -> TimestampNotValid:
        return TimestampNotValid(
            f"The timestamp {ts} of {self.source!r} {fact}.",
            rule="Timestamps are readable from since, below which they are compacted, up to upper, which is open.",
            remedy="Wait for the first tick of the source."
            if self.upper == self.origin
            else f"Read at a timestamp from {self.since} to {self.upper - 1}; a hold keeps old ones readable.",
            source=self.source,
            ts=ts,
            since=self.since,
            upper=self.upper,
        )


K = TypeVar("K", int, str)


def extend_history(
    history: BindingHistory,
    since: int,
    upper: int,
    pairs: Iterable[tuple[int, int, int]],
    steps: Iterable[tuple[str, int, int]],
    states: Iterable[tuple[int, int]] = (),
) -> BindingHistory:
    """Return the history after other processes have appended to it, and perhaps compacted it.

    The rows are (partition, ts, end), (key, ts, watermark) and (ts, state), by partition or key and in timestamp order.

    >>> history = BindingHistory.start(500).append(500, {0: 5}, upper=2000)
    >>> extend_history(history, 500, 3000, [(0, 2000, 8), (1, 2000, 3)], [("at", 2000, 70)]).cut_at(2000)
    {0: 8, 1: 3}
    """
    changes = [(int(ts), int(state)) for ts, state in states]
    longer = replace(
        history,
        upper=upper,
        columns=_extend_series(history.columns, pairs),
        steps=_extend_series(history.steps, steps),
        states=history.states.extend([ts for ts, _ in changes], [state for _, state in changes]),
    )
    return longer.compact(since)


def _extend_series(columns: Mapping[K, TimeSeries], rows: Iterable[tuple[K, int, int]]) -> dict[K, TimeSeries]:
    grown = dict(columns)
    for name, group in groupby(rows, key=itemgetter(0)):
        _, ts, values = zip(*group, strict=True)
        series = grown.get(name)
        grown[name] = TimeSeries.of(list(ts), list(values)) if series is None else series.extend(list(ts), list(values))
    return grown


TABLE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
    ]
)


def history_table(history: BindingHistory) -> pa.Table:
    """Return one row for each pair, by partition and timestamp.

    >>> history_table(BindingHistory.start(0, "orders").append(0, {0: 5}).append(1, {0: 8})).to_pylist()[1]
    {'source': 'orders', 'partition': 0, 'ts': 1, 'first_offset': 5, 'end_offset': 8}
    """
    pairs = history.pairs()
    columns = zip(*((history.source, *pair) for pair in pairs), strict=True) if pairs else [[]] * len(TABLE_SCHEMA)
    return pa.table([list(column) for column in columns], schema=TABLE_SCHEMA)
