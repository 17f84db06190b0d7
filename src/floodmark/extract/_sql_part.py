"""A part of a cell that is read from a SQL database, and the parts of a cell."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from floodmark.errors import InvalidOption, SourceValueUnfit, WatermarkMissing
from floodmark.extract._sql_columns import Column, chosen, converted
from floodmark.extract._sql_postgres_types import fits_watermark, watermark_type_of
from floodmark.extract._sql_reader import SqlReader, open_reader
from floodmark.extract._sql_text import Slice, Statements
from floodmark.ingest._ranges import Range
from floodmark.ingest._row import Row
from floodmark.ingest._source_spec import SqlSource
from floodmark.ingest._unit import Unit


@dataclass(frozen=True, slots=True)
class SqlPart:
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
            columns = chosen(found, statements.named, self.source.columns, _what(self.source))
            _check_watermark(reader, statements, found)
            if self.checks:
                _check_rows(reader, statements)
            quoted = [reader.dialect.identifier(one.name) for one in columns]
            items = [f"{one.expression.format(name)} AS {name}" for one, name in zip(columns, quoted, strict=True)]
            statement = statements.rows(items, self.split, nulls=self.nulls)
            yield from converted(columns, reader.batches(statement, columns))

    def _statements(self, reader: SqlReader) -> Statements:
        return Statements(self.source, self.zone, self.unit, self.range, reader.dialect)


def sql_parts(source: SqlSource, zone: str, row: Row, *, with_nulls: bool = False) -> tuple[SqlPart, ...]:
    """Return the parts of a row of a plan: together they have its rows, each once.

    `zone` is the job's; that of the source counts more. With `with_nulls` there is one part more, for the rows of the
    unit that have no watermark, if the source says that they are read.

    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at", splits=2)
    >>> day = Range(0, 86_400_000_000)
    >>> [part.range for part in sql_parts(source, "UTC", Row(Unit.of({}), day, day, "new", ("new",)))]
    [Range(lo=0, hi=43200000000), Range(lo=43200000000, hi=86400000000)]
    """
    whole = SqlPart(source, source.zone or zone, row.unit, row.range, checks=source.watermark is not None)
    parts = [whole]
    if source.splits > 1:
        parts = _by_column(whole, source.split_by) if source.split_by is not None else _by_time(whole)
    if with_nulls and source.nulls == "read" and source.watermark is not None:
        parts.append(SqlPart(source, whole.zone, row.unit, row.range, nulls=True))
    return tuple(parts)


def cuts(low: int | float, high: int | float, many: int) -> list[int | float]:
    """Return where to cut from `low` to `high` into at most so many equal pieces; the ends are no cuts.

    >>> cuts(1, 100, 4), cuts(1, 2, 4), cuts(0.0, 1.0, 2), cuts(5, 5, 4)
    ([26, 51, 76], [2], [0.5], [])
    """
    if isinstance(low, int) and isinstance(high, int):
        whole: set[int | float] = {low + step * (high - low + 1) // many for step in range(1, many)}
        return sorted(whole - {low})
    points: set[int | float] = {low + (high - low) * (step / many) for step in range(1, many)}
    return sorted(point for point in points if low < point <= high)


def _by_time(whole: SqlPart) -> list[SqlPart]:
    lo, hi = whole.range
    edges = [lo, *cuts(lo, hi - 1, whole.source.splits), hi]
    return [
        SqlPart(whole.source, whole.zone, whole.unit, Range(int(edges[n]), int(edges[n + 1])), checks=n == 0)
        for n in range(len(edges) - 1)
    ]


def _by_column(whole: SqlPart, column: str) -> list[SqlPart]:
    with open_reader(whole.source, whole.zone) as reader:
        statements = whole._statements(reader)
        found = reader.columns(statements.relation)
        chosen(found, statements.named, (), _what(whole.source))
        _check_watermark(reader, statements, found)
        ends = reader.first(statements.ends(column)) or (None, None)
    low, high = (_number(one, column) for one in ends)
    # Both ends are open: what comes in the meantime, or has no value, is in a part too.
    points = [] if low is None or high is None else cuts(low, high, whole.source.splits)
    edges = [None, *points, None]
    return [
        SqlPart(
            whole.source,
            whole.zone,
            whole.unit,
            whole.range,
            Slice(column, edges[n], edges[n + 1]),
            checks=whole.checks and n == 0,
        )
        for n in range(len(edges) - 1)
    ]


def _number(value: object, column: str) -> int | float | None:
    if isinstance(value, Decimal):
        value = int(value) if value.is_finite() and value == int(value) else float(value)
    elif isinstance(value, str):
        # A number that a driver has no type for arrives as a text.
        try:
            return _number(Decimal(value), column)
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


def _what(source: SqlSource) -> str:
    return f"The table {source.table}" if source.table is not None else "The query"
