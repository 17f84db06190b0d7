"""The three cases of the demo: the orders that arrive, the expected counts, and why the two queries differ.

The orders are the same in every run, except for the minute at which they begin. An explanation uses the figures of the
run, and is given only if they confirm it.
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

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
YEAR_2100: Final = 4_102_444_800 * SECOND
DELAY: Final = "1 minute"
_PARTITIONS: Final = ("p0", "p1", "p2", "p3")
_LAG: Final = 15 * MINUTE


@dataclass(frozen=True, slots=True)
class QueryResult:
    """How many windows a query emitted, and how many orders it lost.

    An order is *lost* if its window was emitted without it, and *waiting* if its window is still open.
    """

    rows_in: int
    lost: Mapping[str, int]
    waiting: Mapping[str, int]
    windows_emitted: int
    windows_wrong: int
    windows_missing: int
    watermark: int
    """Spark's watermark at the end, in microseconds."""

    @property
    def rows_lost(self) -> int:
        """Return how many orders were lost."""
        return sum(self.lost.values())

    @property
    def rows_waiting(self) -> int:
        """Return how many orders wait in open windows."""
        return sum(self.waiting.values())

    @property
    def is_right(self) -> bool:
        """Return whether every window was emitted with all its orders."""
        return not (self.rows_lost or self.rows_waiting or self.windows_wrong or self.windows_missing)


OrdersPerMinute = Mapping[int, Mapping[str, int]]
"""The number of orders of each origin, by the start of the minute."""


Times = NDArray[np.int64]
OrderFile = Mapping[str, Times]
"""The event times of each origin in one file, which is one micro-batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """The input of both queries in one case, and the expected counts.

    `streams` holds the files of each stream, in order of arrival; file n of every stream is read in micro-batch n.
    `options` are those of `with_watermark`, besides the column and the delay. A case that `takes_time` runs until
    Floodmark has emitted all windows, the others until everything is read.
    """

    name: str
    streams: Mapping[str, Sequence[OrderFile]]
    expected: OrdersPerMinute
    options: Mapping[str, Any]
    takes_time: bool
    explain: Callable[[QueryResult, QueryResult], str]

    @property
    def origin_column(self) -> str:
        """Return the column with the origin of an order."""
        return str(self.options["per"][0])

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the origins that send orders."""
        return tuple(next(iter(self.expected.values())))

    @property
    def rows(self) -> int:
        """Return how many rows there are to read: the orders, and the rows that only advance time."""
        return sum(len(times) for files in self.streams.values() for file in files for times in file.values())

    @property
    def plain_code(self) -> str:
        """Return the code of the watermark in plain Spark."""
        first, *others = (f'{name}.withWatermark("t", "{DELAY}")' for name in self.streams)
        return first + "".join(f".union({other})" for other in others)

    @property
    def floodmark_code(self) -> str:
        """Return the code of the watermark with Floodmark."""
        first, *others = self.streams
        rows = first + "".join(f".union({other})" for other in others)
        options = {"delay": DELAY} | dict(self.options)
        arguments = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in options.items())
        return f'with_watermark({rows}, "t", {arguments})'


def all_cases(now: int) -> tuple[Case, ...]:
    """Return the cases, with orders of the 45 minutes before `now` (microseconds)."""
    start = recent_start(now)
    return _lagging_partition(start), _quiet_source(start), _row_from_the_future(start)


def _lagging_partition(start: int) -> Case:
    """One partition keeps up for five minutes, and then delivers 15 minutes after the others."""
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
    """Of two streams, one sends nothing more after ten minutes, and is not closed either.

    With one `withWatermark` above the union, plain Spark would not freeze, but drop rows as with a lagging partition.
    """
    orders = generate_orders(start, ("web", "kiosk"))
    orders["kiosk"] = orders["kiosk"].before(start + 10 * MINUTE)
    streams = {name: split_into_files({name: of_stream}, start) for name, of_stream in orders.items()}
    streams["web"].append(closing_file(["web"], start))
    return Case(
        name="quiet source",
        streams=streams,
        expected=per_minute(orders),
        # Spark does not report the unread files of a directory; here file n of both streams is read together.
        options={"per": ["source"], "idle": "2 seconds", "assume_caught_up": True},
        takes_time=True,
        explain=partial(why_quiet, "kiosk", int(orders["kiosk"].times.max()), "2 seconds"),
    )


def _row_from_the_future(start: int) -> Case:
    """One row of one partition has a time in the year 2100."""
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
"""The time that the orders cover."""

DISORDER: Final = MINUTE
"""Orders arrive less than this after they were placed, unless their origin lags."""

ORDERS_PER_ORIGIN: Final = 6_000

_FILE_SPAN: Final = 8 * MINUTE
"""Orders that arrive within this time are in one file."""
_SEED: Final = 20260101


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of one origin, in order of arrival."""

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
        """Return the times of the orders that arrive from `begin` until before `end`."""
        return self.times[(self.arrivals >= begin) & (self.arrivals < end)]


def recent_start(now: int) -> int:
    """Return a full minute such that all rows of a case that starts there lie in the hour before `now`."""
    return now // MINUTE * MINUTE - SPAN - 15 * MINUTE


def generate_orders(start: int, origins: Iterable[str]) -> dict[str, Orders]:
    """Return orders for each origin, spread over SPAN from `start` and slightly out of order."""
    rng = np.random.default_rng(_SEED)
    orders = {}
    for origin in origins:
        times = start + rng.integers(0, SPAN, ORDERS_PER_ORIGIN)
        arrivals = times + rng.integers(0, DISORDER, ORDERS_PER_ORIGIN)
        order = np.argsort(arrivals, kind="stable")
        orders[origin] = Orders(times[order], arrivals[order])
    return orders


def split_into_files(orders: Mapping[str, Orders], start: int) -> list[OrderFile]:
    """Return the orders as files, by their arrival."""
    last = max(int(of_origin.arrivals[-1]) for of_origin in orders.values())
    return [
        {origin: of_origin.arriving(begin, begin + _FILE_SPAN) for origin, of_origin in orders.items()}
        for begin in range(start, last + 1, _FILE_SPAN)
    ]


def closing_file(origins: Iterable[str], start: int) -> OrderFile:
    """Return a file with one later row of each origin, which closes the last windows of both queries."""
    return {origin: np.array([start + SPAN + 2 * DISORDER], dtype=np.int64) for origin in origins}


def per_minute(orders: Mapping[str, Orders]) -> dict[int, dict[str, int]]:
    """Return how many orders of each origin were placed in each minute: the expected result of a query."""
    minutes: dict[int, dict[str, int]] = {}
    for origin, of_origin in orders.items():
        starts, counts = np.unique(of_origin.times // MINUTE * MINUTE, return_counts=True)
        for begin, count in zip(starts.tolist(), counts.tolist(), strict=True):
            minutes.setdefault(begin, dict.fromkeys(orders, 0))[origin] = count
    return minutes


def write_files(directory: Path, files: Sequence[OrderFile], origin_column: str) -> None:
    """Write files with modification times by which Spark reads them in this order."""
    directory.mkdir(parents=True)
    for number, file in enumerate(files):
        times = np.concatenate(list(file.values()))
        origins = np.repeat(list(file), [len(of_origin) for of_origin in file.values()])
        moments = pa.array(times, pa.timestamp("us", tz="UTC"))
        path = directory / f"{number:03}.parquet"
        pq.write_table(pa.table({origin_column: pa.array(origins, pa.string()), "t": moments}), path)
        # Spark reads the oldest file first, so the times must differ.
        os.utime(path, (number, number))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both results of one case, and why they differ."""

    case: str
    plain: QueryResult
    floodmark: QueryResult
    plain_code: str
    floodmark_code: str
    why: str


def judge(expected: OrdersPerMinute, emitted: Iterable[tuple[int, Mapping[str, int]]], watermark: int) -> QueryResult:
    """Compare the windows that a query has emitted with the expected counts.

    >>> expected = {0: {"a": 2, "b": 1}, 60_000_000: {"a": 1, "b": 1}}
    >>> result = judge(expected, [(0, {"a": 2, "b": 0})], watermark=60_000_000)
    >>> result.lost, result.waiting, result.windows_wrong, result.windows_missing
    ({'b': 1}, {'a': 1, 'b': 1}, 1, 1)
    """
    windows = list(emitted)
    counted: dict[int, Counter[str]] = {}
    for start, counts in windows:
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
        windows_emitted=len(windows),
        windows_wrong=len(windows) - right,
        windows_missing=len(expected.keys() - counted.keys()),
        watermark=watermark,
    )


NOT_SHOWN = "Plain Spark did not go wrong in this run as the case expects, so there is nothing to explain."
MISCOUNTED = "Floodmark's result is wrong in this run. That is a bug: please report it."


def why_lagging(laggard: str, orders: int, minutes: int, plain: QueryResult, floodmark: QueryResult) -> str:
    """Explain the case of a partition that delivers its orders some minutes after the others."""
    if plain.lost.keys() != {laggard}:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark follows the partition that is furthest ahead. {laggard} fell {minutes} minutes behind, so "
        f"{plain.rows_lost:,} of its {orders:,} orders arrived after their windows had closed, and were dropped.",
        "Floodmark's follows the partition that is furthest behind, so windows stayed open until its orders arrived.",
        floodmark,
    )


def why_quiet(quiet: str, last_order: int, idle: str, plain: QueryResult, floodmark: QueryResult) -> str:
    """Explain the case of a source that sends nothing more after its last order."""
    if not plain.windows_missing or plain.rows_lost or plain.watermark > last_order:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark is the lowest of its streams. The last order of {quiet} is from {_clock(last_order)}, so "
        f"the watermark stays at {_clock(plain.watermark)} until {quiet} sends another row, and "
        f"{plain.windows_missing} windows with {plain.rows_waiting:,} orders stay open.",
        f"Floodmark declared {quiet} idle after {idle} without a row, and its watermark advanced to "
        f"{_clock(floodmark.watermark)}.",
        floodmark,
    )


def why_a_row_from_the_future(
    culprit: str, its_time: int, orders_after: Sequence[int], future: str, plain: QueryResult, floodmark: QueryResult
) -> str:
    """Explain the case of a row whose time is decades ahead; `orders_after` are the orders in each later batch."""
    spared = _batches_spared(orders_after, plain.rows_lost)
    if spared is None or plain.watermark <= floodmark.watermark:
        return NOT_SHOWN
    return _with_floodmark(
        f"One row of {culprit} has the time {_day(its_time)}, and moved Spark's watermark to {_day(plain.watermark)}. "
        f"All orders that arrived more than {spared} batch{'' if spared == 1 else 'es'} later, from any partition, "
        f"were late: {plain.rows_lost:,} orders were dropped.",
        f"Floodmark ignores rows that are more than {future} ahead of the clock for its watermark, which ended at "
        f"{_clock(floodmark.watermark)}.",
        floodmark,
    )


def _batches_spared(orders: Sequence[int], lost: int) -> int | None:
    """Return the number of batches after which all orders were lost; None if the lost orders are others.

    >>> _batches_spared([5, 3, 2], lost=5), _batches_spared([5, 3, 2], lost=4), _batches_spared([5, 3, 2], lost=0)
    (1, None, None)
    """
    return next((number for number in range(len(orders)) if 0 < lost == sum(orders[number:])), None)


def _with_floodmark(about_plain: str, about_floodmark: str, floodmark: QueryResult) -> str:
    return f"{about_plain} {about_floodmark if floodmark.is_right else MISCOUNTED}"


def _clock(micros: int) -> str:
    # Spark gets the last millisecond before Floodmark's watermark, so round to the full second.
    return f"{_moment(micros + 500_000):%H:%M:%S} UTC"


def _day(micros: int) -> str:
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC)
