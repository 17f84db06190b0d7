"""Splits of SQL databases: how a planned range is divided into splits, and which reader reads them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, Self

import pyarrow as pa

from floodmark.errors import InvalidOption, SourceValueUnfit, WatermarkMissing
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.database import SqlUrl
from floodmark.ingest.extract.sql.columns import (
    Column,
    convert_batches,
    fits_watermark,
    select_columns,
    watermark_type_of,
)
from floodmark.ingest.extract.sql.dialect import Dialect
from floodmark.ingest.extract.sql.statements import ColumnSlice, Statements
from floodmark.ingest.job.source import SqlSource
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.plan import PlannedRange


class SqlReader(Protocol):
    """A read-only connection to a database. Errors of the driver are raised as FloodmarkError."""

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect of the database."""
        ...

    def columns(self, statements: Statements) -> list[Column]:
        """Return the columns of the table, view or query of the statements, as the database declares them."""
        ...

    def first_row(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row of a statement's result, or None if it has no rows."""
        ...

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement's result while they arrive."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SqlSplit:
    """Rows of a table or a query: those of a range and a unit, or those without a watermark. It holds no secret."""

    source: SqlSource
    zone: str
    unit: Unit
    range: Range
    column_slice: ColumnSlice | None = None
    """If set, only the rows of the range in this slice."""
    nulls: bool = False
    """Whether to read the rows without a watermark instead of those of the range."""
    checks: bool = False
    """Whether to search first for rows that no range would ever read; set on one split of a cell."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the source's current rows, read by one statement. The schema does not depend on them."""
        with open_reader(self.source, self.zone) as reader:
            statements = self._statements(reader)
            declared = reader.columns(statements)
            columns = select_columns(
                declared, statements.required_columns, self.source.columns, _relation_text(self.source)
            )
            _check_watermark(reader, statements, declared)
            if self.checks:
                _check_rows(reader, statements)
            quoted = [reader.dialect.identifier(column.name) for column in columns]
            items = [
                f"{column.expression.format(name)} AS {name}" for column, name in zip(columns, quoted, strict=True)
            ]
            statement = statements.rows(items, self.column_slice, nulls=self.nulls)
            yield from convert_batches(columns, reader.batches(statement, columns))

    def _statements(self, reader: SqlReader) -> Statements:
        return Statements(self.source, self.zone, self.unit, self.range, reader.dialect)


def sql_splits(source: SqlSource, zone: str, row: PlannedRange, *, with_nulls: bool = False) -> tuple[SqlSplit, ...]:
    """Return the splits of a planned range, which together have each of its rows once.

    `zone` is the job's; the source's own zone takes precedence. With `with_nulls` there is one more split, for the
    unit's rows without a watermark, if the source has `nulls = "read"`.

    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at", splits=2)
    >>> day = Range(0, 86_400_000_000)
    >>> [split.range for split in sql_splits(source, "UTC", PlannedRange(Unit.of({}), day, day, "new", ("new",)))]
    [Range(lo=0, hi=43200000000), Range(lo=43200000000, hi=86400000000)]
    """
    whole = SqlSplit(source, source.zone or zone, row.unit, row.range, checks=source.watermark is not None)
    splits = [whole]
    if source.splits > 1:
        splits = _split_by_column(whole, source.split_by) if source.split_by is not None else _split_by_time(whole)
    if with_nulls and source.nulls == "read" and source.watermark is not None:
        splits.append(SqlSplit(source, whole.zone, row.unit, row.range, nulls=True))
    return tuple(splits)


def split_points(low: int | float, high: int | float, count: int) -> list[int | float]:
    """Return the inner boundaries that divide `low` to `high` into at most `count` equal slices.

    >>> split_points(1, 100, 4), split_points(1, 2, 4), split_points(0.0, 1.0, 2), split_points(5, 5, 4)
    ([26, 51, 76], [2], [0.5], [])
    """
    if isinstance(low, int) and isinstance(high, int):
        whole: set[int | float] = {low + n * (high - low + 1) // count for n in range(1, count)}
        return sorted(whole - {low})
    points: set[int | float] = {low + (high - low) * (n / count) for n in range(1, count)}
    return sorted(point for point in points if low < point <= high)


def _split_by_time(whole: SqlSplit) -> list[SqlSplit]:
    lo, hi = whole.range
    edges = [lo, *split_points(lo, hi - 1, whole.source.splits), hi]
    return [
        SqlSplit(whole.source, whole.zone, whole.unit, Range(int(edges[n]), int(edges[n + 1])), checks=n == 0)
        for n in range(len(edges) - 1)
    ]


def _split_by_column(whole: SqlSplit, column: str) -> list[SqlSplit]:
    with open_reader(whole.source, whole.zone) as reader:
        statements = whole._statements(reader)
        declared = reader.columns(statements)
        select_columns(declared, statements.required_columns, (), _relation_text(whole.source))
        _check_watermark(reader, statements, declared)
        ends = reader.first_row(statements.min_max(column)) or (None, None)
    low, high = (_split_value(value, column) for value in ends)
    # The outer slices are open, so that NULL and rows added in the meantime belong to a slice too.
    points = [] if low is None or high is None else split_points(low, high, whole.source.splits)
    edges = [None, *points, None]
    return [
        SqlSplit(
            whole.source,
            whole.zone,
            whole.unit,
            whole.range,
            ColumnSlice(column, edges[n], edges[n + 1]),
            checks=whole.checks and n == 0,
        )
        for n in range(len(edges) - 1)
    ]


def _split_value(value: object, column: str) -> int | float | None:
    if isinstance(value, Decimal):
        value = int(value) if value.is_finite() and value == int(value) else float(value)
    elif isinstance(value, str):
        # Some drivers return numbers as text, for lack of a type.
        try:
            return _split_value(Decimal(value), column)
        except ArithmeticError:
            pass
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(
            f"The column {column!r} has the value {value!r}.",
            rule="split_by names a column of numbers.",
            remedy="Name a column of numbers in split_by, or leave split_by out to split by time.",
            option="split_by",
        )
    return value


def _check_watermark(reader: SqlReader, statements: Statements, columns: list[Column]) -> None:
    """Refuse a watermark column whose type differs from watermark_type where the database would compare it anyway."""
    source = statements.source
    if reader.dialect.name != "postgresql" or statements.watermark is None:
        return
    for column in columns:
        is_time = column.name in (source.watermark, source.fallback)
        if is_time and not fits_watermark(column.declared, source.watermark_type):
            raise InvalidOption(
                f"The column {column.name!r} is {column.declared}, and watermark_type is {source.watermark_type!r}.",
                rule="Both are the same type; else the time zone of the session would change which rows are read.",
                remedy=f'Write watermark_type = "{watermark_type_of(column.declared)}", or cast it in a query.',
                option="watermark_type",
                column=column.name,
            )


def _check_rows(reader: SqlReader, statements: Statements) -> None:
    statement = statements.first_misplaced()
    misplaced = None if statement is None else reader.first_row(statement)
    if misplaced is None or misplaced[0] is None:
        return
    source, unit = statements.source, statements.unit
    is_null = misplaced[0]
    if not is_null:
        raise SourceValueUnfit(
            f"A row has a value in {source.watermark!r} that cannot be compared as {source.watermark_type}.",
            rule="SQLite sorts all numbers before all texts, so no range would read this row.",
            remedy="Correct the row, set watermark_type to what the column holds, or convert the column in a query.",
            column=source.watermark,
        )
    raise WatermarkMissing(
        f"A row of the unit {unit} has no {source.watermark!r}{' and no fallback' if source.fallback else ''}.",
        rule="A row without a watermark is in no range, so it would never be read.",
        remedy='Write nulls = "skip" to leave such rows out, nulls = "read" to merge them in each run, or name a '
        "fallback column.",
        column=source.watermark,
        unit=unit.key,
    )


def _relation_text(source: SqlSource) -> str:
    return f"The table {source.table}" if source.table is not None else "The query"


def open_reader(source: SqlSource, zone: str) -> SqlReader:
    """Connect to the database of a source: with ADBC if it has a driver that is installed, else with SQLAlchemy."""
    url = SqlUrl.of(source)
    if url.parts.get_backend_name() == "sqlite":
        url.check_file()
    has_lists = any(not isinstance(value, str) for value in url.parts.query.values())
    if url.is_postgres and not has_lists and _has_driver("adbc_driver_postgresql"):
        from floodmark.ingest.extract.sql.postgres import PostgresReader

        return PostgresReader(url)
    if url.is_sqlite and _has_driver("adbc_driver_sqlite"):
        from floodmark.ingest.extract.sql.adbc import SqliteReader

        return SqliteReader(url)
    from floodmark.ingest.extract.sql.alchemy import AlchemyReader

    return AlchemyReader(url, zone)


def _has_driver(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None and find_spec("adbc_driver_manager") is not None
