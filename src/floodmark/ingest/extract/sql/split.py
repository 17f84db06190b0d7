"""A split that is read from a SQL database: how a planned range is split, and which reader reads it."""

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
from floodmark.ingest.extract.sql.statements import Dialect, Slice, Statements
from floodmark.ingest.job.source import SqlSource
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.planning.plan import PlannedRange


class SqlReader(Protocol):
    """A connection that reads. What goes wrong is raised as an error of Floodmark's."""

    @property
    def dialect(self) -> Dialect:
        """The SQL that it takes."""
        ...

    def columns(self, relation: str) -> list[Column]:
        """Return the columns of a table, a view or a query, as declared. No row is read."""
        ...

    def first(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row of a statement."""
        ...

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement as they arrive."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SqlSplit:
    """Rows of a table or a query: those of a range and a unit, or those without a watermark. No secret is in it."""

    source: SqlSource
    zone: str
    unit: Unit
    range: Range
    split: Slice | None = None
    nulls: bool = False
    """Whether these are the rows without a watermark."""
    checks: bool = False
    """Whether reading it first looks for rows that no range would ever read; one part of a cell does."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Give the rows that the source has now, all in one statement; the schema does not depend on them."""
        with open_reader(self.source, self.zone) as reader:
            statements = self._statements(reader)
            found = reader.columns(statements.relation)
            columns = select_columns(found, statements.named, self.source.columns, _relation_text(self.source))
            _check_watermark(reader, statements, found)
            if self.checks:
                _check_rows(reader, statements)
            quoted = [reader.dialect.identifier(one.name) for one in columns]
            items = [f"{one.expression.format(name)} AS {name}" for one, name in zip(columns, quoted, strict=True)]
            statement = statements.rows(items, self.split, nulls=self.nulls)
            yield from convert_batches(columns, reader.batches(statement, columns))

    def _statements(self, reader: SqlReader) -> Statements:
        return Statements(self.source, self.zone, self.unit, self.range, reader.dialect)


def sql_splits(source: SqlSource, zone: str, row: PlannedRange, *, with_nulls: bool = False) -> tuple[SqlSplit, ...]:
    """Return the parts of a row of a plan: together they have its rows, each once.

    `zone` is the job's; that of the source counts more. With `with_nulls` there is one part more, for the rows of the
    unit that have no watermark, if the source says that they are read.

    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at", splits=2)
    >>> day = Range(0, 86_400_000_000)
    >>> [part.range for part in sql_splits(source, "UTC", PlannedRange(Unit.of({}), day, day, "new", ("new",)))]
    [Range(lo=0, hi=43200000000), Range(lo=43200000000, hi=86400000000)]
    """
    whole = SqlSplit(source, source.zone or zone, row.unit, row.range, checks=source.watermark is not None)
    parts = [whole]
    if source.splits > 1:
        parts = _split_by_column(whole, source.split_by) if source.split_by is not None else _split_by_time(whole)
    if with_nulls and source.nulls == "read" and source.watermark is not None:
        parts.append(SqlSplit(source, whole.zone, row.unit, row.range, nulls=True))
    return tuple(parts)


def split_points(low: int | float, high: int | float, many: int) -> list[int | float]:
    """Return where to cut from `low` to `high` into at most so many equal pieces; the ends are no cuts.

    >>> split_points(1, 100, 4), split_points(1, 2, 4), split_points(0.0, 1.0, 2), split_points(5, 5, 4)
    ([26, 51, 76], [2], [0.5], [])
    """
    if isinstance(low, int) and isinstance(high, int):
        whole: set[int | float] = {low + step * (high - low + 1) // many for step in range(1, many)}
        return sorted(whole - {low})
    points: set[int | float] = {low + (high - low) * (step / many) for step in range(1, many)}
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
        found = reader.columns(statements.relation)
        select_columns(found, statements.named, (), _relation_text(whole.source))
        _check_watermark(reader, statements, found)
        ends = reader.first(statements.ends(column)) or (None, None)
    low, high = (_split_value(one, column) for one in ends)
    # Both ends are open: what comes in the meantime, or has no value, is in a part too.
    points = [] if low is None or high is None else split_points(low, high, whole.source.splits)
    edges = [None, *points, None]
    return [
        SqlSplit(
            whole.source,
            whole.zone,
            whole.unit,
            whole.range,
            Slice(column, edges[n], edges[n + 1]),
            checks=whole.checks and n == 0,
        )
        for n in range(len(edges) - 1)
    ]


def _split_value(value: object, column: str) -> int | float | None:
    if isinstance(value, Decimal):
        value = int(value) if value.is_finite() and value == int(value) else float(value)
    elif isinstance(value, str):
        # A number that a driver has no type for arrives as a text.
        try:
            return _split_value(Decimal(value), column)
        except ArithmeticError:
            pass
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(
            f"The column {column!r} has {value!r} in it.",
            rule="A cell is split by ranges of numbers, or by time.",
            remedy="Name a column of numbers, or leave split_by out.",
            option="split_by",
        )
    return value


def _check_watermark(reader: SqlReader, statements: Statements, columns: list[Column]) -> None:
    """Refuse a watermark of another type than the source says, where the database would compare it all the same."""
    source = statements.source
    if reader.dialect.name != "postgresql" or statements.watermark is None:
        return
    for column in columns:
        is_time = column.name in (source.watermark, source.fallback)
        if is_time and not fits_watermark(column.declared, source.watermark_type):
            raise InvalidOption(
                f"The column {column.name!r} is {column.declared}, and watermark_type is {source.watermark_type!r}.",
                rule="A range is compared with a column of its own type, so that no session's zone changes it.",
                remedy=f'Write watermark_type = "{watermark_type_of(column.declared)}", or read a query that casts it.',
                option="watermark_type",
                column=column.name,
            )


def _check_rows(reader: SqlReader, statements: Statements) -> None:
    statement = statements.first_misplaced()
    found = None if statement is None else reader.first(statement)
    if found is None or found[0] is None:
        return
    source, unit = statements.source, statements.unit
    if not found[0]:
        raise SourceValueUnfit(
            f"A row has a {source.watermark!r} that is not what {source.watermark_type} is stored as.",
            rule="SQLite compares texts with texts and numbers with numbers; no range would ever read this row.",
            remedy="Correct the row, or the watermark_type, or read a query that converts it.",
            column=source.watermark,
        )
    raise WatermarkMissing(
        f"A row of the unit {unit} has no {source.watermark!r}{' and no fallback' if source.fallback else ''}.",
        rule="A row without a watermark is in no range, and would never be read.",
        remedy='Write nulls = "skip" to leave such rows out, "read" to merge them in each run, or name a fallback.',
        column=source.watermark,
        unit=unit.key,
    )


def _relation_text(source: SqlSource) -> str:
    return f"The table {source.table}" if source.table is not None else "The query"


def open_reader(source: SqlSource, zone: str) -> SqlReader:
    """Connect to the database of a source, by ADBC where there is a driver, else by SQLAlchemy."""
    url = SqlUrl.of(source)
    if url.parts.get_backend_name() == "sqlite":
        url.check_file()
    has_lists = any(not isinstance(value, str) for value in url.parts.query.values())
    if url.is_postgres and not has_lists and _has_driver("adbc_driver_postgresql"):
        from floodmark.ingest.extract.sql.postgres import PostgresReader

        return PostgresReader(url)
    if url.is_sqlite and _has_driver("adbc_driver_sqlite"):
        from floodmark.ingest.extract.sql.adbc import SqliteReader

        return SqliteReader(url, source, zone)
    from floodmark.ingest.extract.sql.alchemy import AlchemyReader

    return AlchemyReader(url, source, zone)


def _has_driver(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None and find_spec("adbc_driver_manager") is not None
