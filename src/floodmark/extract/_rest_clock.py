"""The clock of a reading: where waiting happens, so that a test need not wait."""

import random
import time


class RestClock:
    """The system's clocks, its sleep and its dice."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def elapsed(self) -> float:
        """Return seconds that only ever rise."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a number from 0 to 1."""
        return random.random()


class Pace:
    """Requests at even distances: each a pause after the one before, and the first a pause after the start.

    So that whoever reads one part after the other, as a task does, asks no faster than who reads one long one.
    """

    def __init__(self, clock: RestClock, rate: float | None) -> None:
        self._clock = clock
        self._pause = 0.0 if rate is None else 1.0 / rate
        self._next = clock.elapsed() + self._pause

    def wait(self) -> None:
        """Wait until the next request may be sent."""
        if not self._pause:
            return
        while (ahead := self._next - self._clock.elapsed()) > 0:
            self._clock.sleep(ahead)
        self._next = self._clock.elapsed() + self._pause
