"""The durable state of watermarks that are computed for streaming queries, step by step."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, insert, literal, select
from sqlalchemy.exc import IntegrityError

from floodmark._util.codec import JsonValue, from_json, to_json
from floodmark._util.ints import check_int64, check_number, check_watermark
from floodmark._util.names import check_id
from floodmark.control._home import Home
from floodmark.control._schema import INCARNATIONS, OBSERVATIONS, STEPS
from floodmark.errors import Conflict, UnknownIncarnation, UnknownStep
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
class Step:
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
            row = _row_of(connection, incarnation)
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
            _row_of(connection, incarnation, lock=True)
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
            connection.execute(insert(STEPS).values(step))

    def get(self, incarnation: str, seq: int) -> Step | None:
        """Return a step, or None if there is none, or none any more."""
        with self._home.read() as connection:
            _row_of(connection, incarnation)
            row = connection.execute(select(STEPS).where(*_at(STEPS, incarnation, seq))).one_or_none()
        return None if row is None else _step(row)

    def newest(self, incarnation: str) -> Step | None:
        """Return the newest step, or None if there is none."""
        newest = select(STEPS).where(STEPS.c.incarnation == incarnation).order_by(STEPS.c.seq.desc()).limit(1)
        with self._home.read() as connection:
            _row_of(connection, incarnation)
            row = connection.execute(newest).one_or_none()
        return None if row is None else _step(row)

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
            _row_of(connection, incarnation, lock=True)
            connection.execute(delete(OBSERVATIONS).where(*_at(OBSERVATIONS, incarnation, seq, batch_id)))
            connection.execute(insert(OBSERVATIONS).values(incarnation=incarnation, seq=seq, batch_id=batch_id, **kept))

    def observations(
        self, incarnation: str, seq: int | None = None, *, after_batch: int | None = None
    ) -> tuple[Observation, ...]:
        """Return what the batches at a step told, or at all steps, in the order of the batches; or only later ones."""
        table = OBSERVATIONS.c
        wanted = select(OBSERVATIONS).where(table.incarnation == incarnation).order_by(table.batch_id, table.seq)
        if seq is not None:
            wanted = wanted.where(table.seq == seq)
        if after_batch is not None:
            wanted = wanted.where(table.batch_id > after_batch)
        with self._home.read() as connection:
            _row_of(connection, incarnation)
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
            old = _row_of(connection, incarnation, lock=True)
            if (
                seq >= 0
                and connection.execute(select(STEPS.c.seq).where(*_at(STEPS, incarnation, seq))).first() is None
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
            for table in (STEPS, OBSERVATIONS):
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
            _row_of(connection, incarnation, lock=True)
            newest = _newest_seq(connection, incarnation)
            end = before_seq if newest is None else min(before_seq, newest)
            for table in (OBSERVATIONS, STEPS):
                forgotten = connection.execute(
                    delete(table).where(table.c.incarnation == incarnation, table.c.seq < end)
                )
        return forgotten.rowcount


def _row_of(connection: Connection, incarnation: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of an incarnation; locked, nobody else changes the incarnation before the transaction ends."""
    wanted = select(INCARNATIONS).where(INCARNATIONS.c.incarnation == incarnation)
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
            insert(INCARNATIONS).values(
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
        select(func.max(STEPS.c.seq)).where(STEPS.c.incarnation == incarnation)
    ).scalar_one()
    return seq


def _at(table: Table, incarnation: str, seq: int, batch_id: int | None = None) -> list[Any]:
    at = [table.c.incarnation == incarnation, table.c.seq == seq]
    return at if batch_id is None else [*at, table.c.batch_id == batch_id]


def _step(row: Row[Any]) -> Step:
    return Step(row.incarnation, row.seq, row.watermark, from_json(row.snapshot), row.at)
