"""The command `sinks`: list, explain or drop the sinks that queries write to exactly once."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from floodmark._util.times import as_utc
from floodmark.cli.output import (
    NO_VALUE,
    as_age,
    make_console,
    make_table,
    print_json,
    print_line,
    text_cell,
    without_zone,
)

if TYPE_CHECKING:
    from floodmark.sinks import SinkInfo, Sinks


def add_sinks(commands: Any) -> None:
    """Add the command `sinks` to a parser."""
    sinks = commands.add_parser(
        "sinks",
        help="list the sinks that queries write to exactly once, explain one, or drop it",
        description="Lists the sinks that queries write to exactly once. Reads only the home: no Spark, no Kafka.",
    )
    sinks.add_argument("sink", metavar="SINK", nargs="?", help="the name of a sink; without it, list all")
    sinks.add_argument(
        "--drop", action="store_true", help="delete the sink's record and release its holds; written rows stay"
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
            holds = sinks.holds(arguments.sink)
            sinks.drop(arguments.sink)
            if arguments.json:
                print_json({"now": now, "dropped": arguments.sink, "released": [asdict(hold) for hold in holds]})
            else:
                print(f"Dropped: {arguments.sink}. The rows it has written stay.")
                for hold in holds:
                    print(f"Released: its hold on {hold.source} at {as_utc(hold.ts)}.")
        else:
            sentences, info = sinks.explain(arguments.sink), sinks.get(arguments.sink)
            if arguments.json:
                print_json({"now": now, "sink": _sink_as_json(info), "explained": list(sentences)})
            else:
                print(*sentences, sep="\n")


def _list_sinks(sinks: "Sinks", now: int, *, as_json: bool) -> None:
    infos = sinks.all()
    if as_json:
        print_json({"now": now, "sinks": [_sink_as_json(info) for info in infos]})
    else:
        show_sinks(infos, now)


def _sink_as_json(info: "SinkInfo") -> dict[str, Any]:
    fields = asdict(info)
    fields["progress"] = None if info.progress is None else json.loads(info.progress.save())
    return fields


def show_sinks(sinks: "Sequence[SinkInfo]", now: int) -> None:
    """Print all sinks with their progress."""
    console = make_console()
    if not sinks:
        print_line(console, "No query has written to an exactly-once sink yet.")
        return
    table = make_table("sink", "target", "mode", "rows", "written up to (UTC)", "last mark (UTC)", "last written")
    for sink in sinks:
        progress = sink.progress
        ends = [] if progress is None else [end.ts for end in progress.ends.values() if end.ts is not None]
        marks = [] if progress is None else [mark.time for mark in progress.marks.values()]
        table.add_row(
            text_cell(sink.name),
            text_cell(sink.target),
            text_cell(sink.mode),
            str(0 if progress is None else progress.total),
            without_zone(min(ends)) if ends else NO_VALUE,
            without_zone(min(marks)) if marks else NO_VALUE,
            NO_VALUE if progress is None else as_age(sink.updated_at, now),
        )
    console.print(table)
