"""Timestamps of a source: when the open one is closed, which one opens next, and proposals that are not stored yet.

A source has one open timestamp at a time, its `upper`. A tick closes it: everything seen so far is bound to it, and the
next one opens, which is the end of the running interval. Times are in microseconds, but no rule depends on that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from floodmark._util.ints import check_int64
from floodmark.bindings.history import BindingHistory, check_ends
from floodmark.errors import BindingInvalid, ClockJumped
from floodmark.progress.columns import Int64Array

MAX_CLOCK_LEAD: Final = 3_600_000_000
"""How far ahead a clock may be before another one must agree with it."""

_STALE_AFTER_TICKS: Final = 2


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
    return upper if now < upper + _STALE_AFTER_TICKS * tick else next_boundary(now, tick)


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

    >>> check_clock(now=9 * MAX_CLOCK_LEAD, own=9 * MAX_CLOCK_LEAD, upper=0, source="orders")
    >>> check_clock(now=9 * MAX_CLOCK_LEAD, own=MAX_CLOCK_LEAD, upper=MAX_CLOCK_LEAD, source="orders")
    Traceback (most recent call last):
    floodmark.errors.ClockJumped: The clock of the store says 32400000000, ... says 3600000000. ... [clock-jumped]
    """
    if now - upper > MAX_CLOCK_LEAD and now - own > MAX_CLOCK_LEAD:
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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A timestamp that was closed and is not stored yet, its ends, and the timestamp that was opened after it."""

    ts: int
    upper: int
    ends: Mapping[int, int]
    watermarks: Mapping[str, int] = field(default_factory=dict)


class Proposals:
    """What the readers of one source in one process have seen: what is stored, what is closed, and what is open.

    >>> proposals = Proposals(BindingHistory.start(500))
    >>> proposals.binding(0, 4)
    500
    >>> proposals.tick(1200, tick=1000)
    True
    >>> proposals.binding(0, 4), proposals.binding(0, 5), proposals.durable
    (500, 2000, 500)

    Lookups answer at once. Whoever must only see what cannot change, as sinks must, waits for `durable`. If another
    process stores other bindings first, those are the ones that count, and what was proposed is proposed again.
    """

    __slots__ = ("_closed", "_ends", "_last_tick", "_pending", "_stored", "_watermarks", "current_ts")

    def __init__(self, stored: BindingHistory) -> None:
        """Go on from what is stored."""
        self._stored = stored
        self._closed = stored
        self._ends: dict[int, int] = stored.ends
        self._watermarks: dict[str, int] = {}
        self._pending: list[Proposal] = []
        self._last_tick: int | None = None
        self.current_ts = stored.upper
        """The open timestamp: every proposal is for this one."""

    @classmethod
    def resume(cls, stored: BindingHistory, now: int, tick: int) -> "Proposals":
        """Go on after a restart, with timestamps that are not lower than any that was proposed before it.

        >>> Proposals.resume(BindingHistory.start(500), now=3100, tick=1000).current_ts
        4000
        """
        proposals = cls(stored)
        proposals.current_ts = max(stored.upper, next_boundary(now, tick))
        return proposals

    @property
    def durable(self) -> int:
        """The lowest timestamp that is not stored for all partitions."""
        return self._stored.upper

    @property
    def stored(self) -> BindingHistory:
        """What is stored, as far as it is known here."""
        return self._stored

    @property
    def closed(self) -> BindingHistory:
        """What is stored, and what is closed but not stored yet."""
        return self._closed

    @property
    def pending(self) -> tuple[Proposal, ...]:
        """What is closed and not stored yet, the oldest first."""
        return tuple(self._pending)

    @property
    def ends(self) -> dict[int, int]:
        """How far each known partition has been seen."""
        return dict(sorted(self._ends.items()))

    def add_partition(self, partition: int) -> None:
        """Make a partition known, of which nothing has been seen; one that is known stays as it is."""
        self._ends.setdefault(check_int64(partition, "partition"), 0)

    def propose(self, partition: int, end: int, ts: int | None = None) -> None:
        """Say that a partition has been seen up to `end`. It only ever extends: a peer may be ahead.

        >>> proposals = Proposals(BindingHistory.start(500))
        >>> proposals.propose(0, 5, ts=400)
        Traceback (most recent call last):
        floodmark.errors.BindingInvalid: A proposal is for 400, and 500 is open. ... [binding-invalid]
        """
        check_ends({partition: end})
        if ts is not None and ts != self.current_ts:
            raise BindingInvalid(
                f"A proposal is for {ts}, and {self.current_ts} is open.",
                rule="What is not bound yet belongs to the open timestamp, and to no other.",
                remedy="Ask for the timestamp again.",
                ts=ts,
                open=self.current_ts,
            )
        self._ends[partition] = max(end, self._ends.get(partition, 0))

    def binding(self, partition: int, offset: int) -> int:
        """Return the timestamp of a record that was read; if it has none, it is seen at the open one."""
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
        found = self._closed.ts_of_many(partition, offsets, unbound=self.current_ts)
        if len(found):
            self.propose(partition, int(np.max(offsets)) + 1)
        return found

    def frontier(self, positions: Mapping[int, int]) -> int:
        """Return the lowest timestamp that a reader at these positions may still meet; at most the open one."""
        return self._closed.frontier(positions, self.current_ts)

    def note_watermarks(self, watermarks: Mapping[str, int]) -> None:
        """Say which watermarks hold where everything seen so far has been read."""
        for key, watermark in self._closed.risen(watermarks).items():
            self._watermarks[key] = max(watermark, self._watermarks.get(key, watermark))

    def tick(self, now: int, tick: int) -> bool:
        """Close the open timestamp and open the next, if a tick is due; return whether it was."""
        if not is_due(now, self._last_tick, tick):
            return False
        self._last_tick = now
        self.close(next_ts(now, tick, self.current_ts))
        return True

    def close(self, upper: int) -> Proposal:
        """Close the open timestamp, with a pair for every known partition, and open `upper`."""
        closed = Proposal(self.current_ts, upper, self.ends, self._watermarks)
        self._closed = self._closed.append(closed.ts, closed.ends, upper=upper, watermarks=closed.watermarks)
        self._pending.append(closed)
        self._watermarks = {}
        self.current_ts = upper
        return closed

    def flush(self, persist: Callable[[Proposal, BindingHistory], BindingHistory]) -> int:
        """Store what is closed, the oldest first, and return `durable`.

        `persist` stores one on top of what is stored, and returns what is stored then. If it fails, what it was for
        stays pending: `durable` stands still, and lookups go on.
        """
        while self._pending:
            self._stored = persist(self._pending[0], self._stored)
            self._pending.pop(0)
        return self.durable

    def adopt(self, stored: BindingHistory) -> None:
        """Go on from what another process has stored; what it has not bound is proposed again, not below before."""
        seen, watermarks = self._ends, [*(proposal.watermarks for proposal in self._pending), self._watermarks]
        self._stored = self._closed = stored
        self._pending.clear()
        self._ends, self._watermarks = stored.ends, {}
        self.current_ts = max(self.current_ts, stored.upper)
        for partition, end in seen.items():
            self.propose(partition, end)
        for noted in watermarks:
            self.note_watermarks(noted)
