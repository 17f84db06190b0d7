"""Finds the answer to "why?" in a home. No Spark, and nothing is changed."""

from typing import Any

from floodmark._util.codec import JsonValue, open_snapshot
from floodmark.cli._answer import Answer, ColumnAnswer, OriginAnswer
from floodmark.cli._release import release_of
from floodmark.cli._told import Told
from floodmark.control import Observation, Queries, WatermarkStep, WatermarkSteps
from floodmark.errors import SnapshotInvalid, UnknownIncarnation
from floodmark.progress import Coalescer, InputView


def why(name_or_id: str, queries: Queries, steps: WatermarkSteps, now: int) -> Answer:
    """Return the answer for the query of this name or id."""
    query = queries.find(name_or_id)
    return Answer(now, query, tuple(_column(column, one, steps, now) for one, _, column in query.incarnations))


def _column(column: str, incarnation: str, steps: WatermarkSteps, now: int) -> ColumnAnswer:
    """Return what is known of a column; what is wrong with one does not hide the others."""
    try:
        step = steps.newest(incarnation)
        if step is None:
            return ColumnAnswer(column, incarnation, release="It appears when the first batch has been read.")
        settings = steps.incarnation(incarnation).settings
        return _explained(column, step, steps.observations(incarnation), settings, now)
    except (UnknownIncarnation, SnapshotInvalid) as error:
        return ColumnAnswer(column, incarnation, release="This home cannot tell.", warnings=(str(error),))


def _explained(
    column: str, step: WatermarkStep, observations: tuple[Observation, ...], settings: JsonValue, now: int
) -> ColumnAnswer:
    told = Told.of(observations)
    with open_snapshot(step.snapshot, "origin-watermarks") as saved:
        explanation = Coalescer.restore(saved["merged"]).explain()
        view = explanation.keys[column]
        memories = dict(saved["origins"])
        since = {name: at for name, _, _, at in saved["merged"]["inputs"]}
        names = saved.get("names", {})
        origins = tuple(
            _origin(one, names.get(one.name, str(one.name)), memories[one.name], column, since[one.name], told)
            for one in view.inputs
        )
        missed = int(saved.get("missed", 0))
    return ColumnAnswer(
        column=column,
        incarnation=step.incarnation,
        release=release_of(step.watermark, origins, settings, now),
        warnings=(f"What {missed} of its batches saw never arrived.",) if missed else (),
        seq=step.seq,
        watermark=step.watermark,
        computed_at=step.at,
        is_idle=explanation.is_idle,
        holders=tuple(names.get(one, str(one)) for one in view.holders),
        held_since=view.since,
        lacking=tuple(names.get(one, str(one)) for one in view.lacking),
        counted_since_batch=told.since_batch,
        future_rows=told.future_rows,
        newest_future=told.newest_future,
        spark_dropped=told.spark_dropped,
        origins=origins,
    )


def _origin(view: InputView, name: str, memory: list[Any], column: str, since: int | None, told: Told) -> OriginAnswer:
    states, idle_cause, future_rows, newest_future = memory
    newest, key = states.get(column), str(view.name)
    return OriginAnswer(
        origin=view.name,
        name=name,
        state=view.state,
        idle_cause=idle_cause,
        in_state_since=since,
        watermark=view.time,
        # Other rules than the newest time less a delay may remember anything.
        newest_time=newest if isinstance(newest, int) else None,
        last_heard=told.last_heard.get(key, None if view.time is None else view.since),
        holds=view.holds,
        left_out=view.left_out,
        future_rows=future_rows,
        newest_future=newest_future,
        late_rows=told.late_rows.get(key),
        oldest_late=told.oldest_late.get(key),
    )
