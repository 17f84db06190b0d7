"""Reports as columns: checked once, then split by origin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floodmark._util.ints import Int64Array, check_int64, int64_column, watermark_column
from floodmark.errors import BatchInvalid, NumberOutOfRange

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reports:
    """Some reports in order of arrival. `chunk` counts from zero, whatever the tracker's base is."""

    sequence: Int64Array
    chunk: Int64Array
    last: BoolArray
    watermark: Int64Array
    attempt: Int64Array

    def where(self, rows: BoolArray | Int64Array | slice) -> "Reports":
        """Return some of the rows."""
        return Reports(self.sequence[rows], self.chunk[rows], self.last[rows], self.watermark[rows], self.attempt[rows])

    def split(self, codes: Int64Array, names: Sequence[str | int]) -> Iterator[tuple[str | int, "Reports"]]:
        """Yield the rows of each origin that has some; `codes` says whose each row is, as a place in `names`."""
        if codes.shape != self.sequence.shape:
            raise BatchInvalid(
                f"The column 'origin' has shape {codes.shape}, the column 'sequence' {self.sequence.shape}.",
                rule="All columns of a batch are one-dimensional and of one length.",
                remedy="Pass one value a row, or one origin for all rows.",
                column="origin",
                shape=codes.shape,
            )
        # Numpy sorts narrow numbers by counting, which is several times faster.
        order = np.argsort(codes.astype(np.min_scalar_type(len(names))), kind="stable")
        codes, ordered = codes[order], self.where(order)
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(bounds):
            if end > start:
                yield names[codes[start]], ordered.where(slice(start, end))


def read_reports(
    sequence: ArrayLike,
    watermark: ArrayLike,
    chunk: ArrayLike | None,
    last: ArrayLike | None,
    attempt: ArrayLike | None,
    *,
    first: int,
    chunk_base: int,
) -> Reports:
    """Return the columns, checked. Without `chunk` and `last`, each row is a whole sequence.

    >>> read_reports([1, 2], [10, 20], None, None, None, first=1, chunk_base=0).last
    array([ True,  True])
    """
    sequences = _column_from(first, sequence, "sequence", None)
    rows = len(sequences)
    zeros = np.zeros(rows, dtype=np.int64)
    return Reports(
        sequence=sequences,
        chunk=zeros if chunk is None else _column_from(chunk_base, chunk, "chunk", rows) - chunk_base,
        last=np.ones(rows, dtype=np.bool_) if last is None else _flags(last, rows),
        watermark=watermark_column(watermark, "watermark", rows),
        attempt=zeros if attempt is None else int64_column(attempt, "attempt", rows),
    )


def check_from(first: int, value: object, what: str) -> int:
    """Return a number that is not below the first one, or refuse it.

    >>> check_from(1, 0, "sequence")
    Traceback (most recent call last):
    floodmark.errors.NumberOutOfRange: The sequence is 0. The first sequence is 1. ... [number-out-of-range]
    """
    number = check_int64(value, what)
    if number < first:
        raise NumberOutOfRange(
            f"The {what} is {number}.",
            rule=f"The first {what} is {first}.",
            remedy=f"Count from {first}, or create the tracker with another start.",
            number=number,
            first=first,
        )
    return number


def _column_from(first: int, values: ArrayLike, what: str, length: int | None) -> Int64Array:
    column = int64_column(values, what, length)
    if len(column):
        check_from(first, int(column.min()), what)
    return column


def _flags(values: ArrayLike, length: int) -> BoolArray:
    flags = np.asarray(values)
    if flags.dtype != np.bool_ or flags.shape != (length,):
        raise BatchInvalid(
            f"The column 'last' has type {flags.dtype} and shape {flags.shape}.",
            rule=f"It must hold {length} booleans and no nulls.",
            remedy="Pass true for the last chunk of a sequence, else false.",
            column="last",
            shape=flags.shape,
        )
    return flags
