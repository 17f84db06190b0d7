"""What is known of a unit: what was read, what has failed, what is wanted again; and what follows from it.

Everything is kept as ranges of time, not as cells. So a job may change its start, its grid or its units, and what it
knows stays true: it is only cut in another way. Values are never changed in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from zoneinfo import ZoneInfo

from floodmark.errors import Conflict
from floodmark.ingest.calendar.clock import day_number
from floodmark.ingest.calendar.ranges import Range, Ranges, gaps, intersect, merged, subtract, union, within
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.unit import Unit


@dataclass(frozen=True, slots=True)
class Failure:
    """A range that failed when it was last read."""

    range: Range
    attempts: int
    """Failures in a row; 0 after somebody has asked for another try."""
    at: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Success:
    """A range that was read not long ago; kept only as long as an abstinence asks for it."""

    range: Range
    at: int


@dataclass(frozen=True, slots=True)
class UnitCoverage:
    """What is known of one unit.

    >>> unit = UnitCoverage().succeeded(Range(0, 10), at=5).failed(Range(10, 20), at=6, error="timed out")
    >>> unit.frontier, unit.failures[0].attempts
    (10, 1)
    """

    covered: Ranges = ()
    """What ordinary runs have read."""
    backfilled: Ranges = ()
    """What only backfills have read."""
    wanted: Ranges = ()
    """What a backfill is to read, and has not yet."""
    failures: Sequence[Failure] = ()
    """In order, apart from each other."""
    fresh: Sequence[Success] = ()
    """In order, apart from each other."""
    known_from: int | None = None
    """From when on it was ever to be read."""

    @property
    def frontier(self) -> int | None:
        """The largest end that ordinary runs have reached, holes or not."""
        return self.covered[-1].hi if self.covered else None

    @property
    def everything(self) -> Ranges:
        """All that was read, by whatever run."""
        return union(self.covered, self.backfilled)

    def succeeded(self, done: Range, at: int, *, zone: ZoneInfo | None = None, abstinence_days: int = 0) -> Self:
        """Return what is known after a range was read. What a backfill wanted of it does not move the frontier.

        >>> UnitCoverage(wanted=[Range(5, 9)]).succeeded(Range(0, 7), at=1).backfilled
        [Range(lo=5, hi=7)]
        """
        back = intersect([done], self.wanted)
        covered = union(self.covered, subtract([done], back))
        return replace(
            self,
            covered=covered,
            backfilled=subtract(union(self.backfilled, back), covered),
            wanted=subtract(self.wanted, [done]),
            failures=_cut_failures(self.failures, done),
            fresh=_recent_successes(self.fresh, done, at, zone, abstinence_days),
        )

    def failed(self, tried: Range, at: int, error: str = "") -> Self:
        """Return what is known after a range could not be read. Nothing that was read before is given up.

        >>> UnitCoverage().failed(Range(0, 9), at=1).failed(Range(3, 5), at=2).failures[1].attempts
        2
        """
        before = max((one.attempts for one in self.failures if _overlap(one.range, tried)), default=0)
        failure = Failure(tried, before + 1, at, error)
        return replace(self, failures=_join_failures([*_cut_failures(self.failures, tried), failure]))

    def released(self, what: Range) -> Self:
        """Return what is known once the failures that a range touches are forgiven, though not forgotten."""
        return replace(
            self,
            failures=tuple(replace(one, attempts=0) if _overlap(one.range, what) else one for one in self.failures),
        )

    def asked_for(self, what: Range) -> Self:
        """Return what is known once a backfill wants a range, whatever was read or has failed of it."""
        return replace(self.released(what), wanted=union(self.wanted, [what]))

    def edited(self, what: Range, *, is_covered: bool) -> Self:
        """Return what is known if a person says that a range was read, or was not.

        >>> UnitCoverage(covered=[Range(0, 9)]).edited(Range(3, 5), is_covered=False).covered
        [Range(lo=0, hi=3), Range(lo=5, hi=9)]
        """
        edit, failures, fresh = [what], _cut_failures(self.failures, what), _cut_successes(self.fresh, what)
        wanted = subtract(self.wanted, edit)
        if is_covered:
            added = union(self.covered, subtract(edit, self.backfilled))
            return replace(self, covered=added, wanted=wanted, failures=failures)
        covered, backfilled = subtract(self.covered, edit), subtract(self.backfilled, edit)
        return replace(self, covered=covered, backfilled=backfilled, wanted=wanted, failures=failures, fresh=fresh)


Coverage = Mapping[str, UnitCoverage]
"""What is known of a job: by the key of each unit it ever had."""


def _recent_successes(
    fresh: Sequence[Success], done: Range, at: int, zone: ZoneInfo | None, abstinence_days: int
) -> Sequence[Success]:
    """Return the successes that still matter. Those of one day count alike, so neighbours among them become one."""
    if zone is None or not abstinence_days:
        return ()
    today = day_number(at, zone)
    kept, same_day = [], [done]
    for one in _cut_successes(fresh, done):
        age = today - day_number(one.at, zone)
        if age == 0:
            same_day.append(one.range)
        elif age <= abstinence_days:
            kept.append(one)
    kept += [Success(one, at) for one in merged(same_day)]
    return tuple(sorted(kept, key=lambda one: one.range))


def _cut_successes(fresh: Sequence[Success], gone: Range) -> list[Success]:
    return [replace(one, range=left) for one in fresh for left in subtract([one.range], [gone])]


def _cut_failures(failures: Sequence[Failure], gone: Range) -> tuple[Failure, ...]:
    if not any(_overlap(one.range, gone) for one in failures):
        return tuple(failures)
    return tuple(replace(one, range=left) for one in failures for left in subtract([one.range], [gone]))


def _overlap(one: Range, other: Range) -> bool:
    return one.lo < other.hi and other.lo < one.hi


def _join_failures(failures: list[Failure]) -> tuple[Failure, ...]:
    """Return failures in order, with neighbours that have failed alike as one: when a source is down, all of them."""
    result: list[Failure] = []
    for one in sorted(failures, key=lambda one: one.range):
        last = result[-1] if result else None
        if last and last.range.hi == one.range.lo and (last.attempts, last.error) == (one.attempts, one.error):
            result[-1] = replace(one, range=Range(last.range.lo, one.range.hi), at=max(last.at, one.at))
        else:
            result.append(one)
    return tuple(result)


NO_COVERAGE = UnitCoverage()


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
    return min((_unit_complete_through(coverage, unit, start) for unit in job.listed_units), default=None)


def _unit_complete_through(coverage: Coverage, unit: Unit, start: int) -> int:
    for one in coverage.get(unit.key, NO_COVERAGE).everything:
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


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not read, and why not."""

    unit: Unit
    range: Range
    cause: str


def find_gaps(job: Job, coverage: Coverage, now: int) -> tuple[Gap, ...]:
    """Return all that the job was to read by now, and has not; also what it never will, since its start moved on.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("1970-01-03", "UTC"))
    >>> job = Job("orders", "UTC", times)
    >>> day = 86_400_000_000
    >>> known = UnitCoverage([Range(0, day)]).failed(Range(day, 2 * day), at=0, error="timed out")
    >>> [gap.cause for gap in find_gaps(job, {"{}": known}, now=2 * day)]
    ['failed once: timed out']
    """
    reach = job.reach(now)
    found = []
    for unit in job.listed_units:
        known = coverage.get(unit.key, NO_COVERAGE)
        if known.known_from is not None:
            found += [Gap(unit, hole, "expired") for hole in gaps(known.everything, known.known_from, reach.lo)]
        found += [Gap(unit, hole, cause) for hole, cause in sorted(_unit_gaps(job, known, reach))]
    return tuple(found)


def _unit_gaps(job: Job, known: UnitCoverage, reach: Range) -> Iterator[tuple[Range, str]]:
    missing = gaps(known.everything, *reach)
    for failure in known.failures:
        for hole in within(missing, *failure.range):
            yield hole, _failure_cause(job, failure.attempts, failure.error)
    frontier = known.frontier
    for hole in subtract(missing, merged(failure.range for failure in known.failures)):
        if frontier is None:
            yield hole, "never read"
        elif hole.lo >= frontier:
            yield hole, "not read yet"
        else:
            yield hole, "left out"


def _failure_cause(job: Job, attempts: int, error: str) -> str:
    times = "once" if attempts == 1 else "before, and is to be tried again" if not attempts else f"{attempts} times"
    most = job.limits.attempts
    said = f"failed {times}" + (f": {error}" if error else "")
    return f"in quarantine, {said}" if most is not None and attempts >= most else said


def coverage_before_edit(known: UnitCoverage, what: Range) -> dict[str, Any]:
    """Return what was known of a range, to be kept as JSON.

    >>> coverage_before_edit(UnitCoverage(covered=[Range(0, 9)]), Range(5, 20))
    {'covered': [[5, 9]], 'backfilled': [], 'wanted': [], 'failures': []}
    """
    kinds = ("covered", "backfilled", "wanted")
    kept: dict[str, Any] = {kind: [list(one) for one in within(getattr(known, kind), *what)] for kind in kinds}
    failures = [one for one in known.failures if one.range.lo < what.hi and what.lo < one.range.hi]
    kept["failures"] = [[*_clip(one.range, what), one.attempts, one.at, one.error] for one in failures]
    return kept


def undo_edit(known: UnitCoverage, what: Range, before: Mapping[str, Any], *, is_covered: bool) -> UnitCoverage:
    """Return what is known once an edit is undone; refuse if something has changed the range since.

    >>> edited = UnitCoverage(covered=[Range(0, 9)]).edited(Range(0, 20), is_covered=True)
    >>> undo_edit(edited, Range(0, 20), {"covered": [[0, 9]]}, is_covered=True).covered
    [Range(lo=0, hi=9)]
    """
    now = within(known.everything, *what)
    if now != ([what] if is_covered else []):
        raise Conflict(
            f"What is known from {what.lo} to {what.hi} has changed since it was edited.",
            rule="An edit can be undone as long as nothing else has changed its range.",
            remedy="Edit it again instead.",
            lo=what.lo,
            hi=what.hi,
        )
    edit = [what]
    old = {kind: merged((lo, hi) for lo, hi in before.get(kind, ())) for kind in ("covered", "backfilled", "wanted")}
    failures = [one for one in known.failures if not within([one.range], *what)]
    failures += [
        Failure(Range(lo, hi), attempts, at, error) for lo, hi, attempts, at, error in before.get("failures", ())
    ]
    return UnitCoverage(
        covered=union(subtract(known.covered, edit), old["covered"]),
        backfilled=union(subtract(known.backfilled, edit), old["backfilled"]),
        wanted=union(subtract(known.wanted, edit), old["wanted"]),
        failures=tuple(sorted(failures, key=lambda one: one.range)),
        fresh=known.fresh,
        known_from=known.known_from,
    )


def _clip(one: Range, what: Range) -> tuple[int, int]:
    return max(one.lo, what.lo), min(one.hi, what.hi)
