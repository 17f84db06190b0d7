"""The live files of a Delta table as a DataFrame, read in tasks. Needs `floodmark[delta]`."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from floodmark.ingest.landing.tasks import LiveFile

FILE_COLUMN: Final = "_floodmark_file"
_MOST_READ_TASKS: Final = 64


def read_live_files(
    spark: SparkSession,
    files: Sequence[LiveFile],
    schema: pa.Schema,
    columns: list[str] | None = None,
    *,
    with_file: bool = False,
) -> DataFrame:
    """Return the rows of files as a DataFrame; `with_file` adds the path of each row's file as `FILE_COLUMN`."""
    selected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    output = selected.append(pa.field(FILE_COLUMN, pa.string())) if with_file else selected
    numbers = spark.range(0, len(files), 1, max(1, min(len(files), _MOST_READ_TASKS)))
    read = partial(_read_batches, tuple(files), schema, selected.names, with_file)
    return numbers.mapInArrow(read, from_arrow_schema(output, prefer_timestamp_ntz=True))


def _read_batches(
    files: Sequence[LiveFile],
    schema: pa.Schema,
    columns: list[str],
    with_file: bool,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for rows in files[number].batches(schema, columns):
                path = pa.repeat(pa.scalar(files[number].path), rows.num_rows)
                yield rows.append_column(FILE_COLUMN, path) if with_file else rows
