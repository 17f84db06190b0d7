"""The coverage of a unit: the ranges that were read, that failed, and that a backfill wants; and gaps in them.

Coverage is kept as ranges of time, not as cells. So it stays valid when a job changes its start, its grid or its units.
All values are immutable.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar
from zoneinfo import ZoneInfo

from floodmark.errors import Conflict
from floodmark.ingest.calendar.clock import day_number, days_before, zone_of
from floodmark.ingest.calendar.ranges import (
    Range,
    Ranges,
    clip_ranges,
    gaps,
    intersect,
    merge_ranges,
    overlaps,
    subtract,
    union,
)
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit


@dataclass(frozen=True, slots=True)
class Failure:
    """A range whose last attempt failed."""

    range: Range
    attempts: int
    """Consecutive failures; 0 after a manual retry."""
    at: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Success:
    """A range and when it was last read; kept only during the abstinence period and within the grace period."""

    range: Range
    at: int


@dataclass(frozen=True, slots=True)
class UnitCoverage:
    """The coverage of one unit.

    >>> unit = UnitCoverage().succeeded(Range(0, 10), at=5).failed(Range(10, 20), at=6, error="timed out")
    >>> unit.frontier, unit.failures[0].attempts
    (10, 1)
    """

    covered: Ranges = ()
    """Ranges read by ordinary runs."""
    backfilled: Ranges = ()
    """Ranges read only by backfills."""
    wanted: Ranges = ()
    """Ranges that a backfill requested and that are not read yet."""
    failures: Sequence[Failure] = ()
    """Sorted, without overlaps. Each is one attempt: neighbours are never joined, so that each can be retried."""
    fresh: Sequence[Success] = ()
    """Recent successes: sorted, without overlaps."""
    known_from: int | None = None
    """The earliest start that the job has had for this unit."""
    reread_at: int | None = None
    """When a part of the grace period was last read again: units take turns."""

    @property
    def frontier(self) -> int | None:
        """The end of the newest range that ordinary runs have read; there may be gaps before it."""
        return self.covered[-1].hi if self.covered else None

    @property
    def everything(self) -> Ranges:
        """All ranges that were read, by ordinary runs or backfills."""
        return union(self.covered, self.backfilled)

    def succeeded(
        self, done: Range, at: int, *, zone: ZoneInfo | None = None, abstinence_days: int = 0, grace_days: int = 0
    ) -> Self:
        """Return the coverage after a range was read; the backfilled part of it does not move the frontier.

        When it was read is kept for the abstinence period, and while the range lies within the grace period.

        >>> UnitCoverage(wanted=[Range(5, 9)]).succeeded(Range(0, 7), at=1).backfilled
        [Range(lo=5, hi=7)]
        """
        backfilled = intersect([done], self.wanted)
        covered = union(self.covered, subtract([done], backfilled))
        fresh: Sequence[Success] = ()
        reread_at = self.reread_at
        if zone is not None and (abstinence_days or grace_days):
            grace_start = days_before(covered[-1].hi, grace_days, zone) if grace_days and covered else None
            fresh = _recent_successes(self.fresh, Success(done, at), zone, abstinence_days, grace_start)
            if grace_start is not None and overlaps(self.everything, *done):
                reread_at = at
        return replace(
            self,
            covered=covered,
            backfilled=subtract(union(self.backfilled, backfilled), covered),
            wanted=subtract(self.wanted, [done]),
            failures=_cut_failures(self.failures, done),
            fresh=fresh,
            reread_at=reread_at,
        )

    def failed(self, tried: Range, at: int, error: str = "") -> Self:
        """Return the coverage after an attempt failed; ranges that were read before stay covered.

        >>> UnitCoverage().failed(Range(0, 9), at=1).failed(Range(3, 5), at=2).failures[1].attempts
        2
        """
        before = max((failure.attempts for failure in self.failures if _overlap(failure.range, tried)), default=0)
        failure = Failure(tried, before + 1, at, error)
        return replace(self, failures=_sorted_failures([*_cut_failures(self.failures, tried), failure]))

    def with_attempts_reset(self, range_: Range) -> Self:
        """Return the coverage with the attempts of all failures that overlap a range set to 0."""
        failures = tuple(
            replace(failure, attempts=0) if _overlap(failure.range, range_) else failure for failure in self.failures
        )
        return replace(self, failures=failures)

    def with_backfill(self, range_: Range) -> Self:
        """Return the coverage after a backfill of a range was requested."""
        return replace(self.with_attempts_reset(range_), wanted=union(self.wanted, [range_]))

    def edited(self, range_: Range, *, is_covered: bool) -> Self:
        """Return the coverage after a manual edit that records a range as read, or as not read.

        >>> UnitCoverage(covered=[Range(0, 9)]).edited(Range(3, 5), is_covered=False).covered
        [Range(lo=0, hi=3), Range(lo=5, hi=9)]
        """
        edit, failures, fresh = [range_], _cut_failures(self.failures, range_), _cut_successes(self.fresh, range_)
        wanted = subtract(self.wanted, edit)
        if is_covered:
            added = union(self.covered, subtract(edit, self.backfilled))
            return replace(self, covered=added, wanted=wanted, failures=failures)
        covered, backfilled = subtract(self.covered, edit), subtract(self.backfilled, edit)
        return replace(self, covered=covered, backfilled=backfilled, wanted=wanted, failures=failures, fresh=fresh)


Coverage = Mapping[str, UnitCoverage]
"""The coverage of a job: by the key of each unit it ever had."""


def _recent_successes(
    fresh: Sequence[Success], newest: Success, zone: ZoneInfo, abstinence_days: int, grace_start: int | None
) -> Sequence[Success]:
    """Return what was read within the abstinence period, or lies after the start of the grace period.

    Before the grace period neighbours of the same day are merged, since abstinence counts days. Within it the exact
    time matters: what was read longest ago is read again first.
    """
    today = day_number(newest.at, zone)
    kept: list[Success] = []
    same_day: list[Success] = []
    for success in [*_cut_successes(fresh, newest.range), newest]:
        lo, hi = success.range
        middle = hi if grace_start is None else min(max(grace_start, lo), hi)
        if middle < hi:
            kept.append(replace(success, range=Range(middle, hi)))
        age = today - day_number(success.at, zone)
        if lo < middle and abstinence_days and age <= abstinence_days:
            (kept if age else same_day).append(replace(success, range=Range(lo, middle)))
    kept += [Success(range_, newest.at) for range_ in merge_ranges(success.range for success in same_day)]
    joined: list[Success] = []
    for success in sorted(kept, key=lambda success: success.range):
        if joined and (joined[-1].range.hi, joined[-1].at) == (success.range.lo, success.at):
            joined[-1] = replace(success, range=Range(joined[-1].range.lo, success.range.hi))
        else:
            joined.append(success)
    return tuple(joined)


def _cut_successes(fresh: Sequence[Success], removed: Range) -> list[Success]:
    return [replace(success, range=rest) for success in fresh for rest in subtract([success.range], [removed])]


def _cut_failures(failures: Sequence[Failure], removed: Range) -> tuple[Failure, ...]:
    if not any(_overlap(failure.range, removed) for failure in failures):
        return tuple(failures)
    return tuple(replace(failure, range=rest) for failure in failures for rest in subtract([failure.range], [removed]))


def _overlap(one: Range, other: Range) -> bool:
    return one.lo < other.hi and other.lo < one.hi


def _sorted_failures(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    return tuple(sorted(failures, key=lambda failure: failure.range))


NO_COVERAGE = UnitCoverage()


def complete_through(job: Job, coverage: Coverage, now: int) -> int | None:
    """Return the time before which every listed unit was read without gaps; None if the job has no units.

    Consumers may rely on the data before it. Retired units are not considered.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"))
    >>> job = Job("orders", "UTC", times, UnitWatermark.listed("id", ["a", "b"]))
    >>> a, b = (unit.key for unit in job.listed_units)
    >>> coverage = {a: UnitCoverage([Range(0, 9)]), b: UnitCoverage([Range(0, 5), Range(7, 12)])}
    >>> complete_through(job, coverage, now=20), largest_end(coverage)
    (5, 12)
    """
    start = job.time.from_.resolve(now, job.zone)
    return min((_unit_complete_through(coverage, unit, start) for unit in job.listed_units), default=None)


def _unit_complete_through(coverage: Coverage, unit: Unit, start: int) -> int:
    for lo, hi in coverage.get(unit.key, NO_COVERAGE).everything:
        if lo <= start < hi:
            return hi
    return start


def largest_end(coverage: Coverage) -> int | None:
    """Return the largest end of all ranges ever read: DIL's high watermark, which ignores gaps.

    >>> largest_end({}) is None
    True
    """
    return max((unit.everything[-1].hi for unit in coverage.values() if unit.everything), default=None)


def recommended_grace(lateness: Mapping[int, int], *, share: float = 0.999) -> int | None:
    """Return the days of grace that would have found this fraction of the rows, or None without observations.

    `lateness` maps calendar days after the row's own day to the number of rows first found then.

    >>> recommended_grace({0: 10_000, 1: 300, 2: 50, 9: 1})
    2
    """
    total, rows = sum(lateness.values()), 0
    for days in sorted(lateness):
        rows += lateness[days]
        if rows >= share * total:
            return max(days, 0)
    return None


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of a unit that was not read, and the cause."""

    unit: Unit
    range: Range
    cause: str


def find_gaps(job: Job, coverage: Coverage, now: int) -> tuple[Gap, ...]:
    """Return the gaps of all listed units up to now, also those that expired because the start moved past them.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("1970-01-03", "UTC"))
    >>> job = Job("orders", "UTC", times)
    >>> day = 86_400_000_000
    >>> unit = UnitCoverage([Range(0, day)]).failed(Range(day, 2 * day), at=0, error="timed out")
    >>> [gap.cause for gap in find_gaps(job, {"{}": unit}, now=2 * day)]
    ['failed once: timed out']
    """
    reach = job.reach(now)
    result: list[Gap] = []
    for unit in job.listed_units:
        unit_coverage = coverage.get(unit.key, NO_COVERAGE)
        if unit_coverage.known_from is not None:
            expired = gaps(unit_coverage.everything, unit_coverage.known_from, reach.lo)
            result += [Gap(unit, hole, "expired") for hole in expired]
        for hole, cause in sorted(_unit_gaps(job, unit_coverage, reach)):
            last = result[-1] if result else None
            if last is not None and (last.unit, last.cause, last.range.hi) == (unit, cause, hole.lo):
                # An outage of the source is one gap for the reader, though each cell failed by itself.
                result[-1] = Gap(unit, Range(last.range.lo, hole.hi), cause)
            else:
                result.append(Gap(unit, hole, cause))
    return tuple(result)


def find_failed_rereads(job: Job, coverage: Coverage, now: int) -> tuple[Gap, ...]:
    """Return the ranges of listed units that were read before, and could not be read again when they were due.

    They are no gaps: their rows are there as of the last successful read. Rows that came later may be missing.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("1970-01-03", "UTC"), grace_days=1)
    >>> job = Job("orders", "UTC", times)
    >>> day = 86_400_000_000
    >>> unit = UnitCoverage([Range(0, 2 * day)]).failed(Range(day, 2 * day), at=0, error="timed out")
    >>> find_gaps(job, {"{}": unit}, now=2 * day)
    ()
    >>> [(gap.range.lo // day, gap.cause) for gap in find_failed_rereads(job, {"{}": unit}, now=2 * day)]
    [(1, 'failed once: timed out')]
    """
    reach = job.reach(now)
    return tuple(
        Gap(unit, part, _failure_cause(job, failure.attempts, failure.error))
        for unit in job.listed_units
        if (unit_coverage := coverage.get(unit.key)) is not None
        for failure in unit_coverage.failures
        for part in clip_ranges(clip_ranges(unit_coverage.everything, *failure.range), *reach)
    )


def _unit_gaps(job: Job, coverage: UnitCoverage, reach: Range) -> Iterator[tuple[Range, str]]:
    missing = gaps(coverage.everything, *reach)
    for failure in coverage.failures:
        for hole in clip_ranges(missing, *failure.range):
            yield hole, _failure_cause(job, failure.attempts, failure.error)
    frontier = coverage.frontier
    for hole in subtract(missing, merge_ranges(failure.range for failure in coverage.failures)):
        if frontier is None:
            yield hole, "never read"
        elif hole.lo >= frontier:
            yield hole, "not read yet"
        else:
            yield hole, "left out"


def _failure_cause(job: Job, attempts: int, error: str) -> str:
    count = "once" if attempts == 1 else "before, retry requested" if not attempts else f"{attempts} times"
    most = job.limits.attempts
    cause = f"failed {count}" + (f": {error}" if error else "")
    return f"in quarantine, {cause}" if most is not None and attempts >= most else cause


def coverage_before_edit(coverage: UnitCoverage, range_: Range) -> dict[str, Any]:
    """Return the coverage of a range as JSON, to be kept so that an edit can be undone.

    >>> coverage_before_edit(UnitCoverage(covered=[Range(0, 9)]), Range(5, 20))
    {'covered': [[5, 9]], 'backfilled': [], 'wanted': [], 'failures': [], 'fresh': []}
    """
    kinds = ("covered", "backfilled", "wanted")
    kept: dict[str, Any] = {
        kind: [list(part) for part in clip_ranges(getattr(coverage, kind), *range_)] for kind in kinds
    }
    # Failures and successes are kept whole: an undo joins what the edit has cut off of them.
    kept["failures"] = [
        [*failure.range, failure.attempts, failure.at, failure.error]
        for failure in coverage.failures
        if _overlap(failure.range, range_)
    ]
    kept["fresh"] = [[*success.range, success.at] for success in coverage.fresh if _overlap(success.range, range_)]
    return kept


def undo_edit(coverage: UnitCoverage, range_: Range, before: Mapping[str, Any], *, is_covered: bool) -> UnitCoverage:
    """Return the coverage with an edit undone; raise `Conflict` if its range has changed since.

    >>> edited = UnitCoverage(covered=[Range(0, 9)]).edited(Range(0, 20), is_covered=True)
    >>> undo_edit(edited, Range(0, 20), {"covered": [[0, 9]]}, is_covered=True).covered
    [Range(lo=0, hi=9)]
    """
    current = clip_ranges(coverage.everything, *range_)
    if current != ([range_] if is_covered else []):
        raise Conflict(
            f"The coverage from {range_.lo} to {range_.hi} has changed since the edit.",
            rule="An edit can be undone only while its range is unchanged.",
            remedy="Make a new edit of the range instead.",
            lo=range_.lo,
            hi=range_.hi,
        )
    edit = [range_]
    old = {
        kind: merge_ranges((lo, hi) for lo, hi in before.get(kind, ())) for kind in ("covered", "backfilled", "wanted")
    }
    failures = [Failure(Range(lo, hi), *rest) for lo, hi, *rest in before.get("failures", ())]
    fresh = [Success(Range(lo, hi), at) for lo, hi, at in before["fresh"]] if "fresh" in before else None
    return replace(
        coverage,
        covered=union(subtract(coverage.covered, edit), old["covered"]),
        backfilled=union(subtract(coverage.backfilled, edit), old["backfilled"]),
        wanted=union(subtract(coverage.wanted, edit), old["wanted"]),
        failures=_restored(coverage.failures, failures, range_),
        fresh=coverage.fresh if fresh is None else _restored(coverage.fresh, fresh, range_),
    )


_Entry = TypeVar("_Entry", Failure, Success)


def _restored(current: Sequence[_Entry], before: Sequence[_Entry], range_: Range) -> tuple[_Entry, ...]:
    """Return the current entries outside an edited range, and those from before the edit inside it.

    A part outside is joined with the part inside if it is still as it was before the edit.
    """
    rest = [replace(entry, range=part) for entry in current for part in subtract([entry.range], [range_])]
    for entry in before:
        lo, hi = max(entry.range.lo, range_.lo), min(entry.range.hi, range_.hi)
        for part in (Range(entry.range.lo, lo), Range(hi, entry.range.hi)):
            outside = replace(entry, range=part)
            if outside in rest:
                rest.remove(outside)
                lo, hi = min(lo, part.lo), max(hi, part.hi)
        rest.append(replace(entry, range=Range(lo, hi)))
    return tuple(sorted(rest, key=lambda entry: entry.range))


def final_through(job: Job, coverage: Coverage, now: int) -> int | None:
    """Return the time before which ordinary runs read nothing any more; None if there is no such time yet.

    This is `complete_through`; with a grace period it is also at most `grace_days` before the frontier of each unit,
    since those days are read again. Backfills, edits, new units and an earlier start can still bring rows from before
    this time: they are late.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"), grace_days=1)
    >>> job = Job("orders", "UTC", times)
    >>> days = 86_400_000_000
    >>> final_through(job, {"{}": UnitCoverage([Range(0, 5 * days)])}, 9 * days) == 4 * days
    True
    """
    start = job.time.from_.resolve(now, job.zone)
    through = complete_through(job, coverage, now)
    if through is None:
        return None
    if job.time.grace_days:
        zone = zone_of(job.zone)
        for unit in job.listed_units:
            frontier = coverage.get(unit.key, UnitCoverage()).frontier
            if frontier is not None:
                through = min(through, days_before(frontier, job.time.grace_days, zone))
    return through if through > start else None
