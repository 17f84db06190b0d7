"""Answers for programs (JSON), and times and ages as a person reads them. Loads nothing heavy."""

import json
from datetime import UTC, datetime, timedelta
from typing import Final


def print_json(value: object) -> None:
    """Print one JSON object.

    >>> print_json({"now": 7})
    {
      "now": 7
    }
    """
    print(json.dumps(value, indent=2))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def as_utc(time: int) -> str:
    """Return a time with its date, in UTC; one beyond the calendar is left a number.

    >>> as_utc(1_700_000_000_000_000), as_utc(1_700_000_000_250_000), as_utc(2**62)
    ('2023-11-14 22:13:20 UTC', '2023-11-14 22:13:20.250000 UTC', '4611686018427387904')
    """
    try:
        moment = _EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return str(time)
    return f"{moment.replace(tzinfo=None).isoformat(sep=' ')} UTC"


def to_second(time: int) -> int:
    """Return a time without its fraction: for what a clock said, where it is noise.

    >>> to_second(1_700_000_000_250_000)
    1700000000000000
    """
    return time - time % 1_000_000


def as_clock(time: int, now: int) -> str:
    """Return a time of today (UTC) without its date, any other with it.

    >>> as_clock(1_700_000_000_000_000, now=1_700_000_300_000_000)
    '22:13:20'
    """
    day = 86_400_000_000
    text = as_utc(time)
    return text.split(" ")[1] if time // day == now // day and " " in text else text


def as_age(since: int, now: int) -> str:
    """Return how long ago something was.

    >>> as_age(0, 7_000_000), as_age(0, 400_000), as_age(90_000_000, 0)
    ('7 s ago', 'now', 'in 1 min 30 s')
    """
    if abs(now - since) < 1_000_000:
        return "now"
    return f"{as_duration(now - since)} ago" if since <= now else f"in {as_duration(since - now)}"


def as_duration(duration: int) -> str:
    """Return a duration in its two largest units.

    >>> as_duration(3_725_000_000), as_duration(60_000_000), as_duration(250_000)
    ('1 h 2 min', '1 min', '0.25 s')
    """
    seconds = duration // 1_000_000
    if not seconds:
        return f"{duration / 1_000_000:g} s"
    largest = next(place for place, (size, _) in enumerate(_UNITS) if seconds >= size)
    parts = []
    for size, unit in _UNITS[largest : largest + 2]:
        if count := seconds // size:
            parts.append(f"{count} {unit}")
        seconds %= size
    return " ".join(parts)
