"""The statements that read a split, in the SQL of a database.

Values are written into the text, since the fast way out of PostgreSQL takes no parameters. So everything that comes
from a job or a unit passes through `Dialect`, and nowhere else.
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
    """The SQL of a database, by the name that SQLAlchemy has for it.

    >>> print(Dialect("postgresql").table('shop.Order "x" lines'))
    "shop"."Order ""x"" lines"
    >>> print(Dialect("sqlite").equals("name", "it's"))
    "name" = 'it''s'
    """

    name: str

    def identifier(self, name: str) -> str:
        """Return the name of a column, quoted: what it is, and in the case it is written in."""
        _refuse_nul(name)
        if self.name == "mssql":
            return "[" + name.replace("]", "]]") + "]"
        quote = "`" if self.name in (*_BACKSLASH_ESCAPES, "bigquery", "hive", "databricks") else '"'
        return quote + name.replace(quote, quote * 2) + quote

    def table(self, name: str) -> str:
        """Return the name of a table, quoted; a dot is between a schema and its table."""
        return ".".join(self.identifier(part) for part in name.split("."))

    def literal(self, value: Any) -> str:
        r"""Return a value as it is written in SQL.

        >>> print(*(Dialect("postgresql").literal(value) for value in (None, True, 7, 0.5, "a", "\\")))
        NULL TRUE 7 0.5 'a' E'\\'
        >>> print(Dialect("postgresql").literal(datetime(2020, 1, 2, 3, 4)))
        TIMESTAMP '2020-01-02 03:04:00.000000'
        """
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return str(int(value)) if self.name in _NO_TRUTH else str(value).upper()
        if isinstance(value, int | float):
            return repr(value)
        if isinstance(value, datetime):
            return self._timestamp(value)
        if isinstance(value, date):
            return f"'{value.isoformat()}'" if self.name in ("sqlite", "mssql") else f"DATE '{value.isoformat()}'"
        return self._text(str(value))

    def equals(self, column: str, value: Any) -> str:
        """Return the condition that a column has this value, or none where it is None."""
        name = self.identifier(column)
        return f"{name} IS NULL" if value is None else f"{name} = {self.literal(value)}"

    def between(self, expression: str, lo: Any, hi: Any) -> str:
        """Return the condition that an expression is not below `lo`, and is below `hi`.

        SQLite has no times, only texts; they are compared whether a T or a space stands between date and time, and with
        however many digits.

        >>> Dialect("sqlite").between("t", datetime(2020, 1, 1), datetime(2020, 1, 2))
        "t >= '2020-01-01' AND t < '2020-01-02'"
        """
        if self.name != "sqlite" or not isinstance(lo, datetime):
            return f"{expression} >= {self.literal(lo)} AND {expression} < {self.literal(hi)}"
        exact = f"rtrim(replace({expression}, 'T', ' '), 'Z')"
        conditions = []
        for sign, at, today_is_enough in ((">=", lo, "{0} >= '{2}'"), ("<", hi, "{0} < '{1}'")):
            if len(_shortest(at)) == len("2020-01-01"):
                conditions.append(f"{expression} {sign} {self.literal(at)}")
                continue
            # By days first, which an index can do; only the rows of the day itself are looked at closely.
            day, next_day = at.date().isoformat(), (at + timedelta(days=1)).date().isoformat()
            conditions.append(f"{expression} {sign} '{day if sign == '>=' else next_day}'")
            near = today_is_enough.format(expression, day, next_day)
            conditions.append(f"({near} OR {exact} {sign} {self.literal(at)})")
        return " AND ".join(conditions)

    def _timestamp(self, value: datetime) -> str:
        if self.name == "sqlite":
            return f"'{_shortest(value)}'"
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
            return "E" + doubled  # means the same whatever standard_conforming_strings is
        return doubled if self.name in _BACKSLASH_ESCAPES else quoted


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of a cell whose column is from `lo` on and below `hi`; those without a value are in the first."""

    column: str
    lo: int | float | None
    hi: int | float | None

    def condition(self, dialect: Dialect) -> str | None:
        """Return which rows it has.

        >>> Slice("id", None, 10).condition(Dialect("sqlite"))
        '("id" < 10 OR "id" IS NULL)'
        """
        name = dialect.identifier(self.column)
        if self.lo is None:
            return None if self.hi is None else f"({name} < {dialect.literal(self.hi)} OR {name} IS NULL)"
        above = f"{name} >= {dialect.literal(self.lo)}"
        return above if self.hi is None else f"{above} AND {name} < {dialect.literal(self.hi)}"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for a range of a unit of a source, in the SQL of its database.

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
        """What rows are selected from."""
        if self.source.table is not None:
            return self.dialect.table(self._plain(self.source.table))
        return f"({self._filled(self.source.query or '').strip().rstrip(';')}\n) {self.dialect.identifier('q')}"

    @property
    def watermark(self) -> str | None:
        """What places a row in time, if the query does not see to it by itself."""
        if self.source.watermark is None or self._reads_range:
            return None
        name = self.dialect.identifier(self.source.watermark)
        if self.source.fallback is None:
            return name
        return f"COALESCE({name}, {self.dialect.identifier(self.source.fallback)})"

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that must be there."""
        source = self.source
        times = () if self.watermark is None else (source.watermark, source.fallback)
        return tuple(
            name for name in (*source.columns, *times, *self._units().keys(), source.split_by) if name is not None
        )

    def rows(self, items: list[str], split: Slice | None = None, *, nulls: bool = False) -> str:
        """Return the statement for the rows of the range, or for those without a watermark."""
        conditions = self._common()
        if self.watermark is not None:
            conditions.append(f"{self.watermark} IS NULL" if nulls else self._in_range(self.watermark))
        if split is not None and (condition := split.condition(self.dialect)):
            conditions.append(condition)
        return f"SELECT {', '.join(items)} FROM {self.relation}{_where(conditions)}"

    def ends(self, column: str) -> str:
        """Return the statement for the smallest and the largest value of a column in the range."""
        name = self.dialect.identifier(column)
        return self.rows([f"MIN({name})", f"MAX({name})"])

    def first_misplaced(self) -> str | None:
        """Return the statement that finds a row that no range would ever read, if there can be one.

        That is a row without a watermark, or one in SQLite that holds a number among texts or a text among numbers:
        they compare, but never as times. An index finds either at its ends.
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
        conditions = [*self._common(), f"({' OR '.join(tests)})"]
        is_null = f"CASE WHEN {self.watermark} IS NULL THEN 1 ELSE 0 END"
        top, limit = {"mssql": ("TOP 1 ", ""), "oracle": ("", " FETCH FIRST 1 ROWS ONLY")}.get(
            self.dialect.name, ("", " LIMIT 1")
        )
        return f"SELECT {top}{is_null} FROM {self.relation}{_where(conditions)}{limit}"

    @property
    def _reads_range(self) -> bool:
        return {"range.from", "range.to"} <= set(variable_names(self.source.query or ""))

    def _in_range(self, expression: str) -> str:
        return self.dialect.between(expression, self._edge(self.range.lo), self._edge(self.range.hi))

    def _edge(self, micros: int) -> Any:
        return first_value_at(micros, self.source.watermark_type, self.zone, self.source.pattern)

    def _units(self) -> dict[str, Any]:
        """Return the columns that tell a unit from others, with its values; not what the query names by itself."""
        source = self.source
        texts = " ".join(text for text in (source.query, source.where, source.table) if text)
        named = set(variable_names(texts))
        fields = self.unit.fields.items()
        return {source.units.get(field, field): value for field, value in fields if f"unit.{field}" not in named}

    def _common(self) -> list[str]:
        conditions = [self.dialect.equals(column, value) for column, value in self._units().items()]
        return [*conditions, f"({self._filled(self.source.where)}\n)"] if self.source.where else conditions

    def _filled(self, text: str) -> str:
        """Return a text of SQL with values in the places of what it names."""

        def value(match: re.Match[str]) -> str:
            if match[1] or match[3]:
                raise InvalidOption(
                    f"{{{{{match[2]}}}}} stands in quotes.",
                    rule="A variable in a query becomes a value as SQL writes it, with its own quotes.",
                    remedy="Leave the quotes out.",
                    option="query",
                )
            return self.dialect.literal(self._value(match[2]))

        return _VARIABLE.sub(value, text)

    def _plain(self, name: str) -> str:
        return _VARIABLE.sub(lambda match: str(self._value(match[2])), name)

    def _value(self, name: str) -> Any:
        if name in ("range.from", "range.to"):
            return self._edge(self.range.lo if name == "range.from" else self.range.hi)
        field = name.removeprefix("unit.")
        if field not in self.unit.fields:
            raise InvalidOption(
                f"The source names {name}, and the unit has no such field.",
                rule=f"A unit has the fields {', '.join(self.unit.fields) or '(none)'}.",
                remedy="Name one of them.",
                option="query",
            )
        return self.unit.fields[field]


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


_BACKSLASH_ESCAPES: Final = ("mysql", "mariadb")
_NO_TRUTH: Final = ("sqlite", "mssql", "oracle")


def _shortest(value: datetime) -> str:
    """Return the shortest way to write a time: every other way to write it sorts after it, and before what is later.

    >>> _shortest(datetime(2020, 1, 1, 10, 30)), _shortest(datetime(2020, 1, 1, 0, 0, 0, 500_000))
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
            f"The text {text!r} has a NUL character in it.",
            rule="No database takes one in a text or a name.",
            remedy="Leave it out; see where the unit or the name comes from.",
        )
