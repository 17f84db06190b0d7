"""Which types the columns of SQLite have outside it: those that are declared.

In SQLite a value has a type and a column only wishes for one, so that anything can be anywhere. Here a column has the
type that is declared, and a value that is none of it fails the cell.

| declared | here |
|---|---|
| has INT in it | int64 |
| has REAL, FLOA or DOUB in it | double |
| BOOLEAN, BOOL | bool, of 0 and 1 |
| DATE | date32, of texts such as 2020-01-31 |
| TIMESTAMP, DATETIME | timestamp without a zone, of ISO texts, or of whole seconds of Unix |
| DECIMAL(p, s), NUMERIC(p, s) with p up to 38 | decimal128(p, s) |
| has BLOB or BINARY in it | binary |
| anything else, and nothing | string |

A time with an offset, and one in seconds of Unix, becomes what a clock in the source's zone showed then. In a
TIMESTAMP or a DATE that is the watermark, numbers are refused unless `watermark_type` says that they are epochs; then
the column is int64.

A column of a query that is more than a name has no declared type, and one without a type is binary there;
`CAST(... AS INTEGER)` gives it one.
"""

import re
from collections.abc import Callable
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from floodmark.extract._sql_columns import MOST_DIGITS, Column, to_bool, to_date, to_timestamp
from floodmark.ingest._source_spec import SqlSource

VIEW: Final = "floodmark_part"
_DIGITS: Final = re.compile(r"(?:DECIMAL|NUMERIC|NUMBER)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_TEXT: Final = "CAST({} AS TEXT)"

PRIMES: Final = {pa.int64(): "0", pa.float64(): "0.0", pa.string(): "''", pa.binary(): "x''"}
"""A value of each type that arrives. The driver takes the type of a column from the first rows that it sees."""


def sqlite_columns(
    ask: Callable[[str], list[tuple[Any, ...]]], relation: str, source: SqlSource, zone: str
) -> list[Column]:
    """Return the columns of a table or query, as SQLite describes them when it is asked."""
    ask(f"SELECT * FROM {relation} LIMIT 0")  # says what is wrong, if something is
    ask(f"DROP VIEW IF EXISTS temp.{VIEW}")
    ask(f"CREATE TEMP VIEW {VIEW} AS SELECT * FROM {relation}")
    kinds = {str(name): str(kind) for _, name, kind, *_ in ask(f"PRAGMA temp.table_info({VIEW})")}
    if source.table is not None:
        # Newer versions say BLOB of a column of a view that has no type.
        schema, dot, table = relation.rpartition(".")
        described = ask(f"PRAGMA {schema}{dot}table_xinfo({table})")
        kinds |= {str(name): str(kind) for _, name, kind, *_ in described if name in kinds}
    columns = [sqlite_column(name, kind, zone) for name, kind in kinds.items()]
    epoch = source.watermark if source.watermark_type.startswith("epoch") else None
    return [
        Column(one.name, pa.int64(), one.declared)
        if one.name == epoch and one.arrives not in (pa.int64(), pa.float64())
        else one
        for one in columns
    ]


def sqlite_column(name: str, declared: str, zone: str = "UTC") -> Column:
    """Return a column by its declared type.

    >>> sqlite_column("price", "DECIMAL(10, 2)").type, sqlite_column("n", "unsigned big int").type
    (Decimal128Type(decimal128(10, 2)), DataType(int64))
    """
    kind = declared.upper().strip()
    word = kind.partition("(")[0].strip()
    if word in ("BOOLEAN", "BOOL"):
        return Column(name, pa.bool_(), declared, raw=pa.int64(), convert=to_bool)
    if word == "DATE":
        return Column(name, pa.date32(), declared, _TEXT, pa.string(), to_date)
    if word.startswith(("TIMESTAMP", "DATETIME")):
        return Column(name, pa.timestamp("us"), declared, _TEXT, pa.string(), to_timestamp(ZoneInfo(zone)))
    if digits := _DIGITS.match(kind):
        precision, scale = int(digits[1]), int(digits[2] or 0)
        if 0 < precision <= MOST_DIGITS and scale <= precision:
            return Column(name, pa.decimal128(precision, scale), declared, _TEXT, pa.string())
    if "INT" in kind:
        return Column(name, pa.int64(), declared)
    if not any(text in kind for text in ("CHAR", "CLOB", "TEXT")):
        if "BLOB" in kind or "BINARY" in kind:
            return Column(name, pa.binary(), declared, "CAST({} AS BLOB)")
        if any(text in kind for text in ("REAL", "FLOA", "DOUB")):
            return Column(name, pa.float64(), declared)
    return Column(name, pa.string(), declared, _TEXT)
