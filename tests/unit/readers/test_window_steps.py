"""Windows look only forward, in few steps, and say the same as if they had looked at everything."""

from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import UnknownSegment
from floodmark.streams import EntryKind, Layout, MarkEntry, Position, TimeWindow
from floodmark.streams.layout.positions import Standing, compare_to_cut
from floodmark.streams.marks.log import MarksLog
from floodmark.streams.marks.windows import CachedMarks, MovingWindow, StreamWindow

TWO = Layout.create(2)


class CountedLog(MarksLog):
    """A marks log that counts how often it is looked at."""

    looks = 0

    def numbers(self) -> range:
        self.looks += 1
        return super().numbers()

    def entry(self, number: int) -> MarkEntry:
        self.looks += 1
        return super().entry(number)


def log_of(cuts: list[tuple[int, int]], first: int = 1) -> CountedLog:
    log = CountedLog()
    for place, (left, right) in enumerate(cuts):
        lower = 10 * (place + 1)
        log.append(MarkEntry(first + place, EntryKind.WATERMARK, lower, lower + 5, (), {0: left, 1: right}, at=0))
    return log


def at_once(log: MarksLog, position: Position, layout: Layout) -> TimeWindow | None:
    """Return the window by looking at every entry."""
    entries = [log.entry(number) for number in log.numbers()]
    standings = [compare_to_cut(layout, position, entry.cut) for entry in entries]
    passed = [entry for entry, standing in zip(entries, standings, strict=True) if standing is Standing.PASSED]
    lower = passed[-1].lower if passed else None
    if len(passed) == len(entries):
        upper = None
    else:
        ahead = [entry for entry, standing in zip(entries, standings, strict=True) if standing is Standing.BEHIND]
        upper = (ahead[0] if ahead else entries[-1]).upper
    return None if lower is None and upper is None else TimeWindow(lower, upper)


RISES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30)


def summed(rises: list[tuple[int, int]]) -> list[tuple[int, int]]:
    left = right = 0
    found = []
    for one, other in rises:
        left, right = left + one, right + other
        found.append((left, right))
    return found


@given(RISES, RISES, st.integers(0, 3), st.integers(1, 50))
def test_a_position_that_moves_on_has_the_same_window_as_if_all_were_looked_at(
    cuts: list[tuple[int, int]], moves: list[tuple[int, int]], later: int, first: int
) -> None:
    whole = log_of(summed(cuts), first)
    entries = [whole.entry(number) for number in whole.numbers()]
    growing = MarksLog(entries[: max(len(entries) - later, 0)])
    reader = MovingWindow(growing)
    for place, (left, right) in enumerate(summed(moves)):
        if place == 2:
            for entry in entries[len(growing.numbers()) :]:
                growing.append(entry)
        position = {0: left, 1: right}
        assert reader.advance(position, TWO) == at_once(growing, position, TWO)
        again = MovingWindow(growing, reader.place)
        assert again.advance(position, TWO) == at_once(growing, position, TWO)


def test_at_the_end_of_the_log_a_window_costs_one_look_however_long_the_log_is() -> None:
    log = log_of([(number, number) for number in range(1, 5_001)])
    reader = MovingWindow(log)
    reader.advance({0: 5_000, 1: 5_000}, TWO)
    assert log.looks < 60, "a fresh one needs few"
    log.looks = 0
    for _ in range(10):
        assert reader.advance({0: 5_000, 1: 5_000}, TWO) == TimeWindow(50_000, None)
    assert log.looks == 10
    log.append(MarkEntry(5_001, EntryKind.WATERMARK, 50_010, 50_015, (), {0: 5_002, 1: 5_002}, at=0))
    log.looks = 0
    assert reader.advance({0: 5_001, 1: 5_001}, TWO) == TimeWindow(50_000, 50_015)
    assert log.looks == 2


def test_a_reader_that_is_far_ahead_in_one_segment_pays_no_more_for_it() -> None:
    log = log_of([(number, number) for number in range(1, 2_001)])
    reader = MovingWindow(log)
    assert reader.advance({0: 2_000, 1: 5}, TWO) == TimeWindow(50, 20_005)
    log.looks = 0
    assert reader.advance({0: 2_000, 1: 6}, TWO) == TimeWindow(60, 20_005)
    assert log.looks <= 6


def test_entries_that_are_kept_no_more_are_not_looked_for() -> None:
    log = log_of([(1, 1), (2, 2), (3, 3)], first=7)
    assert MovingWindow(log, place=3).advance({0: 2, 1: 2}, TWO) == TimeWindow(20, 35)


def test_entries_that_were_seen_are_not_asked_for_again() -> None:
    log = log_of([(number, number) for number in range(1, 400)])
    seen = CachedMarks(log)
    log.looks = 0
    assert [seen.entry_from(5).lower for _ in range(9)] == [50] * 9
    assert (log.looks, len(seen.numbers())) == (1, 399)
    for number in range(1, 400):
        seen.entry_from(number)
    assert len(seen._entries) <= 256
    log.append(MarkEntry(400, EntryKind.WATERMARK, 4_000, 4_005, (), {0: 400, 1: 400}, at=0))
    assert len(seen.numbers()) == 399
    seen.refresh()
    assert len(seen.numbers()) == 400


def test_a_layout_that_is_too_old_is_asked_for_again_once() -> None:
    asked: list[bool] = []
    log = MarksLog([MarkEntry(1, EntryKind.WATERMARK, 5, 6, (), {1: 0, 2: 4}, at=0)])

    def layout(is_new: bool) -> Layout:
        asked.append(is_new)
        return Layout.create(1).split(0) if is_new else Layout.create(1)

    assert StreamWindow(log, None, layout).at({0: 3}) == TimeWindow(None, 6)
    assert asked == [False, True]

    def too_old(_: bool) -> Layout:
        return Layout.create(1)

    try:
        StreamWindow(log, None, too_old).at({0: 3})
    except UnknownSegment:
        return
    raise AssertionError("it must be heard")
