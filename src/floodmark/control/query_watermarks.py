"""Durable watermarks of streaming queries: computed step by step, and fixed for each batch.

`WatermarkSteps` stores each computed watermark with its inputs, and decisions about its origins. `BatchWatermarks`
stores the watermark that decides which rows of a batch are late: the same for all tasks of the batch and for each
rerun.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, Table, and_, delete, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.ints import check_int64, check_number, check_watermark
from floodmark._util.names import check_id
from floodmark._util.options import require_one_of
from floodmark._util.text import replace_unstorable
from floodmark.control.home import Home
from floodmark.control.store.base import upsert_row
from floodmark.control.tables import (
    BATCH_WATERMARKS,
    FRAME_PLACES,
    ORIGIN_DECISIONS,
    QUERIES,
    WATERMARK_INCARNATIONS,
    WATERMARK_OBSERVATIONS,
    WATERMARK_STEPS,
)
from floodmark.errors import AmbiguousQuery, Conflict, UnknownIncarnation, UnknownStep
from floodmark.progress import OriginAction, Snapshot


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One lifetime of a computed watermark: its settings, and the incarnation and step it was forked from, if any."""

    incarnation: str
    settings: JsonValue
    parent: str | None
    parent_seq: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """The watermark promised at `seq` (None: none yet), and the state it was computed from."""

    incarnation: str
    seq: int
    watermark: int | None
    snapshot: Snapshot
    at: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Row statistics of one batch that ran under the watermark of step `seq`."""

    incarnation: str
    seq: int
    batch_id: int
    statistics: JsonValue
    at: int


DecidedBy = Literal["option", "command"]
"""Where a decision about an origin comes from: an option of the program, or a command of an operator."""


@dataclass(frozen=True, slots=True)
class OriginDecision:
    """What was decided about one origin; `number` is its place among all decisions about the same watermark.

    `origin` is the id of the origin, `name` its readable name.
    """

    number: int
    origin: str
    name: str
    action: OriginAction
    decided_by: DecidedBy
    at: int


class WatermarkSteps:
    """The steps 0, 1, 2 ... of each incarnation, appended in order, and the observations at each step.

    >>> with Home.open() as home:
    ...     steps = WatermarkSteps(home)
    ...     steps.create("a1", {"column": "order_time"}, now=100)
    ...     steps.add("a1", 0, None, OriginWatermarks({"order_time": BoundedDisorder(3)}, now=100).snapshot(), now=100)
    ...     steps.observe("a1", 0, batch_id=0, statistics={"newest": {"p0": 99}}, now=120)
    ...     steps.newest("a1").seq, steps.observations("a1", 0)[0].statistics
    (0, {'newest': {'p0': 99}})

    Steps belong to an incarnation, not to a query name: a query started anew, or two queries from one DataFrame, never
    share steps. A query that goes back to an older step continues in a fork.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Use the steps of this home."""
        self._home = home

    def create(self, incarnation: str, settings: JsonValue, now: int) -> None:
        """Create an incarnation without steps, under a new id."""
        new = Incarnation(incarnation, to_json(settings, "settings"), None, None, check_int64(now, "now"))
        with self._home.write() as connection:
            _insert_incarnation(connection, new)

    def incarnation(self, incarnation: str) -> Incarnation:
        """Return an incarnation, or raise `UnknownIncarnation`."""
        with self._home.read() as connection:
            row = _incarnation_row(connection, incarnation)
        return Incarnation(row.incarnation, from_json(row.settings), row.parent, row.parent_seq, row.created_at)

    def add(self, incarnation: str, seq: int, watermark: int | None, snapshot: Snapshot, now: int) -> None:
        """Add the step `seq` if the newest one is still `seq - 1`; otherwise raise `Conflict` and change nothing.

        >>> with Home.open() as home:
        ...     steps = WatermarkSteps(home)
        ...     steps.create("a2", {}, now=100)
        ...     steps.add("a2", 7, 50, {}, now=100)
        Traceback (most recent call last):
        floodmark.errors.Conflict: Step 7 of the incarnation 'a2' cannot be added: it has no steps. ... [conflict]
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
                    f"Step {seq} of the incarnation {incarnation!r} cannot be added: "
                    f"{'it has no steps' if newest is None else f'its newest step is {newest}'}.",
                    rule="Steps are added in order, each once.",
                    remedy="Read the newest step and compute the next one from it, or fork at the step you computed "
                    "from.",
                    incarnation=incarnation,
                    seq=seq,
                    newest=newest,
                )
            connection.execute(insert(WATERMARK_STEPS).values(step))

    def get(self, incarnation: str, seq: int) -> WatermarkStep | None:
        """Return a step, or None if it does not exist or was pruned."""
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
        """Store the statistics of a batch. A batch that runs again, as after a restart, replaces its statistics.

        `floodmark why` reads from statistics `newest` (the newest time), `late_rows` and `oldest_late`, each
        {origin: number}, and `future_rows`, `newest_future`, `spark_dropped` and `reports_latest` of the whole batch.
        All are optional.
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
        """Return the observations of a step or of all steps, in batch order, optionally only those `after_batch`."""
        table = WATERMARK_OBSERVATIONS.c
        query = (
            select(WATERMARK_OBSERVATIONS).where(table.incarnation == incarnation).order_by(table.batch_id, table.seq)
        )
        if seq is not None:
            query = query.where(table.seq == seq)
        if after_batch is not None:
            query = query.where(table.batch_id > after_batch)
        with self._home.read() as connection:
            _incarnation_row(connection, incarnation)
            rows = connection.execute(query).all()
        return tuple(
            Observation(row.incarnation, row.seq, row.batch_id, from_json(row.statistics), row.at) for row in rows
        )

    def fork(self, incarnation: str, seq: int, new: str, now: int) -> None:
        """Create the incarnation `new` from the settings, steps and observations of another one, up to `seq`.

        The old one is unchanged. A fork at -1, before the first step, copies only the settings.
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
                    rule="A fork starts from a stored step.",
                    remedy="Fork at a newer step, or create a new incarnation.",
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

    def change_settings(self, incarnation: str, settings: JsonValue) -> None:
        """Replace the settings of an incarnation, as after a restart with other options."""
        text = to_json(settings, "settings")
        with self._home.write() as connection:
            if _incarnation_row(connection, incarnation, lock=True).settings != text:
                is_incarnation = WATERMARK_INCARNATIONS.c.incarnation == incarnation
                connection.execute(update(WATERMARK_INCARNATIONS).where(is_incarnation).values(settings=text))

    def decide(
        self, incarnation: str, actions: Iterable[tuple[str, str, OriginAction]], decided_by: DecidedBy, now: int
    ) -> tuple[OriginDecision, ...]:
        """Store decisions about origins, each (id, name, action), in this order.

        They hold for the incarnation, and for those that it was forked from or that are forked from it: a restarted
        query finds them, wherever its checkpoint continues.

        >>> with Home.open() as home:
        ...     steps = WatermarkSteps(home)
        ...     steps.create("a3", {}, now=100)
        ...     _ = steps.decide("a3", [("1f", "eu", "revive"), ("2e", "us", "finish")], "command", now=120)
        ...     [(decision.number, decision.name, decision.action) for decision in steps.decisions("a3", after=1)]
        [(2, 'us', 'finish')]
        """
        require_one_of("decided_by", decided_by, get_args(DecidedBy))
        entries = list(actions)
        for origin, _, action in entries:
            check_id("origin", origin)
            require_one_of("action", action, get_args(OriginAction))
        with self._home.write() as connection:
            lineage = _lineage(connection, incarnation)
            _incarnation_row(connection, lineage, lock=True)
            newest = connection.execute(
                select(func.max(ORIGIN_DECISIONS.c.number)).where(ORIGIN_DECISIONS.c.lineage == lineage)
            ).scalar_one()
            decisions = tuple(
                OriginDecision(number, origin, replace_unstorable(name), action, decided_by, check_int64(now, "now"))
                for number, (origin, name, action) in enumerate(entries, start=(newest or 0) + 1)
            )
            if decisions:
                connection.execute(
                    insert(ORIGIN_DECISIONS), [{"lineage": lineage, **asdict(decision)} for decision in decisions]
                )
        return decisions

    def decisions(self, incarnation: str, *, after: int = 0) -> tuple[OriginDecision, ...]:
        """Return the decisions with a number above `after`, in order."""
        table = ORIGIN_DECISIONS.c
        with self._home.read() as connection:
            later = and_(table.lineage == _lineage(connection, incarnation), table.number > after)
            rows = connection.execute(select(ORIGIN_DECISIONS).where(later).order_by(table.number)).all()
        return tuple(
            OriginDecision(row.number, row.origin, row.name, row.action, row.decided_by, row.at) for row in rows
        )

    def prune(self, incarnation: str, before_seq: int) -> int:
        """Delete steps and observations below `before_seq`, and return the number of deleted steps.

        The newest step always stays, because it determines the number of the next one.
        """
        before_seq = check_int64(before_seq, "before_seq")
        with self._home.write() as connection:
            _incarnation_row(connection, incarnation, lock=True)
            newest = _newest_seq(connection, incarnation)
            end = before_seq if newest is None else min(before_seq, newest)
            for table in (WATERMARK_OBSERVATIONS, WATERMARK_STEPS):
                deleted = connection.execute(delete(table).where(table.c.incarnation == incarnation, table.c.seq < end))
        return deleted.rowcount


def _incarnation_row(connection: Connection, incarnation: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of an incarnation, optionally locked until the transaction ends."""
    query = select(WATERMARK_INCARNATIONS).where(WATERMARK_INCARNATIONS.c.incarnation == incarnation)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownIncarnation(
            f"There is no incarnation {incarnation!r} in this home.",
            rule="An incarnation must be created before it is used.",
            remedy="If a checkpoint names it, set FLOODMARK_HOME to the home that the checkpoint was written with.",
            incarnation=incarnation,
        )
    return row


def _lineage(connection: Connection, incarnation: str) -> str:
    """Return the first of the incarnations that this one was forked from, or itself."""
    first, parent = incarnation, _incarnation_row(connection, incarnation).parent
    while parent is not None:
        first = parent
        parent = _incarnation_row(connection, parent).parent
    return first


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
            f"The incarnation {new.incarnation!r} already exists.",
            rule="Each incarnation has a unique id.",
            remedy="Create it under a new random id.",
            incarnation=new.incarnation,
        ) from error


def _newest_seq(connection: Connection, incarnation: str) -> int | None:
    seq: int | None = connection.execute(
        select(func.max(WATERMARK_STEPS.c.seq)).where(WATERMARK_STEPS.c.incarnation == incarnation)
    ).scalar_one()
    return seq


def _at_step(table: Table, incarnation: str, seq: int, batch_id: int | None = None) -> list[Any]:
    conditions = [table.c.incarnation == incarnation, table.c.seq == seq]
    return conditions if batch_id is None else [*conditions, table.c.batch_id == batch_id]


def _load_step(row: Row[Any]) -> WatermarkStep:
    return WatermarkStep(row.incarnation, row.seq, row.watermark, from_json(row.snapshot), row.at)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Identifies a batch to its tasks: the query and its run, the batch, and the frame with its time column."""

    query_id: str
    run_id: str
    batch_id: int
    frame: str
    column: str


class BatchWatermarks:
    """The watermarks before and after the next batch of each frame.

    The mark source, which computes watermarks, knows the frame and stores its watermarks. The tasks of a batch know the
    query and read the watermark of their batch.

    >>> with Home.open() as home:
    ...     watermarks = BatchWatermarks(home)
    ...     watermarks.set_frame("f1", "a1", before=50, after=60, now=100)
    ...     watermarks.of(QueryBatch("q1", "r1", 7, "f1", "order_time"))
    50

    A frame lives as long as its program. After a restart a batch may run again before the mark source has stored
    watermarks for the new frame; the batch then gets the watermark that an earlier run of its query recorded.

    >>> with Home.open() as home:
    ...     BatchWatermarks(home).of(QueryBatch("q1", "r2", 8, "f2", "order_time"))
    60
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Use the watermarks of this home."""
        self._home = home

    def set_frame(self, frame: str, incarnation: str, before: int | None, after: int | None, now: int) -> None:
        """Store the watermark of the next batch of a frame, `before`, and of the batch after it, `after`."""
        is_frame = and_(FRAME_PLACES.c.frame == check_id("frame", frame), FRAME_PLACES.c.incarnation == incarnation)
        row = {
            "frame": frame,
            "incarnation": check_id("incarnation", incarnation),
            "before": None if before is None else check_watermark(before),
            "after": None if after is None else check_watermark(after),
            "at": check_int64(now, "now"),
        }
        with self._home.read() as connection:
            stored = connection.execute(
                select(FRAME_PLACES.c.before, FRAME_PLACES.c.after).where(is_frame)
            ).one_or_none()
            if stored is not None and (stored.before, stored.after) == (before, after):
                return
        with self._home.write() as connection:
            upsert_row(connection, FRAME_PLACES, row)

    def remove_frame(self, frame: str, incarnation: str) -> None:
        """Store that the frame no longer follows this incarnation."""
        with self._home.write() as connection:
            connection.execute(
                delete(FRAME_PLACES).where(FRAME_PLACES.c.frame == frame, FRAME_PLACES.c.incarnation == incarnation)
            )

    def of(self, batch: QueryBatch) -> int | None:
        """Return the watermark of a batch, or None if there is none yet. The answer is recorded for reruns."""
        check_number("batch_id", batch.batch_id)
        with self._home.read() as connection:
            before, after = _watermarks_of(connection, batch)
            recorded = connection.execute(
                select(BATCH_WATERMARKS).where(_matches_batch(batch), BATCH_WATERMARKS.c.frame == batch.frame)
            ).one_or_none()
        values = {"run_id": batch.run_id, "batch_id": batch.batch_id, "before": before, "after": after}
        if recorded is None or any(recorded._mapping[key] != value for key, value in values.items()):
            self._record(batch, values)
        return before

    def _record(self, batch: QueryBatch, values: dict[str, Any]) -> None:
        with self._home.write() as connection:
            row = {"query_id": batch.query_id, "frame": batch.frame, "column_name": batch.column, **values}
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
        watermark = _watermark_of_earlier_run(connection, batch)
        return watermark, watermark
    candidates = places if len(places) == 1 else _places_of_query(connection, places, batch.query_id)
    if len({place.before for place in candidates}) != 1:
        raise AmbiguousQuery(
            "Several queries were started from one DataFrame that handles late rows.",
            rule="Each query has its own watermark, and such a DataFrame follows only one.",
            remedy="Call with_watermark once for each query, and start each query from its own DataFrame.",
            query=batch.query_id,
        )
    return candidates[0].before, candidates[0].after


def _watermark_of_earlier_run(connection: Connection, batch: QueryBatch) -> int | None:
    """Return the watermark that an earlier run recorded for this batch; of several frames on one column, the lowest."""
    recorded = connection.execute(
        select(BATCH_WATERMARKS).where(_matches_batch(batch), BATCH_WATERMARKS.c.run_id != batch.run_id)
    ).all()
    watermarks = [row.before for row in recorded if row.batch_id == batch.batch_id]
    watermarks += [row.after for row in recorded if row.batch_id == batch.batch_id - 1]
    return None if None in watermarks else min(watermarks, default=None)


def _places_of_query(connection: Connection, places: Sequence[Row[Any]], query_id: str) -> Sequence[Row[Any]]:
    """Return the places of the query's own incarnations, else those of incarnations that no other query owns."""
    queries = connection.execute(select(QUERIES.c.query_id, QUERIES.c.incarnations)).all()
    owners = {incarnation: row.query_id for row in queries for incarnation, _, _ in from_json(row.incarnations)}
    own = [place for place in places if owners.get(place.incarnation) == query_id]
    return own or [place for place in places if place.incarnation not in owners]


def _matches_batch(batch: QueryBatch) -> Any:
    return and_(BATCH_WATERMARKS.c.query_id == batch.query_id, BATCH_WATERMARKS.c.column_name == batch.column)
