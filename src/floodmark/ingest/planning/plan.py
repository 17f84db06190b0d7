"""What a job has to read now, and why. Pure: the same job, coverage and moment give the same plan.

A cell is due for one of these reasons, the first that applies:

| reason | what of it is read | held by abstinence | held in quarantine |
|---|---|---|---|
| failed | what failed when it was last read, covered or not, however old | no | yes |
| gap | what was not read and lies before what the unit has reached | no | yes |
| new | what was not read and lies after it; all of a cell that was never run | once it was run | yes |
| backfill | what somebody wants to be read again | no | yes |
| grace | what was read and lies within the grace | yes | yes |

If a run may not read them all, failed cells and gaps come first, then new cells, backfills and grace; always the
oldest first. What is left waits for the next run. What is due is found by ranges of time and of cell numbers, so that
a million cells cost no more than one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, Literal, Self, get_args

from floodmark.ingest.calendar.clock import day_number, days_before, zone_of
from floodmark.ingest.calendar.grid import Cells
from floodmark.ingest.calendar.ranges import (
    Range,
    Ranges,
    gaps,
    intersect,
    merged,
    size,
    subtract,
    touches,
    union,
    within,
)
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import NO_COVERAGE, Coverage, Failure, UnitCoverage
from floodmark.ingest.planning.dil_rules import dil_states, dil_work_units

Reason = Literal["failed", "gap", "new", "backfill", "grace"]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
"""The most pressing first."""

STAGES: Final = ("first", "new", "backfill", "grace")
"""In which order cells are taken: failed ones and gaps first, the older of either."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One range to be read, whole or not at all."""

    unit: Unit
    cell: Range
    """The period it is of, as far as the job reads now."""
    range: Range
    """What exactly is to be read."""
    reason: Reason
    """Why: the most pressing of all reasons."""
    reasons: tuple[Reason, ...]
    """All reasons, in the order of time."""
    attempts: int = 0
    """How often something of it has failed in a row."""
    why: str = ""
    """What holds it, if it is held."""


MAX_LISTED: Final = 10_000
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
    rows: tuple[PlannedRange, ...]
    """What a run reads, in this order. A cell with holes has several."""
    held: tuple[PlannedRange, ...]
    """What waits until its abstinence is over."""
    quarantined: tuple[PlannedRange, ...]
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
    frame = PlanContext.of(job, cells, reach, now)
    is_read = reach.lo < reach.hi
    if is_read:
        # Parts that do not reach so far are refused here, since an end that moves may have moved beyond them.
        cells.check(reach)
    dues = [
        DueRanges.of(frame, unit, coverage.get(unit.key, NO_COVERAGE), place)
        for place, unit in enumerate(units)
        if is_read
    ]
    totals = {name: sum(due.count(name) for due in dues) for name in (*REASONS, "held", "quarantined")}
    taken = list(islice(_by_stage(dues, STAGES), job.limits.cells))
    is_full = len(taken) == job.limits.cells
    listed = {unit.key for unit in units}
    return Plan(
        job=job.name,
        now=now,
        reach=reach,
        rows=tuple(row for rows in taken for row in rows),
        held=tuple(row for rows in islice(_by_stage(dues, ("held",)), MAX_LISTED) for row in rows),
        quarantined=tuple(row for rows in islice(_by_stage(dues, ("quarantined",)), MAX_LISTED) for row in rows),
        totals=totals,
        expired=tuple(islice(_expired(job, coverage, reach.lo), MAX_LISTED)),
        retired=tuple(sorted(key for key in coverage if key not in listed)),
        cells=len(taken),
        waiting=sum(totals[reason] for reason in REASONS) - len(taken) if is_full else 0,
    )


def _dil_plan(job: Job, coverage: Coverage, now: int) -> Plan:
    """Return what DIL would read, by the letter of its rules, but for empty ranges. It may leave holes for ever."""
    found = dil_work_units(job, dil_states(job, coverage, now), now, cleanse=True)
    rows = []
    for one in found:
        known = coverage.get(one.unit.key, NO_COVERAGE)
        reason: Reason = "new" if one.is_new or gaps(known.everything, *one.range) else "grace"
        if touches([failure.range for failure in known.failures], *one.partition):
            reason = "failed"
        rows.append(PlannedRange(one.unit, one.partition, one.range, reason, (reason,)))
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


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What is the same for all units of a plan."""

    job: Job
    cells: Cells
    reach: Range
    today: int
    grace_starts: dict[int, int]
    """By frontier, since most units have the same."""
    days: dict[int, int]

    @classmethod
    def of(cls, job: Job, cells: Cells, reach: Range, now: int) -> Self:
        """Look at the calendar once."""
        return cls(job, cells, reach, day_number(now, zone_of(job.zone)), {}, {})

    def grace_start(self, frontier: int) -> int:
        """Return from when on what was read is read again."""
        start = self.grace_starts.get(frontier)
        if start is None:
            start = days_before(frontier, self.job.time.grace_days, zone_of(self.job.zone))
            self.grace_starts[frontier] = start
        return start

    def day(self, at: int) -> int:
        """Return the calendar day of a moment."""
        day = self.days.get(at)
        if day is None:
            day = self.days[at] = day_number(at, zone_of(self.job.zone))
        return day

    def numbers(self, ranges: Ranges) -> list[Range]:
        """Return the numbers of the cells that a set touches."""
        index = self.cells.index
        result: list[Range] = []
        for lo, hi in ranges:
            first, last = index(lo), index(hi - 1) + 1
            if result and first <= result[-1].hi:
                result[-1] = Range(result[-1].lo, last)
            else:
                result.append(Range(first, last))
        return result

    def is_quarantined(self, failure: Failure) -> bool:
        """Tell whether it has failed too often."""
        most = self.job.limits.attempts
        return most is not None and failure.attempts >= most


class DueRanges:
    """What is due of a unit: pieces of time, each with its reason, and the numbers of the cells they are in."""

    __slots__ = (
        "_failure_ends",
        "_failures",
        "_frame",
        "_held",
        "_los",
        "_numbers",
        "_pieces",
        "_place",
        "_stages",
        "_unit",
    )

    def __init__(self, frame: PlanContext, unit: Unit, place: int) -> None:
        """Use `of`."""
        self._frame = frame
        self._unit = unit
        self._place = place
        self._failures: list[Failure] = []
        self._failure_ends: list[int] = []
        self._held: Ranges = ()
        self._pieces: list[tuple[int, int, Reason]] = []
        self._los: list[int] = []
        self._numbers: dict[str, Ranges] = {}
        self._stages: dict[str, Ranges] = {}

    @classmethod
    def of(cls, frame: PlanContext, unit: Unit, known: UnitCoverage, place: int) -> Self:
        """Find it; `place` says where the unit stands in the list."""
        due = cls(frame, unit, place)
        lo, hi = frame.reach
        pieces = _ranges_by_reason(frame, known)
        if not any(pieces.values()):
            return due
        due._pieces = sorted((one.lo, one.hi, reason) for reason, ranges in pieces.items() for one in ranges)
        due._los = [piece[0] for piece in due._pieces]
        due._failures = [one for one in known.failures if one.range.lo < hi and lo < one.range.hi]
        due._failure_ends = [one.range.hi for one in due._failures]
        quarantined = frame.numbers(
            within(merged(one.range for one in due._failures if frame.is_quarantined(one)), lo, hi)
        )
        due._held = held = _held_cells(frame, known)
        taken: Ranges = quarantined
        everything: Ranges = ()
        for reason in REASONS:
            numbers: Ranges = frame.numbers(pieces[reason])
            everything = union(everything, numbers)
            if held and reason in ("new", "grace"):
                numbers = subtract(numbers, held)
            due._numbers[reason] = subtract(numbers, taken)
            taken = union(taken, numbers)
        if held:
            waits = union(frame.numbers(pieces["new"]), frame.numbers(pieces["grace"]))
            due._numbers["held"] = subtract(intersect(waits, held), quarantined)
        due._numbers["quarantined"] = intersect(everything, quarantined) if quarantined else ()
        due._stages = {**due._numbers, "first": union(due._numbers["failed"], due._numbers["gap"])}
        return due

    def count(self, name: str) -> int:
        """Return how many cells are due for a reason, held, or quarantined."""
        return size(self._numbers.get(name, ()))

    def rows_of(self, stage: str) -> Iterator[tuple[int, int, tuple[PlannedRange, ...]]]:
        """Give the rows of each cell of a stage, the oldest first, with what it takes to put units in order."""
        for numbers in self._stages.get(stage, ()):
            for number in range(numbers.lo, numbers.hi):
                rows = tuple(self._rows(number, stage))
                if rows:
                    yield rows[0].cell.lo, self._place, rows

    def _rows(self, number: int, stage: str) -> Iterator[PlannedRange]:
        """Give the rows of a cell: pieces that touch each other are read at once."""
        nominal, reach = self._frame.cells.cell(number), self._frame.reach
        cell = Range(max(nominal.lo, reach.lo), min(nominal.hi, reach.hi))
        if cell.lo >= cell.hi:
            return  # a day that the zone skips
        # Of a cell that is held, gaps and backfills are read all the same, and the rest is listed as held.
        is_held = bool(self._held) and stage != "quarantined" and touches(self._held, number, number + 1)
        start = end = -1
        reasons: list[Reason] = []
        place = max(bisect_right(self._los, cell.lo) - 1, 0)
        while place < len(self._pieces):
            lo, hi, reason = self._pieces[place]
            place += 1
            if lo >= cell.hi:
                break
            if hi <= cell.lo or (is_held and (reason in ("new", "grace")) != (stage == "held")):
                continue
            lo, hi = max(lo, cell.lo), min(hi, cell.hi)
            if reasons and lo == end:
                end = hi
                reasons.append(reason)
                continue
            if reasons:
                yield self._row(cell, Range(start, end), reasons, stage)
            start, end, reasons = lo, hi, [reason]
        if reasons:
            yield self._row(cell, Range(start, end), reasons, stage)

    def _failures_in(self, where: Range) -> Iterator[Failure]:
        for failure in islice(self._failures, bisect_right(self._failure_ends, where.lo), None):
            if failure.range.lo >= where.hi:
                break
            yield failure

    def _row(self, cell: Range, read: Range, reasons: list[Reason], stage: str) -> PlannedRange:
        where = cell if stage == "quarantined" else read
        worst = max(self._failures_in(where), key=lambda one: one.attempts, default=None)
        attempts, why = (0, "") if worst is None else (worst.attempts, "")
        if stage == "quarantined" and worst is not None:
            why = f"failed {attempts} times in a row" + (f": {worst.error}" if worst.error else "")
        elif stage == "held":
            why = f"was read less than {self._frame.job.time.abstinence_days + 1} calendar days ago"
        reason = min(reasons, key=_PRIORITY.__getitem__)
        return PlannedRange(self._unit, cell, read, reason, tuple(dict.fromkeys(reasons)), attempts, why)


def _by_stage(dues: list[DueRanges], stages: Iterable[str]) -> Iterator[tuple[PlannedRange, ...]]:
    """Give the rows of each cell: stage by stage, in each the oldest first, and then as the units are listed."""
    for stage in stages:
        for _, _, rows in merge(*(due.rows_of(stage) for due in dues)):
            yield rows


def _expired(job: Job, coverage: Coverage, start: int) -> Iterator[Expired]:
    for unit in job.listed_units:
        known = coverage.get(unit.key, NO_COVERAGE)
        if known.known_from is not None and known.known_from < start:
            for hole in gaps(known.everything, known.known_from, start):
                yield Expired(unit, hole)


_PRIORITY: Final = {reason: place for place, reason in enumerate(REASONS)}


def _ranges_by_reason(frame: PlanContext, known: UnitCoverage) -> dict[Reason, Ranges]:
    """Return what is due by reason: sets that do not meet."""
    lo, hi = frame.reach
    everything, frontier = known.everything, known.frontier
    missing = gaps(everything, lo, hi)
    failed: Ranges = within(merged(one.range for one in known.failures), lo, hi) if known.failures else ()
    wanted: Ranges = within(known.wanted, lo, hi) if known.wanted else ()
    grace: Ranges = ()
    if frame.job.time.grace_days and frontier is not None:
        grace = within(everything, max(frame.grace_start(frontier), lo), min(frontier, hi))
    missing = subtract(missing, failed)
    wanted = subtract(subtract(wanted, failed), missing)
    grace = subtract(subtract(grace, failed), wanted)
    turn = lo if frontier is None else min(max(frontier, lo), hi)
    return {
        "failed": failed,
        "gap": within(missing, lo, turn),
        "new": within(missing, turn, hi),
        "backfill": wanted,
        "grace": grace,
    }


def _held_cells(frame: PlanContext, known: UnitCoverage) -> Ranges:
    """Return the numbers of the cells that succeeded not long ago, and have not failed since."""
    lo, hi = frame.reach
    days = frame.job.time.abstinence_days
    if not days or not known.fresh:
        return ()
    fresh = merged(one.range for one in known.fresh if frame.today <= frame.day(one.at) + days)
    failed = merged(one.range for one in known.failures)
    return subtract(frame.numbers(within(fresh, lo, hi)), frame.numbers(within(failed, lo, hi)))
