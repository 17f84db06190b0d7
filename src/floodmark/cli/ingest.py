"""The command `ingest`: what a job has to read, what it has read, and what a person may do about it."""

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
"""How many rows of a plan a person is shown, unless more are asked for."""


def add_ingest(commands: Any) -> None:
    """Add the command `ingest` and its own commands to a parser."""
    ingest = commands.add_parser(
        "ingest",
        help="plan, run and look after jobs that read a source by time and unit",
        description="Plans, runs and looks after jobs. JOB is a job file; for history, retry and edit a name will do.",
    )
    actions = ingest.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = {
        "plan": "show what a run would read now, and why; change nothing",
        "run": "read and land what is due",
        "status": "show how far a job has come",
        "gaps": "show what was not read, and why not",
        "backfill": "have a range read again by the next runs",
        "retry": "let what has failed too often be tried again",
        "history": "show the runs of a job, or what one of them did, or what people did",
        "edit": "say that a range was read, or was not, without reading it; written down, can be undone",
    }
    parsers = {name: actions.add_parser(name, help=text, description=f"{text}.") for name, text in about.items()}
    for name, parser in parsers.items():
        parser.add_argument("job", metavar="JOB", help="a job file, TOML or properties of DIL")
        parser.add_argument("--home", metavar="DIR|URL", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        if name in ("backfill", "retry", "edit"):
            needed = name == "backfill"
            parser.add_argument(
                "--from", dest="start", metavar="TIME", required=needed, help="a date, time or duration"
            )
            parser.add_argument("--to", dest="end", metavar="TIME", required=needed, help="the same, or - for now")
            parser.add_argument(
                "--unit", action="append", metavar="UNIT", help="only this one; may be given repeatedly"
            )
            parser.add_argument("--note", metavar="TEXT", default="", help="why, for those who read it later")
    parsers["plan"].add_argument(
        "--rows", type=_positive_int, default=SHOWN_ROWS, metavar="N", help="show so many rows"
    )
    parsers["plan"].add_argument("--at", metavar="TIME", help="what a run would read at another moment")
    parsers["gaps"].add_argument(
        "--rows", type=_positive_int, default=SHOWN_ROWS, metavar="N", help="show so many gaps"
    )
    parsers["run"].add_argument(
        "--workers", type=_positive_int, default=8, metavar="N", help="rows at a time (default: 8)"
    )
    parsers["history"].add_argument(
        "--limit", type=_positive_int, default=20, metavar="N", help="show so many (default: 20)"
    )
    what = parsers["history"].add_mutually_exclusive_group()
    what.add_argument("--run", type=int, metavar="N", help="show what this run recorded")
    what.add_argument("--events", action="store_true", help="show what people and changes of the job did")
    how = parsers["edit"].add_mutually_exclusive_group(required=True)
    how.add_argument("--covered", action="store_true", help="the range was read")
    how.add_argument("--missing", action="store_true", help="the range was not read")
    how.add_argument("--undo", type=int, metavar="EVENT", help="take an edit back, as `history --events` numbers it")


def run_ingest(arguments: argparse.Namespace, now: int) -> None:
    """Run one of these commands."""
    _ACTIONS[arguments.action](arguments, now)


def _plan(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import parse_moment
    from floodmark.control import Home
    from floodmark.ingest import Ingestion, plan, with_units

    file = _load_job(arguments)
    job = with_units(file.job)
    at = now if arguments.at is None else parse_moment(arguments.at, job.zone, now, "--at")
    try:
        home = Home.open_existing(arguments.home)
    except HomeMissing:
        # Nothing was ever read, and a plan makes nothing.
        found, typical = plan(job, {}, at), None
    else:
        with home:
            jobs = Ingestion(home)
            found, typical = jobs.plan(job, now=at), jobs.typical(job.name)
    if arguments.json:
        from floodmark.cli.ingest_text import plan_as_json

        print_json({**plan_as_json(found, typical), "file": file.file, "notes": list(file.notes)})
    else:
        from floodmark.cli.ingest_text import show_plan

        show_plan(job, found, typical, arguments.rows)


def _run(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor
    from floodmark.ingest import Ingestion, run_job, with_units
    from floodmark.ingest.ingestion import check_runnable
    from floodmark.streams import connect

    file = _load_job(arguments)
    check_runnable(file.job)
    job = with_units(file.job)
    with connect(arguments.home) as home, closing(_executor(job, home, arguments.workers)) as executor:
        jobs, asked = Ingestion(home.home), {"owner": actor(), "workers": arguments.workers}
        if arguments.json or not sys.stderr.isatty():
            result = run_job(jobs, job, executor, **asked)
        else:
            from floodmark.cli.ingest_text import progress_bar

            with progress_bar(job.name) as on_row:
                result = run_job(jobs, job, executor, **asked, on_row=on_row)
    if arguments.json:
        from floodmark.cli.ingest_text import as_json

        print_json(as_json(result))
    else:
        from floodmark.cli.ingest_text import show_result

        show_result(result)
    if not result.is_whole:
        raise CellsFailed(
            f"{result.failed} of {result.planned} rows of the plan have failed.",
            rule="They stay due, and the next run tries them again.",
            remedy=f"See `floodmark ingest history {arguments.job} --run {result.run}`.",
            job=job.name,
            run=result.run,
        )


def _executor(job: "Job", home: "StreamHome", workers: int) -> "Executor":
    # Whoever only asks what is due does not wait for pyspark.
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
        found, complete = jobs.gaps(job, now=now), jobs.complete_through(job, now=now)
    if arguments.json:
        from floodmark.cli.ingest_text import as_json

        print_json({"now": now, "job": job.name, "complete_through": complete, "gaps": [as_json(one) for one in found]})
    else:
        from floodmark.cli.ingest_text import show_gaps

        show_gaps(job, found, complete, arguments.rows)


def _backfill(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range
    from floodmark.ingest import with_units

    job = with_units(_load_job(arguments, secrets=False).job)
    what = parse_range(arguments.start, arguments.end, job.zone, now)
    assert what is not None
    with _open_jobs(arguments, make=True) as jobs:
        units = find_unit_keys(arguments.unit, [unit.key for unit in job.listed_units], job.name)
        event = jobs.backfill(job, what, units=units, actor=actor(), note=arguments.note)
    _print_event(arguments, event, f"The next runs read {job.shown(what.lo)} to {job.shown(what.hi)} again.")


def _retry(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        what = parse_range(arguments.start, arguments.end, zone, now)
        units = find_unit_keys(arguments.unit, list(jobs.coverage(name)), name)
        many = jobs.retry(name, what, units=units, actor=actor(), note=arguments.note)
    if arguments.json:
        print_json({"job": name, "released": many})
    else:
        print(f"{many} ranges that had failed are tried again." if many else "Nothing that has failed is there.")


def _edit(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli.ingest_text import actor, find_unit_keys, parse_range

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        what = parse_range(arguments.start, arguments.end, zone, now)
        if arguments.undo is not None:
            event = jobs.undo(name, arguments.undo, actor=actor(), note=arguments.note)
            _print_event(arguments, event, f"The edit {arguments.undo} is undone.")
            return
        if what is None:
            raise InvalidOption(
                "Neither --from nor --to is given.",
                rule="An edit is about a range.",
                remedy="Give both.",
                option="--from",
            )
        units = find_unit_keys(arguments.unit, list(jobs.coverage(name)), name)
        event = jobs.edit(name, what, covered=arguments.covered, units=units, actor=actor(), note=arguments.note)
    _print_event(arguments, event, f"Written down as the event {event.event}; `--undo {event.event}` takes it back.")


def _history(arguments: argparse.Namespace, now: int) -> None:
    from floodmark.cli import ingest_text as show
    from floodmark.cli.ingest_text import as_json

    with _open_jobs(arguments) as jobs:
        name, zone = _name_and_zone(arguments, jobs)
        found: Any
        print_it: Any
        if arguments.run is not None:
            # Failures first: they are what somebody looks for.
            found = sorted(jobs.attempts(name, arguments.run), key=lambda one: (one.state != "failed", one.range))
            told, print_it = "attempts", show.show_attempts
        elif arguments.events:
            found, told, print_it = jobs.events(name, limit=arguments.limit), "events", show.show_events
        else:
            found, told, print_it = jobs.history(name, limit=arguments.limit), "runs", show.show_runs
    if arguments.json:
        print_json({"now": now, "job": name, told: [as_json(one) for one in found]})
    else:
        print_it(name, zone, found[: arguments.limit], now)
        if len(found) > arguments.limit:
            print(f"The first {arguments.limit:,} of {len(found):,}; --limit shows more, --json all.")


def _load_job(arguments: argparse.Namespace, *, secrets: bool = True) -> "JobFile":
    """Return the job of a file, and tell what its reader should know."""
    from floodmark.ingest import load_job

    file = load_job(arguments.job, secrets=secrets)
    for note in file.notes:
        print(f"floodmark: {file.file}: {note}", file=sys.stderr)
    return file


def _name_and_zone(arguments: argparse.Namespace, jobs: "Ingestion") -> tuple[str, str]:
    """Return the name and the zone of a job, from its file or, if there is none, as the home knows it."""
    from pathlib import Path

    if Path(arguments.job).is_file():
        job = _load_job(arguments, secrets=False).job
        return job.name, job.zone
    info = jobs.get(arguments.job)
    return info.name, str(info.definition["zone"])


@contextmanager
def _open_jobs(arguments: argparse.Namespace, *, make: bool = False) -> Iterator["Ingestion"]:
    """Give the jobs of a home that is there, or is made."""
    from floodmark.control import Home
    from floodmark.ingest import Ingestion

    with Home.open(arguments.home) if make else Home.open_existing(arguments.home) as home:
        yield Ingestion(home)


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
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
