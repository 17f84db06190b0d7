"""Rows become files of a table: whole or not at all, in their partitions, with what a commit says of them."""

import errno
import json
import os
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema

from floodmark.delta import DeltaCommits
from floodmark.delta.staging import file_statistics
from floodmark.errors import TableFailed, TableUnfit
from floodmark.ingest.landing import parquet as _parquet
from floodmark.ingest.landing.column_types import union_schema
from floodmark.ingest.landing.fitting import RowFitter
from floodmark.ingest.landing.parquet import check_partitions, partition_directory, split_by_partition, write_parquet
from floodmark.ingest.landing.tasks import StagedRows

START = datetime(2026, 1, 1, tzinfo=UTC)


def written(table: Path, rows: Any, fitting: RowFitter | None = None, **options: Any) -> StagedRows:
    batches = rows.to_batches(max_chunksize=options.pop("chunk", None)) if isinstance(rows, pa.Table) else rows
    given: dict[str, Any] = {"rows_a_file": 1_000, "name": "part"} | options
    return write_parquet(batches, table / "floodmark-a1", fitting or RowFitter(None), table=table, **given)


def committed(table: Path, staged: StagedRows, partition_by: tuple[str, ...] = ()) -> Any:
    assert staged.schema is not None
    schema = Schema.from_arrow(staged.schema).to_json()
    DeltaCommits.open(table, "app", schema, partition_by=partition_by).commit(staged.files, 1, {})
    return pa.table(QueryBuilder().register("t", DeltaTable(str(table))).execute("SELECT * FROM t").read_all())


def plain(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=repr)


def found(table: Path) -> list[str]:
    return sorted(path.relative_to(table).as_posix() for path in table.rglob("*") if path.is_file())


def numbers(count: int) -> Any:
    return pa.table({"n": pa.array(range(count), pa.int64())})


def everything() -> Any:
    return pa.table(
        {
            "b": [True, None, False],
            "i8": pa.array([1, None, -128], pa.int8()),
            "i16": pa.array([1, None, -(2**15)], pa.int16()),
            "i32": pa.array([1, None, -(2**31)], pa.int32()),
            "i64": pa.array([1, None, -(2**63)], pa.int64()),
            "f32": pa.array([1.5, None, -0.0], pa.float32()),
            "f64": pa.array([0.1, None, 1e300], pa.float64()),
            "dec": pa.array([1, None, 3], pa.int64()).cast(pa.decimal128(38, 10)),
            "text": ["é", None, ""],
            "bin": [b"\xff\x00", None, b""],
            "day": pa.array([date(2026, 1, 1), None, date(1, 1, 1)]),
            "at": pa.array([START, None, START - timedelta(microseconds=1)], pa.timestamp("us", "UTC")),
            "local": pa.array([1, None, -1], pa.timestamp("us")),
            "list": [["a", None], None, []],
            "struct": [{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}],
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )


def test_every_type_comes_back_from_the_table_and_from_the_file(tmp_path: Path) -> None:
    rows = everything()
    staged = written(tmp_path, rows)
    assert plain(committed(tmp_path, staged)) == plain(rows)
    file = str(tmp_path / staged.files[0].path)
    assert plain(pq.read_table(file)) == plain(rows)
    assert plain(duckdb.read_parquet(file).to_arrow_table()) == plain(rows)


def test_what_is_said_of_a_file_is_what_is_in_it(tmp_path: Path) -> None:
    staged = written(tmp_path, numbers(2_500), chunk=300)
    assert [file.path for file in staged.files] == [f"floodmark-a1/part-0000{n}.parquet" for n in range(3)]
    assert [file.rows for file in staged.files] == [1_000, 1_000, 500]
    for file in staged.files:
        path = tmp_path / file.path
        status = path.stat()
        assert (file.size, file.modified) == (status.st_size, status.st_mtime_ns // 1_000_000)
        assert json.loads(file.stats) == json.loads(file_statistics(pq.read_metadata(path)))
        assert file.partition == {}
    assert json.loads(staged.files[2].stats)["minValues"] == {"n": 2_000}
    assert found(tmp_path) == [file.path for file in staged.files]
    assert pickle.loads(pickle.dumps(staged)) == staged


@pytest.mark.parametrize("rows", [0, 1, 999, 1_000, 1_001, 2_000])
@pytest.mark.parametrize("chunk", [1_000, 7, 1_500])
def test_no_row_is_lost_or_doubled_where_files_end(tmp_path: Path, rows: int, chunk: int) -> None:
    staged = written(tmp_path, numbers(rows), chunk=chunk)
    assert len(staged.files) == -(-rows // 1_000)
    back = [n for file in staged.files for n in pq.read_table(tmp_path / file.path)["n"].to_pylist()]
    assert back == list(range(rows))


def test_rows_are_written_in_large_groups_whatever_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parquet, "_GROUP_ROWS", 100)
    staged = written(tmp_path, numbers(250), chunk=10)
    metadata = pq.read_metadata(tmp_path / staged.files[0].path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [100, 100, 50]


def test_groups_of_wide_rows_are_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parquet, "_GROUP_BYTES", 10_000)
    staged = written(tmp_path, [pa.record_batch({"text": ["x" * 1_000] * 50})])
    assert pq.read_metadata(tmp_path / staged.files[0].path).num_row_groups >= 5


def test_values_that_repeat_get_a_dictionary_and_numbers_that_do_not_are_differences(tmp_path: Path) -> None:
    rows = pa.table(
        {"n": range(1_000), "same": ["x"] * 1_000, "text": [str(n) for n in range(1_000)], "l": [["x"]] * 1_000}
    )
    metadata = pq.read_metadata(tmp_path / written(tmp_path, rows).files[0].path)
    group = metadata.row_group(0)
    used = {group.column(n).path_in_schema: set(group.column(n).encodings) for n in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in used["n"]
    assert "RLE_DICTIONARY" in used["same"]
    assert "RLE_DICTIONARY" in used["l.list.element"]
    assert "RLE_DICTIONARY" not in used["text"] | used["n"]
    assert {group.column(n).compression for n in range(group.num_columns)} == {"ZSTD"}


TEXTS = ["a", "a/b: 5%", "é=ü", " ", ".", "..", "100%25", "'\"\\", "a\nb", "__HIVE", "+"]


def test_rows_go_to_their_partitions_and_come_back(tmp_path: Path) -> None:
    rows = pa.table({"n": range(3 * len(TEXTS)), "place": TEXTS * 3})
    staged = written(tmp_path, rows, partition_by=("place",), chunk=5)
    assert {file.partition["place"] for file in staged.files} == set(TEXTS)
    assert all("place" not in pq.read_schema(tmp_path / file.path).names for file in staged.files)
    assert staged.schema == rows.schema
    # As the directories are read where only they are known.
    read = DeltaCommits.open(tmp_path, "app", Schema.from_arrow(rows.schema).to_json(), partition_by=["place"])
    assert {file.path: file.partition for file in read.staging.staged_files("a1")} == {
        f.path: f.partition for f in staged.files
    }
    assert plain(committed(tmp_path, staged, ("place",)).select(rows.column_names)) == plain(rows)


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([True, False, None], pa.bool_(), ["true", "false", None]),
        ([-1, 5, None], pa.int16(), ["-1", "5", None]),
        ([date(2026, 1, 1), None], pa.date32(), ["2026-01-01", None]),
        (["x", None], pa.string(), ["x", None]),
    ],
)
def test_partitions_of_each_type_have_the_values_that_tables_read(
    tmp_path: Path, values: list[Any], kind: Any, texts: list[Any]
) -> None:
    rows = pa.table({"p": pa.array(values, kind), "n": range(len(values))})
    staged = written(tmp_path, rows, partition_by=("p",))
    assert [file.partition["p"] for file in staged.files] == texts
    assert plain(committed(tmp_path, staged, ("p",)).select(["p", "n"])) == plain(rows)


def test_an_empty_text_is_no_value_of_a_partition(tmp_path: Path) -> None:
    staged = written(tmp_path, pa.table({"p": ["", None, ""], "n": [1, 2, 3]}), partition_by=("p",))
    assert [file.partition for file in staged.files] == [{"p": None}]
    assert staged.rows == 3


def test_partitions_by_two_columns_are_split_by_both(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2, 1, 2, 1], "n": range(5), "b": ["x", "x", "y", None, "x"]})
    staged = written(tmp_path, rows, partition_by=("b", "a"))
    assert [(file.path, file.rows) for file in staged.files] == [
        ("floodmark-a1/b=x/a=1/part-00000.parquet", 2),
        ("floodmark-a1/b=x/a=2/part-00001.parquet", 1),
        ("floodmark-a1/b=y/a=1/part-00002.parquet", 1),
        ("floodmark-a1/b=__HIVE_DEFAULT_PARTITION__/a=2/part-00003.parquet", 1),
    ]
    assert plain(committed(tmp_path, staged, ("b", "a")).select(rows.column_names)) == plain(rows)


def test_rows_of_a_partition_stay_in_their_order() -> None:
    rows = pa.RecordBatch.from_pydict({"p": [n % 3 for n in range(3_000)], "n": range(3_000)})
    parts = {partition: part.column("n").to_pylist() for partition, part in split_by_partition(rows, ("p",))}
    assert parts == {(str(p),): list(range(p, 3_000, 3)) for p in range(3)}


@pytest.mark.parametrize(("name", "shown"), [("a/b=c", "a%2Fb%3Dc"), ("é", "%C3%A9")])
def test_the_names_of_columns_are_no_paths_either(name: str, shown: str) -> None:
    assert partition_directory((name,), ("x",)).as_posix() == f"{shown}=x"


def test_a_partition_has_a_name_that_a_directory_may_have() -> None:
    assert len(partition_directory(("p",), ("x" * 253,)).name) == 255
    with pytest.raises(TableUnfit, match="a value of 254 characters"):
        partition_directory(("p",), ("x" * 254,))


def test_rows_without_columns_are_partitioned_by_nothing() -> None:
    check_partitions(pa.schema([]), ())


def test_few_files_are_open_and_few_rows_are_held_for_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parquet, "_MOST_OPEN_FILES", 3)
    monkeypatch.setattr(_parquet, "_MOST_BUFFERED_BYTES", 2_000)
    opened = 0
    most = 0
    real_open, real_close = _parquet._FileWriter.open, _parquet._FileWriter.close

    def count_open(self: Any, *args: Any) -> None:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        real_open(self, *args)

    def count_close(self: Any) -> Any:
        nonlocal opened
        opened -= 1
        return real_close(self)

    monkeypatch.setattr(_parquet._FileWriter, "open", count_open)
    monkeypatch.setattr(_parquet._FileWriter, "close", count_close)
    rows = pa.table({"n": range(2_000), "p": [n * 7 % 20 for n in range(2_000)]})
    staged = written(tmp_path, rows, partition_by=("p",), chunk=100)
    assert (most, opened) == (3, 0)
    assert len({file.path for file in staged.files}) == len(staged.files) > 20
    assert plain(committed(tmp_path, staged, ("p",)).select(["n", "p"])) == plain(rows)


def test_many_partitions_get_one_file_each_as_long_as_rows_can_be_held(tmp_path: Path) -> None:
    rows = pa.table({"n": range(2_000), "p": [n % 50 for n in range(2_000)]})
    assert len(written(tmp_path, rows, partition_by=("p",), chunk=100).files) == 50


@pytest.mark.parametrize(
    ("rows", "partition_by", "column"),
    [
        (pa.table({"n": [1]}), ("p",), "p"),
        (pa.table({"n": [1], "p": [1.5]}), ("p",), "p"),
        (pa.table({"n": [1], "p": pa.array([1], pa.timestamp("us", "UTC"))}), ("p",), "p"),
        (pa.table({"p": [1]}), ("p",), "p"),
        (pa.table({"n": [1], "p": ["é" * 100]}), ("p",), "p"),
    ],
)
def test_what_tables_cannot_be_partitioned_by_is_refused(
    tmp_path: Path, rows: Any, partition_by: tuple[str, ...], column: str
) -> None:
    with pytest.raises(TableUnfit) as refused:
        written(tmp_path, rows, partition_by=partition_by)
    assert refused.value.fields["column"] == column
    assert found(tmp_path) == []


TABLE = pa.schema([("id", pa.int64()), ("note", pa.string())])


@pytest.mark.parametrize(
    ("batches", "fitting", "schema"),
    [
        ([], RowFitter(None), None),
        ([], RowFitter(TABLE), TABLE),
        ([pa.schema([("id", pa.uint8())])], RowFitter(None), pa.schema([("id", pa.int16())])),
        ([pa.schema([])], RowFitter(None), None),
        ([pa.schema([])], RowFitter(TABLE, required=("id",)), TABLE),
        ([pa.schema([("id", pa.string()), ("new", pa.int8())])], RowFitter(TABLE), TABLE),
        ([pa.schema([("new", pa.int8())])], RowFitter(TABLE, "evolve", required=("id",)), TABLE),
    ],
)
def test_no_rows_give_no_file_and_are_refused_by_nothing(
    tmp_path: Path, batches: list[pa.Schema], fitting: RowFitter, schema: Any
) -> None:
    staged = written(tmp_path, [pa.RecordBatch.from_pylist([], schema=one) for one in batches], fitting)
    assert (staged.files, staged.schema, found(tmp_path)) == ((), schema, [])


def test_empty_batches_between_others_are_passed_over(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([("other", pa.string())]))
    one = pa.record_batch({"id": [1]})
    staged = written(tmp_path, [empty, one, empty, one])
    assert (staged.rows, staged.schema) == (2, one.schema)


def test_batches_may_differ_as_long_as_they_are_written_alike(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"id": pa.array([1], pa.int8()), "note": pa.nulls(1)}),
        pa.record_batch({"note": ["a"], "id": pa.array([2], pa.int64())}),
    ]
    staged = written(tmp_path, batches, RowFitter(TABLE))
    assert pq.read_table(tmp_path / staged.files[0].path).to_pydict() == {"id": [1, 2], "note": [None, "a"]}


def test_columns_that_come_in_the_middle_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": [1] * 3_000}), pa.record_batch({"id": [1], "new": [1]})]
    with pytest.raises(TableUnfit, match="new") as refused:
        written(tmp_path, batches, RowFitter(pa.schema([("id", pa.int64())]), "evolve"))
    assert refused.value.fields["column"] == "new"
    assert found(tmp_path) == []


def test_parts_of_a_cell_may_bring_columns_and_fields_that_others_lack(tmp_path: Path) -> None:
    table = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    DeltaTable.create(str(tmp_path), Schema.from_arrow(table))
    parts = [
        written(tmp_path, [pa.RecordBatch.from_pylist([rows])], RowFitter(table, "evolve"), name=name)
        for name, rows in (
            ("a", {"id": 1, "s": {"x": 1}}),
            ("b", {"id": 2, "s": {"y": [2]}}),
            ("c", {"id": 3, "new": "n"}),
        )
    ]
    schema = union_schema([part.schema for part in parts if part.schema is not None])
    DeltaTable(str(tmp_path)).alter.add_columns(Schema.from_arrow(schema).fields)
    back = committed(tmp_path, StagedRows(tuple(file for part in parts for file in part.files), schema))
    assert plain(back) == [
        {"id": 1, "s": {"x": 1, "y": None}, "new": None},
        {"id": 2, "s": {"x": None, "y": [2]}, "new": None},
        {"id": 3, "s": None, "new": "n"},
    ]


def broken(rows: Any, error: BaseException) -> Iterator[pa.RecordBatch]:
    yield from rows.to_batches(max_chunksize=100)
    raise error


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("no"), Stopped()])
def test_if_the_source_fails_nothing_is_left(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parquet, "_GROUP_ROWS", 100)
    with pytest.raises(type(error)):
        written(tmp_path, broken(numbers(2_500), error))
    assert found(tmp_path) == []


def test_a_file_is_seen_only_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_parquet, "_GROUP_ROWS", 100)
    seen: list[list[str]] = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in numbers(1_100).to_batches(max_chunksize=100):
            yield batch
            seen.append(found(tmp_path))

    written(tmp_path, watched())
    assert seen[3] == ["floodmark-a1/.part-00000.parquet.part"]
    assert seen[9] == ["floodmark-a1/part-00000.parquet"]


def test_all_of_a_file_is_on_the_disk_before_it_has_its_name_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(_parquet, "sync_to_disk", lambda path: synced.append((path.name, found(tmp_path))))
    written(tmp_path, numbers(10))
    hidden, whole = "floodmark-a1/.part-00000.parquet.part", "floodmark-a1/part-00000.parquet"
    assert synced == [(".part-00000.parquet.part", [hidden]), ("floodmark-a1", [whole])]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize("rows", [10, 2_000_000])
def test_a_disk_that_is_full_is_said_so_and_no_half_file_is_left(tmp_path: Path, rows: int) -> None:
    directory = tmp_path / "floodmark-a1"
    directory.mkdir()
    (directory / ".part-00000.parquet.part").symlink_to("/dev/full")
    with pytest.raises(TableFailed, match="full") as refused:
        written(tmp_path, numbers(rows), rows_a_file=10_000_000)
    assert refused.value.fields["errno"] == errno.ENOSPC
    assert "Free space" in refused.value.remedy
    assert found(tmp_path) == []
    assert Path("/dev/full").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_at_the_end_is_said_so_too(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TableFailed, match="full"):
        written(tmp_path, numbers(10))
    assert found(tmp_path) == []


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "floodmark-a1").write_text("a file, and no directory")
    with pytest.raises(TableFailed, match="could not be written") as refused:
        written(tmp_path, numbers(10))
    assert refused.value.fields["errno"] in (errno.ENOTDIR, errno.EEXIST)


def test_rows_that_fail_by_their_values_leave_nothing(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": [1] * 2_000}), pa.record_batch({"id": pa.array([None], pa.int64())})]
    with pytest.raises(TableUnfit, match="id is null"):
        written(tmp_path, batches, RowFitter(pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("n >= 2400", 100),
        ("text = 'row 2450'", 1),
        ("local > TIMESTAMP '1970-01-01 00:00:02.4'", 99),
        ("at > TIMESTAMP '1970-01-01 00:00:02.4Z'", 99),
    ],
)
def test_readers_pass_over_files_by_what_is_said_of_them_and_miss_no_row(tmp_path: Path, where: str, rows: int) -> None:
    table = pa.table(
        {
            "n": range(2_500),
            "text": [f"row {n:04}" for n in range(2_500)],
            "local": pa.array([n * 1_000 for n in range(2_500)], pa.timestamp("us")),
            "at": pa.array([n * 1_000 for n in range(2_500)], pa.timestamp("us", "UTC")),
        }
    )
    staged = written(tmp_path, table)
    committed(tmp_path, staged)
    # Files that cannot have such rows are not even there.
    for file in staged.files[:2]:
        (tmp_path / file.path).unlink()
    query = (
        QueryBuilder().register("t", DeltaTable(str(tmp_path))).execute(f"SELECT count(*) AS c FROM t WHERE {where}")
    )
    assert pa.table(query.read_all())["c"].to_pylist() == [rows]


def test_the_schema_of_rows_without_zone_is_kept(tmp_path: Path) -> None:
    staged = written(tmp_path, pa.table({"at": pa.array([1], pa.timestamp("ns"))}))
    back = committed(tmp_path, staged)
    assert back.schema.field("at").type == pa.timestamp("us")
    assert pc.equal(back["at"], pa.scalar(0, pa.timestamp("us"))).to_pylist() == [True]
    assert "timestampNtz" in (DeltaTable(str(tmp_path)).protocol().reader_features or [])
