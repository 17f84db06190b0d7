"""Claims about a run from its plan to its end, with a real source and a real target in SQLite."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.control import Home
from floodmark.errors import InvalidOption, JobRunning, LeaseLost
from floodmark.ingest import Ingestion, Job, LandingResult, PlannedRange, Run, Secret, read_job, run_job
from floodmark.ingest.ingestion import check_runnable, without_secrets
from support.waiting import wait_until

DAY = 86_400_000_000
NOW = 1_577_836_800_000_000 + 10 * DAY
"""2020-01-11 UTC."""

FILE = """
[job]
name = "orders"
zone = "UTC"
[time]
from = 2020-01-01
to = "P0D"
grid = "daily"
[units]
name = "shop"
list = "north, south"
[source]
kind = "sql"
url = "sqlite:///shop.db"
password = "env:SHOP_PASSWORD"
table = "orders"
watermark = "at"
watermark_type = "epoch-micros"
[target]
mode = "replace"
path = "landed"
"""


class Copying:
    """Copies rows of a range from one SQLite database to another, and replaces what was there."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.failing: set[tuple[str, int]] = set()
        self.lock = threading.Lock()
        self.is_closed = False
        self.prepared = 0
        self.finished: list[int] = []

    def prepare(self, run: Run) -> None:
        self.prepared += 1

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        shop, day = str(row.unit.fields["shop"]), (row.range.lo - (NOW - 10 * DAY)) // DAY
        if (shop, day) in self.failing:
            raise ConnectionError(f"no answer from {shop}, password was hunter2hunter2")
        with (
            closing(sqlite3.connect(self.source)) as source,
            self.lock,
            closing(sqlite3.connect(self.target)) as target,
        ):
            where = "WHERE shop = ? AND at >= ? AND at < ?"
            rows = source.execute(f"SELECT * FROM orders {where}", (shop, *row.range)).fetchall()
            with target:
                target.execute(f"DELETE FROM orders {where}", (shop, *row.range))
                target.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        return LandingResult(len(rows), {0: len(rows)})

    def finish(self, run: Run) -> None:
        self.finished.append(len(run.unrecorded))

    def close(self) -> None:
        self.is_closed = True


def rows_of(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM orders ORDER BY id").fetchall()


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    for name in ("shop.db", "landed.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER, shop TEXT, at INTEGER)")
            if name == "shop.db":
                rows = [(n, ("north", "south")[n % 2], NOW - 10 * DAY + n * DAY // 10) for n in range(100)]
                connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    return Copying(tmp_path / "shop.db", tmp_path / "landed.db")


@pytest.fixture
def job() -> Job:
    return read_job(FILE, environment={"SHOP_PASSWORD": "x"}).job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Ingestion]:
    with Home.open(tmp_path / "home", clock=lambda: NOW) as home:
        yield Ingestion(home)


def test_a_run_lands_all_rows_of_the_source_and_the_next_has_nothing_to_do(
    jobs: Ingestion, job: Job, copying: Copying
) -> None:
    result = run_job(jobs, job, copying, owner="here")
    assert (result.planned, result.succeeded, result.failed, result.rows, result.is_whole) == (20, 20, 0, 100, True)
    assert rows_of(copying.target) == rows_of(copying.source)
    assert jobs.complete_through(job) == NOW
    assert jobs.lateness("orders") == {0: 100}
    again = run_job(jobs, job, copying, owner="here")
    assert (again.planned, again.is_whole, copying.prepared, copying.finished) == (0, True, 2, [0, 0])


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_a_row_that_fails_fails_alone_and_the_next_run_fills_the_hole(
    workers: int, jobs: Ingestion, job: Job, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2hunter2")
    copying.failing = {("north", 3), ("south", 7)}
    seen: list[tuple[str, bool]] = []
    result = run_job(
        jobs,
        job,
        copying,
        owner="here",
        workers=workers,
        on_row=lambda run, done: seen.append((done.row.reason, done.error is None)),
    )
    assert (result.succeeded, result.failed, len(result.errors), len(seen)) == (18, 2, 2, 20)
    assert not result.is_whole
    assert copying.finished == [0]
    attempts = [one for one in jobs.attempts("orders", result.run) if one.state == "failed"]
    assert sorted(one.error for one in attempts) == [
        "ConnectionError: no answer from north, password was ***",
        "ConnectionError: no answer from south, password was ***",
    ]
    assert jobs.complete_through(job) == NOW - 7 * DAY
    kept = b"".join(file.read_bytes() for file in copying.source.parent.joinpath("home").iterdir())
    assert b"no answer from north" in kept
    assert b"hunter2" not in kept
    copying.failing = set()
    seen.clear()
    run_job(
        jobs, job, copying, owner="here", on_row=lambda run, done: seen.append((done.row.reason, done.error is None))
    )
    assert seen == [("failed", True), ("failed", True)]
    assert rows_of(copying.target) == rows_of(copying.source)


class Waiting(Copying):
    """Waits in each row until it may go on."""

    may_go_on = threading.Event()
    begun = 0

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        self.begun += 1
        assert self.may_go_on.wait(20)
        return super().land(run, row)


def test_the_lease_of_a_slow_run_is_kept_alive(tmp_path: Path, job: Job, copying: Copying) -> None:
    slow = Waiting(copying.source, copying.target)
    slow.may_go_on = threading.Event()
    with Home.open(tmp_path / "home") as home:
        jobs = Ingestion(home)
        recent = replace(job, time=replace(job.time, to=job.time.from_.parse("2020-01-11", "UTC")))
        found = []

        def run() -> None:
            found.append(run_job(jobs, recent, slow, owner="slow", ttl=300_000))

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: slow.begun)
        time.sleep(0.7)
        with pytest.raises(JobRunning):
            run_job(jobs, recent, copying, owner="other")
        slow.may_go_on.set()
        thread.join(30)
    assert [result.is_whole for result in found] == [True]


class Overtaken(Copying):
    """Is overtaken by another run while it lands its first row."""

    def __init__(self, other: Copying, jobs: Ingestion, job: Job, clock: list[int]) -> None:
        super().__init__(other.source, other.target)
        self._again = (jobs, job, other)
        self._clock = clock
        self.landed = 0

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        self.landed += 1
        self._clock[0] += 120_000_000
        jobs, job, other = self._again
        assert run_job(jobs, job, other, owner="second").is_whole
        return super().land(run, row)


def test_a_run_that_was_overtaken_records_nothing_and_begins_nothing_more(
    tmp_path: Path, job: Job, copying: Copying
) -> None:
    clock = [NOW]
    with Home.open(tmp_path / "home", clock=lambda: clock[0]) as home:
        jobs = Ingestion(home)
        first = Overtaken(copying, jobs, job, clock)
        with pytest.raises(LeaseLost):
            run_job(jobs, job, first, owner="first", workers=1)
        assert (first.landed, first.finished) == (1, [])
        newest, oldest = jobs.history("orders")
        assert (newest.succeeded, newest.state, oldest.succeeded, oldest.state) == (20, "done", 0, "lost")


def test_a_run_that_cannot_be_prepared_ends_and_lets_others_run(jobs: Ingestion, job: Job, copying: Copying) -> None:
    class Broken(Copying):
        def prepare(self, run: Run) -> None:
            raise OSError("the table cannot be read")

    with pytest.raises(OSError, match="cannot be read"):
        run_job(jobs, job, Broken(copying.source, copying.target), owner="here")
    assert run_job(jobs, job, copying, owner="here").is_whole


def test_a_run_that_cannot_be_finished_has_failed_and_its_rows_are_landed_all_the_same(
    jobs: Ingestion, job: Job, copying: Copying
) -> None:
    class Broken(Copying):
        def finish(self, run: Run) -> None:
            raise OSError("the time cannot be told")

    with pytest.raises(OSError, match="cannot be told"):
        run_job(jobs, job, Broken(copying.source, copying.target), owner="here")
    (run,) = jobs.history("orders")
    assert (run.state, run.succeeded) == ("failed", 20)
    assert run_job(jobs, job, copying, owner="here").planned == 0


def test_a_row_that_was_adopted_before_it_failed_counts_as_landed(jobs: Ingestion, job: Job, copying: Copying) -> None:
    class Late(Copying):
        def land(self, run: Run, row: PlannedRange) -> LandingResult:
            run.adopt(row.unit, row.range, rows=7, reason=row.reason)
            raise OSError("the answer was lost")

    result = run_job(jobs, job, Late(copying.source, copying.target), owner="here")
    assert (result.succeeded, result.failed, result.errors) == (20, 0, ())
    attempts = jobs.attempts("orders", result.run)
    assert {(one.state, one.rows, one.reason) for one in attempts} == {("adopted", 7, "new")}
    assert run_job(jobs, job, copying, owner="here").planned == 0


def test_no_workers_are_refused(jobs: Ingestion, job: Job, copying: Copying) -> None:
    with pytest.raises(InvalidOption, match="workers is 0"):
        run_job(jobs, job, copying, owner="here", workers=0)


@pytest.mark.parametrize("table", ["source", "target"])
def test_a_job_that_says_only_when_can_be_planned_and_not_run(table: str, job: Job) -> None:
    check_runnable(job)
    lines = [part for part in FILE.split("\n[") if not part.startswith(f"{table}]")]
    with pytest.raises(InvalidOption, match=f"names no {table}"):
        check_runnable(read_job("\n[".join(lines), environment={"SHOP_PASSWORD": "x"}).job)


def test_secrets_are_taken_out_of_what_drivers_say(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2hunter2")
    assert without_secrets("bad password hunter2hunter2!", job) == "bad password ***!"
    monkeypatch.setenv("SHOP_PASSWORD", "a")
    assert without_secrets("a bad password", job) == "a bad password"
    monkeypatch.setenv("SHOP_PASSWORD", "postgresql://ann:s3cret%21@db/shop")
    assert without_secrets("s3cret! is wrong, s3cret%21 too", job) == "*** is wrong, *** too"
    monkeypatch.delenv("SHOP_PASSWORD")
    assert without_secrets("a bad password", job) == "a bad password"
    assert job.source.password == Secret("env", "SHOP_PASSWORD")
