"""Extraction: a planned range becomes input splits, and one task reads each split to Arrow batches.

A split contains everything needed to read it except secrets: it refers to them, and the task looks them up. Nothing
here imports Spark. It may import the rest of `ingest` but not `landing`; `floodmark.spark` imports it. Start with
`sql.split`, `rest.split` or `files`.
"""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


class InputSplit(Protocol):
    """The rows that one task reads. It can be pickled, and read again to get the source's current rows."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of one schema; at least one batch, which may be empty.

        Every failure of the source is raised as a FloodmarkError with a remedy.
        """
        ...
