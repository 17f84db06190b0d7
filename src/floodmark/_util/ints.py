"""Checks of single values: times, counts and sequence numbers are int64."""

from operator import index
from typing import Final

from floodmark.errors import NotInt64, NumberOutOfRange, ReservedTime

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def check_int64(value: object, what: str) -> int:
    """Return `value` as an int, or raise NotInt64.

    >>> check_int64(7, "time")
    7
    >>> check_int64(2**63, "time")
    Traceback (most recent call last):
    floodmark.errors.NotInt64: The time is 9223372036854775808. It must be ... [not-int64]
    """
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if INT64_MIN <= number <= INT64_MAX:
                return number
    raise NotInt64(
        f"The {what} is {value!r}.",
        rule="It must be an int64.",
        remedy="Convert it first, for example to microseconds since the epoch.",
        what=what,
        value=value,
    )


def check_watermark(value: object, what: str = "watermark") -> int:
    """Return `value` as the time of a watermark: an int64 below int64 MAX, which is reserved.

    >>> check_watermark(-5)
    -5
    """
    time = check_int64(value, what)
    if time == INT64_MAX:
        raise ReservedTime(
            f"The {what} is int64 MAX.",
            rule="int64 MAX is reserved: it would mean that no row ever comes again.",
            remedy="Declare the input idle, or finish it, instead of sending int64 MAX.",
            what=what,
        )
    return time


def check_now(now: object) -> int | None:
    """Return the caller's time as an int64, or None if it was not given."""
    return None if now is None else check_int64(now, "now")


def check_number(what: str, value: object, least: int = 0) -> int:
    """Return `value` as an int of at least `least`, or raise an error.

    >>> check_number("seq", -1)
    Traceback (most recent call last):
    floodmark.errors.NumberOutOfRange: The seq is -1. It must be at least 0. ... [number-out-of-range]
    """
    number = check_int64(value, what)
    if number < least:
        raise NumberOutOfRange(
            f"The {what} is {number}.",
            rule=f"It must be at least {least}.",
            remedy=f"Pass {least} or more.",
            what=what,
            value=number,
        )
    return number
