"""What a home has recorded of a job: runs, attempts and events, read back."""

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, case, func, insert, select

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.text import did_you_mean
from floodmark.errors import UnknownJob, UnknownRun
from floodmark.ingest._ranges import Range
from floodmark.ingest._records import Attempt, Event, JobInfo, RunInfo, Typical
from floodmark.ingest._schema import ATTEMPTS, EVENTS, JOBS, RUNS, UNITS
from floodmark.ingest._unit import Unit

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


def load_job(connection: Connection, name: str, *, lock: bool = False) -> JobInfo:
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
    return tuple(_run(row, counts.get(row.run)) for row in rows)


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


def load_typical(connection: Connection, job: str) -> Typical:
    """Return what a cell took on average in the runs whose details are kept."""
    is_done = ATTEMPTS.c.state == "succeeded"
    row = connection.execute(
        select(func.count(), func.avg(ATTEMPTS.c.row_count), func.avg(ATTEMPTS.c.took)).where(
            ATTEMPTS.c.job == job, is_done
        )
    ).one()
    many, rows, took = row
    return Typical(many, None if rows is None else float(rows), None if took is None else float(took))


def load_events(connection: Connection, job: str, limit: int | None = None) -> tuple[Event, ...]:
    """Return what was done to a job, the newest first."""
    wanted = select(EVENTS).where(EVENTS.c.job == job).order_by(EVENTS.c.event.desc()).limit(limit)
    return tuple(
        Event(row.job, row.event, row.kind, row.actor, from_json(row.details), row.at)
        for row in connection.execute(wanted)
    )


def add_event(connection: Connection, job: str, kind: str, actor: str, details: JsonValue, now: int) -> Event:
    """Write down what was done; the job's lease keeps others from doing so at the same time."""
    last = connection.execute(select(func.max(EVENTS.c.event)).where(EVENTS.c.job == job)).scalar()
    event = Event(job, (last or 0) + 1, kind, actor, details, now)
    values = {"job": job, "event": event.event, "kind": kind, "actor": actor, "at": now}
    connection.execute(insert(EVENTS).values(**values, details=to_json(details, "details of an event")))
    return event


def _run(row: Row[Any], counts: Row[Any] | None) -> RunInfo:
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
