"""Int64 columns: sequence numbers, times and watermarks of many rows."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floodmark._util.ints import INT64_MAX, INT64_MIN, check_watermark
from floodmark.errors import BatchInvalid, NotInt64

Int64Array = NDArray[np.int64]


def as_array(values: ArrayLike, what: str) -> NDArray[Any]:
    """Return `values` (numpy, Arrow or a list) as an array, or raise an error if they are no column without nulls.

    >>> as_array([[1], [2, 3]], "sequence")
    Traceback (most recent call last):
    floodmark.errors.BatchInvalid: The column 'sequence' is no array: ... [batch-invalid]
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise BatchInvalid(
            f"The column {what!r} is no array: {error}.",
            rule="A column has one value per row.",
            remedy="Pass a one-dimensional array or a list of single values.",
            column=what,
        ) from error
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise BatchInvalid(
            f"The column {what!r} has masked values.",
            rule="A column holds no nulls.",
            remedy="Fill or drop the masked values.",
            column=what,
        )
    return array


def int64_column(values: ArrayLike, what: str, length: int | None = None) -> Int64Array:
    """Return `values` (numpy, Arrow or a list) as an int64 column of `length`, or raise an error.

    >>> int64_column([1, 2], "sequence")
    array([1, 2])
    """
    column = as_array(values, what)
    if column.size == 0 and column.ndim == 1:
        column = column.astype(np.int64)
    if column.ndim != 1 or (length is not None and len(column) != length):
        raise BatchInvalid(
            f"The column {what!r} has shape {column.shape}.",
            rule="All columns of a batch are one-dimensional and have the same length.",
            remedy="Pass one value per row.",
            column=what,
            shape=column.shape,
        )
    if column.dtype.kind not in "iu" or (column.dtype == np.uint64 and column.max(initial=0) > INT64_MAX):
        raise NotInt64(
            f"The column {what!r} is of type {column.dtype}.",
            rule="It must hold int64 values and no nulls.",
            remedy="Convert it, for example to microseconds since the epoch, and fill or drop nulls.",
            what=what,
            value=str(column.dtype),
        )
    return column.astype(np.int64, copy=False)


def watermark_column(values: ArrayLike, what: str = "watermark", length: int | None = None) -> Int64Array:
    """Return `values` as a column of watermarks, or raise an error.

    >>> watermark_column([1, 2**63 - 1])
    Traceback (most recent call last):
    floodmark.errors.ReservedTime: The watermark is int64 MAX. ... [reserved-time]
    """
    column = int64_column(values, what, length)
    if column.max(initial=INT64_MIN) == INT64_MAX:
        check_watermark(INT64_MAX, what)
    return column
