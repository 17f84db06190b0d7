"""A shop whose orders are ingested: in a database that changes, and in a table that is compared with it."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

FIRST = datetime(2020, 1, 1)  # noqa: DTZ001 - as the database has it
COLUMNS = "id INTEGER, shop TEXT, amount REAL, note TEXT, updated_at TIMESTAMP"


def orders(count: int, *, days: int = 4, note: str = "first") -> list[tuple[Any, ...]]:
    """Return rows, evenly spread over days."""
    step = timedelta(days=days) / max(1, count)
    return [
        (
            n,
            ("north", "south")[n % 2],
            n / 4,
            f"{note} {n}",
            (FIRST + n * step).isoformat(sep=" ", timespec="microseconds"),
        )
        for n in range(count)
    ]


def fill_sqlite(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    """Make a database, or add to it."""
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE IF NOT EXISTS orders ({COLUMNS})")
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    db.close()


def job_file(path: Path, source: str, target: str, *, days: int = 4, extra: str = "", grid: str = "daily") -> Path:
    """Write a job, and return its file."""
    path.write_text(
        f"""
[job]
name = "{path.stem}"
zone = "UTC"
[time]
from = 2020-01-01
to = 2020-01-{days + 1:02}
grid = "{grid}"
{extra}
[source]
{source}
[target]
{target}
[limits]
attempts = 100
"""
    )
    return path


SQLITE = 'kind = "sql"\nurl = "sqlite:///shop.db"\ntable = "orders"\nwatermark = "updated_at"'


def landed(table: Path, query: str = "SELECT * FROM t ORDER BY id") -> list[tuple[Any, ...]]:
    """Return the rows of a table, as delta-rs reads them."""
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(table))).execute(query).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


def landed_by_duckdb(table: Path, query: str = "SELECT * FROM t ORDER BY id") -> list[tuple[Any, ...]]:
    """Return the rows of a table, as DuckDB reads its files."""
    files = DeltaTable(str(table)).file_uris()
    found: Any = duckdb.read_parquet(files, union_by_name=True)
    return list(found.query("t", query).fetchall())


def in_sqlite(path: Path, query: str = "SELECT * FROM orders ORDER BY id") -> list[tuple[Any, ...]]:
    """Return rows of the database, with moments as Python has them."""
    with sqlite3.connect(path) as db:
        rows = db.execute(query).fetchall()
    db.close()
    return [(*row[:-1], None if row[-1] is None else datetime.fromisoformat(row[-1])) for row in rows]
