"""The command about sinks: who writes where, how far that is, and how to let one go."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from floodmark.cli.output import print_json

if TYPE_CHECKING:
    from floodmark.sinks import SinkInfo, Sinks


def add_sinks(commands: Any) -> None:
    """Add the command `sinks` to a parser."""
    sinks = commands.add_parser(
        "sinks",
        help="show what queries have written exactly once, explain one of them, or drop it",
        description="Shows what queries have written exactly once. Asks only the home: no Spark, no Kafka.",
    )
    sinks.add_argument("sink", metavar="SINK", nargs="?", help="the name of a sink; without it, a list")
    sinks.add_argument(
        "--drop", action="store_true", help="forget the sink and release what it holds; what it has written stays"
    )
    sinks.add_argument("--home", metavar="DIR", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    sinks.add_argument("--json", action="store_true", help="print one JSON object")


def run_sinks(arguments: argparse.Namespace, now: int) -> None:
    """Run the command."""
    from floodmark.control import Home
    from floodmark.sinks import Sinks

    with Home.open_existing(arguments.home) as home:
        sinks = Sinks(home)
        if arguments.sink is None:
            _list_sinks(sinks, now, as_json=arguments.json)
        elif arguments.drop:
            held = sinks.holds(arguments.sink)
            sinks.drop(arguments.sink)
            if arguments.json:
                print_json({"now": now, "dropped": arguments.sink, "released": [asdict(hold) for hold in held]})
            else:
                print(f"Dropped: {arguments.sink}. What it has written stays.")
                for hold in held:
                    print(f"Released: {hold.source}, which it held at {hold.ts}.")
        else:
            said, info = sinks.explain(arguments.sink), sinks.get(arguments.sink)
            if arguments.json:
                print_json({"now": now, "sink": _sink_as_json(info), "explained": list(said)})
            else:
                print(*said, sep="\n")


def _list_sinks(sinks: "Sinks", now: int, *, as_json: bool) -> None:
    known = sinks.all()
    if as_json:
        print_json({"now": now, "sinks": [_sink_as_json(info) for info in known]})
    else:
        from floodmark.cli.sinks_text import show_sinks

        show_sinks(known, now)


def _sink_as_json(info: "SinkInfo") -> dict[str, Any]:
    saved = asdict(info)
    saved["progress"] = None if info.progress is None else json.loads(info.progress.save())
    return saved
