"""Slices of a column, read from a real database."""

from pathlib import Path

import pytest

from floodmark.ingest import SqlSource
from floodmark.testing import PostgresServer
from support.ingest.sql_reading import parts_of, postgres_run, sqlite_file, table_of


def made(url: str, kind: str, postgres: bool, tmp_path: Path) -> str:
    rows = [*range(1, 60), 1000, -5]
    values = ", ".join(f"({n}, {n}, '2020-01-01')" for n in rows)
    statements = (
        f"CREATE TABLE t (id INT, n {kind}, at TIMESTAMP)",
        f"INSERT INTO t VALUES {values}, (0, NULL, '2020-01-01')",
    )
    if postgres:
        postgres_run(url, "DROP TABLE IF EXISTS t", *statements)
        return url
    return sqlite_file(tmp_path / "t.db", *statements)


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE PRECISION", "NUMERIC(10, 2)"])
@pytest.mark.parametrize("splits", [2, 5])
def test_a_column_is_cut_into_slices_that_have_every_row_once(
    postgres: PostgresServer, tmp_path: Path, used_database: str, database: str, kind: str, splits: int
) -> None:
    url = made(used_database, kind, database == "postgres", tmp_path)
    source = SqlSource(url=url, table="t", watermark="at", split_by="n", splits=splits)
    parts = parts_of(source)
    assert len(parts) == splits
    assert [part.checks for part in parts] == [True] + [False] * (splits - 1)
    # What comes after the parts were made is in one of them too, however large or small.
    more = "INSERT INTO t VALUES (2000, 2000, '2020-01-01'), (-2000, -2000, '2020-01-01'), (3000, NULL, '2020-01-01')"
    if database == "postgres":
        postgres_run(url, more)
    else:
        sqlite_file(tmp_path / "t.db", more)
    found = [one for part in parts for one in table_of([part])["id"].to_pylist()]
    assert sorted(found) == sorted([*range(60), 1000, -5, 2000, -2000, 3000])
    if database == "postgres":
        postgres_run(url, "DROP TABLE t")
