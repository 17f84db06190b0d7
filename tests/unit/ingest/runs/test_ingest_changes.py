"""Claims about what people, and changed jobs, do to what a home keeps of jobs. On SQLite and on PostgreSQL."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floodmark.control import Home, Lease, Leases
from floodmark.errors import (
    Conflict,
    InvalidOption,
    JobInvalid,
    JobRunning,
    LeaseLost,
    RangeInvalid,
)
from floodmark.ingest import Ingestion, Range, RangeOutcome, UnitCoverage, plan
from floodmark.ingest.store.jobs import take_job_lease
from floodmark.testing import ManualClock
from support.examples import examples
from support.ingest.ingest_jobs import at, go, job_of, key, run, said, span, succeed

MINUTE = 60_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at("01-05"))


@pytest.fixture
def jobs(home: Home) -> Ingestion:
    return Ingestion(home)


def test_a_backfill_is_read_by_the_next_run_and_moves_no_frontier(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", units=["a", "b"])
    succeed(jobs, job)
    preview = jobs.plan(job, backfill=span("01-02..01-04"))
    assert [row.reason for row in preview.rows] == ["backfill"] * 4
    assert jobs.plan(job).is_empty, "a preview changes nothing"
    event = jobs.backfill(job, span("01-02..01-04"), units=[key("b")], actor="me", note="repaired")
    assert event.details == {
        "lo": at("01-02"), "hi": at("01-04"), "units": [key("b")], "note": "repaired"
    }  # fmt: skip
    going = jobs.start(job, owner="a")
    assert [(row.unit.key, row.reason) for row in going.plan.rows] == [(key("b"), "backfill")] * 2
    going.succeeded(going.plan.rows[0])
    going.end()
    assert said(job, jobs.plan(job).rows) == ["01-03..01-04"], "what was not read is still wanted"
    assert len(succeed(jobs, job)) == 1
    assert jobs.coverage("orders")[key("b")].frontier == at("01-05")


@pytest.mark.parametrize("text", ["2019-12-31..01-02", "01-04..01-06", "01-03..01-03", "01-04..01-03"])
def test_a_backfill_of_what_the_job_does_not_read_is_refused(jobs: Ingestion, clock: ManualClock, text: str) -> None:
    with pytest.raises(RangeInvalid):
        jobs.backfill(job_of(grid="daily"), span(text), actor="me")


def test_a_backfill_cannot_append_what_is_there(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", mode="append")
    succeed(jobs, job)
    with pytest.raises(JobInvalid, match="mode append"):
        jobs.backfill(job, span("01-02..01-03"), actor="me")
    assert jobs.plan(job).is_empty
    assert [event.kind for event in jobs.events("orders")] == ["registered"]


def test_a_backfill_releases_what_was_in_quarantine(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", attempts=1)
    with jobs.start(job, owner="a") as going:
        going.failed(going.plan.rows[0], "no")
        going.record([RangeOutcome(row) for row in going.unrecorded])
    assert jobs.plan(job).is_empty
    jobs.backfill(job, span("01-01..01-02"), actor="me")
    assert succeed(jobs, job) == ["01-01..01-02"]


def test_edits_are_written_down_and_can_be_undone(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", units=["a", "b"], attempts=1)
    with jobs.start(job, owner="x") as going:
        going.failed(going.plan.rows[2], "no")
        going.record([RangeOutcome(row) for row in going.unrecorded])
    before = jobs.coverage("orders")
    gone = jobs.edit("orders", span("01-01..01-04"), covered=False, actor="me", note="table lost")
    assert gone.details["before"][key("a")] == {
        "covered": [list(span("01-01..01-02")), list(span("01-03..01-04"))],
        "backfilled": [],
        "wanted": [],
        "failures": [[*span("01-02..01-03"), 1, at("01-05"), "no"]],
        "fresh": [],
    }
    assert len(jobs.plan(job).rows) == 6
    assert jobs.complete_through(job) == at("01-01")
    undone = jobs.undo("orders", gone.event, actor="me")
    assert undone.details["event"] == gone.event
    assert jobs.coverage("orders") == before
    with pytest.raises(InvalidOption):
        jobs.undo("orders", gone.event, actor="me")
    with pytest.raises(InvalidOption):
        jobs.undo("orders", 1, actor="me")
    done = jobs.edit("orders", span("01-02..01-03"), covered=True, units=[key("a")], actor="me")
    assert jobs.plan(job).is_empty
    assert jobs.gaps(job) == ()
    jobs.undo("orders", done.event, actor="me")
    assert jobs.coverage("orders") == before


def test_an_edit_cannot_be_undone_once_its_range_has_changed(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    succeed(jobs, job)
    gone = jobs.edit("orders", span("01-01..01-04"), covered=False, actor="me")
    with jobs.start(job, owner="x") as going:
        going.succeeded(going.plan.rows[0])
    with pytest.raises(Conflict):
        jobs.undo("orders", gone.event, actor="me")
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-02"), span("01-04..01-05"))


def test_nothing_is_changed_by_hand_while_a_run_goes_on(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    jobs.start(job, owner="a")
    for change in (
        lambda: jobs.edit("orders", span("01-01..01-02"), covered=True, actor="me"),
        lambda: jobs.undo("orders", 1, actor="me"),
        lambda: jobs.retry("orders", actor="me"),
        lambda: jobs.backfill(job, span("01-01..01-02"), actor="me"),
        lambda: jobs.register(job, actor="me"),
    ):
        with pytest.raises(JobRunning):
            change()
    assert [event.kind for event in jobs.events("orders")] == ["registered"]


def test_a_job_may_change_and_keeps_what_it_has_read(jobs: Ingestion, clock: ManualClock) -> None:
    """S41 and S42: by DIL's rules another start, or another period, reads everything again."""
    succeed(jobs, job_of(grid="daily"))
    hours = succeed(jobs, job_of(start="2019-12-30", to="2020-01-05", grid="hourly", zone="UTC"))
    assert len(hours) == 2 * 24 + 8, "up to midnight of the first in Los Angeles"
    assert succeed(jobs, job_of(start="2020-01-03", grid="monthly", zone="Europe/Berlin")) == []
    changed = jobs.events("orders")[0]
    assert changed.kind == "changed"
    assert changed.details["old"] == {
        "zone": "UTC", "from": "2019-12-30", "to": "2020-01-05", "grid": "hourly"
    }  # fmt: skip
    assert changed.details["new"] == {
        "zone": "Europe/Berlin", "from": "2020-01-03", "to": "P0D", "grid": "monthly"
    }  # fmt: skip
    assert jobs.get("orders").definition["grid"] == "monthly"
    jobs.register(job_of(start="2020-01-03", grid="monthly", zone="Europe/Berlin"))
    assert jobs.events("orders")[0] == changed, "what says nothing new is not written down"


def test_units_that_leave_are_retired_and_go_on_when_they_are_back(jobs: Ingestion, clock: ManualClock) -> None:
    both, one = job_of(grid="daily", units=["a", "b"]), job_of(grid="daily", units=["a"])
    succeed(jobs, both)
    go(clock, "01-08")
    succeed(jobs, one)
    assert jobs.plan(one).retired == (key("b"),)
    assert jobs.complete_through(one) == at("01-08")
    assert jobs.events("orders")[0].details == {"new": 0, "back": 0, "retired": 1}
    assert succeed(jobs, both) == ["01-05..01-06", "01-06..01-07", "01-07..01-08"]
    assert jobs.events("orders")[0].details == {"new": 0, "back": 1, "retired": 0}
    assert jobs.plan(both).retired == ()
    jobs.edit("orders", span("01-01..01-02"), covered=False, actor="me")
    assert len(jobs.plan(both).rows) == 2, "an edit of all units is one of all that are listed"


def test_a_start_that_moves_back_is_what_counts_for_holes_that_expire(jobs: Ingestion, clock: ManualClock) -> None:
    for start in ("2020-01-03", "2020-01-01", "2020-01-02"):
        jobs.register(job_of(start, grid="daily"))
    assert jobs.coverage("orders")["{}"].known_from == at("01-01")
    assert [one.range for one in jobs.plan(job_of("2020-01-04", grid="daily")).expired] == [span("01-01..01-04")]


def test_who_is_overtaken_before_an_edit_has_begun_changes_nothing(
    jobs: Ingestion, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(grid="daily")
    jobs.register(job)

    def take_and_stall(leases: Leases, name: str, owner: str, ttl: int) -> Lease:
        lease = take_job_lease(leases, name, owner, ttl)
        clock.advance(2 * MINUTE)
        jobs.start(job, owner="other")
        return lease

    monkeypatch.setattr("floodmark.ingest.store.jobs.take_job_lease", take_and_stall)
    with pytest.raises(LeaseLost):
        jobs.edit("orders", span("01-01..01-02"), covered=True, actor="me")
    assert jobs.coverage("orders")["{}"].covered == ()
    assert jobs.history("orders")[0].state == "running"


histories = st.lists(
    st.tuples(
        st.sampled_from(["run", "edit", "backfill", "retry"]), st.integers(0, 9), st.integers(1, 4), st.integers(0, 99)
    ),
    max_size=8,
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=histories)
def test_the_home_knows_what_the_pure_rules_say(
    sqlite_home: Home,
    clock: ManualClock,
    history: list[tuple[str, int, int, int]],
) -> None:
    """The same steps by the home and in memory, which must agree after each."""
    jobs = Ingestion(sqlite_home)
    clock.advance(at("01-05") - clock.now())
    day = clock.now()
    job = job_of(
        grid="daily", units=["a", "b"], name=f"job{len(jobs.all())}", grace_days=1, abstinence_days=1, attempts=3
    )
    known = {unit.key: UnitCoverage(known_from=job.reach(day).lo) for unit in job.listed_units}
    jobs.register(job)
    for kind, first, many, seed in history:
        random = Random(seed)
        clock.advance(13 * 3_600_000_000)
        now = clock.now()
        what = Range(at("01-01") + first * 6 * 3_600_000_000, at("01-01") + (first + many) * 6 * 3_600_000_000)
        if kind == "run":
            found = plan(job, known, now)
            bad = [row for row in found.rows if random.random() < 0.4]
            known = run(job, known, found, now, fails=bad)
            with jobs.start(job, owner="x") as going:
                assert going.plan == found
                rows = list(going.plan.rows)
                random.shuffle(rows)
                for row in rows:
                    going.failed(row, "no") if row in bad else going.succeeded(row)
        elif kind == "edit":
            covered = many % 2 == 0
            jobs.edit(job.name, what, covered=covered, actor="me")
            known = {unit: one.edited(what, is_covered=covered) for unit, one in known.items()}
        elif kind == "backfill" and what.hi <= job.reach(now).hi:
            jobs.backfill(job, what, actor="me")
            known = {unit: one.with_backfill(what) for unit, one in known.items()}
        elif kind == "retry":
            jobs.retry(job.name, what, actor="me")
            known = {unit: one.with_attempts_reset(what) for unit, one in known.items()}
        assert _plain(jobs.coverage(job.name)) == _plain(known)


def _plain(known: object) -> object:
    assert isinstance(known, dict)
    return {
        unit: [list(getattr(one, name)) for name in ("covered", "backfilled", "wanted", "failures", "fresh")]
        for unit, one in known.items()
    }
