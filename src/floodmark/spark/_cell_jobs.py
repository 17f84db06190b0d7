"""Parts of cells as tasks of Spark's jobs: cells that wait at the same time share one job.

A job costs Spark some 90 ms whatever is in it, and a small cell hardly more than a query.
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
from pyspark.sql import SparkSession

from floodmark.extract import Part
from floodmark.landing import Destination, Staged, united, written
from floodmark.spark._task_results import RESULT, packed_result, tried

_MOST_PARTS: Final = 32
"""Of a job that cells share; one cell may have more."""

Piece = tuple[Part, Destination]


@dataclass(slots=True, eq=False)
class _Cell:
    pieces: list[Piece]
    staged: Staged | None = None
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
    _waiting: list[_Cell] = field(default_factory=list)
    _running: int = 0
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        """Look how many tasks run at once."""
        self.tasks = _tasks_at_once(self.spark)

    def run(self, parts: Sequence[Part], to: Destination) -> Staged:
        """Read parts, each in a task, and write their rows; return when all is written, or raise what went wrong."""
        if not parts:
            return Staged()
        mine = _Cell([(part, to) for part in parts])
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

    def _group(self) -> list[_Cell]:
        """Take those that have waited longest."""
        group = [self._waiting.pop(0)]
        tasks = len(group[0].pieces)
        while self._waiting and tasks + len(self._waiting[0].pieces) <= _MOST_PARTS:
            group.append(self._waiting.pop(0))
            tasks += len(group[-1].pieces)
        self._running += 1
        return group

    def _run(self, group: list[_Cell]) -> None:
        try:
            _run_job(self.spark, self.tasks, group)
        except BaseException as error:
            if len(group) == 1:
                group[0].error = error
                return
            # One of them may have brought down a worker: the others are not to blame.
            for cell in group:
                self._run([cell])


def _run_job(spark: SparkSession, at_once: int, group: list[_Cell]) -> None:
    pieces = [piece for cell in group for piece in cell.pieces]
    # A task costs some 20 ms as well, so there are no more than can run at once.
    numbers = spark.range(0, len(pieces), 1, min(len(pieces), at_once))
    tasks = numbers.mapInArrow(partial(_write, tuple(pieces)), RESULT)
    found: dict[int, tuple[Staged | None, Exception | None]] = {}
    for (result,) in tasks.collect():
        number, staged, error = pickle.loads(result)
        found[number] = staged, error
    first = 0
    for cell in group:
        results = [found[number] for number in range(first, first + len(cell.pieces))]
        first += len(cell.pieces)
        cell.error = next((error for _, error in results if error is not None), None)
        if cell.error is None:
            cell.staged, cell.error = tried(partial(together, [staged for staged, _ in results]))


def _tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks run at the same time, as far as it is known: behind Spark Connect it is not."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _MOST_PARTS


def together(written: Iterable[Staged | None]) -> Staged:
    """Return what several tasks have written for one cell."""
    done = [one for one in written if one is not None]
    schemas = [one.schema for one in done if one.schema is not None]
    return Staged(tuple(file for one in done for file in one.files), united(schemas) if schemas else None)


def _write(pieces: Sequence[Piece], numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            part, to = pieces[number]
            staged, error = tried(partial(_written, part, to))
            yield packed_result((number, staged, error))


def _written(part: Part, to: Destination) -> Staged:
    # A task that is tried again writes other files.
    return written(part.read(), to, token_hex(8))
