"""What retention may remove: whole batches that are due, in the order of the segments, never what a reader needs."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.streams import Layout
from floodmark.streams.layout.positions import Standing, check_cut, compare_to_cut, expand_cut
from floodmark.streams.layout.retention import (
    Claim,
    RetentionDecision,
    RetentionStatus,
    SegmentRange,
    StoredBatch,
    decide_retention,
    due_by_size,
    due_by_time,
    from_head,
    head_cut,
)

ONE = Layout.create(1)


def batches(*ends: int, at: Sequence[int | None] = (), first: int = 0, size: int = 10) -> list[StoredBatch]:
    """Return batches that end at these offsets and arrived at these times; by default at their end."""
    starts = [first, *ends[:-1]] if ends else []
    times = at or ends
    return [StoredBatch(*one, size) for one in zip(starts, ends, times, strict=True)]


# -- by time


@pytest.mark.parametrize(
    ("at", "before", "count"),
    [
        ([10, 20, 30], 10, 0),
        ([10, 20, 30], 11, 1),
        ([10, 20, 30], 31, 3),
        ([None, None, 30], 30, 0),
        ([None, None, 30], 31, 3),
        ([None, None, None], 100, 0),
        ([10, None, 30], 20, 1),
        # A clock that was set back does not let a newer batch go before an older one.
        ([30, 10], 20, 0),
    ],
)
def test_batches_are_due_by_arrival_and_one_without_an_arrival_goes_with_the_next(
    at: list[int | None], before: int, count: int
) -> None:
    assert due_by_time(batches(*range(1, len(at) + 1), at=at), before) == count


def test_a_batch_is_due_when_its_age_is_the_retention() -> None:
    segments = {0: SegmentRange(0, 9, batches(4, 8, at=[100, 200]))}
    assert decide_retention(ONE, segments, [], now=199, age=100).starts == {0: 0}
    assert decide_retention(ONE, segments, [], now=200, age=100).starts == {0: 4}
    assert decide_retention(ONE, segments, [], now=300, age=100).starts == {0: 8}


# -- by size


@pytest.mark.parametrize(("keep", "count"), [(30, 0), (29, 0), (21, 0), (20, 1), (11, 1), (10, 2), (1, 2), (0, 3)])
def test_the_rest_never_has_less_than_the_retention(keep: int, count: int) -> None:
    assert due_by_size({0: SegmentRange(0, 3, batches(1, 2, 3))}, 30, keep) == {0: count}


def test_the_oldest_batch_of_all_segments_goes_first() -> None:
    segments = {0: SegmentRange(0, 2, batches(1, 2, at=[1, 9])), 1: SegmentRange(0, 2, batches(1, 2, at=[3, 4]))}
    assert [due_by_size(segments, 40, keep) for keep in (30, 20, 10)] == [{0: 1, 1: 0}, {0: 1, 1: 1}, {0: 1, 1: 2}]


def test_what_a_reader_holds_does_not_push_newer_events_out() -> None:
    segments = {
        0: SegmentRange(0, 2, batches(1, 2, at=[1, 2])),
        1: SegmentRange(0, 2, batches(1, 2, at=[3, 4])),
    }
    held = Claim("group", "g", {0: 0, 1: 2})
    decision = decide_retention(Layout.create(2), segments, [held], now=9, age=None, size=20, total=40)
    assert decision == RetentionDecision({0: 0, 1: 0}, {0: 2, 1: 0}, (held,))


def test_either_limit_removes() -> None:
    segments = {0: SegmentRange(0, 3, batches(1, 2, 3, at=[10, 20, 30]))}
    assert decide_retention(ONE, segments, [], now=30, age=20, size=10, total=30).starts == {0: 2}
    assert decide_retention(ONE, segments, [], now=30, age=1, size=30, total=30).starts == {0: 2}


# -- readers


@pytest.mark.parametrize(("place", "start"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (9, 8)])
def test_no_batch_is_removed_of_which_a_reader_needs_an_event(place: int, start: int) -> None:
    segments = {0: SegmentRange(0, 9, batches(4, 8))}
    decision = decide_retention(ONE, segments, [Claim("query", "q", {0: place})], now=1000, age=1)
    assert (decision.starts, decision.due) == ({0: start}, {0: 8})
    assert decision.waits_for == (() if start == 8 else (Claim("query", "q", {0: place}),))


def test_only_the_readers_that_hold_something_back_are_named() -> None:
    ahead, behind = Claim("group", "ahead", {0: 8}), Claim("sink", "behind", {0: 5})
    segments = {0: SegmentRange(0, 9, batches(4, 8))}
    assert decide_retention(ONE, segments, [ahead, behind], now=1000, age=1).waits_for == (behind,)


# -- scaled streams


def test_a_successor_is_touched_only_when_all_that_was_replaced_is_gone() -> None:
    layout = Layout.create(2).merge([0, 1])
    segments = {
        0: SegmentRange(0, 4, batches(4, at=[1])),
        1: SegmentRange(0, 4, batches(2, 4, at=[1, 50])),
        2: SegmentRange(0, 4, batches(4, at=[1])),
    }
    assert decide_retention(layout, segments, [], now=20, age=10).starts == {0: 4, 1: 2, 2: 0}
    assert decide_retention(layout, segments, [], now=60, age=10).starts == {0: 4, 1: 4, 2: 4}


def test_the_head_is_a_cut_while_segments_with_other_ranges_take_over() -> None:
    layout = Layout.create(2).replace([0, 1], [(0, 0.6), (0.6, 1)])
    ends = {0: 5, 1: 5, 2: 5, 3: 5}
    heads = [head_cut(layout, starts, ends) for starts in ({}, {1: 5}, {0: 5, 1: 5}, {0: 5, 1: 5, 3: 2})]
    assert heads == [{0: 0, 1: 0}, {0: 0, 1: 5}, {2: 0, 3: 0}, {2: 0, 3: 2}]


def test_a_start_before_the_head_becomes_the_head_in_each_segment() -> None:
    layout = Layout.create(2).split(1)
    assert from_head(layout, {0: 7, 1: 3}, {0: 5, 2: 1, 3: 0}) == {0: 7, 2: 1, 3: 0}
    assert from_head(layout, {0: 3, 2: 4, 3: 4}, {0: 5, 1: 2}) == {0: 5, 2: 4, 3: 4}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Layout, dict[int, SegmentRange], list[Claim]]:
    """Draw a stream that was scaled several times, and readers at cuts of it."""
    layout = Layout.create(draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 3))):
        current = [segment.id for segment in layout.current]
        if len(current) > 1 and draw(st.booleans()):
            place = draw(st.integers(0, len(current) - 2))
            layout = layout.merge(current[place : place + 2])
        else:
            layout = layout.split(draw(st.sampled_from(current)))
    segments = {}
    for segment in layout.segments:
        ends = sorted(draw(st.sets(st.integers(1, 9), max_size=4)))
        stored = batches(*ends, at=sorted(draw(st.lists(st.integers(0, 20), min_size=len(ends), max_size=len(ends)))))
        segments[segment.id] = SegmentRange(0, ends[-1] if ends else 0, stored)
    ends_of = {number: one.end for number, one in segments.items()}
    claims = []
    for name in range(draw(st.integers(0, 3))):
        epoch = draw(st.integers(0, layout.epoch))
        cut = {one.id: draw(st.integers(0, ends_of[one.id])) for one in layout.segments_of(epoch)}
        claims.append(Claim("group", str(name), expand_cut(layout, cut, ends_of)))
    return layout, segments, claims


@given(histories(), st.integers(0, 30), st.integers(0, 60))
def test_whatever_happens_no_claimed_event_goes_and_the_head_is_a_cut_that_rises(
    history: tuple[Layout, dict[int, SegmentRange], list[Claim]], now: int, keep: int
) -> None:
    layout, segments, claims = history
    ends = {number: one.end for number, one in segments.items()}
    total = sum(batch.size for one in segments.values() for batch in one.batches)
    decision = decide_retention(layout, segments, claims, now=now, age=10, size=keep or None, total=total)
    for number, start in decision.starts.items():
        boundaries = {0, *(batch.end for batch in segments[number].batches)}
        assert start in boundaries
        assert start <= decision.due[number]
        assert all(start <= claim.offsets.get(number, 0) for claim in claims)
    head = head_cut(layout, decision.starts, ends)
    assert check_cut(layout, head) == head
    assert expand_cut(layout, head, ends).items() >= {n: s for n, s in decision.starts.items() if s}.items()
    # A second run after the first one removes what is left, and never goes back.
    left = {
        number: SegmentRange(
            decision.starts[number], one.end, [b for b in one.batches if b.first >= decision.starts[number]]
        )
        for number, one in segments.items()
    }
    kept = sum(batch.size for one in left.values() for batch in one.batches)
    again = decide_retention(layout, left, claims, now=now, age=10, size=keep or None, total=kept)
    assert again.starts == decision.starts
    later = head_cut(layout, decide_retention(layout, left, [], now=100, age=0).starts, ends)
    assert compare_to_cut(layout, later, head) is Standing.PASSED


def test_a_status_is_the_same_after_a_round_trip() -> None:
    status = RetentionStatus("s", {0: 4}, {0: 8}, (Claim("group", "g", {0: 5}),), age=10**6, size=7)
    assert RetentionStatus.load(status.save()) == status
    assert str(RetentionStatus("s", {0: 0}, {0: 0})) == "s begins at {0: 0}, keeps everything"
