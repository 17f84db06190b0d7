"""The planning rules of LinkedIn's DIL, including the gaps they leave, for jobs that must read what DIL would read.

They differ from `plan` as follows. A partition is identified by its start, so that another start forgets it. Each
partition starts one period after the previous one, so that months drift (01-31, 02-29, 03-29). A day has 24 hours. A
partition runs only if it ends at or after both its own cut-off and that of the whole job, so that an old unfinished one
never runs again. A partition that is complete runs once more, with an empty range.
"""

from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from floodmark.ingest.calendar.clock import EPOCH, HOUR, LATEST, MICROSECOND, micros_to_wall, zone_of
from floodmark.ingest.calendar.grid import GridPart
from floodmark.ingest.calendar.ranges import Range, clip_ranges
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import Coverage

DAY: Final = 24 * HOUR

DilStates = Mapping[tuple[int, str], int]
"""The high watermark of each partition that ever ran, by its start and the key of its unit."""


@dataclass(frozen=True, slots=True)
class DilWorkUnit:
    """A DIL work unit: a partition of a unit, and the range that it reads, which may be empty."""

    unit: Unit
    partition: Range
    range: Range
    is_new: bool
    """Whether DIL has no state of it."""


def dil_work_units(job: Job, states: DilStates, now: int, *, cleanse: bool = False) -> list[DilWorkUnit]:
    """Return the work units that DIL would run; with `cleanse`, without those of an empty range.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), grace_days=3)
    >>> start, now = (Bound.parse(text, "UTC").at for text in ("2020-01-01", "2020-01-16"))
    >>> states = {(start, "{}"): now - DAY}
    >>> [(now - work.range.lo) // DAY for work in dil_work_units(Job("orders", "UTC", times), states, now)]
    [4]
    """
    grace, abstinence = job.time.grace_days * DAY, job.time.abstinence_days * DAY
    job_cutoff = max(states.values()) - grace if states else -1
    work_units = []
    for partition in dil_partitions(job, now):
        for unit in job.listed_units:
            high = states.get((partition.lo, unit.key))
            if high is None or high == partition.lo:
                read, is_new = partition, high is None
                is_run = is_new or partition.hi >= max(partition.lo - grace + abstinence, job_cutoff)
            else:
                cutoff = high - grace + abstinence
                read, is_new = Range(max(cutoff, partition.lo), partition.hi), False
                is_run = partition.hi >= max(cutoff, job_cutoff)
            if is_run and not (cleanse and read.lo >= read.hi):
                work_units.append(DilWorkUnit(unit, partition, read, is_new))
    return work_units


def dil_partitions(job: Job, now: int) -> list[Range]:
    """Return the partitions that DIL would create."""
    lo, hi = job.time.from_.resolve(now, job.zone), job.time.to.resolve(now, job.zone)
    if job.time.grid.is_plain:
        return list(_chain_periods(job, job.time.grid.parts[0].period, lo, hi))
    return list(_composite_partitions(job, lo, hi, now))


def _composite_partitions(job: Job, lo: int, hi: int, now: int) -> Iterator[Range]:
    """Yield the partitions of a composite grid; each is cut at the end of its part, not at that of the job."""
    cursor, last = lo, None
    while cursor < hi:
        partition = next(_partitions_from(job, cursor, hi, now), None)
        if partition is None or partition == last:
            return
        yield partition
        cursor, last = partition.hi, partition


def _partitions_from(job: Job, cursor: int, hi: int, now: int) -> Iterator[Range]:
    for part in job.time.grid.parts:
        start, end = _part_ends(part, now)
        if start <= hi and end > cursor:
            yield from _chain_periods(job, part.period, max(cursor, start), end)


def _part_ends(part: GridPart, now: int) -> tuple[int, int]:
    start = LATEST if part.start is None or part.start.at is None else part.start.at
    return start, now if part.end is None or part.end.at is None else part.end.at


def _chain_periods(job: Job, period: str, lo: int, hi: int) -> Iterator[Range]:
    while lo < hi:
        end = hi if period == "none" else _next_start(lo, period, job.zone)
        if end <= hi:
            yield Range(lo, end)
        elif job.time.partial:
            yield Range(lo, hi)
        lo = end


def _next_start(at: int, period: str, zone: str) -> int:
    if period == "hourly":
        return at + HOUR
    local = micros_to_wall(at, zone_of(zone))
    if period in ("daily", "weekly"):
        after = local + timedelta(days=1 if period == "daily" else 7)
    else:
        months = local.month - 1 + (1 if period == "monthly" else 12)
        year, month = local.year + months // 12, months % 12 + 1
        after = local.replace(year=year, month=month, day=min(local.day, monthrange(year, month)[1]))
    return _joda_micros(after, zone)


def _joda_micros(local: datetime, zone: str) -> int:
    # Joda-Time moves a skipped wall time forward by the length of the skip: 02:30 becomes 03:30.
    return (local.replace(tzinfo=zone_of(zone), fold=0) - EPOCH) // MICROSECOND


def dil_states(job: Job, coverage: Coverage, now: int) -> dict[tuple[int, str], int]:
    """Return the high watermark of each partition that DIL would have stored for this coverage."""
    partitions = dil_partitions(job, now)
    states = {}
    for key, unit in coverage.items():
        for partition in partitions:
            read = clip_ranges(unit.everything, *partition)
            if read:
                states[partition.lo, key] = read[-1].hi
            elif clip_ranges([failure.range for failure in unit.failures], *partition):
                states[partition.lo, key] = partition.lo
    return states


def signature(job: Job, start: int, unit: Unit) -> str:
    """Return the name under which DIL keeps the state of a partition (scenario S57).

    >>> times = TimeWatermark("system", Bound.parse("2017-01-01", "UTC"), Bound.parse("-", "UTC"))
    >>> signature(Job("orders", "UTC", times), times.from_.at, Unit.of({}))
    '[watermark.system.1483228800000, watermark.unit.{}]'
    """
    name = "unit" if job.units is None else job.units.name
    text = f"[watermark.{job.time.name}.{start // 1000}, watermark.{name}.{unit.key}]"
    return text.replace("/", "%2F")
