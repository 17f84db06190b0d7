"""Databases that Floodmark knows nothing of are read through SQLAlchemy."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from sqlalchemy import types

from floodmark.errors import SourceValueUnfit
from floodmark.ingest import SqlSource
from floodmark.ingest.extract.sql.alchemy import arrow_type, clean_values, inferred_columns
from floodmark.ingest.extract.sql.columns import Column, to_arrow
from support.ingest.sql_reading import between, clock, parts_of, sqlite_file, table_of, unknown_dialect


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    made = sqlite_file(
        tmp_path / "t.db",
        "CREATE TABLE t (at BIGINT, n INTEGER, f FLOAT, d NUMERIC(6, 2), s VARCHAR, b BLOB, ok BOOLEAN)",
        rows=[(1577836800 + n, n, n / 2, "1.5", f"x{n}", b"y", n % 2) for n in range(10)],
    )
    with unknown_dialect() as scheme:
        yield made.replace("sqlite", scheme, 1)


def source_of(url: str, **given: Any) -> SqlSource:
    asked: dict[str, Any] = {"url": url, "watermark": "at", "watermark_type": "epoch-seconds"} | given
    return SqlSource(**(asked if "query" in asked else {"table": "t"} | asked))


def test_a_table_has_the_types_that_are_declared(url: str) -> None:
    span = between("2020-01-01T00:00:08", "2020-01-01T00:01")
    found = table_of(parts_of(source_of(url, splits=3), span))
    expected = [pa.int64(), pa.int64(), pa.float64(), pa.decimal128(6, 2), pa.string(), pa.binary(), pa.bool_()]
    assert found.schema.types == expected
    assert found.to_pylist()[0] == {
        "at": 1577836808, "n": 8, "f": 4.0, "d": Decimal("1.50"), "s": "x8", "b": b"y", "ok": False,
    }  # fmt: skip
    assert found.num_rows == 2
    (empty,) = parts_of(source_of(url), between("2000-01-01", "2000-01-02"))[0].read()
    assert empty.schema.types == expected


def test_a_query_has_the_types_of_its_first_rows_in_every_range(url: str) -> None:
    source = source_of(url, query="SELECT at, n, f, s, NULL AS empty, ok FROM t")
    types = [pa.int64(), pa.int64(), pa.float64(), pa.string(), pa.string(), pa.int64()]
    for span in (between("2020-01-01", "2020-01-02"), between("2000-01-01", "2000-01-02")):
        assert table_of(parts_of(source, span)).schema.types == types


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (types.SmallInteger(), pa.int64()),
        (types.Double(), pa.float64()),
        (types.Numeric(39, 2), pa.string()),
        (types.Numeric(), pa.string()),
        (types.DateTime(), pa.timestamp("us")),
        (types.Date(), pa.date32()),
        (types.Time(), pa.string()),
        (types.Uuid(), pa.string()),
        (types.LargeBinary(), pa.binary()),
        (None, pa.string()),
    ],
)
def test_a_declared_type_has_one_type_of_arrow(kind: Any, arrow: pa.DataType) -> None:
    assert arrow_type(kind) == arrow


@pytest.mark.parametrize(
    ("values", "arrow"),
    [
        ([True, None], pa.bool_()),
        ([1, 2.5], pa.float64()),
        ([clock("2020-01-01")], pa.timestamp("us")),
        ([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([date(2020, 1, 1)], pa.date32()),
        ([b"x", memoryview(b"y")], pa.binary()),
        ([Decimal("1.5")], pa.string()),
        ([1, "x"], pa.string()),
        ([None], pa.string()),
    ],
)
def test_values_have_one_type_of_arrow(values: list[Any], arrow: pa.DataType) -> None:
    assert inferred_columns(["a"], [(value,) for value in values])[0].type == arrow


@pytest.mark.parametrize(
    ("arrow", "value", "read"),
    [
        (pa.string(), Decimal("1.50"), "1.50"),
        (pa.string(), b"x", "x"),
        (pa.binary(), memoryview(b"y"), b"y"),
        (pa.decimal128(5, 2), 1.1, Decimal("1.10")),
        (pa.timestamp("us"), datetime(2020, 1, 1, tzinfo=UTC), clock("2020-01-01T01:00")),
        (pa.timestamp("us"), clock("2020-01-01"), clock("2020-01-01")),
        (pa.bool_(), 1, True),
    ],
)
def test_a_value_of_python_becomes_one_of_its_column(arrow: pa.DataType, value: Any, read: Any) -> None:
    column = Column("a", arrow)
    values = clean_values([value, None], column, ZoneInfo("Europe/Berlin"))
    assert to_arrow(values, column).to_pylist() == [read, None]


@pytest.mark.parametrize(
    ("arrow", "value"), [(pa.bool_(), 2), (pa.int64(), 1.5), (pa.int64(), 2**63), (pa.date32(), "x")]
)
def test_a_value_that_is_none_of_its_column_is_refused(arrow: pa.DataType, value: Any) -> None:
    column = Column("a", arrow)
    with pytest.raises(SourceValueUnfit, match="The column 'a'"):
        to_arrow(clean_values([value], column, ZoneInfo("UTC")), column)
