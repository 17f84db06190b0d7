"""A job that lands in a stream, here or in a process of its own. Its rows are made up: ten for each day and shop."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from floodmark.errors import FloodmarkError, JobRunning
from floodmark.ingest import (
    Bound,
    Grid,
    Ingestion,
    Job,
    Landing,
    LandingResult,
    PlannedRange,
    Run,
    RunResult,
    SqlSource,
    TimeWatermark,
    UnitWatermark,
    run_job,
)
from floodmark.ingest.landing.stream import StreamLanding
from floodmark.streams import Controller, Stream, StreamHome, connect
from support import processes

DAY = 86_400_000_000
START = 1_577_836_800_000_000
"""2020-01-01 UTC."""
DAYS = 4
SHOPS = ("north", "south")
NAME = "shop/orders"
ROWS = 10


@dataclass(frozen=True)
class LandingJob:
    home: str
    die_at: str | None = None
    """The place at which it ends, when it comes there for the time `die_on`."""
    die_on: int = 1
    by: str = "kill"
    mode: str = "append"
    ttl: int = 60_000_000
    workers: int = 1


def job_of(
    mode: str = "append", *, units: tuple[str, ...] = SHOPS, days: int = DAYS, grace: int = 0, **source: Any
) -> Job:
    until = Bound.parse(time.strftime("%Y-%m-%d", time.gmtime(START // 1_000_000 + days * 86_400)), "UTC")
    times = TimeWatermark("at", Bound.parse("2020-01-01", "UTC"), until, Grid.plain("daily"), grace_days=grace)
    keys: dict[str, Any] = {"keys": ("id",)} if mode == "merge" else {}
    drift = source.pop("drift", "freeze")
    target = Landing(mode, stream=NAME, drift=drift, **keys)  # type: ignore[arg-type]
    said: dict[str, Any] = {"url": "sqlite:///shop.db", "table": "orders", "watermark": "at", **source}
    shops = UnitWatermark.listed("shop", units) if units else None
    return Job("orders", "UTC", times, shops, source=SqlSource(**said), target=target)


def rows_of(row: PlannedRange) -> Iterator[pa.RecordBatch]:
    """Give the rows of a cell in two batches: naive times, and no column that says which shop it is."""
    shop = SHOPS.index(row.unit.fields["shop"]) if row.unit.fields.get("shop") in SHOPS else 9
    day = (row.range.lo - START) // DAY
    for half in range(2):
        ids = [shop * 1000 + day * ROWS + half * 5 + n for n in range(5)]
        at = [row.range.lo + (half * 5 + n) * DAY // 10 for n in range(5)]
        yield pa.record_batch({"id": pa.array(ids, pa.int32()), "at": pa.array(at, pa.timestamp("us"))})


class Feeding:
    """Lands made-up rows, and fails where it is told to."""

    def __init__(
        self, landing: StreamLanding, rows: Callable[[PlannedRange], Iterator[pa.RecordBatch]] = rows_of
    ) -> None:
        self.landing = landing
        self.rows = rows
        self.failing: set[tuple[str, int]] = set()

    def prepare(self, run: Run) -> None:
        self.landing.prepare(run)

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        if (row.unit.fields.get("shop", ""), (row.range.lo - START) // DAY) in self.failing:
            raise ConnectionError("no answer")
        return self.landing.land(run, row, self.rows(row))

    def finish(self, run: Run) -> None:
        self.landing.finish(run)

    def close(self) -> None:
        self.landing.close()


def load(home: StreamHome, job: Job, feeding: Feeding | None = None, **options: Any) -> RunResult:
    """Run a job once, as soon as the run of a process that died is over."""
    options = {"owner": "test", "workers": 1, **options}
    give_up = time.monotonic() + 20
    while True:
        try:
            return run_job(Ingestion(home.home), job, feeding or Feeding(StreamLanding(home, job)), **options)
        except JobRunning:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def events_in(stream: Stream) -> list[dict[str, Any]]:
    """Return the rows that can be read."""
    return [
        row
        for segment in stream.layout.segments
        for chunk in stream.read(segment.id)
        for row in chunk.batch.to_pylist()
    ]


def ids_in(stream: Stream) -> Counter[int]:
    return Counter(row["id"] for row in events_in(stream))


ALL = Counter(shop * 1000 + number for shop in range(2) for number in range(DAYS * ROWS))


def run(given: LandingJob) -> None:
    """Run the job once, and end where it says so."""
    reached: Counter[str] = Counter()

    def failpoint(place: str) -> None:
        reached[place] += 1
        if place == given.die_at and reached[place] == given.die_on:
            if given.by == "stop":
                print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP if given.by == "stop" else signal.SIGKILL)
            time.sleep(0.2)  # another thread may take the signal, and this one must not go on meanwhile

    with connect(given.home, controller=False) as home:
        job = job_of(given.mode)
        feeding = Feeding(StreamLanding(home, job, failpoint=failpoint))
        load(home, job, feeding, owner="process", ttl=given.ttl, workers=given.workers)


def watermark(home: StreamHome) -> int | None:
    """Return the stream's watermark in days after START."""
    time.sleep(0.011)  # the least time between two entries
    controller = Controller(home)
    controller.step()
    controller.step()
    controller.stop()
    entries = [entry for entry in home.stream(NAME).marks() if entry.lower is not None]
    return (entries[-1].lower - START) // DAY if entries and entries[-1].lower is not None else None


def late_in(home: StreamHome) -> list[dict[str, Any]]:
    """Return the rows that lie behind a mark and are before it."""
    (segment,) = home.stream(NAME).layout.segments
    rows = events_in(home.stream(NAME))
    return [
        row
        for entry in home.stream(NAME).marks()
        if entry.lower is not None
        for row in rows[entry.cut[segment.id] :]
        if row["at"].timestamp() * 1_000_000 < entry.lower
    ]


def start(job: LandingJob) -> processes.Child:
    """Start a process for a job."""
    return processes.start(__spec__.name, json.dumps(asdict(job)))


def finish(process: processes.Child) -> tuple[int, str]:
    """Wait for a process; return its exit code and the code of the error that it printed."""
    code, printed = processes.finish(process)
    return code, processes.error_code(printed)


if __name__ == "__main__":
    try:
        run(LandingJob(**json.loads(sys.argv[1])))
    except FloodmarkError as error:
        print(f"error {error.code}", flush=True)
        sys.exit(3)
