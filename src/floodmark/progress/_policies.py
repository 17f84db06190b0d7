"""Settings of watermarks made from rows: when an origin is idle, how coarse the output is."""

from dataclasses import dataclass

from floodmark._util.ints import INT64_MIN
from floodmark.errors import InvalidOption
from floodmark.progress._generators import check_duration


@dataclass(frozen=True, slots=True)
class Idleness:
    """When an origin counts as idle. Too early means late rows, too late means waiting: both are yours to choose.

    With a `timeout` an origin becomes idle when it has been silent for so long *and* is known to be caught up,
    that is, nothing of it is unread. Silence alone may only mean that the reader is slow. `declared=False`
    forbids what is allowed otherwise: that an origin is declared idle.

    >>> Idleness(timeout=60_000_000)
    Idleness(timeout=60000000, declared=True)
    """

    timeout: int | None = None
    declared: bool = True

    def __post_init__(self) -> None:
        """Refuse a timeout of zero or less."""
        if self.timeout is not None:
            check_duration("timeout", self.timeout, least=1)

    def is_over(self, last_heard: int, now: int) -> bool:
        """Return whether an origin that is caught up has been silent long enough.

        >>> Idleness(timeout=10).is_over(last_heard=5, now=15)
        True
        """
        return self.timeout is not None and now - last_heard >= self.timeout


@dataclass(frozen=True, slots=True)
class Frame:
    """Lets a watermark out only on the grid `offset` + k * `size`: fewer signals, no later windows on that grid.

    A size of 0 lets none out.

    >>> Frame(10).floor(24), Frame(10, offset=3).floor(24), Frame(0).floor(24)
    (20, 23, None)
    """

    size: int = 1
    offset: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative size, and an offset outside the frame."""
        check_duration("size", self.size)
        check_duration("offset", self.offset)
        if self.offset >= max(1, self.size):
            raise InvalidOption(
                f"The offset is {self.offset} and the size {self.size}.",
                rule="The offset must be below the size.",
                remedy="Give the remainder of the offset by the size.",
                offset=self.offset,
                size=self.size,
            )

    def floor(self, time: int) -> int | None:
        """Return the grid point at or below `time`; None where there is none."""
        if self.size == 0:
            return None
        point = (time - self.offset) // self.size * self.size + self.offset
        return point if point >= INT64_MIN else None
