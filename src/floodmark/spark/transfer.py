"""Rows and results on their way from tasks to the driver, as Arrow batches in binary columns.

Tasks import this module, so it stays light. A task returns an error as a value: Spark would retry a task that
raises, and bury its message.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from floodmark.errors import FloodmarkError, SourceFailed

RESULT_SCHEMA: Final = "result BINARY"


def capture_error(what: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a call gives, or what it raises, as an error of Floodmark's."""
    try:
        return what(), None
    except FloodmarkError as error:
        return None, error
    except Exception as error:
        return None, SourceFailed(
            f"A task has failed: {type(error).__name__}: {error}.",
            rule="A cell is read and written as a whole.",
            remedy="It stays due; if it fails again, see what the source and the disk of the workers say.",
        )


def result_row(result: Any) -> pa.RecordBatch:
    """Return a value as a row for the driver."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


_PACKED_SCHEMA: Final = "records BINARY"
_EXECUTION_ID: Final = "spark.sql.execution.id"
_ROWS_PER_PIECE: Final = 20_000


def pack_rows(records: DataFrame) -> DataFrame:
    """Return records in cells, in their order."""
    return records.mapInArrow(_pack, _PACKED_SCHEMA)


def bring_to_driver(cells: DataFrame) -> Iterator[Any]:
    """Bring cells to the driver, a partition after the other.

    Spark 4.3 keeps what each job of an execution has brought until the execution ends, and that of jobs which begin
    later for ever. It does not where the jobs belong to none.
    """
    from pyspark.sql.classic.dataframe import DataFrame as OfThisProcess

    if not isinstance(cells, OfThisProcess):
        # Through Spark Connect, rows come in another way.
        return cells.toLocalIterator(prefetchPartitions=True)
    context, jobs = cells.sparkSession.sparkContext, cells.rdd
    execution = context.getLocalProperty(_EXECUTION_ID)
    # The thread that runs the jobs is started here, and takes over what is set now.
    context.setLocalProperty(_EXECUTION_ID, None)  # type: ignore[arg-type]
    try:
        return jobs.toLocalIterator(prefetchPartitions=True)
    finally:
        context.setLocalProperty(_EXECUTION_ID, execution)  # type: ignore[arg-type]


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return records in pieces of which many fit into memory."""
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS_PER_PIECE):
            yield batch.slice(first, _ROWS_PER_PIECE)


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Return a batch as one cell.

    On its way it is copied several times, and by the JVM as text: the fewer bytes, the better.
    """
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue().to_pybytes())


def decode_batches(cell: bytes) -> Iterator[pa.RecordBatch]:
    """Return what is in a cell."""
    with pa.ipc.open_stream(cell) as reader:
        yield from reader


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in split_batches(batches):
        yield pa.RecordBatch.from_arrays([pa.array([encode_batch(piece)], pa.binary())], ["records"])
