"""Where rows come from: a planned range becomes input splits, and each split is read to Arrow batches by one task.

A split says all that is needed to read it, is sent to the task that reads it, and contains no secret: it refers to
secrets, which are looked up where it is read. Nothing of Spark is here. Imports the rest of this room but not
`landing`; `floodmark.spark` imports it. Start with `sql.split`, `rest.split` or `files`.
"""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


class InputSplit(Protocol):
    """What one task reads. It can be pickled, and read again: each time what the source has then."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Give the rows, a batch at a time, all with one schema; at least one batch, even if it is empty.

        Whatever is wrong with the source is an error of Floodmark's that says what to do.
        """
        ...
