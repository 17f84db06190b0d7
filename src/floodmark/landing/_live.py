"""Files of a table as they are: which of them a cell touches, and how much of each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.delta import StagedFile
from floodmark.landing._scope import Scope


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that is part of a table, and the values of its partition, which are not in it."""

    table: Path
    path: str
    """Inside the table's directory."""
    rows: int | None
    partition: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.table / self.path)

    def batches(self, schema: pa.Schema, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Give its rows with the columns of the table; those that it does not have are NULL."""
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with pq.ParquetFile(self.place) as file:
            for batch in file.iter_batches(batch_size=1 << 16, columns=wanted.names):
                yield _complete(batch, wanted, self.partition)

    def held(self, scope: Scope, schema: pa.Schema) -> tuple[int, int]:
        """Return how many of its rows are in a scope, and how many it has."""
        held = rows = 0
        for batch in self.batches(schema, [scope.column, *(name for name in scope.unit if name != scope.column)]):
            held += pc.sum(scope.holds(batch)).as_py()
            rows += batch.num_rows
        return held, rows

    def outside(self, scope: Scope, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Give its rows that are not in a scope."""
        for batch in self.batches(schema):
            yield batch.filter(pc.invert(scope.holds(batch)))


def live_files(table: Path, files: pa.Table) -> list[LiveFile]:
    """Return files as DeltaCommits.files knows them."""
    partition_by = [name.removeprefix("partition.") for name in files.column_names if name.startswith("partition.")]
    return [
        LiveFile(table, one["path"], one["num_records"], {name: one[f"partition.{name}"] for name in partition_by})
        for one in files.to_pylist()
    ]


def may_meet(files: pa.Table, new: Sequence[StagedFile], keys: Sequence[str]) -> Any:
    """Return for each file of a table whether keys of new files may be in it, as far as bounds of both are known."""
    stats = [json.loads(file.stats) for file in new]
    bounds = {}
    for name in keys:
        lows, highs = ([one[what].get(name) for one in stats] for what in ("minValues", "maxValues"))
        if all(value is not None for value in (*lows, *highs)):
            bounds[name] = min(lows), max(highs)
    return may_be_within(files, bounds)


def may_be_within(files: pa.Table, bounds: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return for each file of a table whether rows with values from the first to the last may be in it, by column.

    Files may tell moments in whole milliseconds, cut off: the first one has none that is cut.
    """
    told: Any = pa.repeat(pa.scalar(True), files.num_rows)
    for name, ends in bounds.items():
        if f"partition.{name}" in files.column_names:
            low = high = files.column(f"partition.{name}")
        elif f"min.{name}" in files.column_names:
            low, high = files.column(f"min.{name}"), files.column(f"max.{name}")
        else:
            continue
        first, last = (pa.array([value]).cast(low.type)[0] for value in ends)
        told = pc.and_(told, pc.fill_null(pc.less_equal(low, last), True))
        told = pc.and_(told, pc.fill_null(pc.greater_equal(high, first), True))
    return told


def _complete(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, Any]) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(_repeated(partition.get(field.name), field.type, batch.num_rows))
    return pa.record_batch(columns, schema=schema)


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    # A table's log has the values of partitions as texts.
    return pa.repeat(pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind), rows)
