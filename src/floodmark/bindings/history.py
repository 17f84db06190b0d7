"""A binding history: which offsets of each partition belong to which timestamp, and the watermarks at these timestamps.

A history is immutable: appending, extending and compacting return another one. There is no clock and no I/O here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from floodmark._util.ints import check_int64, check_watermark
from floodmark.errors import BindingInvalid, InvalidValue, OffsetNotBound, TimestampNotValid
from floodmark.progress.columns import Int64Array, int64_column

_MAX_TEXT_LENGTH: Final = 500


def check_ends(ends: Mapping[int, int]) -> dict[int, int]:
    """Return ends, {partition: offset}, as ints, or refuse them.

    >>> check_ends({0: -1})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The offset of partition 0 is -1. ... [invalid-value]
    """
    if not isinstance(ends, Mapping):
        raise InvalidValue(
            f"The ends are {ends!r}.",
            rule="They are a map from partitions to offsets.",
            remedy="Pass for example {0: 120, 1: 80}; an end is the offset behind the last record.",
            ends=ends,
        )
    checked = {check_int64(partition, "partition"): check_int64(end, "offset") for partition, end in ends.items()}
    for partition, end in checked.items():
        if partition < 0 or end < 0:
            raise InvalidValue(
                f"The offset of partition {partition} is {end}.",
                rule="Partitions and offsets count from 0.",
                remedy="Leave a partition out whose end is not known.",
                partition=partition,
                offset=end,
            )
    return checked


def check_watermarks(watermarks: Mapping[str, int]) -> dict[str, int]:
    """Return watermarks, {key: time}, or refuse them.

    >>> check_watermarks({"": 5})
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The time key is ''. ... [invalid-value]
    """
    return {check_text("time key", key): check_watermark(time) for key, time in watermarks.items()}


def check_text(what: str, value: object) -> str:
    """Return the id of a source or holder, or the name of a key, or refuse it.

    >>> check_text("source", "kafka/orders")
    'kafka/orders'
    """
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT_LENGTH and value.isprintable():
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule=f"It is printable text of at most {_MAX_TEXT_LENGTH} characters, and not empty.",
        remedy="Use a name that stays the same when the program is started again.",
        what=what,
        value=value,
    )


_MIN_CAPACITY = 16


class _SeriesBuffer:
    """Room for rows. Only the newest version of a column may write behind its last row."""

    __slots__ = ("filled", "lock", "ts", "values")

    def __init__(self, capacity: int) -> None:
        self.ts: Int64Array = np.empty(capacity, np.int64)
        self.values: Int64Array = np.empty(capacity, np.int64)
        self.filled = 0
        self.lock = Lock()


class TimeSeries:
    """Rows (ts, value), the timestamps rising, the values never falling.

    >>> column = TimeSeries.of([500, 2000], [5, 8])
    >>> longer = column.append(3000, 8)
    >>> column.ts.tolist(), longer.ts.tolist(), longer.values.tolist()
    ([500, 2000], [500, 2000, 3000], [5, 8, 8])
    """

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, buffer: _SeriesBuffer, start: int, stop: int) -> None:
        """Use `of`, `append` and `from_row`."""
        self._buffer = buffer
        self._start = start
        self._stop = stop

    @classmethod
    def of(cls, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "TimeSeries":
        """Return a column of these rows."""
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
        """Return a column with one row more, at the cost of that row."""
        return self.extend([ts], [value])

    def extend(self, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "TimeSeries":
        """Return a column with more rows."""
        buffer, start, stop = self._buffer, self._start, self._stop
        with buffer.lock:
            after = stop + len(ts)
            if buffer.filled != stop or after > len(buffer.ts):
                # Another version has grown from here, or there is no room: the rows that count move to a new place.
                moved = _SeriesBuffer(max(_MIN_CAPACITY, 2 * (after - start)))
                moved.ts[: stop - start] = self.ts
                moved.values[: stop - start] = self.values
                buffer, start, stop, after = moved, 0, stop - start, after - start
            buffer.ts[stop:after] = ts
            buffer.values[stop:after] = values
            buffer.filled = after
        return TimeSeries(buffer, start, after)

    def from_row(self, row: int) -> "TimeSeries":
        """Return a column without the rows before this one, at no cost."""
        return TimeSeries(self._buffer, self._start + row, self._stop) if row > 0 else self


_DENSE_FACTOR: Final = 4


class Pair(NamedTuple):
    """One row of a history: `[first, end)` of the partition is bound to `ts`."""

    partition: int
    ts: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class BindingHistory:
    """The bindings of one source, as they were at one moment. What is appended makes another history.

    Each partition has pairs (ts, end): the offsets from the end before up to this one are bound to ts.

    >>> history = BindingHistory.start(500).append(500, {0: 5}, upper=2000).append(2000, {0: 8}, upper=3000)
    >>> history.ts_of(0, 4), history.ts_of(0, 5), history.ts_of(0, 8)
    (500, 2000, None)
    >>> history.cut_at(1999), history.cut_at(2000)
    ({0: 5}, {0: 8})

    It can be read in [since, upper). What was bound below `since` counts as bound at `since`.

    >>> history.compact(2000).ts_of(0, 4)
    2000
    """

    source: str
    origin: int
    """The first timestamp there ever was."""
    since: int
    upper: int
    """The open timestamp: the lowest to which nothing is bound for good."""
    columns: Mapping[int, TimeSeries]
    steps: Mapping[str, TimeSeries]

    @classmethod
    def start(cls, ts: int, source: str = "") -> "BindingHistory":
        """Return the history of a new source, whose first timestamp is this."""
        return cls(source, ts, ts, ts, {}, {})

    @property
    def is_compacted(self) -> bool:
        """Whether timestamps were given up: then what is bound at `since` has no place in time of its own."""
        return self.since > self.origin

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are known."""
        return tuple(sorted(self.columns))

    @property
    def ends(self) -> dict[int, int]:
        """How far each partition is bound."""
        return {partition: column.last for partition, column in sorted(self.columns.items())}

    @property
    def watermarks(self) -> dict[str, int]:
        """The watermarks at these ends."""
        return {key: column.last for key, column in sorted(self.steps.items())}

    def append(
        self,
        ts: int,
        ends: Mapping[int, int],
        *,
        upper: int | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> "BindingHistory":
        """Return the history with a timestamp more, to which everything up to these ends is bound.

        A partition that is new is bound from its beginning. One that is not named keeps its last pair. A watermark
        lower than the last one of its key is raised to it.

        >>> BindingHistory.start(500).append(500, {0: 11}).append(2000, {0: 9})
        Traceback (most recent call last):
        floodmark.errors.BindingInvalid: The end of partition 0 would go back from 11 to 9. ... [binding-invalid]
        """
        after = ts + 1 if upper is None else upper
        if not self.upper <= ts < after:
            raise BindingInvalid(
                f"The timestamp {ts} was to be bound, and {after} to be opened, while {self.upper} is open.",
                rule="What is bound is the open timestamp or a later one, and the next one to open is later than it.",
                remedy="Take timestamps from open_ts() and next_ts().",
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
                    rule="Offsets that were bound stay bound.",
                    remedy="Take what is bound where less is seen; if it stays less, the source was truncated.",
                    partition=partition,
                    bound=column.last,
                    end=end,
                )
            columns[partition] = TimeSeries.of([ts], [end]) if column is None else column.append(ts, end)
        for key, watermark in self.risen(watermarks or {}).items():
            known = steps.get(key)
            steps[key] = TimeSeries.of([ts], [watermark]) if known is None else known.append(ts, watermark)
        return replace(self, upper=after, columns=columns, steps=steps)

    def risen(self, watermarks: Mapping[str, int]) -> dict[str, int]:
        """Return those watermarks that are above the last ones of their keys.

        >>> BindingHistory.start(0).append(0, {}, watermarks={"at": 50}).risen({"at": 40, "paid": 7})
        {'paid': 7}
        """
        checked = check_watermarks(watermarks)
        return {key: time for key, time in checked.items() if key not in self.steps or time > self.steps[key].last}

    def compact(self, since: int) -> "BindingHistory":
        """Return the history in which what is bound below `since` is bound at `since`; nothing is ever unbound.

        >>> history = BindingHistory.start(42).append(42, {0: 4}).append(43, {0: 5}).append(44, {0: 6}).compact(44)
        >>> history.pairs()
        (Pair(partition=0, ts=44, first=0, end=6),)
        """
        if since <= self.since:
            return self
        if since >= self.upper:
            raise BindingInvalid(
                f"The history was to be compacted to {since}, and {self.upper} is open.",
                rule="The last closed timestamp, at least, stays readable.",
                remedy=f"Compact to {self.upper - 1} at most.",
                since=since,
                upper=self.upper,
            )
        # The last row at or below `since` answers for all before it; a lookup raises its timestamp to `since`.
        columns = {
            partition: column.from_row(int(np.searchsorted(column.ts, since, side="right")) - 1)
            for partition, column in self.columns.items()
        }
        # What was bound at `since` itself is judged by the watermark before it, so that one stays.
        steps = {key: column.from_row(int(np.searchsorted(column.ts, since)) - 1) for key, column in self.steps.items()}
        return replace(self, since=since, columns=columns, steps=steps)

    def ts_of(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of an offset, or None if it is not bound yet."""
        check_ends({partition: offset})
        column = self.columns.get(partition)
        if column is None or offset >= column.last:
            return None
        return max(int(column.ts[np.searchsorted(column.values, offset, side="right")]), self.since)

    def ts_of_many(self, partition: int, offsets: ArrayLike, unbound: int | None = None) -> Int64Array:
        """Return the timestamps of many offsets, quickest if they are in order.

        Those that are not bound yet get `unbound`; without it they are refused.

        >>> BindingHistory.start(0).append(0, {7: 2}).append(1, {7: 3}).ts_of_many(7, [0, 1, 2, 2])
        array([0, 0, 1, 1])
        """
        wanted = int64_column(offsets, "offset")
        if not len(wanted):
            return wanted
        low, high = int(wanted.min()), int(wanted.max())
        check_ends({partition: low})
        column = self.columns.get(partition, _EMPTY_SERIES)
        if high >= column.last and unbound is None:
            raise OffsetNotBound(
                f"Partition {partition} of {self.source!r} is bound up to {column.last}, and {high} was asked for.",
                rule="An offset has a timestamp when a tick has bound it.",
                remedy="Read up to the cut of a timestamp below upper.",
                source=self.source,
                partition=partition,
                offset=high,
                end=column.last,
            )
        if (wanted[1:] >= wanted[:-1]).all():
            return self._in_order(column, wanted, unbound)
        if high - low < _DENSE_FACTOR * len(wanted):
            return self._in_order(column, np.arange(low, high + 1), unbound)[wanted - low]
        places = np.searchsorted(column.values, wanted, side="right")
        return self._answers(column, unbound)[places]

    def cut_at(self, ts: int) -> dict[int, int]:
        """Return how far each partition is bound at a timestamp that can be read."""
        self.check_valid(ts)
        return self._cut(ts)

    def cut_before(self, ts: int) -> dict[int, int]:
        """Return where what is bound at `ts` begins; also for the open timestamp.

        >>> BindingHistory.start(500).append(500, {0: 5}, upper=2000).cut_before(2000)
        {0: 5}
        """
        self._check_before(ts, self.since + 1 if self.is_compacted else self.since)
        return self._cut(ts - 1)

    def pairs(self, lower: int | None = None, upper: int | None = None) -> tuple[Pair, ...]:
        """Return the pairs with lower <= ts < upper, by partition and timestamp."""
        found: list[Pair] = []
        for partition, column in sorted(self.columns.items()):
            first = 0
            for ts, end in zip(np.maximum(column.ts, self.since).tolist(), column.values.tolist(), strict=True):
                if (lower is None or ts >= lower) and (upper is None or ts < upper):
                    found.append(Pair(partition, ts, first, end))
                first = end
        return tuple(found)

    def frontier(self, positions: Mapping[int, int], open_ts: int | None = None) -> int:
        """Return the lowest timestamp that a reader at these positions may still meet.

        `positions` are the next offsets to read. One who reads nothing is at the open timestamp.

        >>> history = BindingHistory.start(500).append(500, {0: 5}, upper=2000)
        >>> history.frontier({0: 4}), history.frontier({0: 5}), history.frontier({})
        (500, 2000, 2000)
        """
        still_open = self.upper if open_ts is None else open_ts
        bound = (self.ts_of(partition, offset) for partition, offset in positions.items())
        return min((ts for ts in bound if ts is not None), default=still_open)

    def watermark_at(self, ts: int) -> dict[str, int]:
        """Return the watermarks of the binding of `ts`: they hold where it is read to its end."""
        self.check_valid(ts)
        return self._stamps(ts, "right")

    def watermark_before(self, ts: int) -> dict[str, int]:
        """Return the watermarks by which rows bound at `ts` are judged: those of the binding before it.

        >>> history = BindingHistory.start(1).append(1, {0: 5}, watermarks={"at": 50}).append(2, {0: 9})
        >>> history.watermark_before(1), history.watermark_before(2)
        ({}, {'at': 50})
        """
        self._check_before(ts, self.since)
        return self._stamps(ts, "left")

    def check_valid(self, ts: int) -> int:
        """Return a timestamp that can be read, or refuse it.

        >>> BindingHistory.start(500, "orders").append(500, {0: 5}, upper=2000).check_valid(2000)
        Traceback (most recent call last):
        floodmark.errors.TimestampNotValid: The timestamp 2000 of 'orders' is not in [500, 2000). ...
        """
        if not self.since <= check_int64(ts, "timestamp") < self.upper:
            raise self._not_valid(ts, f"is not in [{self.since}, {self.upper})")
        return ts

    def read_ts(self) -> int:
        """Return the newest timestamp that can be read.

        >>> BindingHistory.start(500).append(500, {0: 5}, upper=2000).read_ts()
        1999
        """
        if self.upper == self.origin:
            raise self._not_valid(self.upper, "is open, and no other was there before")
        return max(self.upper - 1, self.since)

    def _in_order(self, column: TimeSeries, wanted: Int64Array, unbound: int | None) -> Int64Array:
        """Return the timestamps of offsets in order: few ends are searched in many offsets, not the other way round."""
        first, last = np.searchsorted(column.values, wanted[[0, -1]], side="right")
        answers = self._answers(column, unbound)[first : last + 1]
        places = np.searchsorted(wanted, column.values[first:last])
        return np.repeat(answers, np.diff(places, prepend=0, append=len(wanted)))

    def _answers(self, column: TimeSeries, unbound: int | None) -> Int64Array:
        """Return the timestamp of each row, and one more for what lies behind the last."""
        return np.append(np.maximum(column.ts, self.since), self.upper if unbound is None else unbound)

    def _cut(self, ts: int) -> dict[int, int]:
        cut = {}
        for partition, column in sorted(self.columns.items()):
            # A pair from below `since` counts as one at `since`.
            rows = int(np.searchsorted(column.ts, ts, side="right"))
            if rows:
                cut[partition] = int(column.values[rows - 1])
        return cut

    def _stamps(self, ts: int, side: str) -> dict[str, int]:
        stamps = {}
        for key, column in sorted(self.steps.items()):
            rows = int(np.searchsorted(column.ts, ts, side=side))  # type: ignore[call-overload]
            if rows:
                stamps[key] = int(column.values[rows - 1])
        return stamps

    def _check_before(self, ts: int, least: int) -> None:
        if not least <= check_int64(ts, "timestamp") <= self.upper:
            raise self._not_valid(ts, f"is not in [{least}, {self.upper}], so what was before it is not known")

    def _not_valid(self, ts: int, fact: str) -> TimestampNotValid:
        return TimestampNotValid(
            f"The timestamp {ts} of {self.source!r} {fact}.",
            rule="Timestamps can be read from since, below which they were compacted, to upper, which is still open.",
            remedy="Wait for one that is to come; a hold keeps an old one.",
            source=self.source,
            ts=ts,
            since=self.since,
            upper=self.upper,
        )


_EMPTY_SERIES: Final = TimeSeries.of([], [])


K = TypeVar("K", int, str)


def extend_history(
    history: BindingHistory,
    since: int,
    upper: int,
    pairs: Iterable[tuple[int, int, int]],
    steps: Iterable[tuple[str, int, int]],
) -> BindingHistory:
    """Return a history to which others have appended, and which they may have compacted.

    The rows are (partition, ts, end) and (key, ts, watermark), those of a partition or key together and in order.

    >>> known = BindingHistory.start(500).append(500, {0: 5}, upper=2000)
    >>> extend_history(known, 500, 3000, [(0, 2000, 8), (1, 2000, 3)], [("at", 2000, 70)]).cut_at(2000)
    {0: 8, 1: 3}
    """
    longer = replace(
        history, upper=upper, columns=_extend_series(history.columns, pairs), steps=_extend_series(history.steps, steps)
    )
    return longer.compact(since)


def _extend_series(columns: Mapping[K, TimeSeries], rows: Iterable[tuple[K, int, int]]) -> dict[K, TimeSeries]:
    grown = dict(columns)
    for name, group in groupby(rows, key=itemgetter(0)):
        _, ts, values = zip(*group, strict=True)
        known = grown.get(name)
        grown[name] = TimeSeries.of(list(ts), list(values)) if known is None else known.extend(list(ts), list(values))
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
