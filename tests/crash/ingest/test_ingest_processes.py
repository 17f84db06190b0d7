"""Claims about real processes that run one job at the same time, on SQLite and on PostgreSQL."""

import os
import signal
from contextlib import suppress

import pytest

from floodmark.control import Home
from floodmark.errors import JobRunning
from floodmark.ingest import Ingestion, Range, Run
from floodmark.ingest.calendar.ranges import merge_ranges, total_length
from support.ingest.ingest_jobs import span
from support.ingest.ingest_processes import JOB, run_and_hang, run_until_done
from support.racing import CONTEXT, Racers
from support.waiting import wait_until


@pytest.fixture
def clock() -> None:
    """The real one."""


def test_what_several_processes_read_together_is_read_once(place: str, racers: Racers) -> None:
    """Some are overtaken in the middle of a run: what they then say does not count."""
    with Home.open(place) as home:
        jobs = Ingestion(home)
        outcomes = racers.race(run_until_done, place)
        everything = span("2020-01-01..2020-02-01")
        for unit, known in jobs.coverage(JOB.name).items():
            ranges = [Range(lo, hi) for recorded, _, _ in outcomes for key, lo, hi, _ in recorded if key == unit]
            assert merge_ranges(ranges) == list(known.covered) == [everything]
            assert total_length(ranges) == total_length([everything]), "no range was read and recorded twice"
        assert sum(refused for _, refused, _ in outcomes) > 0, "somebody was refused, or this test shows nothing"
        assert sum(lost for _, _, lost in outcomes) > 0, "somebody was overtaken, or this test shows nothing"
        runs = jobs.history(JOB.name, limit=None)
        tokens = [run.token for run in runs]
        assert tokens == sorted(tokens, reverse=True)
        assert len(set(tokens)) == len(tokens)
        assert {run.state for run in runs} == {"done", "lost"}


def test_a_run_that_is_killed_is_continued_by_another_after_its_ttl(home: Home) -> None:
    at_work = CONTEXT.Event()
    victim = CONTEXT.Process(target=run_and_hang, args=(home.location, at_work))
    victim.start()
    assert at_work.wait(30)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    jobs = Ingestion(home)

    def begin() -> Run | None:
        with suppress(JobRunning):
            return jobs.start(JOB, owner="next")
        return None

    run = wait_until(begin)
    assert run is not None
    assert run.plan.totals["new"] == 2 * 31 - 1, "the row that was recorded is known"
    run.end()
    assert [one.state for one in jobs.history(JOB.name)] == ["done", "lost"]
