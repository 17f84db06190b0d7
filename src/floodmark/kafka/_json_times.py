"""Dates and timestamps as ISO-8601 text, over the whole range that Arrow can hold.

Years of more than four digits, and those before the year 0, have a sign, as ISO-8601 and Spark write them.
"""

import re
from datetime import date
from typing import Final

PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
"""How many of a timestamp's units a second has."""
DIGITS: Final = {"s": 0, "ms": 3, "us": 6}
"""How many digits the fraction of a second has."""

_DATE: Final = r"([+-]?\d{4,12})-(\d\d)-(\d\d)"
_ZONE: Final = r"(Z|[+-]\d\d(?::?\d\d)?)"
_TIME: Final = rf"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{{1,9}}))?)?)?{_ZONE}?"
_IS_DATE: Final = re.compile(_DATE, re.ASCII)
_IS_TIMESTAMP: Final = re.compile(f"{_DATE}(?:[T ]{_TIME})?", re.ASCII)
# The calendar repeats after 400 years; those from 2000 on stand for all others.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_CYCLE_START: Final = 2000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_START_DAY: Final = date(_CYCLE_START, 1, 1).toordinal() - _EPOCH
_DAY: Final = 86_400


def read_date(text: str) -> int:
    """Return a date as days since 1970, or raise ValueError.

    >>> read_date("2026-01-01"), read_date("-0001-12-31")
    (20454, -719529)
    """
    match = _IS_DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date like 2026-01-31")
    return _fits(_days(match[1], match[2], match[3]), 31)


def read_timestamp(text: str, unit: str, *, has_zone: bool) -> int:
    """Return a timestamp as units since 1970, or raise ValueError.

    With a zone, the text's own offset counts, and UTC where it has none; without, an offset is refused. What is finer
    than the unit is cut off, as Spark does.

    >>> read_timestamp("1970-01-01T02:00:01.5+02:00", "ms", has_zone=True)
    1500
    >>> read_timestamp("1970-01-01T00:00:00Z", "us", has_zone=False)
    Traceback (most recent call last):
    ValueError: has a zone offset, the column has none
    """
    match = _IS_TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp like 2026-01-31T10:00:00Z")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError("no such time of day")
    if zone is not None and not has_zone:
        raise ValueError("has a zone offset, the column has none")
    seconds = _days(year, month, day) * _DAY + clock[0] * 3600 + clock[1] * 60 + clock[2] - _offset(zone)
    digits = DIGITS[unit]
    parts = int((fraction or "").ljust(digits, "0")[:digits] or 0)
    return _fits(seconds * PER_SECOND[unit] + parts, 63)


def write_date(days: int) -> str:
    """Return a date as text.

    >>> write_date(20454), write_date(2932897)
    ('2026-01-01', '+10000-01-01')
    """
    cycles, rest = divmod(days - _START_DAY, _CYCLE_DAYS)
    day = date.fromordinal(rest + _START_DAY + _EPOCH)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04}-{day.month:02}-{day.day:02}"


def write_timestamp(value: int, unit: str, *, has_zone: bool) -> str:
    """Return a timestamp as text, in UTC where it has a zone, with all digits of its unit.

    >>> write_timestamp(1500, "ms", has_zone=True), write_timestamp(-1, "us", has_zone=False)
    ('1970-01-01T00:00:01.500Z', '1969-12-31T23:59:59.999999')
    """
    seconds, parts = divmod(value, PER_SECOND[unit])
    days, second = divmod(seconds, _DAY)
    fraction = f".{parts:0{DIGITS[unit]}}" if DIGITS[unit] else ""
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{write_date(days)}T{clock}{fraction}{'Z' if has_zone else ''}"


def _days(year: str, month: str, day: str) -> int:
    cycles, rest = divmod(int(year) - _CYCLE_START, _CYCLE_YEARS)
    try:
        found = date(_CYCLE_START + rest, int(month), int(day))
    except ValueError:
        raise ValueError("no such day") from None
    return found.toordinal() - _EPOCH + cycles * _CYCLE_DAYS


def _offset(zone: str | None) -> int:
    """Return how many seconds a zone is ahead of UTC."""
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("no such zone offset")
    return (-1 if zone[0] == "-" else 1) * (hours * 3600 + minutes * 60)


def _fits(value: int, bits: int) -> int:
    if not -(2**bits) <= value < 2**bits:
        raise ValueError("too far from 1970")
    return value
