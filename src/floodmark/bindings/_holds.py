"""Holds: sinks and queries keep the timestamps that they may still have to read."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, select

from floodmark.bindings._schema import HOLDS, SOURCES

STALLED_AFTER: Final = 600_000_000
"""A hold that has not moved for ten minutes while time went on by as much has stopped moving."""

KINDS: Final = ("query", "sink")


@dataclass(frozen=True, slots=True)
class Hold:
    """A claim on a source: timestamps from `ts` on are not given up. All times are by the store's clock.

    >>> hold = Hold(
    ...     "orders", "out", "sink", 500, taken_at=0, moved_at=0, heard_at=3, upper=900 * 10**6, now=900 * 10**6
    ... )
    >>> hold.warning
    "The sink 'out' has held 'orders' at 500 for 900 s, and is 899 s behind."
    """

    source: str
    holder: str
    kind: str
    ts: int
    taken_at: int
    moved_at: int
    """When it last moved on."""
    heard_at: int
    """When its owner last said where it is, whether it moved or not."""
    upper: int
    """The open timestamp of the source when this was read."""
    now: int
    """When this was read."""

    @property
    def silent_for(self) -> int:
        """How long its owner was not heard."""
        return max(self.now - self.heard_at, 0)

    @property
    def unmoved_for(self) -> int:
        """How long it has not moved."""
        return max(self.now - self.moved_at, 0)

    @property
    def behind(self) -> int:
        """How far it is behind the open timestamp."""
        return self.upper - self.ts

    @property
    def is_stalled(self) -> bool:
        """Whether it has stopped moving: time went on, and it did not."""
        return self.unmoved_for >= STALLED_AFTER and self.behind >= STALLED_AFTER

    @property
    def warning(self) -> str | None:
        """What to tell about a hold that has stopped moving, which makes bindings grow without end."""
        if not self.is_stalled:
            return None
        return (
            f"The {self.kind} {self.holder!r} has held {self.source!r} at {self.ts} for "
            f"{self.unmoved_for // 10**6} s, and is {self.behind // 10**6} s behind."
        )


_COLUMNS: Final = (
    SOURCES.c.source,
    HOLDS.c.holder,
    HOLDS.c.kind,
    HOLDS.c.ts,
    HOLDS.c.taken_at,
    HOLDS.c.moved_at,
    HOLDS.c.heard_at,
    SOURCES.c.upper,
)
_ALL: Final = select(*_COLUMNS).join(SOURCES, SOURCES.c.source_id == HOLDS.c.source_id)
_OF_SOURCE: Final = select(HOLDS).where(HOLDS.c.source_id == bindparam("s")).order_by(HOLDS.c.ts, HOLDS.c.holder)


def load_holds(connection: Connection, row: Row[Any], *, upper: int, now: int) -> tuple[Hold, ...]:
    """Return the holds on a source, the lowest first."""
    return tuple(
        load_hold(row.source, found, upper, now) for found in connection.execute(_OF_SOURCE, {"s": row.source_id})
    )


def load_all(connection: Connection, now: int) -> tuple[Hold, ...]:
    """Return all holds of a home, by source, the lowest first."""
    rows = connection.execute(_ALL.order_by(SOURCES.c.source, HOLDS.c.ts, HOLDS.c.holder))
    return tuple(Hold(**row._mapping, now=now) for row in rows)


def load_hold(source: str, row: Row[Any], upper: int, now: int) -> Hold:
    """Return a row of the table of holds as what it says."""
    values = {name: value for name, value in row._mapping.items() if name != "source_id"}
    return Hold(source=source, **values, upper=upper, now=now)


def release_silent(connection: Connection, row: Row[Any], now: int, age: int | None) -> tuple[Hold, ...]:
    """Release the holds on a source, whose row is locked, that were not heard of for so long; return them."""
    if age is None:
        return ()
    silent = [hold for hold in load_holds(connection, row, upper=row.upper, now=now) if hold.silent_for >= age]
    if silent:
        holders = [hold.holder for hold in silent]
        connection.execute(delete(HOLDS).where(HOLDS.c.source_id == row.source_id, HOLDS.c.holder.in_(holders)))
    return tuple(silent)
