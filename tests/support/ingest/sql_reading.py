"""Sources to read by SQL, and what their parts give."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from floodmark.ingest import PlannedRange, Range, SqlSource, Unit
from floodmark.ingest.extract.sql.split import SqlSplit, sql_splits


def micros(text: str, zone: str = "UTC") -> int:
    """Return a moment by the clock of a zone, or by the offset in the text."""
    found = datetime.fromisoformat(text)
    found = found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))
    return round(found.timestamp() * 1_000_000)


def clock(text: str) -> datetime:
    """Return what a clock shows, nobody says where."""
    return datetime.fromisoformat(text)


START = clock("1970-01-01")


def between(lo: str, hi: str, zone: str = "UTC") -> Range:
    return Range(micros(lo, zone), micros(hi, zone))


def planned(span: Range, unit: dict[str, Any] | None = None) -> PlannedRange:
    return PlannedRange(Unit.of(unit or {}), span, span, "new", ("new",))


ALWAYS = between("1970-01-01", "2200-01-01")


def parts_of(
    source: SqlSource,
    span: Range = ALWAYS,
    unit: dict[str, Any] | None = None,
    *,
    zone: str = "UTC",
    with_nulls: bool = False,
) -> tuple[SqlSplit, ...]:
    return sql_splits(source, zone, planned(span, unit), with_nulls=with_nulls)


def table_of(parts: Iterable[SqlSplit]) -> pa.Table:
    """Return the rows of all parts; a schema of its own in any of them is refused here."""
    return pa.Table.from_batches([batch for part in parts for batch in part.read()])


def column_of(source: SqlSource, column: str, span: Range = ALWAYS, unit: Any = None, **options: Any) -> list[Any]:
    values: list[Any] = table_of(parts_of(source, span, unit, **options))[column].to_pylist()
    return sorted(values, key=lambda value: (value is not None, value))


def sqlite_file(path: Path, *statements: str, rows: Iterable[tuple[Any, ...]] = (), into: str = "t") -> str:
    """Make a database of SQLite, and return its URL."""
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            connection.execute(statement)
        given = list(rows)
        if given:
            places = ", ".join("?" * len(given[0]))
            connection.executemany(f"INSERT INTO {into} VALUES ({places})", given)
        connection.commit()
    finally:
        connection.close()
    return f"sqlite:///{path}"


def postgres_run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


class ShopDialect(SQLiteDialect_pysqlite):
    """A database that nobody has heard of; underneath it is SQLite."""

    name = "shopdb"
    supports_statement_cache = True


@contextmanager
def unknown_dialect() -> Iterator[str]:
    """Make SQLAlchemy know a dialect that Floodmark does not; give the scheme of its URLs."""
    # A module of tests has no name that could be imported.
    registry.impls["shopdb"] = lambda: ShopDialect
    try:
        yield "shopdb"
    finally:
        del registry.impls["shopdb"]


HOSTILE_TEXTS = (
    "\\' OR 1=1 -- ", "' OR 1=1 -- ", "'' OR ''='", "\\", "\\\\' --", '" OR 1=1 --', "`", "]", "*/ OR 1=1 /*",
    "\n OR 1=1 --", "x'; DROP TABLE t; --", "' UNION SELECT * FROM secrets --", "{{unit.id}}", ":text_0", "\\:text_0",
    "?", "%s", "%(text_0)s", "%%", "$1", "$$", "é\u2019", "7", "",
)  # fmt: skip
"""Values of units that would be read as SQL if they were not quoted well, or as parameters of a driver."""
