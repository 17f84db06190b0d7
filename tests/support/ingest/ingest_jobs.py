"""Jobs, moments and days as the tests of ingestion write them."""

from collections.abc import Iterable, Mapping
from typing import Any

from floodmark.ingest import (
    Bound,
    Grid,
    Ingestion,
    Job,
    Limits,
    Plan,
    PlannedRange,
    Range,
    RangeOutcome,
    TimeWatermark,
    UnitCoverage,
    UnitWatermark,
)
from floodmark.ingest.calendar.clock import zone_of
from floodmark.ingest.planning.coverage import NO_COVERAGE
from floodmark.testing import ManualClock

LA = "America/Los_Angeles"


def at(text: str, zone: str = LA) -> int:
    """Return a moment: a date, or a date and a time; of 2020 if no year is said."""
    date, _, time = text.replace("T", " ").partition(" ")
    date = date if len(date) > 5 else f"2020-{date}"
    if time:
        time = f" {time}:00" if len(time) == 5 else f" {time}"
    moment = Bound.parse(date + time, zone).at
    assert moment is not None
    return moment


def span(text: str, zone: str = LA) -> Range:
    """Return a range, as `01-12..01-16`."""
    lo, hi = text.split("..")
    return Range(at(lo, zone), at(hi, zone))


def job_of(
    start: str = "2020-01-01",
    to: str = "P0D",
    grid: str | Grid = "none",
    *,
    zone: str = LA,
    units: Iterable[object] | None = None,
    mode: str = "replace",
    cells: int | None = 10_000,
    attempts: int | None = 5,
    name: str = "orders",
    **time: Any,
) -> Job:
    """Return a job of one source; what is not said is the default."""
    cut = Grid.plain(grid) if isinstance(grid, str) else grid
    watermark = TimeWatermark("day", Bound.parse(start, zone), Bound.parse(to, zone), cut, **time)
    listed = None if units is None else UnitWatermark.listed("id", units)
    return Job(name, zone, watermark, listed, target={"mode": mode}, limits=Limits(cells, attempts))


def key(value: object) -> str:
    """Return the key of a unit of `job_of`."""
    return UnitWatermark.listed("id", [value]).units[0].key  # type: ignore[index]


def only(known: UnitCoverage) -> dict[str, UnitCoverage]:
    """Return the coverage of a job without units."""
    return {"{}": known}


def covered(*texts: str, zone: str = LA) -> dict[str, UnitCoverage]:
    """Return the coverage of a job without units that has read so much."""
    return only(UnitCoverage(covered=[span(text, zone) for text in texts]))


def run(
    job: Job, coverage: Mapping[str, UnitCoverage], plan: Plan, now: int, *, fails: Iterable[PlannedRange] = ()
) -> dict[str, UnitCoverage]:
    """Return what is known after all rows of a plan succeeded, but for those that fail."""
    known = {unit.key: NO_COVERAGE for unit in job.listed_units} | dict(coverage)
    failing = set(fails)
    for row in plan.rows:
        one = known[row.unit.key]
        if row in failing:
            known[row.unit.key] = one.failed(row.range, now, "no")
        else:
            times = {"abstinence_days": job.time.abstinence_days, "grace_days": job.time.grace_days}
            known[row.unit.key] = one.succeeded(row.range, now, zone=zone_of(job.zone), **times)
    return known


def said(job: Job, rows: Iterable[PlannedRange]) -> list[str]:
    """Return ranges of rows as `01-12..01-16`, with the time where it is not midnight."""
    return [f"{_short(job, row.range.lo)}..{_short(job, row.range.hi)}" for row in rows]


def _short(job: Job, micros: int) -> str:
    text = job.shown(micros)
    time = text[11:19].removesuffix(":00")
    return (text[5:10] if text.startswith("2020") else text[:10]) + ("" if time == "00:00" else f" {time}")


def succeed(jobs: Ingestion, job: Job, *, owner: str = "here") -> list[str]:
    """Run a job to its end, and return what it read."""
    with jobs.start(job, owner=owner) as going:
        going.record([RangeOutcome(row, rows=1) for row in going.plan.rows])
        return said(job, going.plan.rows)


def go(clock: ManualClock, text: str) -> None:
    """Let it be so late."""
    clock.advance(at(text) - clock.now())
