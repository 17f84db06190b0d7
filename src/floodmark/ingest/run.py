"""A run of a job, which holds the job's lease and records the outcomes of its plan; and the executor protocol."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from sqlalchemy import Connection, delete, select, text, update

from floodmark._util.text import replace_unstorable
from floodmark.control import Home, Lease, Leases
from floodmark.errors import NotPlanned
from floodmark.ingest.calendar.clock import day_number, zone_of
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import UnitCoverage
from floodmark.ingest.planning.plan import Plan, PlannedRange, Reason
from floodmark.ingest.store.coverage import CoverageChange, add_lateness, change_coverage, unit_numbers
from floodmark.ingest.store.tables import ATTEMPTS, RUNS

LEASE_TTL: Final = 60_000_000
"""The lease of a run expires this many microseconds after its last heartbeat; then another run may start."""

_LONGEST_ERROR: Final = 2_000

# An adopted range may be recorded again when its planned range ends.
_UPSERT_ATTEMPT: Final = text(
    "INSERT INTO ingest_attempt (job, run, unit, lo, hi, reason, state, row_count, took, error, at) "
    "VALUES (:job, :run, :unit, :lo, :hi, :reason, :state, :row_count, :took, :error, :at) "
    "ON CONFLICT (job, run, unit, lo) DO UPDATE SET hi = excluded.hi, reason = excluded.reason, "
    "state = excluded.state, row_count = excluded.row_count, took = excluded.took, error = excluded.error, "
    "at = excluded.at"
)


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """The outcome of a planned range."""

    row: PlannedRange
    error: str | None = None
    """None if the range was read and landed."""
    rows: int | None = None
    took: int | None = None
    """Microseconds."""
    lateness: Mapping[int, int] | None = None
    """Counts of rows by how many calendar days after their own day they were first found."""


class Run:
    """An active run. It must `renew` or record an outcome within its lease's TTL, or another run may replace it.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> with Home.open(clock=lambda: Bound.parse("2020-01-03", "UTC").at) as home:
    ...     with Ingestion(home).start(job, owner="etl-1") as run:
    ...         for row in run.plan.rows:
    ...             run.succeeded(row, rows=7)
    ...     job.shown(Ingestion(home).complete_through(job))
    '2020-01-03T00:00:00+00:00'
    """

    __slots__ = ("_home", "_is_ended", "_lease", "_leases", "_lock", "_open", "_renewed", "job", "number", "plan")

    def __init__(self, home: Home, job: Job, plan: Plan, number: int, lease: Lease) -> None:
        """Use `Ingestion.start`."""
        self.job = job
        self.plan = plan
        self.number = number
        self._home = home
        self._leases = Leases(home)
        self._lease = lease
        self._lock = Lock()
        self._renewed = monotonic()
        self._open = {(row.unit.key, row.range): row for row in plan.rows}
        self._is_ended = False

    @property
    def token(self) -> int:
        """The fencing token of the lease: a later run has a higher one."""
        return self._lease.token

    @property
    def owner(self) -> str:
        """The owner of the lease."""
        return self._lease.owner

    @property
    def home(self) -> Home:
        """The home that stores the run."""
        return self._home

    @property
    def unrecorded(self) -> tuple[PlannedRange, ...]:
        """The planned ranges without a recorded outcome."""
        with self._lock:
            return tuple(self._open.values())

    def renew(self) -> None:
        """Send a heartbeat for the lease, or raise `LeaseLost`."""
        started = monotonic()
        self._lease = self._leases.renew(self._lease)
        self._renewed = started

    def check(self, connection: Connection) -> None:
        """Raise `LeaseLost` if another run has replaced this one; otherwise none can until this transaction ends."""
        Leases.check(connection, self._lease)

    def succeeded(
        self,
        row: PlannedRange,
        *,
        rows: int | None = None,
        took: int | None = None,
        lateness: Mapping[int, int] | None = None,
    ) -> None:
        """Record that a planned range was read and landed."""
        self.record([RangeOutcome(row, None, rows, took, lateness)])

    def failed(self, row: PlannedRange, error: str, *, took: int | None = None) -> bool:
        """Record that a planned range could not be read or landed; it stays due.

        Return False if this run has adopted the range: then it counts as landed and is not due.
        """
        return not self.record([RangeOutcome(row, error, None, took)])

    def record(self, outcomes: Iterable[RangeOutcome]) -> tuple[PlannedRange, ...]:
        """Record outcomes of planned ranges in one transaction, or raise `LeaseLost` and record nothing.

        A range that is not planned, or already recorded, raises `NotPlanned`. The ranges that this run has adopted are
        returned: they count as landed whatever their outcome is here, which only adds the rows and the duration.
        """
        batch = list(outcomes)
        with self._lock:
            self._check_planned(batch)
            if monotonic() - self._renewed > self._lease.ttl / 3e6:
                self.renew()
            with self._home.write() as connection:
                now = self._check_and_now(connection)
                numbers = unit_numbers(connection, self.job.name, {outcome.row.unit.key for outcome in batch})
                adopted = self._adopted_ranges(connection, numbers)
                by_unit: dict[str, list[RangeOutcome]] = {}
                already_adopted: list[RangeOutcome] = []
                for outcome in batch:
                    key = outcome.row.unit.key
                    (already_adopted if (key, outcome.row.range) in adopted else by_unit.setdefault(key, [])).append(
                        outcome
                    )
                ranges = [outcome.row.range for outcome in batch]
                change_coverage(
                    connection,
                    self.job.name,
                    by_unit,
                    lambda key: self._coverage_change(by_unit[key], now),
                    failures_in=Range(min(lo for lo, _ in ranges), max(hi for _, hi in ranges)) if ranges else None,
                )
                attempts = [outcome for unit_outcomes in by_unit.values() for outcome in unit_outcomes]
                attempts += [outcome for outcome in already_adopted if outcome.error is None]
                self._insert_attempts(connection, numbers, attempts, now)
            for outcome in batch:
                del self._open[outcome.row.unit.key, outcome.row.range]
        return tuple(outcome.row for outcome in already_adopted)

    def adopt(
        self,
        unit: Unit,
        done: Range,
        *,
        rows: int | None = None,
        reason: Reason = "gap",
        connection: Connection | None = None,
    ) -> None:
        """Record that a range is landed, before or without the outcome of its planned range.

        Two cases need this: an earlier run landed the range and crashed before it recorded that; or this run records
        the range in the transaction that lands it, which is then passed as `connection`.
        """
        with self._write_transaction(connection) as transaction:
            now = self._check_and_now(transaction)
            outcome = RangeOutcome(PlannedRange(unit, done, done, reason, (reason,)), None, rows)
            change_coverage(transaction, self.job.name, [unit.key], lambda _: self._coverage_change([outcome], now))
            numbers = unit_numbers(transaction, self.job.name, [unit.key])
            self._insert_attempts(transaction, numbers, [outcome], now, state="adopted")

    def disown(self, unit: Unit, done: Range) -> None:
        """Undo `adopt` for a range that was not landed after all; the range is due again."""
        with self._home.write() as connection:
            self._check_and_now(connection)
            change_coverage(
                connection,
                self.job.name,
                [unit.key],
                lambda _: lambda coverage: coverage.edited(done, is_covered=False),
            )
            number = unit_numbers(connection, self.job.name, [unit.key])[unit.key]
            of_run = (ATTEMPTS.c.job == self.job.name, ATTEMPTS.c.run == self.number)
            of_range = (ATTEMPTS.c.unit == number, ATTEMPTS.c.lo == done.lo, ATTEMPTS.c.state == "adopted")
            connection.execute(delete(ATTEMPTS).where(*of_run, *of_range))

    def end(self, state: Literal["done", "failed"] = "done") -> None:
        """End the run and release the lease. Ranges without a recorded outcome stay due."""
        if self._is_ended:
            return
        with self._home.write() as connection:
            now = self._check_and_now(connection)
            statement = update(RUNS).where(RUNS.c.job == self.job.name, RUNS.c.run == self.number)
            connection.execute(statement.values(state=state, ended_at=now))
        self._is_ended = True
        self._leases.release(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end()
            return
        try:
            self.end("failed")
        except Exception as second:
            # Keep the first error as the one that is raised.
            assert error is not None
            error.add_note(f"Ending the run failed too: {second}")

    def __repr__(self) -> str:
        return f"Run({self.job.name!r}, {self.number})"

    @contextmanager
    def _write_transaction(self, connection: Connection | None) -> Iterator[Connection]:
        if connection is not None:
            yield connection
            return
        with self._home.write() as own:
            yield own

    def _check_and_now(self, connection: Connection) -> int:
        self.check(connection)
        return self._home.now(connection)

    def _adopted_ranges(self, connection: Connection, numbers: Mapping[str, int]) -> set[tuple[str, Range]]:
        """Return the (unit key, range) pairs of these units that this run has adopted."""
        keys = {number: key for key, number in numbers.items()}
        adopted = (ATTEMPTS.c.job == self.job.name, ATTEMPTS.c.run == self.number, ATTEMPTS.c.state == "adopted")
        query = select(ATTEMPTS.c.unit, ATTEMPTS.c.lo, ATTEMPTS.c.hi).where(*adopted)
        return {(keys[unit], Range(lo, hi)) for unit, lo, hi in connection.execute(query) if unit in keys}

    def _check_planned(self, outcomes: list[RangeOutcome]) -> None:
        seen = set()
        for outcome in outcomes:
            key = outcome.row.unit.key, outcome.row.range
            if key not in self._open or key in seen:
                raise NotPlanned(
                    f"The run {self.number} of {self.job.name!r} has no open range from "
                    f"{self.job.shown(outcome.row.range.lo)} to {self.job.shown(outcome.row.range.hi)} of the unit "
                    f"{outcome.row.unit.key}.",
                    rule="A run records the outcome of each planned range once.",
                    remedy="Pass a range of Run.unrecorded.",
                    job=self.job.name,
                    run=self.number,
                    unit=outcome.row.unit.key,
                )
            seen.add(key)

    def _coverage_change(self, outcomes: list[RangeOutcome], now: int) -> CoverageChange:
        zone, time = zone_of(self.job.zone), self.job.time
        # What one run reads has one time, the planned one, and is kept as one entry, unless midnight has passed.
        same_day = day_number(self.plan.now, zone) == day_number(now, zone)
        read_at = self.plan.now if same_day else now

        def change(coverage: UnitCoverage) -> UnitCoverage:
            for outcome in outcomes:
                if outcome.error is None:
                    coverage = coverage.succeeded(
                        outcome.row.range,
                        read_at,
                        zone=zone,
                        abstinence_days=time.abstinence_days,
                        grace_days=time.grace_days,
                    )
                else:
                    coverage = coverage.failed(outcome.row.range, now, _storable_error(outcome.error))
            return coverage

        return change

    def _insert_attempts(
        self,
        connection: Connection,
        numbers: Mapping[str, int],
        outcomes: list[RangeOutcome],
        now: int,
        *,
        state: str = "succeeded",
    ) -> None:
        if not outcomes:
            return
        connection.execute(_UPSERT_ATTEMPT, [self._attempt_row(numbers, outcome, now, state) for outcome in outcomes])
        lateness: Counter[int] = Counter()
        for outcome in outcomes:
            lateness.update(outcome.lateness or {})
        add_lateness(connection, self.job.name, lateness)

    def _attempt_row(self, numbers: Mapping[str, int], outcome: RangeOutcome, now: int, state: str) -> dict[str, Any]:
        return {
            "job": self.job.name,
            "run": self.number,
            "unit": numbers[outcome.row.unit.key],
            "lo": outcome.row.range.lo,
            "hi": outcome.row.range.hi,
            "reason": outcome.row.reason,
            "state": state if outcome.error is None else "failed",
            "row_count": outcome.rows,
            "took": outcome.took,
            "error": "" if outcome.error is None else _storable_error(outcome.error),
            "at": now,
        }


def _storable_error(error: str) -> str:
    return replace_unstorable(error)[:_LONGEST_ERROR] or "no error message"


@dataclass(frozen=True, slots=True)
class LandingResult:
    """The result of landing a planned range.

    >>> LandingResult(rows=12).lateness is None
    True
    """

    rows: int | None = None
    lateness: Mapping[int, int] | None = None
    """Counts of rows by how many calendar days after their own day they were first found."""


class Executor(Protocol):
    """Extracts and lands planned ranges. `land` is called from several threads at once, with different ranges."""

    def prepare(self, run: Run) -> None:
        """Before any extraction, pass ranges that an earlier run landed but did not record to `run.adopt`."""

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract `row.range` of `row.unit` and land it as a whole; landing it again must be idempotent.

        The commit is fenced by `run.token`, so that a replaced run cannot land later. An exception fails only this
        range, which stays due.
        """
        ...

    def finish(self, run: Run) -> None:
        """Called after the outcomes of all ranges are recorded, including failures, and before the run ends.

        An exception fails the run but none of its ranges.
        """

    def close(self) -> None:
        """Release resources."""
