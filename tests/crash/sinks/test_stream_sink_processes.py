"""Processes that write to a stream as a target and are killed or stopped."""

import os
import signal
from collections import Counter
from datetime import timedelta

import pytest

from floodmark.control import Home
from floodmark.sinks.target import (
    COMMITTED,
    PROGRESS_FLUSHED,
    ROWS_FLUSHED,
    SOME_ROWS_SENT,
)
from floodmark.streams import connect
from support.processes import wait_for_line
from support.sinks.sink_process import BATCHES, ROWS, bind, finish
from support.sinks.stream_process import NAME, StreamJob, StreamQuery, broken_marks, ids_in, start

ALL = Counter(range(BATCHES * ROWS))


KILLED = (SOME_ROWS_SENT, ROWS_FLUSHED, PROGRESS_FLUSHED, COMMITTED)


@pytest.mark.parametrize("place", KILLED)
def test_a_process_killed_at_a_step_is_followed_by_one_that_goes_on(sqlite_home: Home, place: str) -> None:
    bind(sqlite_home)
    job = StreamJob(sqlite_home.location, die_at=place, die_in=1)
    assert finish(start(job))[0] == -signal.SIGKILL
    with connect(sqlite_home.location) as home:
        StreamQuery(home, StreamJob(sqlite_home.location)).start().run()
        stream = home.stream(NAME)
        stream.await_mark(400)
        assert ids_in(stream) == ALL
        assert broken_marks(stream) == []


def test_a_process_that_slept_wakes_up_to_find_that_it_is_fenced(sqlite_home: Home) -> None:
    bind(sqlite_home)
    job = StreamJob(sqlite_home.location, die_at=ROWS_FLUSHED, die_in=1, by="stop")
    process = start(job)
    wait_for_line(process, "stopped")
    with connect(sqlite_home.location, controller=False) as home:
        StreamQuery(home, StreamJob(sqlite_home.location)).start().run()
        os.kill(process.pid, signal.SIGCONT)
        assert finish(process) == (3, "sink-fenced")
        assert ids_in(home.stream(NAME)) == ALL


@pytest.mark.parametrize(
    "place",
    [
        SOME_ROWS_SENT,
        pytest.param(ROWS_FLUSHED, marks=pytest.mark.full),
        pytest.param(PROGRESS_FLUSHED, marks=pytest.mark.full),
        COMMITTED,
        None,
    ],
)
def test_with_the_events_in_kafka_it_is_the_same(sqlite_home: Home, log_in_kafka: None, place: str | None) -> None:
    bind(sqlite_home)
    if place is not None:
        assert finish(start(StreamJob(sqlite_home.location, die_at=place, die_in=1)))[0] == -signal.SIGKILL
    with connect(sqlite_home.location) as home:
        StreamQuery(home, StreamJob(sqlite_home.location)).start().run()
        stream = home.stream(NAME)
        assert stream.info.log is not None
        stream.await_mark(400, timeout=timedelta(seconds=20))
        assert ids_in(stream) == ALL
        assert broken_marks(stream) == []
