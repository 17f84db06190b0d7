r"""Dialects: how names and values are written in the SQL of a database, and where a variable of a query may stand.

Values of units come from other systems, so none of them may become SQL. Numbers, booleans and times are written as
literals, which have no quotes of their own. A text is bound as a parameter:

| database | a text |
|---|---|
| PostgreSQL | a literal, since COPY takes no parameters: `'...'`, or `E'...'` if it has a backslash |
| any other | a parameter of the driver |

Inside a statement a bound text stands between two NUL characters, which no name, query or value may contain;
`split_texts` separates the two for the driver. Names cannot be bound. In a database that is not listed in `_SYNTAX`,
a name with a quote or a backslash is refused, because its rules for quoting are unknown.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal

from floodmark._util.text import is_storable
from floodmark.errors import InvalidOption

Enclosure = Literal["quotes", "a comment"]


@dataclass(frozen=True, slots=True)
class _Syntax:
    """How a database quotes names, and what else it takes for quotes and comments than ' " -- and /* */."""

    name_quote: str
    backslash: bool = False
    """Whether a backslash escapes a quote."""
    backslash_after_e: bool = False
    """Whether it does so in E'...'."""
    backtick: bool = False
    bracket: bool = False
    dollar: bool = False
    """Whether $tag$ encloses a text."""
    q_quote: bool = False
    """Whether q'[...]' encloses a text."""
    triple_quote: bool = False
    hash_comment: bool = False
    nested_comment: bool = False

    @property
    def opener(self) -> re.Pattern[str]:
        """The beginning of a quoted text, a quoted name or a comment."""
        return re.compile(
            "|".join(
                [
                    *([r"(?<!\w)[eE]'"] if self.backslash_after_e else []),
                    *([r"(?<!\w)[nN]?[qQ]'"] if self.q_quote else []),
                    *([r"(?<![\w$])\$(?:[^\W\d]\w*)?\$"] if self.dollar else []),
                    *(["'''|\"\"\""] if self.triple_quote else []),
                    *(["`"] if self.backtick else []),
                    *([r"\["] if self.bracket else []),
                    *(["#"] if self.hash_comment else []),
                    r"'|\"|--|/\*",
                ]
            )
        )


_SYNTAX: Final = {
    "postgresql": _Syntax('"', backslash_after_e=True, dollar=True, nested_comment=True),
    "sqlite": _Syntax('"', backtick=True, bracket=True),
    "mysql": _Syntax("`", backslash=True, backtick=True, hash_comment=True),
    "mariadb": _Syntax("`", backslash=True, backtick=True, hash_comment=True),
    "mssql": _Syntax("[", bracket=True, nested_comment=True),
    "oracle": _Syntax('"', q_quote=True),
}
_OTHER_READINGS: Final = (*_SYNTAX.values(), _Syntax("`", backslash=True, triple_quote=True, hash_comment=True))
"""What a query means in a database that is not listed: a variable must stand outside quotes in all of them."""

POSTGRES_SETTINGS: Final = "set_config('TimeZone', 'UTC', true), set_config('standard_conforming_strings', 'on', true)"
"""What a connection to PostgreSQL sets first: times as UTC, and quotes as `enclosures` reads them."""

_BACKTICK_NAMES: Final = ("bigquery", "hive", "databricks")
_UNSAFE_IN_NAMES: Final = re.compile(r"[\"'`\\\[\]\x00-\x1f\x7f]")
_LITERAL_TEXTS: Final = ("postgresql", "sqlite", "mysql", "mariadb")
_NO_BOOLEANS: Final = ("sqlite", "mssql", "oracle")
_BRACKETS: Final = {"[": "]", "(": ")", "{": "}", "<": ">"}
_REST_OF_LINE: Final = re.compile(r"[^\r\n]*")
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL dialect of a database, by its name in SQLAlchemy.

    >>> print(Dialect("postgresql").table(["shop", 'Order "x" lines']))
    "shop"."Order ""x"" lines"
    >>> print(Dialect("postgresql").equals("name", "it's"))
    "name" = 'it''s'
    >>> split_texts(Dialect("mysql").equals("name", "it's"))
    (['`name` = ', ''], ["it's"])
    """

    name: str

    @property
    def binds(self) -> bool:
        """Whether texts are bound as parameters instead of being written as literals."""
        return self.name != "postgresql"

    def identifier(self, name: str) -> str:
        """Return a quoted name of a column, which keeps its case and special characters."""
        _refuse_unstorable(name)
        syntax = _SYNTAX.get(self.name)
        if syntax is None and _UNSAFE_IN_NAMES.search(name):
            raise InvalidOption(
                f"The name {name!r} has a quote, a bracket, a backslash or a control character.",
                rule=f"Such a name can be quoted for {', '.join(_SYNTAX)} only, and the database is {self.name}.",
                remedy="Read a view with other names, or leave the value out of the units of the job.",
                name=name,
            )
        quote = syntax.name_quote if syntax else "`" if self.name in _BACKTICK_NAMES else '"'
        end = _BRACKETS.get(quote, quote)
        return quote + name.replace(end, end * 2) + end

    def table(self, parts: list[str]) -> str:
        """Return the quoted name of a table; its parts are the schema, if any, and the table."""
        return ".".join(self.identifier(part) for part in parts)

    def value(self, value: Any) -> str:
        """Return a value as SQL: a text as a parameter if the dialect binds texts, anything else as a literal."""
        if isinstance(value, str) and self.binds:
            _refuse_unstorable(value)
            return f"\0{value}\0"
        return self.literal(value)

    def literal(self, value: Any) -> str:
        r"""Return a value as an SQL literal; a text only for databases whose literals are known.

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
        return f"{name} IS NULL" if value is None else f"{name} = {self.value(value)}"

    def between(self, expression: str, lo: Any, hi: Any) -> str:
        """Return the condition `lo <= expression < hi`.

        SQLite stores times as texts; they are compared as times whether date and time are separated by T or a space,
        and with any number of digits.

        >>> Dialect("sqlite").between("t", datetime(2020, 1, 1), datetime(2020, 1, 2))
        "t >= '2020-01-01' AND t < '2020-01-02'"
        """
        if self.name != "sqlite" or not isinstance(lo, datetime):
            return f"{expression} >= {self.value(lo)} AND {expression} < {self.value(hi)}"
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

    def enclosures(self, query: str) -> list[tuple[int, int, Enclosure]]:
        """Return the quoted texts, quoted names and comments of a query, as start, end and kind.

        A quote that is not closed reaches to the end. For a database that is not listed in `_SYNTAX`, these are the
        enclosures by the rules of several others.

        >>> Dialect("sqlite").enclosures("SELECT 'it''s' -- all")
        [(7, 14, 'quotes'), (15, 21, 'a comment')]
        """
        known = _SYNTAX.get(self.name)
        return [span for syntax in ([known] if known else _OTHER_READINGS) for span in _enclosures(query, syntax)]

    def _timestamp(self, value: datetime) -> str:
        if self.name == "sqlite":
            return f"'{_shortest_text(value)}'"
        text = value.isoformat(" ", "microseconds")
        if self.name == "mssql":
            return f"CAST('{text}' AS {'DATETIME2' if value.tzinfo is None else 'DATETIMEOFFSET'}(6))"
        if value.tzinfo is None or self.name in ("mysql", "mariadb"):
            return f"TIMESTAMP '{text}'"
        return f"TIMESTAMPTZ '{text}'" if self.name == "postgresql" else f"CAST('{text}' AS TIMESTAMP WITH TIME ZONE)"

    def _text(self, value: str) -> str:
        _refuse_unstorable(value)
        if self.name not in _LITERAL_TEXTS:
            raise InvalidOption(
                f"The text {value!r} cannot be written as a literal for {self.name}.",
                rule=f"How quotes and backslashes are read is known for {', '.join(_LITERAL_TEXTS)} only.",
                remedy="Bind it as a parameter, with Dialect.value.",
            )
        quoted = "'" + value.replace("'", "''") + "'"
        if self.name == "sqlite" or "\\" not in value:
            return quoted
        # In PostgreSQL, the E form does not depend on standard_conforming_strings.
        return ("E" if self.name == "postgresql" else "") + quoted.replace("\\", "\\\\")


def split_texts(statement: str) -> tuple[list[str], list[str]]:
    """Return the SQL before, between and after the bound texts of a statement, and these texts."""
    parts = statement.split("\0")
    return parts[::2], parts[1::2]


def without_texts(statement: str) -> str:
    """Return a statement with an empty text for each bound one: it has the same columns, and nothing to bind."""
    return "''".join(split_texts(statement)[0])


def _enclosures(query: str, syntax: _Syntax) -> list[tuple[int, int, Enclosure]]:
    spans: list[tuple[int, int, Enclosure]] = []
    opener, position = syntax.opener, 0
    while match := opener.search(query, position):
        opening, start = match[0], match.start()
        if opening in ("--", "#"):
            end = _match_end(_REST_OF_LINE, query, match.end())
        elif opening == "/*":
            end = _comment_end(query, match.end(), nested=syntax.nested_comment)
        elif opening.startswith("$"):
            end = _end_after(opening, query, match.end())
        elif opening[-2:-1] in ("q", "Q"):
            delimiter = query[match.end() : match.end() + 1]
            end = _end_after(_BRACKETS.get(delimiter, delimiter) + "'", query, match.end() + 1)
        elif len(opening) == 3:
            end = _match_end(re.compile(rf"(?:\\.|(?!{opening})[^\\])*+{opening}", re.DOTALL), query, match.end())
        else:
            has_escapes = opening[-1] in "'\"" and (syntax.backslash or len(opening) > 1)
            end = _match_end(_quote_end(opening[-1], has_escapes=has_escapes), query, match.end())
        spans.append((start, end, "a comment" if opening in ("--", "#", "/*") else "quotes"))
        position = end
    return spans


def _quote_end(quote: str, *, has_escapes: bool) -> re.Pattern[str]:
    """Return the pattern of all up to the closing quote; a doubled quote does not close."""
    end = re.escape(_BRACKETS.get(quote, quote))
    # Possessive, so that a doubled quote is never taken apart to close a text that is not closed.
    escaped, others = (r"\\.|", r"\\") if has_escapes else ("", "")
    return re.compile(rf"(?:{escaped}{end}{end}|[^{end}{others}])*+{end}", re.DOTALL)


def _match_end(pattern: re.Pattern[str], query: str, position: int) -> int:
    match = pattern.match(query, position)
    return match.end() if match else len(query)


def _end_after(closing: str, query: str, position: int) -> int:
    found = query.find(closing, position)
    return len(query) if found < 0 else found + len(closing)


def _comment_end(query: str, position: int, *, nested: bool) -> int:
    depth = 1
    for edge in _BLOCK_EDGE.finditer(query, position):
        if edge[0] == "*/":
            depth -= 1
        elif nested:
            depth += 1
        if not depth:
            return edge.end()
    return len(query)


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


def _refuse_unstorable(text: str) -> None:
    if not is_storable(text):
        raise InvalidOption(
            f"The text {text!r} contains a NUL character or half of a surrogate pair.",
            rule="Databases accept neither in texts and names.",
            remedy="Remove it from the unit's value or from the name in the job file.",
        )
