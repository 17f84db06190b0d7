"""The origins of a tracker: which are closed, the minimum over the open ones, and origin names as small numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from floodmark._util.ints import check_watermark
from floodmark._util.names import Name, check_new_name
from floodmark.errors import OriginClosed, UnknownOrigin
from floodmark.progress.columns import Int64Array, as_array
from floodmark.progress.tracker.prefix import NO_WATERMARK, Prefix, load_prefix, merge_prefix, save_prefix

_TABLE_LIMIT = 1 << 16


class OriginCodes:
    """Numbers the origins in order.

    >>> OriginCodes(["p0", "p1"]).encode(["p1", "p0", "p1"])
    array([1, 0, 1])
    """

    __slots__ = ("_code_of", "_table")

    def __init__(self, origins: Sequence[str | int]) -> None:
        self._code_of = {origin: code for code, origin in enumerate(origins)}
        self._table: Int64Array | None = None
        numbers = [origin for origin in origins if isinstance(origin, int)]
        if numbers and min(numbers) >= 0 and max(numbers) < _TABLE_LIMIT:
            self._table = np.full(max(numbers) + 1, -1, dtype=np.int64)
            for number in numbers:
                self._table[number] = self._code_of[number]

    def encode(self, column: Any) -> Int64Array:
        """Return the number of each row's origin, from a numpy array, an Arrow array (also dictionary) or a list."""
        if hasattr(column, "combine_chunks"):
            column = column.combine_chunks()
        if not hasattr(column, "indices") and hasattr(column, "dictionary_encode"):
            column = column.dictionary_encode()
        if hasattr(column, "indices") and hasattr(column, "dictionary"):
            distinct, rows = column.dictionary.to_pylist(), np.asarray(column.indices)
            if rows.dtype.kind != "i" and rows.dtype.kind != "u":
                raise unknown_origin(None)
        else:
            # numpy would make one type of mixed names: 7 beside "a" would become "7".
            values = column if isinstance(column, list | tuple) else as_array(column, "origin")
            if isinstance(values, np.ndarray) and values.ndim == 0:
                raise unknown_origin(column)
            if not isinstance(values, np.ndarray) or values.dtype.kind == "O":
                return np.array([self._code(origin) for origin in values], dtype=np.int64)
            if self._table is not None and values.dtype.kind in "iu":
                return self._encode_numbers(values)
            unique, rows = np.unique(values, return_inverse=True)
            distinct = unique.tolist()
        codes: Int64Array = np.fromiter(
            (self._code(origin) for origin in distinct), dtype=np.int64, count=len(distinct)
        )
        row_codes: Int64Array = codes[rows]
        return row_codes

    def _code(self, origin: object) -> int:
        # Only real names: True and 1.0 are equal to 1 as keys of a dictionary.
        is_name = isinstance(origin, str | int | np.integer) and not isinstance(origin, bool)
        code = self._code_of.get(origin) if is_name else None  # type: ignore[call-overload]
        if code is None:
            raise unknown_origin(origin)
        return int(code)

    def _encode_numbers(self, values: Any) -> Int64Array:
        table = self._table
        assert table is not None
        outside = (values < 0) | (values >= len(table))
        if outside.any():
            raise unknown_origin(int(values[outside][0]))
        codes: Int64Array = table[values]
        if (codes < 0).any():
            raise unknown_origin(int(values[codes < 0][0]))
        return codes


class OriginRegistry:
    """All origins in the order they were added; `open` has those that are not closed."""

    __slots__ = ("_codes", "all", "floor", "open")

    def __init__(self) -> None:
        self.all: dict[Name, Prefix] = {}
        self.open: dict[Name, Prefix] = {}
        self.floor = NO_WATERMARK
        self._codes: OriginCodes | None = None

    def prefix(self, origin: Name) -> Prefix:
        """Return the prefix of an origin, closed or not."""
        try:
            return self.all[origin]
        except (KeyError, TypeError):
            # A TypeError is a value that cannot be a name, such as a list.
            raise unknown_origin(origin) from None

    def codes(self) -> OriginCodes:
        """Return the numbering of all origins."""
        if self._codes is None:
            self._codes = OriginCodes(tuple(self.all))
        return self._codes

    def minimum(self) -> int:
        """Return the minimum over the open origins; it never falls below `floor`.

        When all are closed, it is the highest of all, so that the order of closing makes no difference.
        """
        if self.open:
            return max(self.floor, min(prefix.watermark for prefix in self.open.values()))
        return max(self.floor, *(prefix.watermark for prefix in self.all.values()), NO_WATERMARK)

    def add(self, origin: Name, prefix: Prefix) -> None:
        """Add an origin. The minimum waits for it but does not fall."""
        check_new_name(origin, "origin", self.all)
        self.floor = self.minimum()
        self.all[origin] = self.open[origin] = prefix
        self._codes = None

    def close(self, origin: Name) -> None:
        """Exclude an origin from the minimum, which does not fall even if it was the last."""
        self.prefix(origin)
        self.floor = self.minimum()
        self.open.pop(origin, None)

    def refuse_closed(self, origin: Name) -> None:
        """Raise an error if the origin is closed; called for a new report."""
        if origin not in self.open:
            raise OriginClosed(
                f"The origin {origin!r} is closed, but reported something new.",
                rule="A closed origin cannot report new sequences.",
                remedy="Close it after its last report, or add the new work under another origin name.",
                origin=origin,
            )

    def merge(self, other: "OriginRegistry", first: int, max_pending: int) -> None:
        """Merge the state of `other`; on a contradiction nothing changes.

        The floor of `other` is not merged: it was promised without the origins that only this registry knows.
        """
        merged = {
            origin: merge_prefix(self.all.get(origin) or Prefix(first, NO_WATERMARK, max_pending), theirs)
            for origin, theirs in other.all.items()
        }
        self.floor = self.minimum()
        closed = (self.all.keys() - self.open.keys()) | (other.all.keys() - other.open.keys())
        self.all |= merged
        self.open = {origin: prefix for origin, prefix in self.all.items() if origin not in closed}
        self._codes = None

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "floor": None if self.floor == NO_WATERMARK else self.floor,
            "origins": [[origin, save_prefix(prefix)] for origin, prefix in self.all.items()],
            "closed": [origin for origin in self.all if origin not in self.open],
        }

    def load(self, saved: Any, first: int, chunk_base: int, max_pending: int) -> None:
        """Load a saved state."""
        for origin, prefix in saved["origins"]:
            self.add(origin, load_prefix(prefix, first, chunk_base, max_pending))
        for origin in saved["closed"]:
            self.close(origin)
        self.floor = NO_WATERMARK if saved["floor"] is None else check_watermark(saved["floor"])


def unknown_origin(origin: object) -> UnknownOrigin:
    """Return the error for an unknown origin."""
    return UnknownOrigin(
        f"There is no origin {origin!r}.",
        rule="An origin must be added before it reports.",
        remedy=f"Call add({origin!r}) first, or check the name.",
        origin=origin,
    )
