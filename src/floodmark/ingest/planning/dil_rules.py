"""The rules of DIL by the letter, with what they lose: for jobs that must read what DIL would have read.

They differ from `plan` in this: a partition is known by its start, so that another start forgets it; each begins one
period after the one before it, so that months drift (01-31, 02-29, 03-29); a day is 24 hours; a partition runs if it
ends at or after both its own cut-off and that of the whole job, so that an old one which is not finished never runs
again; and what is at its end is run once more, with an empty range.
"""

from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from floodmark.ingest.calendar.clock import EPOCH, HOUR, LATEST, MICROSECOND, micros_to_wall, zone_of
from floodmark.ingest.calendar.grid import GridPart
from floodmark.ingest.calendar.ranges import Range, within
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import Coverage

DAY: Final = 24 * HOUR

DilStates = Mapping[tuple[int, str], int]
"""The high watermark of each partition that ever ran, by its start and the key of its unit."""


@dataclass(frozen=True, slots=True)
class DilWorkUnit:
    """What DIL runs: a partition of a unit, and the range that it reads, which may be empty."""

    unit: Unit
    partition: Range
    range: Range
    is_new: bool
    """Whether nothing was known of it."""


def dil_work_units(job: Job, states: DilStates, now: int, *, cleanse: bool = False) -> list[DilWorkUnit]:
    """Return what DIL would run; with `cleanse`, without those that have an empty range.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), grace_days=3)
    >>> start, now = (Bound.parse(text, "UTC").at for text in ("2020-01-01", "2020-01-16"))
    >>> known = {(start, "{}"): now - DAY}
    >>> [(now - one.range.lo) // DAY for one in dil_work_units(Job("orders", "UTC", times), known, now)]
    [4]
    """
    grace, abstinence = job.time.grace_days * DAY, job.time.abstinence_days * DAY
    overall = max(states.values()) - grace if states else -1
    found = []
    for partition in dil_partitions(job, now):
        for unit in job.listed_units:
            high = states.get((partition.lo, unit.key))
            if high is None or high == partition.lo:
                read, is_new = partition, high is None
                is_run = is_new or partition.hi >= max(partition.lo - grace + abstinence, overall)
            else:
                own = high - grace + abstinence
                read, is_new = Range(max(own, partition.lo), partition.hi), False
                is_run = partition.hi >= max(own, overall)
            if is_run and not (cleanse and read.lo >= read.hi):
                found.append(DilWorkUnit(unit, partition, read, is_new))
    return found


def dil_partitions(job: Job, now: int) -> list[Range]:
    """Return the partitions as DIL chains them."""
    lo, hi = job.time.from_.resolve(now, job.zone), job.time.to.resolve(now, job.zone)
    if job.time.grid.is_plain:
        return list(_chained(job, job.time.grid.parts[0].period, lo, hi))
    return list(_walked(job, lo, hi, now))


def _walked(job: Job, lo: int, hi: int, now: int) -> Iterator[Range]:
    """Give the partitions of a composite grid: each against the end of its own part, not against that of the job."""
    cursor, last = lo, None
    while cursor < hi:
        step = next(_steps(job, cursor, hi, now), None)
        if step is None or step == last:
            return
        yield step
        cursor, last = step.hi, step


def _steps(job: Job, cursor: int, hi: int, now: int) -> Iterator[Range]:
    for part in job.time.grid.parts:
        start, end = _ends(part, now)
        if start <= hi and end > cursor:
            yield from _chained(job, part.period, max(cursor, start), end)


def _ends(part: GridPart, now: int) -> tuple[int, int]:
    start = LATEST if part.start is None or part.start.at is None else part.start.at
    return start, now if part.end is None or part.end.at is None else part.end.at


def _chained(job: Job, period: str, lo: int, hi: int) -> Iterator[Range]:
    while lo < hi:
        end = hi if period == "none" else _next(lo, period, job.zone)
        if end <= hi:
            yield Range(lo, end)
        elif job.time.partial:
            yield Range(lo, hi)
        lo = end


def _next(at: int, period: str, zone: str) -> int:
    if period == "hourly":
        return at + HOUR
    local = micros_to_wall(at, zone_of(zone))
    if period in ("daily", "weekly"):
        after = local + timedelta(days=1 if period == "daily" else 7)
    else:
        months = local.month - 1 + (1 if period == "monthly" else 12)
        year, month = local.year + months // 12, months % 12 + 1
        after = local.replace(year=year, month=month, day=min(local.day, monthrange(year, month)[1]))
    return _joda(after, zone)


def _joda(local: datetime, zone: str) -> int:
    # A time that is skipped moves on by what is skipped: 02:30 becomes 03:30, and stays there.
    return (local.replace(tzinfo=zone_of(zone), fold=0) - EPOCH) // MICROSECOND


def dil_states(job: Job, coverage: Coverage, now: int) -> dict[tuple[int, str], int]:
    """Return the high watermarks that DIL would keep, had it read what was read: the last end in each partition."""
    partitions = dil_partitions(job, now)
    states = {}
    for key, known in coverage.items():
        for partition in partitions:
            read = within(known.everything, *partition)
            if read:
                states[partition.lo, key] = read[-1].hi
            elif within([failure.range for failure in known.failures], *partition):
                states[partition.lo, key] = partition.lo
    return states


def signature(job: Job, start: int, unit: Unit) -> str:
    """Return the name under which DIL keeps the state of a partition.

    >>> times = TimeWatermark("system", Bound.parse("2017-01-01", "UTC"), Bound.parse("-", "UTC"))
    >>> signature(Job("orders", "UTC", times), times.from_.at, Unit.of({}))
    '[watermark.system.1483228800000, watermark.unit.{}]'
    """
    name = "unit" if job.units is None else job.units.name
    text = f"[watermark.{job.time.name}.{start // 1000}, watermark.{name}.{unit.key}]"
    return text.replace("/", "%2F")
