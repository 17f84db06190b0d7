"""Under which watermark a batch of a query judges its rows: the same for all its tasks, and when it runs again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, select

from floodmark._util.codec import from_json
from floodmark._util.ints import check_int64, check_number, check_watermark
from floodmark._util.names import check_id
from floodmark.control._home import Home
from floodmark.control._schema import BATCHES, PLACES, QUERIES
from floodmark.control._store import put
from floodmark.errors import AmbiguousQuery


@dataclass(frozen=True, slots=True)
class BatchOf:
    """A batch as its tasks know it: the query and its run, the batch, and the frame with its time column."""

    query_id: str
    run_id: str
    batch_id: int
    frame: str
    column: str


class BatchWatermarks:
    """The watermarks before and after the batches of a frame.

    Who computes watermarks knows the frame and says where it stands. Who runs a batch knows the query, and asks.

    >>> with Home.open() as home:
    ...     watermarks = BatchWatermarks(home)
    ...     watermarks.place("f1", "a1", before=50, after=60, now=100)
    ...     watermarks.of(BatchOf("q1", "r1", 7, "f1", "order_time"))
    50

    A frame lives as long as its program. After a restart a batch may run again before anybody has said where the new
    frame stands, if time stood still in that batch; then what its query was told last is what holds.

    >>> with Home.open() as home:
    ...     BatchWatermarks(home).of(BatchOf("q1", "r2", 8, "f2", "order_time"))
    60
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def place(self, frame: str, incarnation: str, before: int | None, after: int | None, now: int) -> None:
        """Say that the next batch of a frame runs under the watermark `before`, and the one behind it under `after`."""
        here = and_(PLACES.c.frame == check_id("frame", frame), PLACES.c.incarnation == incarnation)
        place = {
            "frame": frame,
            "incarnation": check_id("incarnation", incarnation),
            "before": None if before is None else check_watermark(before),
            "after": None if after is None else check_watermark(after),
            "at": check_int64(now, "now"),
        }
        with self._home.read() as connection:
            known = connection.execute(select(PLACES.c.before, PLACES.c.after).where(here)).one_or_none()
        if known is not None and (known.before, known.after) == (before, after):
            return
        with self._home.write() as connection:
            put(connection, PLACES, place)

    def leave(self, frame: str, incarnation: str) -> None:
        """Say that the frame does not follow this incarnation any more."""
        with self._home.write() as connection:
            connection.execute(delete(PLACES).where(PLACES.c.frame == frame, PLACES.c.incarnation == incarnation))

    def of(self, batch: BatchOf) -> int | None:
        """Return the watermark of a batch, None where there is none yet."""
        check_number("batch_id", batch.batch_id)
        with self._home.read() as connection:
            before, after = _watermarks_of(connection, batch)
            told = connection.execute(
                select(BATCHES).where(_is_of(batch), BATCHES.c.frame == batch.frame)
            ).one_or_none()
        kept = {"run_id": batch.run_id, "batch_id": batch.batch_id, "before": before, "after": after}
        if told is None or any(told._mapping[key] != value for key, value in kept.items()):
            self._remember(batch, kept)
        return before

    def _remember(self, batch: BatchOf, kept: dict[str, Any]) -> None:
        with self._home.write() as connection:
            row = {"query_id": batch.query_id, "frame": batch.frame, "column_name": batch.column, **kept}
            put(connection, BATCHES, row)
            earlier = and_(_is_of(batch), BATCHES.c.run_id != batch.run_id, BATCHES.c.batch_id < batch.batch_id)
            connection.execute(delete(BATCHES).where(earlier))


def _watermarks_of(connection: Connection, batch: BatchOf) -> tuple[int | None, int | None]:
    places = connection.execute(select(PLACES).where(PLACES.c.frame == batch.frame)).all()
    if not places:
        stands = _told_before(connection, batch)
        return stands, stands
    candidates = places if len(places) == 1 else _of_query(connection, places, batch.query_id)
    if len({place.before for place in candidates}) != 1:
        raise AmbiguousQuery(
            "Several queries were started from one DataFrame whose late rows are judged.",
            rule="Each query has a watermark of its own, and such a DataFrame follows one.",
            remedy="Call with_watermark once for each query.",
            query=batch.query_id,
        )
    return candidates[0].before, candidates[0].after


def _told_before(connection: Connection, batch: BatchOf) -> int | None:
    """Return where an earlier run of the query was at this batch; of several frames on one column, the slowest."""
    told = connection.execute(select(BATCHES).where(_is_of(batch), BATCHES.c.run_id != batch.run_id)).all()
    stands = [row.before for row in told if row.batch_id == batch.batch_id]
    stands += [row.after for row in told if row.batch_id == batch.batch_id - 1]
    return None if None in stands else min(stands, default=None)


def _of_query(connection: Connection, places: Sequence[Row[Any]], query_id: str) -> Sequence[Row[Any]]:
    """Return the places that may be the query's: its own if it is known, else those that are no other query's."""
    known = connection.execute(select(QUERIES.c.query_id, QUERIES.c.incarnations)).all()
    owners = {incarnation: row.query_id for row in known for incarnation, _, _ in from_json(row.incarnations)}
    own = [place for place in places if owners.get(place.incarnation) == query_id]
    return own or [place for place in places if place.incarnation not in owners]


def _is_of(batch: BatchOf) -> Any:
    return and_(BATCHES.c.query_id == batch.query_id, BATCHES.c.column_name == batch.column)
