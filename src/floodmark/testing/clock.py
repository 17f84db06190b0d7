"""A clock that moves when it is told to."""


class ManualClock:
    """Stands still until it is advanced, so that a test says what time it is.

    >>> clock = ManualClock()
    >>> clock.advance(60)
    60
    >>> clock.now()
    60
    """

    __slots__ = ("_now",)

    def __init__(self, start: int = 0) -> None:
        """Start at `start`."""
        self._now = start

    def now(self) -> int:
        """Return the time."""
        return self._now

    def advance(self, by: int) -> int:
        """Move on (or, with a negative number, back) and return the new time."""
        self._now += by
        return self._now
