"""Checks of ids and numbers that are kept."""

from floodmark.errors import InvalidValue, NumberOutOfRange
from floodmark.progress._int64 import check_int64


def check_id(what: str, value: object) -> str:
    """Return `value` if it can be an id, or refuse it.

    >>> check_id("incarnation", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The incarnation is ''. It is a string that is not empty. ... [invalid-value]
    """
    if isinstance(value, str) and value:
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule="It is a string that is not empty.",
        remedy="Make one with uuid4().hex, or take the one that Spark gives.",
        what=what,
        value=value,
    )


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
