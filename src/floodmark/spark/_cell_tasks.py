"""Rows of cells that Spark itself reads or joins: its tasks write them, or send them to the driver."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from secrets import token_hex

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from floodmark.extract import Part
from floodmark.landing import Destination, Merge, Merged, Staged, written
from floodmark.spark._cell_jobs import together
from floodmark.spark._merge import merging
from floodmark.spark._packed_rows import batches_in, brought, cell_of
from floodmark.spark._task_results import RESULT, packed_result, tried


def run_frame(frame: DataFrame, to: Destination) -> Staged:
    """Write the rows of a DataFrame, each partition in a task."""
    done = []
    for (result,) in frame.mapInArrow(partial(_write, to), RESULT).collect():
        staged, error = pickle.loads(result)
        if error is not None:
            raise error
        done.append(staged)
    return together(done)


def merge_rows(spark: SparkSession, merge: Merge, to: Destination) -> Merged:
    """Write the newest row of each key."""
    assert to.schema is not None
    found = merging(spark, merge, to.schema)
    try:
        return Merged(run_frame(found.rows, to), found.gone)
    finally:
        found.over()


def part_batches(spark: SparkSession, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Give the rows of parts on the driver; tasks read them, and a few batches are under way at a time."""
    numbers = spark.range(0, len(parts), 1, len(parts))
    yield from _received(numbers.mapInArrow(partial(_send_parts, tuple(parts)), RESULT))


def frame_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Give the rows of a DataFrame on the driver."""
    yield from _received(frame.mapInArrow(_send, RESULT))


def _received(cells: DataFrame) -> Iterator[pa.RecordBatch]:
    for (result,) in brought(cells):
        found, error = pickle.loads(result)
        if error is not None:
            raise error
        yield from batches_in(found)


def _write(to: Destination, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield packed_result(tried(lambda: written(iter(batches), to, token_hex(8))))


def _send_parts(parts: Sequence[Part], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _send(parts[number].read())


def _send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rest = iter(batches)
    while True:
        found, error = tried(lambda: next(rest, None))
        if found is None and error is None:
            return
        yield packed_result((None if found is None else cell_of(found), error))
        if error is not None:
            return
