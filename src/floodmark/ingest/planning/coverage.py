"""The coverage of a unit: the ranges that were read, that failed, and that a backfill wants; and gaps in them.

Coverage is kept as ranges of time, not as cells. So it stays valid when a job changes its start, its grid or its units.
All values are immutable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from zoneinfo import ZoneInfo

from floodmark.errors import Conflict
from floodmark.ingest.calendar.clock import day_number, days_before, zone_of
from floodmark.ingest.calendar.ranges import Range, Ranges, clip_ranges, gaps, intersect, merge_ranges, subtract, union
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
    """A recently read range; kept only during the job's abstinence period."""

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
    """Sorted, without overlaps."""
    fresh: Sequence[Success] = ()
    """Recent successes: sorted, without overlaps."""
    known_from: int | None = None
    """The earliest start that the job has had for this unit."""

    @property
    def frontier(self) -> int | None:
        """The end of the newest range that ordinary runs have read; there may be gaps before it."""
        return self.covered[-1].hi if self.covered else None

    @property
    def everything(self) -> Ranges:
        """All ranges that were read, by ordinary runs or backfills."""
        return union(self.covered, self.backfilled)

    def succeeded(self, done: Range, at: int, *, zone: ZoneInfo | None = None, abstinence_days: int = 0) -> Self:
        """Return the coverage after a range was read; the backfilled part of it does not move the frontier.

        >>> UnitCoverage(wanted=[Range(5, 9)]).succeeded(Range(0, 7), at=1).backfilled
        [Range(lo=5, hi=7)]
        """
        backfilled = intersect([done], self.wanted)
        covered = union(self.covered, subtract([done], backfilled))
        return replace(
            self,
            covered=covered,
            backfilled=subtract(union(self.backfilled, backfilled), covered),
            wanted=subtract(self.wanted, [done]),
            failures=_cut_failures(self.failures, done),
            fresh=_recent_successes(self.fresh, done, at, zone, abstinence_days),
        )

    def failed(self, tried: Range, at: int, error: str = "") -> Self:
        """Return the coverage after an attempt failed; ranges that were read before stay covered.

        >>> UnitCoverage().failed(Range(0, 9), at=1).failed(Range(3, 5), at=2).failures[1].attempts
        2
        """
        before = max((failure.attempts for failure in self.failures if _overlap(failure.range, tried)), default=0)
        failure = Failure(tried, before + 1, at, error)
        return replace(self, failures=_join_failures([*_cut_failures(self.failures, tried), failure]))

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
    fresh: Sequence[Success], done: Range, at: int, zone: ZoneInfo | None, abstinence_days: int
) -> Sequence[Success]:
    """Return the successes within the abstinence period; adjacent ones of the same day are merged."""
    if zone is None or not abstinence_days:
        return ()
    today = day_number(at, zone)
    kept, same_day = [], [done]
    for success in _cut_successes(fresh, done):
        age = today - day_number(success.at, zone)
        if age == 0:
            same_day.append(success.range)
        elif age <= abstinence_days:
            kept.append(success)
    kept += [Success(range_, at) for range_ in merge_ranges(same_day)]
    return tuple(sorted(kept, key=lambda success: success.range))


def _cut_successes(fresh: Sequence[Success], removed: Range) -> list[Success]:
    return [replace(success, range=rest) for success in fresh for rest in subtract([success.range], [removed])]


def _cut_failures(failures: Sequence[Failure], removed: Range) -> tuple[Failure, ...]:
    if not any(_overlap(failure.range, removed) for failure in failures):
        return tuple(failures)
    return tuple(replace(failure, range=rest) for failure in failures for rest in subtract([failure.range], [removed]))


def _overlap(one: Range, other: Range) -> bool:
    return one.lo < other.hi and other.lo < one.hi


def _join_failures(failures: list[Failure]) -> tuple[Failure, ...]:
    """Sort failures and join adjacent ones with the same error, so that an outage of the source is one failure."""
    result: list[Failure] = []
    for failure in sorted(failures, key=lambda failure: failure.range):
        lo, hi = failure.range
        last = result[-1] if result else None
        if last and last.range.hi == lo and (last.attempts, last.error) == (failure.attempts, failure.error):
            result[-1] = replace(failure, range=Range(last.range.lo, hi), at=max(last.at, failure.at))
        else:
            result.append(failure)
    return tuple(result)


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
    result = []
    for unit in job.listed_units:
        unit_coverage = coverage.get(unit.key, NO_COVERAGE)
        if unit_coverage.known_from is not None:
            expired = gaps(unit_coverage.everything, unit_coverage.known_from, reach.lo)
            result += [Gap(unit, hole, "expired") for hole in expired]
        result += [Gap(unit, hole, cause) for hole, cause in sorted(_unit_gaps(job, unit_coverage, reach))]
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
    {'covered': [[5, 9]], 'backfilled': [], 'wanted': [], 'failures': []}
    """
    kinds = ("covered", "backfilled", "wanted")
    kept: dict[str, Any] = {
        kind: [list(part) for part in clip_ranges(getattr(coverage, kind), *range_)] for kind in kinds
    }
    failures = [failure for failure in coverage.failures if _overlap(failure.range, range_)]
    kept["failures"] = [
        [*_clip(failure.range, range_), failure.attempts, failure.at, failure.error] for failure in failures
    ]
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
    failures = [failure for failure in coverage.failures if not clip_ranges([failure.range], *range_)]
    failures += [
        Failure(Range(lo, hi), attempts, at, error) for lo, hi, attempts, at, error in before.get("failures", ())
    ]
    return UnitCoverage(
        covered=union(subtract(coverage.covered, edit), old["covered"]),
        backfilled=union(subtract(coverage.backfilled, edit), old["backfilled"]),
        wanted=union(subtract(coverage.wanted, edit), old["wanted"]),
        failures=tuple(sorted(failures, key=lambda failure: failure.range)),
        fresh=coverage.fresh,
        known_from=coverage.known_from,
    )


def _clip(range_: Range, bounds: Range) -> tuple[int, int]:
    return max(range_.lo, bounds.lo), min(range_.hi, bounds.hi)


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
