"""The embedded log: events in order, each once, over scales, lost answers and other writers."""

import json
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import Conflict, FloodmarkError, HomeBusy
from floodmark.streams import Chunk, Stream, StreamHome
from floodmark.streams.events import Events
from floodmark.streams.ports import Author
from support.streams.reading import code_of, everything, payloads, rows

KEYS = [f"customer-{number}" for number in range(20)]


def test_events_without_a_schema_are_kept_as_json_bytes_or_text(home: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.writer() as writer:
        for event in ({"paid": 7, "é": None}, [1, 2], b"\x00raw", '{"as":"it is"}', 5):
            writer.write(event, key="k")
    assert [row["payload"] for row in rows(stream, 0)] == [
        '{"paid":7,"é":null}'.encode(),
        b"[1,2]",
        b"\x00raw",
        b'{"as":"it is"}',
        b"5",
    ]
    assert {row["key"] for row in rows(stream, 0)} == {b"k"}


def test_events_with_a_schema_are_columns_of_every_type(home: StreamHome) -> None:
    ddl = (
        "id INT NOT NULL, at TIMESTAMP, price DECIMAL(10, 2), tags ARRAY<STRING>, m MAP<STRING, INT>, s STRUCT<a: INT>"
    )
    stream = home.create_stream("s", ddl)
    event = {
        "id": 1,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "price": Decimal("1.50"),
        "tags": ["ü", "b"],
        "m": [("x", 1)],
        "s": {"a": None},
    }
    empty = {"id": 2, "at": None, "price": None, "tags": None, "m": None, "s": None}
    with stream.writer() as writer:
        writer.write(event)
        writer.write({"id": 2})
        writer.write_batch([event, {"id": 2}])
        writer.write_batch(pa.Table.from_pylist([event, empty], schema=stream.schema))
    assert rows(stream, 0) == [event, empty] * 3


def test_events_of_a_key_stay_in_order_and_keys_are_spread(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=4)
    with stream.writer("w") as writer:
        for number in range(100):
            writer.write([number, KEYS[number % 20]], key=KEYS[number % 20])
        writer.write_batch([[100 + n, key] for n, key in enumerate(KEYS)], key=KEYS)
    found = {segment: payloads(stream, segment) for segment in range(4)}
    assert all(found.values())
    assert sum(map(len, found.values())) == 120
    for segment, events in found.items():
        assert events == sorted(events)
        assert all(stream.layout.route(key).id == segment for _, key in events)


def test_a_batch_takes_its_keys_from_a_column(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT, customer STRING, shop INT", segments=3)
    table = pa.table({"shop": pa.array([None] * 20, pa.int32()), "customer": KEYS, "id": range(20)})
    with stream.writer() as writer:
        writer.write_batch(table, key="customer")
        writer.write_batch(table.to_batches()[0], key="id")
        writer.write_batch(table.to_pylist(), key="customer")
        writer.write_batch(table.slice(0, 0), key="customer")
    for segment in range(3):
        for row in rows(stream, segment):
            assert segment in (stream.layout.route(row["customer"]).id, stream.layout.route(str(row["id"])).id)
    assert sum(stream.tail().values()) == 60


def test_events_without_a_key_are_spread_over_segments_flush_by_flush(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=2)
    with stream.writer() as writer:
        for _ in range(20):
            writer.write("x")
            writer.flush()
    assert min(stream.tail().values()) >= 5


def test_any_range_of_offsets_can_be_read(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT")
    with stream.writer() as writer:
        for start, count in ((0, 1), (1, 4), (5, 20_000), (20_005, 3)):
            writer.write_batch(pa.table({"id": np.arange(start, start + count)}))
            writer.flush()

    def read(*args: Any, **options: Any) -> list[int]:
        found: list[int] = []
        for chunk in stream.read(0, *args, **options):
            ids = chunk.batch["id"].to_pylist()
            assert ids == list(range(chunk.first, chunk.end))
            found += ids
        return found

    everything = list(range(20_008))
    assert read() == read(0) == read(0, 10**9) == everything
    ranges = [(0, 0), (0, 1), (3, 4), (3, 7), (4, 5), (5, 20_005), (19_999, 20_008), (20_008, 20_008), (30_000, 30_001)]
    for start, end in ranges:
        assert read(start, end) == everything[start:end]
    assert read(3, max_rows=5) == [3, 4, 5, 6, 7]
    assert read(3, max_rows=0) == []


def test_small_flushes_are_read_as_large_batches(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT")
    with stream.writer() as writer:
        for number in range(300):
            writer.write({"id": number})
            writer.flush()
    (chunk,) = stream.read(0)
    assert (chunk.first, chunk.end) == (0, 300)


def test_a_writer_that_is_never_flushed_does_not_keep_everything_in_memory(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT")
    writer = stream.writer()
    for _ in range(4):
        writer.write_batch(pa.table({"id": np.arange(40_000)}))
    assert stream.tail() == {0: 160_000}
    for number in range(20_001):
        writer.write({"id": number})
    assert stream.tail() == {0: 180_000}


def test_a_large_batch_comes_in_pieces(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT", segments=2)
    with stream.writer() as writer:
        writer.write_batch(pa.table({"id": np.arange(300_000)}), key="id")
    assert sum(stream.tail().values()) == 300_000
    chunks = [chunk for segment in (0, 1) for chunk in stream.read(segment)]
    assert max(chunk.batch.num_rows for chunk in chunks) <= 65_536
    found = pa.chunked_array([chunk.batch["id"] for chunk in chunks]).sort()
    assert found.equals(pa.chunked_array([np.arange(300_000)]))


UNFIT: dict[str, tuple[Callable[[Any], None], str]] = {
    "unknown field": (lambda writer: writer.write({"id": 1, "nam": "x"}), "event-invalid"),
    "null in a column that has none": (lambda writer: writer.write({"name": "x"}), "event-invalid"),
    "wrong type": (lambda writer: writer.write({"id": "x"}), "event-invalid"),
    "too large": (lambda writer: writer.write({"id": 2**70}), "event-invalid"),
    "half a character": (lambda writer: writer.write({"id": 1, "name": "\ud800"}), "event-invalid"),
    "no dict": (lambda writer: writer.write("x"), "event-invalid"),
    "one bad row": (lambda writer: writer.write_batch([{"id": 1}, {"id": None}]), "event-invalid"),
    "table without a column": (lambda writer: writer.write_batch(pa.table({"id": [1]})), "event-invalid"),
    "table of a wrong type": (
        lambda writer: writer.write_batch(pa.table({"id": ["x"], "name": ["x"]})),
        "event-invalid",
    ),
    "table with a null": (
        lambda writer: writer.write_batch(pa.table({"id": pa.array([None], pa.int64()), "name": ["x"]})),
        "event-invalid",
    ),
    "key of a wrong type": (lambda writer: writer.write({"id": 1}, key=1.5), "key-out-of-space"),
    "unknown key column": (lambda writer: writer.write_batch([{"id": 1}, "x"], key="id"), "unknown-column"),
    "too few keys": (lambda writer: writer.write_batch([{"id": 1}], key=[]), "event-invalid"),
    "mixed keys": (lambda writer: writer.write_batch([{"id": 1}] * 2, key=["a", 1.5]), "key-out-of-space"),
    "one key for many": (lambda writer: writer.write_batch([{"id": 1}], key=b"a"), "key-out-of-space"),
}


@pytest.mark.parametrize(("action", "code"), UNFIT.values(), ids=UNFIT)
def test_an_event_that_does_not_fit_is_refused_at_once_and_the_others_are_kept(
    home: StreamHome, action: Any, code: str
) -> None:
    stream = home.create_stream("s", "id BIGINT NOT NULL, name STRING")
    with stream.writer("w") as writer:
        writer.write({"id": 1})
        assert code_of(lambda: action(writer)) == code
        writer.write({"id": 2})
    assert [row["id"] for row in rows(stream, 0)] == [1, 2]


def test_without_a_schema_only_what_json_can_write_is_taken(home: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.writer() as writer:
        assert code_of(lambda: writer.write({1j})) == "not-json"
        assert code_of(lambda: writer.write_batch([float("nan")])) == "not-json"
        assert code_of(lambda: writer.write_batch(pa.table({"a": [1]}))) == "event-invalid"
    assert stream.tail() == {0: 0}


def test_a_dict_that_is_used_again_does_not_change_what_was_written(home: StreamHome) -> None:
    stream = home.create_stream("s", "id BIGINT")
    event = {"id": 1}
    with stream.writer() as writer:
        writer.write(event)
        event["id"] = 2
    assert rows(stream, 0) == [{"id": 1}]


# -- order over scales


def test_a_writer_finds_its_new_segments_and_keeps_the_order_of_each_key(
    home: StreamHome, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s", segments=2)
    other = new_home().stream("s")
    writer = stream.writer("w")
    scales: list[Callable[[], None]] = [
        lambda: other.split(0),
        lambda: other.merge([2, 3]),
        lambda: other.scale([1, 4], [(0, 0.1), (0.1, 1)]),
        lambda: other.split(6, 3),
    ]
    number = 0
    for scale in scales:
        for _ in range(2):
            for key in KEYS:
                writer.write([key, number], key=key)
                number += 1
            if number % 80:
                writer.flush()
        scale()
    writer.close()
    found = everything(stream)
    assert sorted(number for _, number in found) == list(range(160))
    for key in KEYS:
        of_key = [number for k, number in found if k == key]
        assert of_key == sorted(of_key)


def test_a_sealed_segment_accepts_nothing_any_more(home: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.writer("w") as writer:
        writer.write(1)
        writer.flush()
        stream.split(0)
        for number in range(20):
            writer.write(number, key=str(number))
        writer.flush()
        assert stream.ends()[0] == 1
        assert sum(stream.tail().values()) == 20
        writer.note_time(7)
    (view,) = stream.why().writers
    assert view.time == 7


# -- each once


class Lossy:
    """A log whose answers are lost, now and then after the events were kept."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.losses: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, *args: Any) -> Any:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            raise HomeBusy("Busy.", rule="So.", remedy="Again.")
        ends = self._log.append(*args)
        if loss == "after":
            raise HomeBusy("Busy.", rule="So.", remedy="Again.")
        return ends


def lossy_writer(stream: Stream, *losses: str) -> Any:
    writer = stream.writer("w")
    log: Any = Lossy(writer._backend.log)
    log.losses = list(losses)
    backend: Any = copy(writer._backend)
    backend.log = log
    writer._backend = backend
    return writer


@pytest.mark.parametrize("losses", [["after"], ["before"], ["after", "after", "before", "after"]])
def test_a_flush_whose_answer_was_lost_can_be_repeated(home: StreamHome, losses: list[str]) -> None:
    stream = home.create_stream("s", segments=2)
    writer = lossy_writer(stream, *losses)
    for number in range(10):
        writer.write(number, key=str(number))
    for _ in losses:
        assert code_of(writer.flush) == "home-busy"
    writer.write(10, key="10")
    writer.flush()
    assert sorted(everything(stream)) == list(range(11))
    assert writer.events_written == 11
    assert writer.note_time(5).value == "accepted"
    assert {**stream.ends()} == {**stream._backend.log.ends(stream.info)}
    writer.close()


def test_a_lost_answer_and_a_scale_in_between_double_nothing(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = lossy_writer(stream, "after")
    for number in range(10):
        writer.write(number, key=str(number))
    assert code_of(writer.flush) == "home-busy"
    stream.split(0)
    writer.flush()
    assert everything(stream) == list(range(10))
    assert writer.note_time(5).value == "accepted"
    writer.write(10, key="10")
    writer.close()
    assert everything(stream) == list(range(11))


def test_a_writer_that_starts_again_knows_how_much_is_there(home: StreamHome) -> None:
    stream = home.create_stream("s")
    first = stream.writer("w")
    first.write_batch(range(7))
    first.flush()
    second = stream.writer("w")
    assert (second.events_written, second.instance) == (7, 2)
    second.write(7)
    second.close()
    assert everything(stream) == list(range(8))


def test_an_older_instance_is_refused_and_stores_nothing(home: StreamHome) -> None:
    stream = home.create_stream("s")
    first = stream.writer("w")
    first.write(1)
    second = stream.writer("w")
    for action in (first.flush, lambda: first.note_time(5), first.mark_idle):
        assert code_of(action) == "writer-superseded"
    assert code_of(first.close) == "writer-superseded"
    second.close()
    assert (everything(stream), stream.why().closed) == ([], ("w",))
    idle = stream.writer("w")
    stream.writer("w")
    idle.close()


def test_a_closed_writer_is_refused(home: StreamHome) -> None:
    writer = home.create_stream("s").writer("w")
    writer.close()
    writer.close()
    for action in (lambda: writer.write(1), lambda: writer.write_batch([1]), writer.flush, writer.mark_idle):
        assert code_of(action) == "writer-closed"
    assert code_of(lambda: writer.note_time(1)) == "writer-closed"


def test_numbers_with_a_gap_are_refused(home: StreamHome) -> None:
    stream = home.create_stream("s")
    writer = stream.writer("w")
    batch = pa.record_batch([[None], [b"x"]], schema=stream.schema)
    events = Events(batch, np.zeros(1))
    with pytest.raises(Conflict):
        stream._backend.log.append(stream.info, Author("w", 1), 5, events)
    with pytest.raises(FloodmarkError) as refusal:
        stream._backend.log.append(stream.info, Author("nobody", 1), 0, events)
    assert refusal.value.code == "unknown-writer"
    assert stream.tail() == {0: 0}
    writer.close()


def test_writers_without_an_id_leave_nothing_behind(home: StreamHome) -> None:
    stream = home.create_stream("s")
    with stream.writer() as writer:
        writer.write(1)
        assert writer.id is None
        assert code_of(lambda: writer.note_time(1)) == "writer-without-id"
        assert code_of(writer.mark_idle) == "writer-without-id"
    assert (everything(stream), stream.why().writers) == ([1], ())


def test_a_chunk_is_sliced_by_offsets() -> None:
    chunk = Chunk(0, 10, pa.record_batch({"a": [1, 2, 3]}))
    assert chunk.slice(11, 12).batch.to_pydict() == {"a": [2]}
    assert json.loads(json.dumps([chunk.slice(0, 99).first, chunk.slice(12, 99).first])) == [10, 12]
