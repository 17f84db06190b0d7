"""Claims about what a home keeps of jobs: coverage, runs, failures, edits. On SQLite and on PostgreSQL."""

from collections.abc import Callable, Sequence
from time import sleep

import pytest
from sqlalchemy import func, select

from floodmark.control import Home
from floodmark.errors import (
    JobRunning,
    LeaseLost,
    NotPlanned,
    RangeInvalid,
    UnknownJob,
    UnknownRun,
    UnknownUnit,
)
from floodmark.ingest import Ingestion, PlannedRange, Range, RangeOutcome, Unit
from floodmark.ingest.store.jobs import KEPT_RUNS
from floodmark.ingest.store.tables import ATTEMPTS, EVENTS, RANGES, RUNS
from floodmark.testing import ManualClock
from support.ingest.ingest_jobs import at, go, job_of, said, span, succeed

MINUTE = 60_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at("01-05"))


@pytest.fixture
def jobs(home: Home) -> Ingestion:
    return Ingestion(home)


def batched(rows: Sequence[PlannedRange], many: int) -> list[Sequence[PlannedRange]]:
    return [rows[start : start + many] for start in range(0, len(rows), many)]


def test_what_a_run_has_read_is_known_to_the_next(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    assert len(succeed(jobs, job)) == 4
    assert jobs.plan(job).is_empty
    go(clock, "01-07")
    assert succeed(jobs, job) == ["01-05..01-06", "01-06..01-07"]
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-07"),)
    assert jobs.complete_through(job) == at("01-07")
    (second, first) = jobs.history("orders")
    assert (first.run, first.state, first.succeeded, first.failed, first.rows) == (1, "done", 4, 0, 4)
    assert second.plan["units"] == ["{}"]
    assert second.plan["reach"] == list(span("01-01..01-07"))
    assert [attempt.range for attempt in jobs.attempts("orders", 2)] == [span("01-05..01-06"), span("01-06..01-07")]


def test_coverage_is_kept_in_as_few_rows_as_can_be(jobs: Ingestion, home: Home, clock: ManualClock) -> None:
    job = job_of(grid="hourly", units=range(20))
    going = jobs.start(job, owner="here")
    hole = going.plan.rows[500]
    going.record([RangeOutcome(row) for row in going.plan.rows if row != hole])
    going.end()
    with home.read() as connection:
        assert connection.execute(select(func.count()).select_from(RANGES)).scalar() == 20 + 1
    assert [row.range for row in jobs.plan(job).rows] == [hole.range]


def test_failures_are_counted_until_quarantine_and_the_hole_stays_known(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", attempts=2)
    for _ in range(2):
        with jobs.start(job, owner="here") as going:
            bad = next(row for row in going.plan.rows if row.range == span("01-02..01-03"))
            going.failed(bad, "timed out", took=5)
            going.record([RangeOutcome(row) for row in going.unrecorded])
    found = jobs.plan(job)
    assert found.is_empty
    assert [(row.range, row.why) for row in found.quarantined] == [(bad.range, "failed 2 times in a row: timed out")]
    assert [(gap.range, gap.cause) for gap in jobs.gaps(job)] == [
        (bad.range, "in quarantine, failed 2 times: timed out")
    ]
    assert jobs.complete_through(job) == at("01-02")
    assert jobs.retry("orders", actor="me", note="source repaired") == 1
    assert jobs.retry("orders", actor="me") == 0
    assert [gap.cause for gap in jobs.gaps(job)] == ["failed before, retry requested: timed out"]
    assert succeed(jobs, job) == ["01-02..01-03"]
    assert jobs.gaps(job) == ()
    assert jobs.complete_through(job) == at("01-05")
    assert [event.kind for event in jobs.events("orders")] == ["retry", "retry", "registered"]


def test_when_a_source_is_down_thousands_of_cells_may_fail(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of("2019-09-01", grid="hourly", attempts=1, cells=2_000)
    with jobs.start(job, owner="here") as going:
        assert len(going.plan.rows) == 2_000
        for rows in batched(going.plan.rows, 500):
            going.record([RangeOutcome(row, "down") for row in rows])
    assert len(jobs.coverage("orders")["{}"].failures) == 2_000
    found = jobs.plan(job)
    assert (found.totals["quarantined"], found.totals["failed"]) == (2_000, 0)
    assert found.totals["new"] == found.cells > 0, "the others go on"
    assert [gap.cause for gap in jobs.gaps(job)] == ["in quarantine, failed once: down", "never read"]
    assert jobs.retry("orders", actor="me") == 2_000


def test_a_retry_of_one_day_releases_that_day_alone(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", attempts=1)
    with jobs.start(job, owner="here") as going:
        going.record([RangeOutcome(row, "down") for row in going.plan.rows])
    assert jobs.retry("orders", span("01-02..01-03"), actor="me") == 1
    found = jobs.plan(job)
    assert (said(job, found.rows), found.totals["quarantined"]) == (["01-02..01-03"], 3)
    assert jobs.retry("orders", actor="me") == 3


def test_the_undo_of_an_edit_leaves_failed_days_beside_it_due(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily", grace_days=2)
    succeed(jobs, job)
    with jobs.start(job, owner="here") as going:
        going.record([RangeOutcome(row, "down") for row in going.plan.rows])
    edit = jobs.edit("orders", span("01-02..01-03"), covered=False, actor="me")
    with jobs.start(job, owner="here") as going:
        going.failed(next(row for row in going.plan.rows if row.range == span("01-02..01-03")), "down")
    jobs.undo("orders", edit.event, actor="me")
    found = jobs.plan(job)
    assert said(job, found.rows) == ["01-03..01-04", "01-04..01-05"]
    assert {row.reason for row in found.rows} == {"failed"}


def test_a_cap_gives_every_unit_its_turn_in_runs_of_different_days(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of("2020-01-04", units=[f"f{number}" for number in range(7)], cells=3)
    for day in range(5, 12):
        go(clock, f"01-{day:02}")
        succeed(jobs, job)
    ends = {coverage.frontier for coverage in jobs.coverage("orders").values()}
    assert ends == {at("01-09"), at("01-10"), at("01-11")}


def test_all_cells_of_the_grace_period_are_read_again_in_turn(jobs: Ingestion, home: Home, clock: ManualClock) -> None:
    job = job_of("2020-01-04", grid="daily", units=[f"f{number}" for number in range(7)], cells=9, grace_days=1)
    again = []
    for day in range(5, 13):
        go(clock, f"01-{day:02}")
        with jobs.start(job, owner="here") as going:
            again += [row.unit.fields["id"] for row in going.plan.rows if row.reason == "grace"]
            for row in going.plan.rows:
                clock.advance(1_000)
                going.succeeded(row)
    assert again[:13] == ([f"f{number}" for number in range(7)] * 2)[:13]
    with home.read() as connection:
        kept = select(func.count()).select_from(RANGES).where(RANGES.c.kind == "fresh")
        assert connection.execute(kept).scalar_one() <= 14, "no more than the grace period needs"


def test_a_second_run_is_refused_while_one_goes_on(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    going = jobs.start(job, owner="a")
    clock.advance(MINUTE // 2)
    going.renew()
    clock.advance(MINUTE - 1)
    with pytest.raises(JobRunning) as refused:
        jobs.start(job, owner="a")
    assert refused.value.fields["owner"] == going.owner
    assert "60 s" in refused.value.remedy
    status = jobs.status(job)
    assert status.running is not None
    assert (status.running.run, status.last) == (1, None)
    going.end()
    going.end()
    assert jobs.status(job).running is None
    assert jobs.start(job_of(grid="daily", name="bills"), owner="a").number == 1, "another job is not concerned"


def test_who_records_keeps_the_lease(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    going = jobs.start(job, owner="a", ttl=100_000)
    for row in going.plan.rows:
        sleep(0.05)
        clock.advance(60_000)
        going.succeeded(row)
        with pytest.raises(JobRunning):
            jobs.start(job, owner="b")


def test_a_run_that_was_silent_is_overtaken_and_can_record_nothing_more(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    old = jobs.start(job, owner="a")
    old.succeeded(old.plan.rows[0], rows=3)
    clock.advance(MINUTE)
    new = jobs.start(job, owner="b")
    assert new.token > old.token
    assert said(job, new.plan.rows) == ["01-02..01-03", "01-03..01-04", "01-04..01-05"]
    late_calls: list[Callable[[], object]] = [
        lambda: old.succeeded(old.plan.rows[1]),
        lambda: old.failed(old.plan.rows[1], "no"),
        lambda: old.adopt(old.plan.rows[1].unit, old.plan.rows[1].range),
        old.renew,
        old.end,
    ]
    for late in late_calls:
        with pytest.raises(LeaseLost):
            late()
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-02"),)
    new.end()
    assert [(one.run, one.state) for one in jobs.history("orders")] == [(2, "done"), (1, "lost")]
    taken = jobs.events("orders")[0]
    assert (taken.kind, taken.actor, taken.details) == ("taken over", new.owner, {"runs": [[1, old.owner]]})


def test_a_run_that_is_left_by_an_error_ends_as_failed(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")

    def break_off() -> None:
        with jobs.start(job, owner="a") as going:
            going.succeeded(going.plan.rows[0])
            raise ZeroDivisionError

    def break_off_late() -> None:
        with jobs.start(job, owner="a"):
            clock.advance(2 * MINUTE)
            jobs.start(job, owner="b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert jobs.history("orders")[0].state == "failed"
    assert len(succeed(jobs, job)) == 3
    with pytest.raises(ZeroDivisionError) as first:
        break_off_late()
    assert "Ending the run failed too" in first.value.__notes__[0]


def test_each_row_of_a_plan_is_recorded_once_and_nothing_else(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    going = jobs.start(job, owner="a")
    row = going.plan.rows[0]
    going.succeeded(row)
    other = PlannedRange(row.unit, row.cell, span("01-01..01-04"), "new", ("new",))
    for outcomes in ([RangeOutcome(row)], [RangeOutcome(other)], [RangeOutcome(going.plan.rows[1])] * 2):
        with pytest.raises(NotPlanned):
            going.record(outcomes)
    assert len(going.unrecorded) == 3
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-02"),), "all of a call or nothing"


def test_what_an_earlier_run_had_landed_is_adopted(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    jobs.start(job, owner="a")
    clock.advance(MINUTE)
    with jobs.start(job, owner="b") as going:
        going.adopt(Unit.of({}), span("01-01..01-02"), rows=9)
        with pytest.raises(UnknownUnit):
            going.adopt(Unit.of({"id": 7}), span("01-01..01-02"))
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-02"),)
    assert [(one.state, one.rows) for one in jobs.attempts("orders", 2)] == [("adopted", 9)]


def test_holes_that_slide_out_are_told_and_a_new_unit_has_none(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of("P3D", "P0D", "daily", units=["a"])
    with jobs.start(job, owner="x") as going:
        going.record([RangeOutcome(row) for row in going.plan.rows[1:]])
    go(clock, "01-07")
    both = job_of("P3D", "P0D", "daily", units=["a", "b"])
    succeed(jobs, both)
    go(clock, "01-20")
    expired = [(one.unit.fields["id"], one.range) for one in jobs.plan(both).expired]
    assert expired == [("a", span("01-02..01-03")), ("a", span("01-07..01-17")), ("b", span("01-07..01-17"))]
    assert [gap.cause for gap in jobs.gaps(both)] == ["expired", "expired", "not read yet", "expired", "not read yet"]


def test_lateness_that_was_seen_recommends_a_grace(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of(grid="daily")
    with jobs.start(job, owner="x") as going:
        going.succeeded(going.plan.rows[0], rows=1000, lateness={0: 900, 1: 90})
        going.succeeded(going.plan.rows[1], rows=1000, took=2_000_000, lateness={1: 5, 4: 5})
    assert jobs.lateness("orders") == {0: 900, 1: 95, 4: 5}
    assert jobs.recommended_grace("orders") == 4
    assert jobs.recommended_grace("orders", share=0.99) == 1
    jobs.note_lateness("orders", {9: 100})
    assert jobs.recommended_grace("orders") == 9
    assert jobs.typical("orders").rows == 1000
    assert (jobs.typical("orders").cells, jobs.typical("orders").took) == (2, 2_000_000)
    with pytest.raises(UnknownJob):
        jobs.note_lateness("ordrs", {9: 100})
    assert jobs.recommended_grace("bills") is None


def test_what_is_not_known_is_named_with_what_is(jobs: Ingestion, clock: ManualClock) -> None:
    jobs.register(job_of())
    for ask in (
        lambda: jobs.get("ordrs"),
        lambda: jobs.history("ordrs"),
        lambda: jobs.retry("ordrs", actor="me"),
        lambda: jobs.edit("ordrs", span("01-01..01-02"), covered=True, actor="me"),
    ):
        with pytest.raises(UnknownJob, match="Did you mean 'orders'"):
            ask()
    with pytest.raises(UnknownRun):
        jobs.attempts("orders", 7)
    with pytest.raises(UnknownUnit):
        jobs.edit("orders", span("01-01..01-02"), covered=True, units=['{"id":1}'], actor="me")
    with pytest.raises(RangeInvalid):
        jobs.edit("orders", Range(2, 2), covered=True, actor="me")
    assert jobs.all() == ("orders",)


def test_details_of_old_runs_are_given_up_and_coverage_never(
    jobs: Ingestion, home: Home, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.ingest.store.jobs.KEPT_RUNS", 2)
    job = job_of(grid="daily")
    for day in range(5, 10):
        go(clock, f"01-{day:02}")
        succeed(jobs, job)
    with home.read() as connection:
        for table in (RUNS, ATTEMPTS):
            assert connection.execute(select(func.min(table.c.run))).scalar() == 4
        assert connection.execute(select(func.count()).select_from(EVENTS)).scalar() == 1
    assert jobs.coverage("orders")["{}"].covered == (span("01-01..01-09"),)
    assert KEPT_RUNS >= 100


def test_an_error_with_odd_characters_is_kept_as_far_as_it_can_be(jobs: Ingestion, clock: ManualClock) -> None:
    job = job_of()
    with jobs.start(job, owner="x") as going:
        going.failed(going.plan.rows[0], "a\0b" + "x" * 9999)
    (failure,) = jobs.coverage("orders")["{}"].failures
    assert failure.error.startswith("a\ufffdbxx")
    assert len(failure.error) == 2000
