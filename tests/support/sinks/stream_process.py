"""A query that writes to a stream, here or in a process of its own: it goes through batches of ten rows."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark._util.times import micros_in_unit
from floodmark.bindings import SourceOffset
from floodmark.errors import FloodmarkError
from floodmark.sinks import Batch, BatchOutcome, KeyedRows, Sink, StreamShape, StreamTarget, TargetOptions
from floodmark.sinks.target import no_failpoint
from floodmark.streams import EntryKind, Stream, StreamHome, connect
from support import processes
from support.sinks.sink_process import BATCHES, chain

NAME = "shop/out"
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("paid", pa.timestamp("us", "UTC"))])
SHAPE = StreamShape(SCHEMA, {"at": "at"}, segments=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PAID = StreamShape(SCHEMA, {"at": "at", "paid": "paid"}, segments=2)


@dataclass(frozen=True)
class StreamJob:
    home: str
    die_at: str | None = None
    """The place at which it ends, in the batch `die_in`."""
    die_in: int = -1
    by: str = "kill"
    stateful: bool = False
    query_id: str = "q1"
    sink: str = "K"
    timeout: float = 60.0


def rows_of(start: SourceOffset, end: SourceOffset) -> Iterator[KeyedRows]:
    """Return the rows of a batch in pieces of five; those of batch n have times from n * 100 on."""
    first, last = start.cut.get(0, 0), end.cut[0]
    for number in range(first, last, 5):
        ids = range(number, min(number + 5, last))
        times = pa.array([id_ * 10 for id_ in ids], pa.timestamp("us", "UTC"))
        paid = pa.array([id_ * 10 + 7 for id_ in ids], pa.timestamp("us", "UTC"))
        rows = pa.record_batch([pa.array(ids), times, paid], schema=SCHEMA)
        yield KeyedRows(rows, pa.array([str(id_) for id_ in ids]))


class StreamQuery:
    """A query of which Spark's part is in a file beside the home: how many batches are over."""

    def __init__(
        self,
        home: StreamHome,
        job: StreamJob,
        *,
        reached: Callable[[str], None] = no_failpoint,
        shape: StreamShape = SHAPE,
        name: str = NAME,
        **options: Any,
    ) -> None:
        self.job = job
        self.places = chain(home.home)
        settings = TargetOptions(timeout=job.timeout, **options)
        self.target = StreamTarget(home, name, shape, job.sink, settings, failpoint=reached)
        self.sink = Sink(home.home, self.target, failpoint=reached)

    @property
    def checkpoint(self) -> Path:
        return Path(self.job.home) / f"{self.job.sink}-{self.job.query_id}.checkpoint"

    @property
    def done(self) -> int:
        return int(self.checkpoint.read_text()) if self.checkpoint.exists() else 0

    def start(self) -> "StreamQuery":
        self.sink.start()
        return self

    def step(self, number: int, watermarks: Mapping[str, int] | None = None, *, empty: bool = False) -> BatchOutcome:
        """Write one batch."""
        start, end = self.places[number], self.places[number + 1]
        batch = Batch.of(self.job.query_id, {"S": (start, end)}, is_stateful=self.job.stateful)
        told = end.watermarks if watermarks is None else watermarks
        rows: Any = lambda _: iter(()) if empty else rows_of(start, end)  # noqa: E731
        return self.sink.write(batch, rows, watermarks=told)

    def run(self, until: int = BATCHES, on_batch: Callable[[int], None] = lambda number: None) -> "StreamQuery":
        """Go through the batches from where the checkpoint is."""
        for number in range(self.done, until):
            on_batch(number)
            self.step(number)
            written = self.checkpoint.with_suffix(".new")
            written.write_text(str(number + 1))
            written.replace(self.checkpoint)
        return self


def ids_in(stream: Stream) -> Counter[int]:
    """Return the ids of the rows that can be read, and how often each is there."""
    return Counter(row["id"] for row in _rows(stream))


def broken_marks(stream: Stream, key: str = "at") -> list[str]:
    """Return what rows behind the cut of a watermark have a time before it."""
    broken = []
    for entry in stream.marks(key):
        if entry.kind is EntryKind.WATERMARK and entry.lower is not None:
            for row in _rows(stream):
                place = entry.cut.get(row["segment"])
                is_over = place is None and stream.layout.has_descendant(row["segment"], entry.cut)
                time = micros_in_unit(stream.settings.unit, (row[key] - _EPOCH) // timedelta(microseconds=1))
                if not is_over and row["offset"] >= (place or 0) and time < entry.lower:
                    broken.append(f"{row} is behind {entry}")
    return broken


def _rows(stream: Stream) -> list[dict[str, Any]]:
    return [
        {**row, "segment": segment.id, "offset": chunk.first + place}
        for segment in stream.layout.segments
        for chunk in stream.read(segment.id)
        for place, row in enumerate(chunk.batch.to_pylist())
    ]


def run(job: StreamJob) -> None:
    """Go through all batches, and end where the job says so."""
    current = -1

    def reached(place: str) -> None:
        if place == job.die_at and current == job.die_in:
            if job.by == "stop":
                print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP if job.by == "stop" else signal.SIGKILL)

    def on_batch(number: int) -> None:
        nonlocal current
        current = number

    with connect(job.home, controller=False) as home:
        StreamQuery(home, job, reached=reached).start().run(on_batch=on_batch)


def start(job: StreamJob) -> processes.Child:
    """Start a process for a job."""
    return processes.start(__spec__.name, json.dumps(asdict(job)))


if __name__ == "__main__":
    try:
        run(StreamJob(**json.loads(sys.argv[1])))
    except FloodmarkError as error:
        print(f"error {error.code}", flush=True)
        sys.exit(3)
