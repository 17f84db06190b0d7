"""Jobs, plans and runs as a person reads them. Times are those of the job's own zone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.text import Text

from floodmark.cli._ingest_words import estimate
from floodmark.cli._show import _cell, _console, _print_facts, _print_warnings, _printable, _table
from floodmark.cli._times import as_age, as_duration, to_second
from floodmark.ingest import Attempt, Event, Gap, Job, Outcome, Plan, Row, Run, RunInfo, RunResult, Status, Typical
from floodmark.ingest._calendar import moment, shown, wall, zone_of

_NOTHING = "-"


def show_plan(job: Job, plan: Plan, typical: Typical | None, most: int) -> None:
    """Print what a run would read: the totals, and the first rows."""
    console = _console()
    console.print(Text.assemble((_printable(job.name), "bold"), f": {_due(plan)}"), soft_wrap=True)
    facts = [("reads", _reach(job, plan)), ("this run", f"{plan.cells:,} cells in {len(plan.rows):,} rows")]
    if plan.waiting:
        facts.append(("later runs", f"{plan.waiting:,} cells, beyond the limit of {job.limits.cells:,} a run"))
    facts.append(("estimate", _estimate(plan, typical)))
    _print_facts(console, facts + _set_aside(plan))
    if plan.rows:
        console.print()
        _print_rows(job, plan.rows, most)
    for title, rows in (("held back", plan.held), ("in quarantine", plan.quarantined)):
        if rows:
            console.print(f"\n{title}:", soft_wrap=True)
            _print_rows(job, rows, most, why=True)


def show_status(job: Job, status: Status, grace: int | None) -> None:
    """Print how far a job has come."""
    console, now = _console(), status.now
    console.print(Text.assemble((_printable(job.name), "bold"), f": {_due(status.plan)}"), soft_wrap=True)
    facts = [
        ("complete through", _moment(job, status.complete_through)),
        ("largest end of all", _moment(job, status.largest_end)),
        ("reads", _reach(job, status.plan)),
        ("units", f"{status.units:,}"),
        ("running", "no" if status.running is None else _run_line(status.running, now)),
        ("last run", _NOTHING if status.last is None else _run_line(status.last, now)),
        ("grace", _grace(job, grace)),
    ]
    _print_facts(console, facts + _set_aside(status.plan))
    if status.plan.quarantined:
        _print_warnings(
            console, ["Cells are in quarantine: see `floodmark ingest gaps`, then `floodmark ingest retry`."]
        )


def show_gaps(job: Job, gaps: Sequence[Gap], complete: int | None, most: int) -> None:
    """Print what was not read."""
    console = _console()
    if not gaps:
        console.print(f"Nothing is missing up to {_moment(job, complete)}.", soft_wrap=True)
        return
    console.print(f"{len(gaps):,} ranges are missing; complete through {_moment(job, complete)}.", soft_wrap=True)
    table = _table("unit", "from", "to", "why")
    for gap in gaps[:most]:
        table.add_row(
            _cell(gap.unit), on_wall(gap.range.lo, job.zone), on_wall(gap.range.hi, job.zone), _cell(gap.cause)
        )
    console.print(table)
    _print_rest(len(gaps), most)


def show_runs(name: str, zone: str, runs: Sequence[RunInfo], now: int) -> None:
    """Print the runs of a job, the newest first."""
    console = _console()
    if not runs:
        console.print(f"{_printable(name)} has never run.", soft_wrap=True)
        return
    table = _table("run", "state", "started", "took", "succeeded", "failed", "rows", "by")
    for run in runs:
        took = _NOTHING if run.ended_at is None else as_duration(to_second(run.ended_at - run.started_at))
        counts = (f"{run.succeeded:,}", f"{run.failed:,}", f"{run.rows:,}")
        table.add_row(str(run.run), _cell(run.state), as_age(run.started_at, now), took, *counts, _cell(run.owner))
    console.print(table)


def show_attempts(name: str, zone: str, attempts: Sequence[Attempt], now: int) -> None:
    """Print what a run has recorded, failures first."""
    console = _console()
    if not attempts:
        console.print("The run has recorded nothing.", soft_wrap=True)
        return
    table = _table("unit", "from", "to", "reason", "became", "rows", "took", "error")
    for one in attempts:
        table.add_row(
            _cell(one.unit),
            on_wall(one.range.lo, zone),
            on_wall(one.range.hi, zone),
            one.reason,
            one.state,
            _NOTHING if one.rows is None else f"{one.rows:,}",
            _NOTHING if one.took is None else as_duration(one.took),
            _cell(one.error.splitlines()[0] if one.error else None),
        )
    console.print(table)


def show_events(name: str, zone: str, events: Sequence[Event], now: int) -> None:
    """Print what people, and changes of the job, did."""
    console = _console()
    if not events:
        console.print(f"Nobody has done anything to {_printable(name)}.", soft_wrap=True)
        return
    table = _table("event", "what", "when", "by", "from", "to", "note")
    for one in events:
        ends = [one.details.get(end) for end in ("lo", "hi")]
        times = [on_wall(end, zone) if isinstance(end, int) else _NOTHING for end in ends]
        note = _cell(one.details.get("note") or None)
        table.add_row(str(one.event), _cell(one.kind), as_age(one.at, now), _cell(one.actor), *times, note)
    console.print(table)


def show_result(result: RunResult) -> None:
    """Print what a run has done."""
    console = _console()
    done = f"{result.succeeded:,} of {result.planned:,} rows of the plan, {result.rows:,} rows landed"
    console.print(f"{_printable(result.job)}: run {result.run}: {done}.", soft_wrap=True)
    _print_warnings(console, [error.splitlines()[0] for error in result.errors])


@contextmanager
def progress(name: str) -> Iterator[Callable[[Run, Outcome], None]]:
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
        task = bar.add_task(_printable(name), total=None, told="")
        rows = failed = 0

        def on_row(run: Run, outcome: Outcome) -> None:
            nonlocal rows, failed
            rows += outcome.rows or 0
            failed += outcome.error is not None
            told = f"{rows:,} rows" + (f", {failed:,} failed" if failed else "")
            bar.update(task, total=len(run.plan.rows), advance=1, told=told)

        yield on_row


def on_wall(at: int, zone: str) -> str:
    """Return what a wall clock shows: the date alone at midnight, and the offset where it shows the same twice.

    >>> on_wall(0, "UTC"), on_wall(1, "UTC"), on_wall(1_604_221_200_000_000, "America/Los_Angeles")
    ('1970-01-01', '1970-01-01 00:00:00.000001', '2020-11-01 01:00:00-08:00')
    """
    where = zone_of(zone)
    local = wall(at, where)
    if moment(local.replace(fold=0), where) != moment(local.replace(fold=1), where):
        return shown(at, where).replace("T", " ")
    return local.isoformat(sep=" ").removesuffix(" 00:00:00")


def _print_rows(job: Job, rows: Sequence[Row], most: int, *, why: bool = False) -> None:
    console = _console()
    headings = ["unit", "cell", "reads from", "to", "reason", "failed"]
    table = _table(*headings, "why") if why else _table(*headings)
    for row in rows[:most]:
        cells: list[str | Text] = [
            _cell(row.unit),
            f"{on_wall(row.cell.lo, job.zone)} .. {on_wall(row.cell.hi, job.zone)}",
            on_wall(row.range.lo, job.zone),
            on_wall(row.range.hi, job.zone),
            row.reason,
            str(row.attempts) if row.attempts else _NOTHING,
        ]
        table.add_row(*cells, _cell(row.why)) if why else table.add_row(*cells)
    console.print(table)
    _print_rest(len(rows), most)


def _print_rest(many: int, most: int) -> None:
    if many > most:
        _console().print(f"The first {most:,} of {many:,}; --rows shows more, --json all.", soft_wrap=True)


def _due(plan: Plan) -> str:
    if not plan.due:
        return "nothing is due"
    reasons = {name: count for name, count in plan.totals.items() if count and name not in ("held", "quarantined")}
    return f"{plan.due:,} cells are due ({', '.join(f'{name} {count:,}' for name, count in reasons.items())})"


def _set_aside(plan: Plan) -> list[tuple[str, str]]:
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


def _reach(job: Job, plan: Plan) -> str:
    if plan.reach.lo >= plan.reach.hi:
        return f"nothing: {job.time.from_} to {job.time.to} is an empty range now"
    return f"{on_wall(plan.reach.lo, job.zone)} to {on_wall(plan.reach.hi, job.zone)} ({job.zone})"


def _estimate(plan: Plan, typical: Typical | None) -> str:
    about = estimate(plan, typical)
    if about is None:
        return "none: nothing was read yet"
    parts = [f"about {about['rows']:,.0f} rows"] if "rows" in about else []
    if "took" in about:
        parts.append(f"{as_duration(int(about['took']))} of work")
    return f"{', '.join(parts) or 'none'} (by {about['of']:,} earlier ones)"


def _grace(job: Job, recommended: int | None) -> str:
    told = f"{job.time.grace_days} days"
    return told if recommended is None else f"{told}; {recommended} would have found 99.9% of all rows"


def _moment(job: Job, at: int | None) -> str:
    return _NOTHING if at is None else on_wall(at, job.zone)


def _run_line(run: RunInfo, now: int) -> str:
    done = f"{run.succeeded:,} succeeded, {run.failed:,} failed"
    return f"{run.run}, {run.state}, {as_age(run.started_at, now)}, by {run.owner}: {done}"
