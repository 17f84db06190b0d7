"""What is read from SQLite, whose columns may hold anything: as which types, and what is refused."""

import sqlite3
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import SourceValueUnfit, UnknownTable, WatermarkMissing
from floodmark.ingest import SqlSource
from floodmark.ingest.extract.sql.adbc import BATCH_ROWS
from support.ingest.sql_reading import ALWAYS, between, clock, column_of, parts_of, sqlite_file, table_of


@pytest.fixture(params=["adbc", "pysqlite"])
def driver(request: pytest.FixtureRequest) -> str:
    driver: str = request.param
    return driver


def source_of(url: str, driver: str = "adbc", **given: Any) -> SqlSource:
    url = url if driver == "adbc" else url.replace("sqlite:", "sqlite+pysqlite:", 1)
    asked: dict[str, Any] = {"url": url, "watermark": "at"} | given
    return SqlSource(**(asked if "query" in asked else {"table": "t"} | asked))


ALL_TYPES: dict[str, tuple[Any, pa.DataType, Any]] = {
    "INTEGER": (2**63 - 1, pa.int64(), 2**63 - 1),
    "unsigned big int": (7, pa.int64(), 7),
    "REAL": (0.1, pa.float64(), 0.1),
    "double precision": (3, pa.float64(), 3.0),
    "TEXT": ("ä\n", pa.string(), "ä\n"),
    "varchar(3)": ("longer", pa.string(), "longer"),
    "json": ('{"a": 1}', pa.string(), '{"a": 1}'),
    "": (7, pa.string(), "7"),
    "NUMERIC": (1.5, pa.string(), "1.5"),
    "BLOB": (b"\x00\xff", pa.binary(), b"\x00\xff"),
    "BOOLEAN": (True, pa.bool_(), True),
    "DATE": ("2020-01-02", pa.date32(), date(2020, 1, 2)),
    "TIMESTAMP": ("2020-01-02T10:20:30.5", pa.timestamp("us"), clock("2020-01-02T10:20:30.500")),
    "DATETIME": ("2020-01-02 10:20", pa.timestamp("us"), clock("2020-01-02T10:20")),
    "DECIMAL(10, 2)": (0.1, pa.decimal128(10, 2), Decimal("0.10")),
    "NUMERIC(5)": (12, pa.decimal128(5, 0), Decimal(12)),
    "DECIMAL(40,2)": (1.5, pa.string(), "1.5"),
}


def test_columns_have_their_declared_types(tmp_path: Path, driver: str) -> None:
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(ALL_TYPES))
    values = [value for value, _, _ in ALL_TYPES.values()]
    rows = [("2020-01-01", *values), ("2020-01-02", *[None] * len(values))]
    url = sqlite_file(tmp_path / "t.db", f"CREATE TABLE t (at TIMESTAMP, {columns})", rows=rows)
    found = table_of(parts_of(source_of(url, driver)))
    types = {kind: found.schema.types[n + 1] for n, kind in enumerate(ALL_TYPES)}
    assert types == {kind: arrow for kind, (_, arrow, _) in ALL_TYPES.items()}
    first, second = found.to_pylist()
    assert {kind: first[f"c{n}"] for n, kind in enumerate(ALL_TYPES)} == {
        kind: value for kind, (_, _, value) in ALL_TYPES.items()
    }
    assert [value for name, value in second.items() if name != "at"] == [None] * len(ALL_TYPES)
    (empty,) = parts_of(source_of(url, driver), between("1990-01-01", "1991-01-01"))[0].read()
    assert (empty.num_rows, empty.schema) == (0, found.schema)


NULLS = [None] * (BATCH_ROWS + 10)


@pytest.mark.parametrize(
    ("kind", "values", "last"),
    [
        ("REAL", NULLS, 1.5),
        ("REAL", [1.5] * (BATCH_ROWS + 10), 2.0),
        ("TEXT", NULLS, "x"),
        ("BLOB", NULLS, b"x"),
        ("DECIMAL(5, 2)", [1] * (BATCH_ROWS + 10), Decimal("1.50")),
        ("NUMERIC", [1] * (BATCH_ROWS + 10), "1.5"),
        ("BOOLEAN", NULLS, True),
    ],
)
def test_types_do_not_depend_on_what_the_first_rows_hold(
    tmp_path: Path, driver: str, kind: str, values: list[Any], last: Any
) -> None:
    stored = float(last) if isinstance(last, Decimal) or last == "1.5" else last
    rows = [("2020-01-01", value) for value in [*values, stored]]
    url = sqlite_file(tmp_path / "t.db", f"CREATE TABLE t (at TIMESTAMP, v {kind})", rows=rows)
    found = table_of(parts_of(source_of(url, driver)))["v"]
    assert (len(found), found[-1].as_py()) == (len(rows), last)


@pytest.mark.parametrize("before", [[], [None] * (BATCH_ROWS + 10)], ids=["at once", "late"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INTEGER", "seven"),
        ("INTEGER", 1.5),
        ("INTEGER", b"x"),
        ("INTEGER", b"7"),
        ("REAL", "much"),
        ("TEXT", b"\xff\x00"),
        ("BOOLEAN", 2),
        ("BOOLEAN", "true"),
        ("DATE", "2020-01-02 10:00"),
        ("DATE", "soon"),
        ("TIMESTAMP", "soon"),
        ("TIMESTAMP", 2458849.5),
        ("DECIMAL(5, 2)", 1.005),
        ("DECIMAL(5, 2)", 12345.5),
        ("DECIMAL(5, 2)", "x"),
    ],
)
def test_a_value_that_is_none_of_its_type_fails_the_cell_and_its_column_is_named(
    tmp_path: Path, driver: str, kind: str, value: Any, before: list[Any]
) -> None:
    rows = [("2020-01-01", 1, one) for one in [*before, value]]
    url = sqlite_file(tmp_path / "t.db", f"CREATE TABLE t (at TIMESTAMP, id INTEGER, v {kind})", rows=rows)
    with pytest.raises(SourceValueUnfit, match="The column 'v'") as caught:
        table_of(parts_of(source_of(url, driver)))
    assert caught.value.fields == {"column": "v"}


def test_a_time_with_an_offset_or_in_seconds_becomes_what_the_clock_of_the_zone_showed(
    tmp_path: Path, driver: str
) -> None:
    values = ["2020-07-01T10:00:00Z", "2020-07-01 10:00:00+00:00", 1593597600, "2020-07-01T12:00"]
    rows = [("2020-01-01", value) for value in values]
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, v TIMESTAMP)", rows=rows)
    source = source_of(url, driver, zone="Europe/Berlin")
    assert column_of(source, "v") == [clock("2020-07-01T12:00")] * 4
    sqlite_file(tmp_path / "t.db", "DELETE FROM t WHERE rowid > 2")
    assert column_of(source, "v") == [clock("2020-07-01T12:00")] * 2


@pytest.mark.parametrize(
    ("kind", "declared", "value", "given"),
    [
        ("timestamp", "TIMESTAMP", 1577836800, {}),
        ("timestamp", "TEXT", b"2020-01-01", {}),
        ("date", "DATE", 18262, {"watermark_type": "date"}),
        ("epoch-seconds", "INTEGER", "2020-01-01", {"watermark_type": "epoch-seconds"}),
    ],
)
def test_a_watermark_that_would_never_compare_as_a_time_fails_the_cell(
    tmp_path: Path, driver: str, kind: str, declared: str, value: Any, given: dict[str, Any]
) -> None:
    url = sqlite_file(tmp_path / "t.db", f"CREATE TABLE t (at {declared})", rows=[(value,)])
    source = source_of(url, driver, nulls="skip", **given)
    with pytest.raises(SourceValueUnfit, match=f"cannot be compared as {kind}"):
        table_of(parts_of(source))


@pytest.mark.parametrize("declared", ["INTEGER", "TIMESTAMP", ""])
def test_an_epoch_is_a_number_whatever_its_column_is_called(tmp_path: Path, driver: str, declared: str) -> None:
    rows = [(1577836800_000 + n * 3_600_000,) for n in range(48)]
    url = sqlite_file(tmp_path / "t.db", f"CREATE TABLE t (at {declared})", rows=rows)
    source = source_of(url, driver, watermark_type="epoch-millis")
    found = column_of(source, "at", between("2020-01-01T12:00", "2020-01-02"))
    assert found == [1577836800_000 + n * 3_600_000 for n in range(12, 24)]


def test_touching_ranges_read_each_row_once_however_times_are_spelled(tmp_path: Path, driver: str) -> None:
    walls = [f"2020-03-{day:02}{sign}{hour:02}:30{rest}" for day in (28, 29, 30) for hour in range(24)
             for sign, rest in ((" ", ""), ("T", ":00"), ("T", ":00.000Z"))]  # fmt: skip
    url = sqlite_file(
        tmp_path / "t.db", "CREATE TABLE t (at DATETIME, n INT)", rows=[(text, n) for n, text in enumerate(walls)]
    )
    source = source_of(url, driver, zone="Europe/Berlin", splits=5)
    edges = ["2020-03-27", "2020-03-28T22:30", "2020-03-29T00:30", "2020-03-29T01:00", "2020-03-29T05:00", "2020-04-02"]
    found = [n for lo, hi in pairwise(edges) for n in column_of(source, "n", between(lo, hi))]
    assert sorted(found) == list(range(len(walls)))
    assert len(found) == len(walls)


@pytest.mark.parametrize(
    ("given", "with_nulls", "read"),
    [
        ({"nulls": "skip"}, True, [1]),
        ({"nulls": "read"}, True, [1, 2, 3]),
        ({"nulls": "read"}, False, [1]),
        ({"nulls": "skip", "fallback": "made"}, False, [1, 2]),
    ],
)
def test_rows_without_a_watermark_are_read_as_the_source_says(
    tmp_path: Path, driver: str, given: dict[str, Any], with_nulls: bool, read: list[int]
) -> None:
    rows = [(1, "2020-01-01", None), (2, None, "2020-01-01"), (3, None, None)]
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (id INT, at TIMESTAMP, made TIMESTAMP)", rows=rows)
    assert column_of(source_of(url, driver, **given), "id", with_nulls=with_nulls) == read
    with pytest.raises(WatermarkMissing, match="no 'at'"):
        table_of(parts_of(source_of(url, driver)))


def test_only_the_first_part_of_a_cell_looks_for_rows_without_a_watermark(tmp_path: Path) -> None:
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP)", rows=[(None,)])
    parts = parts_of(source_of(url, splits=3))
    assert [part.checks for part in parts] == [True, False, False]
    assert table_of(parts[1:]).num_rows == 0


def test_units_are_compared_by_their_values_and_quotes_are_taken_as_they_are(tmp_path: Path, driver: str) -> None:
    rows = [("it's: 100%", 1, "2020-01-01", 1), ("b", 0, "2020-01-01", 2), (None, 1, "2020-01-01", 3)]
    url = sqlite_file(
        tmp_path / 'a "b" %20 c.db',
        'CREATE TABLE "my ""t"" x" ("Who ""is""" TEXT, ok BOOLEAN, at TIMESTAMP, id INT)',
        rows=rows,
        into='"my ""t"" x"',
    ).replace("%", "%25")
    source = source_of(url, driver, table='my "t" x', units={"who": 'Who "is"'})
    assert column_of(source, "id", unit={"who": "it's: 100%", "ok": True}) == [1]
    assert column_of(source, "id", unit={"who": None}) == [3]
    assert column_of(source, "id", unit={"ok": False}) == [2]


def test_a_query_has_the_types_of_its_plain_columns_and_of_its_casts(tmp_path: Path) -> None:
    url = sqlite_file(
        tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, n INTEGER)", rows=[("2020-01-01", 1), ("2020-01-02", 2)]
    )
    query = "SELECT at, n, CAST(n * 2 AS INTEGER) AS twice, n + 1 AS more, 'x' || n AS name FROM t"
    found = table_of(parts_of(source_of(url, query=query), between("2020-01-02", "2020-01-03")))
    assert found.schema.types == [pa.timestamp("us"), pa.int64(), pa.int64(), pa.string(), pa.string()]
    assert found.to_pylist() == [{"at": clock("2020-01-02"), "n": 2, "twice": 4, "more": "3", "name": "x2"}]


def test_a_view_is_read_like_a_table(tmp_path: Path, driver: str) -> None:
    url = sqlite_file(
        tmp_path / "t.db",
        "CREATE TABLE t (at TIMESTAMP, n INTEGER)",
        "CREATE VIEW v AS SELECT n AS id, at FROM t WHERE n > 1",
        rows=[("2020-01-01", 1), ("2020-01-01", 2)],
    )
    assert table_of(parts_of(source_of(url, driver, table="v"))).to_pylist() == [{"id": 2, "at": clock("2020-01-01")}]


@pytest.mark.parametrize("database", ["", ":memory:", "no.db", "folder"])
def test_a_file_that_is_not_there_is_refused_and_not_made(tmp_path: Path, driver: str, database: str) -> None:
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / database) if database not in ("", ":memory:") else database
    with pytest.raises(UnknownTable, match="There is no SQLite database"):
        table_of(parts_of(source_of(f"sqlite:///{path}", driver)))
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_the_file_stays_as_it_is(tmp_path: Path, driver: str) -> None:
    path = tmp_path / "t.db"
    url = sqlite_file(path, "CREATE TABLE t (at TIMESTAMP)", rows=[("2020-01-01",)])
    before = path.read_bytes()
    table_of(parts_of(source_of(url, driver)))
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["t.db"]


def test_a_writer_in_wal_mode_does_not_stop_a_reader(tmp_path: Path, driver: str) -> None:
    url = sqlite_file(
        tmp_path / "t.db", "PRAGMA journal_mode = WAL", "CREATE TABLE t (at TIMESTAMP)", rows=[("2020-01-01",)]
    )
    writer = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES ('2020-01-01')")
    assert table_of(parts_of(source_of(url, driver), ALWAYS)).num_rows == 1
    writer.execute("COMMIT")
    assert table_of(parts_of(source_of(url, driver), ALWAYS)).num_rows == 2
    writer.close()


def test_batches_have_a_moderate_size(tmp_path: Path, driver: str) -> None:
    rows = [("2020-01-01",)] * (3 * BATCH_ROWS)
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP)", rows=rows)
    sizes = [batch.num_rows for batch in parts_of(source_of(url, driver))[0].read()]
    assert sum(sizes) == 3 * BATCH_ROWS
    assert max(sizes) <= BATCH_ROWS
