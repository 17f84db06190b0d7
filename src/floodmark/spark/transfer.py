"""Rows and results from tasks to the driver, as Arrow batches or pickles in a binary column.

Tasks import this module: keep it light. A task returns an error as a value, because Spark would retry a task that
raises, and wrap its message in a stack trace.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from floodmark.errors import FloodmarkError, SourceFailed

RESULT_SCHEMA: Final = "result BINARY"


def capture_error(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return the result of a call, or its exception as a FloodmarkError: (result, None) or (None, error)."""
    try:
        return action(), None
    except FloodmarkError as error:
        return None, error
    except Exception as error:
        return None, SourceFailed(
            f"A task has failed: {type(error).__name__}: {error}.",
            rule="A cell is read and written as a whole, so it stays due.",
            remedy="Run the job again; if it fails again, check the source and the free disk space of the workers.",
        )


def result_row(result: Any) -> pa.RecordBatch:
    """Return a pickled value as a batch of one row."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


_PACKED_SCHEMA: Final = "records BINARY"
_EXECUTION_ID: Final = "spark.sql.execution.id"
_ROWS_PER_PIECE: Final = 20_000


def pack_rows(records: DataFrame) -> DataFrame:
    """Return records packed into blocks: rows with one binary column, each an encoded Arrow batch, in order."""
    return records.mapInArrow(_pack, _PACKED_SCHEMA)


def bring_to_driver(blocks: DataFrame) -> Iterator[Any]:
    """Return the rows of a DataFrame on the driver, one partition at a time.

    Spark 4.3 keeps the result of every job in memory until its SQL execution ends, and leaks the results of jobs that
    begin after that. Jobs without an execution id are not affected.
    """
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    if not isinstance(blocks, ClassicDataFrame):
        # Spark Connect fetches rows differently and has no RDDs.
        return blocks.toLocalIterator(prefetchPartitions=True)
    context, jobs = blocks.sparkSession.sparkContext, blocks.rdd
    execution = context.getLocalProperty(_EXECUTION_ID)
    # toLocalIterator starts the thread that runs the jobs; that thread inherits the property as it is now.
    context.setLocalProperty(_EXECUTION_ID, None)  # type: ignore[arg-type]
    try:
        return jobs.toLocalIterator(prefetchPartitions=True)
    finally:
        context.setLocalProperty(_EXECUTION_ID, execution)  # type: ignore[arg-type]


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same rows in batches small enough that several fit into memory."""
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS_PER_PIECE):
            yield batch.slice(first, _ROWS_PER_PIECE)


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Return a batch as bytes, compressed: Spark copies them several times on the way to the driver."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue().to_pybytes())


def decode_batches(block: bytes) -> Iterator[pa.RecordBatch]:
    """Return the batches that `encode_batch` has encoded."""
    with pa.ipc.open_stream(block) as reader:
        yield from reader


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in split_batches(batches):
        yield pa.RecordBatch.from_arrays([pa.array([encode_batch(piece)], pa.binary())], ["records"])
