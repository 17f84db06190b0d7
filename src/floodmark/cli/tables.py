"""Tables, facts and warnings on a terminal: plain text, with some colour. Loads rich: import it inside functions."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

_STATE_STYLES = {"active": "green", "running": "green", "idle": "yellow", "failed": "bold red"}
NOTHING = "-"
"""What stands where there is no value."""


def make_console() -> Console:
    """Return a console on standard output; without a terminal, lines are not wrapped."""
    # A pipe has no width; what reads it wants whole lines.
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 1000)


def make_table(*headings: str) -> Table:
    """Return an empty table with these columns."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, one a line."""
    for name, value in facts:
        console.print(Text.assemble((f"  {name}: ", "dim"), printable(value)), soft_wrap=True)


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print warnings, one a line."""
    for warning in warnings:
        console.print(Text.assemble(("  warning: ", "yellow"), printable(warning)), soft_wrap=True)


def state_cell(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, _STATE_STYLES.get(state, ""))


def text_cell(value: object) -> Text:
    """Return a value as text that is safe to print; None is a dash."""
    return Text(NOTHING if value is None else printable(str(value)))


def printable(text: str) -> str:
    """Return the text without what would steer a terminal or break a line: names come from data."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
