"""Processes that land in a stream and are killed or stopped: each row is there once, and time tells the truth."""

import os
import signal
from datetime import timedelta

import pytest

from floodmark.control import Home
from floodmark.ingest.landing.stream import (
    BEFORE_TIME,
    DECIDED,
    LANDED,
    PREPARED,
    ROWS_WRITTEN,
    TIME_DECIDED,
    StreamLanding,
)
from floodmark.streams import connect
from support.ingest.landing_process import (
    ALL,
    DAY,
    DAYS,
    NAME,
    START,
    Feeding,
    LandingJob,
    finish,
    ids_in,
    job_of,
    late_in,
    load,
    start,
    watermark,
)
from support.processes import wait_for_line

TTL = 300_000
"""How long the run of a process that dies keeps the others waiting."""


@pytest.mark.parametrize(
    ("place", "on", "rows", "told"),
    [
        (PREPARED, 1, 0, None),
        pytest.param(ROWS_WRITTEN, 1, 0, None, marks=pytest.mark.full),
        (ROWS_WRITTEN, 4, 30, None),
        pytest.param(DECIDED, 1, 10, None, marks=pytest.mark.full),
        (DECIDED, 8, 80, None),
        pytest.param(LANDED, 4, 40, None, marks=pytest.mark.full),
        (BEFORE_TIME, 1, 80, None),
        (TIME_DECIDED, 1, 80, DAYS),
    ],
)
def test_a_process_killed_at_a_step_is_followed_by_a_run_that_ends_with_each_row_once(
    home: Home, place: str, on: int, rows: int, told: int | None
) -> None:
    assert finish(start(LandingJob(home.location, place, on, ttl=TTL)))[0] == -signal.SIGKILL
    with connect(home.location, controller=False) as streams:
        job = job_of()
        landing = Feeding(StreamLanding(streams, job))
        # What was decided is there as soon as anybody looks after the home, or begins the next run.
        if told is not None:
            assert watermark(streams) == told
        result = load(streams, job, landing)
        assert (result.planned, result.rows) == (8 - rows // 10, 80 - rows)
        stream = streams.stream(NAME)
        assert ids_in(stream) == ALL
        assert watermark(streams) == DAYS
        assert late_in(streams) == []


@pytest.mark.parametrize("place", [ROWS_WRITTEN, BEFORE_TIME])
def test_a_process_that_slept_wakes_up_to_find_that_it_can_commit_nothing(sqlite_home: Home, place: str) -> None:
    # Its lease is long enough not to be renewed just when it stops: then it would have the home's file.
    process = start(LandingJob(sqlite_home.location, place, 1, by="stop", ttl=3_000_000))
    wait_for_line(process, "stopped")
    with connect(sqlite_home.location, controller=False) as home:
        load(home, job_of())
        os.kill(process.pid, signal.SIGCONT)
        assert finish(process) == (3, "lease-lost")
        assert ids_in(home.stream(NAME)) == ALL
        assert watermark(home) == DAYS


def test_with_the_events_in_kafka_it_is_the_same(sqlite_home: Home, log_in_kafka: None) -> None:
    process = start(LandingJob(sqlite_home.location, DECIDED, 3, ttl=TTL))
    assert finish(process)[0] == -signal.SIGKILL
    with connect(sqlite_home.location) as home:
        load(home, job_of())
        stream = home.stream(NAME)
        assert stream.info.log is not None
        stream.await_mark(START + DAYS * DAY, timeout=timedelta(seconds=20))
        assert ids_in(stream) == ALL
        assert late_in(home) == []
