"""Input and output of `floodmark ingest`: parses times and units from the command line, prints tables, makes JSON.

Printed times are in the job's zone. Imports rich and `floodmark.ingest`: import this module inside functions.
"""

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from floodmark._util.text import did_you_mean
from floodmark.cli.output import (
    NO_VALUE,
    as_age,
    as_duration,
    make_console,
    make_table,
    print_facts,
    print_line,
    print_title,
    print_warnings,
    printable,
    text_cell,
    to_second,
)
from floodmark.errors import InvalidOption, UnknownUnit
from floodmark.ingest import (
    Attempt,
    Bound,
    Gap,
    Job,
    JobEvent,
    Plan,
    PlannedRange,
    Range,
    RangeOutcome,
    Run,
    RunInfo,
    RunResult,
    Status,
    TypicalCell,
    Unit,
)
from floodmark.ingest.calendar.clock import format_moment, micros_to_wall, wall_to_micros, zone_of


def parse_moment(text: str, zone: str, now: int) -> int:
    """Parse a time from the command line; it has the same forms as in a job file.

    >>> parse_moment("1970-01-02", "UTC", 0), parse_moment("-", "UTC", 61_000_000)
    (86400000000, 60000000)
    """
    return Bound.parse(text, zone).resolve(now, zone)


def parse_range(start: str | None, end: str | None, zone: str, now: int) -> Range | None:
    """Parse --from and --to; return None if neither is set.

    >>> parse_range("1970-01-01", "1970-01-02", "UTC", 0)
    Range(lo=0, hi=86400000000)
    """
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InvalidOption(
            f"Only {'--to' if start is None else '--from'} is set.",
            rule="A range needs both ends.",
            remedy="Set both --from and --to, or neither.",
            option="--from" if start is None else "--to",
        )
    range_ = Range(parse_moment(start, zone, now), parse_moment(end, zone, now))
    if range_.lo >= range_.hi:
        raise InvalidOption(
            f"The range goes from {start} to {end}.",
            rule="A range must end after it starts.",
            remedy="Swap --from and --to, or name a later --to.",
            option="--to",
        )
    return range_


def find_unit_keys(texts: Sequence[str] | None, unit_keys: Sequence[str], job: str) -> list[str] | None:
    """Find the keys of the units named on the command line; None means all units.

    A unit is named by its key, as `id=7`, or, if it has one field, by the value alone.

    >>> find_unit_keys(["7", "id=8"], ['{"id":"7"}', '{"id":8}'], "orders")
    ['{"id":"7"}', '{"id":8}']
    """
    if texts is None:
        return None
    names: dict[str, list[str]] = {}
    for key in unit_keys:
        unit = Unit.load(key)
        short = {str(value) for value in unit.fields.values()} if len(unit.fields) == 1 else set()
        for name in {key, str(unit), *short}:
            names.setdefault(name, []).append(key)
    matches = []
    for text in texts:
        keys = names.get(text, [])
        if len(keys) != 1:
            fact = f"The job {job!r} has no unit {text!r}." if not keys else f"{len(keys)} units are called {text!r}."
            hint = did_you_mean(text, names, otherwise="`floodmark ingest plan --json` lists the units.")
            raise UnknownUnit(
                fact,
                rule='A unit is named by its key, as {"id":7}, as id=7, or by its value if it has one field.',
                remedy=hint if not keys else f"Use the key: {' or '.join(keys)}.",
                job=job,
                unit=text,
            )
        matches.append(keys[0])
    return matches


def actor() -> str:
    """Return the user and host that events record as their actor.

    >>> "@" in actor()
    True
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def as_json(value: Any) -> Any:
    """Convert a value for JSON; a range becomes a pair, a unit its key and fields.

    >>> as_json({"unit": Unit.of({"id": 7}), "range": Range(0, 9)})
    {'unit': {'key': '{"id":7}', 'fields': {'id': 7}}, 'range': [0, 9]}
    """
    if isinstance(value, Range):
        return [value.lo, value.hi]
    if isinstance(value, Unit):
        return {"key": value.key, "fields": dict(value.fields)}
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def plan_as_json(plan: Plan, typical: TypicalCell | None) -> dict[str, Any]:
    """Convert a plan for JSON, with its estimate."""
    listed = ("rows", "held", "quarantined")
    return {
        **{name: value for name, value in as_json(plan).items() if name not in listed},
        "due": plan.due,
        "waiting": plan.waiting,
        "estimate": estimate_work(plan, typical),
        **{name: [as_json(row) for row in getattr(plan, name)] for name in listed},
    }


def status_as_json(status: Status, grace: int | None) -> dict[str, Any]:
    """Convert the status of a job for JSON, with the totals of its plan but not its rows."""
    plan = status.plan
    answer = {field.name: as_json(getattr(status, field.name)) for field in fields(status) if field.name != "plan"}
    totals = {"reach": as_json(plan.reach), "totals": dict(plan.totals), "due": plan.due, "expired": len(plan.expired)}
    return {**answer, "plan": {**totals, "retired": list(plan.retired)}, "recommended_grace_days": grace}


def estimate_work(plan: Plan, typical: TypicalCell | None) -> dict[str, float] | None:
    """Estimate the rows and the microseconds of work of a plan; None if the job has not read anything yet.

    Both are the averages of earlier ranges times the number of ranges of this plan.
    """
    if typical is None or not typical.cells:
        return None
    averages = {"rows": typical.rows, "took": typical.took}
    totals = {name: average * len(plan.rows) for name, average in averages.items() if average is not None}
    return {"of": typical.cells, **totals}


def show_plan(job: Job, plan: Plan, typical: TypicalCell | None, most: int) -> None:
    """Print what a run would read: the totals, and the first `most` ranges."""
    console = make_console()
    print_title(console, job.name, _due_text(plan))
    facts = [("reads", _reach_text(job, plan)), ("this run", f"{plan.cells:,} cells in {len(plan.rows):,} ranges")]
    if plan.waiting:
        facts.append(("later runs", f"{plan.waiting:,} cells, above the limit of {job.limits.cells:,} per run"))
    facts.append(("estimate", _estimate_text(plan, typical)))
    print_facts(console, facts + _set_aside_facts(plan))
    if plan.rows:
        console.print()
        _print_ranges(job, plan.rows, most)
    for title, rows in (("held back", plan.held), ("in quarantine", plan.quarantined)):
        if rows:
            print_line(console, f"\n{title}:")
            _print_ranges(job, rows, most, why=True)


def show_status(job: Job, status: Status, grace: int | None) -> None:
    """Print the progress of a job."""
    console, now = make_console(), status.now
    print_title(console, job.name, _due_text(status.plan))
    facts = [
        ("complete through", _moment_text(job, status.complete_through)),
        ("largest end of all", _moment_text(job, status.largest_end)),
        ("reads", _reach_text(job, status.plan)),
        ("units", f"{status.units:,}"),
        ("running", "no" if status.running is None else _run_text(status.running, now)),
        ("last run", NO_VALUE if status.last is None else _run_text(status.last, now)),
        ("grace", _grace_text(job, grace)),
    ]
    print_facts(console, facts + _set_aside_facts(status.plan))
    if status.plan.quarantined:
        print_warnings(
            console,
            ["Cells are in quarantine: `floodmark ingest gaps` shows why, `floodmark ingest retry` releases them."],
        )


def show_gaps(job: Job, gaps: Sequence[Gap], rereads: Sequence[Gap], complete: int | None, most: int) -> None:
    """Print the ranges that were not read, and those that could not be read again."""
    console = make_console()
    if gaps:
        are = "is" if len(gaps) == 1 else "are"
        print_line(console, f"{_ranges(gaps)} {are} missing; complete through {_moment_text(job, complete)}.")
        _print_gaps(console, job, gaps, most)
    else:
        print_line(console, f"Nothing is missing up to {_moment_text(job, complete)}.")
    if rereads:
        print_line(
            console,
            f"{_ranges(rereads)} could not be read again: the rows of the last successful read "
            "are there, rows that came later may be missing.",
        )
        _print_gaps(console, job, rereads, most)


def _ranges(gaps: Sequence[Gap]) -> str:
    return f"{len(gaps):,} range{'' if len(gaps) == 1 else 's'}"


def _print_gaps(console: Console, job: Job, gaps: Sequence[Gap], most: int) -> None:
    table = make_table("unit", "from", "to", "why")
    for gap in gaps[:most]:
        table.add_row(
            text_cell(gap.unit),
            as_wall_clock(gap.range.lo, job.zone),
            as_wall_clock(gap.range.hi, job.zone),
            text_cell(gap.cause),
        )
    console.print(table)
    _print_omitted(len(gaps), most)


def show_runs(name: str, zone: str, runs: Sequence[RunInfo], now: int) -> None:
    """Print the runs of a job, the newest first."""
    console = make_console()
    if not runs:
        print_line(console, f"{printable(name)} has never run.")
        return
    table = make_table("run", "state", "started", "took", "succeeded", "failed", "rows", "by")
    for run in runs:
        took = NO_VALUE if run.ended_at is None else as_duration(to_second(run.ended_at - run.started_at))
        counts = (f"{run.succeeded:,}", f"{run.failed:,}", f"{run.rows:,}")
        table.add_row(
            str(run.run), text_cell(run.state), as_age(run.started_at, now), took, *counts, text_cell(run.owner)
        )
    console.print(table)


def show_attempts(name: str, zone: str, attempts: Sequence[Attempt], now: int) -> None:
    """Print the attempts of a run."""
    console = make_console()
    if not attempts:
        print_line(console, "The run has recorded no attempts.")
        return
    table = make_table("unit", "from", "to", "reason", "state", "rows", "took", "error")
    for attempt in attempts:
        table.add_row(
            text_cell(attempt.unit),
            as_wall_clock(attempt.range.lo, zone),
            as_wall_clock(attempt.range.hi, zone),
            attempt.reason,
            attempt.state,
            NO_VALUE if attempt.rows is None else f"{attempt.rows:,}",
            NO_VALUE if attempt.took is None else as_duration(attempt.took),
            text_cell(attempt.error.splitlines()[0] if attempt.error else None),
        )
    console.print(table)


def show_events(name: str, zone: str, events: Sequence[JobEvent], now: int) -> None:
    """Print manual changes of a job and changes of its file."""
    console = make_console()
    if not events:
        print_line(console, f"{printable(name)} has no events.")
        return
    table = make_table("event", "kind", "when", "by", "from", "to", "note")
    for event in events:
        ends = [event.details.get(end) for end in ("lo", "hi")]
        times = [as_wall_clock(end, zone) if isinstance(end, int) else NO_VALUE for end in ends]
        note = text_cell(event.details.get("note") or None)
        table.add_row(
            str(event.event), text_cell(event.kind), as_age(event.at, now), text_cell(event.actor), *times, note
        )
    console.print(table)


def show_result(result: RunResult) -> None:
    """Print the result of a run, and its errors as warnings."""
    console = make_console()
    counts = f"{result.succeeded:,} of {result.planned:,} planned ranges read, {result.rows:,} rows landed"
    print_line(console, f"{printable(result.job)}: run {result.run}: {counts}.")
    print_warnings(console, [error.splitlines()[0] for error in result.errors])


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[Run, RangeOutcome], None]]:
    """Show a progress bar of a run on standard error; yields the callback that advances it by one range."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(name), total=None, counts="")
        rows = failed = 0

        def on_row(run: Run, outcome: RangeOutcome) -> None:
            nonlocal rows, failed
            rows += outcome.rows or 0
            failed += outcome.error is not None
            counts = f"{rows:,} rows" + (f", {failed:,} failed" if failed else "")
            bar.update(task, total=len(run.plan.rows), advance=1, counts=counts)

        yield on_row


def as_wall_clock(at: int, zone: str) -> str:
    """Return the local time in a zone: only the date at midnight, and with its offset where the hour repeats.

    >>> as_wall_clock(0, "UTC"), as_wall_clock(1, "UTC"), as_wall_clock(1_604_221_200_000_000, "America/Los_Angeles")
    ('1970-01-01', '1970-01-01 00:00:00.000001', '2020-11-01 01:00:00-08:00')
    """
    tz = zone_of(zone)
    local = micros_to_wall(at, tz)
    if wall_to_micros(local.replace(fold=0), tz) != wall_to_micros(local.replace(fold=1), tz):
        return format_moment(at, tz).replace("T", " ")
    return local.isoformat(sep=" ").removesuffix(" 00:00:00")


def _print_ranges(job: Job, ranges: Sequence[PlannedRange], most: int, *, why: bool = False) -> None:
    console = make_console()
    headings = ["unit", "cell", "reads from", "to", "reason", "failed"]
    table = make_table(*headings, "why") if why else make_table(*headings)
    for planned in ranges[:most]:
        cells: list[str | Text] = [
            text_cell(planned.unit),
            f"{as_wall_clock(planned.cell.lo, job.zone)} .. {as_wall_clock(planned.cell.hi, job.zone)}",
            as_wall_clock(planned.range.lo, job.zone),
            as_wall_clock(planned.range.hi, job.zone),
            planned.reason,
            str(planned.attempts) if planned.attempts else NO_VALUE,
        ]
        table.add_row(*cells, text_cell(planned.why)) if why else table.add_row(*cells)
    console.print(table)
    _print_omitted(len(ranges), most)


def _print_omitted(count: int, most: int) -> None:
    if count > most:
        print_line(make_console(), f"The first {most:,} of {count:,}; --rows shows more, --json all.")


def _due_text(plan: Plan) -> str:
    if not plan.due:
        return "nothing is due"
    reasons = {name: count for name, count in plan.totals.items() if count and name not in ("held", "quarantined")}
    return f"{plan.due:,} cells are due ({', '.join(f'{name} {count:,}' for name, count in reasons.items())})"


def _set_aside_facts(plan: Plan) -> list[tuple[str, str]]:
    facts = []
    if plan.totals["held"]:
        facts.append(("held back", f"{plan.totals['held']:,} cells, by abstinence"))
    if plan.totals["quarantined"]:
        facts.append(("in quarantine", f"{plan.totals['quarantined']:,} cells, failed too often"))
    if plan.expired:
        facts.append(("expired", f"{len(plan.expired):,} ranges, unread and now before the start of the job"))
    if plan.retired:
        facts.append(("retired", f"{len(plan.retired):,} units, no longer listed by the job"))
    return facts


def _reach_text(job: Job, plan: Plan) -> str:
    if plan.reach.lo >= plan.reach.hi:
        return f"nothing: {job.time.from_} to {job.time.to} is an empty range now"
    return f"{as_wall_clock(plan.reach.lo, job.zone)} to {as_wall_clock(plan.reach.hi, job.zone)} ({job.zone})"


def _estimate_text(plan: Plan, typical: TypicalCell | None) -> str:
    estimate = estimate_work(plan, typical)
    if estimate is None:
        return "none: nothing has been read yet"
    terms = [f"about {estimate['rows']:,.0f} rows"] if "rows" in estimate else []
    if "took" in estimate:
        terms.append(f"{as_duration(int(estimate['took']))} of work")
    return f"{', '.join(terms) or 'none'} (from {estimate['of']:,} earlier ranges)"


def _grace_text(job: Job, recommended: int | None) -> str:
    grace = f"{job.time.grace_days} days"
    return grace if recommended is None else f"{grace}; {recommended} would have found 99.9% of all rows"


def _moment_text(job: Job, at: int | None) -> str:
    return NO_VALUE if at is None else as_wall_clock(at, job.zone)


def _run_text(run: RunInfo, now: int) -> str:
    counts = f"{run.succeeded:,} succeeded, {run.failed:,} failed"
    return f"{run.run}, {run.state}, {as_age(run.started_at, now)}, by {run.owner}: {counts}"
