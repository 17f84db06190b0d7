"""When a timestamp is closed, which one is open next, and when a clock is not believed.

A source has one open timestamp at a time, its `upper`. A tick closes it: all that has been seen is bound to it, and the
next one opens, which is the end of the running interval. Time is in microseconds, but no rule depends on it.
"""

import time
from typing import Final

from floodmark.errors import ClockJumped

HOUR: Final = 3_600_000_000
"""How far ahead a clock may be before another one must agree with it."""

_STALE_TICKS: Final = 2


def next_boundary(now: int, tick: int) -> int:
    """Return the end of the interval that `now` is in.

    >>> next_boundary(1234, tick=1000), next_boundary(2000, tick=1000)
    (2000, 3000)
    """
    return (now // tick + 1) * tick


def is_due(now: int, minted_at: int | None, tick: int) -> bool:
    """Return whether a tick is due: one in each interval, and the first at once.

    After the clock went back the interval is another one too, and time goes on from there: nobody waits for a clock.

    >>> is_due(1200, None, tick=1000), is_due(1900, 1200, tick=1000), is_due(2000, 1200, tick=1000)
    (True, False, True)
    """
    return minted_at is None or now // tick != minted_at // tick


def open_ts(now: int, tick: int, upper: int) -> int:
    """Return the timestamp that what is seen now is bound to: the open one, unless nobody has ticked for long.

    Then the old one is passed over and closes empty. Or else what came today would be bound to the day when somebody
    last looked, and a read as of yesterday would show it.

    >>> open_ts(1200, tick=1000, upper=500), open_ts(500_900, tick=1000, upper=500)
    (500, 501000)
    """
    return upper if now < upper + _STALE_TICKS * tick else next_boundary(now, tick)


def next_ts(now: int, tick: int, ts: int) -> int:
    """Return which timestamp is open after `ts` is closed, whatever the clock says.

    >>> next_ts(1200, tick=1000, ts=500), next_ts(1200, tick=1000, ts=7000)
    (2000, 7001)
    """
    return max(next_boundary(now, tick), ts + 1)


def check_clock(now: int, own: int, upper: int, source: str) -> None:
    """Refuse a time that is more than an hour past the open timestamp, unless a second clock shows it too.

    A source that nobody has read for days must still get its timestamps: that its last one is old is no proof of a
    jump. A jump is where two clocks disagree: that of the store, and that of this process, which does not jump with
    the host's (see `own_clock`). It matters since timestamps never go back: after a jump by a year compaction would
    take a year for past, and every later timestamp would be a year too late.

    >>> check_clock(now=9 * HOUR, own=9 * HOUR, upper=0, source="orders")
    >>> check_clock(now=9 * HOUR, own=HOUR, upper=HOUR, source="orders")
    Traceback (most recent call last):
    floodmark.errors.ClockJumped: The clock of the store says 32400000000, ... says 3600000000. ... [clock-jumped]
    """
    if now - upper > HOUR and now - own > HOUR:
        raise ClockJumped(
            f"The clock of the store says {now}, the last timestamp of {source!r} is {upper}, and the clock of this "
            f"process says {own}.",
            rule="A time more than an hour past the last timestamp must be that of both clocks, to the hour.",
            remedy="Set the clocks right. If that of the store is right, start this process again.",
            source=source,
            now=now,
            own=own,
            upper=upper,
        )


def _steady() -> int:
    """Return microseconds that pass while the machine sleeps too, where it can tell, and never jump."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1000


_STARTED: Final = time.time_ns() // 1000 - _steady()


def own_clock() -> int:
    """Return what time it is by this process alone: what the host said at its start, and how long it runs.

    Whoever sets the clock of the host does not move it. That tells a jump even where store and process share a host.
    """
    return _STARTED + _steady()
