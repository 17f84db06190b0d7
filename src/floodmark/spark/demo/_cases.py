"""The three cases: what arrives, and which options of `with_watermark` answer it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from floodmark.spark.demo._orders import (
    MINUTE,
    SECOND,
    File,
    closing_file,
    in_files,
    per_minute,
    placed,
    recent_start,
)
from floodmark.spark.demo._outcome import Minutes, Outcome
from floodmark.spark.demo._why import why_a_row_from_the_future, why_lagging, why_quiet

DELAY: Final = "1 minute"
YEAR_2100: Final = 4_102_444_800 * SECOND
_PARTITIONS: Final = ("p0", "p1", "p2", "p3")
_LAG: Final = 15 * MINUTE


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that happens to streams, and the right answer.

    `streams` holds the files of each stream, in order of arrival; file n of every stream is read in micro-batch n.
    `options` are those of `with_watermark`, beside the column and the delay. A case that `takes_time` has to run until
    Floodmark's windows are out, the others until everything is read.
    """

    name: str
    streams: Mapping[str, Sequence[File]]
    expected: Minutes
    options: Mapping[str, Any]
    takes_time: bool
    explain: Callable[[Outcome, Outcome], str]

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
    orders = placed(start, _PARTITIONS)
    orders[laggard] = orders[laggard].delayed(since=start + 5 * MINUTE, lag=_LAG)
    return Case(
        name="lagging partition",
        streams={"orders": [*in_files(orders, start), closing_file(_PARTITIONS, start)]},
        expected=per_minute(orders),
        options={"per": ["partition"]},
        takes_time=False,
        explain=partial(why_lagging, laggard, len(orders[laggard].times), _LAG // MINUTE),
    )


def _quiet_source(start: int) -> Case:
    """Of two streams, one sends nothing more after ten minutes: no row, and no word that it is done.

    Uniting them first, under one `withWatermark`, would not freeze; it would be the lagging partition again.
    """
    orders = placed(start, ("web", "kiosk"))
    orders["kiosk"] = orders["kiosk"].before(start + 10 * MINUTE)
    streams = {name: in_files({name: one}, start) for name, one in orders.items()}
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
    orders = placed(start, _PARTITIONS)
    first, *later = in_files(orders, start)
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
