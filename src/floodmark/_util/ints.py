"""Times, counts and sequence numbers are int64: the checks of single values."""

from operator import index
from typing import Final

from floodmark.errors import NotInt64, NumberOutOfRange, ReservedTime

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def check_int64(value: object, what: str) -> int:
    """Return `value` as an int, or refuse it.

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
        rule="It must be a whole number that fits in 64 bits with a sign.",
        remedy="Convert it first, for example to microseconds since the epoch.",
        what=what,
        value=value,
    )


def check_watermark(value: object, what: str = "watermark") -> int:
    """Return `value` as the time of a watermark: an int64 below MAX, which would end time for good.

    >>> check_watermark(-5)
    -5
    """
    time = check_int64(value, what)
    if time == INT64_MAX:
        raise ReservedTime(
            f"The {what} is int64 MAX.",
            rule="MAX would say that nothing ever comes again.",
            remedy="Declare the input idle, or finish it, instead.",
            what=what,
        )
    return time


def check_now(now: object) -> int | None:
    """Return what time the caller says it is, if it does."""
    return None if now is None else check_int64(now, "now")


def check_number(what: str, value: object, least: int = 0) -> int:
    """Return `value` as an int that is not below `least`, or refuse it.

    >>> check_number("seq", -1)
    Traceback (most recent call last):
    floodmark.errors.NumberOutOfRange: The seq is -1. It must be at least 0. ... [number-out-of-range]
    """
    number = check_int64(value, what)
    if number < least:
        raise NumberOutOfRange(
            f"The {what} is {number}.",
            rule=f"It must be at least {least}.",
            remedy="Count from 0.",
            what=what,
            value=number,
        )
    return number
