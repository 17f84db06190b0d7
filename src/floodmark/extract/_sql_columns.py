"""The columns of what is read: what arrives from a driver, and what it becomes.

The schema of a source follows from what its database declares, never from the rows: each part of each cell has the
same one, also where there are no rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from floodmark._util.text import did_you_mean
from floodmark.errors import DuplicateName, SourceValueUnfit, UnknownColumn
from floodmark.ingest._calendar import wall

MOST_DIGITS: Final = 38
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


def chosen(columns: Sequence[Column], named: Iterable[str], wanted: Sequence[str], what: str) -> list[Column]:
    """Return the columns that are wanted, all by default; refuse what is named and not there.

    >>> chosen([Column("id", pa.int64())], ["idd"], [], "The table orders")
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


def converted(columns: Sequence[Column], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the types that columns have in the end; one that is empty if there are no rows."""
    schema = schema_of(columns)
    is_empty = True
    for batch in batches:
        if batch.num_rows:
            is_empty = False
            arrays = [_converted(column, array) for column, array in zip(columns, batch.columns, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def value_unfit(column: Column, said: object) -> SourceValueUnfit:
    """Return the error of a value that is none of its column's type."""
    return SourceValueUnfit(
        f"The column {column.name!r} ({column.declared or column.type}) has a value that is none of its type: {said}.",
        rule=f"It is read as {column.type}; nothing is guessed, cut or left out.",
        remedy="Correct the row, or read a query that writes it otherwise, such as CAST(... AS TEXT).",
        column=column.name,
    )


def _converted(column: Column, array: pa.Array) -> pa.Array:
    try:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if column.convert is not None:
            array = column.convert(array)
        if array.type != column.type:
            array = array.cast(column.type)
        _check(array)
        return array
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise value_unfit(column, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _check(array: pa.Array) -> None:
    """Refuse texts that are no UTF-8, and times that no calendar has: a database may have either."""
    if pa.types.is_string(array.type):
        array.validate(full=True)
    if pa.types.is_timestamp(array.type) or pa.types.is_date32(array.type):
        # Infinity arrives as a number at the far end, or one that has run over it.
        naive = pa.timestamp("us") if pa.types.is_timestamp(array.type) else array.type
        ends = pc.min_max(array)
        low, high = (ends[name].cast(_number(naive)).as_py() for name in ("min", "max"))
        first, last = _numbers(naive)
        if low is not None and not (first <= low and high <= last):
            raise ValueError("infinity, or a time before the year 1 or after 9999")


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _numbers(kind: pa.DataType) -> tuple[int, int]:
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
            return wall(int(text) * _SECOND, zone).replace(fold=0)
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


def arrow_of(values: Sequence[Any], column: Column) -> pa.Array:
    """Return values of Python as what arrives of a column."""
    try:
        if pa.types.is_integer(column.arrives):
            # Arrow would cut it.
            strange = next((one for one in values if isinstance(one, float)), None)
            if strange is not None:
                raise ValueError(f"{strange} is no whole number")
        return pa.array(values, column.arrives)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise value_unfit(column, str(error).splitlines()[0]) from error
