"""The entry point `floodmark`: parses the command line, runs the command, and turns an error into an exit code."""

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from time import time_ns
from typing import Final

from floodmark._util.text import did_you_mean
from floodmark.cli.bindings import add_bindings, run_bindings
from floodmark.cli.ingest import add_ingest, run_ingest
from floodmark.cli.origins import add_origins, run_origins
from floodmark.cli.output import print_json
from floodmark.cli.service import add_serve, add_tokens, run_serve, run_tokens
from floodmark.cli.sinks import add_sinks, run_sinks
from floodmark.errors import FloodmarkError


def main(argv: Sequence[str] | None = None, *, now: int | None = None) -> int:
    """Run a command and return its exit code: 0, or 1 after an error; a wrong command line exits with 2.

    `now` is in microseconds since the epoch; by default it is read from the clock once.

    >>> main(["version"])
    Floodmark ...
    0
    """
    arguments = _parse(sys.argv[1:] if argv is None else list(argv))
    try:
        _COMMANDS[arguments.command](arguments, time_ns() // 1000 if now is None else now)
    except FloodmarkError as error:
        print(f"floodmark: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="floodmark", description="Inspects and maintains the event-time progress of pipelines."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("version", help="show the installed releases")
    why = commands.add_parser(
        "why",
        help="explain a query's watermark: its value, its holder, and what would release it",
        description="Explains a query's watermark: its value, its holder, and what would release it. Starts no Spark.",
    )
    why.add_argument(
        "query", metavar="QUERY", nargs="?", help="name, id, or beginning of an id; without it, list all queries"
    )
    why.add_argument("--home", metavar="DIR", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    why.add_argument("--json", action="store_true", help="print one JSON object")
    add_bindings(commands)
    add_ingest(commands)
    add_origins(commands)
    add_serve(commands)
    add_sinks(commands)
    add_tokens(commands)
    if argv and not argv[0].startswith("-") and argv[0] not in _COMMANDS:
        _refuse_command(parser, argv[0])
    return parser.parse_args(argv)


def _refuse_command(parser: argparse.ArgumentParser, command: str) -> None:
    hint = did_you_mean(command, _COMMANDS, otherwise=f"Commands: {', '.join(_COMMANDS)}.")
    parser.error(f"there is no command {command!r}. {hint}")


def _version(arguments: argparse.Namespace, now: int) -> None:
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "not installed"
    print(f"Floodmark {version('floodmark')}\nPython    {platform.python_version()}\nPySpark   {spark}")


def _why(arguments: argparse.Namespace, now: int) -> None:
    # Imported here: these imports take most of the start-up time, and other commands do not need them.
    from floodmark.cli.why import show_answer, show_queries, why
    from floodmark.control import Home, Queries, WatermarkSteps

    with Home.open_existing(arguments.home) as home:
        queries = Queries(home)
        if arguments.query is None:
            records = queries.all()
            if arguments.json:
                print_json({"now": now, "queries": [asdict(query) for query in records]})
            else:
                show_queries(records, now)
            return
        answer = why(arguments.query, queries, WatermarkSteps(home), now)
    if arguments.json:
        print_json(asdict(answer))
    else:
        show_answer(answer, arguments.query)


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace, int], None]]] = {
    "version": _version,
    "why": _why,
    **dict.fromkeys(("bindings", "holds", "release"), run_bindings),
    "ingest": run_ingest,
    "origins": run_origins,
    "serve": run_serve,
    "sinks": run_sinks,
    **dict.fromkeys(("token", "tokens"), run_tokens),
}
