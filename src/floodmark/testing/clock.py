"""A clock that a test sets."""


class ManualClock:
    """A clock that stands still until the test advances it.

    >>> clock = ManualClock()
    >>> clock.advance(60)
    60
    >>> clock.now()
    60
    """

    __slots__ = ("_now",)

    def __init__(self, start: int = 0) -> None:
        """Set the clock to `start`."""
        self._now = start

    def now(self) -> int:
        """Return the time."""
        return self._now

    def advance(self, by: int) -> int:
        """Advance the clock (with a negative number, set it back) and return the new time."""
        self._now += by
        return self._now
