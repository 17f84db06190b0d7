"""Checkpoints and cuts of groups on real stores: taken between batches, kept, and gone back to."""

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from floodmark.errors import (
    CheckpointFailed,
    CheckpointPending,
    FloodmarkError,
    GroupReset,
    InvalidOption,
)
from floodmark.streams import Checkpoint, GroupCut, Reader, StreamHome, TimeWindow
from floodmark.streams.layout.positions import check_cut
from floodmark.streams.readers import reader as _reader
from floodmark.testing import ManualClock
from support.streams.group_tools import NOW, crash, drain, fill, payloads, settle
from support.waiting import wait_until


class Counting:
    """A reader of an application that keeps, under the name of each checkpoint, what it has counted so far."""

    def __init__(self, group: Any, name: str, kept: dict[str, list[Any]]) -> None:
        self.seen: list[Any] = []
        self.kept = kept
        self.reader: Reader = group.reader(name, on_checkpoint=self.keep, max_rows=3)

    def keep(self, name: str) -> None:
        self.kept.setdefault(name, []).extend(self.seen)

    def read(self) -> None:
        batch = self.reader.read(NOW)
        self.seen += [] if batch is None else payloads(batch)


def test_a_checkpoint_is_exactly_what_its_readers_had_kept(home: StreamHome) -> None:
    stream = home.create_stream("s", segments=4)
    fill(home, "s", 100)
    group = home.create_group("g", "s")
    kept: dict[str, list[Any]] = {}
    one, other = Counting(group, "one", kept), Counting(group, "other", kept)
    settle(one.reader, other.reader)
    for _ in range(4):
        one.read()
        other.read()
    request = group.begin_checkpoint("noon")
    with pytest.raises(CheckpointPending):
        group.begin_checkpoint("too soon")
    settle(one.reader)
    for _ in range(5):
        one.read()
    stream.split(0)
    fill(home, "s", 50, first=100)
    settle(other.reader)
    checkpoint = request.result()
    for _ in range(5):
        other.read()
    assert (checkpoint.name, checkpoint.confirmed, checkpoint.missing) == ("noon", ("one", "other"), ())
    assert group.checkpoints() == (checkpoint,)
    assert sum(checkpoint.cut["s"].cut.values()) == len(kept["noon"])
    one.reader.close()
    other.reader.close()
    again = Checkpoint.load(json.loads(json.dumps(checkpoint.save())))
    group.reset(again)
    with group.reader("r") as reader:
        assert sorted(kept["noon"] + drain(reader)) == list(range(150))


def test_a_checkpoint_waits_for_readers_in_other_threads(live: StreamHome) -> None:
    live.create_stream("s", segments=4)
    fill(live, "s", 400)
    group = live.create_group("g", "s")
    kept: dict[str, list[Any]] = {}
    names = [f"r{number}" for number in range(3)]
    readers = [Counting(group, name, kept) for name in names]
    enough = threading.Event()

    def run(counting: Counting) -> None:
        while not enough.is_set():
            batch = counting.reader.read("50 milliseconds")
            counting.seen += [] if batch is None else payloads(batch)
        counting.reader.close()

    threads = [threading.Thread(target=run, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    try:
        made = [group.checkpoint(f"c{number}", "20 seconds") for number in range(3)]
        fill(live, "s", 100, first=400)
        made.append(group.checkpoint("c3", "20 seconds"))
        wait_until(lambda: sum(len(reader.seen) for reader in readers) >= 500)
    finally:
        enough.set()
        for thread in threads:
            thread.join(20)
    layout = live.stream("s").layout
    for checkpoint in made:
        cut = checkpoint.cut["s"].cut
        assert check_cut(layout, cut) == cut
        assert sum(cut.values()) == len(kept[checkpoint.name]) == len(set(kept[checkpoint.name]))
        assert checkpoint.confirmed == tuple(names)
    assert sorted(event for reader in readers for event in reader.seen) == list(range(500))


def test_a_reader_that_does_not_confirm_in_time_leaves_nothing_behind(home: StreamHome) -> None:
    home.create_stream("s", segments=2)
    group = home.create_group("g", "s")
    with group.reader("hangs") as hangs:
        with pytest.raises(CheckpointFailed) as caught:
            group.checkpoint("noon", timeout="50 milliseconds")
        assert caught.value.fields["waits_for"] == ["hangs"]
        assert (group.state.pending, group.checkpoints()) == (None, ())
        hangs.read(NOW)
    assert group.checkpoint("later").confirmed == ()


def test_a_checkpoint_whose_asker_died_is_given_up_by_the_clock_of_the_store(
    home: StreamHome, clock: ManualClock
) -> None:
    home.create_stream("s", segments=2)
    group = home.create_group("g", "s")
    with group.reader("hangs", ttl="1 hour"):
        group.begin_checkpoint("noon", timeout="10 seconds")
        clock.advance(9_000_000)
        assert group.state.pending is not None
        clock.advance(1_000_000)
        assert group.state.pending is None


def test_a_reader_that_is_busy_hears_of_a_checkpoint(home: StreamHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reader, "_SYNC_SECONDS", 60.0)
    home.create_stream("s")
    fill(home, "s", 100)
    group = home.create_group("g", "s")
    with group.reader("r", max_rows=1) as reader:
        reader.read(NOW)
        group.begin_checkpoint("noon")
        time.sleep(0.1)
        assert reader.read(NOW) is not None
        assert [checkpoint.cut["s"].cut for checkpoint in group.checkpoints()] == [{0: 1}]


def test_a_reader_that_dies_while_it_is_waited_for_is_noticed_without_anybody_reading(live: StreamHome) -> None:
    live.create_stream("s")
    group = live.create_group("g", "s")
    crash(group.reader("dead", ttl="300 milliseconds"))
    assert group.checkpoint("noon", timeout="20 seconds").missing == ("dead",)


def test_a_checkpoint_that_is_complete_in_the_last_moment_counts(
    home: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create_stream("s")
    group = home.create_group("g", "s")
    keeper = type(group._backend.groups)
    cancel = keeper.cancel_checkpoint
    with group.reader("r") as reader:

        def late(self: Any, *args: Any) -> Any:
            settle(reader)
            return cancel(self, *args)

        monkeypatch.setattr(keeper, "cancel_checkpoint", late)
        assert group.checkpoint("noon", timeout="50 milliseconds").confirmed == ("r",)


def test_a_reader_that_dies_meanwhile_counts_as_it_is_stored(home: StreamHome, clock: ManualClock) -> None:
    home.create_stream("s", segments=2)
    fill(home, "s", 20)
    group = home.create_group("g", "s")
    dead, lives = group.reader("dead", max_rows=2, ttl="5 seconds"), group.reader("lives", ttl="1 hour")
    settle(dead, lives)
    dead.read(NOW)
    dead.acknowledge()
    dead.read(NOW)
    crash(dead)
    request = group.begin_checkpoint("noon", timeout="20 seconds")
    settle(lives)
    assert group.checkpoints() == ()
    clock.advance(5_000_000)
    checkpoint = request.result()
    assert (checkpoint.confirmed, checkpoint.missing) == (("lives",), ("dead",))
    assert sum(checkpoint.cut["s"].cut.values()) == 2
    settle(lives)
    assert len(lives.segments) == 2
    lives.close()


def test_what_on_checkpoint_raises_is_heard_and_it_is_asked_again(home: StreamHome) -> None:
    home.create_stream("s")
    group = home.create_group("g", "s")
    told: list[str] = []

    def keep(name: str) -> None:
        told.append(name)
        if len(told) == 1:
            raise OSError("the disk is full")

    with group.reader("r", on_checkpoint=keep) as reader:
        request = group.begin_checkpoint("noon")
        with pytest.raises(OSError, match="the disk is full"):
            settle(reader)
        assert group.checkpoints() == ()
        settle(reader)
        assert request.result().confirmed == ("r",)
    assert told == ["noon", "noon"]


def test_after_a_reset_readers_are_opened_again_and_windows_begin_at_the_place(live: StreamHome) -> None:
    stream = live.create_stream("s", schema="at BIGINT", time_columns="at")
    group = live.create_group("g", "s")
    with stream.writer("w") as writer:
        places: list[tuple[GroupCut, TimeWindow | None]] = []
        for at in (10, 20, 30):
            writer.write({"at": at})
            writer.note_time(at)
            stream.await_mark(at)
            with group.reader("r") as reader:
                assert reader.read(NOW) is not None
            places.append((group.cut(), group.time_window()))
        assert [window for _, window in places] == [TimeWindow(at, None) for at in (10, 20, 30)]
        old = group.reader("r")
        group.reset(GroupCut.load(places[0][0].save()))
        assert group.state.generation == 2
        assert group.time_window() == TimeWindow(10, 20)
        with pytest.raises(GroupReset):
            settle(old)
        old.close()
        (cut,) = places[0][0].cuts
        group.reset(GroupCut((replace(cut, places={"at": 3}),)))
        assert group.time_window() == TimeWindow(10, 20), "a place that the cut has not come to is not believed"
        with group.reader("r") as reader:
            assert reader.time_window() == TimeWindow(10, 20)
            times = [row for batch in iter(lambda: reader.read(NOW), None) for row in batch.batch["at"].to_pylist()]
            assert times == [20, 30]
        group.reset(20)
        assert group.time_window() == TimeWindow(10, 20)
        with group.reader("r") as reader:
            times = [row for batch in iter(lambda: reader.read(NOW), None) for row in batch.batch["at"].to_pylist()]
            assert times == [20, 30]
        group.reset(stream.head())
        assert group.time_window() == TimeWindow(None, 10)
        group.reset({"s": stream.tail()})
        assert group.time_window() == TimeWindow(30, None)


def test_a_bad_reset_changes_nothing(home: StreamHome) -> None:
    for name in ("s", "t"):
        home.create_stream(name, segments=2)
        fill(home, name, 10)
    group, other = home.create_group("g", "s", end={0: 4, 1: 4}), home.create_group("other", "t")
    two = home.create_group("two", ["s", "t"])
    foreign = other.checkpoint()
    home.delete_group("other")
    again = home.create_group("other", "t")
    before = group.state
    rows: list[tuple[Any, Any, str]] = [
        (group, foreign, "foreign-checkpoint"),
        (again, foreign, "foreign-checkpoint"),
        (group, foreign.cut, "foreign-cut"),
        (group, {0: 0}, "cut-invalid"),
        (group, {0: 4, 1: 5}, "bounds-reversed"),
        (group, None, "invalid-option"),
        (group, {"t": 0}, "stream-not-in-group"),
        (two, {"s": {0: 0, 1: 0}}, "invalid-option"),
        (two, {"s": {0: 0, 1: 0}, "t": None}, "invalid-option"),
    ]
    for one, to, code in rows:
        with pytest.raises(FloodmarkError) as caught:
            one.reset(to)
        assert caught.value.code == code
    assert group.state == before
    assert (two.state.generation, again.state.generation) == (1, 1)
    again.reset(foreign.cut)
    assert again.state.generation == 2


def test_a_reset_keeps_the_end(home: StreamHome) -> None:
    home.create_stream("s")
    fill(home, "s", 10)
    group = home.create_group("g", "s", end={0: 6})
    for start in (0, 4):
        group.reset({0: start})
        with group.reader("r") as reader:
            assert drain(reader) == list(range(start, 6))
            assert reader.is_finished


def test_a_reset_keeps_the_start_time_that_a_cut_was_read_with(live: StreamHome) -> None:
    stream = live.create_stream("s", schema="at BIGINT", time_columns="at")
    with stream.writer("w") as writer:
        writer.write_batch([{"at": 30}, {"at": 10}, {"at": 20}])
        writer.note_time(25)
        stream.await_mark(25)
        group = live.create_group("g", "s", start=20)
        cut = group.cut()
        group.reset(stream.head())
        with group.reader("r") as reader:
            assert len(reader.read(NOW) or ()) == 3
        group.reset(cut)
        with group.reader("r") as reader:
            assert len(reader.read(NOW) or ()) == 2


def test_names_of_checkpoints_are_checked(home: StreamHome) -> None:
    home.create_stream("s")
    group = home.create_group("g", "s")
    for name in ("", "two\nlines"):
        with pytest.raises(FloodmarkError):
            group.checkpoint(name)
    with pytest.raises(InvalidOption):
        group.checkpoint(timeout="0 seconds")
    assert group.checkpoint().name == group.checkpoints()[0].id
