"""When a request is sent again, and how long to wait before.

| what came | GET | POST |
|---|---|---|
| no connection | again | again: it has not arrived |
| a connection that broke, a body that was cut, no answer in time | again | fails: it may have had an effect |
| 429, 503 | again | again: it was turned away |
| 408, 500, 502, 504 | again | fails: it may have had an effect |
| another 4xx or 5xx | fails | fails |

What fails here fails the cell, and the next run asks again.
"""

from email.utils import parsedate_to_datetime
from typing import Final, Literal

Trouble = Literal["unreached", "broken"]
"""No connection came about; or one did, and gave no whole answer."""

LONGEST_WAIT: Final = 300.0
"""In seconds. A service that wants to be left alone for longer fails the cell."""
_FIRST_WAIT: Final = 0.5
_LARGEST_BACK_OFF: Final = 30.0
_AGAIN: Final = {
    "GET": frozenset((408, 429, 500, 502, 503, 504)),
    "POST": frozenset((429, 503)),
}


def is_sent_again(method: str, what: int | Trouble) -> bool:
    """Return whether a request may be sent again after a status or a trouble.

    >>> is_sent_again("GET", 500), is_sent_again("POST", 500), is_sent_again("POST", "unreached")
    (True, False, True)
    """
    if isinstance(what, int):
        return what in _AGAIN[method]
    return what == "unreached" or method == "GET"


def back_off(failed: int, chance: float) -> float:
    """Return how many seconds to wait after so many failures; `chance`, from 0 to 1, spreads those who wait.

    >>> [back_off(failed, 1.0) for failed in (1, 2, 3, 20)], back_off(1, 0.0)
    ([0.5, 1.0, 2.0, 30.0], 0.25)
    """
    whole = min(_LARGEST_BACK_OFF, _FIRST_WAIT * 2.0 ** min(failed - 1, 16))
    return whole * (0.5 + chance / 2)


def retry_after(header: str | None, date: str | None, now: float) -> float | None:
    """Return how many seconds a Retry-After header asks for, if it does so in a way that can be read.

    A date is compared with the service's own, if it gives that, and else with `now`, in seconds since the epoch.

    >>> retry_after("7", None, 0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", None, 15.0), retry_after("-", None, 0)
    (7.0, 45.0, None)
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    until = _seconds(text)
    if until is None:
        return None
    own = None if date is None else _seconds(date)
    return max(0.0, until - (now if own is None else own))


def _seconds(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
