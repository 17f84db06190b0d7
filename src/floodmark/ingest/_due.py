"""What is due of one unit: found by ranges of time and of cells, so that a million cells cost no more than one."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

from floodmark.ingest._calendar import day_number, days_before, zone_of
from floodmark.ingest._coverage import Failure, UnitCoverage
from floodmark.ingest._grid import Cells
from floodmark.ingest._job import Job
from floodmark.ingest._ranges import Range, Ranges, gaps, intersect, merged, size, subtract, touches, union, within
from floodmark.ingest._row import REASONS, Reason, Row
from floodmark.ingest._unit import Unit

_PRESSING: Final = {reason: place for place, reason in enumerate(REASONS)}


@dataclass(frozen=True, slots=True)
class Frame:
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


class Due:
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

    def __init__(self, frame: Frame, unit: Unit, place: int) -> None:
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
    def of(cls, frame: Frame, unit: Unit, known: UnitCoverage, place: int) -> Self:
        """Find it; `place` says where the unit stands in the list."""
        due = cls(frame, unit, place)
        lo, hi = frame.reach
        pieces = _pieces(frame, known)
        if not any(pieces.values()):
            return due
        due._pieces = sorted((one.lo, one.hi, reason) for reason, ranges in pieces.items() for one in ranges)
        due._los = [piece[0] for piece in due._pieces]
        due._failures = [one for one in known.failures if one.range.lo < hi and lo < one.range.hi]
        due._failure_ends = [one.range.hi for one in due._failures]
        quarantined = frame.numbers(
            within(merged(one.range for one in due._failures if frame.is_quarantined(one)), lo, hi)
        )
        due._held = held = _held(frame, known)
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

    def rows_of(self, stage: str) -> Iterator[tuple[int, int, tuple[Row, ...]]]:
        """Give the rows of each cell of a stage, the oldest first, with what it takes to put units in order."""
        for numbers in self._stages.get(stage, ()):
            for number in range(numbers.lo, numbers.hi):
                rows = tuple(self._rows(number, stage))
                if rows:
                    yield rows[0].cell.lo, self._place, rows

    def _rows(self, number: int, stage: str) -> Iterator[Row]:
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

    def _row(self, cell: Range, read: Range, reasons: list[Reason], stage: str) -> Row:
        where = cell if stage == "quarantined" else read
        worst = max(self._failures_in(where), key=lambda one: one.attempts, default=None)
        attempts, why = (0, "") if worst is None else (worst.attempts, "")
        if stage == "quarantined" and worst is not None:
            why = f"failed {attempts} times in a row" + (f": {worst.error}" if worst.error else "")
        elif stage == "held":
            why = f"was read less than {self._frame.job.time.abstinence_days + 1} calendar days ago"
        reason = min(reasons, key=_PRESSING.__getitem__)
        return Row(self._unit, cell, read, reason, tuple(dict.fromkeys(reasons)), attempts, why)


def _pieces(frame: Frame, known: UnitCoverage) -> dict[Reason, Ranges]:
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


def _held(frame: Frame, known: UnitCoverage) -> Ranges:
    """Return the numbers of the cells that succeeded not long ago, and have not failed since."""
    lo, hi = frame.reach
    days = frame.job.time.abstinence_days
    if not days or not known.fresh:
        return ()
    fresh = merged(one.range for one in known.fresh if frame.today <= frame.day(one.at) + days)
    failed = merged(one.range for one in known.failures)
    return subtract(frame.numbers(within(fresh, lo, hi)), frame.numbers(within(failed, lo, hi)))
