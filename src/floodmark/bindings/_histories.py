"""The histories that this process has read: each is read once, and then only what came since."""

from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from floodmark.bindings._history import BindingHistory
from floodmark.bindings._loading import extended
from floodmark.bindings._schema import PAIRS, STEPS

_PAIRS: Final = (
    select(PAIRS.c.part, PAIRS.c.ts, PAIRS.c.end_offset)
    .where(PAIRS.c.source_id == bindparam("s"), PAIRS.c.ts >= bindparam("lower"))
    .order_by(PAIRS.c.part, PAIRS.c.ts)
)
_STEPS: Final = (
    select(STEPS.c.time_key, STEPS.c.ts, STEPS.c.watermark)
    .where(STEPS.c.source_id == bindparam("s"), STEPS.c.ts >= bindparam("lower"))
    .order_by(STEPS.c.time_key, STEPS.c.ts)
)
# What is below a bound, in one row each: ends and watermarks never fall, so the greatest is the last.
_PAIRS_BELOW: Final = (
    select(PAIRS.c.part, func.max(PAIRS.c.ts), func.max(PAIRS.c.end_offset))
    .where(PAIRS.c.source_id == bindparam("s"), PAIRS.c.ts < bindparam("lower"))
    .group_by(PAIRS.c.part)
    .order_by(PAIRS.c.part)
)
_STEPS_BELOW: Final = (
    select(STEPS.c.time_key, func.max(STEPS.c.ts), func.max(STEPS.c.watermark))
    .where(STEPS.c.source_id == bindparam("s"), STEPS.c.ts < bindparam("lower"))
    .group_by(STEPS.c.time_key)
    .order_by(STEPS.c.time_key)
)


class Histories:
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
            known = extended(
                known,
                row.since,
                row.upper,
                connection.execute(_PAIRS, lower),
                connection.execute(_STEPS, lower),
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


def read_from(connection: Connection, row: Row[Any], lower: int) -> BindingHistory:
    """Return the history as if it had been compacted to `lower`, and read no more than that takes."""
    bound = {"s": row.source_id, "lower": lower}
    empty = BindingHistory(row.source, row.origin, row.origin, row.origin, {}, {})
    below = extended(
        empty,
        row.origin,
        max(lower, row.origin),
        connection.execute(_PAIRS_BELOW, bound),
        connection.execute(_STEPS_BELOW, bound),
    )
    return extended(
        below,
        lower,
        row.upper,
        connection.execute(_PAIRS, bound),
        connection.execute(_STEPS, bound),
    )
