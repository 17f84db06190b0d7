"""Files that wait for their commit: what is told of their rows, and what becomes of those that are left."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from floodmark.delta.staging import file_statistics
from floodmark.errors import InvalidValue
from support.delta_tables import open_table, rows, schema, stage

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_attempts_that_were_not_committed_are_swept_and_others_stay(path: Path) -> None:
    table = open_table(path)
    table.commit(stage(table, "a1", 1), 1, {})
    stage(table, "a2", 2)
    stage(table, "a3", 3)
    table.staging.begin("a4")
    assert table.staging.open_attempts() == ["a1", "a2", "a3", "a4"]
    assert table.sweep(table.staging.open_attempts(), ["a3"]) == ["a2", "a4"]
    assert table.staging.open_attempts() == []
    assert sorted(found.name for found in path.glob("floodmark-*")) == ["floodmark-a1", "floodmark-a3"]
    assert rows(path) == [(1,)]


def test_what_another_application_stages_is_not_swept(path: Path) -> None:
    table, other = open_table(path), open_table(path, "other")
    stage(other, "b1", 1)
    assert table.sweep(table.staging.open_attempts()) == []
    assert other.staging.staged_files("b1")


def test_an_attempt_has_a_plain_name(path: Path) -> None:
    with pytest.raises(InvalidValue):
        open_table(path).staging.begin("../a")


def test_files_without_rows_and_what_is_no_parquet_are_left_out(path: Path) -> None:
    table = open_table(path)
    stage(table, "a1")
    directory = table.staging.directory("a1")
    (directory / "_SUCCESS").touch()
    pq.write_table(pa.table({"n": pa.array([5], pa.int64())}), directory / "part-1.parquet")
    (found,) = table.staging.staged_files("a1")
    assert (found.path, found.rows, found.size) == (
        "floodmark-a1/part-1.parquet",
        1,
        os.path.getsize(path / found.path),
    )
    assert [one.name for one in directory.iterdir()] == ["part-1.parquet"]


def test_bounds_of_files_lose_no_row_to_any_question(path: Path) -> None:
    table = open_table(path, columns=schema(n="long", at="timestamp", day="date", name="string", rate="double"))
    wanted = []
    for number in range(4):
        moments = [START + timedelta(microseconds=number * 10_000 + step * 777) for step in range(5)]
        some = {
            "n": pa.array([None, *range(number * 5, number * 5 + 4)], pa.int64()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "day": pa.array([one.date() + timedelta(days=number) for one in moments]),
            "name": pa.array([f"{number}" for _ in moments]),
            "rate": pa.array([float("nan"), 0.5, 1.5, None, 2.5]),
        }
        directory = table.staging.begin(f"a{number}")
        directory.mkdir()
        pq.write_table(pa.table(some), directory / "part.parquet", row_group_size=2)
        table.commit(table.staging.staged_files(f"a{number}"), number + 1, {})
        wanted += moments
    for moment in wanted:
        for sign, right in (
            ("=", 1),
            (">=", sum(one >= moment for one in wanted)),
            ("<", sum(one < moment for one in wanted)),
        ):
            kind = 'Timestamp(Microsecond, Some("UTC"))'
            asked = f"SELECT count(*) FROM t WHERE at {sign} arrow_cast('{moment.isoformat()}', '{kind}')"
            assert rows(path, asked) == [(right,)], asked
    assert rows(path, "SELECT count(*) FROM t WHERE n IS NULL") == [(4,)]
    assert rows(path, "SELECT count(*) FROM t WHERE n >= 7 AND n < 13") == [(5,)]
    assert rows(path, "SELECT count(*) FROM t WHERE day = DATE '2026-01-03'") == [(5,)]
    stats = pa.table(DeltaTable(str(path)).get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["min.n"], one["max.n"], one["null_count.n"]) for one in stats) == [
        (first, first + 3, 1) for first in (0, 5, 10, 15)
    ]


def stats(*, null_counts: bool = True, **columns: Any) -> dict[str, Any]:
    """Return what is told of a file with two rows in each of its groups."""
    sink = pa.BufferOutputStream()
    told = list(columns) if null_counts else []
    pq.write_table(pa.table(columns), sink, row_group_size=2, write_statistics=told or False)
    found: dict[str, Any] = json.loads(file_statistics(pq.read_metadata(pa.BufferReader(sink.getvalue()))))
    return found


def test_bounds_of_moments_are_made_wider_and_never_narrower() -> None:
    moments = [START + timedelta(microseconds=step) for step in (1, 1_999, 2_500, 2_501)]
    found = stats(
        at=pa.array(moments, pa.timestamp("us", "UTC")), old=pa.array([-1, -999, -1_001, -5], pa.timestamp("us", "UTC"))
    )
    assert found["minValues"] == {"at": "2026-01-01T00:00:00.000Z", "old": "1969-12-31T23:59:59.998Z"}
    assert found["maxValues"] == {"at": "2026-01-01T00:00:00.003Z", "old": "1970-01-01T00:00:00.000Z"}


def test_a_group_of_nulls_takes_no_bounds_away() -> None:
    found = stats(n=pa.array([None, None, 4, 5], pa.int64()), x=pa.array([1.0, 2.0, 3.0, None]))
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({"n": 4}, {"n": 5}, {"n": 2, "x": 1})
    assert stats(n=pa.array([None, None], pa.int64()))["minValues"] == {}
    assert stats(null_counts=False, n=pa.array([1, 2])) == {
        "numRecords": 2,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }


def test_nothing_is_told_of_columns_inside_of_others_and_of_moments_that_nobody_can_write() -> None:
    found = stats(
        n=pa.array([{"n": 1}, {"n": 2}], pa.struct([("n", pa.int64())])),
        far=pa.array([2**62, 2**62 + 1], pa.timestamp("us", "UTC")),
    )
    assert (found["minValues"], found["nullCount"]) == ({}, {"far": 0})


def test_only_the_attempts_that_are_named_are_swept(path: Path) -> None:
    table = open_table(path)
    stage(table, "a1", 1)
    stage(table, "a2", 2)
    assert table.sweep(["a1"]) == ["a1"]
    assert table.staging.open_attempts() == ["a2"]
    assert table.staging.staged_files("a2")
    assert table.sweep([]) == []
