"""Late rows: how a batch detects them, and how `late="route"` and `late="copy"` write them to files.

A row is late if its time is before the watermark that its batch runs under. Spark gives a query no access to that
watermark, so tasks read it from the home as a table of one row. The home must be reachable from the tasks.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from floodmark._util.disk import create_private_file, make_private_directory, sync_to_disk
from floodmark.spark.columns import column_of

WATERMARK_COLUMN: Final = "_watermark"
"""The column that is added to stored late rows: the watermark of their batch."""

_LATE_ROW_COLUMN: Final = "__floodmark_late_row"
_BATCH, _QUERY, _RUN = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"


def is_late(column: str, watermark: Column) -> Column:
    """Return whether a row is before the watermark (in microseconds); without a watermark no row is late."""
    return F.coalesce(F.unix_micros(column_of(column)) < watermark, F.lit(False))


def fail_if_late(column: str, watermark: Column) -> Column:
    """Return the time of a row; a late row makes the query fail."""
    time = column_of(column)
    message = F.concat(
        F.lit(f"[late-row] A row has {column!r} "),
        time.cast("string"),
        F.lit(", the watermark is "),
        F.timestamp_micros(watermark).cast("string"),
        F.lit(". With late='fail' no row may be behind it. Set a longer delay, or choose late='count' or 'copy'."),
    )
    return F.when(is_late(column, watermark), F.raise_error(message)).otherwise(time)


def store_late_rows(df: DataFrame, column: str, watermark: Column, directory: Path, *, keep: bool) -> DataFrame:
    """Return the rows, late ones only if `keep`, and write the late ones to files, in the same batch.

    The source is read once: a second reader of it might cut its batches differently.
    """
    columns = [column_of(name) for name in df.columns]
    row = F.struct(*columns, F.timestamp_micros(watermark).alias(WATERMARK_COLUMN))
    marked = df.withColumn(_LATE_ROW_COLUMN, F.when(is_late(column, watermark), row))
    write_late = arrow_udf(_late_row_writer(directory, column, keep=keep), "boolean")  # type: ignore[call-overload]
    # Non-deterministic, because it has a side effect: the optimizer must not repeat, move or omit it.
    return marked.where(write_late.asNondeterministic()(F.col(_LATE_ROW_COLUMN))).select(*columns)


def query_directory(directory: Path, query_id: str, column: str) -> Path:
    """Return the directory of one query's late rows; it has a directory per batch, and in that one per run."""
    return directory / query_id / quote(column, safe="")


def remove_old_late_rows(directory: Path, before: float, below_batch: int) -> list[int]:
    """Remove late rows of batches that were written before a time, in seconds; return the numbers of the batches.

    Only batches below `below_batch` are removed: Spark may still run that one again. Idempotent; files that another
    process removes at the same time are no error.
    """
    removed = []
    for batch in directory.iterdir() if directory.is_dir() else ():
        if batch.name.isdecimal() and int(batch.name) < below_batch:
            with suppress(FileNotFoundError):
                if max(path.stat().st_mtime for path in (batch, *batch.rglob("*"))) < before:
                    shutil.rmtree(batch, ignore_errors=True)
                    removed.append(int(batch.name))
    return sorted(removed)


def current_batch() -> tuple[str, str, int]:
    """Return the ids of the query and its run, and the number of the batch, of the current task."""
    task = TaskContext.get()
    assert task is not None
    query, run, batch = (task.getLocalProperty(key) for key in (_QUERY, _RUN, _BATCH))
    assert query is not None
    assert run is not None
    assert batch is not None
    return query, run, int(batch)


def _late_row_writer(late_rows: Path, column: str, *, keep: bool) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Return a function that writes late rows, and says of each row whether it stays in the flow."""

    def write(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        query, run, batch_id = current_batch()
        task = TaskContext.get()
        assert task is not None
        directory = query_directory(late_rows, query, column) / str(batch_id) / run
        unfinished = directory / f".{task.partitionId()}-{task.taskAttemptId()}"
        file = writer = None
        try:
            for rows in arrays:
                late = rows.drop_null()
                if len(late):
                    table = pa.RecordBatch.from_struct_array(late)
                    if writer is None:
                        make_private_directory(directory, below=late_rows.parent)
                        file = create_private_file(unfinished)
                        writer = pq.ParquetWriter(file, table.schema)
                    writer.write_batch(table)
                yield pa.array([True] * len(rows)) if keep else rows.is_null()
        finally:
            if writer is not None:
                writer.close()
            if file is not None:
                file.close()
        if file is not None:
            # Durable before the batch is committed: Spark does not read these rows again after that.
            sync_to_disk(unfinished)
            unfinished.rename(directory / f"{task.partitionId()}.parquet")

    return write
