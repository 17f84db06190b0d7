"""The commands `bindings`, `holds` and `release`: the timestamps of a source and the holds that keep old ones."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from floodmark._util.times import as_utc
from floodmark.cli.output import (
    NO_VALUE,
    as_age,
    as_duration,
    make_console,
    make_table,
    print_facts,
    print_json,
    print_line,
    print_title,
    print_warnings,
    text_cell,
    to_second,
    without_zone,
)
from floodmark.errors import InvalidOption, InvalidValue, UnknownHold

if TYPE_CHECKING:
    from floodmark.bindings import BindingHistory, Bindings, BindingSource, Hold

_SETTINGS: Final = {
    "tick": "the interval at which timestamps are closed, such as '2 seconds'",
    "compaction_window": "how far back timestamps stay readable that nothing holds, such as '30 days', or never",
    "release_after": "how long the owner of a hold may be silent until it is released, such as '2 days', or never",
}

NEWEST_SHOWN: Final = 10
"""How many timestamps of a source are printed; `--json` has all."""


def add_bindings(commands: Any) -> None:
    """Add the commands `bindings`, `holds` and `release` to a parser."""
    bindings = commands.add_parser(
        "bindings", help="show the timestamps that the offsets of a source are bound to, or alter its settings"
    )
    bindings.add_argument(
        "source", metavar="SOURCE", nargs="*", help="the id of a source; without it, list all; `alter SOURCE` alters it"
    )
    bindings.add_argument("--at", metavar="TS", help="show the cut and the watermarks at a timestamp or time")
    for option, text in _SETTINGS.items():
        bindings.add_argument(f"--{option.replace('_', '-')}", metavar="DURATION", help=f"alter: {text}")
    holds = commands.add_parser("holds", help="list the holds that keep old timestamps, and whether they advance")
    holds.add_argument("source", metavar="SOURCE", nargs="?", help="the id of a source; without it, all sources")
    release = commands.add_parser("release", help="release a hold whose owner is gone")
    release.add_argument("source", metavar="SOURCE", help="the id of a source")
    which = release.add_mutually_exclusive_group(required=True)
    which.add_argument("holder", metavar="HOLDER", nargs="?", help="the holder, as `floodmark holds` lists it")
    which.add_argument(
        "--older-than", metavar="AGE", help="release all holds without a heartbeat for this long, such as '2 days'"
    )
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
    given = {name: getattr(arguments, name) for name in _SETTINGS if getattr(arguments, name) is not None}
    names = arguments.source
    if len(names) == 2 and names[0] == "alter" and arguments.at is None:
        _alter(arguments, bindings, given, now)
        return
    if len(names) > 1 or given:
        raise InvalidOption(
            f"The command is `bindings {' '.join([*names, *(f'--{name} ...' for name in given)])}`.",
            rule="It shows one source or all; `bindings alter SOURCE` changes settings of a source.",
            remedy="Write for example: floodmark bindings alter shop/orders --compaction-window '30 days'.",
            option="source",
        )
    arguments.source = names[0] if names else None
    if arguments.source is None:
        sources, holds = bindings.sources(), bindings.holds()
        if arguments.json:
            print_json({"now": now, "sources": [asdict(source) for source in sources], "holds": _holds_as_json(holds)})
        else:
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
        answer = {"source": asdict(source), "pairs": pairs, "watermarks": steps, "holds": _holds_as_json(holds)}
        print_json({"now": now, **answer})
    else:
        show_source(source, history, holds, now)


def _alter(arguments: argparse.Namespace, bindings: "Bindings", given: Mapping[str, str], now: int) -> None:
    if not given:
        raise InvalidOption(
            "No setting is given.",
            rule=f"The settings of a source are {', '.join(_SETTINGS)}.",
            remedy="Set at least one, such as --tick '2 seconds'.",
            option="tick",
        )
    source = bindings.alter(arguments.source[1], **given)
    if arguments.json:
        print_json({"now": now, "source": asdict(source)})
    else:
        console = make_console()
        print_title(console, source.source, text_cell(source.kind))
        print_facts(console, _settings_of(source))


def _settings_of(source: "BindingSource") -> list[tuple[str, str]]:
    window, release = source.compaction_window, source.release_after
    return [
        ("tick", as_duration(source.tick)),
        ("compaction window", "none: all timestamps are kept" if window is None else _duration_text(window)),
        ("release after", "never: holds stay until they are released" if release is None else _duration_text(release)),
    ]


def _bindings_at(arguments: argparse.Namespace, source: "BindingSource", history: "BindingHistory", now: int) -> None:
    ts = parse_timestamp(arguments.at)
    cut, reached, judged_by = history.cut_at(ts), history.watermark_at(ts), history.watermark_before(ts)
    if arguments.json:
        stamps = {"watermarks": reached, "judged_by": judged_by}
        print_json({"now": now, "source": asdict(source), "at": ts, "cut": cut, **stamps})
    else:
        show_cut(source.source, ts, cut, reached, judged_by)


def _holds_command(arguments: argparse.Namespace, bindings: "Bindings", now: int) -> None:
    holds = bindings.holds(arguments.source)
    if arguments.json:
        print_json({"now": now, "holds": _holds_as_json(holds)})
    else:
        show_holds(holds, now)


def _release_command(arguments: argparse.Namespace, bindings: "Bindings", now: int) -> None:
    holds = {hold.holder: hold for hold in bindings.holds(arguments.source)}
    if arguments.older_than is not None:
        released = bindings.release_older_than(arguments.older_than, arguments.source)
    elif bindings.release(arguments.source, arguments.holder):
        released = tuple(hold for hold in holds.values() if hold.holder == arguments.holder)
    else:
        raise UnknownHold(
            f"{arguments.holder!r} has no hold on {arguments.source!r}.",
            rule="Only an existing hold can be released.",
            remedy=f"Name one of its holders: {', '.join(holds)}." if holds else "Nothing to release: it has no holds.",
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
    """Parse a timestamp from the command line: microseconds since the epoch, or a time with its zone.

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
            rule="A timestamp is a number of microseconds since the epoch, or a time with its zone.",
            remedy="Write for example 2026-01-31T12:00:00Z.",
            value=text,
        )
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _holds_as_json(holds: "tuple[Hold, ...]") -> list[dict[str, Any]]:
    return [
        {**asdict(hold), "behind": hold.behind, "is_stalled": hold.is_stalled, "warning": hold.warning}
        for hold in holds
    ]


def show_sources(sources: "Sequence[BindingSource]", holds: "Sequence[Hold]", now: int) -> None:
    """Print all sources with their frontiers, and warnings about stalled holds."""
    console = make_console()
    if not sources:
        print_line(console, "No source has been registered yet.")
        return
    table = make_table("source", "kind", "since (UTC)", "upper (UTC)", "last tick", "holds")
    for source in sources:
        table.add_row(
            text_cell(source.source),
            text_cell(source.kind),
            without_zone(source.since),
            without_zone(source.upper),
            NO_VALUE if source.minted_at is None else as_age(source.minted_at, now),
            str(sum(hold.source == source.source for hold in holds)),
        )
    console.print(table)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])


def show_source(source: "BindingSource", history: "BindingHistory", holds: "Sequence[Hold]", now: int) -> None:
    """Print a source: its settings and frontiers, its holds, and its newest timestamps."""
    console = make_console()
    print_title(console, source.source, text_cell(source.kind))
    facts = [
        ("identity", str(source.identity)),
        ("can be read", f"[{source.since}, {source.upper}): {as_utc(source.since)} to below {as_utc(source.upper)}"),
        *_settings_of(source),
        ("last tick", NO_VALUE if source.minted_at is None else as_age(source.minted_at, now)),
        ("held by", ", ".join(f"{hold.holder} at {hold.ts}" for hold in holds) or "no holds"),
    ]
    print_facts(console, facts)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])
    pairs = history.pairs()
    if not pairs:
        print_line(console, "\nNo offsets have been bound yet.")
        return
    timestamps = sorted({pair.ts for pair in pairs})
    newest = set(timestamps[-NEWEST_SHOWN:])
    table = make_table("timestamp", "(UTC)", "partition", "from", "to below")
    for pair in sorted(pairs, key=lambda pair: (pair.ts, pair.partition)):
        if pair.ts in newest:
            table.add_row(*map(str, (pair.ts, without_zone(pair.ts), pair.partition, pair.first, pair.end)))
    console.print()
    if len(timestamps) > len(newest):
        print_line(console, f"The newest {len(newest)} of {len(timestamps)} timestamps; --json prints all.")
    console.print(table)
    if history.steps:
        _print_watermarks(history.watermarks, "watermarks at the newest")


def show_cut(
    source: str, ts: int, cut: Mapping[int, int], reached: Mapping[str, int], judged_by: Mapping[str, int]
) -> None:
    """Print the cut at a timestamp, the watermarks that decide which of its rows are late, and those it reaches."""
    console = make_console()
    print_title(console, f"{source} at {ts}", as_utc(ts))
    table = make_table("partition", "to below")
    for partition, end in cut.items():
        table.add_row(str(partition), str(end))
    console.print(table)
    _print_watermarks(judged_by, "rows are late below")
    _print_watermarks(reached, "watermarks after it")


def show_holds(holds: "Sequence[Hold]", now: int) -> None:
    """Print holds, with warnings about stalled ones."""
    console = make_console()
    if not holds:
        print_line(console, "There are no holds.")
        return
    table = make_table("source", "holder", "kind", "holds at", "(UTC)", "behind", "last moved", "last heard")
    for hold in holds:
        table.add_row(
            text_cell(hold.source),
            text_cell(hold.holder),
            text_cell(hold.kind),
            str(hold.ts),
            without_zone(hold.ts),
            _duration_text(hold.behind),
            as_age(hold.moved_at, now),
            as_age(hold.heard_at, now),
        )
    console.print(table)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])


def _print_watermarks(watermarks: Mapping[str, int], title: str) -> None:
    text = ", ".join(f"{key} {as_utc(time)}" for key, time in watermarks.items())
    print_facts(make_console(), [(title, text or "none")])


def _duration_text(micros: int) -> str:
    return as_duration(micros if micros < 1_000_000 else to_second(micros))


_COMMANDS: Final = {"bindings": _bindings_command, "holds": _holds_command, "release": _release_command}
