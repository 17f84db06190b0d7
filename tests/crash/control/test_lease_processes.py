"""Claims about leases that real processes fight for, one of which is killed."""

import os
import signal
import threading
from time import sleep

from sqlalchemy import text

from floodmark.control import Home, Lease, Leases
from support.racing import CONTEXT, CREATE_TRACE, Racers, take_and_hang, work_under_a_lease
from support.waiting import wait_until


def test_once_a_newer_owner_has_written_no_older_one_can(place: str, racers: Racers) -> None:
    """They work at an uneven pace under a lease that is short, so that many are overtaken in the middle."""
    with Home.open(place) as home:
        with home.write() as connection:
            connection.execute(CREATE_TRACE)
        outcomes = racers.race(work_under_a_lease, place)
        with home.read() as connection:
            trace = connection.execute(text("SELECT token, owner FROM trace ORDER BY id")).all()
    tokens = [row.token for row in trace]
    assert tokens == sorted(tokens)
    assert len({(row.token, row.owner) for row in trace}) == len(set(tokens)), "each token had one owner"
    assert max(tokens) <= sum(won for won, _ in outcomes)
    assert sum(lost for _, lost in outcomes) > 0, "somebody was overtaken, or this test shows nothing"


TTL = 200_000


def test_when_an_owner_is_killed_another_takes_over_after_the_ttl(home: Home) -> None:
    """One is killed between two writes, and one in the middle of a write."""
    between, within = CONTEXT.Event(), CONTEXT.Event()
    calls = [(home.location, "between", TTL, between, None), (home.location, "within", TTL, within, between)]
    children = [CONTEXT.Process(target=take_and_hang, args=call) for call in calls]
    for child in children:
        child.start()
    assert within.wait(30)
    with home.read() as connection:
        rows = connection.execute(text("SELECT name, owner, token, ttl, renewed_at FROM lease")).all()
    for child in children:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    leases = Leases(home)
    for killed in (Lease(*row) for row in rows):
        taken = wait_until(lambda name=killed.name: leases.acquire(name, "next", TTL))  # type: ignore[misc]
        assert taken is not None
        assert (taken.token, taken.owner) == (2, "next")
        assert taken.renewed_at >= killed.expires_at
    assert len(rows) == 2


def test_nobody_takes_a_lease_between_a_check_and_the_end_of_its_transaction(postgres_home: Home) -> None:
    leases = Leases(postgres_home)
    lease = leases.acquire("work", "a", ttl=1)
    assert lease is not None
    sleep(0.001)
    outcomes: list[Lease | None] = []
    with postgres_home.write() as connection:
        leases.check(connection, lease)
        asking = threading.Thread(target=lambda: outcomes.append(leases.acquire("work", "b", TTL)))
        asking.start()
        asking.join(10)
        assert outcomes == [None], "it has expired, but its owner is just using it; who asks does not wait"
        with postgres_home.write() as sharing:
            leases.check(sharing, lease)
    assert leases.acquire("work", "b", TTL) is not None
