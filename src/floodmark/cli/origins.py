"""The command `origins`: list the origins of a query's watermark, or decide which of them it waits for."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from floodmark._util.text import did_you_mean
from floodmark.cli.output import make_console, print_json, print_line, print_title, print_warnings, printable
from floodmark.errors import AmbiguousOrigin, InvalidOption, UnknownOrigin

if TYPE_CHECKING:
    from floodmark.cli.why import ColumnAnswer, OriginAnswer, QueryAnswer
    from floodmark.control import OriginDecision
    from floodmark.progress import OriginAction

_ACTIONS = {
    "idle": "do not wait for the origin until its next row",
    "finish": "do not wait for it, and ignore its rows: it has ended",
    "remove": "do not wait for it, and forget it: after its next row it is a new origin",
    "revive": "wait for it again, before its next row",
}


def add_origins(commands: Any) -> None:
    """Add the command `origins` to a parser."""
    origins = commands.add_parser(
        "origins",
        help="list the origins that a query's watermark waits for, or decide about one",
        description="Lists the origins of a query over with_watermark, or decides about some of them.\n"
        "The running query carries a decision out at its next batch, and keeps to it after restarts. Starts no Spark.",
        epilog="actions:\n" + "\n".join(f"  {action:7} {meaning}" for action, meaning in _ACTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    origins.add_argument("query", metavar="QUERY", help="name, id, or beginning of an id")
    origins.add_argument(
        "action", metavar="ACTION", nargs="?", choices=list(_ACTIONS), help=f"one of {', '.join(_ACTIONS)}"
    )
    origins.add_argument("origins", metavar="ORIGIN", nargs="*", help="name of an origin as listed, or its id")
    origins.add_argument(
        "--column",
        metavar="COLUMN",
        help="the event-time column, or its incarnation; needed if several have the origin",
    )
    origins.add_argument("--home", metavar="DIR", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
    origins.add_argument("--json", action="store_true", help="print one JSON object")


def run_origins(arguments: argparse.Namespace, now: int) -> None:
    """Run the command."""
    from floodmark.cli.why import why
    from floodmark.control import Home, Queries, WatermarkSteps

    with Home.open_existing(arguments.home) as home:
        steps = WatermarkSteps(home)
        answer = why(arguments.query, Queries(home), steps, now)
        if arguments.action is None:
            _list_origins(answer, as_json=arguments.json)
            return
        if not arguments.origins:
            raise InvalidOption(
                f"No origin is named after {arguments.action!r}.",
                rule="A decision is about one or more origins.",
                remedy=f"Name them as `floodmark origins {arguments.query}` lists them.",
                action=arguments.action,
            )
        decisions: list[OriginDecision] = []
        by_incarnation: dict[str, list[tuple[str, str, OriginAction]]] = {}
        for name in arguments.origins:
            column, origin = find_origin(answer.columns, name, arguments.column)
            by_incarnation.setdefault(column.incarnation, []).append(
                (str(origin.origin), origin.name, arguments.action)
            )
        for incarnation, actions in by_incarnation.items():
            decisions += steps.decide(incarnation, actions, "command", now)
    if arguments.json:
        print_json({"now": now, "query_id": answer.query.query_id, "decided": [asdict(one) for one in decisions]})
        return
    when = "when it runs again" if answer.query.has_ended else "at its next batch"
    for decision in decisions:
        print(f"Decided: {decision.action} {printable(decision.name)}. The query carries it out {when}.")


def find_origin(
    columns: "Sequence[ColumnAnswer]", name: str, column: str | None = None
) -> "tuple[ColumnAnswer, OriginAnswer]":
    """Return the only origin with this name or id, and its column; `column` is a column or its incarnation."""
    chosen = [one for one in columns if column is None or column in (one.column, one.incarnation)]
    matches = [(one, origin) for one in chosen for origin in one.origins if name in (origin.name, str(origin.origin))]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        names = [origin.name for one in chosen for origin in one.origins]
        fact = f"There is no origin {name!r}" + ("." if column is None else f" of the column {column!r}.")
        raise UnknownOrigin(
            fact,
            rule="An origin is known from its first row on, or from its declaration in origins=[...].",
            remedy=did_you_mean(name, names, otherwise="Use a name or an id that `floodmark origins QUERY` lists."),
            origin=name,
            column=column,
        )
    places = ", ".join(f"{origin.origin} of {one.column} ({one.incarnation})" for one, origin in matches)
    raise AmbiguousOrigin(
        f"{len(matches)} origins are called {name!r}: {places}.",
        rule="A decision is about one origin of one column.",
        remedy="Pass --column with the column, or with the incarnation in brackets, or use the id of the origin.",
        origin=name,
        column=column,
    )


def _list_origins(answer: "QueryAnswer", *, as_json: bool) -> None:
    if as_json:
        columns = [
            {
                "column": column.column,
                "incarnation": column.incarnation,
                "watermark": column.watermark,
                "warnings": list(column.warnings),
                "origins": [asdict(origin) for origin in column.origins],
            }
            for column in answer.columns
        ]
        print_json({"now": answer.now, "query_id": answer.query.query_id, "columns": columns})
        return
    from floodmark._util.times import as_utc
    from floodmark.cli.why import origins_table

    console = make_console()
    if not answer.columns:
        print_line(console, "No column of this query has a Floodmark watermark.")
    for column in answer.columns:
        watermark = "no watermark yet" if column.watermark is None else as_utc(column.watermark)
        print_title(console, column.column, watermark)
        print_warnings(console, column.warnings)
        if column.origins:
            console.print(origins_table(column, answer.now))
        else:
            print_line(console, "No origin has sent a row yet.")
