"""Minting: closing the open timestamp of a source, in one transaction, by whichever process comes first.

The transaction locks the source's row, checks that no other process has minted, moves `upper`, and writes a pair for
each partition and the watermarks that rose. It is atomic: a process killed at any point leaves all of it or nothing.
`HistoryCache` reads the whole stored history once, and then only new rows.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from floodmark._util.codec import JsonValue
from floodmark.bindings.history import STATE_NAMES, BindingHistory, SourceState, check_ends, extend_history
from floodmark.bindings.holds import compact_source
from floodmark.bindings.sources import check_identity, find_source
from floodmark.bindings.tables import PAIRS, SOURCES, STATES, WATERMARK_STEPS
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
_SELECT_STATES: Final = (
    select(STATES.c.ts, STATES.c.state)
    .where(STATES.c.source_id == bindparam("s"), STATES.c.ts >= bindparam("lower"))
    .order_by(STATES.c.ts)
)
_SELECT_STATE_BELOW: Final = (
    select(STATES.c.ts, STATES.c.state)
    .where(STATES.c.source_id == bindparam("s"), STATES.c.ts < bindparam("lower"))
    .order_by(STATES.c.ts.desc())
    .limit(1)
)
# Ends and watermarks never fall, so the maximum below a bound is the last value.
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
    """The newest history read of each source, by source id; a dropped source's id is never reused."""

    __slots__ = ("_histories", "_lock")

    def __init__(self) -> None:
        """Start empty."""
        self._histories: dict[int, BindingHistory] = {}
        self._lock = Lock()

    def read(self, connection: Connection, row: Row[Any]) -> BindingHistory:
        """Return the history as of the transaction that read `row`."""
        history = self._histories.get(row.source_id)
        if history is None or history.upper > row.upper:
            # Not cached, or another thread has cached a newer state than this transaction sees.
            history = BindingHistory(row.source, row.origin, row.origin, row.origin, {}, {})
        if (history.upper, history.since) != (row.upper, row.since):
            lower = {"s": row.source_id, "lower": history.upper}
            history = extend_history(
                history,
                row.since,
                row.upper,
                connection.execute(_SELECT_PAIRS, lower),
                connection.execute(_SELECT_STEPS, lower),
                connection.execute(_SELECT_STATES, lower),
            )
        self.keep(row.source_id, history)
        return history

    def keep(self, source_id: int, history: BindingHistory) -> None:
        """Cache a stored history, unless a newer one is cached."""
        with self._lock:
            cached = self._histories.get(source_id)
            if cached is None or (history.upper, history.since) >= (cached.upper, cached.since):
                self._histories[source_id] = history

    def forget(self, source_id: int) -> None:
        """Remove a dropped source."""
        with self._lock:
            self._histories.pop(source_id, None)


def read_history_from(connection: Connection, row: Row[Any], lower: int) -> BindingHistory:
    """Return the history as if compacted to `lower`, reading only the rows that needs."""
    bound = {"s": row.source_id, "lower": lower}
    empty = BindingHistory(row.source, row.origin, row.origin, row.origin, {}, {})
    below = extend_history(
        empty,
        row.origin,
        max(lower, row.origin),
        connection.execute(_SELECT_PAIRS_BELOW, bound),
        connection.execute(_SELECT_STEPS_BELOW, bound),
        connection.execute(_SELECT_STATE_BELOW, bound),
    )
    return extend_history(
        below,
        lower,
        row.upper,
        connection.execute(_SELECT_PAIRS, bound),
        connection.execute(_SELECT_STEPS, bound),
        connection.execute(_SELECT_STATES, bound),
    )


Ends = Mapping[int, int]
"""{partition: end}: the offset after the last record of each partition."""
EndsProvider = Ends | Callable[[], Ends]
"""Ends, or a function that returns them."""
Watermarks = Mapping[str, int]
"""{time key: watermark}."""
WatermarksProvider = Watermarks | Callable[[Ends], Watermarks]
"""The watermarks that hold at some ends, or a function that computes them."""
StateProvider = SourceState | Callable[[Ends], SourceState] | None
"""The state of a source at some ends, or a function that finds it; None to keep the state as it is."""

FAILPOINTS: Final = (
    "mint: before the transaction",
    "mint: locked",
    "mint: upper moved",
    "mint: pairs written",
    "mint: watermarks written",
    "mint: before the commit",
    "mint: after the commit",
)
"""The points in minting where a test may kill the process."""
_BEFORE, _LOCKED, _UPPER_MOVED, _PAIRS_WRITTEN, _STEPS_WRITTEN, _BEFORE_COMMIT, _AFTER_COMMIT = FAILPOINTS

_ATTEMPTS: Final = 20
_MOVE_UPPER: Final = (
    update(SOURCES)
    .where(SOURCES.c.source_id == bindparam("s"), SOURCES.c.upper == bindparam("expected"))
    .values(upper=bindparam("after"), minted_at=bindparam("now"))
)
_INSERT_PAIRS: Final = insert(PAIRS)
_INSERT_STEPS: Final = insert(WATERMARK_STEPS)
_INSERT_STATE: Final = insert(STATES)


@dataclass(frozen=True, slots=True)
class TickResult:
    """The history after a tick, and whether this call closed a timestamp."""

    history: BindingHistory
    minted: bool


@dataclass(frozen=True, slots=True)
class MintRequest:
    """What to mint on top of `expected_upper`; `ts` and `upper` are set for a proposed timestamp."""

    ends: Ends
    watermarks: Watermarks
    expected_upper: int
    identity: JsonValue | None = None
    ts: int | None = None
    upper: int | None = None
    state: SourceState | None = None


class Minter:
    """Closes timestamps of the sources of a home."""

    __slots__ = ("_failpoint", "_histories", "_home", "_own_clock")

    def __init__(
        self, home: Home, histories: HistoryCache, own_clock: Callable[[], int], failpoint: Callable[[str], None]
    ) -> None:
        """Mint in this home."""
        self._home = home
        self._histories = histories
        self._own_clock = own_clock
        self._failpoint = failpoint

    def mint(self, source: str, request: MintRequest, *, compact: bool = False) -> BindingHistory:
        """Close a timestamp, or raise MintLost if another process was first."""
        self._failpoint(_BEFORE)
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            self._failpoint(_LOCKED)
            if request.identity is not None:
                check_identity(row, request.identity)
            if row.upper != request.expected_upper:
                raise _mint_lost(row, request.expected_upper)
            before = self._histories.read(connection, row)
            check_not_truncated(before, request.ends)
            now = self._home.now(connection)
            ts = open_ts(now, row.tick, row.upper) if request.ts is None else request.ts
            upper = next_ts(now, row.tick, ts) if request.upper is None else request.upper
            # A proposed timestamp also comes from a clock.
            check_clock(max(now, upper - row.tick), self._own_clock(), row.upper, source)
            history = before.append(ts, request.ends, upper=upper, watermarks=request.watermarks, state=request.state)
            self._write(connection, row, ts, upper, now, request, before.risen(request.watermarks))
            if history.state != before.state:
                change = {"source_id": row.source_id, "ts": ts, "state": STATE_NAMES.index(history.state)}
                connection.execute(_INSERT_STATE, change)
            if compact and row.compaction_window is not None:
                history = history.compact(compact_source(connection, row, upper, now).since)
            self._failpoint(_BEFORE_COMMIT)
        self._failpoint(_AFTER_COMMIT)
        self._histories.keep(row.source_id, history)
        return history

    def tick(
        self,
        source: str,
        ends: EndsProvider,
        watermarks: WatermarksProvider,
        identity: JsonValue | None,
        state: StateProvider = None,
    ) -> TickResult:
        """Close the open timestamp if a tick is due and no other process has; return the newest history."""
        for _ in range(_ATTEMPTS):
            with self._home.read() as connection:
                row = find_source(connection, source)
                history = self._histories.read(connection, row)
                if not is_due(self._home.now(connection), row.minted_at, row.tick):
                    return TickResult(history, minted=False)
            seen = _ends_to_bind(ends, history)
            marks = watermarks(seen) if callable(watermarks) else watermarks
            seen_state = state(seen) if callable(state) else state
            try:
                request = MintRequest(seen, marks, history.upper, identity, state=seen_state)
                return TickResult(self.mint(source, request, compact=True), minted=True)
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
        request: MintRequest,
        risen: Watermarks,
    ) -> None:
        key = {"source_id": row.source_id, "ts": ts}
        moved = connection.execute(_MOVE_UPPER, {"s": row.source_id, "expected": row.upper, "after": upper, "now": now})
        if moved.rowcount != 1:
            raise _mint_lost(row, request.expected_upper)
        self._failpoint(_UPPER_MOVED)
        pairs = [{**key, "part": part, "end_offset": end} for part, end in check_ends(request.ends).items()]
        if pairs:
            connection.execute(_INSERT_PAIRS, pairs)
        self._failpoint(_PAIRS_WRITTEN)
        steps = [{**key, "time_key": name, "watermark": watermark} for name, watermark in risen.items()]
        if steps:
            connection.execute(_INSERT_STEPS, steps)
        self._failpoint(_STEPS_WRITTEN)


def check_not_truncated(history: BindingHistory, ends: Ends) -> None:
    """Raise an error if ends, read after the history, are below what is bound.

    >>> check_not_truncated(BindingHistory.start(0, "orders").append(0, {0: 11}), {0: 9})
    Traceback (most recent call last):
    floodmark.errors.SourceTruncated: Partition 0 of 'orders' ends at 9, but is bound up to 11. ... [source-truncated]
    """
    bound = history.ends
    for partition, end in check_ends(ends).items():
        if end < bound.get(partition, 0):
            raise SourceTruncated(
                f"Partition {partition} of {history.source!r} ends at {end}, but is bound up to {bound[partition]}.",
                rule="A bound partition never shrinks.",
                remedy="If it was truncated or recreated, drop the source and bind it again from the start.",
                source=history.source,
                partition=partition,
                end=end,
                bound=bound[partition],
            )


def _ends_to_bind(ends: EndsProvider, history: BindingHistory) -> Ends:
    """Return the ends to bind on top of a history that was read before."""
    if callable(ends):
        seen = check_ends(ends())
        # An end below what is bound may come from a lagging broker: ask once more.
        is_below = any(seen.get(partition, bound) < bound for partition, bound in history.ends.items())
        return ends() if is_below else seen
        # These ends were read before the history, which may have bound more since.
    bound = history.ends
    return {partition: max(end, bound.get(partition, 0)) for partition, end in check_ends(ends).items()}


def _mint_lost(row: Row[Any], expected: int) -> MintLost:
    return MintLost(
        f"The open timestamp of {row.source!r} is {row.upper}, not the expected {expected}.",
        rule="A timestamp is closed once, by the first process that does.",
        remedy=f"Read the history again, and retry with expected_upper={row.upper}.",
        source=row.source,
        expected_upper=expected,
        upper=row.upper,
    )


def _monotonic_micros() -> int:
    """Return microseconds from a clock that never jumps, and that counts suspended time where the system can."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1000


_PROCESS_EPOCH: Final = time.time_ns() // 1000 - _monotonic_micros()


def own_clock() -> int:
    """Return the time by this process alone: the host's time when the process started, plus its running time.

    It does not move when the host's clock is set, so it shows a jump even if the store runs on the same host.
    """
    return _PROCESS_EPOCH + _monotonic_micros()
