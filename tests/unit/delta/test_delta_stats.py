"""What is said of a file's rows holds for each of them, in the form in which tables are read."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.delta.staging import file_statistics

MOMENT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
FIRST = -62_135_596_800_000_000
"""The year 1."""
LAST = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""

TOLD: list[tuple[str, Any, Any]] = [
    ("whole numbers", pa.array([3, None, -1]), (-1, 3)),
    ("days", pa.array([date(2026, 1, 2), date(1, 1, 1)]), ("0001-01-01", "2026-01-02")),
    ("moments, wider", pa.array([1_500, -1], MOMENT), ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.002Z")),
    ("moments of the first year", pa.array([FIRST], MOMENT), ("0001-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z")),
    ("moments after the last year", pa.array([0, LAST], MOMENT), None),
    ("moments without zone", pa.array([1_500, -1], LOCAL), ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.002")),
    ("texts", pa.array(["b", None, "a", "é"]), ("a", "é")),
    ("texts in the order of their bytes", pa.array(["\uffff", "\U00010000"]), ("\uffff", "\U00010000")),
    ("the empty text", pa.array(["", "a"]), ("", "a")),
    ("texts of 64 bytes", pa.array(["é" * 32, "a"]), ("a", "é" * 32)),
    ("longer texts", pa.array(["é" * 32 + "a", "a"]), None),
    ("a long text that is the least", pa.array(["a" * 65, "b"]), None),
    ("large texts", pa.array(["a"], pa.large_string()), ("a", "a")),
    ("binary", pa.array([b"a"]), None),
    ("truth values", pa.array([True]), None),
    ("floats", pa.array([1.5]), None),
    ("decimals", pa.array([1]).cast(pa.decimal128(38, 2)), None),
    ("short decimals", pa.array([1], pa.int8()).cast(pa.decimal128(5, 2)), None),
    ("nulls", pa.nulls(2, pa.string()), None),
]


def told(path: Path, array: Any, **options: Any) -> dict[str, Any]:
    pq.write_table(pa.table({"c": array}), path / "file.parquet", **options)
    found: dict[str, Any] = json.loads(file_statistics(pq.read_metadata(path / "file.parquet")))
    return found


@pytest.mark.parametrize(("array", "bounds"), [one[1:] for one in TOLD], ids=[one[0] for one in TOLD])
def test_bounds_are_told_where_they_hold(tmp_path: Path, array: Any, bounds: tuple[Any, Any] | None) -> None:
    found = told(tmp_path, array)
    assert (found["numRecords"], found["nullCount"]) == (len(array), {"c": array.null_count})
    lowest, highest = ({}, {}) if bounds is None else ({"c": bounds[0]}, {"c": bounds[1]})
    assert (found["minValues"], found["maxValues"]) == (lowest, highest)


def test_bounds_of_texts_are_those_of_all_groups_of_rows(tmp_path: Path) -> None:
    found = told(tmp_path, pa.array(["m", "b", "é", None, None, "c"]), row_group_size=2)
    assert (found["minValues"], found["maxValues"]) == ({"c": "b"}, {"c": "é"})
    found = told(tmp_path, pa.array(["m", "b", "x" * 5_000, "c"]), row_group_size=2)
    assert (found["minValues"], found["maxValues"]) == ({}, {})


class Metadata:
    """What a file says, with another writer."""

    def __init__(self, real: Any, created_by: str | None) -> None:
        self.real = real
        self.created_by = created_by

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(
    ("writer", "is_told"),
    [("parquet-cpp-arrow version 26.0.1", True), ("parquet-mr version 1.15.2", False), ("", False), (None, False)],
)
def test_bounds_of_texts_are_told_only_of_those_who_do_not_cut_them(
    tmp_path: Path, writer: str | None, is_told: bool
) -> None:
    pq.write_table(pa.table({"c": ["a"], "n": [1]}), tmp_path / "file.parquet")
    metadata: Any = Metadata(pq.read_metadata(tmp_path / "file.parquet"), writer)
    found = json.loads(file_statistics(metadata))
    assert found["minValues"] == ({"c": "a", "n": 1} if is_told else {"n": 1})


def test_bytes_that_are_no_text_have_no_bounds(tmp_path: Path) -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    assert told(tmp_path, broken)["minValues"] == {}
