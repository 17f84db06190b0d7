"""Rows of a batch by their time: those from a start on, and before an end."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark._util.times import UNITS_PER_SECOND
from floodmark.streams._settings import StreamSettings

Rows = Callable[[Any], Any]


def rows_between(settings: StreamSettings, key: str, since: int | None, until: int | None) -> Rows | None:
    """Return what takes the rows with since <= time < until out of a batch; None if all rows are to be taken.

    That is so where there are no bounds, and where the stream has no column of times for the key. Rows without a time
    are taken.

    >>> schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    >>> settings = StreamSettings(schema, time_columns={"at": "at"}, unit="ms")
    >>> batch = pa.record_batch({"at": pa.array([1_000, 2_000, 3_000, None], pa.timestamp("us", "UTC"))})
    >>> rows_between(settings, "at", 2, 3)(batch).num_rows
    2
    """
    wanted = wanted_between(settings, key, since, until)
    return None if wanted is None else lambda batch: batch.filter(wanted(batch))


def wanted_between(settings: StreamSettings, key: str, since: int | None, until: int | None) -> Rows | None:
    """Return what tells which rows of a batch `rows_between` takes; None if all rows are to be taken."""
    column = settings.time_columns.get(key)
    if (since is None and until is None) or settings.schema is None or column is None:
        return None
    kind = settings.schema.field(column).type
    per_second = _per_second(kind, settings.unit)
    if per_second is None:
        return None
    of_stream = UNITS_PER_SECOND[settings.unit]
    low, high = (None if time is None else _scaled(time, *per_second, of_stream) for time in (since, until))

    def tell(batch: Any) -> Any:
        times = batch.column(column)
        numbers = times.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else times.cast(pa.int64())
        wanted = None if low is None else pc.greater_equal(numbers, low)
        if high is not None:
            before = pc.less(numbers, high)
            wanted = before if wanted is None else pc.and_(wanted, before)
        return pc.fill_null(wanted, True)

    return tell


def _per_second(kind: Any, unit: str) -> tuple[int, int] | None:
    """Return how many units of a column make how many seconds; None for a column that holds no times."""
    if pa.types.is_timestamp(kind):
        return UNITS_PER_SECOND[kind.unit], 1
    if pa.types.is_integer(kind):
        return UNITS_PER_SECOND[unit], 1
    return (1, 86_400) if pa.types.is_date32(kind) else None


def _scaled(time: int, units: int, seconds: int, of_stream: int) -> int:
    """Return a time of the stream in units of the column, rounded up: what is not below it is not before the time."""
    scaled = -(-time * units // (of_stream * seconds))
    return max(INT64_MIN, min(INT64_MAX, scaled))
