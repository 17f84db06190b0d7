"""The jobs of a home, and how a job is run.

`Ingestion` reports what jobs have read, starts runs, and makes manual changes (backfill, retry, edit, undo). `run_job`
plans a job and drives an executor: planned ranges run in parallel and fail independently, under a lease that a
background thread renews.
"""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event, Thread
from time import perf_counter_ns
from typing import Final
from urllib.parse import unquote

from sqlalchemy import Connection, select

from floodmark.control import Home, Leases
from floodmark.errors import FloodmarkError, InvalidOption, JobInvalid, LeaseLost, RangeInvalid
from floodmark.ingest.calendar.ranges import Range, overlaps
from floodmark.ingest.job.job import Job, Landing, check_job
from floodmark.ingest.job.options import secrets_in
from floodmark.ingest.job.source import FilesSource, RestSource, SqlSource
from floodmark.ingest.planning.coverage import (
    Coverage,
    Gap,
    UnitCoverage,
    complete_through,
    coverage_before_edit,
    find_failed_rereads,
    find_gaps,
    largest_end,
    recommended_grace,
    undo_edit,
)
from floodmark.ingest.planning.plan import Plan, PlannedRange, plan
from floodmark.ingest.run import LEASE_TTL, Executor, LandingResult, RangeOutcome, Run
from floodmark.ingest.store.coverage import add_lateness, change_coverage, load_coverage, load_lateness
from floodmark.ingest.store.jobs import (
    Attempt,
    JobEvent,
    JobInfo,
    RunInfo,
    Status,
    TypicalCell,
    add_event,
    add_run,
    current_job_lease,
    exclusive_job_lease,
    load_attempts,
    load_events,
    load_job_info,
    load_runs,
    load_typical,
    mark_overtaken_runs,
    register_job,
    take_job_lease,
)
from floodmark.ingest.store.tables import JOBS, UNITS


class Ingestion:
    """The jobs of a home. A job has at most one active run; manual changes are refused while it runs.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> with Home.open(clock=lambda: Bound.parse("2020-01-04", "UTC").at) as home:
    ...     jobs = Ingestion(home)
    ...     run = jobs.start(job, owner="etl-1")
    ...     is_due = run.failed(run.plan.rows[1], "timed out")
    ...     run.end()
    ...     [row.reason for row in jobs.plan(job).rows]
    ['failed', 'new', 'new']
    """

    __slots__ = ("_home", "_leases")

    def __init__(self, home: Home) -> None:
        """Use the jobs of this home."""
        self._home = home
        self._leases = Leases(home)

    # Queries.

    def get(self, name: str) -> JobInfo:
        """Return a job as last registered."""
        with self._home.read() as connection:
            return load_job_info(connection, name)

    def all(self) -> tuple[str, ...]:
        """Return the names of all jobs."""
        with self._home.read() as connection:
            return tuple(connection.execute(select(JOBS.c.name).order_by(JOBS.c.name)).scalars())

    def coverage(self, name: str) -> Coverage:
        """Return the coverage of all units that a job ever had; empty for a job that never ran."""
        with self._home.read() as connection:
            return load_coverage(connection, name)

    def plan(self, job: Job, *, now: int | None = None, backfill: Range | None = None) -> Plan:
        """Return what a run would read now, at another time, or after a backfill. Changes nothing."""
        with self._home.read() as connection:
            coverage = load_coverage(connection, job.name)
            at = self._home.now(connection) if now is None else now
        if backfill is not None:
            listed = {unit.key: coverage.get(unit.key, UnitCoverage()) for unit in job.listed_units}
            coverage = {**coverage, **{key: unit.with_backfill(backfill) for key, unit in listed.items()}}
        return plan(job, coverage, at)

    def complete_through(self, job: Job, *, now: int | None = None) -> int | None:
        """Return the time before which all listed units were read without gaps."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            return complete_through(job, load_coverage(connection, job.name), at)

    def gaps(self, job: Job, *, now: int | None = None) -> tuple[Gap, ...]:
        """Return the ranges that should have been read by now and were not, with causes."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            return find_gaps(job, load_coverage(connection, job.name), at)

    def failed_rereads(self, job: Job, *, now: int | None = None) -> tuple[Gap, ...]:
        """Return the ranges that were read before and could not be read again, with causes; they are no gaps."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            return find_failed_rereads(job, load_coverage(connection, job.name), at)

    def status(self, job: Job, *, now: int | None = None) -> Status:
        """Return the progress of a job, what is due, and its active and last runs."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            coverage = load_coverage(connection, job.name)
            runs = load_runs(connection, job.name, 10)
        lease = current_job_lease(self._leases, job.name)
        running = None if lease is None else next((run for run in runs if run.token == lease.token), None)
        return Status(
            job=job.name,
            now=at,
            plan=plan(job, coverage, at),
            complete_through=complete_through(job, coverage, at),
            largest_end=largest_end(coverage),
            units=len(job.listed_units),
            running=running,
            last=next((run for run in runs if run.ended_at is not None), None),
        )

    def history(self, name: str, *, limit: int | None = 20) -> tuple[RunInfo, ...]:
        """Return the runs of a job, the newest first."""
        with self._home.read() as connection:
            load_job_info(connection, name)
            return load_runs(connection, name, limit)

    def attempts(self, name: str, run: int) -> tuple[Attempt, ...]:
        """Return the attempts of a run."""
        with self._home.read() as connection:
            return load_attempts(connection, name, run)

    def events(self, name: str, *, limit: int | None = None) -> tuple[JobEvent, ...]:
        """Return manual changes of a job and changes of its definition, the newest first."""
        with self._home.read() as connection:
            return load_events(connection, name, limit)

    def typical(self, name: str) -> TypicalCell:
        """Return the average rows and duration of a cell."""
        with self._home.read() as connection:
            return load_typical(connection, name)

    def lateness(self, name: str) -> dict[int, int]:
        """Return the counts of rows by how many calendar days after their own day they were found."""
        with self._home.read() as connection:
            return load_lateness(connection, name)

    def note_lateness(self, name: str, lateness: dict[int, int]) -> None:
        """Add counts of late rows that no run has recorded."""
        with self._home.write() as connection:
            load_job_info(connection, name)
            add_lateness(connection, name, lateness)

    def recommended_grace(self, name: str, *, share: float = 0.999) -> int | None:
        """Return the days of grace that would have found this fraction of the rows; None without counts."""
        return recommended_grace(self.lateness(name), share=share)

    # Changes.

    def register(self, job: Job, *, actor: str = "") -> JobInfo:
        """Insert a job or update its definition; its coverage stays. A change is recorded as an event."""
        with exclusive_job_lease(self._home, job.name, actor or "register") as connection:
            register_job(connection, job, now=self._home.now(connection), actor=actor)
            return load_job_info(connection, job.name)

    def start(self, job: Job, *, owner: str, ttl: int = LEASE_TTL, now: int | None = None) -> Run:
        """Plan and start a run; raise `JobRunning` if one is active. A run without heartbeat for a TTL is replaced."""
        lease = take_job_lease(self._leases, job.name, owner, ttl)
        try:
            with self._home.write() as connection:
                Leases.check(connection, lease)
                at = self._home.now(connection)
                register_job(connection, job, now=at, actor=owner)
                mark_overtaken_runs(connection, job.name, lease, at)
            # Planning needs no transaction: the lease keeps the coverage from changing.
            with self._home.read() as connection:
                coverage = load_coverage(connection, job.name)
            planned = plan(job, coverage, at if now is None else now)
            with self._home.write() as connection:
                Leases.check(connection, lease)
                number = add_run(connection, job, planned, lease, at)
        except BaseException:
            self._leases.release(lease)
            raise
        return Run(self._home, job, planned, number, lease)

    def backfill(
        self, job: Job, range_: Range, *, units: Collection[str] | None = None, actor: str, note: str = ""
    ) -> JobEvent:
        """Make the next runs read a range again, whether it was read or not; this does not move the frontier."""
        with exclusive_job_lease(self._home, job.name, actor) as connection:
            now = self._home.now(connection)
            register_job(connection, job, now=self._home.now(connection), actor=actor)
            reach = job.reach(now)
            if not reach.lo <= range_.lo < range_.hi <= reach.hi:
                raise RangeInvalid(
                    f"The backfill is from {job.shown(range_.lo)} to {job.shown(range_.hi)}.",
                    rule=f"The job reads from {job.shown(reach.lo)} to {job.shown(reach.hi)}.",
                    remedy="Choose a range within that; to read older data, set an earlier `from`.",
                    lo=range_.lo,
                    hi=range_.hi,
                )
            keys = [unit.key for unit in job.listed_units] if units is None else list(units)
            changed = change_coverage(
                connection, job.name, keys, lambda _: lambda coverage: coverage.with_backfill(range_)
            )
            if job.described()["mode"] == "append" and any(
                overlaps(before.everything, *range_) for before, _ in changed.values()
            ):
                raise JobInvalid(
                    f"The job {job.name!r} has the mode append, and has already read data from "
                    f"{job.shown(range_.lo)} to {job.shown(range_.hi)}.",
                    rule="Reading a range again needs the mode replace or merge; append would duplicate its rows.",
                    remedy='Set mode = "replace" or mode = "merge" in [target].',
                    job=job.name,
                )
            details = {"lo": range_.lo, "hi": range_.hi, "units": len(keys) if units is None else keys, "note": note}
            return add_event(connection, job.name, "backfill", actor, details, now)

    def retry(
        self,
        name: str,
        range_: Range | None = None,
        *,
        units: Collection[str] | None = None,
        actor: str,
        note: str = "",
    ) -> int:
        """Reset the attempts of failed and quarantined ranges, so that the next run tries them; return how many."""
        bounds = range_ or Range(-(2**63), 2**63 - 1)
        with exclusive_job_lease(self._home, name, actor) as connection:
            load_job_info(connection, name)
            keys = _unit_keys(connection, name, units)
            changed = change_coverage(
                connection, name, keys, lambda _: lambda coverage: coverage.with_attempts_reset(bounds)
            )
            count = sum(
                failure.attempts > 0 and overlaps([failure.range], *bounds)
                for before, _ in changed.values()
                for failure in before.failures
            )
            details = {"range": range_, "units": "all" if units is None else keys, "failures": count, "note": note}
            add_event(connection, name, "retry", actor, details, self._home.now(connection))
        return count

    def edit(
        self,
        name: str,
        range_: Range,
        *,
        covered: bool,
        units: Collection[str] | None = None,
        actor: str,
        note: str = "",
    ) -> JobEvent:
        """Record a range as read or as not read, without reading it. The edit is an event and can be undone."""
        if range_.lo >= range_.hi:
            raise RangeInvalid(
                f"The range is from {range_.lo} to {range_.hi}.",
                rule="A range must end after it starts.",
                remedy="Swap the two ends, or choose a later end.",
                lo=range_.lo,
                hi=range_.hi,
            )
        with exclusive_job_lease(self._home, name, actor) as connection:
            load_job_info(connection, name)
            keys = _unit_keys(connection, name, units)
            changed = change_coverage(
                connection, name, keys, lambda _: lambda coverage: coverage.edited(range_, is_covered=covered)
            )
            old = {key: coverage_before_edit(before, range_) for key, (before, _) in changed.items()}
            details = {"lo": range_.lo, "hi": range_.hi, "covered": covered, "before": old, "note": note}
            return add_event(connection, name, "edit", actor, details, self._home.now(connection))

    def undo(self, name: str, event: int, *, actor: str, note: str = "") -> JobEvent:
        """Undo an edit; raise `Conflict` if its range has changed since."""
        with exclusive_job_lease(self._home, name, actor) as connection:
            events = load_events(connection, name)
            edit = next((candidate for candidate in events if candidate.event == event), None)
            undone = {candidate.details["event"] for candidate in events if candidate.kind == "undo"}
            if edit is None or edit.kind != "edit" or event in undone:
                raise InvalidOption(
                    f"The event {event} of {name!r} is not an edit, or is already undone.",
                    rule="Only an edit can be undone, and only once.",
                    remedy=f"Choose an event of the kind edit from `floodmark ingest history {name} --events`.",
                    job=name,
                    event=event,
                )
            range_, before = Range(edit.details["lo"], edit.details["hi"]), edit.details["before"]
            covered = edit.details["covered"]

            def undo_in(key: str) -> Callable[[UnitCoverage], UnitCoverage]:
                return lambda coverage: undo_edit(coverage, range_, before[key], is_covered=covered)

            change_coverage(connection, name, list(before), undo_in)
            details = {"event": event, "note": note}
            return add_event(connection, name, "undo", actor, details, self._home.now(connection))


def _unit_keys(connection: Connection, name: str, units: Collection[str] | None) -> list[str]:
    if units is not None:
        return list(units)
    query = select(UNITS.c.unit_key).where(UNITS.c.job == name, UNITS.c.retired_at.is_(None))
    return list(connection.execute(query).scalars())


_SHORTEST_SECRET: Final = 4
"""Shorter secrets are not masked in errors, because they also match ordinary words."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    job: str
    run: int
    planned: int
    succeeded: int
    failed: int
    rows: int
    """Landed rows, as far as the executor counted them."""
    errors: tuple[str, ...]
    """The first few distinct errors."""

    @property
    def is_whole(self) -> bool:
        """Whether all planned ranges succeeded."""
        return self.succeeded == self.planned


@dataclass(slots=True)
class _Tally:
    succeeded: int = 0
    failed: int = 0
    rows: int = 0
    errors: tuple[str, ...] = ()


def check_runnable(job: Job) -> None:
    """Raise `InvalidOption` if a job has no source or no target: it can be planned but not run."""
    for name, kinds in (("source", (SqlSource, FilesSource, RestSource)), ("target", (Landing,))):
        if not isinstance(getattr(job, name), kinds):
            raise InvalidOption(
                f"The job {job.name!r} names no {name}.",
                rule="A job needs a source and a target to be run.",
                remedy=f"Add [{name}] to its file; convert a properties file to TOML first, for example with job_text.",
                job=job.name,
                option=name,
            )
    check_job(job)


def run_job(
    jobs: Ingestion,
    job: Job,
    executor: Executor,
    *,
    owner: str,
    workers: int = 8,
    ttl: int = LEASE_TTL,
    on_row: Callable[[Run, RangeOutcome], None] | None = None,
) -> RunResult:
    """Plan a job, then extract and land what is due; ranges fail independently of each other.

    `on_row` is called with the outcome of each range after it is recorded. Raises `LeaseLost` if another run replaces
    this one: recorded outcomes stay, and no more are recorded.
    """
    if workers < 1:
        raise InvalidOption(
            f"workers is {workers}.",
            rule="A run needs at least one worker.",
            remedy="Set workers to 1 or more.",
            option="workers",
        )
    tally = _Tally()
    with jobs.start(job, owner=owner, ttl=ttl) as run:
        with _renewing_lease(run, ttl):
            executor.prepare(run)
            for row, landed, error, took in _land_all(run, executor, workers):
                if error is None:
                    run.succeeded(row, rows=landed.rows, took=took, lateness=landed.lateness)
                elif not run.failed(row, error, took=took):
                    error = None  # noqa: PLW2901 - this run has adopted the range, so it is landed
                if error is None:
                    tally.succeeded += 1
                    tally.rows += landed.rows or 0
                else:
                    tally.failed += 1
                    if error not in tally.errors and len(tally.errors) < 5:
                        tally.errors += (error,)
                if on_row is not None:
                    on_row(run, RangeOutcome(row, error, landed.rows, took, landed.lateness))
            executor.finish(run)
        planned = len(run.plan.rows)
    return RunResult(job.name, run.number, planned, tally.succeeded, tally.failed, tally.rows, tally.errors)


def _land_all(
    run: Run, executor: Executor, workers: int
) -> Iterator[tuple[PlannedRange, LandingResult, str | None, int]]:
    """Yield each range with its result as it completes; at most `workers` ranges are in progress."""
    remaining = iter(run.plan.rows)
    with ThreadPoolExecutor(workers, "floodmark-ingest") as pool:
        pending: set[Future[tuple[PlannedRange, LandingResult, str | None, int]]] = set()
        while True:
            pending |= {pool.submit(_land, run, executor, row) for row in islice(remaining, workers - len(pending))}
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _land(run: Run, executor: Executor, row: PlannedRange) -> tuple[PlannedRange, LandingResult, str | None, int]:
    started = perf_counter_ns()
    landed, message = LandingResult(), None
    try:
        landed = executor.land(run, row)
    except Exception as error:
        message = without_secrets(_error_text(error), run.job)
    return row, landed, message, (perf_counter_ns() - started) // 1000


def without_secrets(text: str, job: Job) -> str:
    """Mask the secrets of a job in a text: errors of drivers and servers may contain them."""
    specs = [job.source, job.target, None if job.units is None else job.units.secondary]
    for secret in secrets_in(specs):
        try:
            value = secret.value()
        except FloodmarkError:
            continue
        for confidential in (value, *_passwords_in(value)):
            if len(confidential) >= _SHORTEST_SECRET:
                text = text.replace(confidential, "***")
    return text


def _passwords_in(url: str) -> Iterator[str]:
    """Yield the password of a URL, as written and percent-decoded.

    >>> list(_passwords_in("postgresql://ann:p%40ss@db/shop"))
    ['p%40ss', 'p@ss']
    """
    if "://" in url:
        password = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
        yield from (password, unquote(password)) if password else ()


def _error_text(error: Exception) -> str:
    message = str(error).strip()
    if isinstance(error, FloodmarkError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def _renewing_lease(run: Run, ttl: int) -> Iterator[None]:
    """Renew the lease in a background thread. If it is lost, recording the next outcome raises `LeaseLost`."""
    ended = Event()

    def renew() -> None:
        while not ended.wait(ttl / 3e6):
            try:
                run.renew()
            except LeaseLost:
                return
            except FloodmarkError:
                continue  # the store is busy or unreachable: retry before the lease expires

    thread = Thread(target=renew, name="floodmark-ingest-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
