"""The statements that read a part: what is selected, of what, and under which conditions."""

import re
from dataclasses import dataclass
from typing import Any, Final

from floodmark.errors import InvalidOption
from floodmark.extract._sql_dialect import Dialect
from floodmark.ingest._edges import edge
from floodmark.ingest._ranges import Range
from floodmark.ingest._source_spec import SqlSource
from floodmark.ingest._unit import Unit
from floodmark.ingest._variables import names_in

_NAMED: Final = re.compile(r"('?)\{\{\s*((?:range|unit)\.[^{}]*?)\s*\}\}('?)")


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
        return {"range.from", "range.to"} <= set(names_in(self.source.query or ""))

    def _in_range(self, expression: str) -> str:
        return self.dialect.between(expression, self._edge(self.range.lo), self._edge(self.range.hi))

    def _edge(self, micros: int) -> Any:
        return edge(micros, self.source.watermark_type, self.zone, self.source.pattern)

    def _units(self) -> dict[str, Any]:
        """Return the columns that tell a unit from others, with its values; not what the query names by itself."""
        source = self.source
        texts = " ".join(text for text in (source.query, source.where, source.table) if text)
        named = set(names_in(texts))
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

        return _NAMED.sub(value, text)

    def _plain(self, name: str) -> str:
        return _NAMED.sub(lambda match: str(self._value(match[2])), name)

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
