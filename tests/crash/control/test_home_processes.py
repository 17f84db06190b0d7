"""Claims about a home that several processes use, with real processes, one of which is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from floodmark.control import Home, WatermarkSteps
from floodmark.control.migrations.history import MIGRATIONS
from support.racing import CONTEXT, Racers, add_each_step, count_up, open_and_create, write_and_hang

NEW_HOMES = 4


def test_processes_that_open_a_new_home_at_the_same_time_all_succeed(
    new_place: Callable[[], str], racers: Racers
) -> None:
    places = [new_place() for _ in range(NEW_HOMES)]
    made = racers.race(open_and_create, places)
    for place in places:
        with Home.open_existing(place) as home:
            assert [WatermarkSteps(home).incarnation(name).created_at for name in made] == [0, 1, 2, 3]
            with home.read() as connection:
                taken = connection.execute(text("SELECT number FROM schema_migration ORDER BY number")).scalars().all()
                assert taken == [migration.number for migration in MIGRATIONS]


def test_of_those_that_add_the_same_step_exactly_one_wins(home: Home, racers: Racers) -> None:
    steps = WatermarkSteps(home)
    steps.create("a", {}, now=0)
    won = racers.race(add_each_step, home.location)
    newest = steps.newest("a")
    assert newest is not None
    winners = {seq: number for number, seqs in enumerate(won) for seq in seqs}
    assert sum(map(len, won)) == len(winners) == newest.seq + 1
    for seq, number in winners.items():
        step = steps.get("a", seq)
        assert step is not None
        assert (step.watermark, step.snapshot) == (number, {"added by": number})


def test_what_a_transaction_has_read_with_a_lock_nobody_changes_before_it_ends(home: Home, racers: Racers) -> None:
    WatermarkSteps(home).create("a", {}, now=0)
    racers.race(count_up, home.location)
    assert WatermarkSteps(home).incarnation("a").created_at == 100


def test_a_process_killed_in_the_middle_of_a_write_changes_nothing(kind: str, place: str) -> None:
    with Home.open(place) as home:
        steps = WatermarkSteps(home)
        steps.create("a", {"delay": 5}, now=1)
        steps.add("a", 0, 10, {"is": "kept"}, now=2)
    is_writing = CONTEXT.Event()
    child = CONTEXT.Process(target=write_and_hang, args=(place, is_writing))
    child.start()
    assert is_writing.wait(30)
    assert child.pid is not None
    if kind == "sqlite":
        assert (Path(place) / "home.db-wal").stat().st_size > 1_000_000
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with Home.open_existing(place) as home:
        steps = WatermarkSteps(home)
        newest = steps.newest("a")
        assert newest is not None
        assert newest.snapshot == {"is": "kept"}
        with home.read() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM watermark_incarnation")).scalar() == 1
            if kind == "sqlite":
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        steps.add("a", 1, 20, {}, now=3)
