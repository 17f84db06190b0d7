"""How a value and a name are written in the SQL of a database.

Values are written into the text, since the fast way out of PostgreSQL takes no parameters. So everything that comes
from a job or a unit passes here, and nowhere else.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from floodmark.errors import InvalidOption

_BACKSLASH_ESCAPES: Final = ("mysql", "mariadb")
_NO_TRUTH: Final = ("sqlite", "mssql", "oracle")


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
