"""The answer to "why?": found in a home without Spark, in one sentence what would release a watermark, and shown.

The fields of the answers are the fields of `--json`: they are not renamed. Import it inside functions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from floodmark._util.codec import JsonValue, open_snapshot
from floodmark.cli.output import as_age, as_clock, as_duration, as_utc, to_second
from floodmark.cli.tables import (
    NOTHING,
    make_console,
    make_table,
    print_facts,
    print_warnings,
    printable,
    state_cell,
    text_cell,
)
from floodmark.control import Observation, Queries, QueryRecord, WatermarkStep, WatermarkSteps
from floodmark.errors import SnapshotInvalid, UnknownIncarnation
from floodmark.progress import Coalescer, InputView, Name


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """One origin of one column. What nobody has told is None.

    `origin` is what it is called in the home, `name` what a person calls it. `watermark` is how far the origin itself
    has come, `newest_time` the newest row that counted. `last_heard` is when a batch last had rows of it. `left_out`
    says that it came back behind the watermark and is not waited for.
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
    """One watermarked column, as of its newest step `seq`. Without a step nothing has been computed yet.

    `lacking` names origins that bring other columns but never this one. Rows of the future are counted here where
    nobody told whose they were; these and late rows from the batch `counted_since_batch` on, the oldest that is kept.
    `spark_dropped` is Spark's own number for the whole query: rows, or groups of rows where it groups before it drops.
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
    """One query: what is known of it, and its columns, as of `now`."""

    now: int
    query: QueryRecord
    columns: tuple[ColumnAnswer, ...]


def why(name_or_id: str, queries: Queries, steps: WatermarkSteps, now: int) -> QueryAnswer:
    """Return the answer for the query of this name or id."""
    query = queries.find(name_or_id)
    return QueryAnswer(
        now, query, tuple(_column_answer(column, one, steps, now) for one, _, column in query.incarnations)
    )


def _column_answer(column: str, incarnation: str, steps: WatermarkSteps, now: int) -> ColumnAnswer:
    """Return what is known of a column; what is wrong with one does not hide the others."""
    try:
        step = steps.newest(incarnation)
        if step is None:
            return ColumnAnswer(column, incarnation, release="It appears when the first batch has been read.")
        settings = steps.incarnation(incarnation).settings
        return _explain_step(column, step, steps.observations(incarnation), settings, now)
    except (UnknownIncarnation, SnapshotInvalid) as error:
        return ColumnAnswer(column, incarnation, release="This home cannot tell.", warnings=(str(error),))


def _explain_step(
    column: str, step: WatermarkStep, observations: tuple[Observation, ...], settings: JsonValue, now: int
) -> ColumnAnswer:
    observed = ObservationSummary.of(observations)
    with open_snapshot(step.snapshot, "origin-watermarks") as saved:
        explanation = Coalescer.restore(saved["merged"]).explain()
        view = explanation.keys[column]
        memories = dict(saved["origins"])
        since = {name: at for name, _, _, at in saved["merged"]["inputs"]}
        names = saved.get("names", {})
        origins = tuple(
            _origin_answer(
                one, names.get(one.name, str(one.name)), memories[one.name], column, since[one.name], observed
            )
            for one in view.inputs
        )
        missed = int(saved.get("missed", 0))
    return ColumnAnswer(
        column=column,
        incarnation=step.incarnation,
        release=release_sentence(step.watermark, origins, settings, now),
        warnings=(f"What {missed} of its batches saw never arrived.",) if missed else (),
        seq=step.seq,
        watermark=step.watermark,
        computed_at=step.at,
        is_idle=explanation.is_idle,
        holders=tuple(names.get(one, str(one)) for one in view.holders),
        held_since=view.since,
        lacking=tuple(names.get(one, str(one)) for one in view.lacking),
        counted_since_batch=observed.since_batch,
        future_rows=observed.future_rows,
        newest_future=observed.newest_future,
        spark_dropped=observed.spark_dropped,
        origins=origins,
    )


@dataclass(slots=True)
class ObservationSummary:
    """Per origin, when a batch last had rows of it, and its late rows; over all, future rows, and what Spark dropped.

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
        """Take all observations together. Statistics of another form say nothing."""
        observed = cls()
        for observation in observations:
            if isinstance(observation.statistics, Mapping):
                observed._take(observation.statistics, observation.batch_id, observation.at)
        return observed

    def _take(self, statistics: Mapping[str, JsonValue], batch_id: int, at: int) -> None:
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
    view: InputView, name: str, memory: list[Any], column: str, since: int | None, observed: ObservationSummary
) -> OriginAnswer:
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
        last_heard=observed.last_heard.get(key, None if view.time is None else view.since),
        holds=view.holds,
        left_out=view.left_out,
        future_rows=future_rows,
        newest_future=newest_future,
        late_rows=observed.late_rows.get(key),
        oldest_late=observed.oldest_late.get(key),
    )


def _numbers_by_origin(by_origin: JsonValue) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a mapping from origins."""
    if isinstance(by_origin, Mapping):
        yield from ((origin, number) for origin, number in by_origin.items() if isinstance(number, int))


_MAX_NAMED: Final = 3


def release_sentence(watermark: int | None, origins: Sequence[OriginAnswer], settings: JsonValue, now: int) -> str:
    """Return what would move the watermark on, in one sentence."""
    holders = [origin for origin in origins if origin.holds]
    active = [origin for origin in origins if origin.state == "active"]
    if holders:
        leaving = _other_ways(len(holders) > 1, settings)
        return f"It moves when {_name_list(holders)} {_row_needed(holders, watermark, now)}{leaving}."
    if active and watermark is not None:
        return f"It moves when {_name_list(active)} {'have' if len(active) > 1 else 'has'} caught up with it."
    if any(origin.state == "idle" for origin in origins):
        return "It moves when an idle origin sends a row again that is late enough in time, or a new origin appears."
    if origins:
        return "It moves no more: every origin has finished."
    return "It appears when the first row has been read."


def _other_ways(many: bool, settings: JsonValue) -> str:
    """Return how else the holders may let go, as far as the settings allow it."""
    are = "are" if many else "is"
    if not isinstance(settings, Mapping) or "idle" not in settings:
        return f", {'go' if many else 'goes'} idle, or {are} removed"
    if settings["idle"] is None:
        return f", or {are} removed (no idle time is set)"
    return f", {are} silent for {as_duration(settings['idle'])} with nothing unread, or {are} removed"


def _row_needed(holders: Sequence[OriginAnswer], watermark: int | None, now: int) -> str:
    """Return what rows the holders must send."""
    many = len(holders) > 1
    send = "each send" if many else "sends"
    if all(origin.watermark is None for origin in holders):
        return f"{send} {'their' if many else 'its'} first row that counts"
    needed = [_time_to_pass(origin, watermark) for origin in holders]
    known = [time for time in needed if time is not None]
    if len(known) < len(needed):
        return f"{'come' if many else 'comes'} further in time"
    return f"{send} a row later than {as_clock(max(known), now)}"


def _time_to_pass(origin: OriginAnswer, watermark: int | None) -> int | None:
    """Return the time that a row of this origin must be above to move the watermark, if its rule tells.

    The distance from its newest row to its own watermark is the delay that it is given.
    """
    if origin.watermark is None or origin.newest_time is None:
        return None
    delay = origin.newest_time - origin.watermark
    return max(origin.watermark, origin.watermark if watermark is None else watermark) + delay


def _name_list(origins: Sequence[OriginAnswer]) -> str:
    """Return the names of the first few and the number of the others."""
    names = [str(origin.name) for origin in origins]
    if len(names) > _MAX_NAMED:
        names = [*names[: _MAX_NAMED - 1], f"{len(names) - _MAX_NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def show_answer(answer: QueryAnswer) -> None:
    """Print the answer to "why?" for one query."""
    console, query, now = make_console(), answer.query, answer.now
    title = Text.assemble((printable(query.name or query.query_id), "bold"), ": ", state_cell(query.state))
    console.print(title, soft_wrap=True)
    facts = [
        ("id", query.query_id),
        ("last batch", NOTHING if query.batch_id < 0 else str(query.batch_id)),
        ("last heard", f"{as_age(query.updated_at, now)} ({as_utc(to_second(query.updated_at))})"),
        ("Spark's watermark", _spark_watermark(query)),
    ]
    if query.error:
        # Spark's errors go on with the trace of the JVM.
        facts.append(("error", query.error.splitlines()[0]))
    print_facts(console, facts)
    print_warnings(console, query.warnings)
    if not answer.columns:
        console.print("\nNo column of this query has a watermark of Floodmark's.", soft_wrap=True)
    for column in answer.columns:
        _print_column(console, column, now)


def show_queries(queries: Sequence[QueryRecord], now: int) -> None:
    """Print which queries there are, the one heard of last first."""
    console = make_console()
    if not queries:
        console.print("No query has been heard of yet.", soft_wrap=True)
        return
    table = make_table("query", "state", "last batch", "last heard", "id")
    for query in queries:
        table.add_row(
            text_cell(query.name),
            state_cell(query.state),
            NOTHING if query.batch_id < 0 else str(query.batch_id),
            as_age(query.updated_at, now),
            text_cell(query.query_id),
        )
    console.print(table)


def _print_column(console: Console, column: ColumnAnswer, now: int) -> None:
    stands = "no watermark yet" if column.watermark is None else f"{as_utc(column.watermark)} ({column.watermark})"
    console.print()
    console.print(Text.assemble((printable(column.column), "bold"), f": {stands}"), soft_wrap=True)
    if column.seq is not None:
        facts = [("held by", _held_by(column, now))]
        if column.lacking:
            facts.append(("never here", f"{_comma_list(column.lacking)} (though on other columns)"))
        if column.future_rows:
            rows = _count_text(column.future_rows, "newest", column.newest_future, now)
            facts.append(("rows from the future", f"{rows} (since batch {column.counted_since_batch})"))
        if column.spark_dropped:
            counted = f"{column.spark_dropped} rows, or groups of rows where it groups first"
            facts.append(("dropped by Spark", f"{counted} (since batch {column.counted_since_batch})"))
        print_facts(console, facts)
    print_warnings(console, column.warnings)
    if column.origins:
        console.print(_origins_table(column, now))
    console.print(printable(column.release), style="bold", markup=False, highlight=False, soft_wrap=True)


def _held_by(column: ColumnAnswer, now: int) -> str:
    if column.is_idle:
        return "nobody: all origins are idle"
    if not column.holders:
        return "nobody"
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
            NOTHING if origin.watermark is None else as_clock(origin.watermark, now),
            _origin_state(origin, now),
            NOTHING if origin.last_heard is None else as_age(origin.last_heard, now),
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
        text.append(", left out until it has caught up")
    return text


def _count_text(rows: int | None, which: str, time: int | None, now: int) -> str:
    if not rows:
        return NOTHING if rows is None else "0"
    return str(rows) if time is None else f"{rows}, {which} {as_clock(time, now)}"


def _spark_watermark(query: QueryRecord) -> str:
    return NOTHING if query.spark_watermark is None else as_utc(query.spark_watermark * 1000)


def _comma_list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
