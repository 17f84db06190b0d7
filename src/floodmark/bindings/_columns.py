"""Two columns that grow together, timestamps and values: a version stays as it is when another one grows from it."""

from threading import Lock

import numpy as np

from floodmark._util.ints import Int64Array

_LEAST = 16


class _Buffer:
    """Room for rows. Only the newest version of a column may write behind its last row."""

    __slots__ = ("filled", "lock", "ts", "values")

    def __init__(self, capacity: int) -> None:
        self.ts: Int64Array = np.empty(capacity, np.int64)
        self.values: Int64Array = np.empty(capacity, np.int64)
        self.filled = 0
        self.lock = Lock()


class Column:
    """Rows (ts, value), the timestamps rising, the values never falling.

    >>> column = Column.of([500, 2000], [5, 8])
    >>> longer = column.append(3000, 8)
    >>> column.ts.tolist(), longer.ts.tolist(), longer.values.tolist()
    ([500, 2000], [500, 2000, 3000], [5, 8, 8])
    """

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, buffer: _Buffer, start: int, stop: int) -> None:
        """Use `of`, `append` and `from_row`."""
        self._buffer = buffer
        self._start = start
        self._stop = stop

    @classmethod
    def of(cls, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "Column":
        """Return a column of these rows."""
        return cls(_Buffer(max(_LEAST, 2 * len(ts))), 0, 0).extend(ts, values)

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

    def append(self, ts: int, value: int) -> "Column":
        """Return a column with one row more, at the cost of that row."""
        return self.extend([ts], [value])

    def extend(self, ts: "Int64Array | list[int]", values: "Int64Array | list[int]") -> "Column":
        """Return a column with more rows."""
        buffer, start, stop = self._buffer, self._start, self._stop
        with buffer.lock:
            after = stop + len(ts)
            if buffer.filled != stop or after > len(buffer.ts):
                # Another version has grown from here, or there is no room: the rows that count move to a new place.
                moved = _Buffer(max(_LEAST, 2 * (after - start)))
                moved.ts[: stop - start] = self.ts
                moved.values[: stop - start] = self.values
                buffer, start, stop, after = moved, 0, stop - start, after - start
            buffer.ts[stop:after] = ts
            buffer.values[stop:after] = values
            buffer.filled = after
        return Column(buffer, start, after)

    def from_row(self, row: int) -> "Column":
        """Return a column without the rows before this one, at no cost."""
        return Column(self._buffer, self._start + row, self._stop) if row > 0 else self
