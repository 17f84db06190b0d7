"""Taking, moving and releasing holds. Each is one transaction that begins with the lock on the source's row."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, select, update

from floodmark._util.ints import check_int64
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings._checks import check_text
from floodmark.bindings._holds import KINDS, Hold, load_all, load_hold, load_holds, release_silent
from floodmark.bindings._schema import HOLDS, SOURCES
from floodmark.bindings._sources import find
from floodmark.control import Home
from floodmark.control.store.base import upsert_row
from floodmark.errors import InvalidOption, TimestampNotValid, UnknownHold

_H: Final = HOLDS.c


class Holding:
    """The holds on the sources of a home."""

    __slots__ = ("_home", "_reached")

    def __init__(self, home: Home, reached: Callable[[str], None]) -> None:
        """Keep them in this home."""
        self._home = home
        self._reached = reached

    def take(self, source: str, holder: str, ts: int, kind: str) -> Hold:
        """Take a hold, or take it anew at another timestamp that can still be read."""
        check_text("holder", holder)
        if kind not in KINDS:
            raise InvalidOption(
                f"The kind of the hold is {kind!r}.",
                rule=f"It is one of {', '.join(KINDS)}.",
                remedy=did_you_mean(str(kind), KINDS, otherwise="Say who holds."),
                kind=kind,
            )
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            _check_ts(row, ts)
            self._reached("hold: checked")
            now = self._home.now(connection)
            known = connection.execute(select(HOLDS).where(_here(row, holder))).one_or_none()
            # One that starts again and again at the same place has not moved.
            moved_at = now if known is None or ts > known.ts else known.moved_at
            taken_at = now if known is None else known.taken_at
            values = {"kind": kind, "ts": ts, "taken_at": taken_at, "moved_at": moved_at, "heard_at": now}
            upsert_row(connection, HOLDS, {"source_id": row.source_id, "holder": holder, **values})
            self._reached("hold: before the commit")
            return Hold(source, holder, kind, ts, taken_at, moved_at, heard_at=now, upper=row.upper, now=now)

    def advance(self, source: str, holder: str, ts: int) -> Hold:
        """Move a hold on; a lower timestamp leaves it where it is."""
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            known = self._require(connection, row, holder)
            _check_ts(row, max(check_int64(ts, "timestamp"), known.ts))
            now = self._home.now(connection)
            moves = {"ts": ts, "moved_at": now} if ts > known.ts else {}
            connection.execute(update(HOLDS).where(_here(row, holder)).values(heard_at=now, **moves))
            return load_hold(source, self._require(connection, row, holder), row.upper, now)

    def release(self, source: str, holder: str) -> bool:
        """Release a hold; return whether there was one."""
        with self._home.write() as connection:
            row = find(connection, source, lock=True)
            return connection.execute(delete(HOLDS).where(_here(row, holder))).rowcount == 1

    def release_older_than(self, age: Duration, source: str | None) -> tuple[Hold, ...]:
        """Release holds whose owners were not heard for so long, and return them."""
        least = duration_micros(age, "age", least=1)
        with self._home.read() as connection:
            known = connection.execute(select(SOURCES.c.source).order_by(SOURCES.c.source)).scalars().all()
        released: list[Hold] = []
        for name in known if source is None else [source]:
            with self._home.write() as connection:
                row = find(connection, name, lock=True)
                released += release_silent(connection, row, self._home.now(connection), least)
        return tuple(released)

    def list(self, source: str | None) -> tuple[Hold, ...]:
        """Return the holds on a source, or on all."""
        with self._home.read() as connection:
            now = self._home.now(connection)
            if source is None:
                return load_all(connection, now)
            row = find(connection, source)
            return load_holds(connection, row, upper=row.upper, now=now)

    @staticmethod
    def _require(connection: Connection, row: Row[Any], holder: str) -> Row[Any]:
        found = connection.execute(select(HOLDS).where(_here(row, holder))).one_or_none()
        if found is None:
            raise UnknownHold(
                f"{holder!r} holds nothing of {row.source!r}.",
                rule="A hold is moved from when it is taken to when it is released, by command or for its age.",
                remedy="Take it again with hold(), if the timestamp can still be read.",
                source=row.source,
                holder=holder,
            )
        return found


def _here(row: Row[Any], holder: str) -> Any:
    return and_(_H.source_id == row.source_id, _H.holder == holder)


def _check_ts(row: Row[Any], ts: int) -> None:
    if not row.since <= check_int64(ts, "timestamp") <= row.upper:
        raise TimestampNotValid(
            f"The timestamp {ts} of {row.source!r} cannot be held: it is not in [{row.since}, {row.upper}].",
            rule="A hold keeps what is there: what was compacted does not come back, and what is to come needs none.",
            remedy="Hold since or a later timestamp; whoever needs an older one must start anew.",
            source=row.source,
            ts=ts,
            since=row.since,
            upper=row.upper,
        )
