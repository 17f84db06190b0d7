"""Rows behind the watermark: how a batch knows which they are, and where those go that are kept apart.

A row is late in a batch if its time is before the watermark that the batch runs under. Spark has no way to ask for
that watermark inside a query, so each batch reads it from the home as a table of one row. Tasks ask, so the home must
be one that they can reach.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from floodmark.spark.columns import column_of

WATERMARK_COLUMN: Final = "_watermark"
"""The column that rows kept apart have besides their own."""

_LATE_ROW_COLUMN: Final = "__floodmark_late_row"
_BATCH, _QUERY, _RUN = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"


def is_late(column: str, watermark: Column) -> Column:
    """Return whether a row is behind a watermark in microseconds; where there is none yet, no row is."""
    return F.coalesce(F.unix_micros(column_of(column)) < watermark, F.lit(False))


def fail_if_late(column: str, watermark: Column) -> Column:
    """Return the time of a row, or make the query fail if the row is late."""
    time = column_of(column)
    said = F.concat(
        F.lit(f"[late-row] A row has {column!r} "),
        time.cast("string"),
        F.lit(", the watermark is "),
        F.timestamp_micros(watermark).cast("string"),
        F.lit(". With late='fail' no row may be behind it. Allow for more with delay, or choose another late."),
    )
    return F.when(is_late(column, watermark), F.raise_error(said)).otherwise(time)


def route_late_rows(df: DataFrame, column: str, watermark: Column, home: Path) -> DataFrame:
    """Return the rows that are not late; those that are go into files of the home, as part of the same batch.

    The rows are read once, because a source that is read twice may cut its batches differently for each reader.
    """
    columns = [column_of(name) for name in df.columns]
    row = F.struct(*columns, F.timestamp_micros(watermark).alias(WATERMARK_COLUMN))
    seen = df.withColumn(_LATE_ROW_COLUMN, F.when(is_late(column, watermark), row))
    is_kept_apart = arrow_udf(_late_row_writer(home, column), "boolean")  # type: ignore[call-overload]
    # What has an effect must happen once a row: Spark may repeat or move only what it takes for a function.
    return seen.where(~is_kept_apart.asNondeterministic()(F.col(_LATE_ROW_COLUMN))).select(*columns)


def late_directory(home: Path, query_id: str, column: str) -> Path:
    """Return where the late rows of a query are, in directories by batch, and in those by run."""
    return home / "late" / query_id / quote(column, safe="")


def current_batch() -> tuple[str, str, int]:
    """Return the query, its run and the batch that this task works for."""
    task = TaskContext.get()
    assert task is not None
    query, run, batch = (task.getLocalProperty(key) for key in (_QUERY, _RUN, _BATCH))
    assert query is not None
    assert run is not None
    assert batch is not None
    return query, run, int(batch)


def _late_row_writer(home: Path, column: str) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    def keep(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
        query, run, batch_id = current_batch()
        task = TaskContext.get()
        assert task is not None
        place = late_directory(home, query, column) / str(batch_id) / run
        unfinished = place / f".{task.partitionId()}-{task.taskAttemptId()}"
        writer = None
        try:
            for rows in parts:
                late = rows.drop_null()
                if len(late):
                    table = pa.RecordBatch.from_struct_array(late)
                    if writer is None:
                        place.mkdir(parents=True, exist_ok=True)
                        writer = pq.ParquetWriter(unfinished, table.schema)
                    writer.write_batch(table)
                yield rows.is_valid()
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            # On the disk before the batch counts as done: Spark will not ask for these rows again.
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.rename(place / f"{task.partitionId()}.parquet")

    return keep
