"""The speed of streams on the embedded store."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from figures import Figure
from floodmark.streams import Controller, EntryKind, MarkEntry, Stream, StreamHome, connect
from floodmark.streams.definition import BUCKETS
from floodmark.streams.local.marks import INSERT_ENTRY, INSERT_MARK, entry_values, new_mark_values
from floodmark.streams.local.tables import KEYS
from floodmark.streams.local.watermarks import update_watermarks
from floodmark.streams.marks.writer_record import WriterRecord

EVENTS = 500_000
BATCH = 10_000
SCHEMA = "id BIGINT, customer STRING, at TIMESTAMP, amount DOUBLE"


def measure_streams() -> Iterator[Figure]:
    """Yield the speed of the log, of watermarks, and of looking times up."""
    with tempfile.TemporaryDirectory() as directory:
        yield from _log(Path(directory) / "log")
        yield from _latency(Path(directory) / "latency")
        yield from _cycles(Path(directory) / "cycles")
        yield from _lookups(Path(directory) / "lookups")


def _log(path: Path) -> Iterator[Figure]:
    number = np.arange(EVENTS)
    table = pa.table(
        {
            "id": number,
            "customer": pa.array(number % 10_000).cast(pa.string()),
            "at": pa.array(number, pa.timestamp("us", "UTC")),
            "amount": np.random.default_rng(1).random(EVENTS),
        }
    )
    with connect(path, controller=False) as home:
        for segments in (1, 4):
            stream = home.create_stream(f"s{segments}", SCHEMA, segments=segments)
            with stream.writer("w") as writer:

                def write(writer: object = writer) -> None:
                    for start in range(0, EVENTS, BATCH):
                        writer.write_batch(table.slice(start, BATCH), key="customer")  # type: ignore[attr-defined]
                        writer.flush()  # type: ignore[attr-defined]

                seconds = _best(write, 2)
            name = f"stream log, {segments} segment{'s' if segments > 1 else ''}"
            yield Figure(f"{name}, written in batches of 10k", EVENTS / seconds / 1e3, "k/s", at_least=200)
            seconds = _best(lambda stream=stream: _read(stream), 3)  # type: ignore[misc]
            yield Figure(f"{name}, read as Arrow", 2 * EVENTS / seconds / 1e6, "M/s", at_least=1)
        plain = home.create_stream("plain")

        def single() -> None:
            with plain.writer() as writer:
                for place in range(50_000):
                    writer.write({"id": place, "customer": "c-7", "amount": 1.5}, key="c-7")

        yield Figure("stream log, JSON events written one by one", 50 / _best(single, 2), "k/s")


def _latency(path: Path) -> Iterator[Figure]:
    waits = []
    with connect(path) as home:
        stream = home.create_stream("s")
        index = stream.marks_index()
        with stream.writer("w") as writer:
            for mark in range(1, 301):
                start = time.perf_counter()
                writer.note_time(mark)
                while index.oldest_with_lower_at_least(mark) is None:
                    time.sleep(0.0005)
                waits.append(time.perf_counter() - start)
                time.sleep(0.02)
    low, high = np.quantile(waits[10:], [0.5, 0.99]) * 1e3
    yield Figure("from note_time to the entry, half of them", float(low), "ms", at_most=50)
    yield Figure("from note_time to the entry, 99 of 100", float(high), "ms", at_most=250)


def _cycles(path: Path) -> Iterator[Figure]:
    with connect(path, controller=False) as home:
        controller = Controller(home)
        controller.step()
        leases = controller._bucket_leases.leases
        assert len(leases) == BUCKETS
        streams = [home.create_stream(f"s{number}", rate_floor="0 seconds") for number in range(1_000)]
        wide = home.create_stream("wide", rate_floor="0 seconds")
        now = home.home.now()
        for stream in streams:
            _mark(home, stream, 10, now)
        _mark(home, wide, 10_000, now)
        targets = [(stream.info.id, "time") for stream in streams]
        start = time.perf_counter()
        looked = update_watermarks(home.home, home.local.catalog, targets, leases)
        yield Figure("a cycle over 1,000 streams of 10 writers", time.perf_counter() - start, "s", at_most=2)
        assert all(one.is_stored for one in looked)
        start = time.perf_counter()
        (one,) = update_watermarks(home.home, home.local.catalog, [(wide.info.id, "time")], leases)
        yield Figure("a watermark over 10,000 writers", (time.perf_counter() - start) * 1e3, "ms", at_most=500)
        assert one.is_stored


def _mark(home: StreamHome, stream: Stream, writers: int, now: int) -> None:
    info = stream.info
    records = [
        WriterRecord.open(f"writer-{number}", now=now).note(number, {0: number}, layout=info.layout, now=now).record
        for number in range(writers)
    ]
    with home.home.write() as connection:
        connection.execute(INSERT_MARK, [new_mark_values(info.id, "time", record) for record in records])
        connection.execute(KEYS.update().where(KEYS.c.stream_id == info.id).values(changed=1))


def _lookups(path: Path) -> Iterator[Figure]:
    entries = 1_000_000
    with connect(path, controller=False) as home:
        stream = home.create_stream("s")
        number = stream.info.id
        for first in range(1, entries, 50_000):
            rows = [
                entry_values(number, "time", MarkEntry(seq, EntryKind.WATERMARK, seq, seq, ("w",), {0: seq}, at=seq))
                for seq in range(first, first + 50_000)
            ]
            with home.home.write() as connection:
                connection.execute(INSERT_ENTRY, rows)
        times = np.random.default_rng(1).integers(1, entries, 50).tolist()
        for name, ask in (("cut_at", stream.cut_at), ("time_at", lambda at: stream.time_at({0: at}))):
            seconds = _best(lambda ask=ask: [ask(at) for at in times], 3) / len(times)  # type: ignore[misc]
            yield Figure(f"{name} over 1 M marks", seconds * 1e3, "ms", at_most=5)


def _read(stream: Stream) -> None:
    for segment in stream.layout.current:
        for chunk in stream.read(segment.id):
            assert chunk.batch.num_rows


def _best(work: Callable[[], object], rounds: int) -> float:
    """Return the shortest time by the wall clock: what is on the disk counts too."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
