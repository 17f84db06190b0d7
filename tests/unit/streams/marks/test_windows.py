"""Reader windows: the scenarios of the model system under Floodmark's rulings, and what holds for every reader."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import InvalidValue, PositionInvalid
from floodmark.streams import EntryKind, Layout, MarkEntry, Position, TimeWindow
from floodmark.streams.marks.log import MarksLog, time_at
from floodmark.streams.marks.windows import MovingWindow
from support.streams.played_stream import Epoch, layout_of

TWO: Sequence[Epoch] = [{0: (0, 0.5), 1: (0.5, 1)}]
Marks = list[tuple[int, int, Position]]
Advance = list[tuple[Position, int | None, int | None]]


def test_a_window_may_be_one_moment_and_does_not_end_before_it_begins() -> None:
    assert TimeWindow(5, 5).upper == 5
    with pytest.raises(InvalidValue) as refusal:
        TimeWindow(5, 4)
    assert refusal.value.fields == {"lower": 5, "upper": 4}


def log_of(marks: Marks, unknown: frozenset[int] = frozenset()) -> MarksLog:
    """A log of these watermarks; those at the places `unknown` say that all writers had gone."""
    log = MarksLog()
    lower = 0
    for place, (low, high, cut) in enumerate(marks):
        gone = place in unknown
        lower = lower if gone else low
        kind = EntryKind.UNKNOWN if gone else EntryKind.WATERMARK
        log.append(MarkEntry(place + 1, kind, lower, high, (), cut, at=place))
    return log


def show(window: TimeWindow | None) -> tuple[int | None, int | None]:
    return (None, None) if window is None else (window.lower, window.upper)


S31: Position = {0: 0, 1: 100, 2: 0}
WINDOWS: Mapping[str, tuple[Sequence[Epoch], Marks, Advance]] = {
    "s-37": (TWO, [(5, 6, {0: 4, 1: 4}), (7, 8, {0: 6, 1: 6})], [({0: 5, 1: 5}, 5, 8), ({0: 0, 1: 0}, 5, 8)]),
    "s-39": (
        TWO,
        [
            (0, 99, {0: 0, 1: 0}),
            (100, 199, {0: 12, 1: 0}),
            (200, 299, {0: 12, 1: 12}),
            (300, 399, {0: 12, 1: 24}),
            (400, 499, {0: 12, 1: 36}),
        ],
        [
            ({0: 0, 1: 0}, 0, 199),
            ({0: 0, 1: 12}, 0, 299),
            ({0: 12, 1: 12}, 200, 399),
            ({0: 12, 1: 24}, 300, 499),
            ({0: 12, 1: 36}, 400, None),
        ],
    ),
    "s-49": ([{0: (0, 1)}], [], [({0: 9}, None, None)]),
    # By ruling what was not written is not -1, so a reader at the cut has passed it.
    "s-31": ([{0: (0, 0.333), 1: (0.333, 0.667), 2: (0.667, 1)}], [(7, 9, S31)], [(S31, 7, None)]),
    "before the first": (TWO, [(5, 6, {0: 4, 1: 4})], [({0: 3, 1: 4}, None, 6), ({0: 4, 1: 4}, 5, None)]),
    "only mixed ones left": (TWO, [(5, 6, {0: 4, 1: 4}), (7, 8, {0: 6, 1: 6})], [({0: 5, 1: 9}, 5, 8)]),
    "mixed before the first": (TWO, [(5, 6, {0: 4, 1: 4})], [({0: 3, 1: 9}, None, 6)]),
    "at the end nothing goes back": (TWO, [(5, 6, {0: 4, 1: 4})], [({0: 4, 1: 4}, 5, None), ({0: 0, 1: 0}, 5, None)]),
    "over a scale": (
        [{0: (0, 1)}, {1: (0, 0.5), 2: (0.5, 1)}],
        [(5, 6, {0: 4}), (7, 8, {1: 2, 2: 0}), (9, 9, {1: 2, 2: 5})],
        [({0: 4}, 5, 8), ({0: 9}, 5, 8), ({1: 0, 2: 0}, 5, 8), ({1: 2, 2: 0}, 7, 9), ({1: 3, 2: 4}, 7, 9)],
    ),
}


@pytest.mark.parametrize(("epochs", "marks", "advance"), WINDOWS.values(), ids=WINDOWS)
def test_a_reader_moves_through_the_marks(epochs: Sequence[Epoch], marks: Marks, advance: Advance) -> None:
    reader, layout = MovingWindow(log_of(marks)), layout_of(epochs)
    assert [(position, *show(reader.advance(position, layout))) for position, _, _ in advance] == advance


def test_where_all_writers_had_gone_there_is_no_window() -> None:
    marks: Marks = [(5, 6, {0: 4}), (5, 6, {0: 6}), (7, 8, {0: 9})]
    reader = MovingWindow(log_of(marks, unknown=frozenset({1})))
    one = Layout.create(1)
    windows = [reader.advance({0: offset}, one) for offset in (3, 4, 5, 6, 8, 9)]
    assert windows == [TimeWindow(None, 6), TimeWindow(5, 6), TimeWindow(5, 6), None, None, TimeWindow(7, None)]


def test_a_reader_goes_on_from_its_place_in_the_log() -> None:
    log, layout = log_of([(5, 6, {0: 4, 1: 4}), (7, 8, {0: 6, 1: 6})]), Layout.create(2)
    first = MovingWindow(log)
    places = [first.place]
    first.advance({0: 5, 1: 5}, layout)
    places.append(first.place)
    assert places == [None, 1]
    again = MovingWindow(log, place=first.place)
    assert again.advance({0: 0, 1: 0}, layout) == TimeWindow(5, 6)
    assert MovingWindow(log, place=99).advance({0: 0, 1: 0}, layout) == TimeWindow(None, 6)


def test_new_marks_are_seen() -> None:
    log, layout = log_of([(5, 6, {0: 4, 1: 4})]), Layout.create(2)
    reader = MovingWindow(log)
    assert reader.advance({0: 4, 1: 5}, layout) == TimeWindow(5, None)
    log.append(MarkEntry(2, EntryKind.WATERMARK, 7, 9, (), {0: 6, 1: 6}, at=1))
    assert reader.advance({0: 4, 1: 5}, layout) == TimeWindow(5, 9)
    assert reader.advance({0: 6, 1: 7}, layout) == TimeWindow(7, None)


def test_a_window_knows_its_edges_and_is_not_upside_down() -> None:
    assert TimeWindow(None, 5).is_near_head
    assert not TimeWindow(3, 5).is_near_head
    assert TimeWindow(3, None).is_near_tail
    with pytest.raises(InvalidValue):
        TimeWindow(5, 4)
    with pytest.raises(PositionInvalid):
        MovingWindow(log_of([(5, 6, {0: 4, 1: 4})])).advance({}, Layout.create(2))


OFFSETS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(0, 2)), max_size=8), st.lists(OFFSETS))
def test_windows_never_fall_and_are_those_of_the_furthest_place(
    steps: list[tuple[int, int, int]], places: list[tuple[int, int]]
) -> None:
    marks: Marks = []
    lower = left = right = 0
    for rise, one, other in steps:
        lower, left, right = lower + rise, left + one, right + other
        marks.append((lower, lower + 3, {0: left, 1: right}))
    reader, layout = MovingWindow(log_of(marks)), Layout.create(2)
    last: tuple[int, float] = (-1, -1)
    for one, other in places:
        low, high = show(reader.advance({0: one, 1: other}, layout))
        passed = [mark[0] for mark in marks if mark[2][0] <= one and mark[2][1] <= other]
        assert low is None or not passed or low >= passed[-1]
        now = (-1 if low is None else low, (float("inf") if marks else -1) if high is None else high)
        assert now[0] >= last[0]
        assert now[1] >= last[1]
        last = now


class DeletingLog:
    """A marks log from which retention deletes old entries between any two reads; the newest stays."""

    def __init__(self, log: MarksLog, deletions: list[int]) -> None:
        self._log = log
        self._deletions = deletions
        self._first = log.numbers().start

    def numbers(self) -> range:
        return range(self._first, self._log.numbers().stop)

    def entry_from(self, number: int) -> MarkEntry:
        if self._deletions:
            self._first = min(self._first + self._deletions.pop(), self._log.numbers()[-1])
        return self._log.entry_from(max(number, self._first))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(OFFSETS, min_size=1, max_size=6),
    st.lists(st.integers(0, 4)),
)
def test_entries_deleted_meanwhile_never_raise_a_window_too_far(
    steps: list[tuple[int, int]], places: list[tuple[int, int]], deletions: list[int]
) -> None:
    marks: Marks = []
    left = right = 0
    for number, (one, other) in enumerate(steps):
        left, right = left + one, right + other
        marks.append((number, number + 3, {0: left, 1: right}))
    log, layout = log_of(marks), Layout.create(2)
    deleting = DeletingLog(log, deletions)
    reader, exact = MovingWindow(deleting), MovingWindow(log)
    last = -1
    for one, other in places:
        low, high = show(reader.advance({0: one, 1: other}, layout))
        true_low, true_high = show(exact.advance({0: one, 1: other}, layout))
        assert (-1 if low is None else low) <= (-1 if true_low is None else true_low)
        assert high is None or (true_high is not None and high >= true_high)
        assert last <= (-1 if low is None else low)
        last = -1 if low is None else low
        first = deleting.numbers().start
        assert low == true_low or (true_low is not None and true_low + 1 < first), "what is left is found"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12),
    OFFSETS,
    st.lists(st.integers(0, 4)),
)
def test_the_time_at_a_cut_is_that_of_the_newest_entry_left(
    steps: list[tuple[int, int]], place: tuple[int, int], deletions: list[int]
) -> None:
    marks: Marks = []
    left = right = 0
    for number, (one, other) in enumerate(steps):
        left, right = left + one, right + other
        marks.append((number, number + 3, {0: left, 1: right}))
    log, layout, cut = log_of(marks), Layout.create(2), {0: place[0], 1: place[1]}
    deleting: Any = DeletingLog(log, deletions)
    found, exact = time_at(deleting, cut, layout).entry, time_at(log, cut, layout).entry
    if found != exact:
        assert exact is not None
        assert exact.seq < deleting.numbers().start
        assert found is None or found.seq < exact.seq


def test_a_place_whose_entry_was_deleted_keeps_what_it_stated() -> None:
    log = MarksLog(MarkEntry(seq, EntryKind.WATERMARK, seq * 10, seq * 10 + 5, (), {0: seq}, at=0) for seq in (7, 8))
    one = Layout.create(1)
    window = MovingWindow(log, place=3, lower=30)
    assert (window.place, window.lower) == (3, 30)
    assert [window.advance({0: offset}, one) for offset in (3, 6, 7, 8)] == [
        TimeWindow(30, 75),
        TimeWindow(30, 75),
        TimeWindow(70, 85),
        TimeWindow(80, None),
    ]
    assert (window.place, window.lower) == (8, 80)
    assert MovingWindow(log, place=3).advance({0: 3}, one) == TimeWindow(None, 75)
    assert MovingWindow(log, place=99, lower=30).advance({0: 3}, one) == TimeWindow(None, 75), "there is no such place"
