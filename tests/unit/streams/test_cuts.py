"""Positions and cuts: the scenarios of the model system, and what holds for every history."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, PositionInvalid
from floodmark.streams import Layout, Position
from floodmark.streams.layout.positions import (
    Standing,
    check_cut,
    check_position,
    compare_to_cut,
    cut_over,
    furthest_position,
    load_position,
    replace_finished,
    save_position,
)
from support.examples import examples
from support.streams.played_stream import Epoch, layout_of
from support.streams.scaled_layouts import SCALES, Scales, after

THREE = {0: (0, 0.333), 1: (0.333, 0.667), 2: (0.667, 1)}
HALVES = {0: (0, 0.5), 1: (0.5, 1)}
MERGED_AND_SPLIT: Sequence[Epoch] = [HALVES, {2: (0, 1)}, {3: (0, 0.5), 4: (0.5, 1)}]
ONE_BY_ONE: Sequence[Epoch] = [HALVES, {2: (0, 0.5), 1: (0.5, 1)}, {2: (0, 0.5), 3: (0.5, 1)}]

Row = tuple[Sequence[Epoch], list[Position], Position | None, Position]
CUTS: Mapping[str, Row] = {
    "s-28": ([HALVES, {2: (0, 0.6), 3: (0.6, 1)}], [{1: 50, 2: 20}], None, {2: 20, 3: 0}),
    # By ruling a segment without events is left out, not -1; here it is filled at 0.
    "s-31": ([THREE], [{1: 100}], None, {0: 0, 1: 100, 2: 0}),
    "s-09, nobody reported 0": ([THREE], [{1: 300}], {0: 200, 1: 200, 2: 200}, {0: 200, 1: 300, 2: 200}),
    "s-10, filled and pushed out": (
        [THREE, {3: (0, 0.5), 4: (0.5, 1)}],
        [{0: 300, 1: 400}, {1: 100, 2: 400}, {3: 100}],
        {0: 200, 1: 300, 2: 300},
        {3: 100, 4: 0},
    ),
    # The model system filled before it took the cut before: it put 3 at 0 in the place of 1.
    "the cut before counts before gaps are filled": (
        [HALVES, {2: (0, 0.5), 3: (0.5, 1)}],
        [{2: 20}],
        {0: 5, 1: 9},
        {1: 9, 2: 20},
    ),
    "a cut over several epochs": (
        [HALVES, {0: (0, 0.5), 2: (0.5, 0.75), 3: (0.75, 1)}],
        [{0: 7}, {2: 1}],
        None,
        {0: 7, 2: 1, 3: 0},
    ),
    "a segment that lives on is filled too": (ONE_BY_ONE, [{3: 4}], None, {2: 0, 3: 4}),
    "filled from the newest epoch that was reached": (ONE_BY_ONE, [{2: 4}], None, {1: 0, 2: 4}),
    "filling again and again": (
        [
            {0: (0, 0.3), 1: (0.3, 0.6), 2: (0.6, 0.9), 3: (0.9, 1)},
            {4: (0, 0.2), 5: (0.2, 0.5), 6: (0.5, 0.7), 7: (0.7, 1)},
        ],
        [{0: 9, 1: 9, 2: 9, 3: 9, 4: 1}],
        None,
        {4: 1, 5: 0, 6: 0, 7: 0},
    ),
    "what came out of 0 and has none of its keys": (MERGED_AND_SPLIT, [{0: 5, 4: 3}], None, {3: 0, 4: 3}),
    "nothing is known": ([HALVES, {2: (0, 1)}], [{}, {}], None, {0: 0, 1: 0}),
    "only the cut before": ([HALVES], [], {0: 3, 1: 4}, {0: 3, 1: 4}),
    "the highest offset": ([HALVES], [{0: 3, 1: 9}, {0: 8, 1: 2}], {0: 5, 1: 5}, {0: 8, 1: 9}),
}


@pytest.mark.parametrize(("epochs", "positions", "before", "expected"), CUTS.values(), ids=CUTS)
def test_the_cut_over_positions(
    epochs: Sequence[Epoch], positions: list[Position], before: Position | None, expected: Position
) -> None:
    layout = layout_of(epochs)
    for order in permutations(positions):
        assert cut_over(layout, order, before) == expected
    assert check_cut(layout, expected) == expected


SPLIT_RIGHT: Sequence[Epoch] = [HALVES, {0: (0, 0.5), 2: (0.5, 0.75), 3: (0.75, 1)}]
VALIDITY: Mapping[str, tuple[Sequence[Epoch], Position, str | None]] = {
    "s-33 whole": (SPLIT_RIGHT, {0: 0, 1: 0}, None),
    "s-33 whole in the next epoch": (SPLIT_RIGHT, {0: 0, 2: 0, 3: 0}, None),
    "s-33 a hole": (SPLIT_RIGHT, {0: 0}, "cut-invalid"),
    "s-33 both": (SPLIT_RIGHT, {0: 0, 1: 0, 2: 0, 3: 0}, "cut-invalid"),
    "half of the next epoch": (SPLIT_RIGHT, {0: 0, 2: 0}, "cut-invalid"),
    "empty": (SPLIT_RIGHT, {}, "cut-invalid"),
    "unwritten as -1": (SPLIT_RIGHT, {0: 0, 1: -1}, "position-invalid"),
    "foreign": (SPLIT_RIGHT, {0: 0, 9: 1}, "foreign-segment"),
    "an ancestor without a common key": (MERGED_AND_SPLIT, {0: 5, 4: 3}, "cut-invalid"),
}


@pytest.mark.parametrize(("epochs", "cut", "code"), VALIDITY.values(), ids=VALIDITY)
def test_a_cut_covers_the_key_space_once(epochs: Sequence[Epoch], cut: Position, code: str | None) -> None:
    layout = layout_of(epochs)
    if code is None:
        assert check_cut(layout, cut) == cut
        return
    with pytest.raises(FloodmarkError) as failure:
        check_cut(layout, cut)
    assert failure.value.code == code


# 0 and 1 were replaced by 2 and 3: the model system's test has all four in one epoch, with the same ranges.
S36 = layout_of([HALVES, {2: (0, 0.5), 1: (0.5, 1)}, {2: (0, 0.5), 3: (0.5, 1)}])
COMPARED: Mapping[str, tuple[Layout, Position, list[tuple[Position, str]]]] = {
    "s-34": (
        Layout.create(2),
        {0: 10, 1: 10},
        [
            ({0: 0, 1: 10}, "behind"),
            ({0: 10, 1: 10}, "passed"),
            ({0: 1, 1: 11}, "mixed"),
            ({0: 20, 1: 20}, "passed"),
            ({0: 10}, "passed"),
            ({1: 9}, "behind"),
        ],
    ),
    "s-36": (
        S36,
        {1: 1, 2: 2},
        [
            ({1: 1, 2: 2}, "passed"),
            ({0: 0, 1: 1}, "behind"),
            ({1: 0, 2: 1}, "behind"),
            ({1: 1, 2: 1}, "behind"),
            ({2: 2, 3: 3}, "passed"),
            ({1: 2, 2: 3}, "passed"),
            ({1: 1, 2: 3}, "passed"),
            ({0: 0, 3: 3}, "mixed"),
            ({1: 0, 2: 3}, "mixed"),
            ({1: 3, 2: 0}, "mixed"),
        ],
    ),
    "over a merge": (
        layout_of(MERGED_AND_SPLIT),
        {2: 5},
        [
            ({0: 9, 1: 9}, "behind"),
            ({3: 0, 4: 0}, "passed"),
            ({2: 4}, "behind"),
            ({4: 0}, "passed"),
            ({1: 7}, "behind"),
        ],
    ),
}


@pytest.mark.parametrize(("layout", "cut", "cases"), COMPARED.values(), ids=COMPARED)
def test_where_a_position_stands(layout: Layout, cut: Position, cases: list[tuple[Position, str]]) -> None:
    assert [(position, compare_to_cut(layout, position, cut).value) for position, _ in cases] == cases


def test_what_is_nowhere_or_not_of_this_stream_is_not_compared() -> None:
    layout = Layout.create(2)
    with pytest.raises(PositionInvalid):
        compare_to_cut(layout, {}, {0: 1, 1: 1})
    for position, cut in (({7: 1}, {0: 1, 1: 1}), ({0: 1}, {1: 1}), ({0: 1}, {7: 1})):
        with pytest.raises(FloodmarkError):
            compare_to_cut(layout, position, cut)


@pytest.mark.parametrize("bad", [[1], "0", {0: 1.5}, {0: True}, {0: 2**63}, {"0": 1}, {True: 1}, {-1: 1}, None])
def test_what_is_no_position(bad: object) -> None:
    with pytest.raises(FloodmarkError):
        check_position(Layout.create(2), bad)


FINISHED: Mapping[str, tuple[Sequence[Epoch], Position, list[int], Position]] = {
    "s-41": ([{0: (0, 1)}, {1: (0, 1)}], {0: 9}, [0], {1: 0}),
    "a merge waits for both": ([HALVES, {2: (0, 1)}], {0: 9, 1: 4}, [0], {0: 9, 1: 4}),
    "and begins after both": ([HALVES, {2: (0, 1)}], {0: 9, 1: 4}, [0, 1], {2: 0}),
    "only the part that is free": (
        [HALVES, {2: (0, 0.6), 3: (0.6, 1)}],
        {0: 1, 1: 9},
        [1],
        {0: 1, 1: 9, 3: 0},
    ),
    "what was begun is not begun again": (
        [HALVES, {2: (0, 0.6), 3: (0.6, 1)}],
        {0: 9, 1: 9, 3: 7},
        [0, 1],
        {2: 0, 3: 7},
    ),
    "not sealed": ([HALVES], {0: 9, 1: 9}, [0], {0: 9, 1: 9}),
    "not read here": ([{0: (0, 1)}, {1: (0, 1)}], {1: 3}, [0], {1: 3}),
}


@pytest.mark.parametrize(("epochs", "position", "finished", "expected"), FINISHED.values(), ids=FINISHED)
def test_a_finished_segment_gives_way(
    epochs: Sequence[Epoch], position: Position, finished: list[int], expected: Position
) -> None:
    assert replace_finished(layout_of(epochs), position, finished) == expected


POSITIONS = st.lists(st.dictionaries(st.integers(0, 11), st.integers(0, 3), max_size=5), max_size=4)


def is_at_or_before(layout: Layout, number: int, offset: int, cut: Position) -> bool:
    """The plain meaning: that much of a segment is read when the cut is passed."""
    return cut[number] >= offset if number in cut else layout.has_descendant(number, cut)


@given(SCALES, POSITIONS, POSITIONS, st.randoms())
@settings(max_examples=examples(300))
def test_a_cut_lies_behind_no_position_and_never_goes_back(
    scales: Scales,
    earlier: list[dict[int, int]],
    later: list[dict[int, int]],
    random: Random,
) -> None:
    layout = after(scales)
    known = len(layout.segments)
    earlier, later = ([{n: o for n, o in one.items() if n < known} for one in some] for some in (earlier, later))
    before = cut_over(layout, earlier)
    cut = cut_over(layout, later, before)
    for one, positions in ((before, earlier), (cut, [*earlier, *later, before])):
        assert check_cut(layout, one) == one
        for position in positions:
            for number, offset in position.items():
                assert is_at_or_before(layout, number, offset, one)
    assert compare_to_cut(layout, cut, before) is Standing.PASSED
    shuffled = list(later)
    random.shuffle(shuffled)
    assert cut_over(layout, shuffled, before) == cut
    # Folding step by step comes to the same as folding at once.
    folded: dict[int, int] = {}
    for position in shuffled:
        folded = furthest_position(layout, [folded, position])
    assert folded == furthest_position(layout, later)
    # It is not looser than it need be: what no one reached stands at 0, the rest where somebody was.
    offsets = {(number, offset) for position in [*later, before] for number, offset in position.items()}
    assert all(offset == 0 or (number, offset) in offsets for number, offset in cut.items())
    assert load_position(save_position(cut)) == cut


@given(SCALES, POSITIONS, POSITIONS)
def test_to_have_passed_a_cut_is_to_have_passed_those_before_it(
    scales: Scales, first: list[dict[int, int]], second: list[dict[int, int]]
) -> None:
    layout = after(scales)
    known = len(layout.segments)
    first, second = ([{n: o for n, o in one.items() if n < known} for one in some] for some in (first, second))
    place = cut_over(layout, second)
    cuts = [cut_over(layout, first[:1])]
    for number in range(1, len(first)):
        cuts.append(cut_over(layout, [first[number]], cuts[-1]))
    order = [Standing.PASSED, Standing.MIXED, Standing.BEHIND]
    ranks = [order.index(compare_to_cut(layout, place, cut)) for cut in cuts]
    assert ranks == sorted(ranks)
