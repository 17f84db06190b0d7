"""What the processes do that run one job at the same time. They share nothing but the home."""

import random
from time import monotonic, sleep

from floodmark.control import Home
from floodmark.errors import JobRunning, LeaseLost
from floodmark.ingest import Ingestion
from support.ingest.ingest_jobs import job_of

TTL = 60_000
JOB = job_of("2020-01-01", "2020-02-01", "daily", units=["a", "b"], cells=12, attempts=None)


def run_until_done(place: str, number: int) -> tuple[list[tuple[str, int, int, int]], int, int]:
    """Run the job again and again, at an uneven pace; return what was recorded, and how often refused and lost."""
    chance = random.Random(number)
    recorded: list[tuple[str, int, int, int]] = []
    refused = lost = 0
    has_hung = False
    with Home.open(place) as home:
        jobs = Ingestion(home)
        give_up = monotonic() + 50
        while monotonic() < give_up:
            try:
                run = jobs.start(JOB, owner=f"process {number}", ttl=TTL)
            except JobRunning:
                refused += 1
                sleep(chance.random() * 0.02)
                continue
            except LeaseLost:
                # Overtaken before it had begun.
                lost += 1
                continue
            try:
                if run.plan.is_empty:
                    run.end()
                    return recorded, refused, lost
                for row in run.plan.rows:
                    # Once, and now and then, for longer than the others wait.
                    hangs = len(recorded) == 2 and not has_hung
                    has_hung |= hangs
                    sleep(0.3 if hangs or chance.random() < 0.02 else 0.001)
                    if chance.random() < 0.1:
                        run.failed(row, "by chance")
                    else:
                        run.succeeded(row, rows=1)
                        recorded.append((row.unit.key, *row.range, run.token))
                run.end()
            except LeaseLost:
                lost += 1
    raise AssertionError("it did not end in time")


def run_and_hang(place: str, at_work: object) -> None:
    """Begin a run, record one row, and wait to be killed."""
    with Home.open(place) as home:
        run = Ingestion(home).start(JOB, owner="victim", ttl=TTL)
        run.succeeded(run.plan.rows[0])
        at_work.set()  # type: ignore[attr-defined]
        sleep(60)
