"""Checks of ids and numbers that are kept."""

from typing import Final

from floodmark.errors import InvalidOption, InvalidValue, NumberOutOfRange
from floodmark.progress._int64 import check_int64

_YEARS: Final = 10**15


def check_id(what: str, value: object) -> str:
    """Return `value` if it can be an id, or refuse it.

    >>> check_id("incarnation", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The incarnation is ''. It is a string that is not empty, ... [invalid-value]
    """
    if isinstance(value, str) and value and _can_be_stored(value):
        return value
    raise InvalidValue(
        f"The {what} is {value!r}.",
        rule="It is a string that is not empty, of characters that every database can keep.",
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


def check_ttl(value: object) -> int:
    """Return `value` if something can live so long, in microseconds, or refuse it.

    >>> check_ttl(0)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The ttl is 0. It is a number of microseconds above 0, ... [invalid-option]
    """
    ttl = check_int64(value, "ttl")
    if not 0 < ttl <= _YEARS:
        raise InvalidOption(
            f"The ttl is {ttl}.",
            rule="It is a number of microseconds above 0, and of at most some years.",
            remedy="Use 10_000_000 for ten seconds.",
            ttl=ttl,
        )
    return ttl


def storable(text: str) -> str:
    """Return a text that others wrote with a sign in the place of each character that cannot be kept.

    >>> storable("a" + chr(0) + "b") == "a" + chr(0xFFFD) + "b"
    True
    """
    return text if _can_be_stored(text) else "".join(one if _can_be_stored(one) else "\ufffd" for one in text)


def _can_be_stored(text: str) -> bool:
    # PostgreSQL keeps no NUL, and nobody keeps half of a surrogate pair.
    if text.isascii():
        return "\0" not in text
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)
