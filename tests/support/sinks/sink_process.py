"""A query with a sink, in a process of its own: it goes through batches of ten rows, and may be ended anywhere.

What it has done is in a file beside the home, as Spark's checkpoint would be: the number of batches that are over.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from floodmark.bindings import Bindings, SourceOffset
from floodmark.bindings.offsets import BatchLimits, next_offset
from floodmark.control import Home
from floodmark.errors import FloodmarkError
from floodmark.kafka import KafkaSettings
from floodmark.sinks import Batch, KafkaTarget, OutRow, Sink, TargetOptions
from floodmark.sinks.kafka.rows import OutRows, RowColumns
from support import processes

ROWS = 10
BATCHES = 4
BEFORE_COMMIT_LOG = "spark: before the commit log"


@dataclass(frozen=True)
class Job:
    servers: str
    home: str
    topic: str
    until: int = BATCHES
    die_at: str | None = None
    """The place at which it ends, in the batch `die_in`."""
    die_in: int = -1
    by: str = "kill"
    """How: kill, raise, stop (until somebody lets it go on), or sleep."""
    sleep: float = 0.0
    timeout: float = 10.0
    version: int = 1
    query_id: str = "q1"
    stateful: bool = False
    on_missing_bindings: str = "error"
    is_bulk: bool = False
    """Whether rows are written without headers, many at a time."""


class Stopped(Exception):
    """The process ends here."""


def bind(home: Home, *, batches: int = BATCHES) -> None:
    """Bind ten rows to each of some timestamps of the source S."""
    bindings = Bindings(home)
    upper = bindings.register("S", kind="stream", identity=1).upper
    for number in range(1, batches + 1):
        marks = {"at": number * 100}
        upper = bindings.mint("S", {0: number * ROWS}, marks, expected_upper=upper).upper


def chain(home: Home) -> list[SourceOffset]:
    """Return the places at which batches end, the first one before all."""
    history = Bindings(home).history("S")
    places = [SourceOffset("q", None, {})]
    while (place := next_offset(history, places[-1], BatchLimits(rows=ROWS))) != places[-1]:
        places.append(place)
    return places


def rows_of(start: SourceOffset, end: SourceOffset) -> Iterable[list[OutRow]]:
    """Return the rows of a batch in pieces of five."""
    first, last = start.cut.get(0, 0), end.cut[0]
    for number in range(first, last, 5):
        yield [(b"k%d" % (row % 3), b"%d" % row, end.ts or 0, None, None) for row in range(number, number + 5)]


def given(start: SourceOffset, end: SourceOffset, is_bulk: bool) -> Iterable[OutRows]:
    """Return the rows of a batch as they are, or as columns."""
    for rows in rows_of(start, end):
        keys, values, ts, _, _ = zip(*rows, strict=True)
        yield RowColumns(pa.array(keys), pa.array(values), pa.array(ts)) if is_bulk else rows


def run(job: Job) -> None:
    """Go through batches from where the checkpoint is."""
    checkpoint = Path(job.home) / f"{job.query_id}.checkpoint"
    current = -1
    acted = False

    def reached(place: str) -> None:
        nonlocal acted
        if place == job.die_at and current == job.die_in and not acted:
            acted = True
            act(job)

    with Home.open_existing(job.home) as home:
        places = chain(home)
        sink = make_sink(job, home, reached)
        sink.start()
        done = int(checkpoint.read_text()) if checkpoint.exists() else 0
        for current in range(done, min(job.until, len(places) - 1)):
            start, end = places[current], places[current + 1]
            batch = Batch.of(job.query_id, {"S": (start, end)}, is_stateful=job.stateful)
            rows = partial(given, start, end, job.is_bulk)
            sink.write(batch, lambda _, rows=rows: rows(), watermarks=end.watermarks)  # type: ignore[misc]
            reached(BEFORE_COMMIT_LOG)
            # Whoever kills it finds a whole file.
            written = checkpoint.with_suffix(".new")
            written.write_text(str(current + 1))
            written.replace(checkpoint)
        sink.close()


def make_sink(job: Job, home: Home, reached: Callable[[str], None]) -> Sink[Iterable[OutRows]]:
    options = TargetOptions(
        version=job.version,
        partitions=2,
        timeout=job.timeout,
        stamp=not job.is_bulk,
        headers=not job.is_bulk,
        on_missing_bindings=job.on_missing_bindings,  # type: ignore[arg-type]
    )
    target = KafkaTarget(KafkaSettings.of(job.servers), job.topic, "K", options, failpoint=reached)
    return Sink(home, target, failpoint=reached)


def act(job: Job) -> None:
    # Let what was sent arrive.
    time.sleep(0.3)
    if job.by == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif job.by == "stop":
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif job.by == "sleep":
        print("asleep", flush=True)
        time.sleep(job.sleep)
    else:
        raise Stopped(job.die_at)


def start(job: Job) -> processes.Child:
    """Start a process for a job."""
    return processes.start(__spec__.name, json.dumps(asdict(job)))


def finish(process: processes.Child, seconds: float = 60) -> tuple[int, str]:
    """Wait for a process; return its exit code and the code of the error that it printed."""
    code, printed = processes.finish(process, seconds)
    return code, processes.error_code(printed)


__all__ = ["BATCHES", "BEFORE_COMMIT_LOG", "ROWS", "Job", "Stopped", "bind", "chain", "finish", "run", "start"]

if __name__ == "__main__":
    try:
        run(Job(**json.loads(sys.argv[1])))
    except FloodmarkError as error:
        print(f"error {error.code}", flush=True)
        sys.exit(3)
