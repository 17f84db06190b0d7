"""Stores jobs, runs, attempts and events; and the lease of a job, which every change of them requires."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Row, and_, case, delete, func, insert, select, update

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark.control import Home, Lease, Leases
from floodmark.errors import JobRunning, UnknownJob, UnknownRun
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.plan import Plan
from floodmark.ingest.store.coverage import register_units
from floodmark.ingest.store.tables import ATTEMPTS, EVENTS, JOBS, RUNS, UNITS


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A registered job. `definition` has the settings that affected its plans when it was last registered."""

    name: str
    definition: Mapping[str, Any]
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run of a job. A run in the state lost did not renew its lease in time and was replaced."""

    job: str
    run: int
    owner: str
    token: int
    state: str
    planned_at: int
    """The time that its plan was made for."""
    plan: Mapping[str, Any]
    """A summary: reach, totals, cells, the keys of the units, the definition of the job."""
    started_at: int
    ended_at: int | None
    succeeded: int = 0
    failed: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """The recorded outcome of one range in one run."""

    run: int
    unit: Unit
    range: Range
    reason: str
    state: str
    """succeeded, failed, or adopted: landed before its outcome was recorded."""
    rows: int | None
    took: int | None
    """Microseconds."""
    error: str
    at: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A manual change of a job, or a change of its definition. Events are never deleted."""

    job: str
    event: int
    kind: str
    """registered, changed, units changed, backfill, retry, edit, undo or taken over."""
    actor: str
    details: Mapping[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a job."""

    job: str
    now: int
    plan: Plan
    """What a run would read now."""
    complete_through: int | None
    """The time before which every unit was read without gaps."""
    largest_end: int | None
    """The largest end of all ranges read: DIL's high watermark, which ignores gaps."""
    units: int
    running: RunInfo | None
    last: RunInfo | None
    """The newest run that has ended."""


@dataclass(frozen=True, slots=True)
class TypicalCell:
    """The average rows and duration of a cell in the newest runs, for estimates."""

    cells: int
    rows: float | None
    took: float | None
    """Microseconds."""


KEPT_RUNS: Final = 200
"""How many runs of a job are kept with their attempts."""

_EXCLUSIVE_TTL: Final = 60_000_000


def job_lease_name(job: str) -> str:
    """Return the name of a job's lease.

    >>> job_lease_name("orders")
    'ingest/orders'
    """
    return f"ingest/{job}"


def current_job_lease(leases: Leases, job: str) -> Lease | None:
    """Return the lease of a job if it is held."""
    name = job_lease_name(job)
    return next((lease for lease in leases.held(name) if lease.name == name), None)


def take_job_lease(leases: Leases, job: str, owner: str, ttl: int) -> Lease:
    """Acquire the lease of a job, or raise `JobRunning` with its owner."""
    # A random suffix distinguishes two processes with the same owner name.
    lease = leases.acquire(job_lease_name(job), f"{owner}/{uuid4().hex[:8]}", ttl)
    if lease is not None:
        return lease
    holder = current_job_lease(leases, job)
    owner, holder_ttl = ("another process", ttl) if holder is None else (holder.owner, holder.ttl)
    raise JobRunning(
        f"The job {job!r} is being run or changed by {owner}.",
        rule="Only one process at a time may run or change a job.",
        remedy="Wait until it ends. If it has crashed, its lease expires "
        f"{holder_ttl // 1_000_000} s after its last heartbeat.",
        job=job,
        owner=None if holder is None else holder.owner,
        expires_at=None if holder is None else holder.expires_at,
    )


@contextmanager
def exclusive_job_lease(home: Home, job: str, actor: str) -> Iterator[Connection]:
    """Hold the lease of a job and yield the connection of a write transaction."""
    leases = Leases(home)
    lease = take_job_lease(leases, job, actor, _EXCLUSIVE_TTL)
    try:
        with home.write() as connection:
            Leases.check(connection, lease)
            mark_overtaken_runs(connection, job, lease, home.now(connection))
            yield connection
    finally:
        leases.release(lease)


def mark_overtaken_runs(connection: Connection, job: str, lease: Lease, now: int) -> None:
    """Set runs that were started under an older lease to the state lost, and record an event."""
    overtaken = (RUNS.c.job == job) & (RUNS.c.state == "running") & (RUNS.c.token < lease.token)
    runs = connection.execute(select(RUNS.c.run, RUNS.c.owner).where(overtaken)).all()
    if runs:
        connection.execute(update(RUNS).where(overtaken).values(state="lost", ended_at=now))
        details = {"runs": [[row.run, row.owner] for row in runs]}
        add_event(connection, job, "taken over", lease.owner, details, now)


def register_job(connection: Connection, job: Job, *, now: int, actor: str) -> None:
    """Insert or update a job and its units, and record changes as events."""
    definition = job.described()
    text = to_json(definition, "definition")
    values = {"name": job.name, "definition": text, "created_at": now, "updated_at": now}
    # The lease prevents a concurrent insert of the same job.
    if connection.execute(select(JOBS.c.name).where(JOBS.c.name == job.name)).one_or_none() is None:
        connection.execute(insert(JOBS).values(values))
        add_event(connection, job.name, "registered", actor, {"new": definition}, now)
    else:
        previous = load_job_info(connection, job.name, lock=True).definition
        changed = [name for name in definition if previous.get(name) != definition[name]]
        if changed:
            old, new = ({name: values.get(name) for name in changed} for values in (previous, definition))
            connection.execute(update(JOBS).where(JOBS.c.name == job.name).values(definition=text, updated_at=now))
            add_event(connection, job.name, "changed", actor, {"old": old, "new": new}, now)
    if job.units is None or job.units.units is not None:
        keys = [unit.key for unit in job.listed_units]
        new_units, reactivated, retired = register_units(connection, job.name, keys, job.reach(now).lo, now)
        if reactivated or retired:
            details = {"new": new_units, "back": reactivated, "retired": retired}
            add_event(connection, job.name, "units changed", actor, details, now)


def add_run(connection: Connection, job: Job, plan: Plan, lease: Lease, now: int) -> int:
    """Insert a run with a summary of its plan, delete the oldest runs, and return the number of the new run."""
    last = connection.execute(select(func.max(RUNS.c.run)).where(RUNS.c.job == job.name)).scalar()
    number = int(last or 0) + 1
    summary: dict[str, Any] = {
        "reach": list(plan.reach),
        "totals": dict(plan.totals),
        "cells": plan.cells,
        "units": [unit.key for unit in job.listed_units],
        "definition": job.described(),
    }
    values = {"job": job.name, "run": number, "owner": lease.owner, "token": lease.token, "state": "running"}
    text = to_json(summary, "plan")
    connection.execute(insert(RUNS).values(**values, planned_at=plan.now, plan=text, started_at=now))
    for table in (ATTEMPTS, RUNS):
        connection.execute(delete(table).where(table.c.job == job.name, table.c.run <= number - KEPT_RUNS))
    return number


_IS_FAILED: Final = ATTEMPTS.c.state == "failed"
_ATTEMPT_COUNTS: Final = (
    select(
        ATTEMPTS.c.run,
        func.count().label("total"),
        func.sum(case((_IS_FAILED, 1), else_=0)).label("failed"),
        func.sum(func.coalesce(ATTEMPTS.c.row_count, 0)).label("row_count"),
    )
    .group_by(ATTEMPTS.c.run)
    .order_by(ATTEMPTS.c.run)
)


def load_job_info(connection: Connection, name: str, *, lock: bool = False) -> JobInfo:
    """Return a job, or raise `UnknownJob`."""
    query = select(JOBS).where(JOBS.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        names = connection.execute(select(JOBS.c.name)).scalars().all()
        raise UnknownJob(
            f"There is no job {name!r}.",
            rule="A home knows a job after its first run, backfill or registration.",
            remedy=did_you_mean(str(name), names, otherwise="Run the job first, or use the home in which it runs."),
            job=name,
        )
    return JobInfo(row.name, from_json(row.definition), row.created_at, row.updated_at)


def load_runs(connection: Connection, job: str, limit: int | None = None) -> tuple[RunInfo, ...]:
    """Return the runs of a job with the counts of their attempts, the newest first."""
    rows = connection.execute(select(RUNS).where(RUNS.c.job == job).order_by(RUNS.c.run.desc()).limit(limit)).all()
    if not rows:
        return ()
    query = _ATTEMPT_COUNTS.where(ATTEMPTS.c.job == job, ATTEMPTS.c.run >= rows[-1].run)
    counts = {row.run: row for row in connection.execute(query)}
    return tuple(_run_info(row, counts.get(row.run)) for row in rows)


def load_attempts(connection: Connection, job: str, run: int) -> tuple[Attempt, ...]:
    """Return the attempts of a run, ordered by unit and time."""
    if connection.execute(select(RUNS.c.run).where(RUNS.c.job == job, RUNS.c.run == run)).one_or_none() is None:
        raise UnknownRun(
            f"The job {job!r} has no run {run}.",
            rule=f"The newest {KEPT_RUNS} runs of a job are kept; of older ones only the coverage.",
            remedy=f"`floodmark ingest history {job}` lists the runs.",
            job=job,
            run=run,
        )
    units = and_(UNITS.c.job == ATTEMPTS.c.job, UNITS.c.unit == ATTEMPTS.c.unit)
    query = select(ATTEMPTS, UNITS.c.unit_key).join(UNITS, units).where(ATTEMPTS.c.job == job, ATTEMPTS.c.run == run)
    return tuple(
        Attempt(
            run=row.run,
            unit=Unit.load(row.unit_key),
            range=Range(row.lo, row.hi),
            reason=row.reason,
            state=row.state,
            rows=row.row_count,
            took=row.took,
            error=row.error,
            at=row.at,
        )
        for row in connection.execute(query.order_by(ATTEMPTS.c.unit, ATTEMPTS.c.lo))
    )


def load_typical(connection: Connection, job: str) -> TypicalCell:
    """Return the average rows and duration of a cell in the kept runs."""
    is_done = ATTEMPTS.c.state == "succeeded"
    row = connection.execute(
        select(func.count(), func.avg(ATTEMPTS.c.row_count), func.avg(ATTEMPTS.c.took)).where(
            ATTEMPTS.c.job == job, is_done
        )
    ).one()
    cells, rows, took = row
    return TypicalCell(cells, None if rows is None else float(rows), None if took is None else float(took))


def load_events(connection: Connection, job: str, limit: int | None = None) -> tuple[JobEvent, ...]:
    """Return the events of a job, the newest first."""
    query = select(EVENTS).where(EVENTS.c.job == job).order_by(EVENTS.c.event.desc()).limit(limit)
    return tuple(
        JobEvent(row.job, row.event, row.kind, row.actor, from_json(row.details), row.at)
        for row in connection.execute(query)
    )


def add_event(connection: Connection, job: str, kind: str, actor: str, details: JsonValue, now: int) -> JobEvent:
    """Insert an event; the caller holds the job's lease, so its number is unique."""
    last = connection.execute(select(func.max(EVENTS.c.event)).where(EVENTS.c.job == job)).scalar()
    event = JobEvent(job, (last or 0) + 1, kind, actor, details, now)
    values = {"job": job, "event": event.event, "kind": kind, "actor": actor, "at": now}
    connection.execute(insert(EVENTS).values(**values, details=to_json(details, "details of an event")))
    return event


def _run_info(row: Row[Any], counts: Row[Any] | None) -> RunInfo:
    total, failed, rows = (0, 0, 0) if counts is None else (counts.total, int(counts.failed), int(counts.row_count))
    return RunInfo(
        job=row.job,
        run=row.run,
        owner=row.owner,
        token=row.token,
        state=row.state,
        planned_at=row.planned_at,
        plan=from_json(row.plan),
        started_at=row.started_at,
        ended_at=row.ended_at,
        succeeded=total - failed,
        failed=failed,
        rows=rows,
    )
