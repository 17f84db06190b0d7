"""Sinks as a person reads them. Import it inside functions."""

from collections.abc import Sequence

from floodmark.cli.output import as_age, as_utc
from floodmark.cli.tables import NOTHING, make_console, make_table, text_cell
from floodmark.sinks import SinkInfo


def show_sinks(sinks: Sequence[SinkInfo], now: int) -> None:
    """Print which sinks there are, and how far they have written."""
    console = make_console()
    if not sinks:
        console.print("No query has written exactly once yet.", soft_wrap=True)
        return
    table = make_table("sink", "target", "mode", "rows", "written up to (UTC)", "last time told (UTC)", "last written")
    for sink in sinks:
        progress = sink.progress
        ends = [] if progress is None else [end.ts for end in progress.ends.values() if end.ts is not None]
        marks = [] if progress is None else [mark.time for mark in progress.marks.values()]
        table.add_row(
            text_cell(sink.name),
            text_cell(sink.target),
            text_cell(sink.mode),
            str(0 if progress is None else progress.total),
            as_utc(min(ends)).removesuffix(" UTC") if ends else NOTHING,
            as_utc(min(marks)).removesuffix(" UTC") if marks else NOTHING,
            NOTHING if progress is None else as_age(sink.updated_at, now),
        )
    console.print(table)
