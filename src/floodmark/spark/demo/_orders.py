"""The orders of the demo: the same in every run, but for the minute at which they begin."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
SPAN: Final = 30 * MINUTE
"""How much time the orders cover."""

DISORDER: Final = MINUTE
"""No order arrives this much later than it was placed, unless its origin lags."""

ORDERS_PER_ORIGIN: Final = 6_000

_ARRIVING_TOGETHER: Final = 8 * MINUTE
_SEED: Final = 20260101

Times = NDArray[np.int64]
File = Mapping[str, Times]
"""The event times of each origin in one file, which is one micro-batch."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of one origin, as they arrive."""

    times: Times
    arrivals: Times

    def delayed(self, since: int, lag: int) -> "Orders":
        """Return the same orders, where those placed at `since` or later arrive `lag` later."""
        arrivals = self.arrivals + np.where(self.times >= since, lag, 0)
        order = np.argsort(arrivals, kind="stable")
        return Orders(self.times[order], arrivals[order])

    def before(self, end: int) -> "Orders":
        """Return only the orders placed before `end`."""
        return Orders(self.times[self.times < end], self.arrivals[self.times < end])

    def arriving(self, begin: int, end: int) -> Times:
        """Return the times of what arrives in a stretch of time."""
        return self.times[(self.arrivals >= begin) & (self.arrivals < end)]


def recent_start(now: int) -> int:
    """Return a full minute from which on all orders, and what follows them, lie in the hour before `now`."""
    return now // MINUTE * MINUTE - SPAN - 15 * MINUTE


def placed(start: int, origins: Iterable[str]) -> dict[str, Orders]:
    """Return the orders of each origin, spread over the span from `start`, a little out of order."""
    rng = np.random.default_rng(_SEED)
    orders = {}
    for origin in origins:
        times = start + rng.integers(0, SPAN, ORDERS_PER_ORIGIN)
        arrivals = times + rng.integers(0, DISORDER, ORDERS_PER_ORIGIN)
        order = np.argsort(arrivals, kind="stable")
        orders[origin] = Orders(times[order], arrivals[order])
    return orders


def in_files(orders: Mapping[str, Orders], start: int) -> list[File]:
    """Return what arrives together as one file each."""
    last = max(int(one.arrivals[-1]) for one in orders.values())
    return [
        {origin: one.arriving(begin, begin + _ARRIVING_TOGETHER) for origin, one in orders.items()}
        for begin in range(start, last + 1, _ARRIVING_TOGETHER)
    ]


def closing_file(origins: Iterable[str], start: int) -> File:
    """Return one later row from each origin, without which the last windows of any query would stay open."""
    return {origin: np.array([start + SPAN + 2 * DISORDER], dtype=np.int64) for origin in origins}


def per_minute(orders: Mapping[str, Orders]) -> dict[int, dict[str, int]]:
    """Return how many orders of each origin were placed in each minute: what a right query finds."""
    minutes: dict[int, dict[str, int]] = {}
    for origin, one in orders.items():
        starts, counts = np.unique(one.times // MINUTE * MINUTE, return_counts=True)
        for begin, count in zip(starts.tolist(), counts.tolist(), strict=True):
            minutes.setdefault(begin, dict.fromkeys(orders, 0))[origin] = count
    return minutes


def write_files(directory: Path, files: Sequence[File], origin_column: str) -> None:
    """Write files that Spark reads in this order."""
    directory.mkdir(parents=True)
    for number, file in enumerate(files):
        times = np.concatenate(list(file.values()))
        origins = np.repeat(list(file), [len(part) for part in file.values()])
        moments = pa.array(times, pa.timestamp("us", tz="UTC"))
        path = directory / f"{number:03}.parquet"
        pq.write_table(pa.table({origin_column: pa.array(origins, pa.string()), "t": moments}), path)
        # Spark reads the oldest file first; files written in the same moment need distinct times.
        os.utime(path, (number, number))
