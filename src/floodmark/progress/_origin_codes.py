"""From a column of origins to small numbers: one look-up for each distinct name, not for each row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from floodmark._util.ints import Int64Array
from floodmark.errors import UnknownOrigin

_TABLE_LIMIT = 1 << 16


class OriginCodes:
    """Numbers the known origins in order.

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
        """Return the number of each row's origin; a numpy array, an Arrow array (also dictionary) or a list."""
        if hasattr(column, "combine_chunks"):
            column = column.combine_chunks()
        if not hasattr(column, "indices") and hasattr(column, "dictionary_encode"):
            column = column.dictionary_encode()
        if hasattr(column, "indices") and hasattr(column, "dictionary"):
            distinct, rows = column.dictionary.to_pylist(), np.asarray(column.indices)
            if rows.dtype.kind != "i" and rows.dtype.kind != "u":
                raise unknown_origin(None)
        else:
            values = np.asarray(column)
            if self._table is not None and values.dtype.kind in "iu":
                return self._encode_numbers(values)
            unique, rows = np.unique(values, return_inverse=True)
            distinct = unique.tolist()
        codes: Int64Array = np.fromiter(
            (self._code(origin) for origin in distinct), dtype=np.int64, count=len(distinct)
        )
        found: Int64Array = codes[rows]
        return found

    def _code(self, origin: object) -> int:
        code = self._code_of.get(origin)  # type: ignore[call-overload]
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


def unknown_origin(origin: object) -> UnknownOrigin:
    """Return the error for an origin that was never added."""
    return UnknownOrigin(
        f"The origin {origin!r} is not known.",
        rule="An origin is added before it reports.",
        remedy="Add it, or correct the name.",
        origin=origin,
    )
