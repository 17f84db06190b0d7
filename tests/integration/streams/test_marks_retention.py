"""Retention of the marks log: readers that look while entries are deleted, and what is left to look up."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

from floodmark.bindings import BoundStream
from floodmark.streams import Controller, EntryKind, LookupStatus, Stream, StreamHome, TimeWindow
from floodmark.streams.local.marks import MarksTable
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
