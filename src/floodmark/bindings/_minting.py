"""Minting: the open timestamp is closed in one transaction, by whichever process comes first.

The transaction locks the row of the source, sees that nobody was first, moves `upper`, and writes a pair for each
partition and the watermarks that rose. A process that is killed anywhere leaves all of it or nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, update

from floodmark._util.codec import JsonValue
from floodmark.bindings._checks import check_ends
from floodmark.bindings._compaction import compact_in
from floodmark.bindings._histories import Histories
from floodmark.bindings._history import BindingHistory
from floodmark.bindings._schema import PAIRS, SOURCES, STEPS
from floodmark.bindings._sources import check_identity, find
from floodmark.bindings._ticks import check_clock, is_due, next_ts, open_ts
from floodmark.control import Home
from floodmark.errors import MintLost, SourceTruncated

Ends = Mapping[int, int]
"""{partition: end}: how far each partition is filled; the offset behind its last record."""
EndsNow = Ends | Callable[[], Ends]
"""Ends, or what asks for them."""
Watermarks = Mapping[str, int]
"""{time key: watermark}."""
WatermarksNow = Watermarks | Callable[[Ends], Watermarks]
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
_INSERT_STEPS: Final = insert(STEPS)


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a tick came to: the history, and whether this call has closed a timestamp."""

    history: BindingHistory
    minted: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be minted: on top of `expected_upper`, at the open timestamp or at one that was proposed."""

    ends: Ends
    watermarks: Watermarks
    expected_upper: int
    identity: JsonValue | None = None
    ts: int | None = None
    upper: int | None = None


class Minting:
    """Closes timestamps of the sources of a home."""

    __slots__ = ("_histories", "_home", "_own_clock", "_reached")

    def __init__(
        self, home: Home, histories: Histories, own_clock: Callable[[], int], reached: Callable[[str], None]
    ) -> None:
        """Close them in this home."""
        self._home = home
        self._histories = histories
        self._own_clock = own_clock
        self._reached = reached

    def mint(self, source: str, wanted: Wanted, *, compact: bool = False) -> BindingHistory:
        """Close a timestamp, or raise `MintLost` if somebody else was first."""
        self._reached(_BEFORE)
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            self._reached(_LOCKED)
            if wanted.identity is not None:
                check_identity(row, wanted.identity)
            if row.upper != wanted.expected_upper:
                raise _lost(row, wanted.expected_upper)
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
                history = history.compact(compact_in(connection, row, upper, now).since)
            self._reached(_BEFORE_COMMIT)
        self._reached(_AFTER_COMMIT)
        self._histories.keep(row.source_id, history)
        return history

    def tick(self, source: str, ends: EndsNow, watermarks: WatermarksNow, identity: JsonValue | None) -> Ticked:
        """Close the open timestamp if a tick is due and nobody else has; return the newest history."""
        for _ in range(_ATTEMPTS):
            with self._home.read() as connection:
                row = find(connection, source)
                history = self._histories.read(connection, row)
                if not is_due(self._home.now(connection), row.minted_at, row.tick):
                    return Ticked(history, minted=False)
            seen = _seen(ends, history)
            known = watermarks(seen) if callable(watermarks) else watermarks
            try:
                wanted = Wanted(seen, known, history.upper, identity)
                return Ticked(self.mint(source, wanted, compact=True), minted=True)
            except MintLost:
                continue
        return Ticked(history, minted=False)

    def _write(
        self, connection: Connection, row: Row[Any], ts: int, upper: int, now: int, wanted: Wanted, risen: Watermarks
    ) -> None:
        here = {"source_id": row.source_id, "ts": ts}
        moved = connection.execute(_MOVE_UPPER, {"s": row.source_id, "expected": row.upper, "after": upper, "now": now})
        if moved.rowcount != 1:
            raise _lost(row, wanted.expected_upper)
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


def _seen(ends: EndsNow, history: BindingHistory) -> Ends:
    """Return the ends to bind on top of a history that was read before."""
    if callable(ends):
        seen = check_ends(ends())
        # An end below what is bound was told by somebody who did not know better yet, or it stays so.
        is_below = any(seen.get(partition, bound) < bound for partition, bound in history.ends.items())
        return ends() if is_below else seen
    # They are older than the history: another process may have bound more since, which is no less true.
    bound = history.ends
    return {partition: max(end, bound.get(partition, 0)) for partition, end in check_ends(ends).items()}


def _lost(row: Row[Any], expected: int) -> MintLost:
    return MintLost(
        f"The open timestamp of {row.source!r} is {row.upper}, and {expected} was to be closed.",
        rule="A timestamp is closed once, by whoever comes first.",
        remedy="Read the history again, and bind what it has not bound.",
        source=row.source,
        expected_upper=expected,
        upper=row.upper,
    )
