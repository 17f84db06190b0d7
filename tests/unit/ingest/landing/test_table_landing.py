"""Cells in tables of Delta Lake: what is replaced, what stays, and what becomes of it when a process dies."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from floodmark.control import Home
from floodmark.errors import LandingOvertaken, LeaseLost
from floodmark.ingest import Ingestion
from floodmark.testing import ManualClock
from support.ingest.table_landings import DAY, FIRST, Rows, days, land, landing_of, order, table_job, table_rows


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home.open(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_rows_of_each_cell_are_landed_and_read_by_others(home: Home, path: Path) -> None:
    source = Rows([order(n, n / 4, f"n{n}") for n in range(16)])
    result = land(home, table_job(path), source)
    assert (result.succeeded, result.failed, result.rows) == (4, 0, 16)
    wanted = [(n, f"n{n}") for n in range(16)]
    assert table_rows(path) == wanted
    found: Any = duckdb.read_parquet(DeltaTable(str(path)).file_uris())
    assert found.order("id").project("id, note").fetchall() == wanted


def test_a_cell_that_is_read_again_takes_the_place_of_what_it_was(home: Home, path: Path) -> None:
    job = table_job(path)
    source = Rows([order(n, n / 4, "old") for n in range(16)])
    land(home, job, source)
    source.rows = [order(n, n / 4, "new") for n in range(0, 16, 2)]
    Ingestion(home).backfill(job, days(1, 3), actor="me")
    assert land(home, job, source).succeeded == 2
    kept = [(n, "old") for n in (0, 1, 2, 3, 12, 13, 14, 15)]
    assert table_rows(path) == sorted([*kept, *((n, "new") for n in (4, 6, 8, 10))])
    assert source.kept == [], "files that are replaced whole are not written anew"


def test_what_lies_outside_of_the_range_stays_though_it_is_in_the_same_file(home: Home, path: Path) -> None:
    whole = table_job(path)
    whole = replace(whole, time=replace(whole.time, grid=type(whole.time.grid).plain("none")))
    source = Rows([order(n, n / 4, "old") for n in range(16)])
    assert land(home, whole, source).succeeded == 1
    job = table_job(path)
    Ingestion(home).backfill(job, days(1, 2), actor="me")
    source.rows = [order(4, 1, "new"), order(5, 2 - 1 / DAY, "last")]
    assert land(home, job, source).succeeded == 1
    kept = [(n, "old") for n in range(16) if n not in (4, 5, 6, 7)]
    assert table_rows(path) == sorted([*kept, (4, "new"), (5, "last")])
    assert source.kept == [1]


def test_an_empty_result_clears_the_range(home: Home, path: Path) -> None:
    job = table_job(path)
    source = Rows([order(n, n / 4) for n in range(16)])
    land(home, job, source)
    source.rows = []
    Ingestion(home).backfill(job, days(0, 3), actor="me")
    land(home, job, source)
    assert [number for number, _ in table_rows(path)] == [12, 13, 14, 15]


def test_a_source_without_rows_makes_an_empty_table(home: Home, path: Path) -> None:
    assert land(home, table_job(path), Rows()).succeeded == 4
    assert (table_rows(path), DeltaTable(str(path)).schema().to_arrow().names) == ([], list(Rows().columns))


def test_units_replace_their_own_rows_only(home: Home, path: Path) -> None:
    job = table_job(path, units=["north", "south"])
    columns = {**Rows().columns, "shop": pa.string()}
    source = Rows([order(n, n / 4, "old", shop=("north", "south")[n % 2]) for n in range(16)], columns)
    assert land(home, job, source).succeeded == 8
    source.rows = [order(1, 0.25, "new", shop="south")]
    Ingestion(home).backfill(job, days(0, 4), units=['{"shop":"south"}'], actor="me")
    land(home, job, source)
    assert table_rows(path) == sorted([*((n, "old") for n in range(0, 16, 2)), (1, "new")])
    assert source.kept == [], "files of other units are not touched"


def test_columns_of_the_unit_are_added_to_rows_that_lack_them(home: Home, path: Path) -> None:
    job = table_job(path, units=["north", "south"])
    source = Rows([order(n, n / 4, shop=("north", "south")[n % 2]) for n in range(8)])
    land(home, job, source)
    found = table_rows(path, "SELECT id, shop FROM t ORDER BY id")
    assert found == [(n, ("north", "south")[n % 2]) for n in range(8)]
    Ingestion(home).backfill(job, days(0, 4), actor="me")
    land(home, job, source)
    assert table_rows(path, "SELECT id, shop FROM t ORDER BY id") == found


@pytest.mark.parametrize("column", ["at", "shop"])
def test_rows_that_nobody_would_ever_replace_fail_their_cell(home: Home, path: Path, column: str) -> None:
    job = table_job(path, units=["north"])
    source = Rows([order(1, 0.5, shop="north")], {**Rows().columns, "shop": pa.string()})
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "id": 1,
                "at": FIRST + (9 * DAY if column == "at" else 5),
                "note": "",
                "shop": "x" if column == "shop" else "north",
            }
        ],
        pa.schema(list(source.columns.items())),
    )
    source.read = lambda row: iter([batch])  # type: ignore[method-assign]
    result = land(home, job, source)
    assert result.succeeded == 0
    assert all("[out-of-scope]" in error for error in result.errors)
    assert not (path / "_delta_log").exists()


def test_partitions_are_kept_apart_and_replaced(home: Home, path: Path) -> None:
    job = table_job(path, partition_by=("note",))
    source = Rows([order(n, n / 4, f"a: {n % 2}/é") for n in range(16)])
    land(home, job, source)
    assert DeltaTable(str(path)).metadata().partition_columns == ["note"]
    Ingestion(home).backfill(job, days(0, 4), actor="me")
    source.rows = [order(n, n / 4, f"a: {n % 3}/é") for n in range(16)]
    land(home, job, source)
    assert table_rows(path) == [(n, f"a: {n % 3}/é") for n in range(16)]


def test_appended_rows_stay(home: Home, path: Path) -> None:
    job = table_job(path, mode="append")
    source = Rows([order(n, n / 4) for n in range(8)])
    land(home, job, source)
    assert len(table_rows(path)) == 8


class TestDrift:
    def changed(self, home: Home, path: Path, drift: str, columns: dict[str, Any], **more: Any) -> Any:
        source = Rows([order(1, 0.5)])
        job = table_job(path, drift=drift)
        land(home, job, source)
        source.columns = columns
        source.rows = [order(1, 0.5, "x", **more)]
        Ingestion(home).backfill(job, days(0, 1), actor="me")
        return land(home, job, source)

    def test_a_table_gets_new_columns(self, home: Home, path: Path) -> None:
        assert self.changed(home, path, "evolve", {**Rows().columns, "size": pa.int32()}, size=7).is_whole
        assert table_rows(path, "SELECT id, note, size FROM t") == [(1, "x", 7)]

    def test_a_frozen_table_does_not(self, home: Home, path: Path) -> None:
        result = self.changed(home, path, "freeze", {**Rows().columns, "size": pa.int32()}, size=7)
        assert "size" in result.errors[0]
        assert table_rows(path) == [(1, "")]

    def test_what_does_not_fit_is_rescued(self, home: Home, path: Path) -> None:
        assert self.changed(home, path, "rescue", {**Rows().columns, "size": pa.int32()}, size=7).is_whole
        assert table_rows(path, "SELECT id, _rescued FROM t") == [(1, '{"size":7}')]

    def test_what_was_rescued_stays_when_its_file_is_written_anew(self, home: Home, path: Path) -> None:
        self.changed(home, path, "rescue", {**Rows().columns, "size": pa.int32()}, size=7)
        half = table_job(path, drift="rescue")
        half = replace(half, time=replace(half.time, grid=type(half.time.grid).plain("hourly")))
        Ingestion(home).backfill(half, days(0.5, 1), actor="me")
        source = Rows([order(2, 0.75)])
        Ingestion(home).edit("orders", days(0, 0.5), covered=True, actor="me")
        land(home, half, source)
        assert (2, None) in table_rows(path, "SELECT id, _rescued FROM t")


def test_a_table_is_of_one_job(home: Home, path: Path) -> None:
    source = Rows([order(1, 0.5)])
    land(home, table_job(path), source)
    result = None
    with pytest.raises(Exception, match=r"The job 'orders' lands in the table.*\[target-taken\]"):
        result = land(home, table_job(path, name="other"), source)
    assert result is None


def test_a_table_that_others_made_is_taken_if_it_fits(home: Home, path: Path) -> None:
    DeltaTable.create(str(path), pa.schema(list(Rows().columns.items())))
    assert land(home, table_job(path), Rows([order(1, 0.5)])).is_whole
    assert table_rows(path) == [(1, "")]


def test_a_table_with_other_columns_fails_each_cell_and_stays(home: Home, path: Path) -> None:
    DeltaTable.create(str(path), pa.schema([("id", pa.string())]))
    result = land(home, table_job(path), Rows([order(1, 0.5)]))
    assert result.failed == 1, "cells without rows have nothing that does not fit"
    assert "id is string in the table and long in the rows" in result.errors[0]


def test_a_row_that_fails_fails_alone(home: Home, path: Path) -> None:
    source = Rows([order(n, n / 4) for n in range(16)])
    source.fails = lambda row: ValueError("away") if row.range.lo == FIRST + DAY else None
    job = table_job(path)
    result = land(home, job, source)
    assert (result.succeeded, result.failed) == (3, 1)
    assert [number for number, _ in table_rows(path)] == [n for n in range(16) if n // 4 != 1]
    source.fails = lambda row: None
    assert land(home, job, source).succeeded == 1
    assert [number for number, _ in table_rows(path)] == list(range(16))


def test_nothing_is_left_of_attempts(home: Home, path: Path) -> None:
    job = table_job(path)
    land(home, job, Rows([order(n, n / 4) for n in range(16)]))
    used = {Path(uri) for uri in DeltaTable(str(path)).file_uris()}
    assert set(path.rglob("*.parquet")) == used
    assert not list((path / "_floodmark").rglob("*/*"))


def test_an_overtaken_run_lands_nothing_more(tmp_path: Path, path: Path) -> None:
    clock = ManualClock(FIRST + 40 * DAY)
    job = table_job(path)
    with Home.open(tmp_path / "home", clock=clock.now) as home:
        jobs = Ingestion(home)
        source = Rows([order(n, n / 4, "first") for n in range(16)])
        zombie = jobs.start(job, owner="zombie", ttl=1_000_000)
        executor = landing_of(home, job, source)
        executor.prepare(zombie)
        executor.land(zombie, zombie.plan.rows[0])
        clock.advance(2_000_000)
        source.rows = [order(n, n / 4, "second") for n in range(16)]
        assert land(home, job, source).succeeded == 4
        source.rows = [order(n, n / 4, "zombie") for n in range(16)]
        for row in zombie.plan.rows[1:]:
            with pytest.raises(LandingOvertaken):
                executor.land(zombie, row)
        with pytest.raises(LeaseLost):
            zombie.renew()
        # What the zombie landed and could not record was adopted, and not read again.
        assert table_rows(path) == [(n, "first" if n < 4 else "second") for n in range(16)]
        assert sorted(row.range.lo for row in source.asked) == [FIRST + n * DAY for n in (0, 1, 1, 2, 2, 3, 3)]


def test_two_that_make_the_table_at_once_do_not_land_twice(tmp_path: Path, path: Path) -> None:
    clock = ManualClock(FIRST + 40 * DAY)
    job = table_job(path, mode="append")
    with Home.open(tmp_path / "home", clock=clock.now) as home:
        jobs = Ingestion(home)
        source = Rows([order(n, n / 4) for n in range(16)])
        zombie = jobs.start(job, owner="zombie", ttl=1_000_000)
        slow = landing_of(home, job, source)
        slow.prepare(zombie)
        clock.advance(2_000_000)
        second = jobs.start(job, owner="second", ttl=1_000_000)
        quick = landing_of(home, job, source)
        quick.prepare(second)
        slow.land(zombie, zombie.plan.rows[0])
        with pytest.raises(LandingOvertaken):
            quick.land(second, second.plan.rows[0])
        second.end("failed")
        assert land(home, job, source).is_whole
        assert [number for number, _ in table_rows(path)] == list(range(16))


def test_a_changed_grid_appends_only_what_was_not_landed(tmp_path: Path, path: Path) -> None:
    clock = ManualClock(FIRST + 40 * DAY)
    job = table_job(path, mode="append")
    with Home.open(tmp_path / "home", clock=clock.now) as home:
        source = Rows([order(n, n / 4) for n in range(16)])
        lost = Ingestion(home).start(job, owner="lost", ttl=1_000_000)
        executor = landing_of(home, job, source)
        executor.prepare(lost)
        for row in lost.plan.rows[1:3]:
            executor.land(lost, row)
        clock.advance(2_000_000)
        whole = replace(job, time=replace(job.time, grid=type(job.time.grid).plain("none")))
        assert land(home, whole, source).is_whole
        assert [number for number, _ in table_rows(path)] == list(range(16))
