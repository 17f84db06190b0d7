"""Rows as they are written: one by one, or as columns, which is faster where they have no headers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

TS_HEADER: Final = "floodmark.ts"
"""The header that has the timestamp of a row, in decimal digits."""

Headers = Sequence[tuple[str, bytes | None]]
OutRow = tuple[bytes | None, bytes | None, int, int | None, Headers | None]
"""A row to be written: key, value, timestamp, partition (None: by the key), headers."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Rows to be written, as Arrow columns.

    >>> columns = RowColumns(pa.array([b"k", None]), pa.array([b"one", b"two"]), pa.array([7, 8]))
    >>> len(columns), columns.size, columns.rows()
    (2, 7, [(b'k', b'one', 7, None, None), (None, b'two', 8, None, None)])
    """

    keys: pa.Array
    values: pa.Array
    ts: pa.Array
    partitions: pa.Array | None = None
    """Where there are none, they are chosen by the keys."""
    headers: pa.Array | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "RowColumns":
        """Return the rows of a batch with the columns key, value, ts, and perhaps partition and headers."""
        more = {name: batch[name] for name in ("partition", "headers") if name in batch.schema.names}
        return cls(batch["key"], batch["value"], batch["ts"], more.get("partition"), more.get("headers"))

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.values)

    @property
    def size(self) -> int:
        """The bytes of keys and values."""
        return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in (self.keys, self.values))

    def rows(self) -> list[OutRow]:
        """Return them one by one."""
        none: list[Any] = [None] * len(self)
        headers = none
        if self.headers is not None:
            headers = [found and [(one["key"], one["value"]) for one in found] for found in self.headers.to_pylist()]
        partitions = none if self.partitions is None else self.partitions.to_pylist()
        columns = (self.keys.to_pylist(), self.values.to_pylist(), self.ts.to_pylist(), partitions, headers)
        return list(zip(*columns, strict=True))


OutRows = Sequence[OutRow] | RowColumns
"""Some rows to be written."""
