"""Rows on their way into transactions: in pieces, and cut where a timestamp ends."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from floodmark.errors import SinkBatchInvalid
from floodmark.sinks._out_rows import OutRow, OutRows, RowColumns
from floodmark.sinks._target_options import Step, TargetOptions


@dataclass(slots=True)
class Sent:
    """What is in the open transaction."""

    rows: int = 0
    bytes: int = 0

    def clear(self) -> None:
        """Begin to count anew."""
        self.rows, self.bytes = 0, 0


def pieces(
    rows: Iterable[OutRows], split: Callable[[int], Step] | None, options: TargetOptions, done: Sent
) -> Iterator[tuple[OutRows, Step | None]]:
    """Return pieces of rows, and after those with which a transaction ends the step at which it does."""
    if split is None or (options.max_rows is None and options.max_bytes is None):
        for piece in rows:
            if len(piece):
                yield piece, None
        return
    last: int | None = None
    held: Sequence[OutRow] | None = None
    for run in _runs(rows):
        ts = run[0][2]
        if last is not None and ts < last:
            raise SinkBatchInvalid(
                f"A row of timestamp {ts} comes after one of {last}.",
                rule="A transaction ends between timestamps, and so the rows are in their order.",
                remedy="Sort the rows by their timestamps, or set no limit for a transaction.",
                ts=ts,
                last=last,
            )
        if held is not None:
            is_full = done.rows + len(held) >= (options.max_rows or 2**62)
            if options.max_bytes is not None and not is_full:
                is_full = done.bytes + size_of(held) >= options.max_bytes
            yield held, split(last) if is_full and last is not None and ts > last else None
        held, last = run, ts
    if held is not None:
        yield held, None


def size_of(rows: OutRows) -> int:
    """Return the bytes of rows.

    >>> size_of([(b"key", b"value", 1, None, None), (None, b"!", 1, None, None)])
    9
    """
    if isinstance(rows, RowColumns):
        return rows.size
    return sum(len(row[0] or b"") + len(row[1] or b"") for row in rows)


def _runs(rows: Iterable[OutRows]) -> Iterator[Sequence[OutRow]]:
    """Return rows in runs of one timestamp; one that goes over several pieces is several runs."""
    for some in rows:
        piece = some.rows() if isinstance(some, RowColumns) else some
        first = 0
        for place in range(1, len(piece) + 1):
            if place == len(piece) or piece[place][2] != piece[first][2]:
                yield piece[first:place]
                first = place
