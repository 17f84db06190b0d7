"""The three cases of the demo: the orders that arrive, the right answer, and why the two queries differ.

The orders are the same in every run, but for the minute at which they begin. The explanations use the figures of
the run, and only if these bear them out.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

DELAY: Final = "1 minute"


SECOND: Final = 1_000_000


YEAR_2100: Final = 4_102_444_800 * SECOND
_PARTITIONS: Final = ("p0", "p1", "p2", "p3")


MINUTE: Final = 60 * SECOND


_LAG: Final = 15 * MINUTE


@dataclass(frozen=True, slots=True)
class QueryResult:
    """How many orders and windows came out, and where the others are.

    An order is *lost* if its window has closed without it, and *waiting* if its window is still open.
    """

    rows_in: int
    lost: Mapping[str, int]
    waiting: Mapping[str, int]
    windows_emitted: int
    windows_wrong: int
    windows_missing: int
    watermark: int
    """Where Spark's own watermark stood at the end, in microseconds, whoever put it there."""

    @property
    def rows_lost(self) -> int:
        """Return how many orders no window will ever count."""
        return sum(self.lost.values())

    @property
    def rows_waiting(self) -> int:
        """Return how many orders are in windows that are still open."""
        return sum(self.waiting.values())

    @property
    def is_right(self) -> bool:
        """Return whether every window came out with every order in it."""
        return not (self.rows_lost or self.rows_waiting or self.windows_wrong or self.windows_missing)


OrdersPerMinute = Mapping[int, Mapping[str, int]]
"""The number of orders of each origin, by the beginning of the minute."""


Times = NDArray[np.int64]
OrderFile = Mapping[str, Times]
"""The event times of each origin in one file, which is one micro-batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that happens to streams, and the right answer.

    `streams` holds the files of each stream, in order of arrival; file n of every stream is read in micro-batch n.
    `options` are those of `with_watermark`, beside the column and the delay. A case that `takes_time` has to run until
    Floodmark's windows are out, the others until everything is read.
    """

    name: str
    streams: Mapping[str, Sequence[OrderFile]]
    expected: OrdersPerMinute
    options: Mapping[str, Any]
    takes_time: bool
    explain: Callable[[QueryResult, QueryResult], str]

    @property
    def origin_column(self) -> str:
        """Return the column that tells origins apart."""
        return str(self.options["per"][0])

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the origins that send orders."""
        return tuple(next(iter(self.expected.values())))

    @property
    def rows(self) -> int:
        """Return how many rows there are to read: the orders, and what only moves time."""
        return sum(len(times) for files in self.streams.values() for file in files for times in file.values())

    @property
    def plain_code(self) -> str:
        """Return how the watermark is written in plain Spark."""
        first, *others = (f'{name}.withWatermark("t", "{DELAY}")' for name in self.streams)
        return first + "".join(f".union({other})" for other in others)

    @property
    def floodmark_code(self) -> str:
        """Return how the watermark is written with Floodmark."""
        first, *others = self.streams
        rows = first + "".join(f".union({other})" for other in others)
        options = {"delay": DELAY} | dict(self.options)
        written = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in options.items())
        return f'with_watermark({rows}, "t", {written})'


def all_cases(now: int) -> tuple[Case, ...]:
    """Return the cases, with orders of the last three quarters of an hour before `now` (microseconds)."""
    start = recent_start(now)
    return _lagging_partition(start), _quiet_source(start), _row_from_the_future(start)


def _lagging_partition(start: int) -> Case:
    """One partition keeps up for five minutes, and from then on delivers a quarter of an hour after the others."""
    laggard = _PARTITIONS[-1]
    orders = generate_orders(start, _PARTITIONS)
    orders[laggard] = orders[laggard].delayed(since=start + 5 * MINUTE, lag=_LAG)
    return Case(
        name="lagging partition",
        streams={"orders": [*split_into_files(orders, start), closing_file(_PARTITIONS, start)]},
        expected=per_minute(orders),
        options={"per": ["partition"]},
        takes_time=False,
        explain=partial(why_lagging, laggard, len(orders[laggard].times), _LAG // MINUTE),
    )


def _quiet_source(start: int) -> Case:
    """Of two streams, one sends nothing more after ten minutes: no row, and no word that it is done.

    Uniting them first, under one `withWatermark`, would not freeze; it would be the lagging partition again.
    """
    orders = generate_orders(start, ("web", "kiosk"))
    orders["kiosk"] = orders["kiosk"].before(start + 10 * MINUTE)
    streams = {name: split_into_files({name: one}, start) for name, one in orders.items()}
    streams["web"].append(closing_file(["web"], start))
    return Case(
        name="quiet source",
        streams=streams,
        expected=per_minute(orders),
        # A directory does not tell how much of it is unread; here file n of both streams is read together.
        options={"per": ["source"], "idle": "2 seconds", "assume_caught_up": True},
        takes_time=True,
        explain=partial(why_quiet, "kiosk", int(orders["kiosk"].times.max()), "2 seconds"),
    )


def _row_from_the_future(start: int) -> Case:
    """One row of one partition has the wrong century."""
    culprit = _PARTITIONS[1]
    orders = generate_orders(start, _PARTITIONS)
    first, *later = split_into_files(orders, start)
    first = {**first, culprit: np.append(first[culprit], YEAR_2100)}
    orders_after = [sum(len(times) for times in file.values()) for file in later]
    return Case(
        name="row from the future",
        streams={"orders": [first, *later, closing_file(_PARTITIONS, start)]},
        expected=per_minute(orders),
        options={"per": ["partition"], "future": "1 hour"},
        takes_time=False,
        explain=partial(why_a_row_from_the_future, culprit, YEAR_2100, orders_after, "1 hour"),
    )


SPAN: Final = 30 * MINUTE
"""How much time the orders cover."""

DISORDER: Final = MINUTE
"""No order arrives this much later than it was placed, unless its origin lags."""

ORDERS_PER_ORIGIN: Final = 6_000

_ARRIVING_TOGETHER: Final = 8 * MINUTE
_SEED: Final = 20260101


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


def generate_orders(start: int, origins: Iterable[str]) -> dict[str, Orders]:
    """Return the orders of each origin, spread over the span from `start`, a little out of order."""
    rng = np.random.default_rng(_SEED)
    orders = {}
    for origin in origins:
        times = start + rng.integers(0, SPAN, ORDERS_PER_ORIGIN)
        arrivals = times + rng.integers(0, DISORDER, ORDERS_PER_ORIGIN)
        order = np.argsort(arrivals, kind="stable")
        orders[origin] = Orders(times[order], arrivals[order])
    return orders


def split_into_files(orders: Mapping[str, Orders], start: int) -> list[OrderFile]:
    """Return what arrives together as one file each."""
    last = max(int(one.arrivals[-1]) for one in orders.values())
    return [
        {origin: one.arriving(begin, begin + _ARRIVING_TOGETHER) for origin, one in orders.items()}
        for begin in range(start, last + 1, _ARRIVING_TOGETHER)
    ]


def closing_file(origins: Iterable[str], start: int) -> OrderFile:
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


def write_files(directory: Path, files: Sequence[OrderFile], origin_column: str) -> None:
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both outcomes of one case, and why they differ."""

    case: str
    plain: QueryResult
    floodmark: QueryResult
    plain_code: str
    floodmark_code: str
    why: str


def judge(expected: OrdersPerMinute, emitted: Iterable[tuple[int, Mapping[str, int]]], watermark: int) -> QueryResult:
    """Compare the minutes that a query has emitted with the right ones.

    >>> right = {0: {"a": 2, "b": 1}, 60_000_000: {"a": 1, "b": 1}}
    >>> outcome = judge(right, [(0, {"a": 2, "b": 0})], watermark=60_000_000)
    >>> outcome.lost, outcome.waiting, outcome.windows_wrong, outcome.windows_missing
    ({'b': 1}, {'a': 1, 'b': 1}, 1, 1)
    """
    found = list(emitted)
    counted: dict[int, Counter[str]] = {}
    for start, counts in found:
        counted.setdefault(start, Counter()).update(counts)
    lost, waiting = Counter[str](), Counter[str]()
    for start, origins in expected.items():
        is_closed = start in counted or start + MINUTE <= watermark
        kept = counted.get(start, Counter())
        for origin, rows in origins.items():
            (lost if is_closed else waiting)[origin] += rows - min(rows, kept[origin])
    right = sum(counted[start] == Counter(expected[start]) for start in counted.keys() & expected.keys())
    return QueryResult(
        rows_in=sum(sum(origins.values()) for origins in expected.values()),
        lost=dict(+lost),
        waiting=dict(+waiting),
        windows_emitted=len(found),
        windows_wrong=len(found) - right,
        windows_missing=len(expected.keys() - counted.keys()),
        watermark=watermark,
    )


NOT_SHOWN = "This run does not show what it was made to show: plain Spark did not do what is told of it here."
MISCOUNTED = "Floodmark did not get it right in this run, which it must: please report it."


def why_lagging(laggard: str, orders: int, minutes: int, plain: QueryResult, floodmark: QueryResult) -> str:
    """Explain a partition that delivers its orders some minutes after the others."""
    if plain.lost.keys() != {laggard}:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark follows the partition that is furthest ahead. {laggard} fell {minutes} minutes behind, so "
        f"{plain.rows_lost:,} of its {orders:,} orders came after their windows had closed, and were dropped.",
        "Floodmark's follows the partition that is furthest behind, so windows stayed open until its orders were in.",
        floodmark,
    )


def why_quiet(quiet: str, last_order: int, idle: str, plain: QueryResult, floodmark: QueryResult) -> str:
    """Explain a source that has sent nothing since its last order."""
    if not plain.windows_missing or plain.rows_lost or plain.watermark > last_order:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark is the lowest of its streams. The last order of {quiet} is of {_clock(last_order)}, so the "
        f"watermark stays at {_clock(plain.watermark)} until {quiet} speaks again, and {plain.windows_missing} windows "
        f"with {plain.rows_waiting:,} orders stay open.",
        f"Floodmark left {quiet} out once it had been silent for {idle}, and time went on to "
        f"{_clock(floodmark.watermark)}.",
        floodmark,
    )


def why_a_row_from_the_future(
    culprit: str, its_time: int, orders_after: Sequence[int], future: str, plain: QueryResult, floodmark: QueryResult
) -> str:
    """Explain a row whose time is decades ahead, with so many orders in each batch after its own."""
    spared = _batches_spared(orders_after, plain.rows_lost)
    if spared is None or plain.watermark <= floodmark.watermark:
        return NOT_SHOWN
    return _with_floodmark(
        f"One row of {culprit} says {_day(its_time)}, and took Spark's watermark to {_day(plain.watermark)}. Whatever "
        f"came more than {spared} batch{'' if spared == 1 else 'es'} later, from any partition, was late: "
        f"{plain.rows_lost:,} orders were dropped.",
        f"Floodmark does not let a row that is more than {future} ahead of the clock move time; its watermark "
        f"ended at {_clock(floodmark.watermark)}.",
        floodmark,
    )


def _batches_spared(orders: Sequence[int], lost: int) -> int | None:
    """Return after how many batches all orders were lost, or None if it is not so.

    >>> _batches_spared([5, 3, 2], lost=5), _batches_spared([5, 3, 2], lost=4), _batches_spared([5, 3, 2], lost=0)
    (1, None, None)
    """
    return next((number for number in range(len(orders)) if 0 < lost == sum(orders[number:])), None)


def _with_floodmark(plain_says: str, floodmark_says: str, floodmark: QueryResult) -> str:
    return f"{plain_says} {floodmark_says if floodmark.is_right else MISCOUNTED}"


def _clock(micros: int) -> str:
    # Floodmark tells Spark the last millisecond before its watermark.
    return f"{_moment(micros + 500_000):%H:%M:%S} UTC"


def _day(micros: int) -> str:
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC)
