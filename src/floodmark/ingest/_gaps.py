"""What was not read of a job, and why not: by ranges of time, not cell by cell."""

from collections.abc import Iterator

from floodmark.ingest._coverage import NOTHING, Coverage, UnitCoverage
from floodmark.ingest._job import Job
from floodmark.ingest._ranges import Range, gaps, merged, subtract, within
from floodmark.ingest._records import Gap


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
        known = coverage.get(unit.key, NOTHING)
        if known.known_from is not None:
            found += [Gap(unit, hole, "expired") for hole in gaps(known.everything, known.known_from, reach.lo)]
        found += [Gap(unit, hole, cause) for hole, cause in sorted(_of_unit(job, known, reach))]
    return tuple(found)


def _of_unit(job: Job, known: UnitCoverage, reach: Range) -> Iterator[tuple[Range, str]]:
    missing = gaps(known.everything, *reach)
    for failure in known.failures:
        for hole in within(missing, *failure.range):
            yield hole, _failed(job, failure.attempts, failure.error)
    frontier = known.frontier
    for hole in subtract(missing, merged(failure.range for failure in known.failures)):
        if frontier is None:
            yield hole, "never read"
        elif hole.lo >= frontier:
            yield hole, "not read yet"
        else:
            yield hole, "left out"


def _failed(job: Job, attempts: int, error: str) -> str:
    times = "once" if attempts == 1 else "before, and is to be tried again" if not attempts else f"{attempts} times"
    most = job.limits.attempts
    said = f"failed {times}" + (f": {error}" if error else "")
    return f"in quarantine, {said}" if most is not None and attempts >= most else said
