"""The columns of what is read: what arrives from a driver, and what it becomes.

The schema of a source follows from what its database declares, never from the rows: each part of each cell has the
same one, also where there are no rows.

| PostgreSQL | here |
|---|---|
| `smallint`, `integer`, `bigint`, `oid` | int16, int32, int64, int64 |
| `real`, `double precision` | float, double |
| `numeric(p, s)` with p up to 38; `money` | decimal128(p, s); decimal128(19, 2) |
| `numeric` without precision, or with more | string, since nothing else holds all of them exactly |
| `text`, `varchar`, `char`, `name`, an enum | string |
| `boolean`, `bytea`, `date` | bool, binary, date32 |
| `timestamp` | timestamp in microseconds without a zone: what the clock of the source's zone showed |
| `timestamptz` | timestamp in microseconds, UTC |
| an array of one dimension of these, but for numbers with decimals | a list of them |
| an array of anything else | a list of string |
| everything else, as `json`, `jsonb`, `uuid`, `time`, `interval`, `inet`, ranges | string, as PostgreSQL writes it |

A domain is what it is a domain of.

In SQLite a value has a type and a column only wishes for one, so that anything can be anywhere. Here a column has the
type that is declared, and a value that is none of it fails the cell.

| declared in SQLite | here |
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

A column of a query that is more than a name has no declared type, and one without a type is binary there; `CAST(... AS
INTEGER)` gives it one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from floodmark._util.text import did_you_mean
from floodmark.errors import DuplicateName, SourceValueUnfit, UnknownColumn
from floodmark.ingest.calendar.clock import micros_to_wall
from floodmark.ingest.job.source import SqlSource

MAX_DIGITS: Final = 38
"""Of a decimal; what has more is read as text."""

_SECOND: Final = 1_000_000
_FIRST_DAY: Final = date(1, 1, 1)
_LAST_DAY: Final = date(9999, 12, 31)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how it is asked for, as which type it arrives, and which type it has in the end."""

    name: str
    type: pa.DataType
    declared: str = ""
    """As the database calls its type."""
    expression: str = "{}"
    """What is selected, with its quoted name in place of the braces."""
    raw: pa.DataType | None = None
    """As which type it arrives; by default as the one it has in the end."""
    convert: Callable[[pa.Array], pa.Array] | None = None

    @property
    def arrives(self) -> pa.DataType:
        """As which type it arrives."""
        return self.type if self.raw is None else self.raw


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema that rows have in the end."""
    return pa.schema([pa.field(one.name, one.type) for one in columns])


def select_columns(columns: Sequence[Column], named: Iterable[str], wanted: Sequence[str], what: str) -> list[Column]:
    """Return the columns that are wanted, all by default; refuse what is named and not there.

    >>> select_columns([Column("id", pa.int64())], ["idd"], [], "The table orders")
    Traceback (most recent call last):
    floodmark.errors.UnknownColumn: The table orders has no column 'idd'. ... Did you mean 'id'? [unknown-column]
    """
    found = {one.name: one for one in columns}
    if len(found) < len(columns):
        names = [one.name for one in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise DuplicateName(
            f"{what} has two columns {twice!r}.",
            rule="Each column has a name of its own.",
            remedy="Give one of them another name, as in SELECT a.id AS a_id.",
            column=twice,
        )
    for name in named:
        if name not in found:
            shown = ", ".join(list(found)[:12])
            raise UnknownColumn(
                f"{what} has no column {name!r}.",
                rule="Names are taken as they are written, upper and lower case.",
                remedy=did_you_mean(name, found, otherwise=f"There are {shown}."),
                column=name,
            )
    return [found[name] for name in wanted] if wanted else list(columns)


def convert_batches(columns: Sequence[Column], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the types that columns have in the end; one that is empty if there are no rows."""
    schema = schema_of(columns)
    is_empty = True
    for batch in batches:
        if batch.num_rows:
            is_empty = False
            arrays = [_convert_column(column, array) for column, array in zip(columns, batch.columns, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def value_unfit_error(column: Column, said: object) -> SourceValueUnfit:
    """Return the error of a value that is none of its column's type."""
    return SourceValueUnfit(
        f"The column {column.name!r} ({column.declared or column.type}) has a value that is none of its type: {said}.",
        rule=f"It is read as {column.type}; nothing is guessed, cut or left out.",
        remedy="Correct the row, or read a query that writes it otherwise, such as CAST(... AS TEXT).",
        column=column.name,
    )


def _convert_column(column: Column, array: pa.Array) -> pa.Array:
    try:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if column.convert is not None:
            array = column.convert(array)
        if array.type != column.type:
            array = array.cast(column.type)
        _check_texts_and_times(array)
        return array
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise value_unfit_error(column, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _check_texts_and_times(array: pa.Array) -> None:
    """Refuse texts that are no UTF-8, and times that no calendar has: a database may have either."""
    if pa.types.is_string(array.type):
        array.validate(full=True)
    if pa.types.is_timestamp(array.type) or pa.types.is_date32(array.type):
        # Infinity arrives as a number at the far end, or one that has run over it.
        naive = pa.timestamp("us") if pa.types.is_timestamp(array.type) else array.type
        ends = pc.min_max(array)
        low, high = (ends[name].cast(_is_number(naive)).as_py() for name in ("min", "max"))
        first, last = _numbers_check(naive)
        if low is not None and not (first <= low and high <= last):
            raise ValueError("infinity, or a time before the year 1 or after 9999")


def _is_number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _numbers_check(kind: pa.DataType) -> tuple[int, int]:
    ends = [pa.scalar(_FIRST_DAY, pa.date32()), pa.scalar(_LAST_DAY, pa.date32())]
    low, high = (one.cast(pa.int32()).as_py() for one in ends)
    if pa.types.is_date32(kind):
        return low, high
    return low * 86_400 * _SECOND, (high + 1) * 86_400 * _SECOND - 1


def to_bool(array: pa.Array) -> pa.Array:
    """Return numbers as truth values; only 0 and 1 are such.

    >>> to_bool(pa.array([0, 1, None])).to_pylist()
    [False, True, None]
    """
    if pa.types.is_boolean(array.type):
        return array
    strange = pc.filter(array, pc.invert(pc.is_in(array, pa.array([0, 1, None], array.type))))
    if len(strange):
        raise ValueError(f"{strange[0]} is neither 0 nor 1")
    return array.cast(pa.bool_())


def to_timestamp(zone: ZoneInfo) -> Callable[[pa.Array], pa.Array]:
    """Return what makes wall times in a zone of texts: ISO, with an offset or none, or whole seconds of Unix.

    >>> texts = pa.array(["2020-01-01T10:00", "2020-01-01 10:00:00+00:00", "0", None])
    >>> [str(one) for one in to_timestamp(ZoneInfo("Asia/Kolkata"))(texts)]
    ['2020-01-01 10:00:00', '2020-01-01 15:30:00', '1970-01-01 05:30:00', 'None']
    """

    def one(text: str | None) -> datetime | None:
        if text is None:
            return None
        if text.lstrip("-").isdigit() and len(text) != len("20200101"):
            return micros_to_wall(int(text) * _SECOND, zone).replace(fold=0)
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is None else found.astimezone(zone).replace(tzinfo=None, fold=0)

    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass
        try:  # all with an offset
            moments = array.cast(pa.timestamp("us", "UTC"))
            return pc.local_timestamp(moments.cast(pa.timestamp("us", str(zone))))
        except pa.ArrowInvalid:
            return pa.array([one(text) for text in array.to_pylist()], pa.timestamp("us"))

    return convert


def to_date(array: pa.Array) -> pa.Array:
    """Return dates of texts; one with a time of the day is none, unless that is midnight.

    >>> to_date(pa.array(["2020-01-02", "2020-01-02 00:00:00"])).to_pylist()
    [datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)]
    """

    def one(text: str | None) -> date | None:
        if text is None:
            return None
        found = datetime.fromisoformat(text)
        if found.time() != time.min:
            raise ValueError(f"{text!r} is no date")
        return found.date()

    try:
        return array.cast(pa.date32())
    except pa.ArrowInvalid:
        return pa.array([one(text) for text in array.to_pylist()], pa.date32())


def to_arrow(values: Sequence[Any], column: Column) -> pa.Array:
    """Return values of Python as what arrives of a column."""
    try:
        if pa.types.is_integer(column.arrives):
            # Arrow would cut it.
            strange = next((one for one in values if isinstance(one, float)), None)
            if strange is not None:
                raise ValueError(f"{strange} is no whole number")
        return pa.array(values, column.arrives)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise value_unfit_error(column, str(error).splitlines()[0]) from error


_POSTGRES_TYPES: Final = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_POSTGRES_TIMES: Final = {"timestamp": ("timestamp",), "timestamptz": ("timestamptz",), "date": ("date",)}
_POSTGRES_NUMBERS: Final = ("int2", "int4", "int8", "float4", "float8", "numeric")


def postgres_column(
    name: str, kind: str, modifier: int = -1, *, element: str | None = None, enum: bool = False
) -> Column:
    """Return a column by the name of its type, its modifier, and for an array the name of its elements' type.

    >>> postgres_column("price", "numeric", 655366).type, postgres_column("who", "uuid").type
    (Decimal128Type(decimal128(10, 2)), DataType(string))
    """
    if element is not None:
        if element in _POSTGRES_TYPES:
            return Column(name, pa.list_(_POSTGRES_TYPES[element]), kind)
        return Column(name, pa.list_(pa.string()), kind, "CAST({} AS text[])")
    if kind in _POSTGRES_TYPES:
        return Column(name, _POSTGRES_TYPES[kind], kind)
    if kind == "oid":
        return Column(name, pa.int64(), kind, "CAST({} AS int8)")
    if kind == "money":
        return Column(name, pa.decimal128(19, 2), kind, "CAST(CAST({} AS numeric(19, 2)) AS text)", pa.string())
    if kind == "numeric":
        exact = _postgres_decimal(modifier)
        return Column(name, exact or pa.string(), kind, "CAST({} AS text)", pa.string() if exact else None)
    return Column(name, pa.string(), kind, "{}" if enum else "CAST({} AS text)")


def fits_watermark(kind: str, watermark_type: str) -> bool:
    """Return whether a column of this type holds watermarks of that one.

    PostgreSQL would compare more, by the zone of its session: with other rows for another session.

    >>> fits_watermark("timestamptz", "timestamptz"), fits_watermark("timestamptz", "timestamp")
    (True, False)
    """
    if watermark_type in _POSTGRES_TIMES:
        return kind in _POSTGRES_TIMES[watermark_type]
    is_text = kind in ("text", "varchar", "bpchar", "name")
    return is_text if watermark_type == "text" else kind in _POSTGRES_NUMBERS


def watermark_type_of(kind: str) -> str:
    """Return the watermark type that fits columns of this type.

    >>> watermark_type_of("timestamptz"), watermark_type_of("int8")
    ('timestamptz', 'epoch-seconds')
    """
    if kind in _POSTGRES_TIMES:
        return kind
    return "epoch-seconds" if kind in _POSTGRES_NUMBERS else "text"


def _postgres_decimal(modifier: int) -> pa.DataType | None:
    if modifier < 4:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    scale = scale - 0x800 if scale >= 0x400 else scale
    # numeric(2, -3) has five digits before the point, numeric(3, 5) five behind it.
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return pa.decimal128(precision, scale) if precision <= MAX_DIGITS else None


_SQLITE_VIEW: Final = "floodmark_part"
_SQLITE_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC|NUMBER)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_SQLITE_CAST: Final = "CAST({} AS TEXT)"

SQLITE_PRIMES: Final = {pa.int64(): "0", pa.float64(): "0.0", pa.string(): "''", pa.binary(): "x''"}
"""A value of each type that arrives. The driver takes the type of a column from the first rows that it sees."""


def sqlite_columns(
    ask: Callable[[str], list[tuple[Any, ...]]], relation: str, source: SqlSource, zone: str
) -> list[Column]:
    """Return the columns of a table or query, as SQLite describes them when it is asked."""
    ask(f"SELECT * FROM {relation} LIMIT 0")  # says what is wrong, if something is
    ask(f"DROP VIEW IF EXISTS temp.{_SQLITE_VIEW}")
    ask(f"CREATE TEMP VIEW {_SQLITE_VIEW} AS SELECT * FROM {relation}")
    kinds = {str(name): str(kind) for _, name, kind, *_ in ask(f"PRAGMA temp.table_info({_SQLITE_VIEW})")}
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
        return Column(name, pa.date32(), declared, _SQLITE_CAST, pa.string(), to_date)
    if word.startswith(("TIMESTAMP", "DATETIME")):
        return Column(name, pa.timestamp("us"), declared, _SQLITE_CAST, pa.string(), to_timestamp(ZoneInfo(zone)))
    if digits := _SQLITE_DECIMAL.match(kind):
        precision, scale = int(digits[1]), int(digits[2] or 0)
        if 0 < precision <= MAX_DIGITS and scale <= precision:
            return Column(name, pa.decimal128(precision, scale), declared, _SQLITE_CAST, pa.string())
    if "INT" in kind:
        return Column(name, pa.int64(), declared)
    if not any(text in kind for text in ("CHAR", "CLOB", "TEXT")):
        if "BLOB" in kind or "BINARY" in kind:
            return Column(name, pa.binary(), declared, "CAST({} AS BLOB)")
        if any(text in kind for text in ("REAL", "FLOA", "DOUB")):
            return Column(name, pa.float64(), declared)
    return Column(name, pa.string(), declared, _SQLITE_CAST)
