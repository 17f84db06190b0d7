"""Run an ingestion job on Spark: extract the ranges that are due, and land them."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Condition
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from floodmark.errors import FloodmarkError, InvalidOption, LeaseLost
from floodmark.ingest import (
    FilesSource,
    Ingestion,
    Job,
    Landing,
    LandingResult,
    PlannedRange,
    Range,
    RangeOutcome,
    RestSource,
    Run,
    RunResult,
    SqlSource,
    load_job,
    run_job,
    with_units,
)
from floodmark.ingest.extract import InputSplit
from floodmark.ingest.extract.files import FileManifest, require_unchanged
from floodmark.ingest.extract.rest.split import rest_splits
from floodmark.ingest.extract.sql.split import sql_splits
from floodmark.ingest.ingestion import check_runnable
from floodmark.ingest.landing.parquet import KeptRows
from floodmark.ingest.landing.stream import StreamLanding
from floodmark.ingest.landing.table import TableLanding
from floodmark.ingest.landing.tasks import Destination, LiveFile, MergeRequest, MergeResult, Scope, StagedRows
from floodmark.spark.executors import Needs, require_executors
from floodmark.spark.ingest.files import read_files, reading_error
from floodmark.spark.ingest.tasks import CellJobs, merge_rows, read_frame, read_splits, write_frame
from floodmark.spark.sessions import session
from floodmark.streams import StreamHome, connect


def ingest_job(
    job: Job | str | Path,
    *,
    home: str | Path | StreamHome | None = None,
    spark: SparkSession | None = None,
    workers: int = 8,
    owner: str | None = None,
    on_row: Callable[[Run, RangeOutcome], None] | None = None,
) -> RunResult:
    """Run an ingestion job once: read the ranges that are due, and land them in its table or stream.

    ```python
    import floodmark as fm

    result = fm.ingest_job("orders.toml", home="warehouse")
    print(result.succeeded, result.failed, result.rows)
    ```

    A range that fails does not stop the others: it stays due for the next run, and its error is in the result.

    Args:
        job: The job, or the path of its file.
        home: The home of the job: a directory, a PostgreSQL URL or an open home; by default `.floodmark`.
        spark: The session; by default the active one, or a new one on this machine.
        workers: How many ranges of the plan are extracted at the same time.
        owner: The name of this process in the home; by default the host and the process id.
        on_row: Called with the run and the outcome of each range, after it is recorded.

    Returns:
        The numbers of succeeded and failed ranges and of rows, and the errors.

    Raises:
        FloodmarkError: The job is invalid, or another run of it is active.
    """
    parsed = job if isinstance(job, Job) else load_job(job).job
    check_runnable(parsed)
    complete = with_units(parsed)
    run_owner = owner or f"{socket.gethostname()}:{os.getpid()}"
    spark = spark if spark is not None else SparkSession.getActiveSession() or session("floodmark-ingest")
    require_executors(spark, Needs())
    if isinstance(home, StreamHome):
        return _run_in_home(home, complete, spark, run_owner, workers, on_row)
    with connect(home) as opened:
        return _run_in_home(opened, complete, spark, run_owner, workers, on_row)


def _run_in_home(
    home: StreamHome,
    job: Job,
    spark: SparkSession,
    owner: str,
    workers: int,
    on_row: Callable[[Run, RangeOutcome], None] | None,
) -> RunResult:
    with closing(SparkExecutor(home, job, spark, workers=workers)) as executor:
        return run_job(Ingestion(home.home), job, executor, owner=owner, workers=workers, on_row=on_row)


class SparkExecutor:
    """Extracts ranges with Spark's tasks, and lands them in a table or a stream, for one run. It is thread-safe."""

    def __init__(
        self,
        home: StreamHome,
        job: Job,
        spark: SparkSession,
        *,
        workers: int,
        failpoint: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Extract and land the ranges of a job; `workers` is how many are extracted at the same time."""
        assert isinstance(job.target, Landing)
        self._spark = spark
        self._jobs = CellJobs(spark)
        self._job = job
        self._source: SqlSource | FilesSource | RestSource = job.source
        self._zone = self._source.zone or job.zone
        self._concurrency = min(workers, self._jobs.tasks)
        self._schema = _rest_schema(self._source)
        self._files: FileManifest | None = None
        self._landing_error: FloodmarkError | None = None
        self._with_nulls: frozenset[tuple[str, Range]] = frozenset()
        self._connections = _Permits(self._source.connections if isinstance(self._source, SqlSource) else workers)
        columns = self._source.units if isinstance(self._source, SqlSource) else {}
        self._table: TableLanding | None = None
        self._stream: StreamLanding | None = None
        if job.target.kind == "delta":
            self._table = TableLanding(home.home, job, self, unit_columns=columns, zone=self._zone, failpoint=failpoint)
        else:
            self._stream = StreamLanding(home, job, failpoint=failpoint)

    def prepare(self, run: Run) -> None:
        """List files once for the whole run, and fence earlier runs at the target."""
        rows = run.plan.rows
        if isinstance(self._source, FilesSource):
            self._files = FileManifest.listed(self._source, self._job.zone, (row.unit for row in rows))
        if isinstance(self._source, SqlSource) and self._source.nulls == "read":
            # Rows without a time belong to no range: in each run the last range of a unit reads them.
            last = {row.unit.key: row.range for row in sorted(rows, key=lambda row: row.range)}
            self._with_nulls = frozenset(last.items())
        try:
            for landing in (self._table, self._stream):
                if landing is not None:
                    landing.prepare(run)
        except LeaseLost:
            raise
        except FloodmarkError as error:
            # Every cell fails with it, and stays due.
            self._landing_error = error

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract and land a planned range."""
        if self._landing_error is not None:
            raise self._landing_error
        if self._table is not None:
            return self._table.land(run, row)
        assert self._stream is not None
        with self._read(row) as batches:
            return self._stream.land(run, row, batches)

    def finish(self, run: Run) -> None:
        """State the watermark of the run in a stream."""
        if self._stream is not None and self._landing_error is None:
            self._stream.finish(run)

    def close(self) -> None:
        """Close the stream. The session stays open: it belongs to the caller."""
        if self._stream is not None:
            self._stream.close()

    def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
        """Read a planned range, and write its rows."""
        if isinstance(self._source, FilesSource):
            return self._extract_files(self._source, row, to)
        splits = self._splits(row)
        with self._connections.acquire(len(splits)):
            return self._jobs.run(splits, to)

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
        """Write the rows of files again that are outside a scope."""
        assert to.schema is not None
        return self._jobs.run([KeptRows(file, scope, to.schema) for file in files], to)

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        """Write the newest row of each key."""
        return merge_rows(self._spark, merge, to)

    def _extract_files(self, source: FilesSource, row: PlannedRange, to: Destination) -> StagedRows:
        assert self._files is not None
        files = self._files.files_of(row)
        frame = read_files(self._spark, source, files, row, self._job.zone)
        if frame is None:
            return StagedRows()
        try:
            staged = write_frame(frame, to)
        except Exception as error:  # errors of tasks are not always PySparkException
            raise reading_error(error, source, files) from error
        require_unchanged(files)
        return staged if staged.schema is not None else StagedRows((), to_arrow_schema(frame.schema))

    def _splits(self, row: PlannedRange) -> Sequence[InputSplit]:
        if isinstance(self._source, SqlSource):
            with_nulls = (row.unit.key, row.range) in self._with_nulls
            return sql_splits(self._source, self._job.zone, row, with_nulls=with_nulls)
        assert isinstance(self._source, RestSource)
        return rest_splits(self._source, self._job.zone, row, concurrency=self._concurrency, schema=self._schema)

    @contextmanager
    def _read(self, row: PlannedRange) -> Iterator[Iterator[pa.RecordBatch]]:
        """Return the rows of a planned range, on the driver."""
        if not isinstance(self._source, FilesSource):
            splits = self._splits(row)
            with self._connections.acquire(len(splits)):
                yield read_splits(self._spark, splits)
            return
        assert self._files is not None
        files = self._files.files_of(row)
        frame = read_files(self._spark, self._source, files, row, self._job.zone)
        yield iter(()) if frame is None else self._checked(read_frame(frame), self._source, files)

    def _checked(self, batches: Iterator[pa.RecordBatch], source: FilesSource, files: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raise reading_error(error, source, files) from error
        require_unchanged(files)


class _Permits:
    """A semaphore of which a thread takes several permits at once; a thread that needs more than all takes all."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = Condition()

    @contextmanager
    def acquire(self, needed: int) -> Iterator[None]:
        count = min(needed, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


def _rest_schema(source: Any) -> pa.Schema | None:
    if not isinstance(source, RestSource) or source.schema is None:
        return None
    try:
        schema = StructType.fromDDL(source.schema)
        assert isinstance(schema, StructType)
        return to_arrow_schema(schema)
    except PySparkException as error:
        raise InvalidOption(
            f"The schema of the source cannot be parsed: {str(error).splitlines()[0]}",
            rule="It must be a Spark DDL schema.",
            remedy="Write for example 'id BIGINT, at TIMESTAMP, note STRING'.",
            option="source.schema",
        ) from error
