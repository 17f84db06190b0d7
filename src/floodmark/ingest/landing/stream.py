"""A stream as the target of a job: rows and the record that they were read are decided in one transaction.

The rows of a cell wait in a transaction of the stream, where nobody sees them. Then one transaction of the store lets
it be committed, records the cell as read, and looks whether this is still the run that has the job. Before it nothing
has happened; after it the rows come into the stream whoever dies: this process commits them, or any controller of the
home, or the next run before it does anything else. So there is nothing to repair after a crash, and nothing that could
be there twice. So it is with SQLite and with PostgreSQL, and whether the events are in the home or in Kafka.

Time is told once a run, when all its rows are recorded: up to where nothing is missing, of any unit, and nothing will
be read again. A failed cell holds it, however much was read beyond. It never goes back: if a unit is added, a range is
given up by an edit, or the start is moved back, the watermark stays where it is until the job is beyond it again, and
what comes from before is late. A job that appends does not write what would be late; one that merges does, since newer
rows of a key take the place of older ones whenever they come.

The writer of a job is not closed at the end of a run, since the next one goes on: it falls silent. Beside other writers
of the stream it is waited for as any, for the stream's `writer_timeout`.
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
from floodmark.ingest.landing.stream_rows import (
    StreamRequirements,
    StreamRowFitter,
    final_through,
    newest_rows,
    row_keys,
)
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
"""Where a process may be when it dies."""

_FLUSH_BYTES: Final = 16 * 2**20
"""After so many bytes rows leave this process, and wait in the home."""

_PATIENCE_SECONDS: Final = 2.0
"""How long the end of a run waits for the watermark to come out."""


@dataclass(slots=True)
class _OpenStream:
    """A stream that this run may write to, and as whom."""

    stream: Stream
    writer: TransactionalWriter
    key: str
    unit: str
    noted: int | None
    """The time that the job has told, in the unit of the stream."""


class StreamLanding:
    """Lands the rows of a job in a stream, as the writer that is called after the job.

    A stream that is missing is made from the first rows that land, unless the job has read something before: then what
    it has read is not in it.

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
        """Land what a job has read in a stream of this home; nothing is done before `prepare`.

        `segments` is how many a stream gets that is made here; `timeout` is how long a cell may take from its first row
        to its last.
        """
        self._home = home
        self._backend = home.local
        self._job = job
        self._form = StreamRequirements.of(job)
        self._segments = segments
        self._timeout = timeout
        self._failpoint = failpoint
        self._lock = Lock()
        self._taken: _OpenStream | None = None
        self._may_make = False

    @property
    def writer_id(self) -> str:
        """The id of the writer. No sink is called so, since their names have no slash."""
        return f"ingest/{self._job.name}"

    def prepare(self, run: Run) -> None:
        """Be the one that writes for the job: give up what an earlier run left open, finish what it has decided."""
        with self._lock:
            self._taken = None
            stream = self._form.find(self._home)
            if stream is None:
                coverage = Ingestion(self._home.home).coverage(self._job.name)
                self._may_make = not any(known.everything for known in coverage.values())
            else:
                self._take(run, stream)
        self._failpoint(PREPARED)

    def land(self, run: Run, row: PlannedRange, batches: Iterable[Any]) -> LandingResult:
        """Put the rows of a cell into the stream, all of them, and record the cell as read; or do neither.

        The batches are Arrow's, of one schema. Several threads may land different cells.
        """
        transaction: Transaction | None = None
        count = waiting = 0
        try:
            for taken, piece in self._pieces(run, row, batches):
                if not piece.num_rows:
                    continue
                if transaction is None:
                    transaction = taken.writer.begin(self._timeout)
                transaction.write_batch(piece, key=row_keys(piece, self._form))
                count += piece.num_rows
                waiting += piece.nbytes
                if waiting >= _FLUSH_BYTES:
                    transaction.flush()
                    waiting = 0
                self._failpoint(SOME_ROWS_WRITTEN)
            if transaction is None:
                return LandingResult(0)
            transaction.flush()
            self._failpoint(ROWS_WRITTEN)
            self._decide(run, row, taken.stream, transaction, count)
        except BaseException as error:
            self._give_up(transaction, error)
            raise
        self._failpoint(DECIDED)
        self._finish(run, row, transaction)
        self._failpoint(LANDED)
        return LandingResult(count)

    def finish(self, run: Run) -> None:
        """Tell how far time has come, if it has come further, and let the watermark come out."""
        with self._lock:
            taken = self._taken
            if taken is None:
                return
            now = run.plan.now
            reached = final_through(self._job, Ingestion(self._home.home).coverage(self._job.name), now)
            told = None if reached is None else micros_in_unit(taken.unit, reached)
            if told is None or (taken.noted is not None and told <= taken.noted):
                return
            try:
                self._tell(run, taken, told)
            except WriterSuperseded:
                # Mostly by a run that has taken the place of this one, which then says so.
                self._check(run)
                raise
            taken.noted = told
        self._await_watermark(taken)

    def close(self) -> None:
        """Let go of the stream. The writer stays: a job goes on some day."""
        with self._lock:
            self._taken = None

    def _pieces(self, run: Run, row: PlannedRange, batches: Iterable[Any]) -> Iterator[tuple[_OpenStream, Any]]:
        """Give rows as the stream takes them, and the stream, which is made when the first batch says of what."""
        rest = iter(batches)
        first = next(rest, None)
        if first is None:
            return
        taken = self._require(run, first.schema)
        self._check_on_time(taken, row)
        fit = StreamRowFitter(self._form, taken.stream.settings.schema, row.unit)
        fitted = (fit(batch) for batch in chain([first], rest))
        for piece in newest_rows(fitted, self._form) if self._form.keys else fitted:
            yield taken, piece

    def _require(self, run: Run, schema: Any) -> _OpenStream:
        with self._lock:
            if self._taken is None:
                stream = self._form.find(self._home)
                self._take(run, self._make(schema) if stream is None else stream)
            assert self._taken is not None
            return self._taken

    def _make(self, schema: Any) -> Stream:
        if not self._may_make:
            raise StreamUnfit(
                f"There is no stream {self._form.name!r}, and the job {self._job.name!r} has read something already.",
                rule="A stream that is made here would not have what was read before.",
                remedy="Say with `floodmark ingest edit` that it was not read, or create the stream yourself.",
                stream=self._form.name,
                job=self._job.name,
            )
        try:
            return self._form.make(self._home, schema, self._segments)
        except StreamExists:
            # Another job, or a person, was quicker.
            found = self._form.find(self._home)
            if found is None:
                raise
            return found

    def _take(self, run: Run, stream: Stream) -> None:
        check_not_sealed(stream.info)
        # An overtaken run must not drive the newer one away.
        self._check(run)
        writer = stream.transactional_writer(self.writer_id)
        info = stream.info
        key = info.settings.keys[0]
        (known,) = read_inputs(self._home.home, self._backend.catalog, [(info.id, key)])
        noted = next((record.time for record in known.records if record.writer == self.writer_id), None)
        taken = _OpenStream(stream, writer, key, info.settings.unit, noted)
        self._settle(taken)
        self._taken = taken

    def _check(self, run: Run) -> None:
        with self._home.home.write() as connection:
            run.check(connection)

    def _tell(self, run: Run, taken: _OpenStream, told: int) -> None:
        self._settle(taken)
        self._failpoint(BEFORE_TIME)
        mark = taken.writer.begin()
        # Behind all there is, so also behind what this job has written.
        said = CommitMarks({taken.key: told}, taken.stream.tail())
        self._backend.transactions.decide(taken.stream.info, mark.id, said, run.check)
        self._failpoint(TIME_DECIDED)
        mark.result()

    def _settle(self, taken: _OpenStream) -> None:
        """Wait for all that was decided: commits of a writer come one after the other, and this one comes last."""
        taken.writer.begin().commit()

    def _check_on_time(self, taken: _OpenStream, row: PlannedRange) -> None:
        if self._form.keys or taken.noted is None or micros_in_unit(taken.unit, row.range.lo) >= taken.noted:
            return
        shown = self._job.shown
        raise RangeLate(
            f"The rows from {shown(row.range.lo)} to {shown(row.range.hi)} come after the watermark of the stream "
            f"{self._form.name!r} has gone beyond them.",
            rule="A stream that is appended to has each row before its watermark: its readers have closed their books.",
            remedy="Merge by a key, or land in a stream of another name; or leave them out: say with "
            "`floodmark ingest edit --covered` that they were read.",
            stream=self._form.name,
            job=self._job.name,
            lo=row.range.lo,
            hi=row.range.hi,
        )

    def _decide(self, run: Run, row: PlannedRange, stream: Stream, transaction: Transaction, rows: int) -> None:
        """Let the transaction be committed and record the row, or raise and do neither."""
        info = stream.info
        try:
            self._backend.transactions.decide(
                info,
                transaction.id,
                CommitMarks({}),
                lambda connection: run.adopt(row.unit, row.range, rows=rows, reason=row.reason, connection=connection),
            )
        except Exception:
            # The answer may be lost, and not what was decided.
            with suppress(FloodmarkError):
                state = transaction.state
                if state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                    return
            raise

    def _finish(self, run: Run, row: PlannedRange, transaction: Transaction) -> None:
        """Commit what was decided. Unless the stream was sealed it comes, so nothing else fails the row here."""
        try:
            transaction.result()
        except (StreamSealed, TransactionNotOpen):
            run.disown(row.unit, row.range)
            raise
        except Exception:
            # A controller does it, or whoever settles next.
            return

    def _give_up(self, transaction: Transaction | None, error: BaseException) -> None:
        reason = error.fields["reason"] if isinstance(error, TransactionNotOpen) else None
        if isinstance(error, WriterSuperseded) or reason == REASON_OPENED_AGAIN:
            with self._lock:
                # Whoever still has the job takes the writer again with its next row.
                self._taken = None
        if transaction is not None:
            # If it cannot be aborted, the next run or its timeout does it.
            with suppress(FloodmarkError):
                transaction.abort()

    def _await_watermark(self, taken: _OpenStream) -> None:
        """Let the controller of this process say what there is to say, since the process may end now."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while self._home.controller is not None and time.monotonic() < give_up:
            known = read_inputs(self._home.home, self._backend.catalog, [(taken.stream.info.id, taken.key)])
            decision = known[0].decide(self._home.home.now()) if known else None
            if decision is None or (isinstance(decision, Wait) and decision.reason is not WaitReason.RATE_FLOOR):
                return
            time.sleep(0.005)
