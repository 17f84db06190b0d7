"""The speed and the memory of planning: five years of hours, a thousand units."""

import random
import tracemalloc
from collections.abc import Iterator

from figures import Figure, best_seconds
from floodmark.ingest import Bound, Grid, Job, Limits, Range, TimeWatermark, UnitCoverage, UnitWatermark, plan
from floodmark.ingest.calendar.ranges import merge_ranges, subtract

HOUR = 3_600_000_000
HOURS = 5 * 365 * 24 + 24
UNITS = 1_000
ROUNDS = 3
ZONE = "America/Los_Angeles"


def measure_ingest() -> Iterator[Figure]:
    """Yield how long it takes to plan 44 M cells, in three states, and how much memory."""
    start = Bound.parse("2021-01-01", ZONE)
    assert start.at is not None
    now = start.at + HOURS * HOUR
    job = _job(start, grid="hourly")
    few = _coverage(start.at, holes=20)
    cells = job.cells(now).count(start.at, now) * UNITS / 1e6
    title = f"plan of {cells:.0f} M cells"
    yield Figure(f"{title}, 20 holes a unit", _seconds(job, few, now), "s", at_most=2)
    yield Figure(f"{title}, 20 holes a unit, memory", _megabytes(job, start.at, now), "MB", at_most=500)
    yield Figure(f"{title}, 438 holes a unit (1 %)", _seconds(job, _coverage(start.at, holes=438), now), "s")
    yield Figure(f"{title}, none was ever read", _seconds(job, {}, now), "s", at_most=2)
    days = _job(start, grid="daily", grace_days=3)
    yield Figure("plan of 1.8 M days, 20 holes a unit, 3 of grace", _seconds(days, few, now), "s", at_most=2)


def _job(start: Bound, *, grid: str, grace_days: int = 0) -> Job:
    times = TimeWatermark("hour", start, Bound.parse("P0DT0H", ZONE), Grid.plain(grid), grace_days=grace_days)
    units = UnitWatermark.listed("id", range(UNITS))
    return Job("orders", ZONE, times, units, limits=Limits(cells=100_000))


def _coverage(start: int, *, holes: int) -> dict[str, UnitCoverage]:
    """Return what is known if all but the last day and some hours here and there were read."""
    chance = random.Random(7)
    known = {}
    units = UnitWatermark.listed("id", range(UNITS)).units
    assert units is not None
    for unit in units:
        missing = merge_ranges(
            (start + hour * HOUR, start + (hour + 1) * HOUR) for hour in chance.sample(range(HOURS - 24), holes)
        )
        known[unit.key] = UnitCoverage(subtract([Range(start, start + (HOURS - 24) * HOUR)], missing))
    return known


def _seconds(job: Job, known: dict[str, UnitCoverage], now: int) -> float:
    assert plan(job, known, now).rows
    return best_seconds(lambda: plan(job, known, now), ROUNDS)


def _megabytes(job: Job, start: int, now: int) -> float:
    """Return the most that planning takes, with what is known."""
    tracemalloc.start()
    try:
        plan(job, _coverage(start, holes=20), now)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    for figure in measure_ingest():
        print(figure.line(), flush=True)
