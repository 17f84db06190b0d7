"""The speed of readers on the embedded store."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from figures import Figure
from floodmark.streams import TimeWindow, connect

EVENTS = 1_000_000
BATCH = 10_000
MARKS = 300


def measure_readers() -> Iterator[Figure]:
    """Yield how soon a mark is seen in a reader's window, and how fast events are read."""
    with tempfile.TemporaryDirectory() as directory:
        yield from _latency(Path(directory) / "latency")
        yield from _rate(Path(directory) / "rate")


def _latency(path: Path) -> Iterator[Figure]:
    waits = []
    with connect(path) as home:
        stream = home.create_stream("s", "id BIGINT", segments=4)
        group = home.create_group("g", "s")
        with stream.writer("w") as writer, group.reader("r") as reader:
            for mark in range(1, MARKS + 1):
                start = time.perf_counter()
                writer.write({"id": mark})
                writer.note_time(mark)
                while not _has_come_to(mark, reader.time_window()):
                    reader.read("1 millisecond")
                waits.append(time.perf_counter() - start)
                time.sleep(0.02)
    low, high = np.quantile(waits[10:], [0.5, 0.99]) * 1e3
    yield Figure("from note_time to the window of a reader, half of them", float(low), "ms", at_most=50)
    yield Figure("from note_time to the window of a reader, 99 of 100", float(high), "ms", at_most=250)


def _has_come_to(mark: int, window: TimeWindow | None) -> bool:
    return window is not None and window.lower is not None and window.lower >= mark


def _rate(path: Path) -> Iterator[Figure]:
    with connect(path, controller=False) as home:
        stream = home.create_stream("s", "id BIGINT, customer STRING", segments=4)
        with stream.writer("w") as writer:
            for first in range(0, EVENTS, BATCH):
                rows = np.arange(first, first + BATCH)
                writer.write_batch(pa.table({"id": rows, "customer": pa.array(rows).cast(pa.string())}), key="customer")
                writer.flush()
        best = float("inf")
        for number in range(3):
            group = home.create_group(f"g{number}", "s", end=stream.tail())
            with group.reader("r") as reader:
                start = time.perf_counter()
                read = sum(len(batch) for batch in reader)
                best = min(best, time.perf_counter() - start)
            assert read == EVENTS
    yield Figure("a reader of a group, events read", EVENTS / best / 1e6, "M/s")
