"""The time that stands in the name of a file."""

import os
import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from floodmark.errors import FileTimeUnknown
from floodmark.ingest._calendar import EPOCH, MICROSECOND, moment


def named_time(pattern: str, written: str, zone: ZoneInfo) -> Callable[[str], int]:
    """Return a function from a path to the time in its name, in microseconds.

    The pattern is looked for in the last part of the path, or in all of it if there is a `/` in the pattern. A time
    without an offset is one of the zone; if it comes twice there, the later one is meant: then the file is whole.

    >>> from floodmark.ingest._calendar import zone_of
    >>> time_of = named_time("orders-(?P<time>[0-9]{8})", "%Y%m%d", zone_of("UTC"))
    >>> time_of("/drops/orders-19700102.csv")
    86400000000
    >>> time_of("/drops/orders.csv")
    Traceback (most recent call last):
    floodmark.errors.FileTimeUnknown: The name of '/drops/orders.csv' has no time. ... [file-time-unknown]
    """
    search, is_whole = re.compile(pattern).search, "/" in pattern
    known: dict[str, int] = {}

    def time_of(path: str) -> int:
        match = search(path if is_whole else os.path.basename(path))
        text = None if match is None else match["time"]
        if text is None:
            raise _unknown(
                path,
                f"The name of {path!r} has no time.",
                f"Each file that is listed has one, where {pattern!r} finds it; else it would never be read.",
            )
        if text not in known:
            try:
                known[text] = _moment(datetime.strptime(text, written), zone)  # noqa: DTZ007
            except (ValueError, OverflowError, re.error) as error:
                raise _unknown(
                    path,
                    f"The name of {path!r} has {text!r} where its time should be: {error}.",
                    f"That part is written as {written!r} says, as strptime reads it.",
                ) from error
        return known[text]

    return time_of


def _moment(parsed: datetime, zone: ZoneInfo) -> int:
    if parsed.tzinfo is not None:
        return (parsed - EPOCH) // MICROSECOND
    return moment(parsed.replace(fold=1), zone)


def _unknown(path: str, fact: str, rule: str) -> FileTimeUnknown:
    return FileTimeUnknown(
        fact,
        rule=rule,
        remedy="Correct name_pattern or name_format, rename the file, or write a path that leaves it out.",
        path=path,
    )
