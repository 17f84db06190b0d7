"""Groups as they are kept: found, listed, deleted, asked for twice, raced for, and ended by their streams."""

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from floodmark.errors import (
    GroupDeleted,
    GroupExists,
    HomeUnusable,
    InvalidName,
    InvalidOption,
    ReaderExists,
    ReaderExpelled,
    StreamDeleted,
    UnknownGroup,
    UnknownReader,
)
from floodmark.streams import Controller, ReaderGroup, StreamHome
from floodmark.streams.groups.requests import GroupRef, NewGroup, Report, StreamBounds
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.groups import GroupStore
from floodmark.testing import ManualClock
from support.streams.group_tools import NOW, counts, crash, drain, fill, payloads, settle


@pytest.fixture
def group(home: StreamHome) -> ReaderGroup:
    home.create_stream("s", segments=2)
    return home.create_group("g", "s")


def test_groups_are_found_listed_and_deleted(home: StreamHome, group: ReaderGroup) -> None:
    home.create_group("a", ["s"])
    assert [one.name for one in home.groups()] == ["a", "g"]
    assert home.group("g").streams == ("s",)
    with pytest.raises(GroupExists):
        home.create_group("g", "s")
    with pytest.raises(UnknownGroup, match="Did you mean 'g'"):
        home.group("G")
    home.delete_group("a")
    with pytest.raises(UnknownGroup):
        home.delete_group("a")
    group.delete()
    assert home.groups() == []


def test_what_was_opened_on_a_group_ends_with_it(home: StreamHome, group: ReaderGroup) -> None:
    reader = group.reader("r")
    group.delete()
    with pytest.raises(GroupDeleted):
        group.cut()
    home.create_group("g", "s")
    for use in (group.cut, group.checkpoint, lambda: group.reader("x"), lambda: settle(reader), lambda: group.reset(5)):
        with pytest.raises(GroupDeleted, match="created again"):
            use()
    reader.close()
    assert home.group("g").readers() == ()


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_stream_that_was_deleted_ends_the_group(home: StreamHome, group: ReaderGroup, is_anew: bool) -> None:
    reader = group.reader("r")
    home.delete_stream("s")
    if is_anew:
        home.create_stream("s", segments=2)
    for use in (group.cut, group.time_window, group.why, lambda: group.reader("x"), lambda: settle(reader)):
        with pytest.raises(StreamDeleted):
            use()
    with pytest.raises(StreamDeleted):
        reader.read("20 seconds")
    reader.close()
    home.delete_group("g")
    assert home.groups() == []


def test_a_reader_id_that_is_alive_is_refused(group: ReaderGroup, clock: ManualClock) -> None:
    with group.reader("r", ttl="10 seconds") as reader:
        with pytest.raises(ReaderExists):
            group.reader("r")
        crash(reader)
        clock.advance(10_000_000)
        with group.reader("r"):
            assert group.readers() == ("r",)
    for bad in ("", "two\nlines", 5):
        with pytest.raises(InvalidName):
            group.reader(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        group.reader("r", max_rows=0)
    with pytest.raises(InvalidOption):
        group.reader("r", ttl="0 seconds")


def test_a_reader_that_was_expelled_hears_it_and_its_last_word_does_not_count(
    home: StreamHome, group: ReaderGroup
) -> None:
    fill(home, "s", 20)
    reader = group.reader("r", max_rows=2)
    reader.read(NOW)
    with pytest.raises(UnknownReader, match="Its readers are 'r'"):
        group.expel("rr")
    group.expel("r")
    with pytest.raises(ReaderExpelled):
        reader.acknowledge()
    assert sum(group.cut()["s"].cut.values()) == 0
    with pytest.raises(ReaderExpelled):
        reader.close()
    reader.close()
    with group.reader("r") as again:
        assert sorted(drain(again)) == list(range(20))


def test_a_reader_whose_id_another_one_has_now_reads_nothing_of_its(
    home: StreamHome, group: ReaderGroup, clock: ManualClock
) -> None:
    fill(home, "s", 20)
    old = group.reader("r", ttl="10 seconds")
    clock.advance(10_000_000)
    with group.reader("r") as new:
        with pytest.raises(ReaderExpelled):
            old.read(NOW)
        old.close()
        assert sorted(drain(new)) == list(range(20))


def test_a_state_that_is_older_than_the_one_that_is_known_is_not_taken(group: ReaderGroup) -> None:
    before = group.state
    with group.reader("r") as reader:
        known = reader._member.state
        assert not reader._member.adopt_state(before)
        assert reader._member.state is known
        assert reader._member.adopt_state(replace(known, version=known.version + 1))


def test_a_slow_reader_is_kept_alive_by_its_own_thread(home: StreamHome, group: ReaderGroup) -> None:
    with group.reader("r", ttl="30 milliseconds") as reader:
        beats: list[Any] = []
        sync = type(reader._member._backend.groups).sync
        done = threading.Event()

        def heard(self: Any, ref: Any, report: Any) -> Any:
            beats.append(threading.current_thread().name)
            if len(beats) > 3:
                done.set()
            return sync(self, ref, report)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(reader._member._backend.groups), "sync", heard)
            assert done.wait(20)
        assert set(beats) == {"floodmark reader r"}


def test_a_store_that_is_away_for_a_moment_does_not_end_the_signs_of_life(
    group: ReaderGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group.reader("r", ttl="30 milliseconds") as reader:
        calls: list[int] = []
        done = threading.Event()

        def away(*_: Any) -> Any:
            calls.append(1)
            if len(calls) > 3:
                done.set()
            raise HomeUnusable("The disk is full.", rule="It must not be.", remedy="Make room.")

        with monkeypatch.context() as patch:
            patch.setattr(type(reader._member._backend.groups), "sync", away)
            assert done.wait(20)
        assert reader.read(NOW) is None


def test_a_reader_that_is_dropped_falls_silent(group: ReaderGroup) -> None:
    reader = group.reader("r", ttl="30 milliseconds")
    ticker = reader._member._ticker
    del reader
    ticker.join(20)
    assert not ticker._thread.is_alive()


def test_readers_rebalance_when_one_joins_leaves_and_dies(home: StreamHome, clock: ManualClock) -> None:
    home.create_stream("s", segments=7)
    group = home.create_group("g", "s")
    a, b = group.reader("a", ttl="10 seconds"), group.reader("b", ttl="10 seconds")
    settle(a, b)
    assert counts(group) == [3, 4]
    c = group.reader("c", ttl="10 seconds")
    settle(a, b, c)
    assert counts(group) == [2, 2, 3]
    b.close()
    settle(a, c)
    assert counts(group) == [3, 4]
    crash(c)
    clock.advance(9_000_000)
    settle(a)
    assert counts(group) == [3, 4]
    clock.advance(1_000_000)
    settle(a)
    assert counts(group) == [7]
    assert len(a.segments) == 7
    a.close()


def test_a_merge_whose_predecessors_two_readers_finish(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=2)
    fill(home, "s", 20)
    stream.merge([0, 1])
    fill(home, "s", 10, first=20)
    group = home.create_group("g", "s")
    with group.reader("a") as a, group.reader("b") as b:
        settle(a, b)
        first = drain(a)
        assert group.state.progress_of("s").finished == {a_segment(stream, first)}
        assert all(number < 20 for number in first)
        rest = drain(b, a)
        assert sorted(first + rest) == list(range(30))
        settle(a, b)
        assert group.cut()["s"].cut == {2: 10}


def a_segment(stream: Any, events: list[int]) -> int:
    """Return in which segment of the first epoch these events were."""
    (segment,) = {
        number
        for number in (0, 1)
        for chunk in stream.read(number)
        for payload in chunk.batch["payload"].to_pylist()
        if int(payload) in events
    }
    return int(segment)


class LostAnswers:
    """Asks a keeper everything twice, as one does when the first answer was lost."""

    def __init__(self, keeper: Any) -> None:
        self.keeper = keeper

    def __getattr__(self, name: str) -> Any:
        def twice(*args: Any) -> Any:
            getattr(self.keeper, name)(*args)
            return getattr(self.keeper, name)(*args)

        return twice


def test_to_ask_again_after_an_answer_was_lost_does_no_harm(home: StreamHome) -> None:
    home.create_stream("s", segments=2)
    keeper = LostAnswers(home._backend.groups)
    new = NewGroup("g", uuid.uuid4().int >> 66, (StreamBounds("s"),))
    ref = GroupRef("g", new.id)
    assert keeper.create(new).version == 1
    with pytest.raises(GroupExists):
        home._backend.groups.create(NewGroup("g", 5, new.streams))
    assert keeper.join(ref, "r", "i", 30_000_000).reader("r").segments == {("s", 0), ("s", 1)}
    fill(home, "s", 20)
    end = home.stream("s").tail()[0]
    report = Report("r", "i", 1, {("s", 0): end}, released=frozenset({("s", 1)}))
    state = keeper.sync(ref, report)
    assert state.progress_of("s").position == {0: end, 1: 0}
    state = keeper.start_checkpoint(ref, "c", "noon", 60_000_000)
    assert state.pending.waits_for == {"r"}
    state = keeper.sync(ref, Report("r", "i", 1, confirms="c"))
    assert [one.id for one in state.checkpoints] == ["c"]
    keeper.cancel_checkpoint(ref, "c")
    state = keeper.reset(ref, "once", (StreamBounds("s"),))
    assert (state.generation, len(state.checkpoints)) == (2, 1)
    keeper.join(ref, "r", "j", 30_000_000)
    keeper.expel(ref, "r", "i")
    assert home.group("g").readers() == ("r",)
    keeper.leave(ref, Report("r", "j", 2))
    assert home.group("g").readers() == ()
    keeper.delete(ref)
    assert home.groups() == []


def test_a_sign_of_life_alone_is_not_written_every_time(home: StreamHome, clock: ManualClock) -> None:
    home.create_stream("s")
    group = home.create_group("g", "s")
    with group.reader("r", ttl="40 seconds") as reader:
        settle(reader)
        before = group.state.version
        clock.advance(9_000_000)
        settle(reader)
        assert group.state.version == before
        clock.advance(1_000_000)
        settle(reader)
        assert group.state.version == before + 1


def test_readers_that_join_at_the_same_moment_all_get_in(new_home: Callable[[], StreamHome], home: StreamHome) -> None:
    home.create_stream("s", segments=8)
    home.create_group("g", "s")
    homes = [new_home() for _ in range(4)]
    readers: list[Any] = []

    def join(number: int) -> None:
        readers.append(homes[number].group("g").reader(f"r{number}"))

    threads = [threading.Thread(target=join, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert home.group("g").readers() == ("r0", "r1", "r2", "r3")
    settle(*readers)
    assert counts(home.group("g")) == [2, 2, 2, 2]
    for reader in readers:
        reader.close()


def test_a_group_that_came_to_new_segments_while_a_step_was_prepared(
    local: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = local.create_stream("s")
    group = local.create_group("g", "s")
    gather = GroupStore._facts
    with group.reader("r") as reader:

        def scaled_meanwhile(self: Any, parts: Any) -> Any:
            facts = gather(self, parts)
            monkeypatch.setattr(GroupStore, "_facts", gather)
            stream.split(0)
            local._backend.groups.sync(group._ref, Report("r", reader._member.instance, 1, {("s", 0): 0}))
            return facts

        monkeypatch.setattr(GroupStore, "_facts", scaled_meanwhile)
        with group.reader("other"):
            assert group.cut()["s"].cut == {1: 0, 2: 0}


def test_a_stream_that_was_scaled_while_a_group_was_created(local: StreamHome, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = local.create_stream("s")
    before = stream.info
    stream.split(0)
    with stream.writer("w") as writer:
        writer.write_batch(list(range(9)), key=[str(number) for number in range(9)])
        writer.note_time(5)
        Controller(local).step()
    find = Catalog.find
    answers = [before, before]
    monkeypatch.setattr(Catalog, "find", lambda self, name: answers.pop() if answers else find(self, name))
    group = local.create_group("g", "s")
    assert (answers, group.cut()["s"].cut) == ([], {1: 0, 2: 0})


def test_a_reader_gets_a_segment_that_it_has_never_heard_of(
    home: StreamHome, new_home: Callable[[], StreamHome]
) -> None:
    stream = home.create_stream("s")
    group = home.create_group("g", "s")
    with group.reader("a") as a, new_home().group("g").reader("b") as b:
        assert list(b.segments) == []
        stream.split(0)
        settle(a)
        b._member.synced_at = -1.0
        b.acknowledge()
        assert len(b.segments) == 1
        fill(home, "s", 20)
        assert sorted(drain(a, b)) == list(range(20))


def test_why_tells_which_segments_hold_the_window_and_who_has_them(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=2)
    group = live.create_group("g", "s")
    with stream.writer("w") as writer, group.reader("a") as a, group.reader("b") as b:
        settle(a, b)
        writer.write_batch(list(range(20)), key=[f"k{number}" for number in range(20)])
        writer.note_time(10)
        stream.await_mark(10)
        drain(a)
        settle(a, b)
        told = group.why()
        (mine,), (theirs,) = (one for _, one in a.segments), (one for _, one in b.segments)
        assert (told.holders, told.next_lower, told.window) == ((theirs,), 10, group.time_window())
        views = {view.segment: view for view in told.segments}
        assert (views[theirs].reader, views[theirs].holds, views[theirs].offset) == ("b", True, 0)
        assert (views[mine].reader, views[mine].holds, views[mine].time) == ("a", False, 10)
        assert views[mine].moved_at is not None
        assert f"segments {theirs} hold it below 10" in str(told)
        group.begin_checkpoint("noon")
        told = group.why()
        assert (told.pending_checkpoint, told.waits_for) == ("noon", ("a", "b"))
        assert "the checkpoint noon waits for a, b" in str(told)
        settle(a, b)
        drain(a, b)
        settle(a, b)
        assert "every mark was passed" in str(group.why())
    assert group.why().unassigned == (0, 1)
    assert "no reader" in str(group.why())


def test_readers_are_iterated_until_the_group_is_finished_by_all_of_them(live: StreamHome) -> None:
    stream = live.create_stream("s", segments=4)
    fill(live, "s", 1_000)
    group = live.create_group("g", "s", end=stream.tail())
    found: list[Any] = []
    lock = threading.Lock()

    def run(name: str) -> None:
        with group.reader(name, max_rows=7) as reader:
            for batch in reader:
                with lock:
                    found.extend(payloads(batch))

    threads = [threading.Thread(target=run, args=(f"r{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(1_000))
    assert group.is_finished


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("floodmark reader")]
    assert left == []
