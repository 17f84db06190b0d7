"""Groups that several processes read at once, some of which are killed in the middle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.streams import StreamHome, connect
from floodmark.streams.kafka.records import SEAL
from support.streams.reader_processes import diaries, read_on
from support.streams.stream_processes import KEYS, start, write_on
from support.waiting import wait_until


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    (tmp_path / "diaries").mkdir()
    return tmp_path / "diaries"


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for process in started:
        process.kill()
        process.join()


def count(directory: Path, what: str) -> int:
    return sum(entry[0] == what for entries in diaries(directory).values() for entry in entries)


def test_readers_that_are_killed_are_replaced_nothing_is_lost_and_each_event_counts_once(
    location: str, diary: Path, processes: list[Any]
) -> None:
    events = 1_500
    with connect(location, controller=False) as home:
        stream = home.create_stream("s", segments=4)
        home.create_group("g", "s")
        write_on(location, "w", events // 2, 50)
        processes += [start(read_on, location, f"r{number}", str(diary), 0.01) for number in range(3)]
        wait_until(lambda: count(diary, "acknowledged") >= 5)
        processes[0].kill()
        stream.split(0)
        stream.merge([2, 3])
        write_on(location, "w", events, 50)
        wait_until(lambda: count(diary, "acknowledged") >= 15)
        processes[1].kill()
        processes.append(start(read_on, location, "late", str(diary), 0.0))
        stream.seal()
        for process in processes[2:]:
            process.join(60)
            assert process.exitcode == 0
        check(home, diaries(diary), events)


def is_seal_record(home: StreamHome, segment: int, offset: int) -> bool:
    """Return whether a record of the stream's topic is a seal: a second process may have sealed behind it."""
    info = home.stream("s").info
    assert info.log is not None, "only a topic has records without an event"
    connection, topic = home.local._connections.of(info)
    (records,) = connection.committed.read(topic, segment, offset, offset + 1)
    return SEAL in dict(records[0].headers() or ())


def check(home: StreamHome, told: dict[str, list[list[Any]]], events: int) -> None:
    assert home.group("g").is_finished
    acknowledged: dict[tuple[int, int], str] = {}
    for name, entries in told.items():
        for what, segment, first, end, *_ in entries:
            for offset in range(first, end) if what == "acknowledged" else ():
                assert (segment, offset) not in acknowledged, "what counts is not read again"
                acknowledged[segment, offset] = name
    read: dict[tuple[int, int], Any] = {}
    for entries in told.values():
        for what, segment, first, *rest in entries:
            if what == "read":
                read.update({(segment, first + place): event for place, event in enumerate(rest[1])})
    there = {(segment, offset) for segment, end in home.stream("s").ends().items() for offset in range(end)}
    assert sorted(event[2] for event in read.values()) == list(range(events)), "nothing is lost"
    assert set(read) <= there
    assert all(is_seal_record(home, *place) for place in there - set(read)), "nothing else has an offset"
    # A process may be killed between the store's word and its diary: of one batch a life, at most, it is not known.
    unknown = set(read) - set(acknowledged)
    assert len(unknown) <= 2 * 40
    layout = home.stream("s").layout
    for key in KEYS:
        numbers = [read[place][2] for place in sorted(read) if read[place][1] == key]
        assert numbers == sorted(numbers), "events of a key are in the order of the segments"
    for entries in told.values():
        # Each reader by itself never comes to a segment before those that it took the place of.
        seen: list[int] = [segment for what, segment, *_ in entries if what == "read"]
        for place, segment in enumerate(seen):
            assert not {one.id for one in layout.predecessors(segment)} & set(seen[place:])


def test_a_group_whose_only_process_was_killed_goes_on_where_it_was(
    location: str, diary: Path, processes: list[Any]
) -> None:
    with connect(location, controller=False) as home:
        stream = home.create_stream("s", segments=2)
        home.create_group("g", "s")
        write_on(location, "w", 400, 50)
        processes.append(start(read_on, location, "r", str(diary), 0.02))
        wait_until(lambda: count(diary, "acknowledged") >= 2)
        processes[0].kill()
        processes[0].join()
        stream.seal()
        wait_until(lambda: home.group("g").readers() == ())
        before = home.group("g").cut()["s"].cut
        assert sum(before.values()) >= 80
        with home.group("g").reader("r") as reader:
            firsts: dict[int, int] = {}
            for batch in reader:
                firsts.setdefault(batch.segment, batch.first)
        assert firsts.items() <= before.items()
        assert home.group("g").cut()["s"].cut == stream.tail()
