"""Being alone with a job: its lease, and what is only done under it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, delete, func, insert, select, update

from floodmark._util.codec import to_json
from floodmark.control import Home, Lease, Leases
from floodmark.errors import JobRunning
from floodmark.ingest._job import Job
from floodmark.ingest._known import register_units
from floodmark.ingest._plan import Plan
from floodmark.ingest._reports import add_event, load_job
from floodmark.ingest._schema import ATTEMPTS, JOBS, RUNS

KEPT_RUNS: Final = 200
"""Of how many runs of a job the details are kept."""

_TTL: Final = 60_000_000


def lease_name(job: str) -> str:
    """Return under which name a job is leased.

    >>> lease_name("orders")
    'ingest/orders'
    """
    return f"ingest/{job}"


def held_lease(leases: Leases, job: str) -> Lease | None:
    """Return the lease of a job, if somebody has it."""
    name = lease_name(job)
    return next((one for one in leases.held(name) if one.name == name), None)


def take_lease(leases: Leases, job: str, owner: str, ttl: int) -> Lease:
    """Take the lease of a job, or say who has it."""
    # Two that call themselves alike are still two.
    lease = leases.acquire(lease_name(job), f"{owner}/{uuid4().hex[:8]}", ttl)
    if lease is not None:
        return lease
    holder = held_lease(leases, job)
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
def alone(home: Home, job: str, actor: str) -> Iterator[Connection]:
    """Give a connection that writes to somebody who has the job's lease until the end."""
    leases = Leases(home)
    lease = take_lease(leases, job, actor, _TTL)
    try:
        with home.write() as connection:
            Leases.check(connection, lease)
            overtake(connection, job, lease, home.now(connection))
            yield connection
    finally:
        leases.release(lease)


def overtake(connection: Connection, job: str, lease: Lease, now: int) -> None:
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
        known = load_job(connection, job.name, lock=True).definition
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
