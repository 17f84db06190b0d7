"""Durations as users write them ("10 seconds"), time units, and times in a unit."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from floodmark._util.ints import check_int64, check_watermark
from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, NaiveTime

Duration = str | timedelta
"""A duration: text such as "10 seconds", or a timedelta."""

_DURATION_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT_UNITS: Final = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
"""Short forms, in lower case only: an M could mean months."""
_UNITS_SENTENCE: Final = f"The units are {', '.join(_DURATION_UNITS)}, or short {', '.join(_SHORT_UNITS)}."
_DURATION_TERM: Final = re.compile(r"\s*(-?\d+)\s*([A-Za-z]+)\s*")


def duration_micros(duration: Duration, option: str, *, least: int = 0) -> int:
    """Return a duration in microseconds, or raise an error.

    >>> duration_micros("1 minute 30 seconds", "delay"), duration_micros("1m 30s", "delay")
    (90000000, 90000000)
    >>> duration_micros("10 secnds", "delay")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: delay is '10 secnds'. ... Did you mean 'second'? [invalid-option]
    """
    if isinstance(duration, timedelta):
        micros = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        micros = _parse_duration(duration, option)
    else:
        raise _duration_refused(option, duration, "Pass text such as '10 seconds', or a timedelta.")
    if micros < least:
        raise _duration_refused(option, duration, f"Set at least {least} microseconds, or omit the option.")
    return micros


def _parse_duration(text: str, option: str) -> int:
    total, position = 0, 0
    while position < len(text):
        term = _DURATION_TERM.match(text, position)
        if term is None:
            raise _duration_refused(option, text, "Write a number and a unit, such as '10 seconds'.")
        unit = _SHORT_UNITS.get(term[2]) or term[2].lower().removesuffix("s")
        if unit not in _DURATION_UNITS:
            raise _duration_refused(
                option,
                text,
                did_you_mean(unit, _DURATION_UNITS, otherwise=_UNITS_SENTENCE),
            )
        total += int(term[1]) * _DURATION_UNITS[unit]
        position = term.end()
    if not text.strip():
        raise _duration_refused(option, text, "Write a number and a unit, such as '10 seconds'.")
    return total


def _duration_refused(option: str, value: object, remedy: str) -> InvalidOption:
    return InvalidOption(
        f"{option} is {value!r}.",
        rule="It must be a duration in fixed units, from weeks down to microseconds, and not negative.",
        remedy=remedy,
        option=option,
        value=value,
    )


def past_time(stored: int, now: int) -> int:
    """Return a stored time as it counts: a time in the future counts as now.

    It was stored before the clock was set back, so how long ago that was is not known. It is also stored as now, where
    it can be changed, so that a timeout ends at most once more its length after the clock was set back, not when the
    clock has caught up. This is the one rule for comparing a stored time with the clock.

    >>> past_time(70, now=100), past_time(3_700, now=100)
    (70, 100)
    """
    return min(stored, now)


class RewoundTimes:
    """Stored times that cannot be changed, by name; one in the future counts as when it was first seen there.

    >>> times = RewoundTimes()
    >>> times.past("p0", 3_700, now=100), times.past("p0", 3_700, now=160), times.past("p0", 3_700, now=3_800)
    (100, 100, 3700)
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        """Start without any."""
        self._seen: dict[object, tuple[int, int]] = {}

    def past(self, name: object, stored: int, now: int) -> int:
        """Return the time as it counts; see `past_time`."""
        if stored <= now:
            self._seen.pop(name, None)
            return stored
        seen, seen_at = self._seen.get(name, (stored, now))
        self._seen[name] = (stored, past_time(seen_at, now) if seen == stored else now)
        return self._seen[name][1]


_LONGEST_TTL: Final = 10**15


def check_ttl(value: object) -> int:
    """Return a time to live in microseconds, or raise an error.

    >>> check_ttl(0)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The ttl is 0. It must be above 0 and at most ... [invalid-option]
    """
    ttl = check_int64(value, "ttl")
    if not 0 < ttl <= _LONGEST_TTL:
        raise InvalidOption(
            f"The ttl is {ttl}.",
            rule=f"It must be above 0 and at most {_LONGEST_TTL} microseconds.",
            remedy="Set for example 10_000_000 for ten seconds.",
            ttl=ttl,
        )
    return ttl


Time = int | datetime
"""A time of a stream: an int in the stream's unit, or a datetime with a time zone."""

UNITS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of each unit make a second."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_utc(time: int) -> str:
    """Return a time as date and time in UTC, or as a plain number if it is outside the years 1 to 9999.

    >>> as_utc(1_700_000_000_000_000), as_utc(1_700_000_000_250_000), as_utc(2**62)
    ('2023-11-14 22:13:20 UTC', '2023-11-14 22:13:20.250000 UTC', '4611686018427387904')
    """
    try:
        moment = _EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return str(time)
    return f"{moment.replace(tzinfo=None).isoformat(sep=' ')} UTC"


_READABLE: Final = range(631_152_000_000_000, 4_102_444_800_000_000)
"""The microseconds of the years 1990 to 2099."""


def time_text(time: int | None) -> str:
    """Return a time of a stream for people: a date if it can be microseconds of our days, else the number.

    >>> time_text(1_700_000_000_000_000), time_text(42), time_text(None)
    ('2023-11-14 22:13:20 UTC', '42', 'none')
    """
    return "none" if time is None else as_utc(time) if time in _READABLE else str(time)


def time_in_unit(value: object, unit: str) -> int:
    """Return a time in the unit of its stream, rounded down, or raise an error.

    >>> time_in_unit(datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC), "ms")
    1999
    >>> time_in_unit(5.0, "ms")
    Traceback (most recent call last):
    floodmark.errors.NotInt64: The time is 5.0. It must be an int64. ... [not-int64]
    """
    if not isinstance(value, datetime):
        return check_watermark(value, "time")
    if value.tzinfo is None:
        raise NaiveTime(
            f"The time is {value.isoformat()}, without a zone.",
            rule="A datetime without a time zone is ambiguous.",
            remedy="Add a time zone, for example with .replace(tzinfo=UTC).",
            value=value,
        )
    return micros_in_unit(unit, (value - _EPOCH) // timedelta(microseconds=1))


def micros_in_unit(unit: str, micros: int) -> int:
    """Return microseconds since the epoch in another unit, rounded down.

    >>> micros_in_unit("ns", 7), micros_in_unit("s", 1_999_999)
    (7000, 1)
    """
    return micros * UNITS_PER_SECOND[unit] // UNITS_PER_SECOND["us"]


def check_unit(unit: object) -> str:
    """Return `unit` if it is a valid time unit, or raise an error.

    >>> check_unit("minutes")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: unit is 'minutes'. It must be one of 's', 'ms', 'us', 'ns'. ... [invalid-option]
    """
    if isinstance(unit, str) and unit in UNITS_PER_SECOND:
        return unit
    raise InvalidOption(
        f"unit is {unit!r}.",
        rule=f"It must be one of {', '.join(map(repr, UNITS_PER_SECOND))}.",
        remedy="Omit it for microseconds, the unit of Spark.",
        option="unit",
        value=unit,
    )
