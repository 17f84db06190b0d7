"""The durable watermarks of streaming queries: computed step by step, and fixed for each batch.

`WatermarkSteps` has what was computed and from what. `BatchWatermarks` has the watermark under which a batch
judges its rows: the same for all its tasks, and when it runs again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, delete, func, insert, literal, select
from sqlalchemy.exc import IntegrityError

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.ints import check_int64, check_number, check_watermark
from floodmark._util.names import check_id
from floodmark.control.home import Home
from floodmark.control.store.base import upsert_row
from floodmark.control.tables import (
    BATCH_WATERMARKS,
    FRAME_PLACES,
    QUERIES,
    WATERMARK_INCARNATIONS,
    WATERMARK_OBSERVATIONS,
    WATERMARK_STEPS,
)
from floodmark.errors import AmbiguousQuery, Conflict, UnknownIncarnation, UnknownStep
from floodmark.progress import Snapshot


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a computed watermark: its settings, and the life and step that it goes on from, if any."""

    incarnation: str
    settings: JsonValue
    parent: str | None
    parent_seq: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """The watermark promised at `seq` (None: none yet), and everything that it was computed from."""

    incarnation: str
    seq: int
    watermark: int | None
    snapshot: Snapshot
    at: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What one batch, which ran under the watermark of `seq`, told about its rows."""

    incarnation: str
    seq: int
    batch_id: int
    statistics: JsonValue
    at: int


class WatermarkSteps:
    """Each incarnation is a chain of steps 0, 1, 2 ... that only grows at its end, and the observations at each step.

    >>> with Home.open() as home:
    ...     steps = WatermarkSteps(home)
    ...     steps.create("a1", {"column": "order_time"}, now=100)
    ...     steps.add("a1", 0, None, OriginWatermarks({"order_time": BoundedDisorder(3)}, now=100).snapshot(), now=100)
    ...     steps.observe("a1", 0, batch_id=0, statistics={"newest": {"p0": 99}}, now=120)
    ...     steps.newest("a1").seq, steps.observations("a1", 0)[0].statistics
    (0, {'newest': {'p0': 99}})

    A step belongs to an incarnation, not to the name of a query: a query that starts anew, or two that come from
    one DataFrame, never see each other's. A query that goes back to an older step goes on in a fork.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def create(self, incarnation: str, settings: JsonValue, now: int) -> None:
        """Begin an incarnation, which has no step yet, under an id that nobody else has."""
        new = Incarnation(incarnation, to_json(settings, "settings"), None, None, check_int64(now, "now"))
        with self._home.write() as connection:
            _insert_incarnation(connection, new)

    def incarnation(self, incarnation: str) -> Incarnation:
        """Return what is known of an incarnation."""
        with self._home.read() as connection:
            row = _incarnation_row(connection, incarnation)
        return Incarnation(row.incarnation, from_json(row.settings), row.parent, row.parent_seq, row.created_at)

    def add(self, incarnation: str, seq: int, watermark: int | None, snapshot: Snapshot, now: int) -> None:
        """Add the step `seq`, if the newest one is still `seq - 1`; else it is a `Conflict`, and nothing changes.

        >>> with Home.open() as home:
        ...     steps = WatermarkSteps(home)
        ...     steps.create("a2", {}, now=100)
        ...     steps.add("a2", 7, 50, {}, now=100)
        Traceback (most recent call last):
        floodmark.errors.Conflict: Step 7 of the incarnation 'a2' was to be added, and it has none. ... [conflict]
        """
        seq = check_number("seq", seq)
        step = {
            "incarnation": incarnation,
            "seq": seq,
            "watermark": None if watermark is None else check_watermark(watermark),
            "snapshot": to_json(snapshot, "snapshot"),
            "at": check_int64(now, "now"),
        }
        with self._home.write() as connection:
            _incarnation_row(connection, incarnation, lock=True)
            newest = _newest_seq(connection, incarnation)
            if seq != (0 if newest is None else newest + 1):
                raise Conflict(
                    f"Step {seq} of the incarnation {incarnation!r} was to be added, and "
                    f"{'it has none' if newest is None else f'step {newest} is its newest'}.",
                    rule="Steps are added one after the other, each once.",
                    remedy="Read the newest step and compute from that one, or fork at the step you come from.",
                    incarnation=incarnation,
                    seq=seq,
                    newest=newest,
                )
            connection.execute(insert(WATERMARK_STEPS).values(step))

    def get(self, incarnation: str, seq: int) -> WatermarkStep | None:
        """Return a step, or None if there is none, or none any more."""
        with self._home.read() as connection:
            _incarnation_row(connection, incarnation)
            row = connection.execute(
                select(WATERMARK_STEPS).where(*_at_step(WATERMARK_STEPS, incarnation, seq))
            ).one_or_none()
        return None if row is None else _load_step(row)

    def newest(self, incarnation: str) -> WatermarkStep | None:
        """Return the newest step, or None if there is none."""
        newest = (
            select(WATERMARK_STEPS)
            .where(WATERMARK_STEPS.c.incarnation == incarnation)
            .order_by(WATERMARK_STEPS.c.seq.desc())
            .limit(1)
        )
        with self._home.read() as connection:
            _incarnation_row(connection, incarnation)
            row = connection.execute(newest).one_or_none()
        return None if row is None else _load_step(row)

    def observe(self, incarnation: str, seq: int, batch_id: int, statistics: JsonValue, now: int) -> None:
        """Keep what a batch told. Told again, as after a restart, it replaces what was told before.

        `floodmark why` understands in statistics `newest` (the newest time), `late_rows` and `oldest_late`, each
        {origin: number}, and `future_rows`, `newest_future` and `spark_dropped` of the whole batch. Each
        may be missing.
        """
        seq = check_number("seq", seq)
        batch_id = check_number("batch_id", batch_id)
        kept = {"statistics": to_json(statistics, "statistics"), "at": check_int64(now, "now")}
        with self._home.write() as connection:
            _incarnation_row(connection, incarnation, lock=True)
            connection.execute(
                delete(WATERMARK_OBSERVATIONS).where(*_at_step(WATERMARK_OBSERVATIONS, incarnation, seq, batch_id))
            )
            connection.execute(
                insert(WATERMARK_OBSERVATIONS).values(incarnation=incarnation, seq=seq, batch_id=batch_id, **kept)
            )

    def observations(
        self, incarnation: str, seq: int | None = None, *, after_batch: int | None = None
    ) -> tuple[Observation, ...]:
        """Return what the batches at a step told, or at all steps, in the order of the batches; or only later ones."""
        table = WATERMARK_OBSERVATIONS.c
        wanted = (
            select(WATERMARK_OBSERVATIONS).where(table.incarnation == incarnation).order_by(table.batch_id, table.seq)
        )
        if seq is not None:
            wanted = wanted.where(table.seq == seq)
        if after_batch is not None:
            wanted = wanted.where(table.batch_id > after_batch)
        with self._home.read() as connection:
            _incarnation_row(connection, incarnation)
            rows = connection.execute(wanted).all()
        return tuple(
            Observation(row.incarnation, row.seq, row.batch_id, from_json(row.statistics), row.at) for row in rows
        )

    def fork(self, incarnation: str, seq: int, new: str, now: int) -> None:
        """Begin the incarnation `new` with the settings, steps and observations of an old one, up to `seq`.

        The old one stays as it is. Forked at -1, before the first step, the new one has only the settings.
        """
        seq = check_number("seq", seq, least=-1)
        with self._home.write() as connection:
            old = _incarnation_row(connection, incarnation, lock=True)
            if (
                seq >= 0
                and connection.execute(
                    select(WATERMARK_STEPS.c.seq).where(*_at_step(WATERMARK_STEPS, incarnation, seq))
                ).first()
                is None
            ):
                raise UnknownStep(
                    f"The incarnation {incarnation!r} has no step {seq}.",
                    rule="A fork goes on from a step that is kept.",
                    remedy="Fork at a newer step, or begin a new incarnation.",
                    incarnation=incarnation,
                    seq=seq,
                    newest=_newest_seq(connection, incarnation),
                )
            _insert_incarnation(connection, Incarnation(new, old.settings, incarnation, seq, check_int64(now, "now")))
            for table in (WATERMARK_STEPS, WATERMARK_OBSERVATIONS):
                others = [column for column in table.c if column is not table.c.incarnation]
                copied = select(literal(new), *others).where(table.c.incarnation == incarnation, table.c.seq <= seq)
                connection.execute(
                    insert(table).from_select(["incarnation", *(column.name for column in others)], copied)
                )

    def prune(self, incarnation: str, before_seq: int) -> int:
        """Forget steps and observations below `before_seq`, and return how many steps that were.

        The newest step always stays: without it the next one could not be told from the first.
        """
        before_seq = check_int64(before_seq, "before_seq")
        with self._home.write() as connection:
            _incarnation_row(connection, incarnation, lock=True)
            newest = _newest_seq(connection, incarnation)
            end = before_seq if newest is None else min(before_seq, newest)
            for table in (WATERMARK_OBSERVATIONS, WATERMARK_STEPS):
                forgotten = connection.execute(
                    delete(table).where(table.c.incarnation == incarnation, table.c.seq < end)
                )
        return forgotten.rowcount


def _incarnation_row(connection: Connection, incarnation: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of an incarnation; locked, nobody else changes the incarnation before the transaction ends."""
    wanted = select(WATERMARK_INCARNATIONS).where(WATERMARK_INCARNATIONS.c.incarnation == incarnation)
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise UnknownIncarnation(
            f"The incarnation {incarnation!r} is not known.",
            rule="An incarnation is created before it is used.",
            remedy="Create it; if a checkpoint names it, open the home that the checkpoint was written with.",
            incarnation=incarnation,
        )
    return row


def _insert_incarnation(connection: Connection, new: Incarnation) -> None:
    check_id("incarnation", new.incarnation)
    try:
        connection.execute(
            insert(WATERMARK_INCARNATIONS).values(
                incarnation=new.incarnation,
                settings=new.settings,
                parent=new.parent,
                parent_seq=new.parent_seq,
                created_at=new.created_at,
            )
        )
    except IntegrityError as error:
        raise Conflict(
            f"The incarnation {new.incarnation!r} is known already.",
            rule="Each incarnation has an id of its own.",
            remedy="Mint another id.",
            incarnation=new.incarnation,
        ) from error


def _newest_seq(connection: Connection, incarnation: str) -> int | None:
    seq: int | None = connection.execute(
        select(func.max(WATERMARK_STEPS.c.seq)).where(WATERMARK_STEPS.c.incarnation == incarnation)
    ).scalar_one()
    return seq


def _at_step(table: Table, incarnation: str, seq: int, batch_id: int | None = None) -> list[Any]:
    at = [table.c.incarnation == incarnation, table.c.seq == seq]
    return at if batch_id is None else [*at, table.c.batch_id == batch_id]


def _load_step(row: Row[Any]) -> WatermarkStep:
    return WatermarkStep(row.incarnation, row.seq, row.watermark, from_json(row.snapshot), row.at)


@dataclass(frozen=True, slots=True)
class QueryBatch:
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
    ...     watermarks.of(QueryBatch("q1", "r1", 7, "f1", "order_time"))
    50

    A frame lives as long as its program. After a restart a batch may run again before anybody has said where the new
    frame stands, if time stood still in that batch; then what its query was told last is what holds.

    >>> with Home.open() as home:
    ...     BatchWatermarks(home).of(QueryBatch("q1", "r2", 8, "f2", "order_time"))
    60
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def place(self, frame: str, incarnation: str, before: int | None, after: int | None, now: int) -> None:
        """Say that the next batch of a frame runs under the watermark `before`, and the one behind it under `after`."""
        here = and_(FRAME_PLACES.c.frame == check_id("frame", frame), FRAME_PLACES.c.incarnation == incarnation)
        place = {
            "frame": frame,
            "incarnation": check_id("incarnation", incarnation),
            "before": None if before is None else check_watermark(before),
            "after": None if after is None else check_watermark(after),
            "at": check_int64(now, "now"),
        }
        with self._home.read() as connection:
            known = connection.execute(select(FRAME_PLACES.c.before, FRAME_PLACES.c.after).where(here)).one_or_none()
        if known is not None and (known.before, known.after) == (before, after):
            return
        with self._home.write() as connection:
            upsert_row(connection, FRAME_PLACES, place)

    def leave(self, frame: str, incarnation: str) -> None:
        """Say that the frame does not follow this incarnation any more."""
        with self._home.write() as connection:
            connection.execute(
                delete(FRAME_PLACES).where(FRAME_PLACES.c.frame == frame, FRAME_PLACES.c.incarnation == incarnation)
            )

    def of(self, batch: QueryBatch) -> int | None:
        """Return the watermark of a batch, None where there is none yet."""
        check_number("batch_id", batch.batch_id)
        with self._home.read() as connection:
            before, after = _watermarks_of(connection, batch)
            told = connection.execute(
                select(BATCH_WATERMARKS).where(_matches_batch(batch), BATCH_WATERMARKS.c.frame == batch.frame)
            ).one_or_none()
        kept = {"run_id": batch.run_id, "batch_id": batch.batch_id, "before": before, "after": after}
        if told is None or any(told._mapping[key] != value for key, value in kept.items()):
            self._remember(batch, kept)
        return before

    def _remember(self, batch: QueryBatch, kept: dict[str, Any]) -> None:
        with self._home.write() as connection:
            row = {"query_id": batch.query_id, "frame": batch.frame, "column_name": batch.column, **kept}
            upsert_row(connection, BATCH_WATERMARKS, row)
            earlier = and_(
                _matches_batch(batch),
                BATCH_WATERMARKS.c.run_id != batch.run_id,
                BATCH_WATERMARKS.c.batch_id < batch.batch_id,
            )
            connection.execute(delete(BATCH_WATERMARKS).where(earlier))


def _watermarks_of(connection: Connection, batch: QueryBatch) -> tuple[int | None, int | None]:
    places = connection.execute(select(FRAME_PLACES).where(FRAME_PLACES.c.frame == batch.frame)).all()
    if not places:
        stands = _watermark_of_earlier_run(connection, batch)
        return stands, stands
    candidates = places if len(places) == 1 else _places_of_query(connection, places, batch.query_id)
    if len({place.before for place in candidates}) != 1:
        raise AmbiguousQuery(
            "Several queries were started from one DataFrame whose late rows are judged.",
            rule="Each query has a watermark of its own, and such a DataFrame follows one.",
            remedy="Call with_watermark once for each query.",
            query=batch.query_id,
        )
    return candidates[0].before, candidates[0].after


def _watermark_of_earlier_run(connection: Connection, batch: QueryBatch) -> int | None:
    """Return where an earlier run of the query was at this batch; of several frames on one column, the slowest."""
    told = connection.execute(
        select(BATCH_WATERMARKS).where(_matches_batch(batch), BATCH_WATERMARKS.c.run_id != batch.run_id)
    ).all()
    stands = [row.before for row in told if row.batch_id == batch.batch_id]
    stands += [row.after for row in told if row.batch_id == batch.batch_id - 1]
    return None if None in stands else min(stands, default=None)


def _places_of_query(connection: Connection, places: Sequence[Row[Any]], query_id: str) -> Sequence[Row[Any]]:
    """Return the places that may be the query's: its own if it is known, else those that are no other query's."""
    known = connection.execute(select(QUERIES.c.query_id, QUERIES.c.incarnations)).all()
    owners = {incarnation: row.query_id for row in known for incarnation, _, _ in from_json(row.incarnations)}
    own = [place for place in places if owners.get(place.incarnation) == query_id]
    return own or [place for place in places if place.incarnation not in owners]


def _matches_batch(batch: QueryBatch) -> Any:
    return and_(BATCH_WATERMARKS.c.query_id == batch.query_id, BATCH_WATERMARKS.c.column_name == batch.column)
