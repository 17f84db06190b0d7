"""The command `why`: explains a query's watermark, its holders, and in one sentence what would release it.

It reads the home only, without Spark. The fields of the answer classes are the fields of `--json`, so do not rename
them. Imports rich and the store: import this module inside functions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from floodmark.control import Observation, Queries, QueryRecord, WatermarkStep, WatermarkSteps
from floodmark.errors import SnapshotInvalid, UnknownIncarnation
from floodmark.progress import Coalescer, InputView, Name


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """One origin of one column; a field is None where the home has no value.

    `origin` is its id in the home, `name` its readable name. `watermark` is the origin's own watermark, `newest_time`
    the time of its newest accepted row, `last_heard` when a batch last had rows of it. `left_out` means that it resumed
    behind the watermark and does not hold it back.
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
    """The record of a query and its watermarked columns, as of `now`."""

    now: int
    query: QueryRecord
    columns: tuple[ColumnAnswer, ...]


def why(name_or_id: str, queries: Queries, steps: WatermarkSteps, now: int) -> QueryAnswer:
    """Explain the watermarks of the query with this name or id."""
    query = queries.find(name_or_id)
    columns = tuple(_column_answer(column, incarnation, steps, now) for incarnation, _, column in query.incarnations)
    return QueryAnswer(now, query, columns)


def _column_answer(column: str, incarnation: str, steps: WatermarkSteps, now: int) -> ColumnAnswer:
    """Explain one column; if its data cannot be read, return a warning so that other columns still show."""
    try:
        step = steps.newest(incarnation)
        if step is None:
            return ColumnAnswer(column, incarnation, release="The watermark appears after the first batch.")
        settings = steps.incarnation(incarnation).settings
        return _explain_step(column, step, steps.observations(incarnation), settings, now)
    except (UnknownIncarnation, SnapshotInvalid) as error:
        return ColumnAnswer(column, incarnation, release="Unknown: its data cannot be read.", warnings=(str(error),))


def _explain_step(
    column: str, step: WatermarkStep, observations: tuple[Observation, ...], settings: JsonValue, now: int
) -> ColumnAnswer:
    observed = ObservationSummary.of(observations)
    with open_snapshot(step.snapshot, "origin-watermarks") as saved:
        explanation = Coalescer.restore(saved["merged"]).explain()
        view = explanation.keys[column]
        origin_states = dict(saved["origins"])
        since = {name: at for name, _, _, at in saved["merged"]["inputs"]}
        names = saved.get("names", {})
        origins = tuple(
            _origin_answer(
                origin,
                names.get(origin.name, str(origin.name)),
                origin_states[origin.name],
                column,
                since[origin.name],
                observed,
            )
            for origin in view.inputs
        )
        lost_batches = int(saved.get("missed", 0))
    return ColumnAnswer(
        column=column,
        incarnation=step.incarnation,
        release=release_sentence(step.watermark, origins, settings, now),
        warnings=(_lost_statistics(lost_batches),) if lost_batches else (),
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


@dataclass(slots=True)
class ObservationSummary:
    """The statistics of all kept batches: per origin the last time heard and late rows; in total future, dropped rows.

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
        if isinstance(newest := statistics.get("newest_future"), int):
            self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)


def _origin_answer(
    view: InputView, name: str, origin_state: list[Any], column: str, since: int | None, observed: ObservationSummary
) -> OriginAnswer:
    states, idle_cause, future_rows, newest_future = origin_state
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
    )


def _numbers_by_origin(by_origin: JsonValue) -> Iterator[tuple[str, int]]:
    """Yield the entries of a mapping from origin to integer; anything else is ignored."""
    if isinstance(by_origin, Mapping):
        yield from ((origin, number) for origin, number in by_origin.items() if isinstance(number, int))


_MAX_NAMED: Final = 3


def release_sentence(watermark: int | None, origins: Sequence[OriginAnswer], settings: JsonValue, now: int) -> str:
    """Say in one sentence what would advance the watermark."""
    holders = [origin for origin in origins if origin.holds]
    active = [origin for origin in origins if origin.state == "active"]
    if holders:
        alternatives = _other_ways(len(holders) > 1, settings)
        return f"It moves when {_name_list(holders)} {_row_needed(holders, watermark, now)}{alternatives}."
    if active and watermark is not None:
        return f"It moves when {_name_list(active)} {'have' if len(active) > 1 else 'has'} caught up with it."
    if any(origin.state == "idle" for origin in origins):
        return "It moves when an idle origin sends a row far enough ahead of the watermark, or a new origin appears."
    if origins:
        return "It is final: every origin has finished."
    return "The watermark appears after the first row."


def _other_ways(many: bool, settings: JsonValue) -> str:
    """Say which other events would release the holders, given the query's idle setting."""
    are = "are" if many else "is"
    if not isinstance(settings, Mapping) or "idle" not in settings:
        return f", {'go' if many else 'goes'} idle, or {are} removed"
    if settings["idle"] is None:
        return f", or {are} removed (no idle timeout is set)"
    return f", {are} silent for {as_duration(settings['idle'])} with no unread rows, or {are} removed"


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


def show_answer(answer: QueryAnswer) -> None:
    """Print the explanation of one query."""
    console, query, now = make_console(), answer.query, answer.now
    print_title(console, query.name or query.query_id, state_cell(query.state))
    facts = [
        ("id", query.query_id),
        ("last batch", NO_VALUE if query.batch_id < 0 else str(query.batch_id)),
        ("last heard", f"{as_age(query.updated_at, now)} ({as_utc(to_second(query.updated_at))})"),
        ("Spark's watermark", _spark_watermark(query)),
    ]
    if query.error:
        # The other lines of a Spark error are the JVM stack trace.
        facts.append(("error", query.error.splitlines()[0]))
    print_facts(console, facts)
    print_warnings(console, query.warnings)
    if not answer.columns:
        print_line(console, "\nNo column of this query has a Floodmark watermark.")
    for column in answer.columns:
        _print_column(console, column, now)


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
        console.print(_origins_table(column, now))
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


def _origins_table(column: ColumnAnswer, now: int) -> Table:
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
    return text


def _count_text(rows: int | None, which: str, time: int | None, now: int) -> str:
    if not rows:
        return NO_VALUE if rows is None else "0"
    return str(rows) if time is None else f"{rows}, {which} {as_clock(time, now)}"


def _spark_watermark(query: QueryRecord) -> str:
    return NO_VALUE if query.spark_watermark is None else as_utc(query.spark_watermark * 1000)


def _comma_list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
