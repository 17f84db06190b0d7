"""What is known of a unit: what was read, what has failed, what somebody wants again. Pure, and never changed in place.

Everything is kept as ranges of time, not as cells. So a job may change its start, its grid or its units, and what it
knows stays true: it is only cut in another way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self
from zoneinfo import ZoneInfo

from floodmark.ingest._calendar import day_number
from floodmark.ingest._ranges import Range, Ranges, intersect, merged, subtract, union


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
            failures=_without(self.failures, done),
            fresh=_freshened(self.fresh, done, at, zone, abstinence_days),
        )

    def failed(self, tried: Range, at: int, error: str = "") -> Self:
        """Return what is known after a range could not be read. Nothing that was read before is given up.

        >>> UnitCoverage().failed(Range(0, 9), at=1).failed(Range(3, 5), at=2).failures[1].attempts
        2
        """
        before = max((one.attempts for one in self.failures if _meet(one.range, tried)), default=0)
        failure = Failure(tried, before + 1, at, error)
        return replace(self, failures=_joined([*_without(self.failures, tried), failure]))

    def released(self, what: Range) -> Self:
        """Return what is known once the failures that a range touches are forgiven, though not forgotten."""
        return replace(
            self, failures=tuple(replace(one, attempts=0) if _meet(one.range, what) else one for one in self.failures)
        )

    def asked_for(self, what: Range) -> Self:
        """Return what is known once a backfill wants a range, whatever was read or has failed of it."""
        return replace(self.released(what), wanted=union(self.wanted, [what]))

    def edited(self, what: Range, *, is_covered: bool) -> Self:
        """Return what is known if a person says that a range was read, or was not.

        >>> UnitCoverage(covered=[Range(0, 9)]).edited(Range(3, 5), is_covered=False).covered
        [Range(lo=0, hi=3), Range(lo=5, hi=9)]
        """
        edit, failures, fresh = [what], _without(self.failures, what), _cut(self.fresh, what)
        wanted = subtract(self.wanted, edit)
        if is_covered:
            added = union(self.covered, subtract(edit, self.backfilled))
            return replace(self, covered=added, wanted=wanted, failures=failures)
        covered, backfilled = subtract(self.covered, edit), subtract(self.backfilled, edit)
        return replace(self, covered=covered, backfilled=backfilled, wanted=wanted, failures=failures, fresh=fresh)


Coverage = Mapping[str, UnitCoverage]
"""What is known of a job: by the key of each unit it ever had."""

NOTHING = UnitCoverage()


def _meet(one: Range, other: Range) -> bool:
    return one.lo < other.hi and other.lo < one.hi


def _without(failures: Sequence[Failure], gone: Range) -> tuple[Failure, ...]:
    if not any(_meet(one.range, gone) for one in failures):
        return tuple(failures)
    return tuple(replace(one, range=left) for one in failures for left in subtract([one.range], [gone]))


def _joined(failures: list[Failure]) -> tuple[Failure, ...]:
    """Return failures in order, with neighbours that have failed alike as one: when a source is down, all of them."""
    result: list[Failure] = []
    for one in sorted(failures, key=lambda one: one.range):
        last = result[-1] if result else None
        if last and last.range.hi == one.range.lo and (last.attempts, last.error) == (one.attempts, one.error):
            result[-1] = replace(one, range=Range(last.range.lo, one.range.hi), at=max(last.at, one.at))
        else:
            result.append(one)
    return tuple(result)


def _cut(fresh: Sequence[Success], gone: Range) -> list[Success]:
    return [replace(one, range=left) for one in fresh for left in subtract([one.range], [gone])]


def _freshened(
    fresh: Sequence[Success], done: Range, at: int, zone: ZoneInfo | None, abstinence_days: int
) -> Sequence[Success]:
    """Return the successes that still matter. Those of one day count alike, so neighbours among them become one."""
    if zone is None or not abstinence_days:
        return ()
    today = day_number(at, zone)
    kept, same_day = [], [done]
    for one in _cut(fresh, done):
        age = today - day_number(one.at, zone)
        if age == 0:
            same_day.append(one.range)
        elif age <= abstinence_days:
            kept.append(one)
    kept += [Success(one, at) for one in merged(same_day)]
    return tuple(sorted(kept, key=lambda one: one.range))
