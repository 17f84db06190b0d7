"""Which run may land in a table, and what becomes of what was landed and could not be recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from floodmark.control import Home
from floodmark.delta import DeltaCommits
from floodmark.errors import FloodmarkError, LandingOvertaken, LeaseLost, TableConflict, TableFailed, TargetTaken
from floodmark.ingest import Ingestion, Range, Run, Unit
from floodmark.ingest.landing.table import COMMITTED, STAGED, CommittedRange, TableClaim, app_id, unrecorded_ranges
from floodmark.testing import ManualClock
from support.ingest.table_landings import (
    COLUMNS,
    DAY,
    FIRST,
    TTL,
    Rows,
    begun,
    days,
    gridded,
    land,
    landing_of,
    lose_answer,
    lost,
    nothing_is_left,
    numbers,
    once,
    order,
    orders,
    table_job,
    table_rows,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(FIRST + 40 * DAY)


@pytest.fixture
def home(sqlite_home: Home) -> Home:
    return sqlite_home


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


class TestBeginning:
    def test_a_run_without_rows_leaves_the_table_alone(self, home: Home, path: Path) -> None:
        land(home, table_job(path), Rows(orders()))
        version = DeltaTable(str(path)).version()
        assert land(home, table_job(path), Rows(orders())).planned == 0
        assert DeltaTable(str(path)).version() == version

    def test_whoever_has_begun_before_lands_nothing_more(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path), Rows(orders("new"))
        land(home, table_job(path, 2), Rows(orders("old", 8)))
        slow, zombie = lost(home, clock, job, source)
        begun(home, job, source)
        with pytest.raises(LandingOvertaken):
            slow.land(zombie, zombie.plan.rows[0])
        assert table_rows(path) == [(n, "old") for n in range(8)]

    def test_a_run_that_has_lost_its_lease_does_not_begin(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, table_job(path, 1), source)
        zombie = Ingestion(home).start(job, owner="zombie", ttl=TTL)
        clock.advance(2 * TTL)
        Ingestion(home).start(job, owner="second", ttl=TTL)
        version = DeltaTable(str(path)).version()
        with pytest.raises(LeaseLost):
            landing_of(home, job, source).prepare(zombie)
        assert DeltaTable(str(path)).version() == version

    def test_a_run_does_not_begin_after_a_later_one(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, table_job(path, 1), source)
        zombie = Ingestion(home).start(job, owner="zombie", ttl=TTL)
        clock.advance(2 * TTL)
        _, second = begun(home, job, source)
        for run in (second, second):
            claim_of(home, path, run).fence_earlier_runs()
        with pytest.raises(LandingOvertaken):
            claim_of(home, path, zombie).fence_earlier_runs()

    def test_of_two_that_begin_at_once_one_does(
        self, home: Home, clock: ManualClock, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, table_job(path, 1), source)
        zombie = Ingestion(home).start(job, owner="zombie", ttl=TTL)
        clock.advance(2 * TTL)
        second = Ingestion(home).start(job, owner="second", ttl=TTL)
        slow, quick = claim_of(home, path, zombie), claim_of(home, path, second)
        commit = DeltaCommits.commit

        def late(table: DeltaCommits, *given: Any, **more: Any) -> None:
            monkeypatch.undo()
            quick.fence_earlier_runs()
            commit(table, *given, **more)

        monkeypatch.setattr(DeltaCommits, "commit", late)
        with pytest.raises(LandingOvertaken):
            slow.fence_earlier_runs()

    def test_of_two_jobs_that_begin_at_once_one_has_the_table(self, home: Home, path: Path) -> None:
        DeltaTable.create(str(path), pa.schema(list(COLUMNS.items())))
        claims = [
            claim_of(home, path, Ingestion(home).start(table_job(path, name=name), owner="here"))
            for name in ("orders", "other")
        ]
        for claim in claims:
            claim.check_owner()
        claims[0].fence_earlier_runs()
        with pytest.raises(TargetTaken, match="'orders'"):
            claims[1].fence_earlier_runs()

    def test_what_is_staged_after_a_run_has_begun_is_not_its_to_remove(
        self, home: Home, clock: ManualClock, path: Path
    ) -> None:
        job, source = table_job(path), Rows(orders("new"))
        land(home, job, Rows(orders("old")))
        Ingestion(home).backfill(job, days(0, 4), actor="me")

        def overtake(where: str) -> None:
            clock.advance(2 * TTL)
            quick, second = begun(home, job, source, at=once(COMMITTED, OSError("before it has tidied")))
            with pytest.raises(OSError, match="tidied"):
                quick.land(second, second.plan.rows[0])

        begun(home, job, source, at=overtake)
        assert table_rows(path) == [(n, "new" if n < 4 else "old") for n in range(16)]

    def test_what_was_staged_before_and_never_committed_is_removed(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        result = land(home, job, source, failpoint=once(STAGED, OSError("away")))
        assert (result.succeeded, result.failed) == (3, 1)
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))
        nothing_is_left(path)

    def test_another_home_may_go_on_and_knows_nothing_of_what_was_landed(
        self, home: Home, tmp_path: Path, clock: ManualClock, path: Path
    ) -> None:
        job = table_job(path)
        for note in ("first", "second"):
            Ingestion(home).backfill(job, days(0, 4), actor="me")
            land(home, job, Rows(orders(note)))
        with Home.open(tmp_path / "other", clock=clock.now) as other:
            Ingestion(other).start(job, owner="lost", ttl=TTL)
            clock.advance(2 * TTL)
            assert land(other, job, Rows(orders("third"))).rows == 16
        assert table_rows(path) == [(n, "third") for n in range(16)]


class TestWhatWasLandedAndNotRecorded:
    def test_a_cell_that_fails_after_its_commit_is_not_appended_again(self, home: Home, path: Path) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        assert land(home, job, source, failpoint=once(COMMITTED, OSError("full"))).failed == 1
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))
        nothing_is_left(path)

    def test_a_run_that_fails_whole_does_not_hide_what_was_landed_before(
        self, home: Home, clock: ManualClock, path: Path
    ) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        slow, zombie = lost(home, clock, job, source)
        source.before_write = lambda row: slow.land(zombie, zombie.plan.rows[0]) if len(source.asked) == 1 else None
        assert land(home, job, source, workers=1).failed == 4, "the zombie has made the table"
        source.before_write = lambda row: None
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))

    def test_what_was_landed_of_a_row_that_fails_is_not_appended_again(
        self, home: Home, clock: ManualClock, path: Path
    ) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        lost(home, clock, job, source, 1)
        source.fails = lambda row: OSError("away") if row.range.lo > FIRST else None
        for _ in range(2):
            assert land(home, gridded(job, "none"), source).failed == 1
        source.fails = lambda row: None
        assert land(home, gridded(job, "none"), source).is_whole
        assert numbers(path) == list(range(16))

    def test_what_was_landed_long_ago_is_still_found(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        lost(home, clock, job, source, 0)
        for _ in range(25):
            Ingestion(home).start(job, owner="away", ttl=TTL).end("failed")
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))

    @pytest.mark.parametrize("again", ["backfill", "edit"])
    @pytest.mark.parametrize("adopted", [False, True])
    def test_what_people_want_to_be_read_since_is_read(
        self, home: Home, clock: ManualClock, path: Path, again: str, adopted: bool
    ) -> None:
        job, source = table_job(path), Rows(orders("old"))
        lost(home, clock, job, source, 0)
        if adopted:
            lost(home, clock, job, source)
        if again == "backfill":
            Ingestion(home).backfill(job, days(0, 1), actor="me")
        else:
            Ingestion(home).edit("orders", days(0, 1), covered=False, actor="me")
        assert land(home, job, Rows(orders("new"))).is_whole
        assert table_rows(path) == [(n, "new") for n in range(16)]

    def test_what_was_taken_back_by_a_person_is_appended(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        lost(home, clock, job, source, 0)
        lost(home, clock, job, source)
        Ingestion(home).edit("orders", days(0, 1), covered=False, actor="me")
        DeltaTable(str(path)).delete("id < 4")
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))

    def test_what_people_do_since_appends_nothing_again(self, home: Home, clock: ManualClock, path: Path) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        lost(home, clock, job, source, 0)
        Ingestion(home).edit("orders", days(3, 4), covered=False, actor="me")
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))

    def test_what_a_run_has_recorded_is_not_found_again(self, home: Home, path: Path) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        source.fails = lambda row: OSError("away") if row.range.lo > FIRST else None
        assert land(home, job, source).failed == 3
        Ingestion(home).edit("orders", days(0, 1), covered=False, actor="me")
        DeltaTable(str(path)).delete()
        source.fails = lambda row: None
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))

    def test_only_what_was_not_landed_is_read_in_whatever_order_it_was(
        self, home: Home, clock: ManualClock, path: Path
    ) -> None:
        job, source = table_job(path, 6), Rows(orders(count=24))
        lost(home, clock, job, source, 3, 0, 4)
        source.asked.clear()
        assert land(home, gridded(job, "none"), source).rows == 12
        assert [row.range for row in source.asked] == [days(1, 3), days(5, 6)]
        noted = [(one.state, one.rows) for one in Ingestion(home).attempts("orders", 2)]
        assert noted == [("succeeded", 12), ("adopted", 4), ("adopted", 4)]
        assert numbers(path) == list(range(24))

    def test_what_one_unit_has_landed_is_read_for_the_other(self, home: Home, clock: ManualClock, path: Path) -> None:
        job = table_job(path, 1, units=["north", "south"])
        source = Rows([order(n, n / 8, shop=shop) for n, shop in enumerate(("north", "south") * 2)])
        lost(home, clock, job, source, 0)
        source.asked.clear()
        assert land(home, job, source).is_whole
        assert [row.unit.fields["shop"] for row in source.asked] == ["south"]
        assert numbers(path) == list(range(4))

    @pytest.mark.parametrize(
        ("run", "hours", "state", "is_known"),
        [
            (2, (0, 10), "succeeded", True),
            (2, (0, 40), "succeeded", True),
            (3, (0, 10), "adopted", True),
            (2, (0, 10), "failed", False),
            (1, (0, 10), "succeeded", False),
            (2, (1, 10), "succeeded", False),
            (2, (0, 9), "succeeded", False),
        ],
    )
    def test_a_cell_is_recorded_whole_by_its_own_run_or_a_later_one(
        self, home: Home, run: int, hours: tuple[int, int], state: str, is_known: bool
    ) -> None:
        noted = Ingestion(home).start(table_job(Path("t")), owner="here")
        noted.succeeded(noted.plan.rows[0])
        (attempt,) = Ingestion(home).attempts("orders", noted.number)
        attempt = replace(attempt, run=run, range=Range(*hours), state=state)
        cell = CommittedRange(2, attempt.unit, Range(0, 10), 1, "a")
        assert (unrecorded_ranges([cell], [attempt]) == []) is is_known
        assert unrecorded_ranges([replace(cell, unit=Unit.of({"shop": "x"}))], [attempt]) != []


class TestLostAnswers:
    @pytest.mark.parametrize("error", [TableFailed, TableConflict])
    @pytest.mark.parametrize("is_made", [False, True])
    def test_a_commit_whose_answer_is_lost_counts_if_it_was_made(
        self,
        home: Home,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: type[FloodmarkError],
        is_made: bool,
    ) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        land(home, table_job(path, 1, mode="append"), source)
        executor, run = begun(home, job, source)
        lose_answer(monkeypatch, error, is_made=is_made)
        if is_made or error is TableConflict:
            executor.land(run, run.plan.rows[0])
        else:
            with pytest.raises(TableFailed):
                executor.land(run, run.plan.rows[0])
            executor.land(run, run.plan.rows[0])
        executor.land(run, run.plan.rows[1])
        assert numbers(path) == list(range(12))

    def test_another_cell_is_not_taken_for_one_whose_answer_is_lost(
        self, home: Home, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, source = table_job(path, mode="append"), Rows(orders())
        land(home, table_job(path, 1, mode="append"), source)
        executor, run = begun(home, job, source)
        lose_answer(monkeypatch, TableFailed, is_made=True, blind=True)
        with pytest.raises(TableFailed):
            executor.land(run, run.plan.rows[0])
        with pytest.raises(LandingOvertaken):
            executor.land(run, run.plan.rows[1])
        for row in run.plan.rows:
            run.failed(row, "away")
        run.end()
        assert land(home, job, source).is_whole
        assert numbers(path) == list(range(16))


def claim_of(home: Home, path: Path, run: Run) -> TableClaim:
    table = DeltaCommits.find(path, app_id(run.job.name))
    assert table is not None
    return TableClaim(table, run, home.location)
