"""The commands about bindings: which timestamps there are, who keeps the old ones, and how to let them go."""

import argparse
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from floodmark.cli.output import print_json
from floodmark.errors import InvalidValue, UnknownHold

if TYPE_CHECKING:
    from floodmark.bindings import BindingHistory, Bindings, BindingSource, Hold


def add_bindings(commands: Any) -> None:
    """Add the commands `bindings`, `holds` and `release` to a parser."""
    bindings = commands.add_parser("bindings", help="show which timestamps the offsets of a source have")
    bindings.add_argument("source", metavar="SOURCE", nargs="?", help="the id of a source; without it, a list")
    bindings.add_argument("--at", metavar="TS", help="show the cut and the watermarks at a timestamp, or at a time")
    holds = commands.add_parser("holds", help="show who keeps old timestamps, and whether they move on")
    holds.add_argument("source", metavar="SOURCE", nargs="?", help="the id of a source; without it, all of them")
    release = commands.add_parser("release", help="let go of a hold whose owner is gone")
    release.add_argument("source", metavar="SOURCE", help="the id of a source")
    which = release.add_mutually_exclusive_group(required=True)
    which.add_argument("holder", metavar="HOLDER", nargs="?", help="who holds, as `floodmark holds` shows it")
    which.add_argument("--older-than", metavar="AGE", help="all who were silent for so long, such as '2 days'")
    for parser in (bindings, holds, release):
        parser.add_argument("--home", metavar="DIR", help="the home (default: $FLOODMARK_HOME, else .floodmark)")
        parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_bindings(arguments: argparse.Namespace, now: int) -> None:
    """Run one of these commands."""
    from floodmark.bindings import Bindings
    from floodmark.control import Home

    with Home.open_existing(arguments.home) as home:
        _COMMANDS[arguments.command](arguments, Bindings(home), now)


def _bindings_command(arguments: argparse.Namespace, bindings: "Bindings", now: int) -> None:
    if arguments.source is None:
        sources, holds = bindings.sources(), bindings.holds()
        if arguments.json:
            print_json({"now": now, "sources": [asdict(source) for source in sources], "holds": _holds_as_json(holds)})
        else:
            from floodmark.cli.bindings_text import show_sources

            show_sources(sources, holds, now)
        return
    source, history = bindings.source(arguments.source), bindings.history(arguments.source)
    if arguments.at is not None:
        _bindings_at(arguments, source, history, now)
        return
    holds = bindings.holds(arguments.source)
    if arguments.json:
        steps = [
            {"key": key, "ts": ts, "watermark": watermark}
            for key, column in sorted(history.steps.items())
            for ts, watermark in zip(column.ts.tolist(), column.values.tolist(), strict=True)
        ]
        pairs = [pair._asdict() for pair in history.pairs()]
        known = {"source": asdict(source), "pairs": pairs, "watermarks": steps, "holds": _holds_as_json(holds)}
        print_json({"now": now, **known})
    else:
        from floodmark.cli.bindings_text import show_source

        show_source(source, history, holds, now)


def _bindings_at(arguments: argparse.Namespace, source: "BindingSource", history: "BindingHistory", now: int) -> None:
    ts = parse_timestamp(arguments.at)
    cut, reached, judged_by = history.cut_at(ts), history.watermark_at(ts), history.watermark_before(ts)
    if arguments.json:
        stamps = {"watermarks": reached, "judged_by": judged_by}
        print_json({"now": now, "source": asdict(source), "at": ts, "cut": cut, **stamps})
    else:
        from floodmark.cli.bindings_text import show_cut

        show_cut(source.source, ts, cut, reached, judged_by)


def _holds_command(arguments: argparse.Namespace, bindings: "Bindings", now: int) -> None:
    holds = bindings.holds(arguments.source)
    if arguments.json:
        print_json({"now": now, "holds": _holds_as_json(holds)})
    else:
        from floodmark.cli.bindings_text import show_holds

        show_holds(holds, now)


def _release_command(arguments: argparse.Namespace, bindings: "Bindings", now: int) -> None:
    known = {hold.holder: hold for hold in bindings.holds(arguments.source)}
    if arguments.older_than is not None:
        released = bindings.release_older_than(arguments.older_than, arguments.source)
    elif bindings.release(arguments.source, arguments.holder):
        released = tuple(hold for hold in known.values() if hold.holder == arguments.holder)
    else:
        raise UnknownHold(
            f"{arguments.holder!r} holds nothing of {arguments.source!r}.",
            rule="What is released is held.",
            remedy=f"Those who hold are: {', '.join(known)}." if known else "Nobody holds anything of it.",
            source=arguments.source,
            holder=arguments.holder,
        )
    if arguments.json:
        print_json({"now": now, "released": _holds_as_json(released)})
        return
    for hold in released:
        print(f"Released: {hold.holder}, which held {hold.source} at {hold.ts}.")
    if not released:
        print("No hold is that old.")


def parse_timestamp(text: str) -> int:
    """Return a timestamp that somebody typed: a number, or a time with its zone.

    >>> (
    ...     parse_timestamp("1500000"),
    ...     parse_timestamp("1970-01-01T00:00:01.5Z"),
    ...     parse_timestamp("1970-01-01 01:00:01.5+01:00"),
    ... )
    (1500000, 1500000, 1500000)
    >>> parse_timestamp("yesterday")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The timestamp is 'yesterday'. ... [invalid-value]
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue(
            f"The timestamp is {text!r}.",
            rule="It is a number of microseconds since the epoch, or a time with its zone.",
            remedy="Write for example 2026-01-31T12:00:00Z.",
            value=text,
        )
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _holds_as_json(holds: "tuple[Hold, ...]") -> list[dict[str, Any]]:
    return [
        {**asdict(hold), "behind": hold.behind, "is_stalled": hold.is_stalled, "warning": hold.warning}
        for hold in holds
    ]


_COMMANDS: Final = {"bindings": _bindings_command, "holds": _holds_command, "release": _release_command}
