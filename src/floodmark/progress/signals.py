"""What flows beside the rows: watermarks, each for one time column, and the word that nothing flows."""

import enum
from dataclasses import dataclass
from typing import Final

from floodmark._util.ints import check_watermark
from floodmark.errors import InvalidValue


@dataclass(frozen=True, slots=True, order=True)
class Watermark:
    """No row will come any more whose time in the column `key` is below `time`.

    A row at exactly `time` is on time.

    >>> Watermark("order_time", 1000)
    Watermark(key='order_time', time=1000)
    """

    key: str
    time: int

    def __post_init__(self) -> None:
        """Refuse what is not a name or not a time."""
        check_key(self.key)
        check_watermark(self.time)


class Idle(enum.Enum):
    """Nothing flows for now, on any key; the last watermarks stand."""

    IDLE = "idle"

    def __repr__(self) -> str:
        """Return the name under which it is exported."""
        return "IDLE"


IDLE: Final = Idle.IDLE

Signal = Watermark | Idle


def check_key(key: object) -> str:
    """Return `key` if it can name a time column, or refuse it.

    >>> check_key("order_time")
    'order_time'
    """
    if isinstance(key, str) and key:
        return key
    raise InvalidValue(
        f"The watermark key is {key!r}.",
        rule="A key is the name of a time column.",
        remedy="Pass a string that is not empty.",
        key=key,
    )
