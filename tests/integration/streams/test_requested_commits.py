"""Requested commits on servers: the watermark does not pass their events, whichever process carries them out."""

import pytest

from floodmark.streams import Controller, MarkOutcome, StreamHome
from floodmark.testing import ManualClock
from support.waiting import wait_until


@pytest.fixture(scope="module", params=["postgres", "http", "kafka"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_close_finishes_a_requested_commit_with_times_of_several_keys(home: StreamHome, local: StreamHome) -> None:
    stream = home.create_stream("s", schema="a TIMESTAMP, b TIMESTAMP", time_columns=["a", "b"])
    with stream.transactional_writer("w") as writer:
        transaction = writer.begin()
        transaction.write({"a": None, "b": None})
        transaction.request_commit(times={"a": 60, "b": 40})
    assert set(transaction.result().outcomes.values()) == {MarkOutcome.ACCEPTED}
    with stream.writer("another") as another:
        for key in "ab":
            another.note_time(500, key=key)
        Controller(local).step()
    assert {key: (stream.marks(key)[0].lower, stream.marks(key)[0].cut) for key in "ab"} == {
        "a": (60, {0: 1}),
        "b": (40, {0: 1}),
    }


def test_a_controller_that_comes_late_finishes_the_commits_of_dead_writers_first(
    home: StreamHome, local: StreamHome, clock: ManualClock
) -> None:
    stream = home.create_stream("s")
    dead = stream.transactional_writer("dead").begin()
    dead.write({"time": 55})
    dead.request_commit(time=60)
    clock.advance(3_600_000_000)
    stream.writer("another").note_time(500)
    with Controller(local):
        wait_until(stream.marks)
    assert (stream.marks()[0].lower, stream.marks()[0].cut) == (60, {0: 1})
