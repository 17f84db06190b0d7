"""Closing (minting) the open timestamp: one transaction, by whichever process comes first.

The transaction locks the source's row, checks that no other process has minted, moves `upper`, and writes a pair for
each partition and the watermarks that rose. A process that is killed anywhere leaves all of it or nothing.
`HistoryCache` reads what is stored: the whole history once, and then only what was added.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from floodmark._util.codec import JsonValue
from floodmark.bindings.history import BindingHistory, check_ends, extend_history
from floodmark.bindings.holds import compact_source
from floodmark.bindings.sources import check_identity, find_source
from floodmark.bindings.tables import PAIRS, SOURCES, WATERMARK_STEPS
from floodmark.bindings.timestamps import check_clock, is_due, next_ts, open_ts
from floodmark.control import Home
from floodmark.errors import MintLost, SourceTruncated

_SELECT_PAIRS: Final = (
    select(PAIRS.c.part, PAIRS.c.ts, PAIRS.c.end_offset)
    .where(PAIRS.c.source_id == bindparam("s"), PAIRS.c.ts >= bindparam("lower"))
    .order_by(PAIRS.c.part, PAIRS.c.ts)
)
_SELECT_STEPS: Final = (
    select(WATERMARK_STEPS.c.time_key, WATERMARK_STEPS.c.ts, WATERMARK_STEPS.c.watermark)
    .where(WATERMARK_STEPS.c.source_id == bindparam("s"), WATERMARK_STEPS.c.ts >= bindparam("lower"))
    .order_by(WATERMARK_STEPS.c.time_key, WATERMARK_STEPS.c.ts)
)
# What is below a bound, in one row each: ends and watermarks never fall, so the greatest is the last.
_SELECT_PAIRS_BELOW: Final = (
    select(PAIRS.c.part, func.max(PAIRS.c.ts), func.max(PAIRS.c.end_offset))
    .where(PAIRS.c.source_id == bindparam("s"), PAIRS.c.ts < bindparam("lower"))
    .group_by(PAIRS.c.part)
    .order_by(PAIRS.c.part)
)
_SELECT_STEPS_BELOW: Final = (
    select(WATERMARK_STEPS.c.time_key, func.max(WATERMARK_STEPS.c.ts), func.max(WATERMARK_STEPS.c.watermark))
    .where(WATERMARK_STEPS.c.source_id == bindparam("s"), WATERMARK_STEPS.c.ts < bindparam("lower"))
    .group_by(WATERMARK_STEPS.c.time_key)
    .order_by(WATERMARK_STEPS.c.time_key)
)


class HistoryCache:
    """The newest history of each source that was read, by the id of the source; a dropped one has another."""

    __slots__ = ("_known", "_lock")

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[int, BindingHistory] = {}
        self._lock = Lock()

    def read(self, connection: Connection, row: Row[Any]) -> BindingHistory:
        """Return the history as it is in this transaction, in which the row of the source was read."""
        known = self._known.get(row.source_id)
        if known is None or known.upper > row.upper:
            # None was read, or another thread has read on while this transaction saw an older state.
            known = BindingHistory(row.source, row.origin, row.origin, row.origin, {}, {})
        if (known.upper, known.since) != (row.upper, row.since):
            lower = {"s": row.source_id, "lower": known.upper}
            known = extend_history(
                known,
                row.since,
                row.upper,
                connection.execute(_SELECT_PAIRS, lower),
                connection.execute(_SELECT_STEPS, lower),
            )
        self.keep(row.source_id, known)
        return known

    def keep(self, source_id: int, history: BindingHistory) -> None:
        """Remember a history that is stored, unless a newer one is known."""
        with self._lock:
            known = self._known.get(source_id)
            if known is None or (history.upper, history.since) >= (known.upper, known.since):
                self._known[source_id] = history

    def forget(self, source_id: int) -> None:
        """Forget a source that was dropped."""
        with self._lock:
            self._known.pop(source_id, None)


def read_history_from(connection: Connection, row: Row[Any], lower: int) -> BindingHistory:
    """Return the history as if it had been compacted to `lower`, and read no more than that takes."""
    bound = {"s": row.source_id, "lower": lower}
    empty = BindingHistory(row.source, row.origin, row.origin, row.origin, {}, {})
    below = extend_history(
        empty,
        row.origin,
        max(lower, row.origin),
        connection.execute(_SELECT_PAIRS_BELOW, bound),
        connection.execute(_SELECT_STEPS_BELOW, bound),
    )
    return extend_history(
        below,
        lower,
        row.upper,
        connection.execute(_SELECT_PAIRS, bound),
        connection.execute(_SELECT_STEPS, bound),
    )


Ends = Mapping[int, int]
"""{partition: end}: how far each partition is filled; the offset behind its last record."""
EndsProvider = Ends | Callable[[], Ends]
"""Ends, or what asks for them."""
Watermarks = Mapping[str, int]
"""{time key: watermark}."""
WatermarksProvider = Watermarks | Callable[[Ends], Watermarks]
"""The watermarks that hold at some ends, or what computes them."""

FAILPOINTS: Final = (
    "mint: before the transaction",
    "mint: locked",
    "mint: upper moved",
    "mint: pairs written",
    "mint: watermarks written",
    "mint: before the commit",
    "mint: after the commit",
)
"""The places in minting at which a test may stop the process."""
_BEFORE, _LOCKED, _UPPER_MOVED, _PAIRS_WRITTEN, _STEPS_WRITTEN, _BEFORE_COMMIT, _AFTER_COMMIT = FAILPOINTS

_ATTEMPTS: Final = 20
_MOVE_UPPER: Final = (
    update(SOURCES)
    .where(SOURCES.c.source_id == bindparam("s"), SOURCES.c.upper == bindparam("expected"))
    .values(upper=bindparam("after"), minted_at=bindparam("now"))
)
_INSERT_PAIRS: Final = insert(PAIRS)
_INSERT_STEPS: Final = insert(WATERMARK_STEPS)


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a tick came to: the history, and whether this call has closed a timestamp."""

    history: BindingHistory
    minted: bool


@dataclass(frozen=True, slots=True)
class MintRequest:
    """What is to be minted: on top of `expected_upper`, at the open timestamp or at one that was proposed."""

    ends: Ends
    watermarks: Watermarks
    expected_upper: int
    identity: JsonValue | None = None
    ts: int | None = None
    upper: int | None = None


class Minter:
    """Closes timestamps of the sources of a home."""

    __slots__ = ("_histories", "_home", "_own_clock", "_reached")

    def __init__(
        self, home: Home, histories: HistoryCache, own_clock: Callable[[], int], reached: Callable[[str], None]
    ) -> None:
        """Close them in this home."""
        self._home = home
        self._histories = histories
        self._own_clock = own_clock
        self._reached = reached

    def mint(self, source: str, wanted: MintRequest, *, compact: bool = False) -> BindingHistory:
        """Close a timestamp, or raise `MintLost` if somebody else was first."""
        self._reached(_BEFORE)
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            self._reached(_LOCKED)
            if wanted.identity is not None:
                check_identity(row, wanted.identity)
            if row.upper != wanted.expected_upper:
                raise _mint_lost(row, wanted.expected_upper)
            before = self._histories.read(connection, row)
            check_not_truncated(before, wanted.ends)
            now = self._home.now(connection)
            ts = open_ts(now, row.tick, row.upper) if wanted.ts is None else wanted.ts
            upper = next_ts(now, row.tick, ts) if wanted.upper is None else wanted.upper
            # Whoever has proposed a timestamp has taken it from a clock too.
            check_clock(max(now, upper - row.tick), self._own_clock(), row.upper, source)
            history = before.append(ts, wanted.ends, upper=upper, watermarks=wanted.watermarks)
            self._write(connection, row, ts, upper, now, wanted, before.risen(wanted.watermarks))
            if compact and row.compaction_window is not None:
                history = history.compact(compact_source(connection, row, upper, now).since)
            self._reached(_BEFORE_COMMIT)
        self._reached(_AFTER_COMMIT)
        self._histories.keep(row.source_id, history)
        return history

    def tick(
        self, source: str, ends: EndsProvider, watermarks: WatermarksProvider, identity: JsonValue | None
    ) -> TickResult:
        """Close the open timestamp if a tick is due and nobody else has; return the newest history."""
        for _ in range(_ATTEMPTS):
            with self._home.read() as connection:
                row = find_source(connection, source)
                history = self._histories.read(connection, row)
                if not is_due(self._home.now(connection), row.minted_at, row.tick):
                    return TickResult(history, minted=False)
            seen = _ends_to_bind(ends, history)
            known = watermarks(seen) if callable(watermarks) else watermarks
            try:
                wanted = MintRequest(seen, known, history.upper, identity)
                return TickResult(self.mint(source, wanted, compact=True), minted=True)
            except MintLost:
                continue
        return TickResult(history, minted=False)

    def _write(
        self,
        connection: Connection,
        row: Row[Any],
        ts: int,
        upper: int,
        now: int,
        wanted: MintRequest,
        risen: Watermarks,
    ) -> None:
        here = {"source_id": row.source_id, "ts": ts}
        moved = connection.execute(_MOVE_UPPER, {"s": row.source_id, "expected": row.upper, "after": upper, "now": now})
        if moved.rowcount != 1:
            raise _mint_lost(row, wanted.expected_upper)
        self._reached(_UPPER_MOVED)
        pairs = [{**here, "part": part, "end_offset": end} for part, end in check_ends(wanted.ends).items()]
        if pairs:
            connection.execute(_INSERT_PAIRS, pairs)
        self._reached(_PAIRS_WRITTEN)
        steps = [{**here, "time_key": key, "watermark": watermark} for key, watermark in risen.items()]
        if steps:
            connection.execute(_INSERT_STEPS, steps)
        self._reached(_STEPS_WRITTEN)


def check_not_truncated(history: BindingHistory, ends: Ends) -> None:
    """Refuse ends, seen after the history was read, that are below what is bound.

    >>> check_not_truncated(BindingHistory.start(0, "orders").append(0, {0: 11}), {0: 9})
    Traceback (most recent call last):
    floodmark.errors.SourceTruncated: Partition 0 of 'orders' ends at 9, and is bound up to 11. ... [source-truncated]
    """
    bound = history.ends
    for partition, end in check_ends(ends).items():
        if end < bound.get(partition, 0):
            raise SourceTruncated(
                f"Partition {partition} of {history.source!r} ends at {end}, and is bound up to {bound[partition]}.",
                rule="What was bound stays where it is: a partition only grows.",
                remedy="Look whether it was truncated or made anew; if so, drop the source and bind it from the start.",
                source=history.source,
                partition=partition,
                end=end,
                bound=bound[partition],
            )


def _ends_to_bind(ends: EndsProvider, history: BindingHistory) -> Ends:
    """Return the ends to bind on top of a history that was read before."""
    if callable(ends):
        seen = check_ends(ends())
        # An end below what is bound was told by somebody who did not know better yet, or it stays so.
        is_below = any(seen.get(partition, bound) < bound for partition, bound in history.ends.items())
        return ends() if is_below else seen
    # They are older than the history: another process may have bound more since, which is no less true.
    bound = history.ends
    return {partition: max(end, bound.get(partition, 0)) for partition, end in check_ends(ends).items()}


def _mint_lost(row: Row[Any], expected: int) -> MintLost:
    return MintLost(
        f"The open timestamp of {row.source!r} is {row.upper}, and {expected} was to be closed.",
        rule="A timestamp is closed once, by whoever comes first.",
        remedy="Read the history again, and bind what it has not bound.",
        source=row.source,
        expected_upper=expected,
        upper=row.upper,
    )


def _monotonic_micros() -> int:
    """Return microseconds that pass while the machine sleeps too, where it can tell, and never jump."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1000


_PROCESS_EPOCH: Final = time.time_ns() // 1000 - _monotonic_micros()


def own_clock() -> int:
    """Return what time it is by this process alone: what the host said at its start, and how long it runs.

    Whoever sets the clock of the host does not move it. That tells a jump even where store and process share a host.
    """
    return _PROCESS_EPOCH + _monotonic_micros()
