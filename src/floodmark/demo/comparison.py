"""Runs each case with plain Spark and with Floodmark on the same files, shows progress, and prints the report."""

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from floodmark.demo.cases import DELAY, Case, Comparison, QueryResult, all_cases, judge, write_files
from floodmark.spark.sessions import Setting, session
from floodmark.spark.watermark.dataframes import with_watermark

_CONF: Final[Mapping[str, Setting]] = {
    # The optimizing compiler costs more than it gains in so short a run.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Thirty windows do not need a second state store.
    "spark.sql.shuffle.partitions": 1,
}


def main() -> int:
    """Run the cases, print the report, and return the exit code."""
    began = time.monotonic()
    console = open_console()
    console.print("Starting Spark ...")
    # Spark reports the end of queries late, so stop it before the directory with their home is removed.
    with tempfile.TemporaryDirectory(prefix="floodmark-demo-") as directory:
        spark = session("floodmark-demo", conf=_CONF)
        try:
            comparisons = []
            with ProgressDisplay(console) as display:
                for number, case in enumerate(all_cases(time.time_ns() // 1000)):
                    display.begin(case)
                    comparisons.append(compare(spark, case, Path(directory) / str(number), display.watch))
        finally:
            spark.stop()
    print_report(console, comparisons)
    console.print(f"\nAll of it took {time.monotonic() - began:.0f} seconds.")
    return 0 if all(comparison.floodmark.is_right for comparison in comparisons) else 1


Engine = Literal["plain Spark", "Floodmark"]
ENGINES: Final[tuple[Engine, Engine]] = ("plain Spark", "Floodmark")

QUERY_TIMEOUT: Final = 60.0
"""How many seconds the queries may run. Windows not emitted by then count as missing."""

_POLL: Final = 0.2


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The progress of a query."""

    case: Case
    engine: Engine
    rows_read: int
    windows_emitted: int
    has_ended: bool

    @property
    def has_read_all(self) -> bool:
        """Return whether all rows have been read."""
        return self.rows_read >= self.case.rows

    @property
    def is_done(self) -> bool:
        """Return whether the query needs to run no longer."""
        if self.has_ended or not self.case.takes_time:
            return self.has_ended
        if self.engine == "plain Spark":
            return self.has_read_all
        return self.windows_emitted >= len(self.case.expected)


Watcher = Callable[[QueryStatus], None]


class CountingQuery:
    """A query that counts orders per minute and origin into a memory table."""

    def __init__(self, case: Case, engine: Engine, rows: DataFrame, directory: Path) -> None:
        self.case = case
        self.engine: Engine = engine
        self._spark = rows.sparkSession
        self._table = f"demo_{case.name}_{engine}".replace(" ", "_")
        origin = F.col(case.origin_column)
        counts = rows.groupBy(F.window("t", "1 minute")).agg(
            *(F.count_if(origin == name).alias(name) for name in case.origins)
        )
        writer = (
            counts.select(F.unix_micros("window.start").alias("start"), *case.origins)
            .writeStream.format("memory")
            .queryName(self._table)
            .outputMode("append")
            .option("checkpointLocation", str(directory / self._table))
        )
        self._batches: dict[int, tuple[int, int]] = {}
        trigger = {"processingTime": "100 milliseconds"} if case.takes_time else {"availableNow": True}
        self.query: StreamingQuery = writer.trigger(**trigger).start()

    def read(self) -> QueryStatus:
        """Return the progress of the query, from Spark's reports of its batches."""
        has_ended = not self.query.isActive
        last = self.query.lastProgress
        if last is not None and last.batchId not in self._batches:
            # recentProgress is slow, so it is used only if a batch has been missed.
            is_next = last.batchId == len(self._batches)
            self._batches |= {
                batch.batchId: _batch_counts(batch) for batch in ([last] if is_next else self.query.recentProgress)
            }
        rows = sum(rows for rows, _ in self._batches.values())
        windows = sum(windows for _, windows in self._batches.values())
        return QueryStatus(self.case, self.engine, rows, windows, has_ended)

    def finish(self) -> QueryResult:
        """Stop the query and compare what it has emitted with the expected counts."""
        if self.query.isActive and self.read().has_read_all:
            # Windows closed by the last rows belong to the result.
            self.query.processAllAvailable()
        self.query.stop()
        failure = self.query.exception()
        if failure is not None:
            raise failure
        windows = [row.asDict() for row in self._spark.table(self._table).collect()]
        self._spark.catalog.dropTempView(self._table)
        last = self.query.lastProgress
        reported = last.eventTime.get("watermark") if last is not None else None
        watermark = 0 if reported is None else int(datetime.fromisoformat(reported).timestamp() * 1_000_000)
        return judge(self.case.expected, [(window.pop("start"), window) for window in windows], watermark)


def compare(spark: SparkSession, case: Case, directory: Path, watch: Watcher = lambda status: None) -> Comparison:
    """Write the files of a case into a new directory, run both queries on them, and return both results."""
    frames = _frames(spark, case, directory)
    running: list[CountingQuery] = []
    try:
        for engine, rows in zip(ENGINES, frames, strict=True):
            running.append(CountingQuery(case, engine, rows, directory / "checkpoints"))
        _wait_for(running, watch)
        plain, floodmark = (counting.finish() for counting in running)
    finally:
        for counting in running:
            counting.query.stop()
    why = case.explain(plain, floodmark)
    return Comparison(case.name, plain, floodmark, case.plain_code, case.floodmark_code, why)


def _frames(spark: SparkSession, case: Case, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Write the files of a case and return its orders with Spark's watermark and with Floodmark's."""
    streams = []
    for name, files in case.streams.items():
        write_files(directory / name, files, case.origin_column)
        reader = spark.readStream.schema(f"{case.origin_column} string, t timestamp").option("maxFilesPerTrigger", 1)
        streams.append(reader.parquet(str(directory / name)))
    plain = reduce(DataFrame.union, (stream.withWatermark("t", DELAY) for stream in streams))
    united = reduce(DataFrame.union, streams)
    return plain, with_watermark(united, "t", delay=DELAY, home=directory / "home", **case.options)


def _batch_counts(batch: StreamingQueryProgress) -> tuple[int, int]:
    """Return how many rows a batch has read and how many windows it has emitted."""
    files = [source for source in batch.sources if source.description.startswith("FileStreamSource")]
    return sum(source.numInputRows for source in files), max(0, batch.sink.numOutputRows)


def _wait_for(running: Iterable[CountingQuery], watch: Watcher) -> None:
    deadline = time.monotonic() + QUERY_TIMEOUT
    while True:
        statuses = [counting.read() for counting in running]
        for status in statuses:
            watch(status)
        if all(status.is_done for status in statuses) or time.monotonic() > deadline:
            return
        time.sleep(_POLL)


_LOG_WIDTH: Final = 100
_LEGEND: Final = (
    "Lost: the window closed without the row. Waiting: the window is still open. Rows that only advance time (the last "
    "ones, and the one from the future) are not counted."
)


def open_console() -> Console:
    """Return a console for standard output: in colour on a terminal, plain lines elsewhere."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_LOG_WIDTH)


class ProgressDisplay:
    """Shows a progress bar for each query on a terminal, and one line for each case elsewhere."""

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

    def __enter__(self) -> "ProgressDisplay":
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

    def watch(self, status: QueryStatus) -> None:
        """Show the progress of a query."""
        task = self._tasks.get((status.case.name, status.engine))
        if task is not None:
            self._progress.update(task, completed=status.rows_read, windows=status.windows_emitted)


def print_report(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print the table of all results, and for each case its code and the explanation."""
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
        for engine, result in zip(ENGINES, (comparison.plain, comparison.floodmark), strict=True):
            table.add_row(f"  {engine}", *_figures(result))
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


def _figures(result: QueryResult) -> list[Text]:
    failures = (result.rows_lost, result.rows_waiting), (result.windows_wrong, result.windows_missing)
    rows, windows = ([_failure(count) for count in counts] for counts in failures)
    return [_number(result.rows_in), *rows, _number(result.windows_emitted), *windows]


def _number(count: int) -> Text:
    return Text(f"{count:,}")


def _failure(count: int) -> Text:
    return Text(f"{count:,}", "bold red" if count else "green")
