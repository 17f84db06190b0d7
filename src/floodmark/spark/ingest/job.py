"""Run an ingestion job on Spark: extract what is due, and land it."""

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
from floodmark.spark.ingest.files import read_files, reading_error
from floodmark.spark.ingest.tasks import CellJobs, merge_rows, read_frame, read_parts, write_frame
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
    """Read what a job has due, and land it in its table or stream; return what became of it.

    ```python
    import floodmark as fm

    result = fm.ingest_job("orders.toml", home="warehouse")
    print(result.succeeded, result.failed, result.rows)
    ```

    `job` is one, or its file. `workers` rows of the plan are extracted at once; a row that fails fails alone, stays
    due, and is told in `errors` of the result. Without `spark`, a session on this machine is started, or the one that
    is there is used. `on_row` is called with the run and what became of a row, as it is recorded.
    """
    found = job if isinstance(job, Job) else load_job(job).job
    check_runnable(found)
    whole = with_units(found)
    who = owner or f"{socket.gethostname()}:{os.getpid()}"
    spark = spark if spark is not None else SparkSession.getActiveSession() or session("floodmark-ingest")
    if isinstance(home, StreamHome):
        return _run_in_home(home, whole, spark, who, workers, on_row)
    with connect(home) as opened:
        return _run_in_home(opened, whole, spark, who, workers, on_row)


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
    """Extracts with Spark's tasks, and lands in a table or a stream. For one run; rows may come from many threads."""

    def __init__(
        self,
        home: StreamHome,
        job: Job,
        spark: SparkSession,
        *,
        workers: int,
        failpoint: Callable[[str], None] = lambda place: None,
    ) -> None:
        """Extract and land for a job. `workers` is how many rows are extracted at once."""
        assert isinstance(job.target, Landing)
        self._spark = spark
        self._jobs = CellJobs(spark)
        self._job = job
        self._source: SqlSource | FilesSource | RestSource = job.source
        self._zone = self._source.zone or job.zone
        self._share = min(workers, self._jobs.tasks)
        self._schema = _rest_schema(self._source)
        self._files: FileManifest | None = None
        self._refused: FloodmarkError | None = None
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
        """List files, once for the whole run; take over from earlier runs where it lands."""
        rows = run.plan.rows
        if isinstance(self._source, FilesSource):
            self._files = FileManifest.listed(self._source, self._job.zone, (row.unit for row in rows))
        if isinstance(self._source, SqlSource) and self._source.nulls == "read":
            # They are of no range: in each run, the last row of a unit reads them too.
            last = {row.unit.key: row.range for row in sorted(rows, key=lambda row: row.range)}
            self._with_nulls = frozenset(last.items())
        try:
            for landing in (self._table, self._stream):
                if landing is not None:
                    landing.prepare(run)
        except LeaseLost:
            raise
        except FloodmarkError as error:
            # Each cell fails by it, and stays due.
            self._refused = error

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract and land a row of the plan."""
        if self._refused is not None:
            raise self._refused
        if self._table is not None:
            return self._table.land(run, row)
        assert self._stream is not None
        with self._read(row) as batches:
            return self._stream.land(run, row, batches)

    def finish(self, run: Run) -> None:
        """Tell a stream how far its time has come."""
        if self._stream is not None and self._refused is None:
            self._stream.finish(run)

    def close(self) -> None:
        """Let go of the stream. The session is of whoever gave it."""
        if self._stream is not None:
            self._stream.close()

    def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
        """Read a row of the plan, and write it."""
        if isinstance(self._source, FilesSource):
            return self._extract_files(self._source, row, to)
        parts = self._parts(row)
        with self._connections.taken(len(parts)):
            return self._jobs.run(parts, to)

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
        """Write the rows of files anew that are not in a scope."""
        assert to.schema is not None
        return self._jobs.run([KeptRows(file, scope, to.schema) for file in files], to)

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        """Write the newest row of each key."""
        return merge_rows(self._spark, merge, to)

    def _extract_files(self, source: FilesSource, row: PlannedRange, to: Destination) -> StagedRows:
        assert self._files is not None
        files = self._files.of(row)
        frame = read_files(self._spark, source, files, row, self._job.zone)
        if frame is None:
            return StagedRows()
        try:
            staged = write_frame(frame, to)
        except Exception as error:  # what a task meets is no exception of PySpark's
            raise reading_error(error, source, files) from error
        require_unchanged(files)
        return staged if staged.schema is not None else StagedRows((), to_arrow_schema(frame.schema))

    def _parts(self, row: PlannedRange) -> Sequence[InputSplit]:
        if isinstance(self._source, SqlSource):
            with_nulls = (row.unit.key, row.range) in self._with_nulls
            return sql_splits(self._source, self._job.zone, row, with_nulls=with_nulls)
        assert isinstance(self._source, RestSource)
        return rest_splits(self._source, self._job.zone, row, share=self._share, schema=self._schema)

    @contextmanager
    def _read(self, row: PlannedRange) -> Iterator[Iterator[pa.RecordBatch]]:
        """Give the rows of a row of the plan, on the driver."""
        if not isinstance(self._source, FilesSource):
            parts = self._parts(row)
            with self._connections.taken(len(parts)):
                yield read_parts(self._spark, parts)
            return
        assert self._files is not None
        files = self._files.of(row)
        frame = read_files(self._spark, self._source, files, row, self._job.zone)
        yield iter(()) if frame is None else self._told(read_frame(frame), self._source, files)

    def _told(self, batches: Iterator[pa.RecordBatch], source: FilesSource, files: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            raise reading_error(error, source, files) from error
        require_unchanged(files)


class _Permits:
    """So many at once, over all threads; who needs more than there are takes all."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._changed = Condition()

    @contextmanager
    def taken(self, wanted: int) -> Iterator[None]:
        count = min(wanted, self._most)
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
        found = StructType.fromDDL(source.schema)
        assert isinstance(found, StructType)
        return to_arrow_schema(found)
    except PySparkException as error:
        raise InvalidOption(
            f"The schema of the source cannot be read: {str(error).splitlines()[0]}",
            rule="It is written as Spark writes schemas.",
            remedy="Write for example 'id BIGINT, at TIMESTAMP, note STRING'.",
            option="source.schema",
        ) from error
