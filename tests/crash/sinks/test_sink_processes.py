"""A sink whose process ends anywhere, against a real broker: after a restart each row is there once."""

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.sinks.target import FAILPOINTS
from floodmark.testing import KafkaBroker
from support.examples import is_full
from support.processes import wait_for_line
from support.sinks.sink_process import BEFORE_COMMIT_LOG, Job, bind, finish, run, start
from support.sinks.sink_topics import Topics
from support.waiting import wait_until


@pytest.fixture(params=["rows", "bulk"])
def job(request: pytest.FixtureRequest, broker: KafkaBroker, topic_name: str, tmp_path: Path) -> Job:
    place = str(tmp_path / "home")
    with Home.open(place) as home:
        bind(home)
    return Job(broker.servers, place, topic_name, is_bulk=request.param == "bulk")


def but(job: Job, **changes: object) -> Job:
    return Job(**{**vars(job), **changes})


# The place, and then: the rows that are committed before the restart, and how many were sent in all in the end.
IN_A_BATCH = {
    "sink: before the transaction": (20, 30),
    "sink: some rows sent": (20, 35),
    "sink: rows flushed": (20, 40),
    "sink: progress flushed": (20, 40),
    "sink: committed": (30, 30),
    "sink: hold advanced": (30, 30),
    BEFORE_COMMIT_LOG: (30, 30),
}
REPEATED = ("sink: before the transaction", "sink: rows flushed", "sink: hold advanced")
"""The places that repeat what a neighbour in IN_A_BATCH shows."""
AT_START = ("sink: fenced", "sink: progress scanned in part", "sink: started")


def test_every_failpoint_is_tried() -> None:
    assert {*IN_A_BATCH, *AT_START} == {*FAILPOINTS, BEFORE_COMMIT_LOG}


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=pytest.mark.full if place in REPEATED else ()) for place in IN_A_BATCH],
)
def test_a_process_killed_in_a_batch_is_followed_by_one_that_writes_the_rest_once(job: Job, place: str) -> None:
    """Scenarios 15 to 18, 20 and 22."""
    topics = Topics(job.servers, job.topic)
    code, _ = finish(start(but(job, until=3, die_at=place, die_in=2)))
    assert code == -signal.SIGKILL
    committed, raw = IN_A_BATCH[place]
    assert topics.numbers() == list(range(committed))
    run(but(job, until=3))
    topics.check(30)
    assert topics.raw == raw
    with Home.open_existing(job.home) as home:
        (hold,) = Bindings(home).holds()
        assert hold.ts == (topics.progress()[-1].ends["S"].ts or 0) - 1
    run(job)
    topics.check(40)


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=pytest.mark.full if place in REPEATED else ()) for place in IN_A_BATCH],
)
def test_an_exception_in_a_batch_leaves_no_open_transaction(job: Job, place: str) -> None:
    topics = Topics(job.servers, job.topic)
    with pytest.raises(Exception, match=place):
        run(but(job, until=3, die_at=place, die_in=2, by="raise"))
    committed, raw = IN_A_BATCH[place]
    topics.check(committed)
    run(but(job, until=3))
    topics.check(30)
    assert topics.raw == raw


@pytest.mark.parametrize("place", AT_START)
@pytest.mark.parametrize("by", ["kill", "raise"])
def test_a_process_that_ends_while_it_starts_has_written_nothing(job: Job, place: str, by: str) -> None:
    topics = Topics(job.servers, job.topic)
    run(but(job, until=2))
    if by == "kill":
        assert finish(start(but(job, die_at=place)))[0] == -signal.SIGKILL
    else:
        with pytest.raises(Exception, match=place):
            run(but(job, die_at=place, by="raise"))
    topics.check(20)
    run(job)
    topics.check(40)
    assert topics.raw == 40


def test_a_process_killed_in_its_first_transaction_has_not_begun(job: Job) -> None:
    """What was aborted is in the topic, and still it counts as one without records."""
    topics = Topics(job.servers, job.topic)
    assert finish(start(but(job, die_at="sink: rows flushed", die_in=0)))[0] == -signal.SIGKILL
    run(but(job, until=1))
    topics.check(10)
    assert topics.raw == 20


def test_a_process_that_was_asleep_is_fenced_by_the_one_that_took_over(job: Job) -> None:
    """Scenario 23."""
    topics = Topics(job.servers, job.topic)
    asleep = start(but(job, until=3, die_at="sink: some rows sent", die_in=2, by="stop", timeout=60.0))
    try:
        wait_for_line(asleep, "stopped")
        run(job)
        topics.check(40)
    finally:
        os.kill(asleep.pid, signal.SIGCONT)
    assert finish(asleep) == (3, "sink-fenced")
    topics.check(40)
    assert topics.raw == 45


def test_a_process_that_sleeps_longer_than_its_timeout_writes_nothing_of_the_batch(job: Job) -> None:
    """Scenario 25."""
    topics = Topics(job.servers, job.topic)
    slow = but(job, until=3, die_at="sink: some rows sent", die_in=2, by="sleep", sleep=4.0, timeout=1.0)
    assert finish(start(slow)) == (3, "sink-timed-out")
    topics.check(20)
    run(but(job, until=3))
    topics.check(30)


def test_a_process_that_is_killed_at_any_moment_again_and_again_writes_each_row_once(
    broker: KafkaBroker, topic_name: str, tmp_path: Path
) -> None:
    """Also while it waits for an answer to its commit: nobody knows then, but the next start finds out."""
    place, dice = str(tmp_path / "home"), Random(7)
    with Home.open(place) as home:
        bind(home, batches=400)
    job = Job(broker.servers, place, topic_name, until=400)
    done = Path(place) / "q1.checkpoint"

    def progress() -> int:
        return int(done.read_text() or 0) if done.exists() else 0

    topics, reached = Topics(broker.servers, topic_name), [0]
    for number in range(6 if is_full() else 3):
        process = start(job)
        if number % 2 == 0:
            wait_until(lambda: progress() > reached[-1], seconds=60)
            time.sleep(dice.uniform(0, 1))
        else:
            time.sleep(dice.uniform(0.3, 2.5))
        process.kill()
        assert finish(process)[0] == -signal.SIGKILL
        reached.append(progress())
    assert reached == sorted(reached)
    assert reached[-1] > 0, "it came to write"
    run(but(job, until=reached[-1] + 3))
    topics.check(10 * (reached[-1] + 3))
