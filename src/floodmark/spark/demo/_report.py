"""What a person sees: how far the queries are while they run, and at last the table and the reasons."""

from collections.abc import Sequence
from types import TracebackType
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from floodmark.spark.demo._cases import Case
from floodmark.spark.demo._outcome import Comparison, Outcome
from floodmark.spark.demo._run import ENGINES, Engine, Reading

_WIDTH_OF_A_LOG: Final = 100
_LEGEND: Final = (
    "Lost: the window closed without the row. Waiting: the window is still open. Not in the table: the rows that only "
    "move time, at the very end and from the future."
)


def console_for_people() -> Console:
    """Return a console that writes to standard output: in colour on a terminal, plain lines elsewhere."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_A_LOG)


class Display:
    """A bar for each query where lines can be drawn over, else one line for each case."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[tuple[str, Engine], TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            TextColumn("{task.completed:>6,.0f} rows, {task.fields[windows]:>2} windows"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, case: Case) -> None:
        """Show that a case begins."""
        if self._progress.disable:
            self._console.print(f"{case.name}: {' and '.join(ENGINES)} read {case.rows:,} rows each ...")
            return
        for engine in ENGINES:
            description = f"{case.name}, {engine}"
            self._tasks[case.name, engine] = self._progress.add_task(description, total=case.rows, windows=0)

    def watch(self, reading: Reading) -> None:
        """Show how far a query is."""
        task = self._tasks.get((reading.case.name, reading.engine))
        if task is not None:
            self._progress.update(task, completed=reading.rows_read, windows=reading.windows_emitted)


def report(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print the table of all outcomes, and for each case how it was written and why it came out so."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in (
        "rows\nin",
        "rows\nlost",
        "rows\nwaiting",
        "windows\nemitted",
        "windows\nwrong",
        "windows\nmissing",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        table.add_row(Text(comparison.case, "bold"))
        for engine, outcome in zip(ENGINES, (comparison.plain, comparison.floodmark), strict=True):
            table.add_row(f"  {engine}", *_figures(outcome))
        table.add_section()
    console.print()
    console.print(table)
    console.print(Text(_LEGEND, "dim"))
    for comparison in comparisons:
        console.print()
        console.print(Text(comparison.case, "bold"))
        console.print(Text(f"  {ENGINES[0]:12} {comparison.plain_code}", "dim"), soft_wrap=True)
        console.print(Text(f"  {ENGINES[1]:12} {comparison.floodmark_code}", "dim"), soft_wrap=True)
        console.print(Text(comparison.why))


def _figures(outcome: Outcome) -> list[Text]:
    failures = (outcome.rows_lost, outcome.rows_waiting), (outcome.windows_wrong, outcome.windows_missing)
    rows, windows = ([_failure(count) for count in counts] for counts in failures)
    return [_number(outcome.rows_in), *rows, _number(outcome.windows_emitted), *windows]


def _number(count: int) -> Text:
    return Text(f"{count:,}")


def _failure(count: int) -> Text:
    return Text(f"{count:,}", "bold red" if count else "green")
