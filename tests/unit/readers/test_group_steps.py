"""The steps of a group, as pure rules: who comes and goes, what is reported, how checkpoints come about."""

from dataclasses import replace

import pytest

from floodmark.errors import CheckpointPending, GroupReset, ReaderExists, ReaderExpelled
from floodmark.streams import GroupState, Layout, Position
from floodmark.streams.groups.requests import Report
from floodmark.streams.groups.state import StreamProgress, instance_id
from floodmark.streams.groups.transitions import (
    KEPT_CHECKPOINTS,
    Facts,
    StreamFacts,
    cancel_checkpoint,
    expel_reader,
    join_reader,
    leave_reader,
    refresh_group,
    reset_group,
    start_checkpoint,
    sync_reader,
)

TTL = 30
SIX = {"s": StreamFacts(Layout.create(6), dict.fromkeys(range(6), 1_000))}


def group(position: Position, *more: StreamProgress, **others: object) -> GroupState:
    parts = (StreamProgress("s", 7, "time", position), *more)
    return GroupState("g", 1, parts, created_at=0, **others)  # type: ignore[arg-type]


def with_readers(state: GroupState, *names: str, facts: Facts = SIX, now: int = 0) -> GroupState:
    for name in names:
        state = join_reader(state, name, f"{name}-1", TTL, facts, now)
    return state


def owned(state: GroupState) -> dict[str, list[int]]:
    return {reader.id: sorted(number for _, number in reader.segments) for reader in state.readers}


def said(state: GroupState, reader: str, position: Position | None = None, **others: object) -> Report:
    positions = {("s", number): offset for number, offset in (position or {}).items()}
    return Report(reader, f"{reader}-1", state.generation, positions, **others)  # type: ignore[arg-type]


def taken(state: GroupState, **shares: set[int]) -> GroupState:
    """Return the state in which readers have exactly these segments."""
    return replace(
        state,
        readers=tuple(
            replace(reader, segments=frozenset(("s", number) for number in shares[reader.id]), releasing=frozenset())
            for reader in state.readers
        ),
    )


def test_s_42_positions_are_kept_while_segments_change_hands() -> None:
    state = taken(with_readers(group(dict.fromkeys(range(6), 0)), "r1", "r2"), r1={0, 1, 2}, r2={3, 4, 5})
    state = sync_reader(state, said(state, "r1", {0: 10, 1: 11, 2: 12}), SIX, 1)
    state = sync_reader(state, said(state, "r2", {3: 13, 4: 14, 5: 15}), SIX, 1)
    state = taken(with_readers(state, "r3", now=1), r1={1, 2}, r2={4, 5}, r3={0, 3})
    state = sync_reader(state, said(state, "r3", {0: 20, 3: 23}), SIX, 2)
    assert state.progress_of("s").position == {0: 20, 1: 11, 2: 12, 3: 23, 4: 14, 5: 15}


def test_s_43_a_segment_that_is_given_back_does_not_go_back() -> None:
    # In the model system a release overwrites, also downwards. By ruling what was acknowledged stays so: a group's
    # position never goes back except by a reset, or its window would.
    state = taken(with_readers(group({0: 0}), "r1"), r1={0})
    state = sync_reader(state, said(state, "r1", {0: 123}), SIX, 1)
    state = sync_reader(state, said(state, "r1", {0: 1}, released=frozenset({("s", 0)})), SIX, 2)
    assert state.progress_of("s").position == {0: 123}


def test_s_41_a_finished_segment_gives_way_in_its_own_stream_only() -> None:
    other = StreamProgress("t", 8, "time", {0: 1})
    facts = {
        "s": StreamFacts(Layout.create(1).replace([0], [(0, 1)]), {0: 9, 1: 0}),
        "t": StreamFacts(Layout.create(1), {0: 1}),
    }
    state = with_readers(group({0: 1}, other), "r1", facts=facts)
    state = sync_reader(state, said(state, "r1", {0: 9}), facts, 1)
    assert [part.position for part in state.progress] == [{1: 0}, {0: 1}]
    (reader,) = state.readers
    assert reader.segments == {("s", 1), ("t", 0)}


def test_only_the_owner_of_a_segment_moves_it() -> None:
    state = taken(with_readers(group({0: 0, 1: 0}), "r1", "r2"), r1={0}, r2={1})
    state = sync_reader(state, said(state, "r1", {0: 5, 1: 5}), SIX, 1)
    assert state.progress_of("s").position == {0: 5, 1: 0}


def test_a_reader_joins_once_and_its_id_is_free_when_it_is_dead() -> None:
    state = with_readers(group({0: 0}), "r1")
    assert join_reader(state, "r1", "r1-1", TTL, SIX, 5).readers[0].beat_at == 5
    with pytest.raises(ReaderExists):
        join_reader(state, "r1", "another", TTL, SIX, TTL - 1)
    assert join_reader(state, "r1", "another", TTL, SIX, TTL).readers[0].instance_id == instance_id("another")


def test_a_reader_that_falls_silent_is_sent_away_by_whoever_comes() -> None:
    state = with_readers(group(dict.fromkeys(range(6), 0)), "r1", "r2")
    state = taken(state, r1={0, 1, 2}, r2={3, 4, 5})
    state = sync_reader(state, said(state, "r1", {0: 7}), SIX, 20)
    assert owned(state) == {"r1": [0, 1, 2], "r2": [3, 4, 5]}
    state = sync_reader(state, said(state, "r1"), SIX, 30)
    assert owned(state) == {"r1": [0, 1, 2, 3, 4, 5]}
    with pytest.raises(ReaderExpelled):
        sync_reader(state, said(state, "r2", {3: 9}), SIX, 31)
    assert state.progress_of("s").position[3] == 0


def test_an_older_instance_of_a_reader_is_not_heard() -> None:
    state = with_readers(group({0: 0}), "r1")
    report = said(state, "r1", {0: 9})
    state = join_reader(state, "r1", "r1-2", TTL, SIX, TTL)
    with pytest.raises(ReaderExpelled):
        sync_reader(state, report, SIX, TTL)
    assert leave_reader(state, report, SIX, TTL) == state


def test_a_segment_that_is_asked_for_does_not_weigh_on_its_reader_any_more() -> None:
    state = taken(with_readers(group(dict.fromkeys(range(6), 0)), "r1", "r2"), r1={0, 1, 2}, r2={3, 4})
    r1, r2 = state.readers
    state = refresh_group(replace(state, readers=(replace(r1, releasing=frozenset({("s", 0)})), r2)), SIX, 1)
    assert owned(state) == {"r1": [0, 1, 2, 5], "r2": [3, 4]}


def test_a_late_sign_of_life_counts_while_nobody_has_noticed() -> None:
    state = with_readers(group({0: 0}), "r1")
    state = sync_reader(state, said(state, "r1"), SIX, 10 * TTL)
    assert owned(state) == {"r1": [0]}


def test_a_clock_that_goes_back_lets_the_dead_live_one_ttl_and_no_longer() -> None:
    state = with_readers(group({0: 0}), "r1", now=1_000_000)
    state = refresh_group(state, SIX, 100)
    assert state.readers[0].beat_at == 100
    assert refresh_group(state, SIX, 100 + TTL).readers == ()


def test_leaving_says_the_last_word_and_twice_is_no_error() -> None:
    state = with_readers(group({0: 0}), "r1", "r2")
    report = said(state, "r1", {0: 8})
    after = leave_reader(state, report, SIX, 1)
    assert (owned(after), after.progress_of("s").position) == ({"r2": [0]}, {0: 8})
    assert leave_reader(after, report, SIX, 2) == after
    assert expel_reader(after, "r1", instance_id("r1-1"), SIX, 1) == after
    assert owned(expel_reader(after, "r2", "another", SIX, 1)) == {"r2": [0]}
    assert owned(expel_reader(after, "r2", instance_id("r2-1"), SIX, 1)) == {}


def test_one_segment_at_a_time_changes_hands() -> None:
    state = with_readers(group(dict.fromkeys(range(6), 0)), "r1")
    state = with_readers(state, "r2")
    for _ in range(10):
        givers = [reader for reader in state.readers if reader.releasing]
        if not givers:
            break
        (giver,) = givers
        assert len(giver.releasing) == 1
        state = sync_reader(state, said(state, giver.id, {0: 3}, released=giver.releasing), SIX, 1)
    assert owned(state) == {"r1": [3, 4, 5], "r2": [0, 1, 2]}
    assert state.progress_of("s").position[0] == 3


def test_times_and_places_only_rise_and_times_only_of_own_segments() -> None:
    state = taken(with_readers(group({0: 0, 1: 0}), "r1", "r2"), r1={0}, r2={1})
    report = said(state, "r1", {0: 1}, times={("s", 0): 50, ("s", 1): 99}, places={("s", "time"): 4})
    state = sync_reader(state, report, SIX, 1)
    state = sync_reader(state, said(state, "r1", times={("s", 0): 40}, places={("s", "time"): 3}), SIX, 1)
    assert (state.progress_of("s").times, state.progress_of("s").places) == ({0: 50}, {"time": 4})


def test_the_watermark_of_a_group_is_that_of_its_newest_place() -> None:
    state = with_readers(group({0: 0}), "r1")
    reports = [(4, 40), (3, 30), (5, None), (7, 70), (7, None)]
    found = []
    for place, lower in reports:
        lowers = {} if lower is None else {("s", "time"): lower}
        state = sync_reader(state, said(state, "r1", places={("s", "time"): place}, lowers=lowers), SIX, 1)
        found.append((dict(state.progress_of("s").places), dict(state.progress_of("s").lowers)))
    four, seven = ({"time": 4}, {"time": 40}), ({"time": 7}, {"time": 70})
    assert found == [four, four, ({"time": 5}, {}), seven, seven]
    assert GroupState.load(state.save()) == state
    assert Report.load(said(state, "r1", places={("s", "a"): 1}, lowers={("s", "a"): 9}).save()).lowers == {
        ("s", "a"): 9
    }


def test_a_group_that_an_earlier_release_stored_is_read() -> None:
    state = with_readers(group({0: 0}), "r1")
    saved = state.save()
    for part in saved["parts"]:
        del part["lowers"]
    for reader in saved["readers"]:
        del reader["instance_id"]
        reader["instance"] = "r1-1"
    assert GroupState.load(saved) == state


def test_a_reset_ends_what_was_open_and_is_done_once() -> None:
    state = with_readers(group({0: 50}), "r1")
    state = start_checkpoint(state, "c1", "noon", 60, 0)
    back = (replace(state.progress_of("s"), position={0: 7}),)
    after = reset_group(state, back, "reset-1", SIX, 1)
    assert (after.generation, after.readers, after.pending, after.progress_of("s").position) == (2, (), None, {0: 7})
    with pytest.raises(GroupReset):
        sync_reader(after, said(state, "r1"), SIX, 2)
    joined_again = with_readers(after, "r1", now=3)
    assert reset_group(joined_again, back, "reset-1", SIX, 4) == joined_again
    assert leave_reader(joined_again, said(state, "r1", {0: 60}), SIX, 5) == joined_again, (
        "the old instance is not heard"
    )


def test_a_checkpoint_has_what_each_reader_had_acknowledged_when_it_confirmed() -> None:
    state = taken(with_readers(group({0: 0, 1: 0, 2: 0}), "r1", "r2"), r1={0}, r2={1})
    state = refresh_group(start_checkpoint(state, "c1", "noon", 60, 1), SIX, 1)
    state = sync_reader(state, said(state, "r1", {0: 5}), SIX, 2)
    state = sync_reader(state, said(state, "r1", {0: 6}, confirms="c1"), SIX, 3)
    state = sync_reader(state, said(state, "r1", {0: 9}), SIX, 4)
    assert state.pending is not None
    assert state.pending.waits_for == {"r2"}
    state = sync_reader(state, said(state, "r2", {1: 4}), SIX, 5)
    state = sync_reader(state, said(state, "r2", {1: 7}, confirms="another"), SIX, 6)
    assert state.pending is not None, "it confirmed something else"
    state = sync_reader(state, said(state, "r2", {1: 8}, confirms="c1"), SIX, 7)
    assert state.pending is None
    (checkpoint,) = state.checkpoints
    assert checkpoint.cut["s"].cut == {0: 6, 1: 8, 2: 0}
    assert (checkpoint.confirmed, checkpoint.missing, checkpoint.at) == (("r1", "r2"), (), 7)
    assert state.progress_of("s").position == {0: 9, 1: 8, 2: 0}


def test_while_a_checkpoint_is_under_way_nothing_is_shared_out() -> None:
    state = with_readers(group(dict.fromkeys(range(6), 0)), "r1", "r2")
    state = start_checkpoint(taken(state, r1={0}, r2={1}), "c1", "noon", 60, 0)
    state = sync_reader(state, said(state, "r1", {0: 1}), SIX, 1)
    state = with_readers(state, "r3", now=1)
    assert owned(state) == {"r1": [0], "r2": [1], "r3": []}
    for reader in ("r1", "r2"):
        state = sync_reader(state, said(state, reader, confirms="c1"), SIX, 2)
    assert sum(len(one) for one in owned(state).values()) == 6


def test_a_checkpoint_crosses_a_scale_on_its_own() -> None:
    facts = {"s": StreamFacts(Layout.create(2).merge([0, 1]), {0: 4, 1: 4, 2: 9})}
    state = taken(with_readers(group({0: 0, 1: 0}), "r1", "r2", facts=facts), r1={0}, r2={1})
    state = start_checkpoint(state, "c1", "noon", 60, 0)
    state = sync_reader(state, said(state, "r1", {0: 3}, confirms="c1"), facts, 1)
    state = sync_reader(state, said(state, "r1", {0: 4}), facts, 2)
    state = sync_reader(state, said(state, "r2", {1: 4}), facts, 3)
    assert state.progress_of("s").position == {2: 0}
    state = sync_reader(state, said(state, "r2", confirms="c1"), facts, 4)
    assert state.checkpoints[0].cut["s"].cut == {0: 3, 1: 4}
    again = start_checkpoint(with_readers(group({0: 0, 1: 0}), "r1", facts=facts), "c2", "one", 60, 0)
    again = sync_reader(again, said(again, "r1", {0: 4, 1: 4}, confirms="c2"), facts, 1)
    assert again.checkpoints[0].cut["s"].cut == {2: 0}


def test_the_place_of_a_checkpoint_is_not_ahead_of_its_cut() -> None:
    state = taken(with_readers(group({0: 0, 1: 0}), "r1", "r2"), r1={0}, r2={1})
    state = start_checkpoint(state, "c1", "noon", 60, 0)
    state = sync_reader(state, said(state, "r1", {0: 5}, confirms="c1"), SIX, 1)
    state = sync_reader(state, said(state, "r1", {0: 9}, places={("s", "time"): 3}), SIX, 2)
    state = sync_reader(state, said(state, "r2", {1: 9}, confirms="c1"), SIX, 3)
    assert (state.checkpoints[0].cut["s"].places, state.progress_of("s").places) == ({}, {"time": 3})


@pytest.mark.parametrize("how", ["dies", "leaves", "is expelled"])
def test_a_reader_that_goes_counts_with_what_it_had_acknowledged(how: str) -> None:
    state = taken(with_readers(group({0: 0, 1: 0}), "r1", "r2"), r1={0}, r2={1})
    state = start_checkpoint(state, "c1", "noon", 10_000, 0)
    state = sync_reader(state, said(state, "r2", {1: 4}), SIX, 20)
    if how == "dies":
        state = sync_reader(state, said(state, "r1", {0: 2}), SIX, 20)
        state = sync_reader(state, said(state, "r1", confirms="c1"), SIX, 20 + TTL)
    else:
        state = sync_reader(state, said(state, "r1", {0: 2}, confirms="c1"), SIX, 20)
        last = said(state, "r2", {1: 4})
        state = (
            leave_reader(state, last, SIX, 21)
            if how == "leaves"
            else expel_reader(state, "r2", instance_id("r2-1"), SIX, 21)
        )
    (checkpoint,) = state.checkpoints
    assert checkpoint.cut["s"].cut == {0: 2, 1: 4}
    assert (checkpoint.confirmed, checkpoint.missing) == (("r1",), ("r2",))


def test_a_checkpoint_that_nobody_confirms_is_given_up_by_the_clock_of_the_store() -> None:
    state = start_checkpoint(with_readers(group({0: 0}), "r1"), "c1", "noon", 20, 0)
    assert refresh_group(state, SIX, 19).pending is not None
    assert refresh_group(state, SIX, 20).pending is None
    back = refresh_group(start_checkpoint(with_readers(group({0: 0}), "r1", now=500), "c1", "noon", 20, 500), SIX, 100)
    assert back.pending is not None
    assert refresh_group(back, SIX, 120).pending is None, "a clock that went back does not keep it for ever"


def test_a_checkpoint_whose_last_reader_dies_at_its_deadline_is_complete() -> None:
    state = start_checkpoint(with_readers(group({0: 3}), "r1"), "c1", "noon", TTL, 0)
    assert refresh_group(state, SIX, TTL).checkpoints[0].missing == ("r1",)


def test_checkpoints_come_one_at_a_time_and_can_be_asked_for_twice() -> None:
    state = start_checkpoint(with_readers(group({0: 0}), "r1"), "c1", "noon", 60, 0)
    assert start_checkpoint(state, "c1", "noon", 60, 1) == state
    with pytest.raises(CheckpointPending):
        start_checkpoint(state, "c2", "one", 60, 1)
    assert cancel_checkpoint(state, "c2") == state
    assert cancel_checkpoint(state, "c1").pending is None
    done = sync_reader(state, said(state, "r1", confirms="c1"), SIX, 2)
    assert start_checkpoint(done, "c1", "noon", 60, 3) == done
    assert cancel_checkpoint(done, "c1") == done


def test_without_readers_a_checkpoint_is_complete_at_once_and_the_newest_are_kept() -> None:
    state = group({0: 5})
    for number in range(KEPT_CHECKPOINTS + 2):
        state = refresh_group(start_checkpoint(state, f"c{number}", "same name", 60, number), SIX, number)
    assert [checkpoint.id for checkpoint in state.checkpoints] == [f"c{n}" for n in range(2, KEPT_CHECKPOINTS + 2)]


def test_a_state_comes_back_as_it_was_saved() -> None:
    state = with_readers(group({0: 5, 1: 0}), "r1", "r2")
    state = refresh_group(start_checkpoint(group({0: 5}), "c0", "first", 9, 0), SIX, 0)
    state = start_checkpoint(with_readers(state, "r1", "r2"), "c1", "noon", 60, 0)
    full = replace(state.progress_of("s"), times={0: 4}, moved={0: 3}, places={"time": 2}, end={0: 9}, since=1, until=2)
    state = replace(state, progress=(full,), reset_id="x", version=9)
    assert GroupState.load(state.save()) == state
