"""The command `ingest`: plan, run, inspect and repair ingestion jobs."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from floodmark.cli.output import print_json
from floodmark.errors import CellsFailed, HomeMissing, InvalidOption

if TYPE_CHECKING:
    from floodmark.ingest import Executor, Ingestion, Job, JobFile
    from floodmark.streams import StreamHome

SHOWN_ROWS: Final = 20
"""How many rows of a plan are printed by default."""


def add_ingest(commands: Any) -> None:
    """Add the command `ingest` and its actions to a parser."""
    ingest = commands.add_parser(
        "ingest",
        help="plan, run and maintain jobs that load a source by time and unit",
        description="Plans, runs and maintains jobs. JOB is a job file; history, retry and edit also take a job name.",
    )
    actions = ingest.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = {
        "plan": "show what a run would read now, and why; changes nothing",
        "run": "read and land all due ranges",
        "status": "show the progress of a job",
        "gaps": "show the ranges that were not read, or not read again, and why",
        "backfill": "make the next runs read a range again",
        "retry": "release ranges from quarantine, so that the next run tries them again",
        "history": "show the runs of a job, the attempts of one run, or manual changes",
        "edit": "record a range as read or not read, without reading it; can be undone",
    }
    parsers = {name: actions.add_parser(name, help=text, description=f"{text}.") for name, text in about.items()}
    for name, parser in parsers.items():
        parser.add_argument("job", metavar="JOB", help="a job file: TOML, or .properties of DIL")
        parser.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        if name in ("backfill", "retry", "edit"):
            needed = name == "backfill"
            parser.add_argument(
                "--from", dest="start", metavar="TIME", required=needed, help="a date, time or duration"
            )
            parser.add_argument("--to", dest="end", metavar="TIME", required=needed, help="the same, or - for now")
            parser.add_argument("--unit", action="append", metavar="UNIT", help="only this unit; may be repeated")
            parser.add_argument("--note", metavar="TEXT", default="", help="a reason, kept with the event")
    parsers["plan"].add_argument(
        "--rows",
        type=_positive_int,
        default=SHOWN_ROWS,
        metavar="N",
        help=f"print at most N rows (default: {SHOWN_ROWS})",
    )
    parsers["plan"].add_argument("--at", metavar="TIME", help="plan as of another time")
    parsers["gaps"].add_argument(
        "--rows",
        type=_positive_int,
        default=SHOWN_ROWS,
        metavar="N",
        help=f"print at most N gaps (default: {SHOWN_ROWS})",
    )
    parsers["run"].add_argument(
        "--workers", type=_positive_int, default=8, metavar="N", help="how many ranges are read at once (default: 8)"
    )
    parsers["history"].add_argument(
        "--limit", type=_positive_int, default=20, metavar="N", help="print at most N entries (default: 20)"
    )
    entries = parsers["history"].add_mutually_exclusive_group()
    entries.add_argument("--run", type=int, metavar="N", help="show the attempts of this run")
    entries.add_argument("--events", action="store_true", help="show manual changes and changes of the job file")
    change = parsers["edit"].add_mutually_exclusive_group(required=True)
    change.add_argument("--covered", action="store_true", help="record the range as read")
    change.add_argument("--missing", action="store_true", help="record the range as not read")
    change.add_argument(
        "--undo", type=int, metavar="EVENT", help="undo the edit with this number in `history --events`"
    )


def run_ingest(arguments: argparse.Namespace, now: int) -> None:
    """Run an action of `ingest`."""
    _ACTIONS[arguments.action](arguments, now)


def _plan(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import parse_moment
    from floodmark.control import Home
    from floodmark.ingest import Ingestion, plan, with_units

    file = _load_job(arguments)
    job = with_units(file.job)
    at = now if arguments.at is None else parse_moment(arguments.at, job.zone, now)
    try:
        home = Home.open_existing(arguments.home)
    except HomeMissing:
        # Planning creates no home; without one, nothing has been read yet.
        planned, typical = plan(job, {}, at), None
    else:
        with home:
            jobs = Ingestion(home)
            planned, typical = jobs.plan(job, now=at), jobs.typical(job.name)
    if arguments.json:
        from floodmark.cli.ingest_text import plan_as_json

        print_json({**plan_as_json(planned, typical), "file": file.file, "notes": list(file.notes)})
    else:
        from floodmark.cli.ingest_text import show_plan

        show_plan(job, planned, typical, arguments.rows)


def _run(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor
    from floodmark.ingest import Ingestion, run_job, with_units
    from floodmark.ingest.ingestion import check_runnable
    from floodmark.streams import connect

    file = _load_job(arguments)
    check_runnable(file.job)
    job = with_units(file.job)
    with connect(arguments.home) as home, closing(_executor(job, home, arguments.workers)) as executor:
        jobs, options = Ingestion(home.home), {"owner": actor(), "workers": arguments.workers}
        if arguments.json or not sys.stderr.isatty():
            result = run_job(jobs, job, executor, **options)
        else:
            from floodmark.cli.ingest_text import progress_bar

            with progress_bar(job.name) as on_row:
                result = run_job(jobs, job, executor, **options, on_row=on_row)
    if arguments.json:
        from floodmark.cli.ingest_text import as_json

        print_json(as_json(result))
    else:
        from floodmark.cli.ingest_text import show_result

        show_result(result)
    if not result.is_whole:
        raise CellsFailed(
            f"{result.failed} of {result.planned} planned ranges failed.",
            rule="Failed ranges stay due; the next run tries them again.",
            remedy=f"Run `floodmark ingest history {arguments.job} --run {result.run}` to see the errors.",
            job=job.name,
            run=result.run,
        )


def _executor(job: "Job", home: "StreamHome", workers: int) -> "Executor":
    # Only `run` needs pyspark, which is slow to import.
    from floodmark.spark import session
    from floodmark.spark.ingest.job import SparkExecutor

    spark = session("floodmark-ingest", cores=os.cpu_count() or 2)
    return SparkExecutor(home, job, spark, workers=workers)


def _status(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.ingest import with_units

    file = _load_job(arguments, secrets=False)
    job = with_units(file.job)
    with _open_jobs(arguments) as jobs:
        status, grace = jobs.status(job, now=now), jobs.recommended_grace(job.name)
    if arguments.json:
        from floodmark.cli.ingest_text import status_as_json

        print_json(status_as_json(status, grace))
    else:
        from floodmark.cli.ingest_text import show_status

        show_status(job, status, grace)


def _gaps(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.ingest import with_units

    job = with_units(_load_job(arguments, secrets=False).job)
    with _open_jobs(arguments) as jobs:
        gaps, complete = jobs.gaps(job, now=now), jobs.complete_through(job, now=now)
        rereads = jobs.failed_rereads(job, now=now)
    if arguments.json:
        from floodmark.cli.ingest_text import as_json

        print_json(
            {
                "now": now,
                "job": job.name,
                "complete_through": complete,
                "gaps": [as_json(gap) for gap in gaps],
                "failed_rereads": [as_json(gap) for gap in rereads],
            }
        )
    else:
        from floodmark.cli.ingest_text import show_gaps

        show_gaps(job, gaps, rereads, complete, arguments.rows)


def _backfill(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range
    from floodmark.ingest import with_units

    job = with_units(_load_job(arguments, secrets=False).job)
    range_ = parse_range(arguments.start, arguments.end, job.zone, now)
    assert range_ is not None
    with _open_jobs(arguments, create=True) as jobs:
        units = find_unit_keys(arguments.unit, [unit.key for unit in job.listed_units], job.name)
        event = jobs.backfill(job, range_, units=units, actor=actor(), note=arguments.note)
    _print_event(arguments, event, f"The next runs read {job.shown(range_.lo)} to {job.shown(range_.hi)} again.")


def _retry(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        range_ = parse_range(arguments.start, arguments.end, zone, now)
        units = find_unit_keys(arguments.unit, list(jobs.coverage(name)), name)
        count = jobs.retry(name, range_, units=units, actor=actor(), note=arguments.note)
    if arguments.json:
        print_json({"job": name, "released": count})
    else:
        print(f"{count} failed ranges will be tried again." if count else "No failed ranges to retry.")


def _edit(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        range_ = parse_range(arguments.start, arguments.end, zone, now)
        if arguments.undo is not None:
            event = jobs.undo(name, arguments.undo, actor=actor(), note=arguments.note)
            _print_event(arguments, event, f"Undid event {arguments.undo}.")
            return
        if range_ is None:
            raise InvalidOption(
                "Neither --from nor --to is given.",
                rule="An edit needs a range.",
                remedy="Give both, for example --from 2026-01-01 --to 2026-01-02.",
                option="--from",
            )
        units = find_unit_keys(arguments.unit, list(jobs.coverage(name)), name)
        event = jobs.edit(name, range_, covered=arguments.covered, units=units, actor=actor(), note=arguments.note)
    _print_event(arguments, event, f"Recorded as event {event.event}; `--undo {event.event}` reverts it.")


def _history(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import as_json, show_attempts, show_events, show_runs

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        entries: Any
        show: Any
        if arguments.run is not None:
            attempts = jobs.attempts(name, arguments.run)
            entries = sorted(attempts, key=lambda attempt: (attempt.state != "failed", attempt.range))
            field, show = "attempts", show_attempts
        elif arguments.events:
            entries, field, show = jobs.events(name, limit=arguments.limit), "events", show_events
        else:
            entries, field, show = jobs.history(name, limit=arguments.limit), "runs", show_runs
    if arguments.json:
        print_json({"now": now, "job": name, field: [as_json(entry) for entry in entries]})
    else:
        show(name, zone, entries[: arguments.limit], now)
        if len(entries) > arguments.limit:
            print(f"The first {arguments.limit:,} of {len(entries):,}; --limit shows more, --json all.")


def _load_job(arguments: argparse.Namespace, *, secrets: bool = True) -> "JobFile":
    """Load a job file, and print its notes to standard error."""
    from floodmark.ingest import load_job

    file = load_job(arguments.job, secrets=secrets)
    for note in file.notes:
        print(f"floodmark: {file.file}: {note}", file=sys.stderr)
    return file


def _name_and_zone(arguments: argparse.Namespace, jobs: "Ingestion") -> tuple[str, str]:
    """Return the name and zone of a job: from its file, or from the home if the argument is not a file."""
    from pathlib import Path

    if Path(arguments.job).is_file():
        job = _load_job(arguments, secrets=False).job
        return job.name, job.zone
    info = jobs.get(arguments.job)
    return info.name, str(info.definition["zone"])


@contextmanager
def _open_jobs(arguments: argparse.Namespace, *, create: bool = False) -> Iterator["Ingestion"]:
    """Open the home, which must exist unless `create` is set, and yield its jobs."""
    from floodmark.control import Home
    from floodmark.ingest import Ingestion

    with Home.open(arguments.home) if create else Home.open_existing(arguments.home) as home:
        yield Ingestion(home)


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return number


def _print_event(arguments: argparse.Namespace, event: Any, sentence: str) -> None:
    if arguments.json:
        from floodmark.cli.ingest_text import as_json

        print_json(as_json(event))
    else:
        print(sentence)


_ACTIONS: Final = {
    "plan": _plan,
    "run": _run,
    "status": _status,
    "gaps": _gaps,
    "backfill": _backfill,
    "retry": _retry,
    "history": _history,
    "edit": _edit,
}
