"""Claims about ranges that a run adopts: landed before their rows are recorded, or without their being recorded."""

import pytest

from floodmark.control import Home
from floodmark.errors import LeaseLost, NotPlanned
from floodmark.ingest import Ingestion, Range, Run
from support.ingest.ingest_jobs import job_of

DAY = 86_400_000_000
JOB = job_of("2020-01-01", "2020-01-05", "daily")
START = JOB.reach(2**60).lo


class Undone(Exception):
    """A transaction ends here, and leaves nothing."""


@pytest.fixture
def run(home: Home) -> Run:
    return Ingestion(home).start(JOB, owner="here")


def covered(run: Run) -> int:
    return sum(one.hi - one.lo for one in Ingestion(run.home).coverage(JOB.name)["{}"].covered) // DAY


def states(run: Run) -> list[tuple[str, str, int | None]]:
    return [(one.state, one.reason, one.rows) for one in Ingestion(run.home).attempts(JOB.name, run.number)]


def test_what_is_adopted_in_a_transaction_is_kept_with_it(run: Run) -> None:
    row = run.plan.rows[0]
    with run.home.write() as connection:
        run.adopt(row.unit, row.range, rows=3, reason=row.reason, connection=connection)
    assert (covered(run), states(run)) == (1, [("adopted", "new", 3)])


def test_what_is_adopted_in_a_transaction_that_fails_is_not(run: Run) -> None:
    row = run.plan.rows[0]

    def adopt_and_fail() -> None:
        with run.home.write() as connection:
            run.adopt(row.unit, row.range, connection=connection)
            raise Undone

    with pytest.raises(Undone):
        adopt_and_fail()
    assert (covered(run), states(run)) == (0, [])


def test_a_run_that_has_lost_its_lease_adopts_nothing_in_any_transaction(run: Run) -> None:
    row = run.plan.rows[0]
    run._leases.release(run._lease)
    Ingestion(run.home).start(JOB, owner="other")
    with pytest.raises(LeaseLost), run.home.write() as connection:
        run.adopt(row.unit, row.range, connection=connection)
    with pytest.raises(LeaseLost), run.home.write() as connection:
        run.check(connection)
    with pytest.raises(LeaseLost):
        run.disown(row.unit, row.range)
    assert covered(run) == 0


def test_a_row_that_was_adopted_is_recorded_once_more_with_what_it_took(run: Run) -> None:
    row = run.plan.rows[0]
    run.adopt(row.unit, row.range)
    run.succeeded(row, rows=8, lateness={0: 8})
    assert (covered(run), states(run)) == (1, [("succeeded", "new", 8)])
    assert Ingestion(run.home).lateness(JOB.name) == {0: 8}
    with pytest.raises(NotPlanned):
        run.succeeded(row)


def test_a_row_that_was_adopted_cannot_fail_any_more(run: Run) -> None:
    first, second = run.plan.rows[:2]
    run.adopt(first.unit, first.range, rows=3, reason=first.reason)
    assert run.failed(first, "the answer was lost") is False
    assert run.failed(second, "the source is away") is True
    run.end()
    assert [row.reason for row in Ingestion(run.home).plan(JOB).rows] == ["failed", "new", "new"]


def test_another_range_than_the_adopted_one_is_recorded_as_it_is(run: Run) -> None:
    row = run.plan.rows[0]
    run.adopt(row.unit, Range(row.range.lo, row.range.lo + DAY // 2))
    assert run.failed(row, "the source is away") is True
    run.end()
    assert [one.reason for one in Ingestion(run.home).plan(JOB).rows] == ["failed", "new", "new", "new"]


def test_a_backfill_that_is_adopted_and_recorded_does_not_move_the_frontier(home: Home) -> None:
    jobs = Ingestion(home)
    jobs.register(JOB)
    jobs.backfill(JOB, Range(START + 2 * DAY, START + 3 * DAY), actor="me")
    with jobs.start(JOB, owner="here") as run:
        (row,) = [row for row in run.plan.rows if row.range.lo == START + 2 * DAY]
        run.adopt(row.unit, row.range, reason=row.reason)
        run.succeeded(row, rows=1)
    known = jobs.coverage(JOB.name)["{}"]
    assert (known.frontier, list(known.backfilled)) == (None, [row.range])


def test_what_is_disowned_is_due_and_may_fail(run: Run) -> None:
    first, second = run.plan.rows[:2]
    for row in (first, second):
        run.adopt(row.unit, row.range, reason=row.reason)
    run.disown(first.unit, first.range)
    assert (covered(run), states(run)) == (1, [("adopted", "new", None)])
    assert run.failed(first, "the stream was sealed") is True
    run.end()
    assert [row.reason for row in Ingestion(run.home).plan(JOB).rows] == ["failed", "new", "new"]
