"""Public helpers for tests of code that uses Floodmark."""

from floodmark.testing._clock import ManualClock

__all__ = ["ManualClock"]
