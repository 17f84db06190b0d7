"""Reads, writes and merges the rows of cells in Spark's tasks.

Cells that wait at the same time share one Spark job, because a job has an overhead of about 90 ms. A merge keeps the
newest row of each key, whether it is in the table or was just read.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from threading import Condition
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.ingest.extract import InputSplit
from floodmark.ingest.landing.column_types import union_schema
from floodmark.ingest.landing.parquet import write_rows
from floodmark.ingest.landing.tasks import Destination, MergeRequest, MergeResult, StagedRows
from floodmark.spark.columns import column_of
from floodmark.spark.live_files import FILE_COLUMN, read_live_files
from floodmark.spark.transfer import (
    RESULT_SCHEMA,
    bring_to_driver,
    capture_error,
    decode_batches,
    encode_batch,
    result_row,
)

_MOST_SPLITS: Final = 32
"""The most splits of a job that several cells share; a single cell may have more."""

SplitToWrite = tuple[InputSplit, Destination]


@dataclass(slots=True, eq=False)
class _WaitingCell:
    splits: list[SplitToWrite]
    staged: StagedRows | None = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.staged is not None or self.error is not None


@dataclass(slots=True)
class CellJobs:
    """Runs the cells of many threads in at most `most` Spark jobs at a time."""

    spark: SparkSession
    most: int = 2
    tasks: int = field(init=False)
    """How many tasks run at the same time."""
    _waiting: list[_WaitingCell] = field(default_factory=list)
    _running: int = 0
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        """Find out how many tasks run at the same time."""
        self.tasks = _parallel_tasks(self.spark)

    def run(self, splits: Sequence[InputSplit], to: Destination) -> StagedRows:
        """Read the splits of a cell in tasks, and write their rows; block until all are written."""
        if not splits:
            return StagedRows()
        own = _WaitingCell([(split, to) for split in splits])
        with self._changed:
            self._waiting.append(own)
            self._changed.wait_for(lambda: own.is_done or (own in self._waiting and self._running < self.most))
            group = [] if own.is_done else self._take_group()
        if group:
            try:
                self._run_group(group)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
            if not own.is_done:
                return self.run(splits, to)
        if own.error is not None:
            raise own.error
        assert own.staged is not None
        return own.staged

    def _take_group(self) -> list[_WaitingCell]:
        """Remove from the queue the cells that have waited longest, as many as one job may have."""
        group = [self._waiting.pop(0)]
        tasks = len(group[0].splits)
        while self._waiting and tasks + len(self._waiting[0].splits) <= _MOST_SPLITS:
            group.append(self._waiting.pop(0))
            tasks += len(group[-1].splits)
        self._running += 1
        return group

    def _run_group(self, group: list[_WaitingCell]) -> None:
        try:
            _run_job(self.spark, self.tasks, group)
        except BaseException as error:
            if len(group) == 1:
                group[0].error = error
                return
            # One cell may have crashed a worker: run each alone, so that the others do not fail with it.
            for cell in group:
                self._run_group([cell])


def _run_job(spark: SparkSession, parallel_tasks: int, group: list[_WaitingCell]) -> None:
    splits = [split for cell in group for split in cell.splits]
    # A task has an overhead of about 20 ms, so there are no more tasks than can run at the same time.
    numbers = spark.range(0, len(splits), 1, min(len(splits), parallel_tasks))
    tasks = numbers.mapInArrow(partial(_write_splits, tuple(splits)), RESULT_SCHEMA)
    by_number: dict[int, tuple[StagedRows | None, Exception | None]] = {}
    for (result,) in tasks.collect():
        number, staged, error = pickle.loads(result)
        by_number[number] = staged, error
    first = 0
    for cell in group:
        results = [by_number[number] for number in range(first, first + len(cell.splits))]
        first += len(cell.splits)
        cell.error = next((error for _, error in results if error is not None), None)
        if cell.error is None:
            cell.staged, cell.error = capture_error(partial(unite_staged, [staged for staged, _ in results]))


def _parallel_tasks(spark: SparkSession) -> int:
    """Return how many tasks run at the same time; Spark Connect does not report it."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _MOST_SPLITS


def unite_staged(results: Iterable[StagedRows | None]) -> StagedRows:
    """Return the rows that several tasks have staged for one cell."""
    staged = [rows for rows in results if rows is not None]
    schemas = [rows.schema for rows in staged if rows.schema is not None]
    return StagedRows(tuple(file for rows in staged for file in rows.files), union_schema(schemas) if schemas else None)


def _write_splits(splits: Sequence[SplitToWrite], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            split, to = splits[number]
            staged, error = capture_error(partial(_write_split, split, to))
            yield result_row((number, staged, error))


def _write_split(split: InputSplit, to: Destination) -> StagedRows:
    # A random name, so that a retried task writes other files.
    return write_rows(split.read(), to, token_hex(8))


def write_frame(frame: DataFrame, to: Destination) -> StagedRows:
    """Write the rows of a DataFrame, one task per partition."""
    results = []
    for (result,) in frame.mapInArrow(partial(_write_rows, to), RESULT_SCHEMA).collect():
        staged, error = pickle.loads(result)
        if error is not None:
            raise error
        results.append(staged)
    return unite_staged(results)


def merge_rows(spark: SparkSession, merge: MergeRequest, to: Destination) -> MergeResult:
    """Write the newest row of each key."""
    assert to.schema is not None
    merged = compute_merge(spark, merge, to.schema)
    try:
        return MergeResult(write_frame(merged.rows, to), merged.gone)
    finally:
        merged.close()


def read_splits(spark: SparkSession, splits: Sequence[InputSplit]) -> Iterator[pa.RecordBatch]:
    """Return the rows of splits on the driver; tasks read them, and only a few batches are in memory at a time."""
    numbers = spark.range(0, len(splits), 1, len(splits))
    yield from _receive_batches(numbers.mapInArrow(partial(_send_splits, tuple(splits)), RESULT_SCHEMA))


def read_frame(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Return the rows of a DataFrame on the driver."""
    yield from _receive_batches(frame.mapInArrow(_send_batches, RESULT_SCHEMA))


def _receive_batches(results: DataFrame) -> Iterator[pa.RecordBatch]:
    for (result,) in bring_to_driver(results):
        block, error = pickle.loads(result)
        if error is not None:
            raise error
        yield from decode_batches(block)


def _write_rows(to: Destination, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield result_row(capture_error(lambda: write_rows(iter(batches), to, token_hex(8))))


def _send_splits(splits: Sequence[InputSplit], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _send_batches(splits[number].read())


def _send_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    remaining = iter(batches)
    while True:
        batch, error = capture_error(lambda: next(remaining, None))
        if batch is None and error is None:
            return
        yield result_row((None if batch is None else encode_batch(batch), error))
        if error is not None:
            return


_NEW_COLUMN: Final = "_floodmark_new"
_ORDER_COLUMN: Final = "_floodmark_place"


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The rows to write, and the live files that they replace."""

    rows: DataFrame
    gone: tuple[str, ...]
    cached: tuple[DataFrame, ...]
    """Frames that are cached until the rows are written."""

    def close(self) -> None:
        """Release the cached frames."""
        for frame in self.cached:
            frame.unpersist()


def compute_merge(spark: SparkSession, merge: MergeRequest, schema: pa.Schema) -> MergedRows:
    """Return the result of a merge. Of two equally new rows the one that was just read is kept."""
    keys, newest_by, live = merge.keys, merge.newest_by, merge.live
    best = _newest_per_key(read_live_files(spark, merge.new, schema), keys, newest_by)
    if not live:
        return MergedRows(best, (), ())
    best.persist()
    old = read_live_files(
        spark, live, schema, [*keys, newest_by] if newest_by not in keys else list(keys), with_file=True
    )
    new_times = best.select(*_columns_named(keys), column_of(newest_by).alias(_NEW_COLUMN))
    pairs = old.join(new_times, list(keys)).persist()
    new_wins = column_of(newest_by).isNull() | (F.col(_NEW_COLUMN) >= column_of(newest_by))
    new_wins = F.coalesce(new_wins, F.lit(False))
    gone = {file for (file,) in pairs.where(new_wins).select(FILE_COLUMN).distinct().collect()}
    rows = best.join(pairs.where(~new_wins).select(*_columns_named(keys)), list(keys), "left_anti")
    if gone:
        replaced = read_live_files(spark, [file for file in live if file.path in gone], schema)
        kept = replaced.join(pairs.where(new_wins).select(*_columns_named(keys)), list(keys), "left_anti")
        rows = rows.select(*_columns_named(schema.names)).unionAll(kept.select(*_columns_named(schema.names)))
    return MergedRows(rows, tuple(sorted(gone)), (best, pairs))


def _newest_per_key(rows: DataFrame, keys: tuple[str, ...], newest_by: str) -> DataFrame:
    """Return the newest row of each key; a null time is the oldest."""
    order = F.struct(column_of(newest_by), F.col(_ORDER_COLUMN))
    whole = F.max_by(F.struct(*_columns_named(rows.columns)), order)
    best = (
        rows.withColumn(_ORDER_COLUMN, F.monotonically_increasing_id())
        .groupBy(*_columns_named(keys))
        .agg(whole.alias(_NEW_COLUMN))
    )
    return best.select(*(F.col(_NEW_COLUMN).getField(name).alias(name) for name in rows.columns))


def _columns_named(names: Iterable[str]) -> list[Column]:
    return [column_of(name) for name in names]
