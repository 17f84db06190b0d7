"""What the processes of the concurrency tests do, and how a test starts them. They share nothing but the home."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

from sqlalchemy import text

from floodmark.control import Home, WatermarkSteps
from floodmark.errors import Conflict

NEW_HOMES = 8
_barrier: Any = None


def race(processes: int, action: Callable[[Path, int], Any], path: Path) -> list[Any]:
    """Run `action(path, number)` in so many processes at the same moment, and return what each returned."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, _enter, (barrier,)) as pool:
        return list(pool.map(_together, [action] * processes, [path] * processes, range(processes)))


def _enter(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603
    _barrier = barrier


def _together(action: Callable[[Path, int], Any], path: Path, number: int) -> Any:
    try:
        _barrier.wait(30)
    except BrokenBarrierError:
        raise AssertionError("the processes did not start together") from None
    return action(path, number)


def open_and_create(path: Path, number: int) -> str:
    """Open homes that may be new, all at the same moment, and leave a trace in each."""
    for home_number in range(NEW_HOMES):
        _barrier.wait(30)
        with Home.open(path / str(home_number)) as home:
            WatermarkSteps(home).create(f"made by {number}", {}, now=number)
    return f"made by {number}"


def add_each_step(path: Path, number: int) -> list[int]:
    """Try to add every step from 0 to 19; return those that were won."""
    won = []
    with Home.open_existing(path) as home:
        steps = WatermarkSteps(home)
        for seq in range(20):
            try:
                steps.add("a", seq, number, {"added by": number}, now=seq)
            except Conflict:
                continue
            won.append(seq)
    return won


def count_up(path: Path, number: int) -> int:
    """Read a number and write it back one higher, 25 times."""
    with Home.open_existing(path) as home:
        for _ in range(25):
            with home.write() as connection:
                seen = connection.execute(text("SELECT created_at FROM watermark_incarnation")).scalar_one()
                connection.execute(text("UPDATE watermark_incarnation SET created_at = :next"), {"next": seen + 1})
    return number


def write_and_hang(path: Path, is_writing: Any) -> None:
    """Change everything, say so, and never come to the end of the transaction."""
    with Home.open_existing(path) as home, home.write() as connection:
        connection.execute(text("DELETE FROM watermark_step"))
        # So much that SQLite cannot keep it in memory, and the log has it before the end.
        for number in range(400):
            connection.execute(
                text("INSERT INTO watermark_incarnation VALUES (:id, :settings, NULL, NULL, 0)"),
                {"id": f"half {number}", "settings": os.urandom(16_000).hex()},
            )
        is_writing.set()
        multiprocessing.get_context("spawn").Event().wait()
