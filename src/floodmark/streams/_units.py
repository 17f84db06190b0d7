"""Times of a stream: int64 in its unit, or datetimes with a zone."""

from datetime import UTC, datetime, timedelta
from typing import Final

from floodmark.errors import InvalidOption, NaiveTime
from floodmark.progress._int64 import check_watermark

Time = int | datetime
"""A time of a stream: a whole number in the stream's unit, or a datetime with a zone."""

UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of each unit make a second."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(value: object, unit: str) -> int:
    """Return a time in the unit of its stream, or refuse it. What the unit cannot say is rounded down.

    >>> time_of(datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC), "ms")
    1999
    >>> time_of(5.0, "ms")
    Traceback (most recent call last):
    floodmark.errors.NotInt64: The time is 5.0. It must be a whole number ... [not-int64]
    """
    if not isinstance(value, datetime):
        return check_watermark(value, "time")
    if value.tzinfo is None:
        raise NaiveTime(
            f"The time is {value.isoformat()}, without a zone.",
            rule="A datetime says which moment it is only with its zone.",
            remedy="Add one, for example with .replace(tzinfo=UTC).",
            value=value,
        )
    return micros_in(unit, (value - _EPOCH) // timedelta(microseconds=1))


def micros_in(unit: str, micros: int) -> int:
    """Return microseconds since the epoch in another unit, rounded down.

    >>> micros_in("ns", 7), micros_in("s", 1_999_999)
    (7000, 1)
    """
    return micros * UNITS[unit] // UNITS["us"]


def check_unit(unit: object) -> str:
    """Return `unit` if times can have it.

    >>> check_unit("minutes")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: unit is 'minutes'. It is one of 's', 'ms', 'us', 'ns'. ... [invalid-option]
    """
    if isinstance(unit, str) and unit in UNITS:
        return unit
    raise InvalidOption(
        f"unit is {unit!r}.",
        rule=f"It is one of {', '.join(map(repr, UNITS))}.",
        remedy="Leave it out for microseconds, which is what Spark has.",
        option="unit",
        value=unit,
    )
