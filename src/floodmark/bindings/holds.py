"""Holds keep timestamps readable for sinks and queries; compaction removes timestamps below the lowest hold.

Each change is one transaction that first locks the source's row.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, select, text, update

from floodmark._util.ints import check_int64
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, as_utc, duration_micros
from floodmark.bindings.history import check_text
from floodmark.bindings.sources import find_source
from floodmark.bindings.tables import HOLDS, SOURCES
from floodmark.bindings.timestamps import check_clock
from floodmark.control import Home
from floodmark.control.store.base import upsert_row
from floodmark.errors import InvalidOption, TimestampNotValid, UnknownHold

STALLED_AFTER: Final = 600_000_000
"""A hold is stalled if it has not moved for ten minutes and is at least ten minutes behind."""

HOLD_KINDS: Final = ("query", "sink")


@dataclass(frozen=True, slots=True)
class Hold:
    """A claim on a source: timestamps from `ts` on stay readable. Times are in microseconds, by the store's clock.

    >>> hold = Hold(
    ...     "orders", "out", "sink", 500, taken_at=0, moved_at=0, heard_at=3, upper=900 * 10**6, now=900 * 10**6
    ... )
    >>> hold.warning
    "The sink 'out' has held 'orders' at 1970-01-01 00:00:00.000500 UTC for 900 s, and is 899 s behind."
    """

    source: str
    holder: str
    kind: str
    ts: int
    taken_at: int
    moved_at: int
    """When it last moved forward."""
    heard_at: int
    """When its owner last sent a heartbeat, whether the hold moved or not."""
    upper: int
    """The open timestamp of the source when the hold was read."""
    now: int
    """When the hold was read."""

    @property
    def silent_for(self) -> int:
        """Time since the owner's last heartbeat."""
        return max(self.now - self.heard_at, 0)

    @property
    def unmoved_for(self) -> int:
        """Time since it last moved."""
        return max(self.now - self.moved_at, 0)

    @property
    def behind(self) -> int:
        """How far it is behind the open timestamp."""
        return self.upper - self.ts

    @property
    def is_stalled(self) -> bool:
        """Whether it has stopped moving while timestamps went on."""
        return self.unmoved_for >= STALLED_AFTER and self.behind >= STALLED_AFTER

    @property
    def warning(self) -> str | None:
        """A sentence about a stalled hold, which makes bindings grow without limit; None if it is not stalled."""
        if not self.is_stalled:
            return None
        return (
            f"The {self.kind} {self.holder!r} has held {self.source!r} at {as_utc(self.ts)} for "
            f"{self.unmoved_for // 10**6} s, and is {self.behind // 10**6} s behind."
        )


_HOLD_COLUMNS: Final = (
    SOURCES.c.source,
    HOLDS.c.holder,
    HOLDS.c.kind,
    HOLDS.c.ts,
    HOLDS.c.taken_at,
    HOLDS.c.moved_at,
    HOLDS.c.heard_at,
    SOURCES.c.upper,
)
_SELECT_ALL_HOLDS: Final = select(*_HOLD_COLUMNS).join(SOURCES, SOURCES.c.source_id == HOLDS.c.source_id)
_SELECT_HOLDS_OF_SOURCE: Final = (
    select(HOLDS).where(HOLDS.c.source_id == bindparam("s")).order_by(HOLDS.c.ts, HOLDS.c.holder)
)


def load_holds(connection: Connection, row: Row[Any], *, upper: int, now: int) -> tuple[Hold, ...]:
    """Return the holds on a source, the lowest first."""
    return tuple(
        load_hold(row.source, hold, upper, now)
        for hold in connection.execute(_SELECT_HOLDS_OF_SOURCE, {"s": row.source_id})
    )


def load_all_holds(connection: Connection, now: int) -> tuple[Hold, ...]:
    """Return all holds of a home, by source, the lowest first."""
    rows = connection.execute(_SELECT_ALL_HOLDS.order_by(SOURCES.c.source, HOLDS.c.ts, HOLDS.c.holder))
    return tuple(Hold(**row._mapping, now=now) for row in rows)


def load_hold(source: str, row: Row[Any], upper: int, now: int) -> Hold:
    """Return a hold from its row."""
    values = {name: value for name, value in row._mapping.items() if name != "source_id"}
    return Hold(source=source, **values, upper=upper, now=now)


def release_silent_holds(connection: Connection, row: Row[Any], now: int, age: int | None) -> tuple[Hold, ...]:
    """Release holds on a source (whose row is locked) whose owners were silent for `age` or longer; return them."""
    if age is None:
        return ()
    # If the clock was set back, count the silence of dead owners from now; see `past_time`.
    of_source = HOLDS.c.source_id == row.source_id
    connection.execute(update(HOLDS).where(of_source, HOLDS.c.heard_at > now).values(heard_at=now))
    silent = [hold for hold in load_holds(connection, row, upper=row.upper, now=now) if hold.silent_for >= age]
    if silent:
        holders = [hold.holder for hold in silent]
        connection.execute(delete(HOLDS).where(of_source, HOLDS.c.holder.in_(holders)))
    return tuple(silent)


_H: Final = HOLDS.c


class HoldStore:
    """The holds on the sources of a home."""

    __slots__ = ("_failpoint", "_home", "_own_clock")

    def __init__(self, home: Home, own_clock: Callable[[], int], failpoint: Callable[[str], None]) -> None:
        """Read and write the holds of `home`."""
        self._home = home
        self._own_clock = own_clock
        self._failpoint = failpoint

    def hold(self, source: str, holder: str, ts: int, kind: str) -> Hold:
        """Create a hold, or move an existing one to any readable timestamp."""
        check_text("holder", holder)
        if kind not in HOLD_KINDS:
            raise InvalidOption(
                f"The kind of the hold is {kind!r}.",
                rule=f"The kind is one of {', '.join(HOLD_KINDS)}.",
                remedy=did_you_mean(
                    str(kind), HOLD_KINDS, otherwise="Use kind='query' for a reader, 'sink' for a sink."
                ),
                kind=kind,
            )
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            _check_can_be_held(row, ts)
            self._failpoint("hold: checked")
            now = self._home.now(connection)
            existing = connection.execute(select(HOLDS).where(_is_hold(row, holder))).one_or_none()
            # Taking it again at the same timestamp is no movement.
            moved_at = now if existing is None or ts > existing.ts else existing.moved_at
            taken_at = now if existing is None else existing.taken_at
            values = {"kind": kind, "ts": ts, "taken_at": taken_at, "moved_at": moved_at, "heard_at": now}
            upsert_row(connection, HOLDS, {"source_id": row.source_id, "holder": holder, **values})
            self._failpoint("hold: before the commit")
            return Hold(source, holder, kind, ts, taken_at, moved_at, heard_at=now, upper=row.upper, now=now)

    def advance(self, source: str, holder: str, ts: int) -> Hold:
        """Move a hold forward and renew its heartbeat; a lower timestamp leaves it where it is."""
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            existing = self._require(connection, row, holder)
            _check_can_be_held(row, max(check_int64(ts, "timestamp"), existing.ts))
            now = self._home.now(connection)
            moves = {"ts": ts, "moved_at": now} if ts > existing.ts else {}
            connection.execute(update(HOLDS).where(_is_hold(row, holder)).values(heard_at=now, **moves))
            return load_hold(source, self._require(connection, row, holder), row.upper, now)

    def release(self, source: str, holder: str) -> bool:
        """Release a hold; return whether there was one."""
        with self._home.write() as connection:
            row = find_source(connection, source, lock=True)
            return connection.execute(delete(HOLDS).where(_is_hold(row, holder))).rowcount == 1

    def release_older_than(self, age: Duration, source: str | None) -> tuple[Hold, ...]:
        """Release holds whose owners were silent for `age` or longer, and return them."""
        least = duration_micros(age, "age", least=1)
        with self._home.read() as connection:
            names = connection.execute(select(SOURCES.c.source).order_by(SOURCES.c.source)).scalars().all()
        released: list[Hold] = []
        for name in names if source is None else [source]:
            with self._home.write() as connection:
                row = find_source(connection, name, lock=True)
                now = self._home.now(connection)
                check_clock(now, self._own_clock(), row.upper, name)
                released += release_silent_holds(connection, row, now, least)
        return tuple(released)

    def list(self, source: str | None) -> tuple[Hold, ...]:
        """Return the holds on a source, or on all."""
        with self._home.read() as connection:
            now = self._home.now(connection)
            if source is None:
                return load_all_holds(connection, now)
            row = find_source(connection, source)
            return load_holds(connection, row, upper=row.upper, now=now)

    @staticmethod
    def _require(connection: Connection, row: Row[Any], holder: str) -> Row[Any]:
        hold = connection.execute(select(HOLDS).where(_is_hold(row, holder))).one_or_none()
        if hold is None:
            raise UnknownHold(
                f"{holder!r} has no hold on {row.source!r}.",
                rule="A hold can be moved until it is released, by command or by the source's release_after.",
                remedy="Take it again with hold(), if the timestamp is still readable.",
                source=row.source,
                holder=holder,
            )
        return hold


def _is_hold(row: Row[Any], holder: str) -> Any:
    return and_(_H.source_id == row.source_id, _H.holder == holder)


def _check_can_be_held(row: Row[Any], ts: int) -> None:
    if not row.since <= check_int64(ts, "timestamp") <= row.upper:
        raise TimestampNotValid(
            f"The timestamp {ts} of {row.source!r} cannot be held: it is not in [{row.since}, {row.upper}].",
            rule="A hold lies between since, below which timestamps are compacted, and the open timestamp.",
            remedy=f"Hold {row.since} or later; a reader that needs an older timestamp must start over.",
            source=row.source,
            ts=ts,
            since=row.since,
            upper=row.upper,
        )


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did."""

    since: int
    """The lowest readable timestamp after it."""
    moved: bool
    """Whether `since` rose."""
    held_by: tuple[str, ...]
    """The holders that prevent it from rising further."""
    released: tuple[Hold, ...]
    """Holds released because their owners were silent for too long."""


def since_after_compaction(since: int, upper: int, window: int | None, holds: Iterable[int]) -> int:
    """Return the new `since`: the lowest hold, or `window` behind `upper` if that is lower. It never goes back.

    The last closed timestamp always stays readable. Without a window nothing is compacted.

    >>> (
    ...     since_after_compaction(0, upper=5000, window=0, holds=[2000, 3000]),
    ...     since_after_compaction(0, upper=5000, window=0, holds=[]),
    ... )
    (2000, 4999)
    >>> (
    ...     since_after_compaction(1000, upper=5000, window=4500, holds=[]),
    ...     since_after_compaction(0, upper=5000, window=None, holds=[]),
    ... )
    (1000, 0)
    """
    if window is None:
        return since
    return max(since, min(upper - window, upper - 1, *holds))


# An existing pair at the new `since` already covers those below it. `ts >= :before` is redundant, but saves PostgreSQL
# from scanning the dead rows below the old `since`.
_MOVE_PAIRS: Final = text(
    "INSERT INTO binding_pair (source_id, ts, part, end_offset) "
    "SELECT source_id, :since, part, MAX(end_offset) FROM binding_pair "
    "WHERE source_id = :s AND ts >= :before AND ts < :since GROUP BY source_id, part "
    "ON CONFLICT (source_id, ts, part) DO NOTHING"
)
# A reader that holds the new `since` may continue inside of it: retention of the source's events needs the ends before.
_RAISE_FLOORS: Final = text(
    "INSERT INTO binding_floor (source_id, part, end_offset) "
    "SELECT source_id, part, MAX(end_offset) FROM binding_pair "
    "WHERE source_id = :s AND ts >= :before AND ts < :since GROUP BY source_id, part "
    "ON CONFLICT (source_id, part) DO UPDATE SET end_offset = excluded.end_offset"
)
_DROP_PAIRS: Final = text("DELETE FROM binding_pair WHERE source_id = :s AND ts >= :before AND ts < :since")
# Rows bound at `since` are judged by the newest step below it, so that step stays.
_DROP_STEPS: Final = text(
    "DELETE FROM binding_watermark WHERE source_id = :s AND ts < "
    "(SELECT MAX(newer.ts) FROM binding_watermark AS newer WHERE newer.source_id = :s "
    "AND newer.time_key = binding_watermark.time_key AND newer.ts < :since)"
)
# The state at `since` stays.
_DROP_STATES: Final = text(
    "DELETE FROM binding_state WHERE source_id = :s AND ts < "
    "(SELECT MAX(newer.ts) FROM binding_state AS newer WHERE newer.source_id = :s AND newer.ts <= :since)"
)


def compact_source(connection: Connection, row: Row[Any], upper: int, now: int) -> CompactionResult:
    """Compact a source whose row is locked and whose open timestamp is `upper`."""
    released = release_silent_holds(connection, row, now, row.release_after)
    holds = load_holds(connection, row, upper=upper, now=now)
    since = since_after_compaction(row.since, upper, row.compaction_window, [hold.ts for hold in holds])
    if since > row.since:
        key = {"s": row.source_id, "since": since}
        for statement in (_RAISE_FLOORS, _MOVE_PAIRS, _DROP_PAIRS):
            connection.execute(statement, {**key, "before": row.since})
        connection.execute(_DROP_STEPS, key)
        connection.execute(_DROP_STATES, key)
        connection.execute(update(SOURCES).where(SOURCES.c.source_id == row.source_id).values(since=since))
    unheld_since = since_after_compaction(row.since, upper, row.compaction_window, [])
    held_by = tuple(hold.holder for hold in holds if hold.ts <= since < unheld_since)
    return CompactionResult(since, since > row.since, held_by, released)
