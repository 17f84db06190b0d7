"""Queries whose sinks close batches by records, each in a process of its own that may be ended anywhere.

One process forks all others: to import everything takes longer than what they do. What a query has done is in a file
beside the home, as Spark's checkpoint would be.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.control import Home
from floodmark.errors import FloodmarkError
from floodmark.kafka import KafkaSettings
from floodmark.sinks import Batch, Sink
from floodmark.sinks.manifest.delta import DeltaManifestLog
from floodmark.sinks.manifest.files import FileManifestLog
from floodmark.sinks.manifest.target import ManifestLog, ManifestOptions, ManifestPart, ManifestTarget
from floodmark.sinks.manifest.topic import PlainProducer, TopicManifestLog
from floodmark.sinks.target import Failpoint, no_failpoint
from support import processes
from support.sinks.sink_process import BEFORE_COMMIT_LOG, chain, rows_of
from support.waiting import wait_until

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]},
)
HALF_WRITTEN = "half of the rows are written"
BATCHES = 4


@dataclass(frozen=True)
class Job:
    kind: str
    """delta, file or topic."""
    home: str
    place: str
    """A directory, or servers and a topic."""
    die_at: str | None = None
    die_in: int = -1
    by: str = "kill"
    until: int = BATCHES
    query_id: str = "q1"
    version: int = 1
    append: bool = False
    stateful: bool = False


def log_of(kind: str, place: str, sink: str = "K") -> Any:
    """Return the log of a target."""
    if kind == "topic":
        servers, _, topic = place.partition("/")
        return TopicManifestLog(KafkaSettings.of(servers), topic, sink, partitions=2)
    return (DeltaManifestLog if kind == "delta" else FileManifestLog)(Path(place), sink, SCHEMA)


def put(
    kind: str, log: Any, attempt: str, numbers: Sequence[int], failpoint: Failpoint = no_failpoint
) -> list[ManifestPart]:
    """Write rows as tasks do: in two files, or under the name of a task."""
    half = len(numbers) // 2
    if kind == "topic":
        producer, task = PlainProducer(log.settings), f"{attempt}.0.0"
        rows = [(None, b"%d" % number, 1, None, None) for number in numbers]
        producer.send(log.topic, task, [rows[:half]])
        failpoint(HALF_WRITTEN)
        # As if it had been one: rows are counted from the first.
        return [ManifestPart(task, half), *_rest(producer, log, attempt, rows[half:])]
    directory = log.attempt_directory(attempt)
    directory.mkdir()
    for name, some in (("a", numbers[:half]), ("b", numbers[half:]), ("c", [])):
        pq.write_table(pa.table({"n": pa.array(some, pa.int64())}), directory / f"{name}.parquet")
        if name == "a":
            failpoint(HALF_WRITTEN)
    return list(log.attempt_parts(attempt))


def _rest(producer: PlainProducer, log: Any, attempt: str, rows: Any) -> list[ManifestPart]:
    return [ManifestPart(f"{attempt}.1.1", producer.send(log.topic, f"{attempt}.1.1", [rows]))]


def run(job: Job) -> None:
    """Go through batches from where the checkpoint is."""
    checkpoint = Path(job.home) / f"{job.query_id}.checkpoint"
    current, acted = -1, False

    def reached(place: str) -> None:
        nonlocal acted
        if place == job.die_at and current == job.die_in and not acted:
            acted = True
            if job.by == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            Path(job.home, "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    with Home.open_existing(job.home) as home:
        places = chain(home)
        log = log_of(job.kind, job.place)
        typed: ManifestLog = log
        target = ManifestTarget(
            typed,
            ManifestOptions(job.version, job.append),
            mode="atomic" if job.kind == "delta" else "staged",
            failpoint=reached,
        )
        sink = Sink(home, target, failpoint=reached)
        sink.start()
        done = int(checkpoint.read_text()) if checkpoint.exists() else 0
        for current in range(done, min(job.until, len(places) - 1)):
            start, end = places[current], places[current + 1]
            numbers = [int(row[1] or b"") for piece in rows_of(start, end) for row in piece]
            batch = Batch.of(job.query_id, {"S": (start, end)}, is_stateful=job.stateful)
            sink.write(
                batch,
                lambda _, numbers=numbers: lambda attempt: put(job.kind, log, attempt, numbers, reached),  # type: ignore[misc]
                watermarks=end.watermarks,
            )
            reached(BEFORE_COMMIT_LOG)
            written = checkpoint.with_suffix(".new")
            written.write_text(str(current + 1))
            written.replace(checkpoint)
        sink.close()


def fork(job: Job) -> int:
    """Run a job in a child, and return its number."""
    child = os.fork()
    if child:
        return child
    try:
        run(job)
        code = 0
    except FloodmarkError as error:
        Path(job.home, "error").write_text(error.code)
        code = 3
    except BaseException:
        traceback.print_exc()
        code = 4
    os._exit(code)


def _rests(job: Job, child: int) -> bool:
    """Return whether a child has stopped itself, or has ended before it came to that."""
    has_ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return has_ended or Path(job.home, "stopped").exists()


def ended(child: int) -> int | str:
    """Wait for a child, and return how it ended."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def serve() -> None:
    """Do what comes line by line: run a job, or let two of them meet."""
    for line in sys.stdin:
        jobs = [Job(**one) for one in json.loads(line)]
        Path(jobs[0].home, "stopped").unlink(missing_ok=True)
        codes = []
        if jobs[0].by == "stop":
            # The first stops in the middle; the others run; then it goes on.
            sleeper = fork(jobs[0])
            wait_until(partial(_rests, jobs[0], sleeper), 60)
            codes = [ended(fork(job)) for job in jobs[1:]]
            os.kill(sleeper, signal.SIGCONT)
            codes.insert(0, ended(sleeper))
        else:
            codes = [ended(fork(job)) for job in jobs]
        print(json.dumps(codes), flush=True)


class Processes:
    """Runs jobs in processes of their own."""

    def __init__(self) -> None:
        self._server = processes.start(__spec__.name)

    def run(self, *jobs: Job) -> list[int]:
        """Run jobs one after the other, and return how they ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self._server.stdin.flush()
        codes: list[int] = json.loads(self._server.stdout.readline())
        return codes

    def close(self) -> None:
        processes.finish(self._server)


if __name__ == "__main__":
    serve()
