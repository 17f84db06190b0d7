"""What holds of every plan, whatever has failed in whatever order: random jobs, zones, runs of two years."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.ingest import Job, Plan, PlannedRange, Range, UnitCoverage, complete_through, plan
from floodmark.ingest.calendar.clock import day_number, days_before, zone_of
from floodmark.ingest.calendar.ranges import clip_ranges, gaps, intersect, merge_ranges, subtract, total_length, union
from floodmark.ingest.planning.coverage import NO_COVERAGE, find_gaps, largest_end
from support.examples import examples
from support.ingest.ingest_jobs import at, job_of, run

HOUR = 3_600_000_000
ZONES = ("UTC", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kolkata")
GRIDS = ("none", "daily", "weekly", "monthly", "yearly")

jobs = st.builds(
    job_of,
    start=st.sampled_from(["2019-01-01", "2019-01-31", "2019-03-10 02:30:00", "2019-06-15 13:45:10"]),
    to=st.sampled_from(["-", "P0D", "P1D", "P0DT0H", "2020-08-01"]),
    grid=st.sampled_from(GRIDS),
    zone=st.sampled_from(ZONES),
    units=st.sampled_from([None, ["a"], ["a", "b", "c"]]),
    partial=st.booleans(),
    grace_days=st.sampled_from([0, 0, 1, 3, 40]),
    abstinence_days=st.sampled_from([0, 0, 1, 5]),
    settle=st.sampled_from([0, 20 * 60_000_000]),
    cells=st.sampled_from([None, 7, 60]),
    attempts=st.sampled_from([None, 2]),
)
steps = st.lists(
    st.tuples(st.integers(0, 24 * 90), st.sampled_from(["all", "none", "some", "one"]), st.randoms()), max_size=10
)


def check(job: Job, known: dict[str, UnitCoverage], found: Plan) -> None:
    """Check what holds of one plan. `reach` leaves out a last cell that may not be read in part."""
    assert plan(job, known, found.now) == found, "the same again"
    whole = replace(job, limits=replace(job.limits, cells=None))
    everything = plan(whole, known, found.now)
    listed = [*everything.rows, *everything.held, *everything.quarantined]
    for unit in job.listed_units:
        one = known.get(unit.key, NO_COVERAGE)
        missing = gaps(one.everything, *found.reach)
        mine = [row.range for row in listed if row.unit == unit]
        assert not subtract(missing, merge_ranges(mine)), "what was not read is planned, held, or in quarantine"
        planned = sorted(row.range for row in everything.rows if row.unit == unit)
        assert all(before.hi <= after.lo for before, after in pairwise(planned)), "no overlap"
        again = subtract(merge_ranges(planned), missing)
        allowed = union(merge_ranges(failure.range for failure in one.failures), one.wanted)
        if one.frontier is not None and job.time.grace_days:
            start = days_before(one.frontier, job.time.grace_days, zone_of(job.zone))
            allowed = union(allowed, clip_ranges([Range(start, one.frontier)], *found.reach))
        assert not subtract(again, allowed), "only what failed, is wanted, or is within the grace is read again"
    cells = {(row.unit.key, row.cell) for row in everything.rows}
    assert everything.cells == everything.due == len(cells)
    assert everything.totals["held"] == len({(row.unit.key, row.cell) for row in everything.held})
    assert everything.totals["quarantined"] == len({(row.unit.key, row.cell) for row in everything.quarantined})
    assert found.cells == len({(row.unit.key, row.cell) for row in found.rows})
    assert found.rows == everything.rows[: len(found.rows)]
    assert found.cells + found.waiting == everything.cells
    for row in listed:
        assert found.reach.lo <= row.cell.lo <= row.range.lo < row.range.hi <= row.cell.hi <= found.reach.hi
    today = day_number(found.now, zone_of(job.zone))
    for row in everything.held:
        assert row.reason in ("new", "grace")
        fresh = [one for one in known[row.unit.key].fresh if intersect([one.range], [row.cell])]
        assert any(today <= day_number(one.at, zone_of(job.zone)) + job.time.abstinence_days for one in fresh)


def failing(found: Plan, kind: str, random: st.randoms) -> list[PlannedRange]:  # type: ignore[valid-type]
    if kind == "all":
        return list(found.rows)
    if kind == "some":
        return [row for row in found.rows if random.random() < 0.4]  # type: ignore[attr-defined]
    return list(found.rows[:1]) if kind == "one" else []


@settings(max_examples=examples(200))
@given(job=jobs, history=steps)
def test_whatever_fails_nothing_is_lost_or_planned_twice_and_in_the_end_all_is_read(
    job: Job, history: list[tuple[int, str, object]]
) -> None:
    now = at("2019-02-01", job.zone)
    known: dict[str, UnitCoverage] = {}
    for hours, kind, random in history:
        now += hours * HOUR + 7_000_000
        found = plan(job, known, now)
        check(job, known, found)
        before = known
        known = run(job, known, found, now, fails=failing(found, kind, random))
        for name, one in before.items():
            assert not subtract(one.everything, known[name].everything), "coverage never shrinks"
    # Then all goes well, and somebody releases what is in quarantine.
    known = {name: one.with_attempts_reset(Range(-(2**62), 2**62)) for name, one in known.items()}
    now += (job.time.abstinence_days + 1) * 26 * HOUR
    for _ in range(10_000):
        found = plan(job, known, now)
        check(job, known, found) if found.cells < 20 else None
        if not any(row.reason != "grace" for row in found.rows):
            break
        known = run(job, known, found, now)
    else:
        raise AssertionError("it never ends")
    reach = plan(job, known, now).reach
    for unit in job.listed_units:
        assert not gaps(known[unit.key].everything, *reach) if unit.key in known else reach.lo >= reach.hi
    if reach.lo < reach.hi:
        assert complete_through(job, known, now) == largest_end(known) == reach.hi or not job.time.partial
        assert not [gap for gap in find_gaps(job, known, now) if gap.range.hi <= reach.hi]
    if not job.time.grace_days:
        assert plan(job, known, now).is_empty, "at the same moment there is nothing left"


@settings(max_examples=examples(30))
@given(job=jobs, history=steps)
def test_abstinence_never_changes_what_is_finally_read(job: Job, history: list[tuple[int, str, object]]) -> None:
    """The same failures, by the place of a row in the plan of the job without abstinence, or by chance."""
    patient = replace(job, time=replace(job.time, abstinence_days=9), limits=replace(job.limits, attempts=None))
    eager = replace(patient, time=replace(job.time, abstinence_days=0))
    ends = []
    for one in (patient, eager):
        known: dict[str, UnitCoverage] = {}
        now = at("2019-02-01", job.zone)
        for hours, kind, random in history:
            now += hours * HOUR
            found = plan(one, known, now)
            known = run(one, known, found, now, fails=failing(found, kind, random))
        now += 11 * 24 * HOUR
        for _ in range(10_000):
            found = plan(one, known, now)
            known = run(one, known, found, now)
            if not any(row.reason != "grace" for row in found.rows):
                break
        ends.append({unit: list(state.everything) for unit, state in known.items() if state.everything})
    assert ends[0] == ends[1]


@settings(max_examples=examples(200))
@given(
    job=jobs,
    other=jobs,
    days=st.integers(1, 500),
    random=st.randoms(),
)
def test_a_job_may_change_its_start_its_grid_its_units_and_its_zone_and_keeps_what_it_has_read(
    job: Job, other: Job, days: int, random: object
) -> None:
    now = at("2019-02-01", "UTC") + days * 24 * HOUR
    found = plan(job, {}, now)
    known = run(job, {}, found, now, fails=failing(found, "some", random))
    changed = plan(other, known, now)
    check(other, known, changed)
    whole = replace(other, limits=replace(other.limits, cells=None), time=replace(other.time, grace_days=0))
    read_again = 0
    for row in plan(whole, known, now).rows:
        state = known.get(row.unit.key, NO_COVERAGE)
        read_again += total_length(
            subtract(intersect([row.range], state.everything), merge_ranges(f.range for f in state.failures))
        )
    assert read_again == 0
