"""Records on their way from tasks to the driver: many in one cell, since a row at a time is slow."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from floodmark.sinks.kafka.rows import RowColumns

_CELL: Final = "records BINARY"
_EXECUTION: Final = "spark.sql.execution.id"
_ROWS: Final = 20_000


def packed(records: DataFrame) -> DataFrame:
    """Return records in cells, in their order."""
    return records.mapInArrow(_pack, _CELL)


def brought(cells: DataFrame) -> Iterator[Any]:
    """Bring cells to the driver, a partition after the other.

    Spark 4.3 keeps what each job of an execution has brought until the execution ends, and that of jobs which begin
    later for ever. It does not where the jobs belong to none.
    """
    from pyspark.sql.classic.dataframe import DataFrame as OfThisProcess

    if not isinstance(cells, OfThisProcess):
        # Through Spark Connect, rows come in another way.
        return cells.toLocalIterator(prefetchPartitions=True)
    context, jobs = cells.sparkSession.sparkContext, cells.rdd
    execution = context.getLocalProperty(_EXECUTION)
    # The thread that runs the jobs is started here, and takes over what is set now.
    context.setLocalProperty(_EXECUTION, None)  # type: ignore[arg-type]
    try:
        return jobs.toLocalIterator(prefetchPartitions=True)
    finally:
        context.setLocalProperty(_EXECUTION, execution)  # type: ignore[arg-type]


def unpacked(cells: Iterable[Any]) -> Iterator[RowColumns]:
    """Return the records of cells, piece by piece."""
    for (cell,) in cells:
        for batch in batches_in(cell):
            yield RowColumns.of(batch)


def pieces_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return records in pieces of which many fit into memory."""
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS):
            yield batch.slice(first, _ROWS)


def cell_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch as one cell.

    On its way it is copied several times, and by the JVM as text: the fewer bytes, the better.
    """
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue().to_pybytes())


def batches_in(cell: bytes) -> Iterator[pa.RecordBatch]:
    """Return what is in a cell."""
    with pa.ipc.open_stream(cell) as reader:
        yield from reader


def _pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in pieces_of(batches):
        yield pa.RecordBatch.from_arrays([pa.array([cell_of(piece)], pa.binary())], ["records"])
