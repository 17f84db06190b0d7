"""Cells on Spark: its tasks read the parts of a cell, and write them as files, without a detour through the JVM."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from floodmark.delta import StagedFile
from floodmark.errors import FloodmarkError, SourceFailed
from floodmark.extract import Part
from floodmark.landing import Destination, KeptRows, LiveFile, Merged, Scope, Staged, united, written
from floodmark.spark._merge import merging

_RESULT: Final = "result BINARY"

Result = tuple[Staged | None, Exception | None]


def run_parts(spark: SparkSession, parts: Sequence[Part], to: Destination) -> Staged:
    """Read parts, each in a task, and write their rows."""
    if not parts:
        return Staged()
    cells = spark.range(0, len(parts), 1, len(parts))
    return _collected(cells.mapInArrow(partial(_write_parts, tuple(parts), to), _RESULT))


def run_frame(frame: DataFrame, to: Destination) -> Staged:
    """Write the rows of a DataFrame, each partition in a task."""
    return _collected(frame.mapInArrow(partial(_write_rows, to), _RESULT))


def batches_of(spark: SparkSession, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Give the rows of parts, which tasks read, on the driver; a few batches are under way at a time."""
    cells = spark.range(0, len(parts), 1, len(parts)).mapInArrow(partial(_send_parts, tuple(parts)), _RESULT)
    yield from _received(cells)


def frame_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Give the rows of a DataFrame on the driver."""
    yield from _received(frame.mapInArrow(_send, _RESULT))


def _received(cells: DataFrame) -> Iterator[pa.RecordBatch]:
    for (result,) in cells.toLocalIterator(prefetchPartitions=True):
        found, error = pickle.loads(result)
        if error is not None:
            raise error
        with pa.ipc.open_stream(found) as reader:
            yield from reader


def keep_rows(spark: SparkSession, files: Sequence[LiveFile], scope: Scope, to: Destination) -> Staged:
    """Write the rows of files anew that are not in a scope."""
    assert to.schema is not None
    return run_parts(spark, [KeptRows(file, scope, to.schema) for file in files], to)


def merge_rows(
    spark: SparkSession,
    new: Sequence[StagedFile],
    live: Sequence[LiveFile],
    keys: tuple[str, ...],
    newest_by: str,
    to: Destination,
) -> Merged:
    """Write the newest row of each key."""
    assert to.schema is not None
    fresh = [LiveFile(to.table, file.path, file.rows, file.partition) for file in new]
    found = merging(spark, fresh, live, keys, newest_by, to.schema)
    try:
        return Merged(run_frame(found.rows, to), found.gone)
    finally:
        found.over()


def _write_parts(parts: Sequence[Part], to: Destination, ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in ids:
        for number in batch.column(0).to_pylist():
            yield _result(partial(_write_part, parts[number], to))


def _write_part(part: Part, to: Destination) -> Staged:
    return written(part.read(), to, token_hex(8))


def _write_rows(to: Destination, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _result(lambda: written(iter(batches), to, token_hex(8)))


def _send_parts(parts: Sequence[Part], ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in ids:
        for number in batch.column(0).to_pylist():
            yield from _send(parts[number].read())


def _send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rest = iter(batches)
    while True:
        found, error = _tried(lambda: next(rest, None))
        if found is None and error is None:
            return
        yield _cell((None if found is None else _packed(found), error))
        if error is not None:
            return


def _result(write: Callable[[], Staged]) -> pa.RecordBatch:
    """Return what became of a task. An error is told as a value: Spark would try again, and bury what it says."""
    return _cell(_tried(write))


def _tried(what: Callable[[], Any]) -> tuple[Any, Exception | None]:
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


def _packed(batch: pa.RecordBatch) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue().to_pybytes())


def _cell(result: tuple[Any, Exception | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])


def _collected(results: DataFrame) -> Staged:
    files: list[StagedFile] = []
    schemas: list[pa.Schema] = []
    for (result,) in results.collect():
        staged, error = pickle.loads(result)
        if error is not None:
            raise error
        files += staged.files
        if staged.schema is not None:
            schemas.append(staged.schema)
    return Staged(tuple(files), united(schemas) if schemas else None)
