"""What a job has to read now, and why. Pure: the same job, knowledge and moment give the same plan.

A cell is due for one of these reasons, the first that applies:

| reason | what of it is read | held by abstinence | held in quarantine |
|---|---|---|---|
| failed | what failed when it was last read, covered or not, however old | no | yes |
| gap | what was not read and lies before what the unit has reached | no | yes |
| new | what was not read and lies after it; all of a cell that was never run | once it was run | yes |
| backfill | what somebody wants to be read again | no | yes |
| grace | what was read and lies within the grace | yes | yes |

If a run may not read them all, failed cells and gaps come first, then new cells, backfills and grace; always the
oldest first. What is left waits for the next run.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final

from floodmark.ingest._coverage import NOTHING, Coverage
from floodmark.ingest._dil_rules import dil_work_units, states_of
from floodmark.ingest._due import Due, Frame
from floodmark.ingest._job import Job
from floodmark.ingest._ranges import Range, gaps, touches
from floodmark.ingest._row import REASONS, STAGES, Reason, Row
from floodmark.ingest._unit import Unit

LISTED: Final = 10_000
"""How many cells are listed of those that are held, and of what has expired. All are counted."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A hole that nobody will fill: a start that moves, or was moved, has passed it."""

    unit: Unit
    range: Range


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read, what is held back and why, and what is not read any more."""

    job: str
    now: int
    reach: Range
    """From when to when the job reads; nothing if it does not end after it begins."""
    rows: tuple[Row, ...]
    """What a run reads, in this order. A cell with holes has several."""
    held: tuple[Row, ...]
    """What waits until its abstinence is over."""
    quarantined: tuple[Row, ...]
    """What has failed too often, and waits for somebody to look at it."""
    totals: Mapping[str, int]
    """Cells that are due, by reason, also those for which this run has no room; and those `held` and `quarantined`."""
    expired: tuple[Expired, ...]
    retired: tuple[str, ...]
    """Keys of units that the job had, and has no more. What was read of them is kept."""
    cells: int
    """How many cells the rows are of."""
    waiting: int
    """How many cells are due and have no room in this run."""

    @property
    def due(self) -> int:
        """How many cells are due, held and quarantined ones left out."""
        return sum(self.totals[reason] for reason in REASONS)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.rows


def plan(job: Job, coverage: Coverage, now: int) -> Plan:
    """Return what a job has to read at this moment, given what is known of its units.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> found = plan(job, {}, Bound.parse("2020-01-04T09:00:00", "UTC").at)
    >>> [(job.shown(row.range.lo)[:10], row.reason) for row in found.rows]
    [('2020-01-01', 'new'), ('2020-01-02', 'new'), ('2020-01-03', 'new')]
    """
    if job.compat:
        return _dil_plan(job, coverage, now)
    units = job.listed_units
    reach = job.reach(now)
    cells = job.cells(now)
    if not job.time.partial and reach.lo < reach.hi:
        reach = Range(reach.lo, cells.whole_until(reach.hi))
    frame = Frame.of(job, cells, reach, now)
    is_read = reach.lo < reach.hi
    if is_read:
        # Parts that do not reach so far are refused here, since an end that moves may have moved beyond them.
        cells.check(reach)
    dues = [Due.of(frame, unit, coverage.get(unit.key, NOTHING), place) for place, unit in enumerate(units) if is_read]
    totals = {name: sum(due.count(name) for due in dues) for name in (*REASONS, "held", "quarantined")}
    taken = list(islice(_in_order(dues, STAGES), job.limits.cells))
    is_full = len(taken) == job.limits.cells
    listed = {unit.key for unit in units}
    return Plan(
        job=job.name,
        now=now,
        reach=reach,
        rows=tuple(row for rows in taken for row in rows),
        held=tuple(row for rows in islice(_in_order(dues, ("held",)), LISTED) for row in rows),
        quarantined=tuple(row for rows in islice(_in_order(dues, ("quarantined",)), LISTED) for row in rows),
        totals=totals,
        expired=tuple(islice(_expired(job, coverage, reach.lo), LISTED)),
        retired=tuple(sorted(key for key in coverage if key not in listed)),
        cells=len(taken),
        waiting=sum(totals[reason] for reason in REASONS) - len(taken) if is_full else 0,
    )


def _dil_plan(job: Job, coverage: Coverage, now: int) -> Plan:
    """Return what DIL would read, by the letter of its rules, but for empty ranges. It may leave holes for ever."""
    found = dil_work_units(job, states_of(job, coverage, now), now, cleanse=True)
    rows = []
    for one in found:
        known = coverage.get(one.unit.key, NOTHING)
        reason: Reason = "new" if one.is_new or gaps(known.everything, *one.range) else "grace"
        if touches([failure.range for failure in known.failures], *one.partition):
            reason = "failed"
        rows.append(Row(one.unit, one.partition, one.range, reason, (reason,)))
    listed = {unit.key for unit in job.listed_units}
    taken = rows[: job.limits.cells]
    return Plan(
        job=job.name,
        now=now,
        reach=Range(job.time.from_.resolve(now, job.zone), job.time.to.resolve(now, job.zone)),
        rows=tuple(taken),
        held=(),
        quarantined=(),
        totals={name: sum(row.reason == name for row in rows) for name in (*REASONS, "held", "quarantined")},
        expired=(),
        retired=tuple(sorted(key for key in coverage if key not in listed)),
        cells=len(taken),
        waiting=len(rows) - len(taken),
    )


def _in_order(dues: list[Due], stages: Iterable[str]) -> Iterator[tuple[Row, ...]]:
    """Give the rows of each cell: stage by stage, in each the oldest first, and then as the units are listed."""
    for stage in stages:
        for _, _, rows in merge(*(due.rows_of(stage) for due in dues)):
            yield rows


def _expired(job: Job, coverage: Coverage, start: int) -> Iterator[Expired]:
    for unit in job.listed_units:
        known = coverage.get(unit.key, NOTHING)
        if known.known_from is not None and known.known_from < start:
            for hole in gaps(known.everything, known.known_from, start):
                yield Expired(unit, hole)


def complete_through(job: Job, coverage: Coverage, now: int) -> int | None:
    """Return up to when everything was read, of all units that are listed: readers may trust what lies before it.

    None if there are no units, and so nobody to say it. Retired units do not count.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"))
    >>> job = Job("orders", "UTC", times, UnitWatermark.listed("id", ["a", "b"]))
    >>> a, b = (unit.key for unit in job.listed_units)
    >>> coverage = {a: UnitCoverage([Range(0, 9)]), b: UnitCoverage([Range(0, 5), Range(7, 12)])}
    >>> complete_through(job, coverage, now=20), largest_end(coverage)
    (5, 12)
    """
    start = job.time.from_.resolve(now, job.zone)
    return min((_complete(coverage, unit, start) for unit in job.listed_units), default=None)


def _complete(coverage: Coverage, unit: Unit, start: int) -> int:
    for one in coverage.get(unit.key, NOTHING).everything:
        if one.lo <= start < one.hi:
            return one.hi
    return start


def largest_end(coverage: Coverage) -> int | None:
    """Return the largest end of all that was ever read: DIL's high watermark, which says nothing of holes.

    >>> largest_end({}) is None
    True
    """
    return max((known.everything[-1].hi for known in coverage.values() if known.everything), default=None)


def recommended_grace(lateness: Mapping[int, int], *, share: float = 0.999) -> int | None:
    """Return the days of grace that would have found such a share of the rows, or None if none were seen.

    `lateness` says how many rows were found that many calendar days after their own.

    >>> recommended_grace({0: 10_000, 1: 300, 2: 50, 9: 1})
    2
    """
    total, found = sum(lateness.values()), 0
    for days in sorted(lateness):
        found += lateness[days]
        if found >= share * total:
            return max(days, 0)
    return None
