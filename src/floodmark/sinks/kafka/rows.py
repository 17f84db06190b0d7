"""Rows on their way to Kafka: as tuples or columns, split into transactions, and the partition of each key."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import SinkBatchInvalid
from floodmark.sinks.target import CommitPoint, TargetOptions

TS_HEADER: Final = "floodmark.ts"
"""Header with the timestamp of a row, in decimal digits."""

RowHeaders = Sequence[tuple[str, bytes | None]]
OutRow = tuple[bytes | None, bytes | None, int, int | None, RowHeaders | None]
"""A row to write: key, value, timestamp, partition (None: chosen by the key), headers."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Rows to write, as Arrow columns.

    >>> columns = RowColumns(pa.array([b"k", None]), pa.array([b"one", b"two"]), pa.array([7, 8]))
    >>> len(columns), columns.size, columns.rows()
    (2, 7, [(b'k', b'one', 7, None, None), (None, b'two', 8, None, None)])
    """

    keys: pa.Array
    values: pa.Array
    ts: pa.Array
    partitions: pa.Array | None = None
    """If None, partitions are chosen by the keys."""
    headers: pa.Array | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "RowColumns":
        """Return the rows of a batch with columns key, value, ts, and optionally partition and headers."""
        more = {name: batch[name] for name in ("partition", "headers") if name in batch.schema.names}
        return cls(batch["key"], batch["value"], batch["ts"], more.get("partition"), more.get("headers"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    @property
    def size(self) -> int:
        """Total bytes of keys and values."""
        return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in (self.keys, self.values))

    def rows(self) -> list[OutRow]:
        """Return the rows as tuples."""
        none: list[Any] = [None] * len(self)
        headers = none
        if self.headers is not None:
            headers = [row and [(header["key"], header["value"]) for header in row] for row in self.headers.to_pylist()]
        partitions = none if self.partitions is None else self.partitions.to_pylist()
        columns = (self.keys.to_pylist(), self.values.to_pylist(), self.ts.to_pylist(), partitions, headers)
        return list(zip(*columns, strict=True))


OutRows = Sequence[OutRow] | RowColumns
"""Rows to write, as tuples or columns."""


@dataclass(slots=True)
class TransactionSize:
    """Rows and bytes in the open transaction."""

    rows: int = 0
    bytes: int = 0

    def clear(self) -> None:
        """Reset both counts."""
        self.rows, self.bytes = 0, 0


def split_rows(
    rows: Iterable[OutRows], split: Callable[[int], CommitPoint] | None, options: TargetOptions, sent: TransactionSize
) -> Iterator[tuple[OutRows, CommitPoint | None]]:
    """Yield pieces of rows, each with the commit point if the transaction ends after it, else None."""
    if split is None or (options.max_rows is None and options.max_bytes is None):
        for piece in rows:
            if len(piece):
                yield piece, None
        return
    last: int | None = None
    pending: Sequence[OutRow] | None = None
    for run in _timestamp_runs(rows):
        ts = run[0][2]
        if last is not None and ts < last:
            raise SinkBatchInvalid(
                f"A row of timestamp {ts} comes after one of {last}.",
                rule="Transactions end between timestamps, so rows must come in timestamp order.",
                remedy="Sort the rows by timestamp, or leave max_rows and max_bytes unset.",
                ts=ts,
                last=last,
            )
        if pending is not None:
            is_full = sent.rows + len(pending) >= (options.max_rows or 2**62)
            if options.max_bytes is not None and not is_full:
                is_full = sent.bytes + byte_size(pending) >= options.max_bytes
            yield pending, split(last) if is_full and last is not None and ts > last else None
        pending, last = run, ts
    if pending is not None:
        yield pending, None


def byte_size(rows: OutRows) -> int:
    """Return the total bytes of keys and values.

    >>> byte_size([(b"key", b"value", 1, None, None), (None, b"!", 1, None, None)])
    9
    """
    if isinstance(rows, RowColumns):
        return rows.size
    return sum(len(row[0] or b"") + len(row[1] or b"") for row in rows)


def _timestamp_runs(rows: Iterable[OutRows]) -> Iterator[Sequence[OutRow]]:
    """Yield runs of rows with the same timestamp. A timestamp that spans several pieces yields several runs."""
    for block in rows:
        piece = block.rows() if isinstance(block, RowColumns) else block
        first = 0
        for index in range(1, len(piece) + 1):
            if index == len(piece) or piece[index][2] != piece[first][2]:
                yield piece[first:index]
                first = index


_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_FACTOR: Final = 0x5BD1E995
_32_BITS: Final = 0xFFFFFFFF


def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition of a key, as Kafka's Java client chooses it. All rows without a key go to one partition.

    >>> [partition_of(key, 4) for key in (b"21", b"foobar", None)]
    [0, 2, 1]
    """
    return (_murmur2(key or b"") & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    length = len(data)
    mixed = (_MURMUR2_SEED ^ length) & _32_BITS
    for index in range(0, length - length % 4, 4):
        word = int.from_bytes(data[index : index + 4], "little") * _MURMUR2_FACTOR & _32_BITS
        word = (word ^ word >> 24) * _MURMUR2_FACTOR & _32_BITS
        mixed = mixed * _MURMUR2_FACTOR & _32_BITS ^ word
    rest = data[length - length % 4 :]
    if rest:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _MURMUR2_FACTOR & _32_BITS
    mixed = (mixed ^ mixed >> 13) * _MURMUR2_FACTOR & _32_BITS
    return mixed ^ mixed >> 15
