"""Output of commands: JSON, times and ages in readable form, and tables and facts on a terminal.

Every command imports this module, so it imports rich inside functions.
"""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from floodmark._util.times import as_utc

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def print_json(value: object) -> None:
    """Print one JSON object.

    >>> print_json({"now": 7})
    {
      "now": 7
    }
    """
    print(json.dumps(value, indent=2))


_DURATION_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def without_zone(time: int) -> str:
    """Return a time like `as_utc`, without the suffix: for tables whose heading says UTC.

    >>> without_zone(1_700_000_000_000_000)
    '2023-11-14 22:13:20'
    """
    return as_utc(time).removesuffix(" UTC")


def to_second(time: int) -> int:
    """Return a time rounded down to the second.

    >>> to_second(1_700_000_000_250_000)
    1700000000000000
    """
    return time - time % 1_000_000


def as_clock(time: int, now: int) -> str:
    """Return a time of the current UTC day without its date, any other time with its date.

    >>> as_clock(1_700_000_000_000_000, now=1_700_000_300_000_000)
    '22:13:20'
    """
    day = 86_400_000_000
    text = as_utc(time)
    return text.split(" ")[1] if time // day == now // day and " " in text else text


def as_age(since: int, now: int) -> str:
    """Return the time between `since` and `now` in words.

    >>> as_age(0, 7_000_000), as_age(0, 400_000), as_age(90_000_000, 0)
    ('7 s ago', 'now', 'in 1 min 30 s')
    """
    if abs(now - since) < 1_000_000:
        return "now"
    return f"{as_duration(now - since)} ago" if since <= now else f"in {as_duration(since - now)}"


def as_duration(duration: int) -> str:
    """Return a duration in its two largest units.

    >>> as_duration(3_725_000_000), as_duration(60_000_000), as_duration(250_000)
    ('1 h 2 min', '1 min', '0.25 s')
    """
    seconds = duration // 1_000_000
    if not seconds:
        return f"{duration / 1_000_000:g} s"
    largest = next(index for index, (size, _) in enumerate(_DURATION_UNITS) if seconds >= size)
    terms = []
    for size, unit in _DURATION_UNITS[largest : largest + 2]:
        if count := seconds // size:
            terms.append(f"{count} {unit}")
        seconds %= size
    return " ".join(terms)


_STATE_STYLES: Final = {"active": "green", "running": "green", "idle": "yellow", "failed": "bold red"}
NO_VALUE: Final = "-"
"""Printed where a value is missing."""


def make_console() -> "Console":
    """Return a console on standard output; output to a pipe or file is not wrapped."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 1000)


def make_table(*headings: str) -> "Table":
    """Return an empty table with these columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_line(console: "Console", text: "str | Text") -> None:
    """Print a line as it is: not wrapped to the width of the terminal, and without rich markup."""
    console.print(text, soft_wrap=True, markup=False)


def print_title(console: "Console", name: str, text: "str | Text") -> None:
    """Print a name in bold, a colon, and a text."""
    from rich.text import Text

    print_line(console, Text.assemble((printable(name), "bold"), ": ", text))


def print_facts(console: "Console", facts: Iterable[tuple[str, str]]) -> None:
    """Print `name: value` pairs, one per line."""
    from rich.text import Text

    for name, value in facts:
        print_line(console, Text.assemble((f"  {name}: ", "dim"), printable(value)))


def print_warnings(console: "Console", warnings: Iterable[str]) -> None:
    """Print warnings, one per line."""
    from rich.text import Text

    for warning in warnings:
        print_line(console, Text.assemble(("  warning: ", "yellow"), printable(warning)))


def state_cell(state: str) -> "Text":
    """Return the table cell of a state, in its colour."""
    from rich.text import Text

    return Text(state, _STATE_STYLES.get(state, ""))


def text_cell(value: object) -> "Text":
    """Return the table cell of a value, without control characters; None is a dash."""
    from rich.text import Text

    return Text(NO_VALUE if value is None else printable(str(value)))


def printable(text: str) -> str:
    r"""Return the text with control characters replaced, because names come from data.

    >>> printable("orders\n2") == "orders\N{REPLACEMENT CHARACTER}2"
    True
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
