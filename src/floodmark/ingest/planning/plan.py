"""Planning: what a job has to read now, and why. Pure: the same job, coverage and time give the same plan.

A cell is due for one of these reasons, the first that applies:

| reason | what is read | held by abstinence | held in quarantine |
|---|---|---|---|
| failed | ranges whose last attempt failed, covered or not, however old | no | yes |
| gap | unread ranges before the unit's frontier | no | yes |
| new | unread ranges after the frontier; all of a cell that never ran | once the cell ran | yes |
| backfill | ranges that a backfill requested | no | yes |
| grace | read ranges within the grace period | yes | yes |

If there is more than a run may read, failed cells and gaps come first, then new cells, backfills and grace, each with
what has waited longest first; the rest waits for the next run. A failed cell waits since its last attempt, a gap or a
new cell since the time from which on it is unread, a cell of the grace period since its unit was last read again, and
then since it was last read itself. Of three cells one is new where there are such: cells that fail in each run take at
most two thirds of it. Planning works on ranges of time and of cell numbers, so that its cost does not grow with the
number of cells.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice, zip_longest
from typing import Final, Literal, Self, get_args

from floodmark.ingest.calendar.clock import day_number, days_before, zone_of
from floodmark.ingest.calendar.grid import Cells
from floodmark.ingest.calendar.ranges import (
    Range,
    Ranges,
    clip_ranges,
    gaps,
    intersect,
    merge_ranges,
    overlaps,
    subtract,
    total_length,
    union,
)
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.coverage import NO_COVERAGE, Coverage, Failure, Success, UnitCoverage
from floodmark.ingest.planning.dil_rules import dil_states, dil_work_units

Reason = Literal["failed", "gap", "new", "backfill", "grace"]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
"""The most urgent first."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One range of a unit to be read, as a whole or not at all."""

    unit: Unit
    cell: Range
    """The period that contains it, clipped to what the job reads now."""
    range: Range
    """The range to be read."""
    reason: Reason
    """The most urgent of all reasons."""
    reasons: tuple[Reason, ...]
    """All reasons, in order of time."""
    attempts: int = 0
    """The largest number of consecutive failures within it."""
    why: str = ""
    """Why it is held or quarantined; empty otherwise."""


MAX_LISTED: Final = 10_000
"""How many held, quarantined and expired entries a plan lists; its totals count all."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A gap that will not be read any more, because the start of the job has moved past it."""

    unit: Unit
    range: Range


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges to be read, the ranges held back, and those that will not be read any more."""

    job: str
    now: int
    reach: Range
    """The time range that the job reads now; empty if `hi` is not above `lo`."""
    rows: tuple[PlannedRange, ...]
    """The ranges that a run reads, in this order. A cell with gaps may have several."""
    held: tuple[PlannedRange, ...]
    """Ranges that wait for the end of the abstinence period."""
    quarantined: tuple[PlannedRange, ...]
    """Ranges that have failed too often and wait for a manual retry."""
    totals: Mapping[str, int]
    """Due cells by reason, including those above the limit of a run; and cells `held` and `quarantined`."""
    expired: tuple[Expired, ...]
    retired: tuple[str, ...]
    """Keys of units that the job no longer lists. Their coverage is kept."""
    cells: int
    """How many cells `rows` belong to."""
    waiting: int
    """How many due cells are above the limit of this run."""

    @property
    def due(self) -> int:
        """How many cells are due, without held and quarantined ones."""
        return sum(self.totals[reason] for reason in REASONS)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.rows


def plan(job: Job, coverage: Coverage, now: int) -> Plan:
    """Plan a job: return what it has to read at the time `now`, given the coverage of its units.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> job = Job("orders", "UTC", times)
    >>> planned = plan(job, {}, Bound.parse("2020-01-04T09:00:00", "UTC").at)
    >>> [(job.shown(row.range.lo)[:10], row.reason) for row in planned.rows]
    [('2020-01-01', 'new'), ('2020-01-02', 'new'), ('2020-01-03', 'new')]
    """
    if job.compat:
        return _plan_like_dil(job, coverage, now)
    units = job.listed_units
    reach = job.reach(now)
    cells = job.cells(now)
    if not job.time.partial and reach.lo < reach.hi:
        reach = Range(reach.lo, cells.whole_until(reach.hi))
    context = PlanContext.of(job, cells, reach, now)
    is_read = reach.lo < reach.hi
    if is_read:
        # Checked for each plan, because a relative end may have moved past the last part of the grid.
        cells.check(reach)
    dues = [
        DueRanges.of(context, unit, coverage.get(unit.key, NO_COVERAGE), index)
        for index, unit in enumerate(units)
        if is_read
    ]
    totals = {name: sum(due.count(name) for due in dues) for name in (*REASONS, "held", "quarantined")}
    taken = list(islice(_cells_in_order(dues), job.limits.cells))
    is_full = len(taken) == job.limits.cells
    listed = {unit.key for unit in units}
    return Plan(
        job=job.name,
        now=now,
        reach=reach,
        rows=tuple(row for rows in taken for row in rows),
        held=tuple(row for rows in islice(_longest_waiting(dues, "held"), MAX_LISTED) for row in rows),
        quarantined=tuple(row for rows in islice(_longest_waiting(dues, "quarantined"), MAX_LISTED) for row in rows),
        totals=totals,
        expired=tuple(islice(_expired_ranges(job, coverage, reach.lo), MAX_LISTED)),
        retired=tuple(sorted(key for key in coverage if key not in listed)),
        cells=len(taken),
        waiting=sum(totals[reason] for reason in REASONS) - len(taken) if is_full else 0,
    )


def _plan_like_dil(job: Job, coverage: Coverage, now: int) -> Plan:
    """Plan by the rules of DIL, without its empty ranges. The plan may leave gaps that are never read."""
    rows = []
    for work in dil_work_units(job, dil_states(job, coverage, now), now, cleanse=True):
        unit_coverage = coverage.get(work.unit.key, NO_COVERAGE)
        reason: Reason = "new" if work.is_new or gaps(unit_coverage.everything, *work.range) else "grace"
        if overlaps([failure.range for failure in unit_coverage.failures], *work.partition):
            reason = "failed"
        rows.append(PlannedRange(work.unit, work.partition, work.range, reason, (reason,)))
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
    """Values shared by all units of a plan, with caches for calendar calculations."""

    job: Job
    cells: Cells
    reach: Range
    today: int
    grace_starts: dict[int, int]
    """Cache by frontier: most units have the same one."""
    days: dict[int, int]

    @classmethod
    def of(cls, job: Job, cells: Cells, reach: Range, now: int) -> Self:
        """Return the context of a plan."""
        return cls(job, cells, reach, day_number(now, zone_of(job.zone)), {}, {})

    def grace_start(self, frontier: int) -> int:
        """Return the start of the grace period of a unit with this frontier."""
        start = self.grace_starts.get(frontier)
        if start is None:
            start = days_before(frontier, self.job.time.grace_days, zone_of(self.job.zone))
            self.grace_starts[frontier] = start
        return start

    def day(self, at: int) -> int:
        """Return the number of the calendar day of a moment."""
        day = self.days.get(at)
        if day is None:
            day = self.days[at] = day_number(at, zone_of(self.job.zone))
        return day

    def cell_numbers(self, ranges: Ranges) -> list[Range]:
        """Return the numbers of the cells that overlap these ranges, as ranges of numbers."""
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
        """Return whether a failure has reached the limit of attempts."""
        most = self.job.limits.attempts
        return most is not None and failure.attempts >= most


class DueRanges:
    """The due ranges of one unit, each with its reason, and the numbers of the cells that contain them."""

    __slots__ = (
        "_context",
        "_failure_ends",
        "_failures",
        "_fresh",
        "_held",
        "_index",
        "_los",
        "_numbers",
        "_pieces",
        "_reread_at",
        "_unit",
    )

    def __init__(self, context: PlanContext, unit: Unit, unit_index: int) -> None:
        """Use `of`."""
        self._context = context
        self._unit = unit
        self._index = unit_index
        self._failures: list[Failure] = []
        self._failure_ends: list[int] = []
        self._fresh: Sequence[Success] = ()
        self._reread_at: int | None = None
        self._held: Ranges = ()
        self._pieces: list[tuple[int, int, Reason]] = []
        self._los: list[int] = []
        self._numbers: dict[str, Ranges] = {}

    @classmethod
    def of(cls, context: PlanContext, unit: Unit, coverage: UnitCoverage, unit_index: int) -> Self:
        """Compute the due ranges of a unit; `unit_index` is its position in the list of units."""
        due = cls(context, unit, unit_index)
        lo, hi = context.reach
        pieces = _ranges_by_reason(context, coverage)
        if not any(pieces.values()):
            return due
        due._pieces = sorted((lo, hi, reason) for reason, ranges in pieces.items() for lo, hi in ranges)
        due._los = [piece[0] for piece in due._pieces]
        due._failures = [failure for failure in coverage.failures if failure.range.lo < hi and lo < failure.range.hi]
        due._failure_ends = [failure.range.hi for failure in due._failures]
        due._fresh, due._reread_at = coverage.fresh, coverage.reread_at
        quarantined = context.cell_numbers(
            clip_ranges(
                merge_ranges(failure.range for failure in due._failures if context.is_quarantined(failure)), lo, hi
            )
        )
        due._held = held = _held_cells(context, coverage)
        taken: Ranges = quarantined
        everything: Ranges = ()
        for reason in REASONS:
            numbers: Ranges = context.cell_numbers(pieces[reason])
            everything = union(everything, numbers)
            if held and reason in ("new", "grace"):
                numbers = subtract(numbers, held)
            due._numbers[reason] = subtract(numbers, taken)
            taken = union(taken, numbers)
        if held:
            waiting = union(context.cell_numbers(pieces["new"]), context.cell_numbers(pieces["grace"]))
            due._numbers["held"] = subtract(intersect(waiting, held), quarantined)
        due._numbers["quarantined"] = intersect(everything, quarantined) if quarantined else ()
        return due

    def count(self, name: str) -> int:
        """Return the number of cells that are due for a reason, held, or quarantined."""
        return total_length(self._numbers.get(name, ()))

    def cells(self, name: str) -> Iterator[tuple[tuple[int, ...], int, tuple[PlannedRange, ...]]]:
        """Yield (since when it waits, unit index, planned ranges) for each cell, what has waited longest first.

        `name` is a reason, held or quarantined.
        """
        numbers = self._numbers.get(name, ())
        groups: list[tuple[tuple[int, ...], Range]] = [((), range_) for range_ in numbers]
        if name == "failed":
            groups = [((at,), range_) for at, range_ in self._since_last_attempt(numbers, self._failures)]
        elif name == "grace":
            turn = _LONG_AGO if self._reread_at is None else self._reread_at
            groups = [((turn, at), range_) for at, range_ in self._since_last_attempt(numbers, self._fresh)]
        for since, (first, last) in groups:
            for number in range(first, last):
                rows = tuple(self._rows(number, name))
                if rows:
                    cell = rows[0].cell
                    yield (*(since or (self._unread_since(cell, name),)), cell.lo), self._index, rows

    def _since_last_attempt(
        self, numbers: Ranges, attempts: Sequence[Failure] | Sequence[Success]
    ) -> list[tuple[int, Range]]:
        """Return the numbers of cells by the time of their last attempt: the oldest, and unknown times, first."""
        lo, hi = self._context.reach
        index = self._context.cells.index
        known: list[tuple[int, Range]] = []
        for attempt in attempts:
            if attempt.range.lo >= hi or attempt.range.hi <= lo:
                continue
            first, last = index(max(attempt.range.lo, lo)), index(min(attempt.range.hi, hi) - 1) + 1
            # A cell with several attempts waits since the oldest of them.
            if known and first < known[-1][1].hi:
                at, before = known.pop()
                if at <= attempt.at:
                    known.append((at, before))
                    first = before.hi
                elif before.lo < first:
                    known.append((at, Range(before.lo, first)))
            if first < last:
                known.append((attempt.at, Range(first, last)))
        found = [(at, part) for at, range_ in known for part in clip_ranges(numbers, *range_)]
        found += [(_LONG_AGO, rest) for rest in subtract(numbers, merge_ranges(range_ for _, range_ in known))]
        return sorted(found)

    def _unread_since(self, cell: Range, reason: str) -> int:
        """Return the start of the first range of a cell that is due for this reason; by default of the cell."""
        for lo, hi, why in islice(self._pieces, max(bisect_right(self._los, cell.lo) - 1, 0), None):
            if lo >= cell.hi:
                break
            if why == reason and hi > cell.lo:
                return max(lo, cell.lo)
        return cell.lo

    def _rows(self, number: int, stage: str) -> Iterator[PlannedRange]:
        """Yield the planned ranges of a cell; adjacent pieces become one range."""
        nominal, reach = self._context.cells.cell(number), self._context.reach
        cell = Range(max(nominal.lo, reach.lo), min(nominal.hi, reach.hi))
        if cell.lo >= cell.hi:
            return  # a day that the zone skips
        # In a held cell, failures, gaps and backfills are still read; only new and grace ranges are held.
        is_held = bool(self._held) and stage != "quarantined" and overlaps(self._held, number, number + 1)
        start = end = -1
        reasons: list[Reason] = []
        index = max(bisect_right(self._los, cell.lo) - 1, 0)
        while index < len(self._pieces):
            lo, hi, reason = self._pieces[index]
            index += 1
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

    def _failures_in(self, range_: Range) -> Iterator[Failure]:
        for failure in islice(self._failures, bisect_right(self._failure_ends, range_.lo), None):
            if failure.range.lo >= range_.hi:
                break
            yield failure

    def _row(self, cell: Range, read: Range, reasons: list[Reason], stage: str) -> PlannedRange:
        scope = cell if stage == "quarantined" else read
        worst = max(self._failures_in(scope), key=lambda failure: failure.attempts, default=None)
        attempts, why = (0, "") if worst is None else (worst.attempts, "")
        if stage == "quarantined" and worst is not None:
            why = f"failed {attempts} times in a row" + (f": {worst.error}" if worst.error else "")
        elif stage == "held":
            why = f"read less than {self._context.job.time.abstinence_days + 1} calendar days ago"
        reason = min(reasons, key=_PRIORITY.__getitem__)
        return PlannedRange(self._unit, cell, read, reason, tuple(dict.fromkeys(reasons)), attempts, why)


def _cells_in_order(dues: list[DueRanges]) -> Iterator[tuple[PlannedRange, ...]]:
    """Yield the planned ranges of each due cell in the order in which runs read them."""
    first = _longest_waiting(dues, "failed", "gap")
    # After two cells of the first kind comes a new one, so that cells that always fail leave room for others.
    rounds = zip_longest(first, first, _longest_waiting(dues, "new"))
    yield from (rows for cells in rounds for rows in cells if rows is not None)
    for reason in ("backfill", "grace"):
        yield from _longest_waiting(dues, reason)


def _longest_waiting(dues: list[DueRanges], *names: str) -> Iterator[tuple[PlannedRange, ...]]:
    """Yield the planned ranges of each cell: by how long it has waited, then by age, then in the order of the units."""
    return (rows for _, _, rows in merge(*(due.cells(name) for due in dues for name in names)))


def _expired_ranges(job: Job, coverage: Coverage, start: int) -> Iterator[Expired]:
    for unit in job.listed_units:
        unit_coverage = coverage.get(unit.key, NO_COVERAGE)
        if unit_coverage.known_from is not None and unit_coverage.known_from < start:
            for hole in gaps(unit_coverage.everything, unit_coverage.known_from, start):
                yield Expired(unit, hole)


_LONG_AGO: Final = -(2**63)
"""When a range was last read, if that is not known."""

_PRIORITY: Final = {reason: index for index, reason in enumerate(REASONS)}


def _ranges_by_reason(context: PlanContext, coverage: UnitCoverage) -> dict[Reason, Ranges]:
    """Return the due ranges by reason; the sets do not overlap."""
    lo, hi = context.reach
    everything, frontier = coverage.everything, coverage.frontier
    missing = gaps(everything, lo, hi)
    failed: Ranges = (
        clip_ranges(merge_ranges(failure.range for failure in coverage.failures), lo, hi) if coverage.failures else ()
    )
    wanted: Ranges = clip_ranges(coverage.wanted, lo, hi) if coverage.wanted else ()
    grace: Ranges = ()
    if context.job.time.grace_days and frontier is not None:
        grace = clip_ranges(everything, max(context.grace_start(frontier), lo), min(frontier, hi))
    missing = subtract(missing, failed)
    wanted = subtract(subtract(wanted, failed), missing)
    grace = subtract(subtract(grace, failed), wanted)
    boundary = lo if frontier is None else min(max(frontier, lo), hi)
    return {
        "failed": failed,
        "gap": clip_ranges(missing, lo, boundary),
        "new": clip_ranges(missing, boundary, hi),
        "backfill": wanted,
        "grace": grace,
    }


def _held_cells(context: PlanContext, coverage: UnitCoverage) -> Ranges:
    """Return the numbers of the cells that succeeded within the abstinence period and have not failed since."""
    lo, hi = context.reach
    days = context.job.time.abstinence_days
    if not days or not coverage.fresh:
        return ()
    fresh = merge_ranges(success.range for success in coverage.fresh if context.today <= context.day(success.at) + days)
    failed = merge_ranges(failure.range for failure in coverage.failures)
    return subtract(context.cell_numbers(clip_ranges(fresh, lo, hi)), context.cell_numbers(clip_ranges(failed, lo, hi)))
