"""The text of `floodmark ingest`: the times and units that people type, and the answers that they or programs read.

Times are those of the job's own zone. Import it inside functions.
"""

import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from rich.text import Text

from floodmark._util.text import did_you_mean
from floodmark.cli.output import as_age, as_duration, to_second
from floodmark.cli.tables import NOTHING, make_console, make_table, print_facts, print_warnings, printable, text_cell
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


def parse_moment(text: str, zone: str, now: int, option: str) -> int:
    """Return a moment that somebody typed, as a job file would have it.

    >>> parse_moment("1970-01-02", "UTC", 0, "--at"), parse_moment("-", "UTC", 61_000_000, "--at")
    (86400000000, 60000000)
    """
    return Bound.parse(text, zone).resolve(now, zone)


def parse_range(start: str | None, end: str | None, zone: str, now: int) -> Range | None:
    """Return the range between two moments that somebody typed, or None if neither is there.

    >>> parse_range("1970-01-01", "1970-01-02", "UTC", 0)
    Range(lo=0, hi=86400000000)
    """
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InvalidOption(
            f"There is only {'--to' if start is None else '--from'}.",
            rule="A range has both ends.",
            remedy="Give --from and --to, or neither.",
            option="--from" if start is None else "--to",
        )
    found = Range(parse_moment(start, zone, now, "--from"), parse_moment(end, zone, now, "--to"))
    if found.lo >= found.hi:
        raise InvalidOption(
            f"The range goes from {start} to {end}.",
            rule="It ends after it begins.",
            remedy="Swap --from and --to, or name a later --to.",
            option="--to",
        )
    return found


def find_unit_keys(texts: Sequence[str] | None, known: Sequence[str], job: str) -> list[str] | None:
    """Return the keys of units that somebody typed: as keys, as id=7, or by the value alone; None for all.

    >>> find_unit_keys(["7", "id=8"], ['{"id":"7"}', '{"id":8}'], "orders")
    ['{"id":"7"}', '{"id":8}']
    """
    if texts is None:
        return None
    names: dict[str, list[str]] = {}
    for key in known:
        unit = Unit.load(key)
        short = {str(value) for value in unit.fields.values()} if len(unit.fields) == 1 else set()
        for name in {key, str(unit), *short}:
            names.setdefault(name, []).append(key)
    found = []
    for text in texts:
        keys = names.get(text, [])
        if len(keys) != 1:
            fact = f"The job {job!r} has no unit {text!r}." if not keys else f"{len(keys)} units are called {text!r}."
            guess = did_you_mean(text, names, otherwise="Look at `floodmark ingest plan --json`.")
            raise UnknownUnit(
                fact,
                rule='A unit is named by its key, as {"id":7}, as id=7, or by its value if it has one field.',
                remedy=guess if not keys else "Write the key.",
                job=job,
                unit=text,
            )
        found.append(keys[0])
    return found


def actor() -> str:
    """Return who acts, as it is written down.

    >>> "@" in actor()
    True
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def as_json(value: Any) -> Any:
    """Return an answer as JSON has it; a range is a pair, a unit its key and its fields.

    >>> as_json({"unit": Unit.of({"id": 7}), "range": Range(0, 9)})
    {'unit': {'key': '{"id":7}', 'fields': {'id': 7}}, 'range': [0, 9]}
    """
    if isinstance(value, Range):
        return [value.lo, value.hi]
    if isinstance(value, Unit):
        return {"key": value.key, "fields": dict(value.fields)}
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value


def plan_as_json(plan: Plan, typical: TypicalCell | None) -> dict[str, Any]:
    """Return a plan as JSON has it, with its estimate."""
    listed = ("rows", "held", "quarantined")
    return {
        **{name: one for name, one in as_json(plan).items() if name not in listed},
        "due": plan.due,
        "waiting": plan.waiting,
        "estimate": estimate_work(plan, typical),
        **{name: [as_json(row) for row in getattr(plan, name)] for name in listed},
    }


def status_as_json(status: Status, grace: int | None) -> dict[str, Any]:
    """Return the status of a job as JSON has it; of its plan only the totals."""
    plan = status.plan
    told = {one.name: as_json(getattr(status, one.name)) for one in fields(status) if one.name != "plan"}
    totals = {"reach": as_json(plan.reach), "totals": dict(plan.totals), "due": plan.due, "expired": len(plan.expired)}
    return {**told, "plan": {**totals, "retired": list(plan.retired)}, "recommended_grace_days": grace}


def estimate_work(plan: Plan, typical: TypicalCell | None) -> dict[str, float] | None:
    """Return about how many rows, and how many microseconds of work, a plan means; None if nothing like it was read.

    Both are averages of the rows of earlier plans, times the rows of this one.
    """
    if typical is None or not typical.cells:
        return None
    many = len(plan.rows)
    known = {"rows": typical.rows, "took": typical.took}
    return {"of": typical.cells, **{name: one * many for name, one in known.items() if one is not None}}


def show_plan(job: Job, plan: Plan, typical: TypicalCell | None, most: int) -> None:
    """Print what a run would read: the totals, and the first rows."""
    console = make_console()
    console.print(Text.assemble((printable(job.name), "bold"), f": {_due_text(plan)}"), soft_wrap=True)
    facts = [("reads", _reach_text(job, plan)), ("this run", f"{plan.cells:,} cells in {len(plan.rows):,} rows")]
    if plan.waiting:
        facts.append(("later runs", f"{plan.waiting:,} cells, beyond the limit of {job.limits.cells:,} a run"))
    facts.append(("estimate", _estimate_text(plan, typical)))
    print_facts(console, facts + _set_aside_facts(plan))
    if plan.rows:
        console.print()
        _print_rows(job, plan.rows, most)
    for title, rows in (("held back", plan.held), ("in quarantine", plan.quarantined)):
        if rows:
            console.print(f"\n{title}:", soft_wrap=True)
            _print_rows(job, rows, most, why=True)


def show_status(job: Job, status: Status, grace: int | None) -> None:
    """Print how far a job has come."""
    console, now = make_console(), status.now
    console.print(Text.assemble((printable(job.name), "bold"), f": {_due_text(status.plan)}"), soft_wrap=True)
    facts = [
        ("complete through", _moment_text(job, status.complete_through)),
        ("largest end of all", _moment_text(job, status.largest_end)),
        ("reads", _reach_text(job, status.plan)),
        ("units", f"{status.units:,}"),
        ("running", "no" if status.running is None else _run_text(status.running, now)),
        ("last run", NOTHING if status.last is None else _run_text(status.last, now)),
        ("grace", _grace_text(job, grace)),
    ]
    print_facts(console, facts + _set_aside_facts(status.plan))
    if status.plan.quarantined:
        print_warnings(
            console, ["Cells are in quarantine: see `floodmark ingest gaps`, then `floodmark ingest retry`."]
        )


def show_gaps(job: Job, gaps: Sequence[Gap], complete: int | None, most: int) -> None:
    """Print what was not read."""
    console = make_console()
    if not gaps:
        console.print(f"Nothing is missing up to {_moment_text(job, complete)}.", soft_wrap=True)
        return
    console.print(f"{len(gaps):,} ranges are missing; complete through {_moment_text(job, complete)}.", soft_wrap=True)
    table = make_table("unit", "from", "to", "why")
    for gap in gaps[:most]:
        table.add_row(
            text_cell(gap.unit),
            as_wall_clock(gap.range.lo, job.zone),
            as_wall_clock(gap.range.hi, job.zone),
            text_cell(gap.cause),
        )
    console.print(table)
    _print_rest(len(gaps), most)


def show_runs(name: str, zone: str, runs: Sequence[RunInfo], now: int) -> None:
    """Print the runs of a job, the newest first."""
    console = make_console()
    if not runs:
        console.print(f"{printable(name)} has never run.", soft_wrap=True)
        return
    table = make_table("run", "state", "started", "took", "succeeded", "failed", "rows", "by")
    for run in runs:
        took = NOTHING if run.ended_at is None else as_duration(to_second(run.ended_at - run.started_at))
        counts = (f"{run.succeeded:,}", f"{run.failed:,}", f"{run.rows:,}")
        table.add_row(
            str(run.run), text_cell(run.state), as_age(run.started_at, now), took, *counts, text_cell(run.owner)
        )
    console.print(table)


def show_attempts(name: str, zone: str, attempts: Sequence[Attempt], now: int) -> None:
    """Print what a run has recorded, failures first."""
    console = make_console()
    if not attempts:
        console.print("The run has recorded nothing.", soft_wrap=True)
        return
    table = make_table("unit", "from", "to", "reason", "became", "rows", "took", "error")
    for one in attempts:
        table.add_row(
            text_cell(one.unit),
            as_wall_clock(one.range.lo, zone),
            as_wall_clock(one.range.hi, zone),
            one.reason,
            one.state,
            NOTHING if one.rows is None else f"{one.rows:,}",
            NOTHING if one.took is None else as_duration(one.took),
            text_cell(one.error.splitlines()[0] if one.error else None),
        )
    console.print(table)


def show_events(name: str, zone: str, events: Sequence[JobEvent], now: int) -> None:
    """Print what people, and changes of the job, did."""
    console = make_console()
    if not events:
        console.print(f"Nobody has done anything to {printable(name)}.", soft_wrap=True)
        return
    table = make_table("event", "what", "when", "by", "from", "to", "note")
    for one in events:
        ends = [one.details.get(end) for end in ("lo", "hi")]
        times = [as_wall_clock(end, zone) if isinstance(end, int) else NOTHING for end in ends]
        note = text_cell(one.details.get("note") or None)
        table.add_row(str(one.event), text_cell(one.kind), as_age(one.at, now), text_cell(one.actor), *times, note)
    console.print(table)


def show_result(result: RunResult) -> None:
    """Print what a run has done."""
    console = make_console()
    done = f"{result.succeeded:,} of {result.planned:,} rows of the plan, {result.rows:,} rows landed"
    console.print(f"{printable(result.job)}: run {result.run}: {done}.", soft_wrap=True)
    print_warnings(console, [error.splitlines()[0] for error in result.errors])


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[Run, RangeOutcome], None]]:
    """Show, on a terminal, how much of a plan is done, in what time, and how many rows were landed."""
    from rich.console import Console
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
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(name), total=None, told="")
        rows = failed = 0

        def on_row(run: Run, outcome: RangeOutcome) -> None:
            nonlocal rows, failed
            rows += outcome.rows or 0
            failed += outcome.error is not None
            told = f"{rows:,} rows" + (f", {failed:,} failed" if failed else "")
            bar.update(task, total=len(run.plan.rows), advance=1, told=told)

        yield on_row


def as_wall_clock(at: int, zone: str) -> str:
    """Return what a wall clock shows: the date alone at midnight, and the offset where it shows the same twice.

    >>> as_wall_clock(0, "UTC"), as_wall_clock(1, "UTC"), as_wall_clock(1_604_221_200_000_000, "America/Los_Angeles")
    ('1970-01-01', '1970-01-01 00:00:00.000001', '2020-11-01 01:00:00-08:00')
    """
    where = zone_of(zone)
    local = micros_to_wall(at, where)
    if wall_to_micros(local.replace(fold=0), where) != wall_to_micros(local.replace(fold=1), where):
        return format_moment(at, where).replace("T", " ")
    return local.isoformat(sep=" ").removesuffix(" 00:00:00")


def _print_rows(job: Job, rows: Sequence[PlannedRange], most: int, *, why: bool = False) -> None:
    console = make_console()
    headings = ["unit", "cell", "reads from", "to", "reason", "failed"]
    table = make_table(*headings, "why") if why else make_table(*headings)
    for row in rows[:most]:
        cells: list[str | Text] = [
            text_cell(row.unit),
            f"{as_wall_clock(row.cell.lo, job.zone)} .. {as_wall_clock(row.cell.hi, job.zone)}",
            as_wall_clock(row.range.lo, job.zone),
            as_wall_clock(row.range.hi, job.zone),
            row.reason,
            str(row.attempts) if row.attempts else NOTHING,
        ]
        table.add_row(*cells, text_cell(row.why)) if why else table.add_row(*cells)
    console.print(table)
    _print_rest(len(rows), most)


def _print_rest(many: int, most: int) -> None:
    if many > most:
        make_console().print(f"The first {most:,} of {many:,}; --rows shows more, --json all.", soft_wrap=True)


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
        facts.append(("in quarantine", f"{plan.totals['quarantined']:,} cells, which have failed too often"))
    if plan.expired:
        facts.append(("expired", f"{len(plan.expired):,} ranges, which the start has passed unread"))
    if plan.retired:
        facts.append(("retired", f"{len(plan.retired):,} units, which are not listed any more"))
    return facts


def _reach_text(job: Job, plan: Plan) -> str:
    if plan.reach.lo >= plan.reach.hi:
        return f"nothing: {job.time.from_} to {job.time.to} is an empty range now"
    return f"{as_wall_clock(plan.reach.lo, job.zone)} to {as_wall_clock(plan.reach.hi, job.zone)} ({job.zone})"


def _estimate_text(plan: Plan, typical: TypicalCell | None) -> str:
    about = estimate_work(plan, typical)
    if about is None:
        return "none: nothing was read yet"
    parts = [f"about {about['rows']:,.0f} rows"] if "rows" in about else []
    if "took" in about:
        parts.append(f"{as_duration(int(about['took']))} of work")
    return f"{', '.join(parts) or 'none'} (by {about['of']:,} earlier ones)"


def _grace_text(job: Job, recommended: int | None) -> str:
    told = f"{job.time.grace_days} days"
    return told if recommended is None else f"{told}; {recommended} would have found 99.9% of all rows"


def _moment_text(job: Job, at: int | None) -> str:
    return NOTHING if at is None else as_wall_clock(at, job.zone)


def _run_text(run: RunInfo, now: int) -> str:
    done = f"{run.succeeded:,} succeeded, {run.failed:,} failed"
    return f"{run.run}, {run.state}, {as_age(run.started_at, now)}, by {run.owner}: {done}"
