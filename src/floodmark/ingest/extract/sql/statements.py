"""The SQL statements that read a split.

Every value of a job or a unit is written by `Dialect`, and nowhere else: a statement may contain bound texts, which the
reader separates with `split_texts`.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from floodmark.errors import InvalidOption
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.extract.sql.dialect import Dialect, Enclosure
from floodmark.ingest.job.source import SqlSource, first_value_at
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.job.variables import variable_names

_DOT: Final = re.compile(r"\.(?![^{}]*\}\})")
"""A dot that is not in the name of a variable."""
_VARIABLE: Final = re.compile(r"\{\{\s*((?:range|unit)\.[^{}]*?)\s*\}\}")
_QUOTES: Final = tuple("'\"`")
_TOUCHES_BEFORE: Final = re.compile(r"[\w@#$:\\}]")
_TOUCHES_AFTER: Final = re.compile(r"[\w{]")


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """The rows of a cell with `lo <= column < hi`; None is an open end. NULL belongs to the slice without `lo`."""

    column: str
    lo: int | float | None
    hi: int | float | None

    def condition(self, dialect: Dialect) -> str | None:
        """Return the condition for its rows; None if it has all rows.

        >>> ColumnSlice("id", None, 10).condition(Dialect("sqlite"))
        '("id" < 10 OR "id" IS NULL)'
        """
        name = dialect.identifier(self.column)
        if self.lo is None:
            return None if self.hi is None else f"({name} < {dialect.value(self.hi)} OR {name} IS NULL)"
        above = f"{name} >= {dialect.value(self.lo)}"
        return above if self.hi is None else f"{above} AND {name} < {dialect.value(self.hi)}"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements that read a range of a unit from a source.

    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at", watermark_type="epoch-seconds")
    >>> statements = Statements(source, "UTC", Unit.of({"region": 7}), Range(0, 5_000_000), Dialect("sqlite"))
    >>> print(statements.rows(["*"]))
    SELECT * FROM "orders" WHERE "region" = 7 AND "at" >= 0 AND "at" < 5
    """

    source: SqlSource
    zone: str
    unit: Unit
    range: Range
    dialect: Dialect

    @property
    def table(self) -> list[str] | None:
        """The name of the table, after that of its schema if any; None for a query.

        Only a dot of the job file separates a schema: one in a unit's value is part of the name.
        """
        if self.source.table is None:
            return None
        parts = _DOT.split(self.source.table)
        return [_VARIABLE.sub(lambda match: str(self._value(match[1])), part) for part in parts]

    @property
    def relation(self) -> str:
        """The table, or the query in parentheses, for the FROM clause."""
        if self.table is not None:
            return self.dialect.table(self.table)
        query = self._fill_values(self.source.query or "", "query")
        return f"({query.strip().rstrip(';')}\n) {self.dialect.identifier('q')}"

    @property
    def watermark(self) -> str | None:
        """The expression for the time of a row; None if the query restricts its rows to the range by itself."""
        if self.source.watermark is None or self._query_uses_range:
            return None
        name = self.dialect.identifier(self.source.watermark)
        if self.source.fallback is None:
            return name
        return f"COALESCE({name}, {self.dialect.identifier(self.source.fallback)})"

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The columns that the relation must have."""
        source = self.source
        times = () if self.watermark is None else (source.watermark, source.fallback)
        names = (*source.columns, *times, *self._unit_columns().keys(), source.split_by)
        return tuple(name for name in names if name is not None)

    def rows(self, items: list[str], column_slice: ColumnSlice | None = None, *, nulls: bool = False) -> str:
        """Return the statement for the rows of the range, or with `nulls` for those without a watermark."""
        conditions = self._common_conditions()
        if self.watermark is not None:
            conditions.append(f"{self.watermark} IS NULL" if nulls else self._in_range(self.watermark))
        if column_slice is not None and (condition := column_slice.condition(self.dialect)):
            conditions.append(condition)
        return f"SELECT {', '.join(items)} FROM {self.relation}{_where(conditions)}"

    def min_max(self, column: str) -> str:
        """Return the statement for the smallest and the largest value of a column in the range."""
        name = self.dialect.identifier(column)
        return self.rows([f"MIN({name})", f"MAX({name})"])

    def first_misplaced(self) -> str | None:
        """Return the statement that finds a row that no range would ever read; None if there cannot be one.

        Such a row has no watermark, or in SQLite a number among texts or a text among numbers, which never compare as
        times. Both are at the ends of an index on the watermark column.
        """
        if self.watermark is None:
            return None
        tests = [f"{self.watermark} IS NULL"] if self.source.nulls == "fail" else []
        if self.dialect.name == "sqlite" and self.source.watermark_type != "text":
            is_number = self.source.watermark_type.startswith("epoch")
            tests += (
                [f"{self.watermark} >= ''"] if is_number else [f"{self.watermark} < ''", f"{self.watermark} >= x''"]
            )
        if not tests:
            return None
        conditions = [*self._common_conditions(), f"({' OR '.join(tests)})"]
        is_null = f"CASE WHEN {self.watermark} IS NULL THEN 1 ELSE 0 END"
        top, limit = {"mssql": ("TOP 1 ", ""), "oracle": ("", " FETCH FIRST 1 ROWS ONLY")}.get(
            self.dialect.name, ("", " LIMIT 1")
        )
        return f"SELECT {top}{is_null} FROM {self.relation}{_where(conditions)}{limit}"

    @property
    def _query_uses_range(self) -> bool:
        return {"range.from", "range.to"} <= set(variable_names(self.source.query or ""))

    def _in_range(self, expression: str) -> str:
        return self.dialect.between(expression, self._bound(self.range.lo), self._bound(self.range.hi))

    def _bound(self, micros: int) -> Any:
        return first_value_at(micros, self.source.watermark_type, self.zone, self.source.pattern)

    def _unit_columns(self) -> dict[str, Any]:
        """Return the columns that hold the unit's fields, with its values; not the fields used as variables."""
        source = self.source
        texts = " ".join(text for text in (source.query, source.where, source.table) if text)
        variables = set(variable_names(texts))
        fields = self.unit.fields.items()
        return {source.units.get(field, field): value for field, value in fields if f"unit.{field}" not in variables}

    def _common_conditions(self) -> list[str]:
        conditions = [self.dialect.equals(column, value) for column, value in self._unit_columns().items()]
        where = self.source.where
        return [*conditions, f"({self._fill_values(where, 'where')}\n)"] if where else conditions

    def _fill_values(self, text: str, option: str) -> str:
        """Return SQL text with each variable replaced by its value; refuse one that is not a value by itself."""
        if "\0" in text:
            raise InvalidOption(
                f"{option} contains a NUL character.",
                rule="Databases accept no NUL character in SQL.",
                remedy=f"Remove it from {option} in [source].",
                option=option,
            )
        enclosures = self.dialect.enclosures(text)

        def value(match: re.Match[str]) -> str:
            before, after = text[: match.start()], text[match.end() :]
            enclosure = next((kind for start, end, kind in enclosures if start < match.start() < end), None)
            if enclosure is None and (before.endswith(_QUOTES) or after.startswith(_QUOTES)):
                enclosure = "quotes"
            if enclosure is not None:
                raise _enclosed_variable_error(match[0], enclosure, option)
            if _TOUCHES_BEFORE.match(before[-1:]) or _TOUCHES_AFTER.match(after):
                raise _touching_variable_error(match[0], before[-1:], after[:1], option)
            written = self.dialect.value(self._value(match[1]))
            # Two minus signs would begin a comment.
            return f" {written}" if before.endswith("-") and written.startswith("-") else written

        return _VARIABLE.sub(value, text)

    def _value(self, name: str) -> Any:
        if name in ("range.from", "range.to"):
            return self._bound(self.range.lo if name == "range.from" else self.range.hi)
        field = name.removeprefix("unit.")
        if field not in self.unit.fields:
            fields = ", ".join(self.unit.fields) or "(none)"
            raise InvalidOption(
                f"The source names {name}, and the unit has no such field.",
                rule=f"The unit has the fields {fields}.",
                remedy=f"Use one of its fields as {{{{unit.FIELD}}}}, or add {field!r} to the units of the job.",
                option="query",
            )
        return self.unit.fields[field]


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _enclosed_variable_error(variable: str, enclosure: Enclosure, option: str) -> InvalidOption:
    if enclosure == "a comment":
        remedy = f"Remove {variable} from the comment."
    else:
        remedy = f"Write {variable} without the quotes around it; join it with other text as in '%' || {variable}."
    return InvalidOption(
        f"{variable} stands in {enclosure}.",
        rule="A variable in SQL is a value by itself, never a part of a quoted text, a quoted name or a comment.",
        remedy=remedy,
        option=option,
    )


def _touching_variable_error(variable: str, before: str, after: str, option: str) -> InvalidOption:
    touched = before if _TOUCHES_BEFORE.match(before) else after
    return InvalidOption(
        f"{variable} touches {touched!r}.",
        rule="A variable in SQL is a value by itself, never a part of a word.",
        remedy=f"Put a space before and after {variable}; join it with other text as in 'x' || {variable}.",
        option=option,
    )
