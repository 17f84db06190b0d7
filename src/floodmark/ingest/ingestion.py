"""The jobs of a home, and a run from its plan to its end.

`Ingestion` answers what jobs have read, starts runs, and does what people ask for (backfill, retry, edit, undo).
`run_job` plans a job and drives an executor: planned ranges in parallel, each failing for itself, under a lease that
is kept alive.
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
from floodmark.ingest.calendar.ranges import Range, touches
from floodmark.ingest.job.job import Job, Landing, check_job
from floodmark.ingest.job.options import secrets_in
from floodmark.ingest.job.source import FilesSource, RestSource, SqlSource
from floodmark.ingest.planning.coverage import (
    Coverage,
    Gap,
    UnitCoverage,
    complete_through,
    coverage_before_edit,
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
    """The jobs of a home. One run of a job goes on at a time; whatever changes what is known waits for its end.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> with Home.open(clock=lambda: Bound.parse("2020-01-04", "UTC").at) as home:
    ...     jobs = Ingestion(home)
    ...     run = jobs.start(job, owner="here")
    ...     is_due = run.failed(run.plan.rows[1], "timed out")
    ...     run.end()
    ...     [row.reason for row in jobs.plan(job).rows]
    ['failed', 'new', 'new']
    """

    __slots__ = ("_home", "_leases")

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home
        self._leases = Leases(home)

    # What is known.

    def get(self, name: str) -> JobInfo:
        """Return a job as it was last registered."""
        with self._home.read() as connection:
            return load_job_info(connection, name)

    def all(self) -> tuple[str, ...]:
        """Return the names of all jobs."""
        with self._home.read() as connection:
            return tuple(connection.execute(select(JOBS.c.name).order_by(JOBS.c.name)).scalars())

    def coverage(self, name: str) -> Coverage:
        """Return what is known of all units that a job ever had; nothing for one that was never run."""
        with self._home.read() as connection:
            return load_coverage(connection, name)

    def plan(self, job: Job, *, now: int | None = None, backfill: Range | None = None) -> Plan:
        """Return what a run would read now, at another moment, or after a backfill was asked for. Changes nothing."""
        with self._home.read() as connection:
            coverage = load_coverage(connection, job.name)
            at = self._home.now(connection) if now is None else now
        if backfill is not None:
            wanted = {unit.key: coverage.get(unit.key, UnitCoverage()) for unit in job.listed_units}
            coverage = {**coverage, **{key: known.asked_for(backfill) for key, known in wanted.items()}}
        return plan(job, coverage, at)

    def complete_through(self, job: Job, *, now: int | None = None) -> int | None:
        """Return up to when everything was read, of all units that are listed."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            return complete_through(job, load_coverage(connection, job.name), at)

    def gaps(self, job: Job, *, now: int | None = None) -> tuple[Gap, ...]:
        """Return what was not read that was to be read by now, and why not."""
        with self._home.read() as connection:
            at = self._home.now(connection) if now is None else now
            return find_gaps(job, load_coverage(connection, job.name), at)

    def status(self, job: Job, *, now: int | None = None) -> Status:
        """Return how far a job has come, what is due, and who runs it."""
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
        """Return what a run has recorded."""
        with self._home.read() as connection:
            return load_attempts(connection, name, run)

    def events(self, name: str, *, limit: int | None = None) -> tuple[JobEvent, ...]:
        """Return what people, or changes of the job, have done to what is known; the newest first."""
        with self._home.read() as connection:
            return load_events(connection, name, limit)

    def typical(self, name: str) -> TypicalCell:
        """Return what a cell took on average."""
        with self._home.read() as connection:
            return load_typical(connection, name)

    def lateness(self, name: str) -> dict[int, int]:
        """Return how many rows were found how many calendar days after their own."""
        with self._home.read() as connection:
            return load_lateness(connection, name)

    def note_lateness(self, name: str, lateness: dict[int, int]) -> None:
        """Count rows that were found late, if no run has said so."""
        with self._home.write() as connection:
            load_job_info(connection, name)
            add_lateness(connection, name, lateness)

    def recommended_grace(self, name: str, *, share: float = 0.999) -> int | None:
        """Return the days of grace that would have found such a share of the rows; None if none were counted."""
        return recommended_grace(self.lateness(name), share=share)

    # What changes it.

    def register(self, job: Job, *, actor: str = "") -> JobInfo:
        """Make a job known, or what it says now; what was read of it stays. Written down if it says something new."""
        with exclusive_job_lease(self._home, job.name, actor or "register") as connection:
            register_job(connection, job, now=self._home.now(connection), actor=actor)
            return load_job_info(connection, job.name)

    def start(self, job: Job, *, owner: str, ttl: int = LEASE_TTL, now: int | None = None) -> Run:
        """Begin a run, and plan it; refuse if one goes on. One that was silent for its `ttl` is overtaken."""
        lease = take_job_lease(self._leases, job.name, owner, ttl)
        try:
            with self._home.write() as connection:
                Leases.check(connection, lease)
                at = self._home.now(connection)
                register_job(connection, job, now=at, actor=owner)
                mark_overtaken_runs(connection, job.name, lease, at)
            # Nobody else changes what is known, so no transaction has to wait for the plan.
            with self._home.read() as connection:
                coverage = load_coverage(connection, job.name)
            found = plan(job, coverage, at if now is None else now)
            with self._home.write() as connection:
                Leases.check(connection, lease)
                number = add_run(connection, job, found, lease, at)
        except BaseException:
            self._leases.release(lease)
            raise
        return Run(self._home, job, found, number, lease)

    def backfill(
        self, job: Job, what: Range, *, units: Collection[str] | None = None, actor: str, note: str = ""
    ) -> JobEvent:
        """Have a range read again by the next runs, whatever was read of it; it does not move the frontier."""
        with exclusive_job_lease(self._home, job.name, actor) as connection:
            now = self._home.now(connection)
            register_job(connection, job, now=self._home.now(connection), actor=actor)
            reach = job.reach(now)
            if not reach.lo <= what.lo < what.hi <= reach.hi:
                raise RangeInvalid(
                    f"The backfill is from {job.shown(what.lo)} to {job.shown(what.hi)}.",
                    rule=f"The job reads from {job.shown(reach.lo)} to {job.shown(reach.hi)}.",
                    remedy="Name a range within; to read what is older, move `from` back.",
                    lo=what.lo,
                    hi=what.hi,
                )
            keys = [unit.key for unit in job.listed_units] if units is None else list(units)
            changed = change_coverage(connection, job.name, keys, lambda _: lambda known: known.asked_for(what))
            if job.described()["mode"] == "append" and any(
                touches(before.everything, *what) for before, _ in changed.values()
            ):
                raise JobInvalid(
                    f"The job {job.name!r} appends, and has read something from {job.shown(what.lo)} to "
                    f"{job.shown(what.hi)} already.",
                    rule="What is read again replaces what was there, or is merged with it.",
                    remedy="Set the target's mode to replace or merge.",
                    job=job.name,
                )
            details = {"lo": what.lo, "hi": what.hi, "units": len(keys) if units is None else keys, "note": note}
            return add_event(connection, job.name, "backfill", actor, details, now)

    def retry(
        self, name: str, what: Range | None = None, *, units: Collection[str] | None = None, actor: str, note: str = ""
    ) -> int:
        """Let what has failed, also what is in quarantine, be tried again from zero; return how many ranges it was."""
        bounds = what or Range(-(2**63), 2**63 - 1)
        with exclusive_job_lease(self._home, name, actor) as connection:
            load_job_info(connection, name)
            keys = _unit_keys(connection, name, units)
            changed = change_coverage(connection, name, keys, lambda _: lambda known: known.released(bounds))
            many = sum(
                one.attempts > 0 and touches([one.range], *bounds)
                for before, _ in changed.values()
                for one in before.failures
            )
            details = {"range": what, "units": "all" if units is None else keys, "failures": many, "note": note}
            add_event(connection, name, "retry", actor, details, self._home.now(connection))
        return many

    def edit(
        self,
        name: str,
        what: Range,
        *,
        covered: bool,
        units: Collection[str] | None = None,
        actor: str,
        note: str = "",
    ) -> JobEvent:
        """Say that a range was read, or that it was not, without reading it. Written down, and can be undone."""
        if what.lo >= what.hi:
            raise RangeInvalid(
                f"The range goes from {what.lo} to {what.hi}.",
                rule="It ends after it begins.",
                remedy="Swap them.",
                lo=what.lo,
                hi=what.hi,
            )
        with exclusive_job_lease(self._home, name, actor) as connection:
            load_job_info(connection, name)
            keys = _unit_keys(connection, name, units)
            changed = change_coverage(
                connection, name, keys, lambda _: lambda known: known.edited(what, is_covered=covered)
            )
            old = {key: coverage_before_edit(before, what) for key, (before, _) in changed.items()}
            details = {"lo": what.lo, "hi": what.hi, "covered": covered, "before": old, "note": note}
            return add_event(connection, name, "edit", actor, details, self._home.now(connection))

    def undo(self, name: str, event: int, *, actor: str, note: str = "") -> JobEvent:
        """Take an edit back, unless something has changed its range since."""
        with exclusive_job_lease(self._home, name, actor) as connection:
            found = next((one for one in load_events(connection, name) if one.event == event), None)
            taken = {one.details["event"] for one in load_events(connection, name) if one.kind == "undo"}
            if found is None or found.kind != "edit" or event in taken:
                raise InvalidOption(
                    f"The event {event} of {name!r} is no edit that could be undone.",
                    rule="Each edit can be undone once.",
                    remedy="Look at the events of the job.",
                    job=name,
                    event=event,
                )
            what, before = Range(found.details["lo"], found.details["hi"]), found.details["before"]
            covered = found.details["covered"]

            def back(key: str) -> Callable[[UnitCoverage], UnitCoverage]:
                return lambda known: undo_edit(known, what, before[key], is_covered=covered)

            change_coverage(connection, name, list(before), back)
            details = {"event": event, "note": note}
            return add_event(connection, name, "undo", actor, details, self._home.now(connection))


def _unit_keys(connection: Connection, name: str, units: Collection[str] | None) -> list[str]:
    if units is not None:
        return list(units)
    wanted = select(UNITS.c.unit_key).where(UNITS.c.job == name, UNITS.c.retired_at.is_(None))
    return list(connection.execute(wanted).scalars())


_SHORTEST_SECRET: Final = 4
"""Shorter ones are not looked for in errors: they would blot out words."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has done."""

    job: str
    run: int
    planned: int
    succeeded: int
    failed: int
    rows: int
    """Rows that were landed, as far as the executor has counted them."""
    errors: tuple[str, ...]
    """The first few of what went wrong, each once."""

    @property
    def is_whole(self) -> bool:
        """Whether all that was planned has succeeded."""
        return self.succeeded == self.planned


@dataclass(slots=True)
class _Tally:
    succeeded: int = 0
    failed: int = 0
    rows: int = 0
    errors: tuple[str, ...] = ()


def check_runnable(job: Job) -> None:
    """Refuse a job that does not say where rows come from and where they go; it can only be planned."""
    for name, kinds in (("source", (SqlSource, FilesSource, RestSource)), ("target", (Landing,))):
        if not isinstance(getattr(job, name), kinds):
            raise InvalidOption(
                f"The job {job.name!r} names no {name}.",
                rule="A job that is run says where rows come from and where they go.",
                remedy=f"Add [{name}] to its file. A properties file has none: write it as TOML (job_text does).",
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
    """Plan a job, and extract and land what is due; a row that fails fails alone, and the others go on.

    `on_row` is told of each row when it is recorded, and what became of it. If the run is overtaken, `LeaseLost` is
    raised: what was recorded stays, and nothing more is.
    """
    if workers < 1:
        raise InvalidOption(
            f"There are {workers} workers.", rule="There is at least one.", remedy="Give 1 or more.", option="workers"
        )
    tally = _Tally()
    with jobs.start(job, owner=owner, ttl=ttl) as run:
        with _renewing_lease(run, ttl):
            executor.prepare(run)
            for row, landed, error, took in _land_all(run, executor, workers):
                if error is None:
                    run.succeeded(row, rows=landed.rows, took=took, lateness=landed.lateness)
                elif not run.failed(row, error, took=took):
                    error = None  # noqa: PLW2901 - it was landed all the same
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
    """Give each row as it is done. No more rows are begun than there are workers."""
    rest = iter(run.plan.rows)
    with ThreadPoolExecutor(workers, "floodmark-ingest") as pool:
        open_: set[Future[tuple[PlannedRange, LandingResult, str | None, int]]] = set()
        while True:
            open_ |= {pool.submit(_land, run, executor, row) for row in islice(rest, workers - len(open_))}
            if not open_:
                return
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()


def _land(run: Run, executor: Executor, row: PlannedRange) -> tuple[PlannedRange, LandingResult, str | None, int]:
    begun = perf_counter_ns()
    landed, said = LandingResult(), None
    try:
        landed = executor.land(run, row)
    except Exception as error:
        said = without_secrets(_error_text(error), run.job)
    return row, landed, said, (perf_counter_ns() - begun) // 1000


def without_secrets(text: str, job: Job) -> str:
    """Return a text without the secrets that a job refers to: drivers and servers repeat what they were given."""
    known = [job.source, job.target, None if job.units is None else job.units.secondary]
    for secret in secrets_in(known):
        try:
            value = secret.value()
        except FloodmarkError:
            continue
        for one in (value, *_passwords_in(value)):
            if len(one) >= _SHORTEST_SECRET:
                text = text.replace(one, "***")
    return text


def _passwords_in(url: str) -> Iterator[str]:
    """Give the password of a URL, as it is written there and as it is meant.

    >>> list(_passwords_in("postgresql://ann:p%40ss@db/shop"))
    ['p%40ss', 'p@ss']
    """
    if "://" in url:
        written = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
        yield from (written, unquote(written)) if written else ()


def _error_text(error: Exception) -> str:
    said = str(error).strip()
    if isinstance(error, FloodmarkError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def _renewing_lease(run: Run, ttl: int) -> Iterator[None]:
    """Renew the lease in the background. If it is lost all the same, the next row that is recorded says so."""
    ended = Event()

    def renew() -> None:
        while not ended.wait(ttl / 3e6):
            try:
                run.renew()
            except LeaseLost:
                return
            except FloodmarkError:
                continue  # the home is busy or away: there is time for another try

    thread = Thread(target=renew, name="floodmark-ingest-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
