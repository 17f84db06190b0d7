"""Jobs in a home: what they have read, who runs them, and what people have done to them."""

from collections.abc import Callable, Collection

from sqlalchemy import Connection, select

from floodmark.control import Home, Leases
from floodmark.errors import InvalidOption, JobInvalid, RangeInvalid
from floodmark.ingest._alone import add_run, alone, held_lease, overtake, register_job, take_lease
from floodmark.ingest._coverage import Coverage, UnitCoverage
from floodmark.ingest._edits import before_edit, undone
from floodmark.ingest._gaps import find_gaps
from floodmark.ingest._job import Job
from floodmark.ingest._known import change_units, load_coverage
from floodmark.ingest._lateness import add_lateness, load_lateness
from floodmark.ingest._plan import Plan, complete_through, largest_end, plan, recommended_grace
from floodmark.ingest._ranges import Range, touches
from floodmark.ingest._records import Attempt, Event, Gap, JobInfo, RunInfo, Status, Typical
from floodmark.ingest._reports import (
    add_event,
    load_attempts,
    load_events,
    load_job,
    load_runs,
    load_typical,
)
from floodmark.ingest._run import LEASE_TTL, Run
from floodmark.ingest._schema import JOBS, UNITS


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
            return load_job(connection, name)

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
        lease = held_lease(self._leases, job.name)
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
            load_job(connection, name)
            return load_runs(connection, name, limit)

    def attempts(self, name: str, run: int) -> tuple[Attempt, ...]:
        """Return what a run has recorded."""
        with self._home.read() as connection:
            return load_attempts(connection, name, run)

    def events(self, name: str, *, limit: int | None = None) -> tuple[Event, ...]:
        """Return what people, or changes of the job, have done to what is known; the newest first."""
        with self._home.read() as connection:
            return load_events(connection, name, limit)

    def typical(self, name: str) -> Typical:
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
            load_job(connection, name)
            add_lateness(connection, name, lateness)

    def recommended_grace(self, name: str, *, share: float = 0.999) -> int | None:
        """Return the days of grace that would have found such a share of the rows; None if none were counted."""
        return recommended_grace(self.lateness(name), share=share)

    # What changes it.

    def register(self, job: Job, *, actor: str = "") -> JobInfo:
        """Make a job known, or what it says now; what was read of it stays. Written down if it says something new."""
        with alone(self._home, job.name, actor or "register") as connection:
            register_job(connection, job, now=self._home.now(connection), actor=actor)
            return load_job(connection, job.name)

    def start(self, job: Job, *, owner: str, ttl: int = LEASE_TTL, now: int | None = None) -> Run:
        """Begin a run, and plan it; refuse if one goes on. One that was silent for its `ttl` is overtaken."""
        lease = take_lease(self._leases, job.name, owner, ttl)
        try:
            with self._home.write() as connection:
                Leases.check(connection, lease)
                at = self._home.now(connection)
                register_job(connection, job, now=at, actor=owner)
                overtake(connection, job.name, lease, at)
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
    ) -> Event:
        """Have a range read again by the next runs, whatever was read of it; it does not move the frontier."""
        with alone(self._home, job.name, actor) as connection:
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
            changed = change_units(connection, job.name, keys, lambda _: lambda known: known.asked_for(what))
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
        with alone(self._home, name, actor) as connection:
            load_job(connection, name)
            keys = _keys(connection, name, units)
            changed = change_units(connection, name, keys, lambda _: lambda known: known.released(bounds))
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
    ) -> Event:
        """Say that a range was read, or that it was not, without reading it. Written down, and can be undone."""
        if what.lo >= what.hi:
            raise RangeInvalid(
                f"The range goes from {what.lo} to {what.hi}.",
                rule="It ends after it begins.",
                remedy="Swap them.",
                lo=what.lo,
                hi=what.hi,
            )
        with alone(self._home, name, actor) as connection:
            load_job(connection, name)
            keys = _keys(connection, name, units)
            changed = change_units(
                connection, name, keys, lambda _: lambda known: known.edited(what, is_covered=covered)
            )
            old = {key: before_edit(before, what) for key, (before, _) in changed.items()}
            details = {"lo": what.lo, "hi": what.hi, "covered": covered, "before": old, "note": note}
            return add_event(connection, name, "edit", actor, details, self._home.now(connection))

    def undo(self, name: str, event: int, *, actor: str, note: str = "") -> Event:
        """Take an edit back, unless something has changed its range since."""
        with alone(self._home, name, actor) as connection:
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
                return lambda known: undone(known, what, before[key], is_covered=covered)

            change_units(connection, name, list(before), back)
            details = {"event": event, "note": note}
            return add_event(connection, name, "undo", actor, details, self._home.now(connection))


def _keys(connection: Connection, name: str, units: Collection[str] | None) -> list[str]:
    if units is not None:
        return list(units)
    wanted = select(UNITS.c.unit_key).where(UNITS.c.job == name, UNITS.c.retired_at.is_(None))
    return list(connection.execute(wanted).scalars())
