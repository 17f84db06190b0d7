"""Timestamps of a source: when the open one is closed, which one opens next, and proposals that are not stored yet.

A source has one open timestamp at a time, its `upper`. A tick closes it: all offsets seen so far are bound to it, and
the end of the current interval opens next. Times are in microseconds, but no rule depends on the unit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from floodmark.bindings.history import BindingHistory, check_ends
from floodmark.errors import BindingInvalid, ClockJumped
from floodmark.progress.columns import Int64Array

MAX_CLOCK_LEAD: Final = 3_600_000_000
"""How far the store's clock may be ahead before a second clock must confirm it."""

_STALE_AFTER_TICKS: Final = 2


def next_boundary(now: int, tick: int) -> int:
    """Return the end of the interval that contains `now`.

    >>> next_boundary(1234, tick=1000), next_boundary(2000, tick=1000)
    (2000, 3000)
    """
    return (now // tick + 1) * tick


def is_due(now: int, minted_at: int | None, tick: int) -> bool:
    """Return whether a tick is due: one per interval, the first immediately.

    If the clock goes back into another interval, a tick is due too, so that timestamps go on.

    >>> is_due(1200, None, tick=1000), is_due(1900, 1200, tick=1000), is_due(2000, 1200, tick=1000)
    (True, False, True)
    """
    return minted_at is None or now // tick != minted_at // tick


def open_ts(now: int, tick: int, upper: int) -> int:
    """Return the timestamp to bind now: the open one, unless no process has ticked for long.

    In that case the old one is skipped and closes empty. Otherwise today's rows would be bound to the day of the last
    tick, and a read as of yesterday would show them.

    >>> open_ts(1200, tick=1000, upper=500), open_ts(500_900, tick=1000, upper=500)
    (500, 501000)
    """
    return upper if now < upper + _STALE_AFTER_TICKS * tick else next_boundary(now, tick)


def next_ts(now: int, tick: int, ts: int) -> int:
    """Return the timestamp that opens when `ts` is closed; it is always later than `ts`.

    >>> next_ts(1200, tick=1000, ts=500), next_ts(1200, tick=1000, ts=7000)
    (2000, 7001)
    """
    return max(next_boundary(now, tick), ts + 1)


def check_clock(now: int, own: int, upper: int, source: str) -> None:
    """Raise an error if the time is more than an hour past the open timestamp and a second clock disagrees.

    An old open timestamp alone is no proof of a jump: a source may have had no readers for days. The second clock is
    this process's own, which does not jump with the host's (see `own_clock`). Timestamps never go back: after a jump by
    a year, compaction would remove a year of timestamps, and all later timestamps would be a year ahead.

    >>> check_clock(now=9 * MAX_CLOCK_LEAD, own=9 * MAX_CLOCK_LEAD, upper=0, source="orders")
    >>> check_clock(now=9 * MAX_CLOCK_LEAD, own=MAX_CLOCK_LEAD, upper=MAX_CLOCK_LEAD, source="orders")
    Traceback (most recent call last):
    floodmark.errors.ClockJumped: The clock of the store says 32400000000, ... says 3600000000. ... [clock-jumped]
    """
    if now - upper > MAX_CLOCK_LEAD and now - own > MAX_CLOCK_LEAD:
        raise ClockJumped(
            f"The clock of the store says {now}, the last timestamp of {source!r} is {upper}, and the clock of this "
            f"process says {own}.",
            rule="A time more than an hour past the last timestamp must be confirmed by both clocks, within an hour.",
            remedy="Correct the wrong clock, with NTP for example. If the store's is right, restart this process.",
            source=source,
            now=now,
            own=own,
            upper=upper,
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A closed timestamp that is not stored yet: its ends, and the timestamp that opened after it."""

    ts: int
    upper: int
    ends: Mapping[int, int]
    watermarks: Mapping[str, int] = field(default_factory=dict)


class Proposals:
    """The bindings that readers of a source in one process know: stored, closed but not stored, and open.

    >>> proposals = Proposals(BindingHistory.start(500))
    >>> proposals.binding(0, 4)
    500
    >>> proposals.tick(1200, tick=1000)
    True
    >>> proposals.binding(0, 4), proposals.binding(0, 5), proposals.durable
    (500, 2000, 500)

    Lookups return at once. A sink must wait for `durable`, below which bindings cannot change. If another process
    stores other bindings first, those count, and the rest is proposed again.
    """

    __slots__ = ("_closed", "_ends", "_last_tick", "_pending", "_stored", "_watermarks", "current_ts")

    def __init__(self, stored: BindingHistory) -> None:
        """Continue from a stored history."""
        self._stored = stored
        self._closed = stored
        self._ends: dict[int, int] = stored.ends
        self._watermarks: dict[str, int] = {}
        self._pending: list[Proposal] = []
        self._last_tick: int | None = None
        self.current_ts = stored.upper
        """The open timestamp, which every proposal belongs to."""

    @classmethod
    def resume(cls, stored: BindingHistory, now: int, tick: int) -> "Proposals":
        """Continue after a restart, with timestamps not lower than any proposed before it.

        >>> Proposals.resume(BindingHistory.start(500), now=3100, tick=1000).current_ts
        4000
        """
        proposals = cls(stored)
        proposals.current_ts = max(stored.upper, next_boundary(now, tick))
        return proposals

    @property
    def durable(self) -> int:
        """The lowest timestamp that is not stored yet."""
        return self._stored.upper

    @property
    def stored(self) -> BindingHistory:
        """The stored history, as last read."""
        return self._stored

    @property
    def closed(self) -> BindingHistory:
        """The stored history plus the closed proposals."""
        return self._closed

    @property
    def pending(self) -> tuple[Proposal, ...]:
        """The closed proposals that are not stored yet, the oldest first."""
        return tuple(self._pending)

    @property
    def ends(self) -> dict[int, int]:
        """How far each known partition has been seen."""
        return dict(sorted(self._ends.items()))

    def propose(self, partition: int, end: int, ts: int | None = None) -> None:
        """Note that a partition has been seen up to `end`. An end never goes back.

        >>> proposals = Proposals(BindingHistory.start(500))
        >>> proposals.propose(0, 5, ts=400)
        Traceback (most recent call last):
        floodmark.errors.BindingInvalid: A proposal is for 400, and 500 is open. ... [binding-invalid]
        """
        check_ends({partition: end})
        if ts is not None and ts != self.current_ts:
            raise BindingInvalid(
                f"A proposal is for {ts}, and {self.current_ts} is open.",
                rule="Offsets that are not bound yet belong to the open timestamp.",
                remedy=f"Propose for {self.current_ts}, or leave ts out.",
                ts=ts,
                open=self.current_ts,
            )
        self._ends[partition] = max(end, self._ends.get(partition, 0))

    def binding(self, partition: int, offset: int) -> int:
        """Return the timestamp of a record that was read; a record without one gets the open timestamp."""
        ts = self._closed.ts_of(partition, offset)
        if ts is None:
            self.propose(partition, offset + 1)
            return self.current_ts
        return ts

    def bindings(self, partition: int, offsets: ArrayLike) -> Int64Array:
        """Return the timestamps of many records that were read.

        >>> Proposals(BindingHistory.start(1).append(1, {0: 2})).bindings(0, [0, 1, 2])
        array([1, 1, 2])
        """
        timestamps = self._closed.ts_of_many(partition, offsets, unbound=self.current_ts)
        if len(timestamps):
            self.propose(partition, int(np.max(offsets)) + 1)
        return timestamps

    def frontier(self, positions: Mapping[int, int]) -> int:
        """Return the lowest timestamp that a reader at these positions may still read; at most the open one."""
        return self._closed.frontier(positions, self.current_ts)

    def note_watermarks(self, watermarks: Mapping[str, int]) -> None:
        """Note the watermarks that hold once everything seen so far has been read."""
        for key, watermark in self._closed.risen(watermarks).items():
            self._watermarks[key] = max(watermark, self._watermarks.get(key, watermark))

    def tick(self, now: int, tick: int) -> bool:
        """If a tick is due, close the open timestamp and open the next; return whether it was due."""
        if not is_due(now, self._last_tick, tick):
            return False
        self._last_tick = now
        self.close(next_ts(now, tick, self.current_ts))
        return True

    def close(self, upper: int) -> Proposal:
        """Close the open timestamp with a pair for every known partition, and open `upper`."""
        closed = Proposal(self.current_ts, upper, self.ends, self._watermarks)
        self._closed = self._closed.append(closed.ts, closed.ends, upper=upper, watermarks=closed.watermarks)
        self._pending.append(closed)
        self._watermarks = {}
        self.current_ts = upper
        return closed

    def flush(self, persist: Callable[[Proposal, BindingHistory], BindingHistory]) -> int:
        """Store the closed proposals, the oldest first, and return `durable`.

        `persist` stores one proposal on top of the stored history, and returns the new stored history. If it fails, the
        proposal stays pending: `durable` does not move, and lookups still work.
        """
        while self._pending:
            self._stored = persist(self._pending[0], self._stored)
            self._pending.pop(0)
        return self.durable

    def adopt(self, stored: BindingHistory) -> None:
        """Continue from what another process has stored; what it has not bound is proposed again."""
        seen, watermarks = self._ends, [*(proposal.watermarks for proposal in self._pending), self._watermarks]
        self._stored = self._closed = stored
        self._pending.clear()
        self._ends, self._watermarks = stored.ends, {}
        self.current_ts = max(self.current_ts, stored.upper)
        for partition, end in seen.items():
            self.propose(partition, end)
        for noted in watermarks:
            self.note_watermarks(noted)
