"""Claims about proposals: what readers of one process agree on before it is stored."""

import pytest

from floodmark.bindings import BindingHistory
from floodmark.bindings.timestamps import Proposal, Proposals
from floodmark.errors import BindingInvalid, HomeUnusable


def store(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
    return stored.append(proposal.ts, proposal.ends, upper=proposal.upper, watermarks=proposal.watermarks)


def fail(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
    raise HomeUnusable("The disk is full.", rule="It must not be.", remedy="Make room.")


@pytest.fixture
def proposals() -> Proposals:
    """Give scenario 1: offsets 0 to 4 were read at 500, the timestamp was closed at 1200, and 5 and 6 were read."""
    made = Proposals(BindingHistory.start(500))
    for offset in range(5):
        assert made.binding(0, offset) == 500
    assert made.tick(1200, 1000)
    assert [made.binding(0, offset) for offset in (5, 6)] == [2000, 2000]
    return made


def test_b2_a_record_without_a_timestamp_is_proposed_for_the_open_one(proposals: Proposals) -> None:
    assert proposals.binding(0, 9) == 2000
    assert proposals.ends == {0: 10}


def test_b3_a_proposal_extends_and_never_shrinks(proposals: Proposals) -> None:
    proposals.propose(0, 8)
    for end in (7, 8, 0):
        proposals.propose(0, end)
    assert proposals.ends == {0: 8}
    assert proposals.closed.ends == {0: 5}, "what is open is not bound"


def test_b4_a_proposal_for_another_timestamp_is_refused_and_changes_nothing(proposals: Proposals) -> None:
    for ts in (500, 3000):
        with pytest.raises(BindingInvalid, match=f"A proposal is for {ts}, and 2000 is open"):
            proposals.propose(0, 99, ts=ts)
    proposals.propose(0, 8, ts=2000)
    assert proposals.ends == {0: 8}


def test_b5_a_tick_that_is_not_due_changes_nothing(proposals: Proposals) -> None:
    assert not proposals.tick(1999, 1000)
    assert (proposals.current_ts, len(proposals.pending)) == (2000, 1)
    assert proposals.tick(2000, 1000)
    assert proposals.current_ts == 3000


def test_b6_every_known_partition_gets_a_pair_also_a_quiet_one(proposals: Proposals) -> None:
    proposals.propose(1, 0)
    proposals.tick(2500, 1000)
    proposals.tick(3500, 1000)
    assert [(pair.ts, pair.end) for pair in proposals.closed.pairs() if pair.partition == 0] == [
        (500, 5),
        (2000, 7),
        (3000, 7),
    ]
    assert [(pair.ts, pair.end) for pair in proposals.closed.pairs() if pair.partition == 1] == [(2000, 0), (3000, 0)]


def test_b9_any_reader_may_introduce_a_partition_any_number_of_times(proposals: Proposals) -> None:
    proposals.propose(1, 0)
    assert proposals.binding(1, 2) == 2000
    proposals.propose(1, 0)
    assert proposals.ends == {0: 7, 1: 3}
    assert proposals.closed.ends == {0: 5}


def test_b10_and_b11_a_reader_never_emits_below_where_it_is(proposals: Proposals) -> None:
    assert proposals.frontier({}) == 2000
    assert [proposals.frontier({0: offset}) for offset in (0, 4, 5, 100)] == [500, 500, 2000, 2000]
    for offset in range(7):
        assert proposals.binding(0, offset) >= proposals.frontier({0: offset})


def test_b13_the_first_timestamp_covers_the_whole_snapshot() -> None:
    made = Proposals(BindingHistory.start(500))
    made.propose(0, 1_000_000)
    made.propose(1, 7)
    made.tick(900, 1000)
    assert (made.closed.ts_of(0, 0), made.closed.ts_of(0, 999_999), made.closed.ts_of(1, 6)) == (500, 500, 500)


def test_many_records_are_proposed_at_once(proposals: Proposals) -> None:
    assert proposals.bindings(0, [3, 4, 5, 8]).tolist() == [500, 500, 2000, 2000]
    assert proposals.ends == {0: 9}
    assert proposals.bindings(0, []).tolist() == []


def test_d2_and_d3_durable_is_the_lowest_timestamp_that_is_not_stored_and_only_rises(proposals: Proposals) -> None:
    proposals.tick(2500, 1000)
    assert proposals.durable == 500
    seen = []

    def watched(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
        seen.append((proposal.ts, stored.upper, proposals.durable))
        return store(proposal, stored)

    assert proposals.flush(watched) == 3000
    assert seen == [(500, 500, 500), (2000, 2000, 2000)], "one after the other, each on what is stored"
    assert proposals.stored.pairs() == proposals.closed.pairs()
    assert proposals.flush(watched) == 3000


def test_d4_a_failure_to_store_stalls_what_is_durable_and_no_lookup(proposals: Proposals) -> None:
    for _ in range(3):
        with pytest.raises(HomeUnusable):
            proposals.flush(fail)
        assert (proposals.durable, proposals.binding(0, 4), proposals.binding(0, 7)) == (500, 500, 2000)
    assert proposals.tick(2500, 1000)
    assert proposals.binding(0, 8) == 3000
    assert proposals.flush(store) == 3000
    assert [proposals.stored.ts_of(0, offset) for offset in (4, 7, 8)] == [500, 2000, None]


def test_d4_what_fails_half_way_is_durable_half_way(proposals: Proposals) -> None:
    proposals.tick(2500, 1000)

    def store_the_first(proposal: Proposal, stored: BindingHistory) -> BindingHistory:
        return store(proposal, stored) if proposal.ts == 500 else fail(proposal, stored)

    with pytest.raises(HomeUnusable):
        proposals.flush(store_the_first)
    assert (proposals.durable, [one.ts for one in proposals.pending]) == (2000, [2000])


def test_d6_after_a_restart_nothing_has_a_lower_timestamp_than_it_was_proposed_for(proposals: Proposals) -> None:
    proposals.tick(2500, 1000)
    assert proposals.binding(0, 20) == 3000
    again = Proposals.resume(proposals.stored, now=2600, tick=1000)
    assert again.current_ts == 3000
    assert all(again.binding(0, offset) >= proposals.binding(0, offset) for offset in range(21))
    slow = Proposals.resume(BindingHistory.start(500).append(500, {0: 5}, upper=4000), now=1000, tick=1000)
    assert slow.current_ts == 4000, "B8: also with a slow clock"


def test_what_another_process_has_stored_counts_and_the_rest_is_proposed_again(proposals: Proposals) -> None:
    proposals.note_watermarks({"at": 30})
    proposals.tick(2500, 1000)
    other = BindingHistory.start(500).append(500, {0: 6, 4: 2}, upper=2000, watermarks={"at": 10})
    proposals.adopt(other)
    assert [proposals.binding(0, offset) for offset in (4, 5, 6)] == [500, 500, 3000]
    assert (proposals.durable, proposals.pending, proposals.ends) == (2000, (), {0: 7, 4: 2})
    proposals.tick(3500, 1000)
    assert proposals.flush(store) == 4000
    assert proposals.stored.watermark_at(3000) == {"at": 30}, "and so is what was told of time"


def test_watermarks_go_with_the_timestamp_that_is_open_when_they_are_noted(proposals: Proposals) -> None:
    proposals.note_watermarks({"at": 30})
    proposals.note_watermarks({"at": 20, "paid": 1})
    proposals.tick(2500, 1000)
    proposals.note_watermarks({"at": 90})
    assert [proposal.watermarks for proposal in proposals.pending] == [{}, {"at": 30, "paid": 1}]
    proposals.tick(3500, 1000)
    assert [proposals.closed.watermark_at(ts) for ts in (500, 2000)] == [{}, {"at": 30, "paid": 1}]
    assert proposals.closed.watermark_at(3000) == {"at": 90, "paid": 1}
