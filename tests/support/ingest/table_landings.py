"""Jobs that land in tables, without Spark: a source of Python rows, and tasks that run in this process."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from floodmark.control import Home
from floodmark.delta import DeltaCommits
from floodmark.errors import FloodmarkError
from floodmark.ingest import (
    Bound,
    Grid,
    Ingestion,
    Job,
    Landing,
    LandingResult,
    Limits,
    PlannedRange,
    Range,
    Run,
    RunResult,
    SqlSource,
    TimeWatermark,
    UnitWatermark,
    run_job,
)
from floodmark.ingest.landing.parquet import KeptRows, write_rows
from floodmark.ingest.landing.table import TableLanding
from floodmark.ingest.landing.tasks import Destination, LiveFile, MergeRequest, MergeResult, Scope, StagedRows
from floodmark.testing import ManualClock

DAY = 86_400_000_000
TTL = 1_000_000
FIRST = 18_262 * DAY  # 2020-01-01
COLUMNS = {"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "note": pa.string()}


def table_job(path: Path, days: int = 4, *, units: Sequence[str] | None = None, **target: Any) -> Job:
    """Return a job that reads `days` days from 2020-01-01 on, a cell each."""
    times = TimeWatermark(
        "at", Bound.parse("2020-01-01", "UTC"), Bound.parse(f"2020-01-{days + 1:02}", "UTC"), Grid.plain("daily")
    )
    return Job(
        target.pop("name", "orders"),
        "UTC",
        times,
        None if units is None else UnitWatermark.listed("shop", units),
        source=SqlSource(url="sqlite:///none", table="orders", watermark="at"),
        target=Landing(target.pop("mode", "replace"), path=str(path), **target),
        limits=Limits(attempts=None),
    )


@dataclass
class Rows:
    """A source whose rows a test may change, and tasks that read it here."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: Mapping[str, pa.DataType] = field(default_factory=lambda: dict(COLUMNS))
    fails: Callable[[PlannedRange], Exception | None] = lambda row: None
    before_write: Callable[[PlannedRange], None] = lambda row: None
    kept: list[int] = field(default_factory=list)
    """How many files were written anew, each time."""
    asked: list[PlannedRange] = field(default_factory=list)

    def read(self, row: PlannedRange) -> Iterator[pa.RecordBatch]:
        fields = row.unit.fields
        found = [
            one
            for one in self.rows
            if row.range.lo <= one["at"] < row.range.hi and all(one[name] == value for name, value in fields.items())
        ]
        schema = pa.schema(list(self.columns.items()))
        for one in (found[:2], found[2:]):
            yield pa.RecordBatch.from_pylist([{name: row.get(name) for name in self.columns} for row in one], schema)

    def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
        self.asked.append(row)
        if (error := self.fails(row)) is not None:
            raise error
        staged = write_rows(self.read(row), to, "new")
        self.before_write(row)
        return staged

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
        self.kept.append(len(files))
        assert to.schema is not None
        done = [write_rows(KeptRows(one, scope, to.schema).read(), to, f"kept{n}") for n, one in enumerate(files)]
        return StagedRows(tuple(file for one in done for file in one.files), to.schema)

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        raise NotImplementedError("see the tests on Spark")


@dataclass
class LocalExecutor:
    """Lands in a table, with tasks that run here."""

    landing: TableLanding

    def prepare(self, run: Run) -> None:
        self.landing.prepare(run)

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        return self.landing.land(run, row)

    def finish(self, run: Run) -> None: ...

    def close(self) -> None: ...


def landing_of(
    home: Home, job: Job, source: Rows, failpoint: Callable[[str], None] = lambda place: None
) -> LocalExecutor:
    """Return who lands for a job."""
    return LocalExecutor(TableLanding(home, job, source, unit_columns={}, zone="UTC", failpoint=failpoint))


def land(home: Home, job: Job, source: Rows, **options: Any) -> RunResult:
    """Run a job, and return what became of it."""
    executor = landing_of(home, job, source, options.pop("failpoint", lambda place: None))
    return run_job(Ingestion(home), job, executor, owner="here", **options)


def order(number: int, day: float, note: str = "", **more: Any) -> dict[str, Any]:
    """Return a row of a day."""
    return {"id": number, "at": FIRST + int(day * DAY), "note": note, **more}


def table_rows(path: Path, query: str = "SELECT id, note FROM t ORDER BY id, note") -> list[tuple[Any, ...]]:
    """Return what another reader finds in a table."""
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all())
    return [tuple(row.values()) for row in found.to_pylist()]


def days(first: float, last: float) -> Range:
    """Return a range of days from 2020-01-01 on."""
    return Range(FIRST + int(first * DAY), FIRST + int(last * DAY))


def gridded(job: Job, grid: str) -> Job:
    """Return a job with other cells."""
    return replace(job, time=replace(job.time, grid=Grid.plain(grid)))


def orders(note: str = "", count: int = 16) -> list[dict[str, Any]]:
    """Return rows, four a day."""
    return [order(n, n / 4, note) for n in range(count)]


def numbers(path: Path) -> list[int]:
    """Return the ids of a table's rows."""
    return [number for number, _ in table_rows(path)]


def begun(home: Home, job: Job, source: Rows, *, at: Callable[[str], None] = lambda place: None) -> tuple[Any, Run]:
    """Return a run that has prepared, and who lands for it."""
    run = Ingestion(home).start(job, owner="begun", ttl=TTL)
    executor = landing_of(home, job, source, at)
    executor.prepare(run)
    return executor, run


def lost(home: Home, clock: ManualClock, job: Job, source: Rows, *rows: int) -> tuple[Any, Run]:
    """Land some rows of a plan, and record nothing of it."""
    executor, run = begun(home, job, source)
    for row in rows:
        executor.land(run, run.plan.rows[row])
    clock.advance(2 * TTL)
    return executor, run


def once(place: str, error: BaseException) -> Callable[[str], None]:
    """Return a failpoint that raises an error, the first time."""
    left = [error]

    def fail(where: str) -> None:
        if where == place and left:
            raise left.pop()

    return fail


def nothing_is_left(path: Path) -> None:
    """Claim that there is no file which the table has never had, and no note of an attempt."""
    lines = [line for log in path.glob("_delta_log/*.json") for line in log.read_text().splitlines()]
    named = {path / unquote(one["add"]["path"]) for one in map(json.loads, lines) if "add" in one}
    assert set(path.rglob("*.parquet")) == named
    assert not list((path / "_floodmark").rglob("*/*"))
    assert all(any(one in file.parents for file in named) for one in path.glob("floodmark-*"))


def lose_answer(patch: pytest.MonkeyPatch, error: type[FloodmarkError], *, is_made: bool, blind: bool = False) -> None:
    """Let the next commit end in an error, whether it was made or not; and let nobody look, if it is blind."""
    commit, reload = DeltaCommits.commit, DeltaCommits.reload
    failed = error("The answer is lost.", rule="None.", remedy="None.")

    def unanswered(table: DeltaCommits, *given: Any, **more: Any) -> None:
        patch.setattr(DeltaCommits, "commit", commit)
        if blind:
            patch.setattr(DeltaCommits, "reload", away)
        seen = table._table
        if is_made:
            DeltaCommits(DeltaTable(str(table.path)), table.path, table._app).commit(*given, **more)
        table._table = seen
        raise failed

    def away(table: DeltaCommits) -> None:
        patch.setattr(DeltaCommits, "reload", reload)
        raise failed

    patch.setattr(DeltaCommits, "commit", unanswered)


def main(place: str, rows: str, name: str, mode: str) -> None:
    """Run a job, and die at a failpoint when it is met for the second time."""
    source = Rows([json.loads(line) for line in Path(rows).read_text().splitlines()])
    met = 0

    def die(where: str) -> None:
        nonlocal met
        met += where == name
        if met == (1 if name == "begun" else 2):
            os.kill(os.getpid(), signal.SIGKILL)

    with Home.open(Path(place) / "home") as home:
        result = land(home, table_job(Path(place) / "table", mode=mode), source, workers=2, failpoint=die, ttl=300_000)
    print(json.dumps({"succeeded": result.succeeded, "failed": result.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
