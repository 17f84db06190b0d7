"""Streams that several processes use at once, some of which are killed."""

import pytest

from floodmark.streams import EntryKind, MarkOutcome, StreamHome, connect
from support.streams.reading import everything
from support.streams.stream_fixtures import STORES
from support.streams.stream_processes import (
    CONTEXT,
    KEYS,
    commit_and_hang,
    control,
    flush_and_hang,
    lowers,
    start,
    write_on,
    write_until,
)
from support.waiting import wait_until


def kill(process: object) -> None:
    process.kill()  # type: ignore[attr-defined]
    process.join()  # type: ignore[attr-defined]


def check_order(found: list[list[object]], events: dict[str, int]) -> None:
    """Each event is there once, and those of a writer and key are in order."""
    assert sorted(map(tuple, found)) == sorted((name, KEYS[n % 7], n) for name in events for n in range(events[name]))
    for name in events:
        for key in KEYS:
            numbers = [number for writer, k, number in found if (writer, k) == (name, key)]
            assert numbers == sorted(numbers)  # type: ignore[type-var]


def test_when_a_controller_is_killed_another_goes_on_and_the_log_does_not_fork(location: str, store: str) -> None:
    with connect(location, controller=False) as home:
        stream = home.create_stream("s", rate_floor="1 millisecond", writer_timeout="1 minute")
        up = [CONTEXT.Event(), CONTEXT.Event()]
        controllers = [start(control, store, f"c{number}", up[number]) for number in range(2)]
        assert all(event.wait(30) for event in up)
        writers = [stream.writer(name) for name in ("a", "b")]
        for number in range(1, 31):
            for writer in writers:
                assert writer.note_time(number) is MarkOutcome.ACCEPTED
            if number == 10:
                stream.await_mark(number)
                kill(controllers[0])
        stream.await_mark(30, timeout="20 seconds")
        kill(controllers[1])
        up.append(CONTEXT.Event())
        last = start(control, store, "c2", up[2])
        for writer in writers:
            writer.note_time(31)
        stream.await_mark(31, timeout="20 seconds")
        kill(last)
        found = lowers(stream)
        assert found == sorted(set(found))
        assert [entry.seq for entry in stream.marks()] == list(range(1, len(stream.marks()) + 1))


def test_writers_during_scales_lose_double_and_reorder_nothing(location: str) -> None:
    with connect(location, controller=False) as home:
        stream = home.create_stream("s", segments=2)
        names = ["a", "b", "c"]
        enough, written = CONTEXT.Event(), CONTEXT.Queue()
        writers = [start(write_until, location, name, enough, written) for name in names]
        wait_until(lambda: sum(stream.tail().values()) > 0)
        for scales in range(8):
            current = stream.layout.current
            if len(current) < 6:
                stream.split(current[scales % len(current)].id)
            else:
                stream.merge([one.id for one in current[1:4]])
            before = sum(stream.ends().values())
            wait_until(lambda before=before: sum(stream.ends().values()) > before)  # type: ignore[misc]
        enough.set()
        events = dict(written.get(timeout=30) for _ in names)
        for writer in writers:
            writer.join(30)
        assert [writer.exitcode for writer in writers] == [0, 0, 0]
        check_order(everything(stream), events)


def test_a_writer_that_is_killed_again_and_again_writes_each_event_once(location: str) -> None:
    with connect(location, controller=False) as home:
        stream = home.create_stream("s", segments=2)
        for _ in range(3):
            before = sum(stream.tail().values())
            writer = start(write_on, location, "w", 100_000, 5)
            wait_until(lambda before=before: sum(stream.tail().values()) > before + 50)  # type: ignore[misc]
            kill(writer)
        written = sum(stream.tail().values())
        last = start(write_on, location, "w", written + 20, 5)
        last.join(30)
        assert last.exitcode == 0
        check_order(everything(stream), {"w": written + 20})


def test_a_writer_killed_between_flush_and_mark_has_its_events_and_no_mark(live: StreamHome, live_at: str) -> None:
    stream = live.create_stream("s", writer_timeout="300 milliseconds")
    other = stream.writer("other")
    has_flushed = CONTEXT.Event()
    writer = start(flush_and_hang, live_at, has_flushed)
    assert has_flushed.wait(30)
    kill(writer)
    other.note_time(50)
    assert stream.await_mark(50).writers == ("other",), "the dead one is waited for until its timeout"
    again = stream.writer("w")
    assert (again.events_written, again.instance) == (5, 2)
    assert len(everything(stream)) == 5
    assert again.note_time(100) is MarkOutcome.ACCEPTED
    other.note_time(110)
    entry = stream.await_mark(100)
    assert (entry.lower, "w" in entry.writers) == (100, True)


@pytest.mark.parametrize("kind", STORES, indirect=True)
def test_a_commit_whose_process_was_killed_before_its_mark_gets_the_mark(live: StreamHome, location: str) -> None:
    stream = live.create_stream("s")
    has_committed = CONTEXT.Event()
    writer = start(commit_and_hang, location, has_committed)
    assert has_committed.wait(30)
    kill(writer)
    assert everything(stream) == [0, 1, 2, 3, 4]
    with stream.writer("starts the controller") as other:
        other.mark_idle()
        entry = stream.await_mark(100)
    assert (entry.lower, entry.cut, entry.writers, entry.kind) == (100, {0: 5}, ("w",), EntryKind.WATERMARK)
    assert everything(stream) == [0, 1, 2, 3, 4]
