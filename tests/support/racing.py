"""What the processes of the concurrency tests do, and how a test starts them. They share nothing but the home."""

import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from threading import BrokenBarrierError
from time import sleep
from types import TracebackType
from typing import Any

from sqlalchemy import select, text

from floodmark.control import Home, Lease, Leases, WatermarkSteps
from floodmark.control.tables import WATERMARK_INCARNATIONS
from floodmark.errors import Conflict, LeaseLost

CONTEXT = multiprocessing.get_context("forkserver")
# Every process comes from one that has loaded what they need, and has opened nothing.
CONTEXT.set_forkserver_preload(["floodmark.control", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"])

_barrier: Any = None


class Racers:
    """So many processes, started once, that run an action at the same moment."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = ProcessPoolExecutor(processes, CONTEXT, _enter, (CONTEXT.Barrier(processes),))

    def race(self, action: Callable[[Any, int], Any], shared: Any) -> list[Any]:
        """Run `action(shared, number)` in each, and return what each returned."""
        calls = [self._pool.submit(_together, action, shared, number) for number in range(self._processes)]
        return [call.result(60) for call in calls]

    def __enter__(self) -> "Racers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def _enter(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603
    _barrier = barrier


def _together(action: Callable[[Any, int], Any], shared: Any, number: int) -> Any:
    _wait_for_the_others()
    return action(shared, number)


def _wait_for_the_others() -> None:
    try:
        _barrier.wait(30)
    except BrokenBarrierError:
        raise AssertionError("the processes did not start together") from None


def open_and_create(places: list[str], number: int) -> str:
    """Open homes that may be new, all at the same moment, and leave a trace in each."""
    for place in places:
        _wait_for_the_others()
        with Home.open(place) as home:
            WatermarkSteps(home).create(f"made by {number}", {}, now=number)
    return f"made by {number}"


def add_each_step(place: str, number: int) -> list[int]:
    """Try to add every step from 0 to 19; return those that were won."""
    won = []
    with Home.open_existing(place) as home:
        steps = WatermarkSteps(home)
        for seq in range(20):
            try:
                steps.add("a", seq, number, {"added by": number}, now=seq)
            except Conflict:
                continue
            won.append(seq)
    return won


def count_up(place: str, number: int) -> int:
    """Read a number and write it back one higher, 25 times."""
    with Home.open_existing(place) as home:
        for _ in range(25):
            with home.write() as connection:
                seen = connection.execute(select(WATERMARK_INCARNATIONS.c.created_at).with_for_update()).scalar_one()
                connection.execute(text("UPDATE watermark_incarnation SET created_at = :next"), {"next": seen + 1})
    return number


def write_and_hang(place: str, is_writing: Any) -> None:
    """Change everything, say so, and never come to the end of the transaction."""
    with Home.open_existing(place) as home, home.write() as connection:
        connection.execute(text("DELETE FROM watermark_step"))
        # So much that SQLite cannot keep it in memory, and the log has it before the end.
        for number in range(400):
            connection.execute(
                text("INSERT INTO watermark_incarnation VALUES (:id, :settings, NULL, NULL, 0)"),
                {"id": f"half {number}", "settings": os.urandom(16_000).hex()},
            )
        is_writing.set()
        _hang()


def take_and_hang(place: str, name: str, ttl: int, has_it: Any, before: Any) -> None:
    """Take a lease, say so, and do nothing more; or, after `before`, never come to the end of what is done under it."""
    with Home.open_existing(place) as home:
        lease = Leases(home).acquire(name, "killed", ttl)
        assert lease is not None
        if before is None:
            has_it.set()
            _hang()
        before.wait(30)
        with home.write() as connection:
            Leases.check(connection, lease)
            has_it.set()
            _hang()


def _hang() -> None:
    CONTEXT.Event().wait()


CREATE_TRACE = text("CREATE TABLE trace (id BIGINT PRIMARY KEY, token BIGINT NOT NULL, owner TEXT NOT NULL)")
_LEAVE_TRACE = text("INSERT INTO trace SELECT COALESCE(MAX(id), 0) + 1, :token, :owner FROM trace")


def work_under_a_lease(place: str, number: int) -> tuple[int, int]:
    """Take a lease that is short, and work under it at an uneven pace; return how often it was won, and lost."""
    dice = random.Random(number)
    won = lost = 0
    with Home.open_existing(place) as home:
        leases = Leases(home)
        while won < 8:
            lease = leases.acquire("work", f"owner {number}", ttl=15_000)
            if lease is None:
                sleep(0.002)
                continue
            won += 1
            try:
                _work(home, lease, dice)
            except LeaseLost:
                lost += 1
    return won, lost


def _work(home: Home, lease: Lease, dice: random.Random) -> None:
    for _ in range(dice.randrange(1, 4)):
        with home.write() as connection:
            Leases.check(connection, lease)
            connection.execute(_LEAVE_TRACE, {"token": lease.token, "owner": lease.owner})
        sleep(dice.choice((0, 0.002, 0.03)))
        lease = Leases(home).renew(lease)
    if dice.random() < 0.5:
        Leases(home).release(lease)
