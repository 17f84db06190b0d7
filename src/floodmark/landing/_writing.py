"""What a task does with the rows that it has read: it looks at them, fits them to the table, and writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from floodmark.errors import KeyMissing, TableUnfit
from floodmark.landing._fit import Fitting
from floodmark.landing._live import LiveFile
from floodmark.landing._parquet import write_parquet
from floodmark.landing._scope import Scope
from floodmark.landing._tasks import Destination, Staged

_ROWS_A_FILE: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a file that are not in a scope: a part that is read and written anew."""

    file: LiveFile
    scope: Scope
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Give them."""
        yield _empty(self.schema)
        yield from self.file.outside(self.scope, self.schema)


def written(batches: Iterator[pa.RecordBatch], to: Destination, name: str) -> Staged:
    """Write rows where they belong, as files whose names begin with `name`."""
    return write_parquet(
        (_checked(batch, to) for batch in batches),
        to.directory,
        Fitting(to.schema, to.drift, to.constants, to.keys),
        table=to.table,
        partition_by=to.partition_by,
        rows_a_file=_ROWS_A_FILE,
        name=name,
    )


def _checked(rows: pa.RecordBatch, to: Destination) -> pa.RecordBatch:
    if not rows.num_rows:
        return rows
    for name in to.keys:
        if name in rows.schema.names and rows.column(name).null_count:
            raise KeyMissing(
                f"A row has no value in {name}, which is one of its keys.",
                rule="Rows are merged by their keys, and each row has all of them.",
                remedy="Leave such rows out with `where`, or name other keys.",
                column=name,
            )
    if to.scope is not None:
        if to.scope.column not in rows.schema.names:
            raise TableUnfit(
                f"The rows have no column {to.scope.column}.",
                rule="What is replaced is a range of a column that the rows have.",
                remedy="Name one of their columns as range_column, or merge by key.",
                column=to.scope.column,
            )
        to.scope.check(rows)
    return rows


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
