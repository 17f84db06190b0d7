"""Retention of the marks log: readers that look while entries are deleted, and what is left to look up."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import delete

from floodmark.bindings import BoundStream
from floodmark.streams import Controller, EntryKind, GroupCut, LookupStatus, Reader, Stream, StreamHome, TimeWindow
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.tables import ENTRIES
from floodmark.testing import ManualClock
from support.streams.group_tools import NOW

SECOND = 1_000_000
Race = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def controller(local: StreamHome) -> Controller:
    return Controller(local)


@pytest.fixture
def stream(home: StreamHome) -> Stream:
    return home.create_stream("s", marks_retention="1 second", writer_timeout="1 day", rate_floor="0 seconds")


@pytest.fixture
def mark(stream: Stream, local: StreamHome, controller: Controller, clock: ManualClock) -> Iterator[Callable[[], None]]:
    """Give a function that writes an event and its mark; retention then deletes all older entries."""
    writer = local.stream("s").writer("w")
    times = iter(range(100, 100_000))

    def mark() -> None:
        clock.advance(2 * SECOND)
        writer.write(1)
        writer.note_time(next(times))
        controller.step()

    yield mark
    writer.close()


@pytest.fixture
def race(mark: Callable[[], None]) -> Race:
    """Give a block in which retention deletes all entries whenever their numbers have been read."""

    @contextmanager
    def race() -> Iterator[None]:
        numbers = MarksTable.numbers

        def numbers_of_deleted(table: MarksTable) -> range:
            found = numbers(table)
            mark()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MarksTable, "numbers", numbers_of_deleted)
            yield

    return race


LOOKS: dict[str, Callable[[StreamHome, StreamHome, Any, Any], Any]] = {
    "time at the head": lambda home, local, group, reader: home.stream("s").time_at({0: 0}),
    "time at the tail": lambda home, local, group, reader: home.stream("s").time_at(home.stream("s").tail()),
    "window of a group": lambda home, local, group, reader: group.time_window(),
    "why of a group": lambda home, local, group, reader: group.why(),
    "window of a reader": lambda home, local, group, reader: reader.time_window(),
    "read": lambda home, local, group, reader: [reader.read(NOW) for _ in range(4)],
    "acknowledge": lambda home, local, group, reader: (reader.read(NOW), reader.acknowledge()),
    "a reader that is opened": lambda home, local, group, reader: group.reader("other").close(),
    "a group from a time on": lambda home, local, group, reader: home.create_group("t", "s", start=102),
    "a group from a cut on": lambda home, local, group, reader: home.create_group("c", "s", start=group.cut()),
    "a reset": lambda home, local, group, reader: group.reset(group.cut()),
    "a first tick": lambda home, local, group, reader: BoundStream(local, "s").tick(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_entries_that_are_deleted_while_they_are_looked_at_are_no_error(
    home: StreamHome, local: StreamHome, mark: Callable[[], None], race: Race, look: Any
) -> None:
    for _ in range(3):
        mark()
    group = home.create_group("g", "s")
    with group.reader("r", ttl="1 hour", max_rows=1) as reader:
        reader.read(NOW)
        reader.acknowledge()
        mark()
        with race():
            look(home, local, group, reader)


def test_a_cut_has_the_time_of_what_is_left_of_the_log(
    home: StreamHome, stream: Stream, mark: Callable[[], None], race: Race
) -> None:
    for _ in range(3):
        mark()
    with race():
        head, tail = stream.time_at({0: 0}), stream.time_at({0: 1_000_000})
    assert (head.where, head.entry) == (LookupStatus.BEFORE_FIRST, None)
    assert tail.where is LookupStatus.AFTER_LAST
    assert tail.entry is not None
    assert tail.entry.kind is EntryKind.WATERMARK
    assert tail.entry.lower is not None
    assert tail.entry.lower > 102


def test_the_window_of_a_live_reader_rises_while_entries_are_deleted(
    home: StreamHome, stream: Stream, mark: Callable[[], None], race: Race
) -> None:
    mark()
    group = home.create_group("g", "s")
    with group.reader("r", ttl="1 hour", max_rows=1) as reader:
        lowers: list[int | None] = []
        for is_racing in (False, True, False, True, True, False, True, False):
            with race() if is_racing else nullcontext():
                reader.read(NOW)
                reader.acknowledge()
                window = reader.time_window()
                lowers.append(None if window is None else window.lower)
        while reader.read(NOW) is not None:
            pass
        assert reader.time_window() == TimeWindow(stream.marks()[-1].lower, None)
    assert lowers[0] is not None
    assert [lower or 0 for lower in lowers] == sorted(lower or 0 for lower in lowers)


# -- the standing watermark


def old_watermark(home: StreamHome, controller: Controller, clock: ManualClock, leave: str) -> Stream:
    """Return a stream whose only watermark, 100, is older than its retention, behind it an entry of another kind."""
    stream = home.create_stream("old", marks_retention="10 seconds", writer_timeout="1 day", rate_floor="0 seconds")
    writer = stream.writer("w")
    writer.write(1)
    writer.note_time(100)
    controller.step()
    clock.advance(60 * SECOND)
    writer.write(2)
    if leave == "idle":
        writer.mark_idle()
    else:
        writer.close()
    controller.step()
    assert stream.marks()[-1].kind.value == leave
    return stream


def rows_read(reader: Reader) -> int:
    """Read until the group is finished, or a few times in vain, and return the number of rows."""
    rows = 0
    for _ in range(20):
        batch = reader.read("50 milliseconds")
        rows += 0 if batch is None else len(batch)
        if reader.is_finished:
            break
    return rows


@pytest.mark.parametrize("leave", ["idle", "unknown"])
def test_retention_leaves_the_newest_watermark_to_lookups_by_time(
    home: StreamHome, controller: Controller, clock: ManualClock, leave: str
) -> None:
    stream = old_watermark(home, controller, clock, leave)
    lookups = [stream.cut_at(100), stream.ending_at(100), stream.starting_at(100)]
    assert [(lookup.where, lookup.cut) for lookup in lookups] == [(LookupStatus.INSIDE, {0: 1})] * 3
    assert stream.cut_at(101).where is LookupStatus.AFTER_LAST
    assert stream.await_mark(100, timeout=NOW).lower == 100
    group = home.create_group("g", "old", end=100)
    with group.reader("r") as reader:
        assert rows_read(reader) == 1
    assert group.is_finished


@pytest.mark.parametrize("leave", ["idle", "unknown"])
def test_a_group_that_waits_for_its_end_finishes_when_retention_runs_first(
    home: StreamHome, controller: Controller, clock: ManualClock, leave: str
) -> None:
    stream = old_watermark(home, controller, clock, leave)
    group = home.create_group("g", "old", end=150)
    assert group.state.progress_of("old").end is None
    with stream.writer("again") as again:
        again.write(3)
        again.note_time(150)
        controller.step()
        clock.advance(60 * SECOND)
        again.mark_idle()
        controller.step()
        with group.reader("r") as reader:
            assert rows_read(reader) == 3
    assert group.is_finished


@pytest.mark.parametrize("leave", ["idle", "unknown"])
def test_an_entry_that_repeats_a_deleted_watermark_still_ends_a_group(
    home: StreamHome, local: StreamHome, controller: Controller, clock: ManualClock, leave: str
) -> None:
    """Earlier releases deleted the newest watermark too."""
    stream = old_watermark(home, controller, clock, leave)
    with local.home.write() as connection:
        connection.execute(delete(ENTRIES).where(ENTRIES.c.kind == EntryKind.WATERMARK.value))
    assert (stream.ending_at(100).where, stream.ending_at(100).cut) == (LookupStatus.INSIDE, {0: 2})
    assert stream.await_mark(100, timeout=NOW).lower == 100
    assert stream.starting_at(100).where is LookupStatus.BEFORE_FIRST, "rows of any time may lie before that entry"


def test_a_group_keeps_its_lower_when_retention_deletes_the_entry_of_its_place(
    home: StreamHome, stream: Stream, mark: Callable[[], None]
) -> None:
    mark()
    group = home.create_group("g", "s")
    with group.reader("r", ttl="1 hour", max_rows=1) as reader:
        reader.read(NOW)
        reader.acknowledge()
        assert reader.time_window() == TimeWindow(100, None)
        checkpoint = group.cut()
    for _ in range(3):
        mark()
    assert [entry.lower for entry in stream.marks()] == [103]
    assert group.time_window() == TimeWindow(100, 103)
    assert group.why().window == TimeWindow(100, 103)
    with group.reader("r", ttl="1 hour", max_rows=1) as reader:
        windows = [reader.time_window()]
        while reader.read(NOW) is not None:
            windows.append(reader.time_window())
        windows.append(reader.time_window())
    assert windows == [TimeWindow(100, 103)] * 4 + [TimeWindow(103, None)]
    assert group.time_window() == TimeWindow(103, None)
    group.reset(checkpoint)
    assert group.time_window() == TimeWindow(100, 103)
    copied = home.create_group("copied", "s", start=GroupCut.load(checkpoint.save()))
    assert copied.time_window() == TimeWindow(100, 103)


def test_a_place_behind_all_writers_gone_states_nothing_when_it_is_deleted(
    home: StreamHome, stream: Stream, local: StreamHome, controller: Controller, clock: ManualClock
) -> None:
    with local.stream("s").writer("first") as first:
        first.note_time(100)
        controller.step()
    controller.step()
    group = home.create_group("g", "s")
    assert group.time_window() is None
    second = local.stream("s").writer("second")
    second.write(1)
    for at in (200, 300):
        clock.advance(2 * SECOND)
        second.note_time(at)
        controller.step()
    assert [entry.lower for entry in stream.marks()] == [300]
    assert group.time_window() == TimeWindow(None, 300)
    second.close()
