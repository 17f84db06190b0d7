"""Signals that flow beside the rows: watermarks, each for one time column, and idleness."""

import enum
from dataclasses import dataclass
from typing import Final

from floodmark._util.ints import check_watermark
from floodmark.errors import InvalidValue


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """No more row will come whose time in the column `key` is below `time`; a row at exactly `time` is on time.

    >>> Watermark("order_time", 1000)
    Watermark(key='order_time', time=1000)
    """

    key: str
    time: int

    def __post_init__(self) -> None:
        """Check key and time."""
        check_key(self.key)
        check_watermark(self.time)


class Idle(enum.Enum):
    """No rows are expected for now, on any key; the last watermarks remain valid."""

    IDLE = "idle"

    def __repr__(self) -> str:
        """Return the name of the exported constant."""
        return "IDLE"


IDLE: Final = Idle.IDLE

Signal = Watermark | Idle


def check_key(key: object) -> str:
    """Return `key` if it can name a time column, or raise an error.

    >>> check_key("order_time")
    'order_time'
    """
    if isinstance(key, str) and key:
        return key
    raise InvalidValue(
        f"The watermark key is {key!r}.",
        rule="A key is the name of a time column.",
        remedy="Pass a non-empty string, such as 'order_time'.",
        key=key,
    )
