"""Jobs, runs, attempts and events as rows of tables; and the lease without which none of them is changed."""

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
    """A job that a home knows. `definition` says what decided about its plans when it was last registered."""

    name: str
    definition: Mapping[str, Any]
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run of a job. One that is lost was overtaken, because it did not renew its lease in time."""

    job: str
    run: int
    owner: str
    token: int
    state: str
    planned_at: int
    """The moment that its plan was made for."""
    plan: Mapping[str, Any]
    """A summary: reach, totals, cells, the keys of the units, the definition of the job."""
    started_at: int
    ended_at: int | None
    succeeded: int = 0
    failed: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a run has recorded of one range."""

    run: int
    unit: Unit
    range: Range
    reason: str
    state: str
    """succeeded, failed, or adopted: found to have been landed by an earlier run."""
    rows: int | None
    took: int | None
    """Microseconds."""
    error: str
    at: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that a person, or a changed job, has done to what is known. Never deleted."""

    job: str
    event: int
    kind: str
    """registered, changed, units changed, backfill, retry, edit, undo or taken over."""
    actor: str
    details: Mapping[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Status:
    """How far a job has come."""

    job: str
    now: int
    plan: Plan
    """What would be read now."""
    complete_through: int | None
    """Up to when everything was read, of every unit."""
    largest_end: int | None
    """The largest end of all that was read: DIL's high watermark, which says nothing of holes."""
    units: int
    running: RunInfo | None
    last: RunInfo | None
    """The newest run that has ended."""


@dataclass(frozen=True, slots=True)
class TypicalCell:
    """What a cell has taken on average, in the newest runs. Good for an estimate."""

    cells: int
    rows: float | None
    took: float | None
    """Microseconds."""


KEPT_RUNS: Final = 200
"""Of how many runs of a job the details are kept."""

_TTL: Final = 60_000_000


def job_lease_name(job: str) -> str:
    """Return under which name a job is leased.

    >>> job_lease_name("orders")
    'ingest/orders'
    """
    return f"ingest/{job}"


def current_job_lease(leases: Leases, job: str) -> Lease | None:
    """Return the lease of a job, if somebody has it."""
    name = job_lease_name(job)
    return next((one for one in leases.held(name) if one.name == name), None)


def take_job_lease(leases: Leases, job: str, owner: str, ttl: int) -> Lease:
    """Take the lease of a job, or say who has it."""
    # Two that call themselves alike are still two.
    lease = leases.acquire(job_lease_name(job), f"{owner}/{uuid4().hex[:8]}", ttl)
    if lease is not None:
        return lease
    holder = current_job_lease(leases, job)
    who, left = ("somebody else", ttl) if holder is None else (holder.owner, holder.ttl)
    raise JobRunning(
        f"The job {job!r} is being run or changed by {who}.",
        rule="A job is run, edited or changed by one at a time.",
        remedy=f"Wait for its end. If it has died, its place is free {left // 1_000_000} s after it was last heard.",
        job=job,
        owner=None if holder is None else holder.owner,
        expires_at=None if holder is None else holder.expires_at,
    )


@contextmanager
def exclusive_job_lease(home: Home, job: str, actor: str) -> Iterator[Connection]:
    """Give a connection that writes to somebody who has the job's lease until the end."""
    leases = Leases(home)
    lease = take_job_lease(leases, job, actor, _TTL)
    try:
        with home.write() as connection:
            Leases.check(connection, lease)
            mark_overtaken_runs(connection, job, lease, home.now(connection))
            yield connection
    finally:
        leases.release(lease)


def mark_overtaken_runs(connection: Connection, job: str, lease: Lease, now: int) -> None:
    """Say of runs that were going on under an older lease that they are lost."""
    lost = (RUNS.c.job == job) & (RUNS.c.state == "running") & (RUNS.c.token < lease.token)
    runs = connection.execute(select(RUNS.c.run, RUNS.c.owner).where(lost)).all()
    if runs:
        connection.execute(update(RUNS).where(lost).values(state="lost", ended_at=now))
        details = {"runs": [[row.run, row.owner] for row in runs]}
        add_event(connection, job, "taken over", lease.owner, details, now)


def register_job(connection: Connection, job: Job, *, now: int, actor: str) -> None:
    """Make a job and its units known as they are now; write down what has changed."""
    definition = job.described()
    text = to_json(definition, "definition")
    values = {"name": job.name, "definition": text, "created_at": now, "updated_at": now}
    # The lease keeps others from making the same job meanwhile.
    if connection.execute(select(JOBS.c.name).where(JOBS.c.name == job.name)).one_or_none() is None:
        connection.execute(insert(JOBS).values(values))
        add_event(connection, job.name, "registered", actor, {"new": definition}, now)
    else:
        known = load_job_info(connection, job.name, lock=True).definition
        changed = [name for name in definition if known.get(name) != definition[name]]
        if changed:
            old, new = ({name: one.get(name) for name in changed} for one in (known, definition))
            connection.execute(update(JOBS).where(JOBS.c.name == job.name).values(definition=text, updated_at=now))
            add_event(connection, job.name, "changed", actor, {"old": old, "new": new}, now)
    if job.units is None or job.units.units is not None:
        keys = [unit.key for unit in job.listed_units]
        new_units, back, gone = register_units(connection, job.name, keys, job.reach(now).lo, now)
        if back or gone:
            details = {"new": new_units, "back": back, "retired": gone}
            add_event(connection, job.name, "units changed", actor, details, now)


def add_run(connection: Connection, job: Job, found: Plan, lease: Lease, now: int) -> int:
    """Write down that a run begins, with its plan; give up the details of old ones. Return its number."""
    last = connection.execute(select(func.max(RUNS.c.run)).where(RUNS.c.job == job.name)).scalar()
    number = int(last or 0) + 1
    summary: dict[str, Any] = {
        "reach": list(found.reach),
        "totals": dict(found.totals),
        "cells": found.cells,
        "units": [unit.key for unit in job.listed_units],
        "definition": job.described(),
    }
    values = {"job": job.name, "run": number, "owner": lease.owner, "token": lease.token, "state": "running"}
    text = to_json(summary, "plan")
    connection.execute(insert(RUNS).values(**values, planned_at=found.now, plan=text, started_at=now))
    for table in (ATTEMPTS, RUNS):
        connection.execute(delete(table).where(table.c.job == job.name, table.c.run <= number - KEPT_RUNS))
    return number


_IS_FAILED: Final = ATTEMPTS.c.state == "failed"
_COUNTS: Final = (
    select(
        ATTEMPTS.c.run,
        func.count().label("many"),
        func.sum(case((_IS_FAILED, 1), else_=0)).label("failed"),
        func.sum(func.coalesce(ATTEMPTS.c.row_count, 0)).label("row_count"),
    )
    .group_by(ATTEMPTS.c.run)
    .order_by(ATTEMPTS.c.run)
)


def load_job_info(connection: Connection, name: str, *, lock: bool = False) -> JobInfo:
    """Return a job, or say what else there is."""
    wanted = select(JOBS).where(JOBS.c.name == name)
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        known = connection.execute(select(JOBS.c.name)).scalars().all()
        raise UnknownJob(
            f"There is no job {name!r}.",
            rule="A job is known once it was registered, or run.",
            remedy=did_you_mean(str(name), known, otherwise="Name another home, or run it."),
            job=name,
        )
    return JobInfo(row.name, from_json(row.definition), row.created_at, row.updated_at)


def load_runs(connection: Connection, job: str, limit: int | None = None) -> tuple[RunInfo, ...]:
    """Return the runs of a job, the newest first, with what each has recorded."""
    rows = connection.execute(select(RUNS).where(RUNS.c.job == job).order_by(RUNS.c.run.desc()).limit(limit)).all()
    if not rows:
        return ()
    counted = _COUNTS.where(ATTEMPTS.c.job == job, ATTEMPTS.c.run >= rows[-1].run)
    counts = {row.run: row for row in connection.execute(counted)}
    return tuple(_run_info(row, counts.get(row.run)) for row in rows)


def load_attempts(connection: Connection, job: str, run: int) -> tuple[Attempt, ...]:
    """Return what a run has recorded, in the order of units and time."""
    if connection.execute(select(RUNS.c.run).where(RUNS.c.job == job, RUNS.c.run == run)).one_or_none() is None:
        raise UnknownRun(
            f"The job {job!r} has no run {run}.",
            rule="Of older runs nothing is kept but what they have read.",
            remedy="Look at the history for the runs that are known.",
            job=job,
            run=run,
        )
    units = and_(UNITS.c.job == ATTEMPTS.c.job, UNITS.c.unit == ATTEMPTS.c.unit)
    wanted = select(ATTEMPTS, UNITS.c.unit_key).join(UNITS, units).where(ATTEMPTS.c.job == job, ATTEMPTS.c.run == run)
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
        for row in connection.execute(wanted.order_by(ATTEMPTS.c.unit, ATTEMPTS.c.lo))
    )


def load_typical(connection: Connection, job: str) -> TypicalCell:
    """Return what a cell took on average in the runs whose details are kept."""
    is_done = ATTEMPTS.c.state == "succeeded"
    row = connection.execute(
        select(func.count(), func.avg(ATTEMPTS.c.row_count), func.avg(ATTEMPTS.c.took)).where(
            ATTEMPTS.c.job == job, is_done
        )
    ).one()
    many, rows, took = row
    return TypicalCell(many, None if rows is None else float(rows), None if took is None else float(took))


def load_events(connection: Connection, job: str, limit: int | None = None) -> tuple[JobEvent, ...]:
    """Return what was done to a job, the newest first."""
    wanted = select(EVENTS).where(EVENTS.c.job == job).order_by(EVENTS.c.event.desc()).limit(limit)
    return tuple(
        JobEvent(row.job, row.event, row.kind, row.actor, from_json(row.details), row.at)
        for row in connection.execute(wanted)
    )


def add_event(connection: Connection, job: str, kind: str, actor: str, details: JsonValue, now: int) -> JobEvent:
    """Write down what was done; the job's lease keeps others from doing so at the same time."""
    last = connection.execute(select(func.max(EVENTS.c.event)).where(EVENTS.c.job == job)).scalar()
    event = JobEvent(job, (last or 0) + 1, kind, actor, details, now)
    values = {"job": job, "event": event.event, "kind": kind, "actor": actor, "at": now}
    connection.execute(insert(EVENTS).values(**values, details=to_json(details, "details of an event")))
    return event


def _run_info(row: Row[Any], counts: Row[Any] | None) -> RunInfo:
    many, failed, rows = (0, 0, 0) if counts is None else (counts.many, int(counts.failed), int(counts.row_count))
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
        succeeded=many - failed,
        failed=failed,
        rows=rows,
    )
