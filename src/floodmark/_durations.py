"""Durations as people write them: "10 seconds", "1 hour 30 minutes", a timedelta."""

import re
from datetime import timedelta
from typing import Final

from floodmark._words import did_you_mean
from floodmark.errors import InvalidOption

Duration = str | timedelta
"""A length of time: text such as "10 seconds", or a timedelta."""

_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"\s*(-?\d+)\s*([A-Za-z]+)\s*")


def micros_of(duration: Duration, option: str, *, least: int = 0) -> int:
    """Return a duration in microseconds, or refuse it.

    >>> micros_of("1 minute 30 seconds", "delay")
    90000000
    >>> micros_of("10 secnds", "delay")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: delay is '10 secnds'. ... Did you mean 'second'? [invalid-option]
    """
    if isinstance(duration, timedelta):
        micros = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        micros = _parse(duration, option)
    else:
        raise _refused(option, duration, "Pass text such as '10 seconds', or a timedelta.")
    if micros < least:
        raise _refused(option, duration, "Give a longer time; to switch something off, leave it out.")
    return micros


def _parse(text: str, option: str) -> int:
    total, place = 0, 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            raise _refused(option, text, "Write a number and a unit, such as '10 seconds'.")
        unit = part[2].lower().removesuffix("s")
        if unit not in _UNITS:
            raise _refused(option, text, did_you_mean(unit, _UNITS, otherwise=f"The units are {', '.join(_UNITS)}."))
        total += int(part[1]) * _UNITS[unit]
        place = part.end()
    if not text.strip():
        raise _refused(option, text, "Write a number and a unit, such as '10 seconds'.")
    return total


def _refused(option: str, value: object, remedy: str) -> InvalidOption:
    return InvalidOption(
        f"{option} is {value!r}.",
        rule="It must be a length of time of fixed units, from weeks down to microseconds, and not negative.",
        remedy=remedy,
        option=option,
        value=value,
    )
