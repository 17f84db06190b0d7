"""A part of a cell: what one task reads."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


class Part(Protocol):
    """What one task reads. It can be pickled, and read again: each time what the source has then."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Give the rows, a batch at a time, all with one schema; at least one batch, even if it is empty.

        Whatever is wrong with the source is an error of Floodmark's that says what to do.
        """
        ...
