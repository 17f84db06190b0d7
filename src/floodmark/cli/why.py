"""The command `why`: explains a query's watermark, its holders, and in one sentence what would release it.

It reads the home only, without Spark. The fields of the answer classes are the fields of `--json`, so do not rename
them. Imports rich and the store: import this module inside functions.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from floodmark._util.codec import JsonValue, open_snapshot
from floodmark._util.times import as_utc
from floodmark.cli.output import (
    NO_VALUE,
    as_age,
    as_clock,
    as_duration,
    make_console,
    make_table,
    print_facts,
    print_line,
    print_title,
    print_warnings,
    printable,
    state_cell,
    text_cell,
    to_second,
)
from floodmark.control import Observation, OriginDecision, Queries, QueryRecord, WatermarkStep, WatermarkSteps
from floodmark.errors import FloodmarkError, SnapshotInvalid, UnknownIncarnation
from floodmark.progress import BoundedDisorder, Coalescer, InputView, Name, OriginWatermarks, Snapshot


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """One origin of one column; a field is None where the home has no value.

    `origin` is its id in the home, `name` its readable name. `watermark` is the origin's own watermark, `newest_time`
    the time of its newest accepted row, `last_heard` when a batch last had rows of it. `left_out` means that it resumed
    behind the watermark and does not hold it back. `decision` is the last decision about it, by an option or a command;
    a pending one is carried out at the next batch. An origin that was removed by a decision has the state "removed".
    """

    origin: Name
    name: str
    state: str
    idle_cause: str | None
    in_state_since: int | None
    watermark: int | None
    newest_time: int | None
    last_heard: int | None
    holds: bool
    left_out: bool
    future_rows: int
    newest_future: int | None
    late_rows: int | None
    oldest_late: int | None
    newest_after_finish: int | None
    decision: str | None
    decided_by: str | None
    decided_at: int | None
    decision_pending: bool


@dataclass(frozen=True, slots=True)
class ColumnAnswer:
    """One watermarked column, as of its newest step `seq`; without a step no watermark has been computed yet.

    `lacking` names origins that have reported other columns but never this one. `future_rows` counts rows from the
    future whose origin is unknown. Future and late rows are counted from `counted_since_batch` on, the oldest batch
    whose statistics are kept. `spark_dropped` is Spark's own count for the whole query: rows, or groups of rows where
    Spark groups before it drops.
    """

    column: str
    incarnation: str
    release: str
    warnings: tuple[str, ...] = ()
    seq: int | None = None
    watermark: int | None = None
    computed_at: int | None = None
    is_idle: bool = False
    holders: tuple[str, ...] = ()
    held_since: int | None = None
    lacking: tuple[str, ...] = ()
    counted_since_batch: int | None = None
    future_rows: int = 0
    newest_future: int | None = None
    spark_dropped: int = 0
    origins: tuple[OriginAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The record of a query and its watermarked columns, as of `now`; `same_name` are other queries of its name."""

    now: int
    query: QueryRecord
    columns: tuple[ColumnAnswer, ...]
    same_name: tuple[QueryRecord, ...] = ()


def why(name_or_id: str, queries: Queries, steps: WatermarkSteps, now: int) -> QueryAnswer:
    """Explain the watermarks of the query with this name or id."""
    query = queries.find(name_or_id)
    columns = tuple(
        _column_answer(column, incarnation, steps, query, now) for incarnation, _, column in query.incarnations
    )
    same_name = [other for other in queries.all() if other.name is not None and other.name == query.name]
    return QueryAnswer(now, query, columns, tuple(other for other in same_name if other.query_id != query.query_id))


def _column_answer(column: str, incarnation: str, steps: WatermarkSteps, query: QueryRecord, now: int) -> ColumnAnswer:
    """Explain one column; if its data cannot be read, return a warning so that other columns still show."""
    try:
        step = steps.newest(incarnation)
        if step is None:
            return ColumnAnswer(column, incarnation, release="The watermark appears after the first batch.")
        sources = StepSources(
            steps.incarnation(incarnation).settings,
            steps.observations(incarnation),
            steps.decisions(incarnation),
            query,
        )
        return _explain_step(column, step, sources, now)
    except (UnknownIncarnation, SnapshotInvalid) as error:
        return ColumnAnswer(column, incarnation, release="Unknown: its data cannot be read.", warnings=(str(error),))


@dataclass(frozen=True, slots=True)
class StepSources:
    """What explains a step besides its snapshot."""

    settings: JsonValue
    observations: tuple[Observation, ...]
    decisions: tuple[OriginDecision, ...]
    query: QueryRecord


def _current_snapshot(column: str, step: WatermarkStep, sources: StepSources) -> Snapshot:
    """Return the snapshot of a step with all batches since then.

    A query stores a step only when its watermark moves. Without the batches since then, an origin that has sent its
    first row would still seem silent as long as another one holds the watermark.
    """
    snapshot, settings = step.snapshot, sources.settings
    later = [
        observation
        for observation in sources.observations
        if observation.seq <= step.seq and observation.batch_id > snapshot.get("applied", observation.batch_id)
    ]
    if not later or not isinstance(settings, Mapping) or not isinstance(settings.get("delay"), int):
        return snapshot
    rules = {column: BoundedDisorder(settings["delay"])}
    names = dict(snapshot.get("names", {}))
    try:
        source = OriginWatermarks.restore(snapshot, rules, now=step.at, after_finish="ignore")
        for observation in later:
            if isinstance(statistics := observation.statistics, Mapping):
                newest: dict[Name, int] = dict(_numbers_by_origin(statistics.get("newest")))
                source.observe_batch(column, newest, now=observation.at)
                names.update(statistics.get("names") or {})
    except FloodmarkError:
        # The query fails on these statistics too; the step is still worth showing.
        return snapshot
    return snapshot | source.snapshot() | {"names": names}


def _explain_step(column: str, step: WatermarkStep, sources: StepSources, now: int) -> ColumnAnswer:
    observed = ObservationSummary.of(sources.observations)
    decided = {decision.origin: decision for decision in sources.decisions}
    with open_snapshot(_current_snapshot(column, step, sources), "origin-watermarks") as saved:
        explanation = Coalescer.restore(saved["merged"]).explain()
        view = explanation.keys[column]
        origin_states = dict(saved["origins"])
        since = {name: at for name, _, _, at in saved["merged"]["inputs"]}
        names = saved.get("names", {})
        carried_out = int(saved.get("decided", 0))
        origins = tuple(
            _origin_answer(
                origin,
                names.get(origin.name, str(origin.name)),
                origin_states[origin.name],
                column,
                since[origin.name],
                observed,
                _decision_fields(decided.get(str(origin.name)), carried_out),
            )
            for origin in view.inputs
        )
        known = {str(origin.origin) for origin in origins}
        origins += tuple(
            _removed_origin(decision, carried_out) for origin, decision in decided.items() if origin not in known
        )
        lost_batches = int(saved.get("missed", 0))
    return ColumnAnswer(
        column=column,
        incarnation=step.incarnation,
        release=release_sentence(
            step.watermark, origins, sources.settings, now, query=sources.query, reports_latest=observed.reports_latest
        ),
        warnings=(
            *((_lost_statistics(lost_batches),) if lost_batches else ()),
            *(_rows_after_finish(origin, now) for origin in origins if origin.newest_after_finish is not None),
        ),
        seq=step.seq,
        watermark=step.watermark,
        computed_at=step.at,
        is_idle=explanation.is_idle,
        holders=tuple(names.get(origin, str(origin)) for origin in view.holders),
        held_since=view.since,
        lacking=tuple(names.get(origin, str(origin)) for origin in view.lacking),
        counted_since_batch=observed.since_batch,
        future_rows=observed.future_rows,
        newest_future=observed.newest_future,
        spark_dropped=observed.spark_dropped,
        origins=origins,
    )


def _lost_statistics(batches: int) -> str:
    return f"Statistics of {batches} {'batch was' if batches == 1 else 'batches were'} lost; the watermark may lag."


def _rows_after_finish(origin: OriginAnswer, now: int) -> str:
    newest = as_clock(origin.newest_after_finish or 0, now)
    return f"{origin.name} is finished, and has sent rows since, the newest at {newest}: the watermark ignores them."


def _decision_fields(decision: OriginDecision | None, carried_out: int) -> dict[str, Any]:
    return {
        "decision": None if decision is None else decision.action,
        "decided_by": None if decision is None else decision.decided_by,
        "decided_at": None if decision is None else decision.at,
        "decision_pending": decision is not None and decision.number > carried_out,
    }


def _removed_origin(decision: OriginDecision, carried_out: int) -> OriginAnswer:
    """Return an origin that is not part of the watermark: it was removed, or is still to be added."""
    missing = dict.fromkeys((field.name for field in fields(OriginAnswer)), None)
    values: dict[str, Any] = missing | {
        "origin": decision.origin,
        "name": decision.name,
        "state": "removed",
        "in_state_since": decision.at if decision.action == "remove" else None,
        "holds": False,
        "left_out": False,
        "future_rows": 0,
    }
    return OriginAnswer(**values | _decision_fields(decision, carried_out))


@dataclass(slots=True)
class ObservationSummary:
    """The statistics of all kept batches: per origin the last time heard and late rows; in total future, dropped rows.

    `reports_latest` is whether the sources of the last batch report their latest offsets; None if that is not known.

    >>> batch = Observation("a1", seq=4, batch_id=7, statistics={"newest": {"p0": 90}, "late_rows": {"p0": 2}}, at=120)
    >>> observed = ObservationSummary.of([batch])
    >>> observed.last_heard, observed.late_rows, observed.since_batch
    ({'p0': 120}, {'p0': 2}, 7)
    """

    since_batch: int | None = None
    last_heard: dict[str, int] = field(default_factory=dict)
    late_rows: dict[str, int] = field(default_factory=dict)
    oldest_late: dict[str, int] = field(default_factory=dict)
    future_rows: int = 0
    newest_future: int | None = None
    spark_dropped: int = 0
    reports_latest: bool | None = None

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> "ObservationSummary":
        """Sum up observations; statistics in an unknown format are ignored."""
        observed = cls()
        for observation in observations:
            if isinstance(observation.statistics, Mapping):
                observed._add(observation.statistics, observation.batch_id, observation.at)
        return observed

    def _add(self, statistics: Mapping[str, JsonValue], batch_id: int, at: int) -> None:
        self.since_batch = batch_id if self.since_batch is None else min(self.since_batch, batch_id)
        for origin, _ in _numbers_by_origin(statistics.get("newest")):
            self.last_heard[origin] = max(at, self.last_heard.get(origin, at))
        for origin, late in _numbers_by_origin(statistics.get("late_rows")):
            self.late_rows[origin] = late + self.late_rows.get(origin, 0)
        for origin, time in _numbers_by_origin(statistics.get("oldest_late")):
            self.oldest_late[origin] = min(time, self.oldest_late.get(origin, time))
        if isinstance(rows := statistics.get("future_rows"), int):
            self.future_rows += rows
        if isinstance(dropped := statistics.get("spark_dropped"), int):
            self.spark_dropped += dropped
        if isinstance(reports := statistics.get("reports_latest"), bool):
            self.reports_latest = reports
        if isinstance(newest := statistics.get("newest_future"), int):
            self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)


def _origin_answer(
    view: InputView,
    name: str,
    origin_state: list[Any],
    column: str,
    since: int | None,
    observed: ObservationSummary,
    decision: dict[str, Any],
) -> OriginAnswer:
    states, idle_cause, future_rows, newest_future, *after_finish = origin_state
    newest, key = states.get(column), str(view.name)
    return OriginAnswer(
        origin=view.name,
        name=name,
        state=view.state,
        idle_cause=idle_cause,
        in_state_since=since,
        watermark=view.time,
        # The state is the newest time for generators with a fixed delay; other generators keep something else.
        newest_time=newest if isinstance(newest, int) else None,
        last_heard=observed.last_heard.get(key, None if view.time is None else view.since),
        holds=view.holds,
        left_out=view.left_out,
        future_rows=future_rows,
        newest_future=newest_future,
        late_rows=observed.late_rows.get(key),
        oldest_late=observed.oldest_late.get(key),
        newest_after_finish=after_finish[0] if after_finish else None,
        **decision,
    )


def _numbers_by_origin(by_origin: JsonValue) -> Iterator[tuple[str, int]]:
    """Yield the entries of a mapping from origin to integer; anything else is ignored."""
    if isinstance(by_origin, Mapping):
        yield from ((origin, number) for origin, number in by_origin.items() if isinstance(number, int))


_MAX_NAMED: Final = 3


def release_sentence(
    watermark: int | None,
    origins: Sequence[OriginAnswer],
    settings: JsonValue,
    now: int,
    *,
    query: QueryRecord,
    reports_latest: bool | None,
) -> str:
    """Say in one sentence what would advance the watermark; before it, if the query does not run."""
    sentence = _release(watermark, origins, settings, now, reports_latest)
    if not query.has_ended:
        return sentence
    ended = "has failed" if query.state == "failed" else "is stopped"
    return f"The query {ended}. " + sentence.replace("It moves when", "Once it runs again, it moves when")


def _release(
    watermark: int | None,
    origins: Sequence[OriginAnswer],
    settings: JsonValue,
    now: int,
    reports_latest: bool | None,
) -> str:
    holders = [origin for origin in origins if origin.holds]
    active = [origin for origin in origins if origin.state == "active"]
    if holders:
        alternatives = _other_ways(len(holders) > 1, settings, reports_latest)
        return f"It moves when {_name_list(holders)} {_row_needed(holders, watermark, now)}{alternatives}."
    if active and watermark is not None:
        return f"It moves when {_name_list(active)} {'have' if len(active) > 1 else 'has'} caught up with it."
    if any(origin.state == "idle" for origin in origins):
        return "It moves when an idle origin sends a row far enough ahead of the watermark, or a new origin appears."
    if any(origin.state == "finished" for origin in origins):
        return "It is final: every origin has finished."
    return "The watermark appears after the first row."


def _other_ways(many: bool, settings: JsonValue, reports_latest: bool | None) -> str:
    """Say which other events would release the holders, given the query's idle setting and what its sources report."""
    are = "are" if many else "is"
    if not isinstance(settings, Mapping) or "idle" not in settings:
        return f", {'go' if many else 'goes'} idle, or {are} removed"
    if settings["idle"] is None:
        return f", or {are} removed (no idle timeout is set)"
    timeout = as_duration(settings["idle"])
    if reports_latest is False and not settings.get("assume_caught_up"):
        return (
            f", or {are} removed (idle={timeout!r} has no effect: a source does not report its latest offset, so "
            "unread rows cannot be excluded; assume_caught_up=True excludes them)"
        )
    return f", {are} silent for {timeout} with no unread rows, or {are} removed"


def _row_needed(holders: Sequence[OriginAnswer], watermark: int | None, now: int) -> str:
    """Say which rows the holders must send."""
    many = len(holders) > 1
    send = "each send" if many else "sends"
    if all(origin.watermark is None for origin in holders):
        return f"{send} {'their' if many else 'its'} first accepted row"
    times = [_time_to_pass(origin, watermark) for origin in holders]
    needed = [time for time in times if time is not None]
    if len(needed) < len(times):
        return f"{'advance' if many else 'advances'} in time"
    return f"{send} a row later than {as_clock(max(needed), now)}"


def _time_to_pass(origin: OriginAnswer, watermark: int | None) -> int | None:
    """Return the time that a row of this origin must exceed to move the watermark, or None if it is unknown.

    The distance from the origin's newest row to its own watermark is its allowed delay.
    """
    if origin.watermark is None or origin.newest_time is None:
        return None
    delay = origin.newest_time - origin.watermark
    return max(origin.watermark, origin.watermark if watermark is None else watermark) + delay


def _name_list(origins: Sequence[OriginAnswer]) -> str:
    """Return the first few names and the number of the others."""
    names = [str(origin.name) for origin in origins]
    if len(names) > _MAX_NAMED:
        names = [*names[: _MAX_NAMED - 1], f"{len(names) - _MAX_NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def show_answer(answer: QueryAnswer, name_or_id: str) -> None:
    """Print the explanation of one query, which the user has called `name_or_id`."""
    console, query, now = make_console(), answer.query, answer.now
    print_title(console, query.name or query.query_id, state_cell(query.state))
    facts = [
        ("id", query.query_id),
        ("last batch", NO_VALUE if query.batch_id < 0 else str(query.batch_id)),
        ("last heard", f"{as_age(query.updated_at, now)} ({as_utc(to_second(query.updated_at))})"),
        ("Spark's watermark", _spark_watermark(query)),
    ]
    if answer.same_name:
        others = _comma_list(f"{other.query_id} ({other.state})" for other in answer.same_name)
        facts.append(("others of this name", others))
    if query.error:
        # The other lines of a Spark error are the JVM stack trace.
        facts.append(("error", query.error.splitlines()[0]))
    print_facts(console, facts)
    print_warnings(console, query.warnings)
    if not answer.columns:
        print_line(console, "\nNo column of this query has a Floodmark watermark.")
    for column in answer.columns:
        _print_column(console, column, now)
        if holders := [origin for origin in column.origins if origin.holds and not origin.decision_pending]:
            print_line(console, _how_to_decide(column, holders, name_or_id, several=len(answer.columns) > 1))


def _how_to_decide(column: ColumnAnswer, holders: Sequence[OriginAnswer], query: str, *, several: bool) -> str:
    """Return the command by which the watermark stops waiting for its holders."""
    command = ["floodmark", "origins", query, "idle", *(origin.name for origin in holders[:_MAX_NAMED])]
    command += ["--column", column.column] if several else []
    return printable(f"To stop waiting: {shlex.join(command)} (or finish, remove; `floodmark origins --help`).")


def show_queries(queries: Sequence[QueryRecord], now: int) -> None:
    """Print queries as a table, in the given order."""
    console = make_console()
    if not queries:
        print_line(console, "No query has reported to this home yet.")
        return
    table = make_table("query", "state", "last batch", "last heard", "id")
    for query in queries:
        table.add_row(
            text_cell(query.name),
            state_cell(query.state),
            NO_VALUE if query.batch_id < 0 else str(query.batch_id),
            as_age(query.updated_at, now),
            text_cell(query.query_id),
        )
    console.print(table)


def _print_column(console: Console, column: ColumnAnswer, now: int) -> None:
    watermark = "no watermark yet" if column.watermark is None else f"{as_utc(column.watermark)} ({column.watermark})"
    console.print()
    print_title(console, column.column, watermark)
    if column.seq is not None:
        facts = [("held by", _held_by(column, now))]
        if column.lacking:
            facts.append(("never reported this column", f"{_comma_list(column.lacking)} (only other columns)"))
        if column.future_rows:
            rows = _count_text(column.future_rows, "newest", column.newest_future, now)
            facts.append(("rows from the future", f"{rows} (since batch {column.counted_since_batch})"))
        if column.spark_dropped:
            counted = f"{column.spark_dropped} rows, or groups of rows if Spark groups before it drops"
            facts.append(("dropped by Spark", f"{counted} (since batch {column.counted_since_batch})"))
        print_facts(console, facts)
    print_warnings(console, column.warnings)
    if column.origins:
        console.print(origins_table(column, now))
    console.print(printable(column.release), style="bold", markup=False, highlight=False, soft_wrap=True)


def _held_by(column: ColumnAnswer, now: int) -> str:
    if column.is_idle:
        return "no origin: all origins are idle"
    if not column.holders:
        return "no origin"
    since = column.held_since
    return _comma_list(column.holders) + (
        "" if since is None else f", since {as_clock(to_second(since), now)} ({as_age(since, now)})"
    )


def origins_table(column: ColumnAnswer, now: int) -> Table:
    """Return the table of a column's origins; a star marks those that hold the watermark."""
    has_future = any(origin.future_rows for origin in column.origins)
    headings = ["", "origin", "stands at (UTC)", "state", "last heard"]
    if has_future:
        headings.append("from the future")
    has_late = any(origin.late_rows is not None for origin in column.origins)
    if has_late:
        headings.append(f"late since batch {column.counted_since_batch}")
    table = make_table(*headings)
    for origin in column.origins:
        cells: list[str | Text] = [
            "*" if origin.holds else "",
            text_cell(origin.name),
            NO_VALUE if origin.watermark is None else as_clock(origin.watermark, now),
            _origin_state(origin, now),
            NO_VALUE if origin.last_heard is None else as_age(origin.last_heard, now),
        ]
        if has_future:
            cells.append(_count_text(origin.future_rows, "newest", origin.newest_future, now))
        if has_late:
            cells.append(_count_text(origin.late_rows, "oldest", origin.oldest_late, now))
        table.add_row(*cells)
    return table


def _origin_state(origin: OriginAnswer, now: int) -> Text:
    text = state_cell(origin.state)
    if origin.state == "idle" and origin.idle_cause is not None:
        text.append(f" ({origin.idle_cause})")
    if origin.state != "active" and origin.in_state_since is not None:
        text.append(f" {as_age(origin.in_state_since, now)}")
    if origin.left_out:
        text.append(", ignored until it catches up")
    if origin.decision_pending:
        text.append(f", {_AFTER_DECISION[str(origin.decision)]} from the next batch on")
    elif origin.state != "active" and _AFTER_DECISION.get(str(origin.decision)) == origin.state:
        text.append(f", by {origin.decided_by}")
    return text


_AFTER_DECISION: Final = {"idle": "idle", "finish": "finished", "remove": "removed", "revive": "active"}


def _count_text(rows: int | None, which: str, time: int | None, now: int) -> str:
    if not rows:
        return NO_VALUE if rows is None else "0"
    return str(rows) if time is None else f"{rows}, {which} {as_clock(time, now)}"


def _spark_watermark(query: QueryRecord) -> str:
    # Before the first mark Spark reports 0, the year 1970.
    return as_utc(query.spark_watermark * 1000) if query.spark_watermark else NO_VALUE


def _comma_list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
