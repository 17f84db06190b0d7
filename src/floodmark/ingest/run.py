"""A run of a job: it holds the job's lease, knows its plan, and records outcomes; and the executor that it drives."""

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
from floodmark.ingest.calendar.clock import zone_of
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import UnitCoverage
from floodmark.ingest.planning.plan import Plan, PlannedRange, Reason
from floodmark.ingest.store.coverage import CoverageChange, add_lateness, change_coverage, unit_numbers
from floodmark.ingest.store.tables import ATTEMPTS, RUNS

LEASE_TTL: Final = 60_000_000
"""How long a run may be silent, in microseconds, before another may take its place."""

_LONGEST_ERROR: Final = 2_000

# What was adopted may be recorded once more by its own row.
_UPSERT_ATTEMPT: Final = text(
    "INSERT INTO ingest_attempt (job, run, unit, lo, hi, reason, state, row_count, took, error, at) "
    "VALUES (:job, :run, :unit, :lo, :hi, :reason, :state, :row_count, :took, :error, :at) "
    "ON CONFLICT (job, run, unit, lo) DO UPDATE SET hi = excluded.hi, reason = excluded.reason, "
    "state = excluded.state, row_count = excluded.row_count, took = excluded.took, error = excluded.error, "
    "at = excluded.at"
)


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What became of a row of a plan."""

    row: PlannedRange
    error: str | None = None
    """None if it was read and landed."""
    rows: int | None = None
    took: int | None = None
    """Microseconds."""
    lateness: Mapping[int, int] | None = None
    """How many rows were first found so many calendar days after their own."""


class Run:
    """A run that goes on. It must `renew` within a minute, or record something; else another may take its place.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> with Home.open(clock=lambda: Bound.parse("2020-01-03", "UTC").at) as home:
    ...     with Ingestion(home).start(job, owner="here") as run:
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
        """What fences it: a later run has a higher one. A landed table may carry it."""
        return self._lease.token

    @property
    def owner(self) -> str:
        """Who runs it."""
        return self._lease.owner

    @property
    def home(self) -> Home:
        """Where it is recorded."""
        return self._home

    @property
    def unrecorded(self) -> tuple[PlannedRange, ...]:
        """What was planned and is not recorded yet."""
        with self._lock:
            return tuple(self._open.values())

    def renew(self) -> None:
        """Say that it still goes on, or raise `LeaseLost`."""
        begun = monotonic()
        self._lease = self._leases.renew(self._lease)
        self._renewed = begun

    def check(self, connection: Connection) -> None:
        """Raise `LeaseLost` if another run has taken its place; else none can before this transaction ends."""
        Leases.check(connection, self._lease)

    def succeeded(
        self,
        row: PlannedRange,
        *,
        rows: int | None = None,
        took: int | None = None,
        lateness: Mapping[int, int] | None = None,
    ) -> None:
        """Record that a row of the plan was read, and landed."""
        self.record([RangeOutcome(row, None, rows, took, lateness)])

    def failed(self, row: PlannedRange, error: str, *, took: int | None = None) -> bool:
        """Record that a row of the plan could not be read or landed. It stays due.

        Return False if this run has adopted it: then it is landed all the same, and not due.
        """
        return not self.record([RangeOutcome(row, error, None, took)])

    def record(self, outcomes: Iterable[RangeOutcome]) -> tuple[PlannedRange, ...]:
        """Record what became of rows of the plan, all in one transaction; or raise `LeaseLost` and record nothing.

        Each row is recorded once; another that was not planned is refused. Those that this run has adopted are
        returned: they count as landed whatever is said of them here, which adds only what it took.
        """
        given = list(outcomes)
        with self._lock:
            self._check_planned(given)
            if monotonic() - self._renewed > self._lease.ttl / 3e6:
                self.renew()
            with self._home.write() as connection:
                now = self._begin(connection)
                numbers = unit_numbers(connection, self.job.name, {one.row.unit.key for one in given})
                adopted = self._adopted(connection, numbers)
                by_unit: dict[str, list[RangeOutcome]] = {}
                again: list[RangeOutcome] = []
                for outcome in given:
                    key = outcome.row.unit.key
                    (again if (key, outcome.row.range) in adopted else by_unit.setdefault(key, [])).append(outcome)
                change_coverage(connection, self.job.name, by_unit, lambda key: self._change(by_unit[key], now))
                told = [one for one in again if one.error is None]
                self._note(connection, numbers, [*(one for some in by_unit.values() for one in some), *told], now)
            for outcome in given:
                del self._open[outcome.row.unit.key, outcome.row.range]
        return tuple(outcome.row for outcome in again)

    def adopt(
        self,
        unit: Unit,
        done: Range,
        *,
        rows: int | None = None,
        reason: Reason = "gap",
        connection: Connection | None = None,
    ) -> None:
        """Record that a range is landed before its row is recorded, if it ever is.

        That is one that an earlier run has landed, and died before it could say so; or one of this run, recorded by
        the very transaction that lands it: then that is the `connection`.
        """
        with self._writing(connection) as writing:
            now = self._begin(writing)
            outcome = RangeOutcome(PlannedRange(unit, done, done, reason, (reason,)), None, rows)
            change_coverage(writing, self.job.name, [unit.key], lambda _: self._change([outcome], now))
            numbers = unit_numbers(writing, self.job.name, [unit.key])
            self._note(writing, numbers, [outcome], now, state="adopted")

    def disown(self, unit: Unit, done: Range) -> None:
        """Record that what this run has adopted was not landed after all. It is due."""
        with self._home.write() as connection:
            self._begin(connection)
            change_coverage(
                connection, self.job.name, [unit.key], lambda _: lambda known: known.edited(done, is_covered=False)
            )
            number = unit_numbers(connection, self.job.name, [unit.key])[unit.key]
            ours = (ATTEMPTS.c.job == self.job.name, ATTEMPTS.c.run == self.number)
            here = (ATTEMPTS.c.unit == number, ATTEMPTS.c.lo == done.lo, ATTEMPTS.c.state == "adopted")
            connection.execute(delete(ATTEMPTS).where(*ours, *here))

    def end(self, state: Literal["done", "failed"] = "done") -> None:
        """End it, and let others run the job. What was not recorded stays due."""
        if self._is_ended:
            return
        with self._home.write() as connection:
            now = self._begin(connection)
            ended = update(RUNS).where(RUNS.c.job == self.job.name, RUNS.c.run == self.number)
            connection.execute(ended.values(state=state, ended_at=now))
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
            # What went wrong first says more.
            assert error is not None
            error.add_note(f"The run could not be ended either: {second}")

    def __repr__(self) -> str:
        return f"Run({self.job.name!r}, {self.number})"

    @contextmanager
    def _writing(self, connection: Connection | None) -> Iterator[Connection]:
        if connection is not None:
            yield connection
            return
        with self._home.write() as own:
            yield own

    def _begin(self, connection: Connection) -> int:
        self.check(connection)
        return self._home.now(connection)

    def _adopted(self, connection: Connection, numbers: Mapping[str, int]) -> set[tuple[str, Range]]:
        """Return what this run has adopted of some units."""
        keys = {number: key for key, number in numbers.items()}
        ours = (ATTEMPTS.c.job == self.job.name, ATTEMPTS.c.run == self.number, ATTEMPTS.c.state == "adopted")
        wanted = select(ATTEMPTS.c.unit, ATTEMPTS.c.lo, ATTEMPTS.c.hi).where(*ours)
        return {(keys[unit], Range(lo, hi)) for unit, lo, hi in connection.execute(wanted) if unit in keys}

    def _check_planned(self, outcomes: list[RangeOutcome]) -> None:
        seen = set()
        for outcome in outcomes:
            place = outcome.row.unit.key, outcome.row.range
            if place not in self._open or place in seen:
                raise NotPlanned(
                    f"The run {self.number} of {self.job.name!r} has nothing open from "
                    f"{self.job.shown(outcome.row.range.lo)} to {self.job.shown(outcome.row.range.hi)} of the unit "
                    f"{outcome.row.unit.key}.",
                    rule="A run records each row of its plan once, whole.",
                    remedy="Pass a row of Run.plan that was not recorded yet.",
                    job=self.job.name,
                    run=self.number,
                    unit=outcome.row.unit.key,
                )
            seen.add(place)

    def _change(self, outcomes: list[RangeOutcome], now: int) -> CoverageChange:
        zone, abstinence = zone_of(self.job.zone), self.job.time.abstinence_days

        def change(known: UnitCoverage) -> UnitCoverage:
            for outcome in outcomes:
                if outcome.error is None:
                    known = known.succeeded(outcome.row.range, now, zone=zone, abstinence_days=abstinence)
                else:
                    known = known.failed(outcome.row.range, now, _storable_error(outcome.error))
            return known

        return change

    def _note(
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
        connection.execute(_UPSERT_ATTEMPT, [self._noted(numbers, outcome, now, state) for outcome in outcomes])
        late: Counter[int] = Counter()
        for outcome in outcomes:
            late.update(outcome.lateness or {})
        add_lateness(connection, self.job.name, late)

    def _noted(self, numbers: Mapping[str, int], outcome: RangeOutcome, now: int, state: str) -> dict[str, Any]:
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
    return replace_unstorable(error)[:_LONGEST_ERROR] or "no reason was given"


@dataclass(frozen=True, slots=True)
class LandingResult:
    """What became of a row of a plan that was extracted and landed.

    >>> LandingResult(rows=12).lateness is None
    True
    """

    rows: int | None = None
    lateness: Mapping[int, int] | None = None
    """How many rows were first found so many calendar days after their own."""


class Executor(Protocol):
    """Extracts and lands. It may be called from several threads at once, with different rows of one run."""

    def prepare(self, run: Run) -> None:
        """Look, before anything is extracted, whether an earlier run has landed what it could not record any more.

        Such ranges are given to `run.adopt`.
        """

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract `row.range` of `row.unit`, whole, and land it so that doing it again changes nothing.

        What is landed carries `run.token`: what an overtaken run does later must not count. Whatever is raised fails
        this row alone, and it stays due.
        """
        ...

    def finish(self, run: Run) -> None:
        """Do what comes after all rows: each is recorded, and the run has not ended. Also if some have failed.

        What is raised here fails the run, and none of its rows.
        """

    def close(self) -> None:
        """Let go of what it holds."""
