"""Generators: what the rows of one origin say about its time.

A generator is a rule without memory. What it remembers of an origin is a state that it is handed and gives back:
any JSON value, so that keeping it, and going on from it after a restart, is nobody's work.
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
    """How the watermark of one origin follows from its rows. Write your own by giving these two methods.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class SecondNewest:
    ...     '''A single row that is far ahead does not move time.'''
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
        """Return the state after a row with this time, or with this mark (a watermark that the row carries)."""
        ...

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return how far time has come, or None if nobody can say yet."""
        ...


@runtime_checkable
class BatchGenerator(Generator, Protocol):
    """A generator that can take many rows at once; it must give the state that taking them one by one gives."""

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Return the state after all these rows."""
        ...


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """The newest time seen, less a delay: rows come at most so much out of order.

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
        """Return the newest time less the delay."""
        return None if state is None else max(INT64_MIN, state - self.delay)


@dataclass(frozen=True, slots=True)
class WallClockLag:
    """The time it is now, less a lag, whatever the rows say: for sources whose rows are at most so old.

    It goes on when no row comes. `now` must be in the unit of the times.

    >>> WallClockLag(lag=10).watermark(None, now=100)
    90
    """

    lag: int

    def __post_init__(self) -> None:
        """Refuse a negative lag."""
        check_duration("lag", self.lag)

    def observe(self, state: GeneratorState, time: int | None, mark: int | None, now: int) -> GeneratorState:
        """Remember nothing."""
        return state

    def observe_batch(self, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int) -> GeneratorState:
        """Remember nothing."""
        return state

    def watermark(self, state: GeneratorState, now: int) -> int | None:
        """Return now less the lag."""
        return max(INT64_MIN, now - self.lag)


@dataclass(frozen=True, slots=True)
class Punctuated:
    """The highest mark in the rows: the source itself says how far it has come, in a column of its own.

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
        return None if state is None else int(state)


def check_duration(name: str, value: object, *, least: int = 0) -> int:
    """Return a duration that is not below `least`, or refuse it.

    >>> check_duration("delay", -1)
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: delay is -1. ... [invalid-option]
    """
    duration = check_int64(value, name)
    if duration < least:
        raise InvalidOption(
            f"{name} is {value}.",
            rule=f"It must be at least {least}.",
            remedy="Give a longer time; to switch something off, leave it out.",
            option=name,
            value=value,
        )
    return duration


def _latest(state: GeneratorState, time: int | None) -> GeneratorState:
    if time is None or (state is not None and state >= time):
        return state
    return time
