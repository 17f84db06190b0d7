"""The types of columns: as a driver delivers them, and as the rows of a split have them.

The schema of a source follows from the types that its database declares, never from the rows. So all splits of all
cells have the same one, also without rows.

| PostgreSQL | here |
|---|---|
| `smallint`, `integer`, `bigint`, `oid` | int16, int32, int64, int64 |
| `real`, `double precision` | float, double |
| `numeric(p, s)` with p up to 38; `money` | decimal128(p, s); decimal128(19, 2) |
| `numeric` without precision, or with more | string, the only type that holds all of them exactly |
| `text`, `varchar`, `char`, `name`, an enum | string |
| `boolean`, `bytea`, `date` | bool, binary, date32 |
| `timestamp` | timestamp in microseconds without a zone: wall time in the source's zone |
| `timestamptz` | timestamp in microseconds, UTC |
| a one-dimensional array of these, except `numeric` and `money` | a list of them |
| any other array | a list of string |
| any other type, such as `json`, `jsonb`, `uuid`, `time`, `interval`, `inet`, ranges | string, as PostgreSQL casts it |

A domain has the type it is based on.

In SQLite any column can hold values of any type. Here a column has its declared type, and a value that does not fit it
fails the cell.

| declared in SQLite | here |
|---|---|
| contains INT | int64 |
| contains REAL, FLOA or DOUB | double |
| BOOLEAN, BOOL | bool, from 0 and 1 |
| DATE | date32, from texts such as 2020-01-31 |
| TIMESTAMP, DATETIME | timestamp without a zone, from ISO texts or whole Unix seconds |
| DECIMAL(p, s), NUMERIC(p, s) with p up to 38 | decimal128(p, s) |
| contains BLOB or BINARY | binary |
| any other type, or none | string |

Times with an offset, and Unix seconds, become wall times in the source's zone. If the watermark column is declared as
TIMESTAMP or DATE, numbers in it are refused, unless `watermark_type` is one of epoch-*; then the column is int64.

In a query, an expression has no declared type, and SQLite may report a column without a type as BLOB, which is read as
binary. Give it a type with `CAST(... AS INTEGER)`.
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
from floodmark.ingest.extract.sql.dialect import without_texts
from floodmark.ingest.extract.sql.statements import Statements

MAX_DIGITS: Final = 38
"""The most digits of a decimal; numbers with more are read as text."""

_SECOND: Final = 1_000_000
_FIRST_DAY: Final = date(1, 1, 1)
_LAST_DAY: Final = date(9999, 12, 31)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how it is selected, the type in which the driver delivers it, and its final type."""

    name: str
    type: pa.DataType
    declared: str = ""
    """The name of its type in the database."""
    expression: str = "{}"
    """The SQL expression that is selected; braces stand for the quoted name."""
    raw: pa.DataType | None = None
    """The type in which the driver delivers it; None if that is the final type."""
    convert: Callable[[pa.Array], pa.Array] | None = None

    @property
    def received_type(self) -> pa.DataType:
        """The type in which the driver delivers it."""
        return self.type if self.raw is None else self.raw


def select_columns(
    columns: Sequence[Column], required: Iterable[str], selected: Sequence[str], relation: str
) -> list[Column]:
    """Return the selected columns, all if none are selected; refuse missing ones and duplicate names.

    >>> select_columns([Column("id", pa.int64())], ["idd"], [], "The table orders")
    Traceback (most recent call last):
    floodmark.errors.UnknownColumn: The table orders has no column 'idd'. ... Did you mean 'id'? [unknown-column]
    """
    by_name = {column.name: column for column in columns}
    if len(by_name) < len(columns):
        names = [column.name for column in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise DuplicateName(
            f"{relation} has two columns {twice!r}.",
            rule="The names of columns are unique.",
            remedy="Give one of them another name, as in SELECT a.id AS a_id.",
            column=twice,
        )
    for name in required:
        if name not in by_name:
            shown = ", ".join(list(by_name)[:12])
            raise UnknownColumn(
                f"{relation} has no column {name!r}.",
                rule="Names of columns are case-sensitive.",
                remedy=did_you_mean(name, by_name, otherwise=f"Name one of its columns: {shown}."),
                column=name,
            )
    return [by_name[name] for name in selected] if selected else list(columns)


def convert_batches(columns: Sequence[Column], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the final types of columns; one empty batch if there are no rows."""
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    is_empty = True
    for batch in batches:
        if batch.num_rows:
            is_empty = False
            arrays = [_convert_column(column, array) for column, array in zip(columns, batch.columns, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def value_unfit_error(column: Column, reason: object) -> SourceValueUnfit:
    """Return the error for a value that does not fit the type of its column."""
    return SourceValueUnfit(
        f"The column {column.name!r} ({column.declared or column.type}) has a value that does not fit its type: "
        f"{reason}.",
        rule=f"Each value is read as {column.type}, exactly.",
        remedy="Correct the row, or convert the column in a query, such as CAST(... AS TEXT).",
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
    """Refuse texts that are not UTF-8, and times outside the years 1 to 9999: a database may have either."""
    if pa.types.is_string(array.type):
        array.validate(full=True)
    if pa.types.is_timestamp(array.type) or pa.types.is_date32(array.type):
        # The database's infinity is delivered as one of the largest integers, or wraps around.
        is_date = pa.types.is_date32(array.type)
        ends = pc.min_max(array)
        integer = pa.int32() if is_date else pa.int64()
        low, high = (ends[name].cast(integer).as_py() for name in ("min", "max"))
        first, last = _calendar_bounds(is_date=is_date)
        if low is not None and not (first <= low and high <= last):
            raise ValueError("infinity, or a time before the year 1 or after 9999")


def _calendar_bounds(*, is_date: bool) -> tuple[int, int]:
    """Return the first and last valid value, in days for dates and in microseconds for timestamps."""
    ends = [pa.scalar(_FIRST_DAY, pa.date32()), pa.scalar(_LAST_DAY, pa.date32())]
    low, high = (end.cast(pa.int32()).as_py() for end in ends)
    if is_date:
        return low, high
    return low * 86_400 * _SECOND, (high + 1) * 86_400 * _SECOND - 1


def to_bool(array: pa.Array) -> pa.Array:
    """Return integers as booleans; only 0 and 1 are allowed.

    >>> to_bool(pa.array([0, 1, None])).to_pylist()
    [False, True, None]
    """
    if pa.types.is_boolean(array.type):
        return array
    invalid = pc.filter(array, pc.invert(pc.is_in(array, pa.array([0, 1, None], array.type))))
    if len(invalid):
        raise ValueError(f"{invalid[0]} is neither 0 nor 1")
    return array.cast(pa.bool_())


def to_timestamp(zone: ZoneInfo) -> Callable[[pa.Array], pa.Array]:
    """Return a function from texts to wall times in a zone: ISO 8601, with or without an offset, or Unix seconds.

    >>> texts = pa.array(["2020-01-01T10:00", "2020-01-01 10:00:00+00:00", "0", None])
    >>> [str(time) for time in to_timestamp(ZoneInfo("Asia/Kolkata"))(texts)]
    ['2020-01-01 10:00:00', '2020-01-01 15:30:00', '1970-01-01 05:30:00', 'None']
    """

    def parse(text: str | None) -> datetime | None:
        if text is None:
            return None
        if text.lstrip("-").isdigit() and len(text) != len("20200101"):
            return micros_to_wall(int(text) * _SECOND, zone).replace(fold=0)
        parsed = datetime.fromisoformat(text)
        return parsed if parsed.tzinfo is None else parsed.astimezone(zone).replace(tzinfo=None, fold=0)

    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass
        try:  # all texts have an offset
            moments = array.cast(pa.timestamp("us", "UTC"))
            return pc.local_timestamp(moments.cast(pa.timestamp("us", str(zone))))
        except pa.ArrowInvalid:
            return pa.array([parse(text) for text in array.to_pylist()], pa.timestamp("us"))

    return convert


def to_date(array: pa.Array) -> pa.Array:
    """Return texts as dates; a time of day other than midnight is an error.

    >>> to_date(pa.array(["2020-01-02", "2020-01-02 00:00:00"])).to_pylist()
    [datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)]
    """

    def parse(text: str | None) -> date | None:
        if text is None:
            return None
        parsed = datetime.fromisoformat(text)
        if parsed.time() != time.min:
            raise ValueError(f"{text!r} is no date")
        return parsed.date()

    try:
        return array.cast(pa.date32())
    except pa.ArrowInvalid:
        return pa.array([parse(text) for text in array.to_pylist()], pa.date32())


def to_arrow(values: Sequence[Any], column: Column) -> pa.Array:
    """Return Python values as an array of the column's received type."""
    try:
        if pa.types.is_integer(column.received_type):
            # Arrow would silently truncate floats.
            invalid = next((value for value in values if isinstance(value, float)), None)
            if invalid is not None:
                raise ValueError(f"{invalid} is no whole number")
        return pa.array(values, column.received_type)
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
    """Return a column of PostgreSQL by its type's name and modifier, and for an array by the type of its elements.

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
    """Return whether a PostgreSQL column of type `kind` can be compared with watermarks of `watermark_type`.

    PostgreSQL also compares other types, but the time zone of the session would then decide which rows are read.

    >>> fits_watermark("timestamptz", "timestamptz"), fits_watermark("timestamptz", "timestamp")
    (True, False)
    """
    if watermark_type in _POSTGRES_TIMES:
        return kind in _POSTGRES_TIMES[watermark_type]
    is_text = kind in ("text", "varchar", "bpchar", "name")
    return is_text if watermark_type == "text" else kind in _POSTGRES_NUMBERS


def watermark_type_of(kind: str) -> str:
    """Return the watermark type for a PostgreSQL column of type `kind`.

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
    # numeric(2, -3) has five digits before the point, numeric(3, 5) five after it.
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return pa.decimal128(precision, scale) if precision <= MAX_DIGITS else None


_SQLITE_VIEW: Final = "floodmark_part"
_SQLITE_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC|NUMBER)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_SQLITE_CAST: Final = "CAST({} AS TEXT)"

SQLITE_SAMPLES: Final = {pa.int64(): "0", pa.float64(): "0.0", pa.string(): "''", pa.binary(): "x''"}
"""A literal of each received type. The ADBC driver infers the type of a column from the first rows."""


def sqlite_columns(run: Callable[[str], list[tuple[Any, ...]]], statements: Statements) -> list[Column]:
    """Return the columns of a table or query as SQLite declares them; `run` runs a statement and returns its rows."""
    source, dialect, relation = statements.source, statements.dialect, statements.relation
    run(f"SELECT * FROM {relation} LIMIT 0")  # raises a clear error for a wrong table or query
    run(f"DROP VIEW IF EXISTS temp.{_SQLITE_VIEW}")
    run(f"CREATE TEMP VIEW {_SQLITE_VIEW} AS SELECT * FROM {without_texts(relation)}")  # a view takes no parameters
    kinds = {str(name): str(kind) for _, name, kind, *_ in run(f"PRAGMA temp.table_info({_SQLITE_VIEW})")}
    if statements.table is not None:
        # For a column without a type, newer versions of SQLite report BLOB in a view.
        *schema, table = map(dialect.identifier, statements.table)
        described = run(f"PRAGMA {'.'.join([*schema, 'table_xinfo'])}({table})")
        kinds |= {str(name): str(kind) for _, name, kind, *_ in described if name in kinds}
    columns = [sqlite_column(name, kind, statements.zone) for name, kind in kinds.items()]
    epoch = source.watermark if source.watermark_type.startswith("epoch") else None
    return [
        Column(column.name, pa.int64(), column.declared)
        if column.name == epoch and column.received_type not in (pa.int64(), pa.float64())
        else column
        for column in columns
    ]


def sqlite_column(name: str, declared: str, zone: str = "UTC") -> Column:
    """Return a column of SQLite by its declared type.

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
