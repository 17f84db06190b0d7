"""What keeps the rows of a table from being lost or doubled, each rule with the order of events that breaks it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from floodmark.control import Home
from floodmark.delta import DeltaCommits
from floodmark.errors import FloodmarkError, TableConflict, TableFailed
from floodmark.ingest import Ingestion, PlannedRange, RestSource, SqlSource
from floodmark.ingest.landing.parquet import write_rows
from floodmark.ingest.landing.table import BEGUN, COMMITTED, STAGED, TableLanding
from floodmark.ingest.landing.tasks import Destination, LiveFile, MergeRequest, MergeResult, Scope, StagedRows
from floodmark.testing import ManualClock
from support.ingest.table_landings import (
    COLUMNS,
    DAY,
    FIRST,
    LocalExecutor,
    Rows,
    begun,
    days,
    gridded,
    land,
    lose_answer,
    nothing_is_left,
    numbers,
    order,
    orders,
    table_job,
    table_rows,
)

SIZED = {**COLUMNS, "size": pa.int32()}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(FIRST + 40 * DAY)


@pytest.fixture
def home(sqlite_home: Home) -> Home:
    return sqlite_home


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


class TestWhatOthersChange:
    def test_columns_that_a_table_gets_meanwhile_are_kept(self, home: Home, path: Path) -> None:
        job, source = table_job(path, 1), Rows(orders("old", 4))
        land(home, job, source)
        Ingestion(home).backfill(gridded(job, "hourly"), days(0.5, 0.5 + 1 / 24), actor="me")
        source.asked.clear()
        keep = source.keep

        def changed(files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
            if not source.kept:
                rewrite(path, more=pa.array(["more"] * 4))
            return keep(files, scope, to)

        source.keep = changed  # type: ignore[method-assign]
        assert land(home, gridded(job, "hourly"), source).is_whole
        assert table_rows(path, "SELECT id, more FROM t ORDER BY id") == [
            (n, None if n == 2 else "more") for n in range(4)
        ]
        assert (source.kept, len(source.asked)) == ([1, 1], 1), "the source is not asked again"
        nothing_is_left(path)

    def test_rows_are_written_again_if_a_table_has_other_columns_meanwhile(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows(orders("7"))
        land(home, table_job(path, 1), source)
        executor, run = begun(home, job, source)
        source.asked.clear()

        def change(row: PlannedRange) -> None:
            source.before_write = lambda row: None
            rewrite(path, id=pa.array(map(str, range(4))))

        source.before_write = change
        with pytest.raises(FloodmarkError, match="id is string in the table and long in the rows"):
            executor.land(run, run.plan.rows[0])
        assert len(source.asked) == 2
        assert len(table_rows(path)) == 4

    def test_a_cell_fits_what_another_cell_has_brought_meanwhile(self, home: Home, path: Path) -> None:
        job = table_job(path, drift="evolve")
        source = Rows([order(n, n / 4, size=n) for n in range(16)])
        land(home, table_job(path, 1, drift="evolve"), source)
        executor, run = begun(home, job, source)
        source.columns = SIZED

        def other_cell(row: PlannedRange) -> None:
            source.before_write = lambda row: None
            source.columns = {**COLUMNS, "size": pa.int64()}
            executor.land(run, run.plan.rows[1])
            source.columns = SIZED

        source.before_write = other_cell
        executor.land(run, run.plan.rows[0])
        sizes = [(n, n if n > 3 else None) for n in range(12)]
        assert table_rows(path, "SELECT id, size FROM t ORDER BY id") == sizes
        nothing_is_left(path)

    def test_a_table_that_another_job_makes_meanwhile_is_its(self, home: Home, path: Path) -> None:
        source, others = Rows(orders("mine")), Rows(orders("theirs", 4))

        def overtake(row: PlannedRange) -> None:
            if not (path / "_delta_log").exists():
                land(home, table_job(path, 1, name="other"), others)

        source.before_write = overtake
        result = land(home, table_job(path), source, workers=1)
        assert (result.succeeded, "[target-taken]" in result.errors[0]) == (0, True)
        assert table_rows(path) == [(n, "theirs") for n in range(4)]

    def test_a_table_that_is_made_meanwhile_gets_no_columns_if_it_is_frozen(self, home: Home, path: Path) -> None:
        source, columns = Rows(orders()), ["id", "at"]

        def make(row: PlannedRange) -> None:
            if not (path / "_delta_log").exists():
                DeltaTable.create(str(path), pa.schema([(name, COLUMNS[name]) for name in columns]))

        source.before_write = make
        assert land(home, table_job(path), source, workers=1).succeeded == 0
        assert pa.schema(DeltaTable(str(path)).schema()).names == columns

    def test_a_table_that_is_always_changed_by_others_fails_the_cell(
        self, home: Home, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, table_job(path, 1), source)
        executor, run = begun(home, job, source)
        for _ in range(25):
            lose_answer(monkeypatch, TableConflict, is_made=False)
        with pytest.raises(TableFailed, match=r"Other writers changed the table .* 5 times"):
            executor.land(run, run.plan.rows[0])
        assert numbers(path) == list(range(4))
        nothing_is_left(path)


class TestWhatIsReplaced:
    def test_a_file_around_the_range_with_no_row_in_it_is_left_alone(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows([order(0, 0.5), order(3, 3.5)])
        land(home, gridded(job, "none"), source)
        files = DeltaTable(str(path)).file_uris()
        Ingestion(home).backfill(job, days(1, 3), actor="me")
        source.rows.append(order(1, 1.5))
        assert land(home, job, source).is_whole
        assert (numbers(path), source.kept) == ([0, 1, 3], [])
        assert set(files) < set(DeltaTable(str(path)).file_uris())

    def test_files_elsewhere_are_not_even_read(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, job, source)
        Ingestion(home).backfill(job, days(0, 1), actor="me")
        for file in DeltaTable(str(path)).file_uris(partition_filters=None):
            if "floodmark-" in file and not holds_first_day(path, file):
                Path(file).write_bytes(b"")
        assert land(home, job, source).is_whole

    def test_nothing_is_left_of_a_file_that_was_written_anew(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        land(home, gridded(job, "none"), source)
        Ingestion(home).backfill(job, days(1, 2), actor="me")
        assert land(home, job, source).is_whole
        assert (numbers(path), source.kept) == (list(range(16)), [1])
        nothing_is_left(path)

    @pytest.mark.parametrize("column", ["at", "shop"])
    def test_a_table_without_the_columns_of_a_cell_has_nothing_of_it(self, home: Home, path: Path, column: str) -> None:
        there = {"id": pa.array([1], pa.int64()), "at": pa.array([FIRST], COLUMNS["at"]), "shop": pa.array(["north"])}
        del there[column]
        write_deltalake(str(path), pa.table(there))
        source = Rows()
        source.read = lambda row: iter(())  # type: ignore[method-assign]
        assert land(home, table_job(path, units=["north"]), source).is_whole
        assert table_rows(path, "SELECT id FROM t") == [(1,)]

    @pytest.mark.parametrize("staged", [StagedRows(), StagedRows((), pa.schema([]))])
    def test_no_table_is_made_of_nothing(self, home: Home, path: Path, staged: StagedRows) -> None:
        source = Rows()
        source.extract = lambda row, to: staged  # type: ignore[method-assign]
        assert land(home, table_job(path), source).is_whole
        assert DeltaCommits.find(path, "app") is None
        assert not list(path.rglob("*.parquet"))

    def test_rows_outside_of_the_range_may_be_appended(self, home: Home, path: Path) -> None:
        source = Rows()
        batch = pa.RecordBatch.from_pylist([order(1, 9)], pa.schema(list(COLUMNS.items())))
        source.read = lambda row: iter([batch])  # type: ignore[method-assign]
        assert land(home, table_job(path, 1, mode="append"), source).is_whole
        assert numbers(path) == [1]

    def test_files_that_a_commit_does_not_name_are_removed(self, home: Home, path: Path) -> None:
        source = Rows(orders())
        extract = source.extract

        def twice(row: PlannedRange, to: Destination) -> StagedRows:
            write_rows(source.read(row), to, "in-vain")
            return extract(row, to)

        source.extract = twice  # type: ignore[method-assign]
        assert land(home, table_job(path), source).is_whole
        assert numbers(path) == list(range(16))
        nothing_is_left(path)

    def test_nothing_is_left_of_a_cell_that_could_not_be_read_or_had_no_rows(self, home: Home, path: Path) -> None:
        source = Rows(orders("", 8))

        def fail(row: PlannedRange) -> None:
            if row.range.lo == FIRST + DAY:
                raise OSError("away")

        source.before_write = fail
        assert land(home, table_job(path), source).failed == 1
        nothing_is_left(path)

    def test_a_table_that_is_partitioned_otherwise_is_refused(self, home: Home, path: Path) -> None:
        land(home, table_job(path, partition_by=("note",)), Rows(orders("a", 4)))
        Ingestion(home).backfill(table_job(path), days(0, 1), actor="me")
        with pytest.raises(TableFailed, match="is partitioned by note"):
            land(home, table_job(path, partition_by=("id",)), Rows(orders("b", 4)))
        assert land(home, table_job(path), Rows(orders("b", 4))).is_whole, "what is not said is as it is"
        assert table_rows(path) == [(n, "b") for n in range(4)]

    def test_columns_that_come_within_a_run_do_not_fit_a_frozen_table(self, home: Home, path: Path) -> None:
        source = Rows(orders())
        source.before_write = lambda row: setattr(source, "columns", SIZED)
        result = land(home, table_job(path), source, workers=1)
        assert (result.succeeded, result.failed, len(source.asked)) == (1, 3, 4)
        assert "size" in result.errors[0]

    def test_columns_that_a_table_gets_may_be_null(self, home: Home, path: Path) -> None:
        source = Rows(orders("", 4))
        land(home, table_job(path, 1, drift="evolve"), source)
        schema = pa.schema([*COLUMNS.items(), pa.field("size", pa.int32(), nullable=False)])
        source.extract = lambda row, to: StagedRows((), schema)  # type: ignore[method-assign]
        assert land(home, table_job(path, drift="evolve"), source).is_whole
        assert table_rows(path, "SELECT id, size FROM t ORDER BY id") == [(n, None) for n in range(4)]
        assert pa.schema(DeltaTable(str(path)).schema()).field("size").nullable


def test_rows_that_come_late_are_counted_by_the_days_they_were_late(home: Home, clock: ManualClock, path: Path) -> None:
    job = table_job(path)
    job = replace(job, time=replace(job.time, grace_days=3))
    source = Rows(orders())
    land(home, gridded(job, "none"), source)
    assert Ingestion(home).lateness("orders") == {}, "what is read for the first time is not late"
    source.rows = [*source.rows[:-5], order(15, 3.75), order(16, 3.5), *(order(n, 3.1) for n in range(12, 15))]
    assert land(home, job, source).succeeded == 3
    assert Ingestion(home).lateness("orders") == {37: 1}
    assert sorted(numbers(path)) == sorted(one["id"] for one in source.rows)


class TestThreads:
    def test_the_first_cell_makes_the_table_alone(self, home: Home, path: Path) -> None:
        source = Rows(orders())
        seen: list[int] = []

        def slow(row: PlannedRange) -> None:
            if not seen:
                sleep(0.3)
                seen.append(len(source.asked))

        source.before_write = slow
        assert land(home, table_job(path), source, workers=3).is_whole
        assert seen == [1]

    def test_cells_of_a_table_that_is_there_are_read_at_once(self, home: Home, path: Path) -> None:
        source, met = Rows(orders()), Barrier(3)
        land(home, table_job(path, 1), source)
        source.before_write = lambda row: (met.wait(20), None)[1]
        assert land(home, table_job(path), source, workers=3).is_whole

    def test_cells_are_committed_one_at_a_time(self, home: Home, path: Path) -> None:
        job, source = table_job(path), Rows(orders())
        places: list[str] = []
        land(home, gridded(job, "none"), source)
        Ingestion(home).backfill(job, days(0, 2), actor="me")
        executor, run = begun(home, job, source, at=places.append)
        other = Thread(target=executor.land, args=(run, run.plan.rows[1]))
        keep = source.keep

        def keep_slowly(files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
            if not source.kept:
                other.start()
                source.kept.append(0)
                while places.count(STAGED) < 2:
                    sleep(0.01)
                sleep(0.3)
                assert source.kept == [0]
            return keep(files, scope, to)

        source.keep = keep_slowly  # type: ignore[method-assign]
        executor.land(run, run.plan.rows[0])
        other.join()
        assert (numbers(path), source.kept) == (list(range(16)), [0, 1, 1])
        assert places == [BEGUN, STAGED, STAGED, COMMITTED, COMMITTED]


class Merging(Rows):
    """Tasks that merge here."""

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        self.merges = [*getattr(self, "merges", []), merge]
        assert to.schema is not None
        newest: dict[Any, Any] = {}
        for file in (*merge.live, *merge.new):
            for row in (row for batch in file.batches(to.schema) for row in batch.to_pylist()):
                key = tuple(row[name] for name in merge.keys)
                if key not in newest or row[merge.newest_by] >= newest[key][merge.newest_by]:
                    newest[key] = row
        batch = pa.RecordBatch.from_pylist(list(newest.values()), to.schema)
        return MergeResult(write_rows(iter([batch]), to, "merged"), tuple(file.path for file in merge.live))


def test_rows_are_merged_with_the_files_that_may_have_their_keys(home: Home, path: Path) -> None:
    job = table_job(path, mode="merge", keys=("id",))
    source = Merging(orders("old"))
    assert land(home, job, source, workers=1).rows == 16
    assert [len(merge.live) for merge in source.merges] == [0, 0, 0, 0]
    source.rows, source.merges = [order(5, 2.5, "new"), order(20, 2.6, "more")], []
    Ingestion(home).backfill(job, days(2, 4), actor="me")
    assert land(home, job, source).rows == 2, "rows that were read, and not those that were written"
    (merge,) = source.merges
    assert ([file.rows for file in merge.live], merge.newest_by) == ([4, 4, 4], "at")
    assert table_rows(path) == [*((n, "new" if n == 5 else "old") for n in range(16)), (20, "more")]
    nothing_is_left(path)


def test_the_newest_row_is_told_by_the_column_that_is_named(home: Home, path: Path) -> None:
    job = table_job(path, mode="merge", keys=("id",), newest_by="note")
    source = Merging([order(1, 0.5, "z"), order(1, 1.5, "a")])
    assert land(home, job, source, workers=1).is_whole
    assert table_rows(path) == [(1, "z")]


@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_what_others_add_just_before_the_commit_is_replaced_too(
    home: Home, path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    job, source = table_job(path, 1, mode=mode, keys=("id",) if mode == "merge" else ()), Merging(orders("old", 4))
    land(home, job, source, workers=1)
    source.rows = [order(1, 0.5, "new")]
    Ingestion(home).backfill(job, days(0, 1), actor="me")
    commit = DeltaCommits.commit
    added: list[bool] = []

    def overtaken(table: DeltaCommits, files: Any, *given: Any, **more: Any) -> None:
        if files and not added:
            added.append(True)
            rows = {
                "id": pa.array([1], pa.int64()),
                "at": pa.array([FIRST], COLUMNS["at"]),
                "note": pa.array(["other"]),
            }
            write_deltalake(str(path), pa.table(rows), mode="append")
        commit(table, files, *given, **more)

    monkeypatch.setattr(DeltaCommits, "commit", overtaken)
    assert land(home, job, source, workers=1).is_whole
    assert added
    assert [note for number, note in table_rows(path) if number == 1] == ["new"]
    nothing_is_left(path)


def test_rows_of_others_need_no_keys_to_stay(home: Home, path: Path) -> None:
    there = {"id": pa.array([None], pa.int64()), "at": pa.array([FIRST], COLUMNS["at"]), "note": pa.array(["other"])}
    write_deltalake(str(path), pa.table(there))
    source = Merging(orders("mine", 1))
    assert land(home, table_job(path, 1, mode="merge", keys=("id",)), source).is_whole
    assert table_rows(path) == [(0, "mine"), (None, "other")]


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ({}, {}, ("at", None, None)),
        ({}, {"range_column": "day"}, ("day", None, None)),
        ({"watermark_type": "date"}, {}, ("at", None, None)),
        ({"watermark_type": "epoch-millis"}, {}, ("at", "epoch-millis", None)),
        ({"watermark_type": "text", "pattern": "%Y%m%d"}, {}, ("at", None, "%Y%m%d")),
        ({"watermark_type": "text", "pattern": "%Y%m%d"}, {"range_column": "day"}, ("day", None, None)),
        ({"watermark_type": "text", "pattern": "%Y%m%d"}, {"range_column": "at"}, ("at", None, "%Y%m%d")),
        (
            RestSource(url="http://127.0.0.1/{{range.from}}", time_format="epoch-seconds"),
            {"range_column": "at"},
            ("at", "epoch-seconds", None),
        ),
    ],
)
def test_a_cell_stands_for_what_its_source_and_target_say(
    home: Home, path: Path, source: Any, target: dict[str, Any], told: tuple[Any, ...]
) -> None:
    job = table_job(path, 1, units=["north"], **target)
    sql: dict[str, Any] = {"url": "sqlite:///none", "table": "orders", "watermark": "at"}
    job = replace(job, source=SqlSource(**sql, **source) if isinstance(source, dict) else source)
    asked: list[Destination] = []

    class Asked(Rows):
        def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
            asked.append(to)
            return StagedRows()

    landing = TableLanding(home, job, Asked(), unit_columns={"shop": "store"}, zone="Asia/Tokyo")
    run = Ingestion(home).start(job, owner="here")
    LocalExecutor(landing).land(run, run.plan.rows[0])
    (to,) = asked
    assert to.scope == Scope(told[0], days(0, 1), "Asia/Tokyo", {"store": "north"}, *told[1:])
    assert to.constants == {"store": "north"}


def rewrite(path: Path, **columns: Any) -> None:
    """Put other columns into a table of four rows, as somebody else would."""
    rows = orders("old", 4)
    there = {name: pa.array([one[name] for one in rows], kind) for name, kind in COLUMNS.items()}
    write_deltalake(str(path), pa.table({**there, **columns}), mode="overwrite", schema_mode="overwrite")


def holds_first_day(path: Path, file: str) -> bool:
    known = DeltaCommits.open(path, "app").files().to_pylist()
    return any(one["min.id"] == 0 and file.endswith(one["path"]) for one in known)
