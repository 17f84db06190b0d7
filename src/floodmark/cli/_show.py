"""The answers as a person reads them: plain text, with some colour where the output is a terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from floodmark.cli._answer import Answer, ColumnAnswer, OriginAnswer
from floodmark.cli._times import as_age, as_clock, as_utc, to_second
from floodmark.control import QueryRecord

_STATE_STYLES = {"active": "green", "running": "green", "idle": "yellow", "failed": "bold red"}
_NOTHING = "-"


def show_answer(answer: Answer) -> None:
    """Print the answer to "why?" for one query."""
    console, query, now = _console(), answer.query, answer.now
    title = Text.assemble((_printable(query.name or query.query_id), "bold"), ": ", _state(query.state))
    console.print(title, soft_wrap=True)
    facts = [
        ("id", query.query_id),
        ("last batch", _NOTHING if query.batch_id < 0 else str(query.batch_id)),
        ("last heard", f"{as_age(query.updated_at, now)} ({as_utc(to_second(query.updated_at))})"),
        ("Spark's watermark", _spark_watermark(query)),
    ]
    if query.error:
        # Spark's errors go on with the trace of the JVM.
        facts.append(("error", query.error.splitlines()[0]))
    _print_facts(console, facts)
    _print_warnings(console, query.warnings)
    if not answer.columns:
        console.print("\nNo column of this query has a watermark of Floodmark's.", soft_wrap=True)
    for column in answer.columns:
        _print_column(console, column, now)


def show_queries(queries: Sequence[QueryRecord], now: int) -> None:
    """Print which queries there are, the one heard of last first."""
    console = _console()
    if not queries:
        console.print("No query has been heard of yet.", soft_wrap=True)
        return
    table = _table("query", "state", "last batch", "last heard", "id")
    for query in queries:
        table.add_row(
            _cell(query.name),
            _state(query.state),
            _NOTHING if query.batch_id < 0 else str(query.batch_id),
            as_age(query.updated_at, now),
            _cell(query.query_id),
        )
    console.print(table)


def _print_column(console: Console, column: ColumnAnswer, now: int) -> None:
    stands = "no watermark yet" if column.watermark is None else f"{as_utc(column.watermark)} ({column.watermark})"
    console.print()
    console.print(Text.assemble((_printable(column.column), "bold"), f": {stands}"), soft_wrap=True)
    if column.seq is not None:
        facts = [("held by", _held_by(column, now))]
        if column.lacking:
            facts.append(("never here", f"{_joined(column.lacking)} (though on other columns)"))
        if column.future_rows:
            rows = _count(column.future_rows, "newest", column.newest_future, now)
            facts.append(("rows from the future", f"{rows} (since batch {column.counted_since_batch})"))
        if column.spark_dropped:
            counted = f"{column.spark_dropped} rows, or groups of rows where it groups first"
            facts.append(("dropped by Spark", f"{counted} (since batch {column.counted_since_batch})"))
        _print_facts(console, facts)
    _print_warnings(console, column.warnings)
    if column.origins:
        console.print(_origins(column, now))
    console.print(_printable(column.release), style="bold", markup=False, highlight=False, soft_wrap=True)


def _held_by(column: ColumnAnswer, now: int) -> str:
    if column.is_idle:
        return "nobody: all origins are idle"
    if not column.holders:
        return "nobody"
    since = column.held_since
    return _joined(column.holders) + (
        "" if since is None else f", since {as_clock(to_second(since), now)} ({as_age(since, now)})"
    )


def _origins(column: ColumnAnswer, now: int) -> Table:
    has_future = any(origin.future_rows for origin in column.origins)
    headings = ["", "origin", "stands at (UTC)", "state", "last heard"]
    if has_future:
        headings.append("from the future")
    has_late = any(origin.late_rows is not None for origin in column.origins)
    if has_late:
        headings.append(f"late since batch {column.counted_since_batch}")
    table = _table(*headings)
    for origin in column.origins:
        cells: list[str | Text] = [
            "*" if origin.holds else "",
            _cell(origin.name),
            _NOTHING if origin.watermark is None else as_clock(origin.watermark, now),
            _origin_state(origin, now),
            _NOTHING if origin.last_heard is None else as_age(origin.last_heard, now),
        ]
        if has_future:
            cells.append(_count(origin.future_rows, "newest", origin.newest_future, now))
        if has_late:
            cells.append(_count(origin.late_rows, "oldest", origin.oldest_late, now))
        table.add_row(*cells)
    return table


def _origin_state(origin: OriginAnswer, now: int) -> Text:
    text = _state(origin.state)
    if origin.state == "idle" and origin.idle_cause is not None:
        text.append(f" ({origin.idle_cause})")
    if origin.state != "active" and origin.in_state_since is not None:
        text.append(f" {as_age(origin.in_state_since, now)}")
    if origin.left_out:
        text.append(", left out until it has caught up")
    return text


def _count(rows: int | None, which: str, time: int | None, now: int) -> str:
    if not rows:
        return _NOTHING if rows is None else "0"
    return str(rows) if time is None else f"{rows}, {which} {as_clock(time, now)}"


def _spark_watermark(query: QueryRecord) -> str:
    return _NOTHING if query.spark_watermark is None else as_utc(query.spark_watermark * 1000)


def _console() -> Console:
    # A pipe has no width; what reads it wants whole lines.
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 1000)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    for name, value in facts:
        console.print(Text.assemble((f"  {name}: ", "dim"), _printable(value)), soft_wrap=True)


def _print_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.print(Text.assemble(("  warning: ", "yellow"), _printable(warning)), soft_wrap=True)


def _state(state: str) -> Text:
    return Text(state, _STATE_STYLES.get(state, ""))


def _cell(value: object) -> Text:
    return Text(_NOTHING if value is None else _printable(str(value)))


def _joined(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _printable(text: str) -> str:
    """Return the text without what would steer a terminal or break a line: names come from data."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
