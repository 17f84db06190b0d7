"""Claims about a sink whose network fails: cut, narrow, stalled, or silent after the commit has arrived."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.control import Home
from floodmark.testing import KafkaBroker
from support.sinks.bad_network import BadNetwork, broker_behind_a_bad_network
from support.sinks.sink_process import Job, bind, finish, run, start
from support.sinks.sink_topics import Topics

Network = tuple[KafkaBroker, BadNetwork]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with broker_behind_a_bad_network() as found:
        yield found


@pytest.fixture(params=["rows", "bulk"])
def job(request: pytest.FixtureRequest, network: Network, topic_name: str, tmp_path: Path) -> Iterator[Job]:
    broker, between = network
    between.go_on()
    place = str(tmp_path / "home")
    with Home.open(place) as home:
        bind(home)
    yield Job(broker.servers, place, topic_name, is_bulk=request.param == "bulk")
    between.go_on()


def test_a_commit_whose_answer_is_lost_with_its_process_is_not_written_again(network: Network, job: Job) -> None:
    """Scenario 19."""
    broker, between = network
    run(Job(**{**vars(job), "until": 2}))
    between.lose_answer()
    writing = start(Job(**{**vars(job), "until": 3}))
    assert between.lost.wait(30)
    # The broker has heard it, and the process never will.
    time.sleep(0.5)
    os.kill(writing.pid, signal.SIGKILL)
    assert finish(writing)[0] == -signal.SIGKILL
    topics = Topics(broker.servers, job.topic)
    run(Job(**{**vars(job), "until": 3}))
    topics.check(30)
    assert topics.raw == 30
    run(job)
    topics.check(40)


def test_a_network_that_is_narrow_cut_and_stalled_costs_time_and_no_rows(network: Network, job: Job) -> None:
    """Scenario 27; the stall is shorter than the timeout of a transaction, the client's requests are tried again."""
    broker, between = network

    def fail() -> None:
        time.sleep(0.3)
        between.let_through(16)
        time.sleep(0.5)
        between.go_on()
        time.sleep(0.3)
        between.cut()
        time.sleep(0.3)
        between.stall()
        time.sleep(4)
        between.go_on()

    failing = threading.Thread(target=fail)
    failing.start()
    left = 3
    while True:
        # What the sink does not survive by itself, the next start does.
        code, told = finish(start(job), 90)
        if code == 0:
            break
        assert code == 3, told
        left -= 1
        assert left, told
    failing.join()
    topics = Topics(broker.servers, job.topic)
    topics.check(40)
