"""Claims about a home that several processes use, with real processes, one of which is killed."""

import multiprocessing
import os
import signal
from pathlib import Path

from sqlalchemy import text

from floodmark.control import Home, WatermarkSteps
from floodmark.control._migrations import MIGRATIONS
from racing import NEW_HOMES, add_each_step, count_up, open_and_create, race, write_and_hang


def test_processes_that_open_a_new_home_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    made = race(4, open_and_create, tmp_path)
    for number in range(NEW_HOMES):
        with Home.open_existing(tmp_path / str(number)) as home:
            assert [WatermarkSteps(home).incarnation(name).created_at for name in made] == [0, 1, 2, 3]
            with home.read() as connection:
                taken = connection.execute(text("SELECT number FROM schema_migration")).scalars().all()
                assert taken == [migration.number for migration in MIGRATIONS]


def test_of_those_that_add_the_same_step_exactly_one_wins(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        steps = WatermarkSteps(home)
        steps.create("a", {}, now=0)
        won = race(4, add_each_step, tmp_path)
        newest = steps.newest("a")
        assert newest is not None
        winners = {seq: number for number, seqs in enumerate(won) for seq in seqs}
        assert sum(map(len, won)) == len(winners) == newest.seq + 1
        for seq, number in winners.items():
            step = steps.get("a", seq)
            assert step is not None
            assert (step.watermark, step.snapshot) == (number, {"added by": number})


def test_what_a_transaction_has_read_nobody_changes_before_it_ends(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        WatermarkSteps(home).create("a", {}, now=0)
        race(3, count_up, tmp_path)
        assert WatermarkSteps(home).incarnation("a").created_at == 75


def test_a_process_killed_in_the_middle_of_a_write_changes_nothing(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        steps = WatermarkSteps(home)
        steps.create("a", {"delay": 5}, now=1)
        steps.add("a", 0, 10, {"is": "kept"}, now=2)
    context = multiprocessing.get_context("spawn")
    is_writing = context.Event()
    child = context.Process(target=write_and_hang, args=(tmp_path, is_writing))
    child.start()
    assert is_writing.wait(30)
    assert child.pid is not None
    assert (tmp_path / "home.db-wal").stat().st_size > 1_000_000
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with Home.open_existing(tmp_path) as home:
        steps = WatermarkSteps(home)
        newest = steps.newest("a")
        assert newest is not None
        assert newest.snapshot == {"is": "kept"}
        with home.read() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM watermark_incarnation")).scalar() == 1
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        steps.add("a", 1, 20, {}, now=3)
