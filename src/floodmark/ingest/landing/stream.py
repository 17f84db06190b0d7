"""A stream as the target of a job: the commit of a cell's rows and the record of the cell are one transaction.

The rows of a cell are first written to an open transaction of the stream, where readers do not see them. One
transaction of the store then decides the commit, records the cell as read, and checks that this run still owns the job.
A crash before it leaves nothing behind. After it the commit completes whatever crashes: in this process, in any
controller of the home, or at the start of the next run. No repair is needed and no row can be landed twice. This holds
for SQLite and PostgreSQL, and for events stored in the home or in Kafka.

The job's mark is written once per run, after all its cells are recorded, at the time before which every unit is
complete and nothing will be read again. A failed cell holds the mark back, however much was read beyond it. The mark
never goes back: after a unit is added, a range is edited to not read, or the start is moved back, the watermark stays
until the job passes it again, and rows from before it are late. A job that appends refuses to write late rows; a job
that merges writes them, since a newer row replaces an older one of the same key at any time.

The job's writer is not closed at the end of a run, because the next run continues it. Meanwhile the stream waits for it
as for any other writer, for at most the stream's `writer_timeout`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any, Final

from floodmark._util.times import Duration, micros_in_unit
from floodmark.errors import (
    FloodmarkError,
    RangeLate,
    StreamExists,
    StreamSealed,
    StreamUnfit,
    TransactionNotOpen,
    WriterSuperseded,
)
from floodmark.ingest.ingestion import Ingestion
from floodmark.ingest.job.job import Job
from floodmark.ingest.landing.stream_rows import StreamRequirements, StreamRowFitter, newest_rows, row_keys
from floodmark.ingest.planning.coverage import final_through
from floodmark.ingest.planning.plan import PlannedRange
from floodmark.ingest.run import LandingResult, Run
from floodmark.streams import Stream, StreamHome, Transaction, TransactionalWriter, TransactionState
from floodmark.streams.definition import check_not_sealed
from floodmark.streams.local.transactions import CommitMarks
from floodmark.streams.local.watermarks import read_inputs
from floodmark.streams.marks.watermark import Wait, WaitReason
from floodmark.streams.ports import REASON_OPENED_AGAIN

PREPARED: Final = "prepared"
SOME_ROWS_WRITTEN: Final = "some rows written"
ROWS_WRITTEN: Final = "rows written"
DECIDED: Final = "decided"
LANDED: Final = "landed"
BEFORE_TIME: Final = "before time"
TIME_DECIDED: Final = "time decided"
FAILPOINTS: Final = (PREPARED, SOME_ROWS_WRITTEN, ROWS_WRITTEN, DECIDED, LANDED, BEFORE_TIME, TIME_DECIDED)
"""The points at which a test can kill the process."""

_FLUSH_BYTES: Final = 16 * 2**20
"""Rows are flushed from memory to the open transaction after this many bytes."""

_WATERMARK_WAIT_SECONDS: Final = 2.0
"""How long the end of a run waits for the controller to write the new watermark."""


@dataclass(slots=True)
class _OpenStream:
    """A stream with the writer that this run writes as."""

    stream: Stream
    writer: TransactionalWriter
    key: str
    unit: str
    mark: int | None
    """The time of the job's last mark, in the unit of the stream."""


class StreamLanding:
    """Lands the rows of a job in a stream, as a writer named after the job.

    A missing stream is created with the columns of the first rows that land. It is not created for a job that has read
    ranges before, because the stream would lack those rows.

    >>> import pyarrow as pa
    >>> times = TimeWatermark("at", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at")
    >>> job = Job("orders", "UTC", times, source=source, target=Landing("append", stream="shop/orders"))
    >>> with connect(clock=lambda: Bound.parse("2020-01-02", "UTC").at) as home:
    ...     landing = StreamLanding(home, job)
    ...     with Ingestion(home.home).start(job, owner="here") as run:
    ...         landing.prepare(run)
    ...         for row in run.plan.rows:
    ...             rows = pa.record_batch({"id": [1], "at": pa.array([row.range.lo], pa.timestamp("us"))})
    ...             run.succeeded(row, rows=landing.land(run, row, iter([rows])).rows)
    ...         landing.finish(run)
    ...     home.stream("shop/orders").tail()
    {0: 1}
    """

    def __init__(
        self,
        home: StreamHome,
        job: Job,
        *,
        segments: int = 1,
        timeout: Duration = "1 hour",
        failpoint: Callable[[str], None] = lambda place: None,
    ) -> None:
        """Prepare to land the rows of a job in a stream of this home. Nothing is written before `prepare`.

        Args:
            home: The home of the stream and of the job.
            job: A job whose target is a stream.
            segments: How many segments a stream created here gets.
            timeout: How long a cell may take from its first row to its last.
            failpoint: Called with each of FAILPOINTS as it is reached; for tests.
        """
        self._home = home
        self._backend = home.local
        self._job = job
        self._requirements = StreamRequirements.of(job)
        self._segments = segments
        self._timeout = timeout
        self._failpoint = failpoint
        self._lock = Lock()
        self._target: _OpenStream | None = None
        self._may_create = False

    @property
    def writer_id(self) -> str:
        """The id of the job's writer. The slash keeps it apart from sinks, whose names have none."""
        return f"ingest/{self._job.name}"

    def prepare(self, run: Run) -> None:
        """Take over the job's writer: abort what an earlier run left open, complete the commits it had decided."""
        with self._lock:
            self._target = None
            stream = self._requirements.find(self._home)
            if stream is None:
                coverage = Ingestion(self._home.home).coverage(self._job.name)
                self._may_create = not any(unit.everything for unit in coverage.values())
            else:
                self._open(run, stream)
        self._failpoint(PREPARED)

    def land(self, run: Run, row: PlannedRange, batches: Iterable[Any]) -> LandingResult:
        """Commit all rows of a cell to the stream and record the cell as read, or do neither.

        The batches are Arrow record batches of one schema. Several threads may land different cells.
        """
        transaction: Transaction | None = None
        count = unflushed = 0
        try:
            for target, batch in self._fitted_batches(run, row, batches):
                if not batch.num_rows:
                    continue
                if transaction is None:
                    transaction = target.writer.begin(self._timeout)
                transaction.write_batch(batch, key=row_keys(batch, self._requirements))
                count += batch.num_rows
                unflushed += batch.nbytes
                if unflushed >= _FLUSH_BYTES:
                    transaction.flush()
                    unflushed = 0
                self._failpoint(SOME_ROWS_WRITTEN)
            if transaction is None:
                return LandingResult(0)
            transaction.flush()
            self._failpoint(ROWS_WRITTEN)
            self._decide_commit(run, row, target.stream, transaction, count)
        except BaseException as error:
            self._abort(transaction, error)
            raise
        self._failpoint(DECIDED)
        self._complete_commit(run, row, transaction)
        self._failpoint(LANDED)
        return LandingResult(count)

    def finish(self, run: Run) -> None:
        """Write the job's mark, if its time has advanced, and wait briefly for the stream's watermark."""
        with self._lock:
            target = self._target
            if target is None:
                return
            now = run.plan.now
            through = final_through(self._job, Ingestion(self._home.home).coverage(self._job.name), now)
            mark = None if through is None else micros_in_unit(target.unit, through)
            if mark is None or (target.mark is not None and mark <= target.mark):
                return
            try:
                self._write_mark(run, target, mark)
            except WriterSuperseded:
                # Usually a newer run has taken over the job; then this check raises the error that says so.
                self._check_owns_job(run)
                raise
            target.mark = mark
        self._await_watermark(target)

    def close(self) -> None:
        """Release the stream. The writer stays open for the next run of the job."""
        with self._lock:
            self._target = None

    def _fitted_batches(self, run: Run, row: PlannedRange, batches: Iterable[Any]) -> Iterator[tuple[_OpenStream, Any]]:
        """Yield the rows with the columns of the stream. A missing stream is created from the first batch's schema."""
        rest = iter(batches)
        first = next(rest, None)
        if first is None:
            return
        target = self._open_or_create(run, first.schema)
        self._check_on_time(target, row)
        fit = StreamRowFitter(self._requirements, target.stream.settings.schema, row.unit)
        fitted = (fit(batch) for batch in chain([first], rest))
        for batch in newest_rows(fitted, self._requirements) if self._requirements.keys else fitted:
            yield target, batch

    def _open_or_create(self, run: Run, schema: Any) -> _OpenStream:
        with self._lock:
            if self._target is None:
                stream = self._requirements.find(self._home)
                self._open(run, self._create_stream(schema) if stream is None else stream)
            assert self._target is not None
            return self._target

    def _create_stream(self, schema: Any) -> Stream:
        name = self._requirements.name
        if not self._may_create:
            raise StreamUnfit(
                f"There is no stream {name!r}, and the job {self._job.name!r} has read ranges already.",
                rule="A job creates its stream only before it has read anything: the stream would lack earlier rows.",
                remedy="Record the ranges as not read with `floodmark ingest edit --missing` to read them again, or "
                "create the stream with create_stream() to go on without them.",
                stream=name,
                job=self._job.name,
            )
        try:
            return self._requirements.create(self._home, schema, self._segments)
        except StreamExists:
            # Another process created it at the same time.
            stream = self._requirements.find(self._home)
            if stream is None:
                raise
            return stream

    def _open(self, run: Run, stream: Stream) -> None:
        check_not_sealed(stream.info)
        # Opening the writer supersedes its other instances: an overtaken run must not do that to the newer run.
        self._check_owns_job(run)
        writer = stream.transactional_writer(self.writer_id)
        info = stream.info
        key = info.settings.keys[0]
        (inputs,) = read_inputs(self._home.home, self._backend.catalog, [(info.id, key)])
        mark = next((record.time for record in inputs.records if record.writer == self.writer_id), None)
        target = _OpenStream(stream, writer, key, info.settings.unit, mark)
        self._wait_for_commits(target)
        self._target = target

    def _check_owns_job(self, run: Run) -> None:
        with self._home.home.write() as connection:
            run.check(connection)

    def _write_mark(self, run: Run, target: _OpenStream, time: int) -> None:
        self._wait_for_commits(target)
        self._failpoint(BEFORE_TIME)
        transaction = target.writer.begin()
        # The tail lies behind everything this job has written.
        marks = CommitMarks({target.key: time}, target.stream.tail())
        self._backend.transactions.decide(target.stream.info, transaction.id, marks, run.check)
        self._failpoint(TIME_DECIDED)
        transaction.result()

    def _wait_for_commits(self, target: _OpenStream) -> None:
        """Wait for all decided commits: a writer's commits complete in order, so an empty one completes last."""
        target.writer.begin().commit()

    def _check_on_time(self, target: _OpenStream, row: PlannedRange) -> None:
        is_late = target.mark is not None and micros_in_unit(target.unit, row.range.lo) < target.mark
        if self._requirements.keys or not is_late:
            return
        shown = self._job.shown
        raise RangeLate(
            f"The rows from {shown(row.range.lo)} to {shown(row.range.hi)} are late: the watermark of the stream "
            f"{self._requirements.name!r} has passed them.",
            rule="A job that appends writes no row behind the watermark: readers have closed their windows already.",
            remedy='Write mode = "merge" with keys in [target], or land in another stream; or skip the range with '
            "`floodmark ingest edit --covered`.",
            stream=self._requirements.name,
            job=self._job.name,
            lo=row.range.lo,
            hi=row.range.hi,
        )

    def _decide_commit(self, run: Run, row: PlannedRange, stream: Stream, transaction: Transaction, rows: int) -> None:
        """Decide the commit and record the cell in one transaction of the store, or raise and do neither."""
        info = stream.info
        try:
            self._backend.transactions.decide(
                info,
                transaction.id,
                CommitMarks({}),
                lambda connection: run.adopt(row.unit, row.range, rows=rows, reason=row.reason, connection=connection),
            )
        except Exception:
            # The store may have committed and only its reply been lost.
            with suppress(FloodmarkError):
                state = transaction.state
                if state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                    return
            raise

    def _complete_commit(self, run: Run, row: PlannedRange, transaction: Transaction) -> None:
        """Complete the decided commit. Only a sealed stream can still refuse it; other errors do not fail the cell."""
        try:
            transaction.result()
        except (StreamSealed, TransactionNotOpen):
            run.disown(row.unit, row.range)
            raise
        except Exception:
            # A controller completes the commit, or the next call of `_wait_for_commits`.
            return

    def _abort(self, transaction: Transaction | None, error: BaseException) -> None:
        reason = error.fields["reason"] if isinstance(error, TransactionNotOpen) else None
        if isinstance(error, WriterSuperseded) or reason == REASON_OPENED_AGAIN:
            with self._lock:
                # If this run still owns the job, it opens the writer again for its next cell.
                self._target = None
        if transaction is not None:
            # If the abort fails, the next run or the transaction's timeout aborts it.
            with suppress(FloodmarkError):
                transaction.abort()

    def _await_watermark(self, target: _OpenStream) -> None:
        """Wait until this process's controller has written the watermark, since the process may exit afterwards."""
        deadline = time.monotonic() + _WATERMARK_WAIT_SECONDS
        while self._home.controller is not None and time.monotonic() < deadline:
            inputs = read_inputs(self._home.home, self._backend.catalog, [(target.stream.info.id, target.key)])
            decision = inputs[0].decide(self._home.home.now()) if inputs else None
            if decision is None or (isinstance(decision, Wait) and decision.reason is not WaitReason.RATE_FLOOR):
                return
            time.sleep(0.005)
