"""The parts of a cell have its rows, each once."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import InvalidOption
from floodmark.ingest import SqlSource
from floodmark.ingest.extract.sql.split import split_points
from support.ingest.sql_reading import between, parts_of, sqlite_file, table_of


@given(
    low=st.integers(-(2**62), 2**62), size=st.integers(0, 10**6), many=st.integers(1, 20), value=st.integers(0, 10**6)
)
def test_cuts_rise_and_lie_within(low: int, size: int, many: int, value: int) -> None:
    found = split_points(low, low + size, many)
    assert found == sorted(set(found))
    assert len(found) < many
    assert all(low < cut <= low + size for cut in found)


@given(low=st.floats(-1e9, 1e9), size=st.floats(0, 1e9), many=st.integers(1, 20))
def test_cuts_of_broken_numbers_rise_and_lie_within(low: float, size: float, many: int) -> None:
    found = split_points(low, low + size, many)
    assert found == sorted(set(found))
    assert all(low < cut <= low + size for cut in found)


def test_time_is_cut_into_ranges_that_touch() -> None:
    source = SqlSource(url="sqlite:///x.db", table="t", watermark="at", splits=7)
    span = between("2020-01-01", "2020-01-02")
    ranges = [part.range for part in parts_of(source, span)]
    assert len(ranges) == 7
    assert (ranges[0].lo, ranges[-1].hi) == span
    assert all(one.hi == other.lo for one, other in pairwise(ranges))
    assert [len(parts_of(source, type(span)(0, size))) for size in (1, 3, 8)] == [1, 3, 7]


@pytest.mark.parametrize(("rows", "many"), [([], 1), ([(None,)], 1), ([(5,)], 1), ([(5,), (6,)], 2)])
def test_there_are_no_more_slices_than_values(tmp_path: Path, rows: list[Any], many: int) -> None:
    stored = [("2020-01-01", *row) for row in rows]
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, n INT)", rows=stored)
    parts = parts_of(SqlSource(url=url, table="t", watermark="at", split_by="n", splits=4))
    assert len(parts) == many
    assert table_of(parts).num_rows == len(rows)


def test_the_ends_are_those_of_the_range_and_the_unit(tmp_path: Path) -> None:
    rows = [("2020-01-01", n, "eu" if n < 100 else "us") for n in range(200)] + [("2020-02-01", 10**6, "eu")]
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, n INT, region TEXT)", rows=rows)
    source = SqlSource(url=url, table="t", watermark="at", split_by="n", splits=2)
    parts = parts_of(source, between("2020-01-01", "2020-01-02"), {"region": "eu"})
    assert [table_of([part]).num_rows for part in parts] == [50, 50]


def test_a_column_of_texts_cannot_be_cut(tmp_path: Path) -> None:
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, n TEXT)", rows=[("2020-01-01", "x")])
    with pytest.raises(InvalidOption, match="The column 'n' has the value 'x'"):
        parts_of(SqlSource(url=url, table="t", watermark="at", split_by="n", splits=2))


def test_the_rows_without_a_watermark_are_one_part_more(tmp_path: Path) -> None:
    rows = [("2020-01-01", 1), (None, 2), ("2020-01-02", 3)]
    url = sqlite_file(tmp_path / "t.db", "CREATE TABLE t (at TIMESTAMP, n INT)", rows=rows)
    source = SqlSource(url=url, table="t", watermark="at", nulls="read", splits=2)
    parts = parts_of(source, between("2020-01-01", "2020-01-03"), with_nulls=True)
    assert [table_of([part])["n"].to_pylist() for part in parts] == [[1], [3], [2]]
    assert [part.nulls for part in parts] == [False, False, True]
