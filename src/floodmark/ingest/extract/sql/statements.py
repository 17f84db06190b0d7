"""The SQL statements that read a split.

Values are written into the text as literals, because PostgreSQL's COPY takes no parameters. So every value of a job or
a unit is quoted by `Dialect`, and nowhere else.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from floodmark.errors import InvalidOption
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.source import SqlSource, first_value_at
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.job.variables import variable_names

_VARIABLE: Final = re.compile(r"('?)\{\{\s*((?:range|unit)\.[^{}]*?)\s*\}\}('?)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL dialect of a database, by its name in SQLAlchemy.

    >>> print(Dialect("postgresql").table('shop.Order "x" lines'))
    "shop"."Order ""x"" lines"
    >>> print(Dialect("sqlite").equals("name", "it's"))
    "name" = 'it''s'
    """

    name: str

    def identifier(self, name: str) -> str:
        """Return a quoted name of a column, which keeps its case and special characters."""
        _refuse_nul(name)
        if self.name == "mssql":
            return "[" + name.replace("]", "]]") + "]"
        quote = "`" if self.name in (*_BACKSLASH_ESCAPES, "bigquery", "hive", "databricks") else '"'
        return quote + name.replace(quote, quote * 2) + quote

    def table(self, name: str) -> str:
        """Return a quoted name of a table; a dot separates schema and table."""
        return ".".join(self.identifier(part) for part in name.split("."))

    def literal(self, value: Any) -> str:
        r"""Return a value as an SQL literal.

        >>> print(*(Dialect("postgresql").literal(value) for value in (None, True, 7, 0.5, "a", "\\")))
        NULL TRUE 7 0.5 'a' E'\\'
        >>> print(Dialect("postgresql").literal(datetime(2020, 1, 2, 3, 4)))
        TIMESTAMP '2020-01-02 03:04:00.000000'
        """
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return str(int(value)) if self.name in _NO_BOOLEANS else str(value).upper()
        if isinstance(value, int | float):
            return repr(value)
        if isinstance(value, datetime):
            return self._timestamp(value)
        if isinstance(value, date):
            return f"'{value.isoformat()}'" if self.name in ("sqlite", "mssql") else f"DATE '{value.isoformat()}'"
        return self._text(str(value))

    def equals(self, column: str, value: Any) -> str:
        """Return the condition that a column has this value; None means NULL."""
        name = self.identifier(column)
        return f"{name} IS NULL" if value is None else f"{name} = {self.literal(value)}"

    def between(self, expression: str, lo: Any, hi: Any) -> str:
        """Return the condition `lo <= expression < hi`.

        SQLite stores times as texts; they are compared as times whether date and time are separated by T or a space,
        and with any number of digits.

        >>> Dialect("sqlite").between("t", datetime(2020, 1, 1), datetime(2020, 1, 2))
        "t >= '2020-01-01' AND t < '2020-01-02'"
        """
        if self.name != "sqlite" or not isinstance(lo, datetime):
            return f"{expression} >= {self.literal(lo)} AND {expression} < {self.literal(hi)}"
        exact = f"rtrim(replace({expression}, 'T', ' '), 'Z')"
        conditions = []
        for sign, bound, another_day in ((">=", lo, "{0} >= '{2}'"), ("<", hi, "{0} < '{1}'")):
            if len(_shortest_text(bound)) == len("2020-01-01"):
                conditions.append(f"{expression} {sign} {self.literal(bound)}")
                continue
            # Compare by days first, for which SQLite can use an index; only rows of the bound's own day need more.
            day, next_day = bound.date().isoformat(), (bound + timedelta(days=1)).date().isoformat()
            conditions.append(f"{expression} {sign} '{day if sign == '>=' else next_day}'")
            is_decided = another_day.format(expression, day, next_day)
            conditions.append(f"({is_decided} OR {exact} {sign} {self.literal(bound)})")
        return " AND ".join(conditions)

    def _timestamp(self, value: datetime) -> str:
        if self.name == "sqlite":
            return f"'{_shortest_text(value)}'"
        text = value.isoformat(" ", "microseconds")
        if self.name == "mssql":
            return f"CAST('{text}' AS {'DATETIME2' if value.tzinfo is None else 'DATETIMEOFFSET'}(6))"
        if value.tzinfo is None or self.name in _BACKSLASH_ESCAPES:
            return f"TIMESTAMP '{text}'"
        return f"TIMESTAMPTZ '{text}'" if self.name == "postgresql" else f"CAST('{text}' AS TIMESTAMP WITH TIME ZONE)"

    def _text(self, value: str) -> str:
        _refuse_nul(value)
        quoted = "'" + value.replace("'", "''") + "'"
        if "\\" not in value:
            return quoted
        doubled = quoted.replace("\\", "\\\\")
        if self.name == "postgresql":
            return "E" + doubled  # does not depend on standard_conforming_strings
        return doubled if self.name in _BACKSLASH_ESCAPES else quoted


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
            return None if self.hi is None else f"({name} < {dialect.literal(self.hi)} OR {name} IS NULL)"
        above = f"{name} >= {dialect.literal(self.lo)}"
        return above if self.hi is None else f"{above} AND {name} < {dialect.literal(self.hi)}"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements that read a range of a unit from a source.

    >>> source = SqlSource(url="sqlite:///shop.db", table="orders", watermark="at", watermark_type="epoch-seconds")
    >>> statements = Statements(source, "UTC", Unit.of({"region": "eu"}), Range(0, 5_000_000), Dialect("sqlite"))
    >>> print(statements.rows(["*"]))
    SELECT * FROM "orders" WHERE "region" = 'eu' AND "at" >= 0 AND "at" < 5
    """

    source: SqlSource
    zone: str
    unit: Unit
    range: Range
    dialect: Dialect

    @property
    def relation(self) -> str:
        """The table, or the query in parentheses, for the FROM clause."""
        if self.source.table is not None:
            return self.dialect.table(self._fill_name(self.source.table))
        return f"({self._fill_values(self.source.query or '').strip().rstrip(';')}\n) {self.dialect.identifier('q')}"

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
        return [*conditions, f"({self._fill_values(self.source.where)}\n)"] if self.source.where else conditions

    def _fill_values(self, text: str) -> str:
        """Return SQL text with each variable replaced by its value as a literal."""

        def value(match: re.Match[str]) -> str:
            if match[1] or match[3]:
                raise InvalidOption(
                    f"{{{{{match[2]}}}}} stands in quotes.",
                    rule="A variable in a query becomes an SQL literal, with its own quotes.",
                    remedy=f"Write {{{{{match[2]}}}}} without the quotes around it.",
                    option="query",
                )
            return self.dialect.literal(self._value(match[2]))

        return _VARIABLE.sub(value, text)

    def _fill_name(self, name: str) -> str:
        return _VARIABLE.sub(lambda match: str(self._value(match[2])), name)

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


_BACKSLASH_ESCAPES: Final = ("mysql", "mariadb")
_NO_BOOLEANS: Final = ("sqlite", "mssql", "oracle")


def _shortest_text(value: datetime) -> str:
    """Return the shortest text of a time. Longer texts of the same time sort after it, and before any later time.

    >>> _shortest_text(datetime(2020, 1, 1, 10, 30)), _shortest_text(datetime(2020, 1, 1, 0, 0, 0, 500_000))
    ('2020-01-01 10:30', '2020-01-01 00:00:00.5')
    """
    text = value.replace(tzinfo=None).isoformat(" ", "microseconds").rstrip("0").removesuffix(".")
    if value.microsecond:
        return text
    text = value.replace(tzinfo=None).isoformat(" ", "seconds")
    return text.removesuffix(":00").removesuffix(" 00:00")


def _refuse_nul(text: str) -> None:
    if "\0" in text:
        raise InvalidOption(
            f"The text {text!r} contains a NUL character.",
            rule="Databases accept no NUL character in texts and names.",
            remedy="Remove it from the unit's value or from the name in the job file.",
        )
