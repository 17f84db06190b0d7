"""Generators: how the watermark of an origin follows from its rows.

A generator itself has no state. Its state for an origin is a JSON value that it gets and returns, so the caller can
store it and continue after a restart.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from floodmark._util.ints import INT64_MIN, check_int64
from floodmark.errors import InvalidOption
from floodmark.progress.columns import Int64Array

GeneratorState = Any
"""A JSON value; None before the first row."""


@runtime_checkable
class Generator(Protocol):
    """How the watermark of one origin follows from its rows. Any object with these two methods is a generator.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class SecondNewest:
    ...     '''A single row that is far ahead does not advance the watermark.'''
    ...
    ...     def observe(self, state, time, mark, now):
    ...         return state if time is None else sorted([*(state or []), time])[-2:]
    ...
    ...     def watermark(self, state, now):
    ...         return state[0] if state and len(state) == 2 else None
    >>> origins = OriginWatermarks({"order_time": SecondNewest()}, origins=["p0"], now=0)
    >>> origins.event("p0", {"order_time": 10}, now=1), origins.event("p0", {"order_time": 999}, now=2)
    ((), (Watermark(key='order_time', time=10),))
    """

    def observe(self, state: GeneratorState, time: int | None, mark: int | None, now: int) -> GeneratorState:
        """Return the state after a row with this time, or this mark (a watermark that the row carries)."""
        ...

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return the watermark, or None if there is none yet."""
        ...


@runtime_checkable
class BatchGenerator(Generator, Protocol):
    """A generator that processes many rows at once, with the same result as one by one."""

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Return the state after all these rows."""
        ...


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """The newest time seen minus a delay: rows are at most `delay` out of order.

    >>> rule = BoundedDisorder(delay=10)
    >>> rule.watermark(rule.observe(None, 1337, None, now=0), now=0)
    1327
    """

    delay: int

    def __post_init__(self) -> None:
        """Refuse a negative delay."""
        check_duration("delay", self.delay)

    def observe(self, state: GeneratorState, time: int | None, mark: int | None, now: int) -> GeneratorState:
        """Return the newest time."""
        return _latest(state, time)

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Return the newest time."""
        return _latest(state, int(times.max()) if len(times) else None)

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return the newest time minus the delay."""
        return None if state is None else max(INT64_MIN, state - self.delay)


@dataclass(frozen=True, slots=True)
class WallClockLag:
    """The current time minus a lag, whatever the rows say: for sources whose rows are at most `lag` old.

    It also advances without rows. `now` must have the unit of the times.

    >>> WallClockLag(lag=10).watermark(None, now=100)
    90
    """

    lag: int

    def __post_init__(self) -> None:
        """Refuse a negative lag."""
        check_duration("lag", self.lag)

    def observe(self, state: GeneratorState, time: int | None, mark: int | None, now: int) -> GeneratorState:
        """Keep no state."""
        return state

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Keep no state."""
        return state

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return `now` minus the lag."""
        return max(INT64_MIN, now - self.lag)


@dataclass(frozen=True, slots=True)
class Punctuated:
    """The highest mark in the rows: the source itself writes its watermark into a column.

    >>> rule = Punctuated()
    >>> rule.watermark(rule.observe(None, None, 50, now=0), now=0)
    50
    """

    def observe(self, state: GeneratorState, time: int | None, mark: int | None, now: int) -> GeneratorState:
        """Return the highest mark."""
        return _latest(state, mark)

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Return the highest mark."""
        return _latest(state, int(marks.max()) if len(marks) else None)

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return the highest mark."""
        return None if state is None else check_int64(state, "mark")


def check_duration(name: str, value: object, *, least: int = 0) -> int:
    """Return a duration of at least `least`, or raise an error.

    >>> check_duration("delay", -1)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: delay is -1. ... [invalid-option]
    """
    duration = check_int64(value, name)
    if duration < least:
        raise InvalidOption(
            f"{name} is {value}.",
            rule=f"{name} must be at least {least}.",
            remedy=f"Set {name} to {least} or more, or omit it if it is optional.",
            option=name,
            value=value,
        )
    return duration


def _latest(state: GeneratorState, time: int | None) -> GeneratorState:
    if time is None or (state is not None and state >= time):
        return state
    return time
