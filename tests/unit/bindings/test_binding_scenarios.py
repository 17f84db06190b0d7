"""The scenarios of timestamp bindings by their numbers, in SQLite and in PostgreSQL; 7 and 13 are not there.

Times are in milliseconds, the tick is 1000.
"""

import numpy as np
import pytest

from floodmark.bindings import BindingHistory, Bindings
from floodmark.bindings.timestamps import Proposal, Proposals
from floodmark.control import Home
from floodmark.errors import HomeUnusable, TimestampNotValid
from floodmark.testing import ManualClock
from support.bindings.bound_sources import MS, Source, count


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(500 * MS)


@pytest.fixture
def source(home: Home, clock: ManualClock) -> Source:
    return Source(home, clock)


@pytest.fixture
def source_at_4000(source: Source) -> Source:
    """Give the end of scenario 4: bound at 500, 2000 and 3000, and 4000 is open."""
    for now, end in ((1200, 5), (2200, 8), (3200, 8)):
        assert source.at(now).tick(p0=end)
    return source


def test_scenario_1_what_was_read_first_has_the_first_timestamp(source: Source) -> None:
    assert source.upper == 500
    assert source.at(1200).tick(p0=5)
    assert (source.pairs(), source.upper) == ([(500, 5)], 2000)
    proposals = Proposals(source.history)
    found = [proposals.binding(0, offset) / MS for offset in (0, 4, 5, 7)]
    assert found == [500, 500, 2000, 2000]
    assert proposals.ends == {0: 8}


def test_scenario_2_two_instances_agree_on_every_record(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    source.at(2200).tick(p0=7)
    a, b = source.history, Bindings(home).history("S")
    offsets = np.arange(7)
    assert a.ts_of_many(0, offsets).tolist() == b.ts_of_many(0, offsets).tolist() == [500 * MS] * 5 + [2000 * MS] * 2
    assert [b.frontier({0: offset}) / MS for offset in (0, 4, 5, 6, 7)] == [500, 500, 2000, 2000, 3000]
    for ts in (500, 2000, 2999):
        assert a.cut_at(ts * MS) == b.cut_at(ts * MS), "one except the other is empty"


def test_scenario_3_who_is_behind_does_not_shrink_what_is_proposed(source: Source) -> None:
    source.at(1200).tick(p0=5)
    proposals = Proposals(source.history)
    proposals.propose(0, 7)
    assert proposals.binding(0, 7) == 2000 * MS
    proposals.propose(0, 7)
    assert (proposals.binding(0, 7), proposals.ends) == (2000 * MS, {0: 8})


def test_scenario_4_a_tick_without_data_closes_an_empty_timestamp(source_at_4000: Source) -> None:
    source = source_at_4000
    assert (source.pairs(), source.upper) == ([(500, 5), (2000, 8), (3000, 8)], 4000)
    assert source.ts_of(0, 8) is None
    assert Proposals(source.history).binding(0, 8) == 4000 * MS


def test_scenario_5_a_new_partition_gets_the_open_timestamp(source_at_4000: Source) -> None:
    source = source_at_4000
    assert source.at(4200).tick(p1=3)
    assert [source.ts_of(1, offset) for offset in (0, 1, 2)] == [4000, 4000, 4000]
    assert source.pairs() == [(500, 5), (2000, 8), (3000, 8), (4000, 8)]
    assert source.pairs(1) == [(4000, 3)]
    assert source.upper == 5000, "durable with both, in one step"


def test_scenario_6_offsets_that_are_gone_do_not_keep_a_timestamp_open(source_at_4000: Source) -> None:
    assert source_at_4000.at(4200).tick(p0=11)
    assert [source_at_4000.ts_of(0, offset) for offset in (8, 9, 10)] == [4000, 4000, 4000]


def test_scenario_8_since_is_the_lowest_hold_and_the_last_closed_timestamp_stays(source_at_4000: Source) -> None:
    source = source_at_4000
    source.at(4200).tick()
    source.bindings.alter("S", compaction_window="0 seconds")
    source.hold("K1", 2000)
    source.hold("K2", 3000)
    done = source.bindings.compact("S")
    assert (source.since, done.held_by, source.pairs()) == (2000, ("K1",), [(2000, 8), (3000, 8), (4000, 8)])
    assert source.bindings.release("S", "K1")
    assert (source.bindings.compact("S").held_by, source.since) == (("K2",), 3000)
    assert source.bindings.release("S", "K2")
    # C8: the open timestamp is 5000, and nothing is compacted to it.
    assert (source.bindings.compact("S").held_by, source.since * MS) == ((), 5000 * MS - 1)
    assert source.pairs() == [(4999.999, 8)]
    source.bindings.alter("S", compaction_window=None)
    source.at(5200).tick(p0=9)
    assert source.ts_of(0, 8) == 5000


def test_scenario_9_reads_are_refused_below_since_and_from_upper_on(source_at_4000: Source) -> None:
    source = source_at_4000
    source.at(4200).tick()
    source.bindings.alter("S", compaction_window="0 seconds")
    source.hold("K1", 2000)
    source.bindings.compact("S")
    with pytest.raises(TimestampNotValid, match=r"1999000 of 'S' is not in \[2000000, 5000000\)"):
        source.bindings.check_valid("S", 1999 * MS)
    assert source.bindings.check_valid("S", 2000 * MS) == 2000 * MS
    with pytest.raises(TimestampNotValid, match=r"5000000 of 'S' is not in \[2000000, 5000000\)"):
        source.bindings.check_valid("S", 5000 * MS)
    assert source.bindings.check_valid("S") == 5000 * MS - 1


def test_scenario_10_a_query_may_see_what_is_not_stored_and_a_sink_waits(source: Source) -> None:
    source.at(1200).tick(p0=5)
    proposals = Proposals(source.history)
    proposals.propose(0, 8)
    proposals.close(3000 * MS)

    def disk_is_full(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
        raise HomeUnusable("The disk is full.", rule="It must not be.", remedy="Make room.")

    with pytest.raises(HomeUnusable):
        proposals.flush(disk_is_full)
    assert (proposals.binding(0, 6) / MS, source.bindings.durable("S") / MS) == (2000, 2000)
    assert source.bindings.flush("S", proposals) == source.bindings.durable("S") == 3000 * MS
    assert source.ts_of(0, 6) == 2000


def test_scenario_11_what_was_not_stored_gets_its_timestamp_anew(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    lost = Proposals(source.history)
    assert lost.binding(0, 7) == 2000 * MS
    lost.close(3000 * MS)
    again = Source(home, source.clock)
    assert again.ts_of(0, 4) == 500
    assert again.ts_of(0, 5) is None
    again.at(2400).tick(p0=8)
    assert [again.ts_of(0, offset) for offset in (4, 5, 7)] == [500, 2000, 2000]


def test_scenario_12_after_the_clock_went_back_timestamps_go_on_from_the_last(
    source_at_4000: Source, home: Home
) -> None:
    source_at_4000.at(4200).tick(p0=9)
    again = Source(home, source_at_4000.clock)
    again.ends = {0: 10}
    again.at(4200 - 3_600_000)
    assert again.tick()
    assert not again.tick(p0=11), "ticks go on at their pace"
    again.at(5200 - 3_600_000)
    assert again.tick()
    assert again.ts_of(0, 9) == 5000
    assert again.ts_of(0, 10) == 5000.001
    assert again.upper == 5000.002


@pytest.mark.parametrize("has_sink", [True, False])
def test_scenario_14_many_ticks_leave_few_rows(home: Home, clock: ManualClock, has_sink: bool) -> None:
    source = Source(home, clock, compaction_window="0 seconds")
    if has_sink:
        source.hold("K", 500)
    for number in range(1, 201):
        source.at(500 + 1000 * number).tick(p0=number, p1=2 * number)
        if has_sink:
            source.bindings.advance_hold("S", "K", source.history.upper - 1)
        assert count(home)["pair"] <= 3 * 2
    assert source.ts_of(0, 199) is not None
    assert source.bindings.warnings() == ()


def test_scenario_14_with_a_stuck_sink_rows_grow_and_a_warning_is_given(home: Home, clock: ManualClock) -> None:
    source = Source(home, clock, compaction_window="0 seconds")
    source.hold("K", 500)
    for number in range(1, 701):
        source.at(500 + 1000 * number).tick(p0=number)
    assert count(home)["pair"] == 700
    assert source.bindings.warnings("S") == (
        "The sink 'K' has held 'S' at 1970-01-01 00:00:00.500000 UTC for 700 s, and is 700 s behind.",
    )
