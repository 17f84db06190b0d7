"""The speed and size of the pure rules."""

import random
import tracemalloc
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from figures import Figure, best_seconds
from floodmark.progress import Coalescer, Tracker

REPORTS = 200_000
BATCH = 10_000
WINDOW = 1_000


def measure_tracker() -> Iterator[Figure]:
    """Yield updates a second, singly and in batches, and the memory behind a gap."""
    for title, chunks, shuffled, single_goal, batch_goal in (
        ("in order", 1, False, 2.0, 10.0),
        ("shuffled in 1000", 1, True, 2.0, 10.0),
        ("4 chunks, in order", 4, False, 2.0, 10.0),
        ("4 chunks, shuffled in 1000", 4, True, None, None),
    ):
        for origins in (1, 8):
            columns = make_reports(origins, chunks, shuffled)
            name = f"tracker, {title}, {origins} origin{'s' if origins > 1 else ''}"
            yield Figure(f"{name}, single", singly(origins, *columns), "M/s", at_least=single_goal)
            yield Figure(f"{name}, batches of 10k", in_batches(origins, *columns), "M/s", at_least=batch_goal)
    yield Figure("tracker, 1 M sequences behind one gap, peak", bytes_behind_a_gap() / 1e6, "MB", at_most=1.0)


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]


def make_reports(origins: int, chunks: int, shuffled: bool) -> Columns:
    """Return origin, sequence, chunk, last and watermark of reports that complete whole sequences."""
    number = np.arange(REPORTS)
    if shuffled:
        dice = np.random.default_rng(1)
        # Windows that lie across the ends of batches, so that each batch leaves gaps for the next one to close.
        for start in range(WINDOW // 2, REPORTS, WINDOW):
            dice.shuffle(number[start : start + WINDOW])
    sequence = number // chunks
    chunk = number % chunks
    return sequence % origins, sequence // origins + 1, chunk, chunk == chunks - 1, number


def singly(origins: int, *columns: NDArray[np.generic]) -> float:
    """Return million single updates a second."""
    rows = list(zip(*(column.tolist() for column in columns), strict=True))

    def work() -> None:
        update = Tracker(range(origins)).update
        for origin, sequence, chunk, last, watermark in rows:
            update(origin, sequence, chunk, last, watermark)

    return REPORTS / best_seconds(work) / 1e6


def in_batches(origins: int, *columns: NDArray[np.generic]) -> float:
    """Return million updates a second in batches, the split by origin included."""
    batches = [[column[start : start + BATCH] for column in columns] for start in range(0, REPORTS, BATCH)]

    def work() -> None:
        tracker = Tracker(range(origins))
        for origin, sequence, chunk, last, watermark in batches:
            tracker.update_batch(origin if origins > 1 else 0, sequence, watermark, chunk=chunk, last=last)
        assert tracker.watermark is not None

    return REPORTS / best_seconds(work) / 1e6


def bytes_behind_a_gap() -> int:
    """Return the most memory that a million sequences behind one gap ever took."""
    tracker = Tracker(["o"])
    tracemalloc.start()
    for sequence in range(2, 1_000_002):
        tracker.update("o", sequence, 0, True, sequence)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tracker.gaps("o") == [(1, 1)]
    return peak


def measure_coalescer() -> Iterator[Figure]:
    """Yield a merge of many inputs on many keys, and single updates among many inputs."""
    names = [f"partition-{number}" for number in range(10_000)]
    keys = [f"column_{number}" for number in range(16)]
    merged = Coalescer(names)
    clock = iter(range(0, 10**12, 10**6))

    def merge() -> None:
        start = next(clock)
        times = np.arange(start, start + len(names))
        merged.watermark_batch(names, dict.fromkeys(keys, times))

    yield Figure("coalescer, 10,000 inputs x 16 keys in one batch", best_seconds(merge) * 1e3, "ms", at_most=10.0)

    dice = random.Random(1)
    spread = [dice.choice(names) for _ in range(100_000)]
    for title, order in (("any input", spread), ("the lowest input", names)):

        def update(order: list[str] = order) -> None:
            start = next(clock)
            for offset, name in enumerate(order):
                merged.watermark(name, keys[0], start + offset)

        rate = len(order) / best_seconds(update) / 1e3
        yield Figure(f"coalescer, single updates at 10,000 inputs, {title}", rate, "k/s", at_least=300.0)
