"""Cells as tasks of Spark's jobs: reading parts, writing rows, merging rows by key.

Cells that wait at the same time share one job: a job costs Spark some 90 ms whatever is in it, and a small cell
hardly more than a query. When rows are merged, the newest row of each key stays, be it in the table already or
just read.
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

_MOST_PARTS: Final = 32
"""Of a job that cells share; one cell may have more."""

PartToWrite = tuple[InputSplit, Destination]


@dataclass(slots=True, eq=False)
class _WaitingCell:
    pieces: list[PartToWrite]
    staged: StagedRows | None = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.staged is not None or self.error is not None


@dataclass(slots=True)
class CellJobs:
    """Runs what many threads ask for, in a few jobs at a time."""

    spark: SparkSession
    most: int = 2
    tasks: int = field(init=False)
    """How many run at the same time, as far as it is known."""
    _waiting: list[_WaitingCell] = field(default_factory=list)
    _running: int = 0
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        """Look how many tasks run at once."""
        self.tasks = _tasks_at_once(self.spark)

    def run(self, parts: Sequence[InputSplit], to: Destination) -> StagedRows:
        """Read parts, each in a task, and write their rows; return when all is written, or raise what went wrong."""
        if not parts:
            return StagedRows()
        mine = _WaitingCell([(part, to) for part in parts])
        with self._changed:
            self._waiting.append(mine)
            self._changed.wait_for(lambda: mine.is_done or (mine in self._waiting and self._running < self.most))
            group = [] if mine.is_done else self._group()
        if group:
            try:
                self._run(group)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
            if not mine.is_done:
                return self.run(parts, to)
        if mine.error is not None:
            raise mine.error
        assert mine.staged is not None
        return mine.staged

    def _group(self) -> list[_WaitingCell]:
        """Take those that have waited longest."""
        group = [self._waiting.pop(0)]
        tasks = len(group[0].pieces)
        while self._waiting and tasks + len(self._waiting[0].pieces) <= _MOST_PARTS:
            group.append(self._waiting.pop(0))
            tasks += len(group[-1].pieces)
        self._running += 1
        return group

    def _run(self, group: list[_WaitingCell]) -> None:
        try:
            _run_job(self.spark, self.tasks, group)
        except BaseException as error:
            if len(group) == 1:
                group[0].error = error
                return
            # One of them may have brought down a worker: the others are not to blame.
            for cell in group:
                self._run([cell])


def _run_job(spark: SparkSession, at_once: int, group: list[_WaitingCell]) -> None:
    pieces = [piece for cell in group for piece in cell.pieces]
    # A task costs some 20 ms as well, so there are no more than can run at once.
    numbers = spark.range(0, len(pieces), 1, min(len(pieces), at_once))
    tasks = numbers.mapInArrow(partial(_write_parts, tuple(pieces)), RESULT_SCHEMA)
    found: dict[int, tuple[StagedRows | None, Exception | None]] = {}
    for (result,) in tasks.collect():
        number, staged, error = pickle.loads(result)
        found[number] = staged, error
    first = 0
    for cell in group:
        results = [found[number] for number in range(first, first + len(cell.pieces))]
        first += len(cell.pieces)
        cell.error = next((error for _, error in results if error is not None), None)
        if cell.error is None:
            cell.staged, cell.error = capture_error(partial(unite_staged, [staged for staged, _ in results]))


def _tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks run at the same time, as far as it is known: behind Spark Connect it is not."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _MOST_PARTS


def unite_staged(written: Iterable[StagedRows | None]) -> StagedRows:
    """Return what several tasks have written for one cell."""
    done = [one for one in written if one is not None]
    schemas = [one.schema for one in done if one.schema is not None]
    return StagedRows(tuple(file for one in done for file in one.files), union_schema(schemas) if schemas else None)


def _write_parts(pieces: Sequence[PartToWrite], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            part, to = pieces[number]
            staged, error = capture_error(partial(_write_part, part, to))
            yield result_row((number, staged, error))


def _write_part(part: InputSplit, to: Destination) -> StagedRows:
    # A task that is tried again writes other files.
    return write_rows(part.read(), to, token_hex(8))


def write_frame(frame: DataFrame, to: Destination) -> StagedRows:
    """Write the rows of a DataFrame, each partition in a task."""
    done = []
    for (result,) in frame.mapInArrow(partial(_write_rows, to), RESULT_SCHEMA).collect():
        staged, error = pickle.loads(result)
        if error is not None:
            raise error
        done.append(staged)
    return unite_staged(done)


def merge_rows(spark: SparkSession, merge: MergeRequest, to: Destination) -> MergeResult:
    """Write the newest row of each key."""
    assert to.schema is not None
    found = compute_merge(spark, merge, to.schema)
    try:
        return MergeResult(write_frame(found.rows, to), found.gone)
    finally:
        found.over()


def read_parts(spark: SparkSession, parts: Sequence[InputSplit]) -> Iterator[pa.RecordBatch]:
    """Give the rows of parts on the driver; tasks read them, and a few batches are under way at a time."""
    numbers = spark.range(0, len(parts), 1, len(parts))
    yield from _receive_batches(numbers.mapInArrow(partial(_send_parts, tuple(parts)), RESULT_SCHEMA))


def read_frame(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Give the rows of a DataFrame on the driver."""
    yield from _receive_batches(frame.mapInArrow(_send_batches, RESULT_SCHEMA))


def _receive_batches(cells: DataFrame) -> Iterator[pa.RecordBatch]:
    for (result,) in bring_to_driver(cells):
        found, error = pickle.loads(result)
        if error is not None:
            raise error
        yield from decode_batches(found)


def _write_rows(to: Destination, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield result_row(capture_error(lambda: write_rows(iter(batches), to, token_hex(8))))


def _send_parts(parts: Sequence[InputSplit], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _send_batches(parts[number].read())


def _send_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rest = iter(batches)
    while True:
        found, error = capture_error(lambda: next(rest, None))
        if found is None and error is None:
            return
        yield result_row((None if found is None else encode_batch(found), error))
        if error is not None:
            return


_NEW_COLUMN: Final = "_floodmark_new"
_ORDER_COLUMN: Final = "_floodmark_place"


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The rows that are to be written, and the live files that give way for them."""

    rows: DataFrame
    gone: tuple[str, ...]
    kept: tuple[DataFrame, ...]
    """What Spark keeps until the rows are written."""

    def over(self) -> None:
        """Let Spark forget what it keeps."""
        for frame in self.kept:
            frame.unpersist()


def compute_merge(spark: SparkSession, merge: MergeRequest, schema: pa.Schema) -> MergedRows:
    """Return what merging comes to. Of two rows that are equally new the one that was just read stays."""
    keys, newest_by, live = merge.keys, merge.newest_by, merge.live
    best = _newest_per_key(read_live_files(spark, merge.new, schema), keys, newest_by)
    if not live:
        return MergedRows(best, (), ())
    best.persist()
    old = read_live_files(
        spark, live, schema, [*keys, newest_by] if newest_by not in keys else list(keys), with_file=True
    )
    meets = old.join(best.select(*_columns_named(keys), column_of(newest_by).alias(_NEW_COLUMN)), list(keys)).persist()
    wins = column_of(newest_by).isNull() | (F.col(_NEW_COLUMN) >= column_of(newest_by))
    wins = F.coalesce(wins, F.lit(False))
    gone = {file for (file,) in meets.where(wins).select(FILE_COLUMN).distinct().collect()}
    rows = best.join(meets.where(~wins).select(*_columns_named(keys)), list(keys), "left_anti")
    if gone:
        left = read_live_files(spark, [one for one in live if one.path in gone], schema)
        stays = left.join(meets.where(wins).select(*_columns_named(keys)), list(keys), "left_anti")
        rows = rows.select(*_columns_named(schema.names)).unionAll(stays.select(*_columns_named(schema.names)))
    return MergedRows(rows, tuple(sorted(gone)), (best, meets))


def _newest_per_key(rows: DataFrame, keys: tuple[str, ...], newest_by: str) -> DataFrame:
    """Return one row of each key, the newest; NULL is older than anything."""
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
