"""What the processes of the tests of bindings do. They share nothing but the home, and some of them are killed."""

import multiprocessing
import os
import random
import signal
import time
from typing import Any

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import MintLost, TimestampNotValid, UnknownHold

CONTEXT = multiprocessing.get_context("forkserver")


def ends_now(partitions: int = 3) -> dict[int, int]:
    """Return ends that grow with the time since the machine was started, the same for all processes."""
    now = time.monotonic_ns() // 100_000
    return {partition: now // (partition + 1) for partition in range(partitions)}


Binding = tuple[int, int, dict[int, int]]
"""What one process has bound: the open timestamp before and after, and the ends."""


def mint_against_others(place: str, number: int) -> tuple[list[Binding], int, dict[int, int]]:
    """Bind 30 times, whatever the others do; return what was bound, how often it was lost, and lookups on the way."""
    dice = random.Random(number)
    won: list[Binding] = []
    lost, looked_up = 0, {}
    with Home.open_existing(place) as home:
        bindings = Bindings(home)
        while len(won) < 30:
            before = bindings.history("S")
            ends = ends_now()
            try:
                after = bindings.mint("S", ends, {"at": min(ends.values())}, expected_upper=before.upper)
            except MintLost:
                lost += 1
                continue
            won.append((before.upper, after.upper, ends))
            offset = dice.randrange(ends[1])
            ts = after.ts_of(1, offset)
            assert ts is not None
            looked_up[offset] = ts
            time.sleep(dice.choice((0, 0, 0.002)))
    return won, lost, looked_up


def tick_against_others(place: str, number: int) -> tuple[int, int]:
    """Tick for a second, hold and let go; return how often a timestamp was closed, and the last `upper` seen."""
    dice = random.Random(number)
    minted, upper = 0, 0
    holder = f"holder {number}"
    with Home.open_existing(place) as home:
        bindings = Bindings(home)
        give_up = time.monotonic() + 1
        while time.monotonic() < give_up:
            ticked = bindings.tick("S", ends_now, lambda ends: {"at": ends[2]})
            minted += ticked.minted
            assert ticked.history.upper >= upper
            upper = ticked.history.upper
            try:
                if dice.random() < 0.3:
                    bindings.hold("S", holder, max(upper - dice.randrange(1, 300_000), ticked.history.since))
                else:
                    hold = bindings.advance_hold("S", holder, upper - 1)
                    assert bindings.source("S").since <= hold.ts
                    if dice.random() < 0.2:
                        bindings.release("S", holder)
            except (TimestampNotValid, UnknownHold):
                continue
    return minted, upper


def mint_and_die(place: str, failpoint: str, ends: dict[int, int]) -> None:
    """Mint, and be killed at a place in it."""

    def die(reached: str) -> None:
        if reached == failpoint:
            os.kill(os.getpid(), signal.SIGKILL)

    with Home.open_existing(place) as home:
        bindings = Bindings(home, failpoint=die)
        bindings.mint("S", ends, {"at": 70}, expected_upper=bindings.durable("S"))


def run(target: Any, *args: Any) -> int | None:
    """Run something in a process of its own, and return how it ended."""
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    process.start()
    process.join(30)
    code: int | None = process.exitcode
    return code
