"""Compaction: timestamps that nobody needs any more are given up, and what was bound to them stays bound."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, text, update

from floodmark.bindings._holds import Hold, load_holds, release_silent
from floodmark.bindings._schema import SOURCES


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction came to."""

    since: int
    """The lowest timestamp that can be read now."""
    moved: bool
    """Whether that is higher than before."""
    held_by: tuple[str, ...]
    """Who keeps it from going further."""
    released: tuple[Hold, ...]
    """The holds that were released since their owners had not been heard for too long."""


def since_after(since: int, upper: int, window: int | None, holds: Iterable[int]) -> int:
    """Return how far timestamps may be given up: to the lowest hold, or a window behind `upper`. Never back.

    The last closed timestamp always stays readable. Without a window nothing is given up.

    >>> since_after(0, upper=5000, window=0, holds=[2000, 3000]), since_after(0, upper=5000, window=0, holds=[])
    (2000, 4999)
    >>> since_after(1000, upper=5000, window=4500, holds=[]), since_after(0, upper=5000, window=None, holds=[])
    (1000, 0)
    """
    if window is None:
        return since
    return max(since, min(upper - window, upper - 1, *holds))


# A pair at the new `since` that is there already reaches at least as far as those below it. That nothing lies below
# the old one is said so that PostgreSQL need not walk over what was deleted there.
_MOVE: Final = text(
    "INSERT INTO binding_pair (source_id, ts, part, end_offset) "
    "SELECT source_id, :since, part, MAX(end_offset) FROM binding_pair "
    "WHERE source_id = :s AND ts >= :before AND ts < :since GROUP BY source_id, part "
    "ON CONFLICT (source_id, ts, part) DO NOTHING"
)
_DROP: Final = text("DELETE FROM binding_pair WHERE source_id = :s AND ts >= :before AND ts < :since")
# The newest step below `since` is what rows bound at `since` are judged by.
_DROP_STEPS: Final = text(
    "DELETE FROM binding_watermark WHERE source_id = :s AND ts < "
    "(SELECT MAX(newer.ts) FROM binding_watermark AS newer WHERE newer.source_id = :s "
    "AND newer.time_key = binding_watermark.time_key AND newer.ts < :since)"
)


def compact_in(connection: Connection, row: Row[Any], upper: int, now: int) -> Compaction:
    """Compact a source whose row is locked, and whose open timestamp is `upper`."""
    released = release_silent(connection, row, now, row.release_after)
    holds = load_holds(connection, row, upper=upper, now=now)
    since = since_after(row.since, upper, row.compaction_window, [hold.ts for hold in holds])
    if since > row.since:
        here = {"s": row.source_id, "since": since}
        for statement in (_MOVE, _DROP):
            connection.execute(statement, {**here, "before": row.since})
        connection.execute(_DROP_STEPS, here)
        connection.execute(update(SOURCES).where(SOURCES.c.source_id == row.source_id).values(since=since))
    without = since_after(row.since, upper, row.compaction_window, [])
    held_by = tuple(hold.holder for hold in holds if hold.ts <= since < without)
    return Compaction(since, since > row.since, held_by, released)
