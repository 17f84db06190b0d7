"""Bindings and holds as a person reads them. Import it inside functions."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from floodmark.bindings import BindingHistory, BindingSource, Hold
from floodmark.cli.output import as_age, as_duration, as_utc, to_second
from floodmark.cli.tables import NOTHING, make_console, make_table, print_facts, print_warnings, printable, text_cell

NEWEST_SHOWN: Final = 10
"""How many timestamps a person is shown."""


def show_sources(sources: Sequence[BindingSource], holds: Sequence[Hold], now: int) -> None:
    """Print which sources there are, how far they have come, and who holds them."""
    console = make_console()
    if not sources:
        console.print("No source has been registered yet.", soft_wrap=True)
        return
    table = make_table("source", "kind", "since (UTC)", "upper (UTC)", "last tick", "holds")
    for source in sources:
        table.add_row(
            text_cell(source.source),
            text_cell(source.kind),
            as_utc(source.since).removesuffix(" UTC"),
            as_utc(source.upper).removesuffix(" UTC"),
            NOTHING if source.minted_at is None else as_age(source.minted_at, now),
            str(sum(hold.source == source.source for hold in holds)),
        )
    console.print(table)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])


def show_source(source: BindingSource, history: BindingHistory, holds: Sequence[Hold], now: int) -> None:
    """Print what is bound of a source: its newest timestamps."""
    console = make_console()
    console.print(Text.assemble((printable(source.source), "bold"), f": {printable(source.kind)}"), soft_wrap=True)
    window = (
        "none: everything is kept" if source.compaction_window is None else _duration_text(source.compaction_window)
    )
    facts = [
        ("identity", str(source.identity)),
        ("can be read", f"[{source.since}, {source.upper}): {as_utc(source.since)} to below {as_utc(source.upper)}"),
        ("tick", as_duration(source.tick)),
        ("last tick", NOTHING if source.minted_at is None else as_age(source.minted_at, now)),
        ("compaction window", window),
        ("held by", ", ".join(f"{hold.holder} at {hold.ts}" for hold in holds) or "nobody"),
    ]
    print_facts(console, facts)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])
    pairs = history.pairs()
    if not pairs:
        console.print("\nNothing has been bound yet.", soft_wrap=True)
        return
    timestamps = sorted({pair.ts for pair in pairs})
    newest = set(timestamps[-NEWEST_SHOWN:])
    table = make_table("timestamp", "(UTC)", "partition", "from", "to below")
    for pair in sorted(pairs, key=lambda pair: (pair.ts, pair.partition)):
        if pair.ts in newest:
            table.add_row(*map(str, (pair.ts, _utc(pair.ts), pair.partition, pair.first, pair.end)))
    console.print()
    if len(timestamps) > len(newest):
        console.print(f"The newest {len(newest)} of {len(timestamps)} timestamps; --json has all.", soft_wrap=True)
    console.print(table)
    if history.steps:
        _show_watermarks(history.watermarks, "watermarks there")


def show_cut(
    source: str, ts: int, cut: Mapping[int, int], reached: Mapping[str, int], judged_by: Mapping[str, int]
) -> None:
    """Print how far each partition is bound at a timestamp, and the watermarks."""
    console = make_console()
    title = Text.assemble((printable(source), "bold"), f" at {ts}: {as_utc(ts)}")
    console.print(title, soft_wrap=True)
    table = make_table("partition", "to below")
    for partition, end in cut.items():
        table.add_row(str(partition), str(end))
    console.print(table)
    _show_watermarks(judged_by, "rows there are judged by")
    _show_watermarks(reached, "watermarks after it")


def show_holds(holds: Sequence[Hold], now: int) -> None:
    """Print who holds what."""
    console = make_console()
    if not holds:
        console.print("Nobody holds anything.", soft_wrap=True)
        return
    table = make_table("source", "holder", "kind", "holds at", "(UTC)", "behind", "last moved", "last heard")
    for hold in holds:
        table.add_row(
            text_cell(hold.source),
            text_cell(hold.holder),
            text_cell(hold.kind),
            str(hold.ts),
            _utc(hold.ts),
            _duration_text(hold.behind),
            as_age(hold.moved_at, now),
            as_age(hold.heard_at, now),
        )
    console.print(table)
    print_warnings(console, [hold.warning for hold in holds if hold.warning is not None])


def _show_watermarks(watermarks: Mapping[str, int], title: str) -> None:
    told = ", ".join(f"{key} {as_utc(time)}" for key, time in watermarks.items())
    print_facts(make_console(), [(title, told or "none")])


def _utc(ts: int) -> str:
    return as_utc(ts).removesuffix(" UTC")


def _duration_text(micros: int) -> str:
    return as_duration(micros if micros < 1_000_000 else to_second(micros))
