"""How a group's position moves: always a cut, forward, over scales, and to its end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import OffsetOutOfRange
from floodmark.streams import Layout, Position
from floodmark.streams.groups.state import StreamProgress
from floodmark.streams.groups.transitions import StreamFacts, move_forward, pass_finished_segments, stop_offset
from floodmark.streams.layout.positions import Standing, check_cut, compare_to_cut
from support.streams.scaled_layouts import SCALES, Scales, after

ONE, TWO = Layout.create(1), Layout.create(2)
# Segments 0 and 1 give way to 2, which needs only 0, and to 3, which needs both.
CROSSED = TWO.replace([0, 1], [(0, 0.25), (0.25, 1)])


def part(position: Position, **others: object) -> StreamProgress:
    return StreamProgress("s", 7, "time", position, **others)  # type: ignore[arg-type]


SETTLED: dict[str, tuple[Layout, Position, Position | None, Position, Position, set[int]]] = {
    # layout, ends, end of the group, position -> position, finished
    "s-41": (ONE.replace([0], [(0, 1)]), {0: 9, 1: 0}, None, {0: 9}, {1: 0}, set()),
    "s-41, the other stream": (ONE, {0: 9}, None, {0: 1}, {0: 1}, set()),
    "an open segment at its end is not finished": (ONE, {0: 4}, None, {0: 4}, {0: 4}, set()),
    "a split": (ONE.split(0), {0: 4, 1: 2, 2: 3}, None, {0: 4}, {1: 0, 2: 0}, set()),
    "not before its end": (ONE.split(0), {0: 4, 1: 2, 2: 3}, None, {0: 3}, {0: 3}, set()),
    "a merge waits for both": (TWO.merge([0, 1]), {0: 4, 1: 5, 2: 0}, None, {0: 4, 1: 4}, {0: 4, 1: 4}, {0}),
    "a merge": (TWO.merge([0, 1]), {0: 4, 1: 5, 2: 0}, None, {0: 4, 1: 5}, {2: 0}, set()),
    "over empty segments at once": (ONE.split(0).merge([1, 2]), {0: 4, 1: 0, 2: 0, 3: 1}, None, {0: 4}, {3: 0}, set()),
    "crossed ranges wait, so that it stays a cut": (
        CROSSED,
        {0: 4, 1: 5, 2: 0, 3: 0},
        None,
        {0: 4, 1: 3},
        {0: 4, 1: 3},
        {0},
    ),
    "at its end": (TWO, {0: 9, 1: 9}, {0: 4, 1: 5}, {0: 4, 1: 4}, {0: 4, 1: 4}, {0}),
    "at an end that is the end of a segment": (ONE.split(0), {0: 4, 1: 2, 2: 3}, {0: 4}, {0: 4}, {0: 4}, {0}),
    "before an end behind a scale": (ONE.split(0), {0: 4, 1: 2, 2: 3}, {1: 1, 2: 0}, {0: 4}, {1: 0, 2: 0}, {2}),
    "behind an end that was found late": (ONE.split(0), {0: 4, 1: 2, 2: 3}, {0: 2}, {1: 1, 2: 1}, {1: 1, 2: 1}, {1, 2}),
    "an end that lies behind what a sealed segment has": (
        ONE.split(0),
        {0: 4, 1: 2, 2: 3},
        {0: 9},
        {0: 4},
        {0: 4},
        {0},
    ),
}


@pytest.mark.parametrize(("layout", "ends", "end", "position", "expected", "finished"), SETTLED.values(), ids=SETTLED)
def test_what_is_read_to_its_end_is_replaced(
    layout: Layout, ends: Position, end: Position | None, position: Position, expected: Position, finished: set[int]
) -> None:
    found = pass_finished_segments(part(position, end=end), StreamFacts(layout, ends), now=5)
    assert (found.position, set(found.finished)) == (expected, finished)


def test_a_sealed_stream_is_finished_where_it_ends() -> None:
    facts = StreamFacts(TWO, {0: 4, 1: 5}, is_sealed=True)
    assert pass_finished_segments(part({0: 4, 1: 4}), facts, 0).finished == {0}
    assert pass_finished_segments(part({0: 4, 1: 5}), facts, 0).is_finished


def test_an_end_time_becomes_a_cut_when_the_log_has_come_there() -> None:
    unknown, known = StreamFacts(ONE, {0: 9}), StreamFacts(ONE, {0: 9}, end={0: 3})
    open_part = part({0: 5}, until=100)
    assert pass_finished_segments(open_part, unknown, 0).end is None
    assert pass_finished_segments(open_part, known, 0).is_finished
    assert pass_finished_segments(part({0: 5}), known, 0).end is None, "a group without an end time has no end"


def test_positions_move_forward_only_and_not_beyond_the_end() -> None:
    facts = StreamFacts(TWO, {0: 9, 1: 9})
    there = move_forward(part({0: 5, 1: 5}), {0: 7, 1: 3, 4: 9}, facts, now=60)
    assert (there.position, there.moved) == ({0: 7, 1: 5}, {0: 60})
    with pytest.raises(OffsetOutOfRange):
        move_forward(there, {0: 10}, facts, now=60)


def test_a_segment_that_begins_is_as_far_in_time_as_those_before_it() -> None:
    layout = TWO.merge([0, 1])
    facts = StreamFacts(layout, {0: 1, 1: 1, 2: 0})
    both = pass_finished_segments(part({0: 1, 1: 1}, times={0: 50, 1: 70}), facts, now=9)
    assert (both.times, both.moved) == ({2: 50}, {2: 9})
    assert pass_finished_segments(part({0: 1, 1: 1}, times={0: 50}), facts, now=9).times == {}


def test_lag_is_in_whole_seconds_behind_the_newest_watermark() -> None:
    facts = StreamFacts(ONE, {0: 0}, oldest=10, newest=5_010, unit_seconds=1_000)
    assert facts.lag(part({0: 0}, times={0: 3_200}), 0) == 1
    assert facts.lag(part({0: 0}, times={0: 9_000}), 0) == 0
    assert facts.lag(part({0: 0}), 0) == 5, "who has passed nothing is before the first"
    assert StreamFacts(ONE, {0: 0}).lag(part({0: 0}), 0) == 0


@given(SCALES, st.data())
def test_whatever_is_finished_first_the_position_is_a_cut_and_all_is_read_in_order(
    scales: Scales, data: st.DataObject
) -> None:
    layout = after(scales)
    ends = {segment.id: data.draw(st.integers(0, 2)) for segment in layout.segments}
    facts = StreamFacts(layout, ends, is_sealed=True)
    now = pass_finished_segments(part({0: 0, 1: 0}), facts, 0)
    cuts = [now.position]
    begun: set[int] = set(now.position)
    while not now.is_finished:
        segment = data.draw(st.sampled_from(sorted(set(now.position) - now.finished)))
        now = pass_finished_segments(move_forward(now, {segment: ends[segment]}, facts, 0), facts, 0)
        cuts.append(now.position)
        begun |= set(now.position)
    assert all(check_cut(layout, cut) == cut for cut in cuts)
    assert all(compare_to_cut(layout, later, before) is Standing.PASSED for before, later in pairwise(cuts))
    assert now.position == {segment.id: ends[segment.id] for segment in layout.current}
    # What was skipped at once was empty, and so was all that it waited for.
    assert all(ends[segment.id] == 0 for segment in layout.segments if segment.id not in begun)


@given(SCALES, st.data())
def test_a_group_that_ends_at_a_cut_reads_exactly_what_lies_before_it(scales: Scales, data: st.DataObject) -> None:
    layout = after(scales)
    ends = {segment.id: data.draw(st.integers(0, 3)) for segment in layout.segments}
    epoch = data.draw(st.integers(0, layout.epoch))
    end = {s.id: data.draw(st.integers(0, ends[s.id])) for s in layout.segments_of(epoch)}
    facts = StreamFacts(layout, ends)
    now, read = (
        pass_finished_segments(part({0: 0, 1: 0}, end=end), facts, 0),
        {segment.id: 0 for segment in layout.segments},
    )
    while not now.is_finished:
        segment = data.draw(st.sampled_from(sorted(set(now.position) - now.finished)))
        stop = stop_offset(layout, end, segment)
        read[segment] = ends[segment] if stop is None else stop
        now = pass_finished_segments(move_forward(now, {segment: read[segment]}, facts, 0), facts, 0)
    assert check_cut(layout, now.position) == now.position
    for number in read:
        assert read[number] == end.get(number, ends[number] if layout.has_descendant(number, end) else 0)
