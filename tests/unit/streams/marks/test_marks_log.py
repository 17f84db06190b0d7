"""Looking up a marks log by time and by place."""

import time as clock
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, InvalidValue, SnapshotInvalid
from floodmark.streams import EntryKind, Layout, LookupStatus, MarkEntry, MarksLookup
from floodmark.streams.marks.log import MarksLog, cut_at, ending_at, starting_at, time_at

ONE = Layout.create(1)


def watermark(seq: int, lower: int, upper: int, offset: int) -> MarkEntry:
    return MarkEntry(seq, EntryKind.WATERMARK, lower, upper, ("w",), {0: offset}, at=seq)


def unknown(seq: int, lower: int, upper: int, offset: int) -> MarkEntry:
    return MarkEntry(seq, EntryKind.UNKNOWN, lower, upper, (), {0: offset}, at=seq)


LOG = MarksLog(
    [watermark(1, 10, 15, 100), watermark(2, 20, 30, 200), unknown(3, 20, 30, 250), watermark(4, 30, 30, 300)]
)


def show(found: MarksLookup) -> str:
    number = "-" if found.entry is None else str(found.entry.seq)
    return {"inside": "", "before the first entry": "head ", "after the last entry": "beyond "}[
        found.where.value
    ] + number


BY_TIME: Mapping[int, tuple[str, str, str]] = {
    # time: the place, where to start, where to end
    -5: ("head -", "head -", "1"),
    9: ("head -", "head -", "1"),
    10: ("1", "head -", "1"),
    14: ("1", "head -", "2"),
    15: ("1", "1", "2"),
    19: ("1", "1", "2"),
    20: ("2", "1", "2"),
    21: ("2", "1", "4"),
    29: ("2", "1", "4"),
    30: ("4", "4", "4"),
    31: ("beyond 4", "beyond 4", "beyond -"),
}


@pytest.mark.parametrize(("time", "expected"), BY_TIME.items())
def test_the_place_of_a_time(time: int, expected: tuple[str, str, str]) -> None:
    assert (show(cut_at(LOG, time)), show(starting_at(LOG, time)), show(ending_at(LOG, time))) == expected


@pytest.mark.parametrize(
    ("offset", "expected"), {99: "head -", 100: "1", 199: "1", 200: "2", 250: "3", 299: "3", 300: "beyond 4"}.items()
)
def test_the_time_at_a_place(offset: int, expected: str) -> None:
    assert show(time_at(LOG, {0: offset}, ONE)) == expected


def test_an_empty_log() -> None:
    log = MarksLog()
    assert show(cut_at(log, 5)) == show(starting_at(log, 5)) == show(time_at(log, {0: 9}, ONE)) == "head -"
    assert show(ending_at(log, 5)) == "beyond -"
    assert (log.newest(), log.last, list(log.numbers())) == (None, None, [])
    assert ending_at(log, 5).cut is None


def test_a_log_that_lost_its_beginning_goes_on() -> None:
    log = MarksLog([watermark(7, 10, 15, 100), watermark(8, 20, 30, 200)])
    assert (show(cut_at(log, 20)), show(time_at(log, {0: 150}, ONE)), log.entry(8).lower) == ("8", "7", 20)


def test_a_place_is_a_cut_of_the_stream() -> None:
    with pytest.raises(FloodmarkError) as failure:
        time_at(LOG, {0: 100}, Layout.create(2))
    assert failure.value.code == "cut-invalid"
    with pytest.raises(FloodmarkError):
        cut_at(LOG, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [watermark(6, 40, 40, 400), watermark(4, 40, 40, 400), watermark(5, 30, 40, 400)])
def test_only_what_follows_is_appended(bad: MarkEntry) -> None:
    log = MarksLog(LOG.entry(number) for number in LOG.numbers())
    with pytest.raises(InvalidValue):
        log.append(bad)
    log.append(watermark(5, 31, 31, 300))
    assert log.last == watermark(5, 31, 31, 300)


@pytest.mark.parametrize(("lower", "upper"), [(5, 4), (None, 4), (5, None), (None, None)])
def test_a_watermark_has_two_times_the_right_way_round(lower: int | None, upper: int | None) -> None:
    with pytest.raises(InvalidValue):
        MarkEntry(1, EntryKind.WATERMARK, lower, upper, (), {0: 1}, at=0)


def test_an_entry_is_saved_and_loaded() -> None:
    for entry in (LOG.entry(1), LOG.entry(3), MarkEntry(1, EntryKind.IDLE, None, None, (), {0: 0}, at=0)):
        assert MarkEntry.load(entry.save()) == entry
        assert str(entry)
    with pytest.raises(SnapshotInvalid):
        MarkEntry.load({**LOG.entry(1).save(), "entry": "guess"})


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=12),
    st.integers(-1, 40),
)
def test_every_lookup_is_what_looking_at_all_entries_gives(steps: list[tuple[int, int, int]], asked: int) -> None:
    entries: list[MarkEntry] = []
    lower = upper = offset = 0
    for seq, (rise, width, way) in enumerate(steps, start=1):
        lower, offset = lower + rise, offset + way
        upper = max(upper, lower + width)
        entries.append(watermark(seq, lower, upper, offset))
    log = MarksLog(entries)
    at = [entry for entry in entries if entry.lower is not None and entry.lower <= asked]
    start = [entry for entry in entries if entry.upper is not None and entry.upper <= asked]
    end = [entry for entry in entries if entry.lower is not None and entry.lower >= asked]
    place = [entry for entry in entries if entry.cut[0] <= max(asked, 0)]
    assert cut_at(log, asked).entry == (at[-1] if at else None)
    assert starting_at(log, asked).entry == (start[-1] if start else None)
    assert ending_at(log, asked).entry == (end[0] if end else None)
    assert time_at(log, {0: max(asked, 0)}, ONE).entry == (place[-1] if place else None)
    assert (ending_at(log, asked).where is LookupStatus.AFTER_LAST) == (asked > lower)


def test_a_long_log_is_searched_not_scanned() -> None:
    class Counted(MarksLog):
        looked = 0

        def entry(self, number: int) -> MarkEntry:
            Counted.looked += 1
            return super().entry(number)

    log = Counted(watermark(seq, seq, seq, seq) for seq in range(1, 20_001))
    begun = clock.perf_counter()
    assert time_at(log, {0: 15_000}, ONE).entry == log.entry(15_000)
    assert cut_at(log, 15_000).entry == log.entry(15_000)
    assert clock.perf_counter() - begun < 0.05
    assert Counted.looked < 25


class GrowingLog:
    """A marks log to which a controller appends entries between any two reads."""

    def __init__(self, entries: list[MarkEntry], coming: list[MarkEntry]) -> None:
        self._log = MarksLog(entries)
        self._coming = coming

    def __getattr__(self, name: str) -> Any:
        def read(*args: Any) -> Any:
            found = getattr(self._log, name)(*args)
            while self._coming:
                self._log.append(self._coming.pop(0))
            return found

        return read


@pytest.mark.parametrize("look", [cut_at, starting_at])
def test_a_lookup_is_not_final_if_it_misses_entries_that_came_meanwhile(look: Any) -> None:
    growing: Any = GrowingLog([watermark(1, 10, 10, 100)], [watermark(2, 14, 14, 140), watermark(3, 20, 20, 200)])
    assert show(look(growing, 15)) == "beyond 2"
    assert show(look(growing, 15)) == "2"


def test_an_entry_behind_a_scale_is_not_passed_by_a_cut_of_the_layout_before_it() -> None:
    log = MarksLog([watermark(1, 10, 10, 100), MarkEntry(2, EntryKind.WATERMARK, 20, 20, ("w",), {1: 0, 2: 0}, at=2)])
    assert show(time_at(log, {0: 999}, ONE)) == "1"
    assert show(time_at(log, {1: 0, 2: 0}, ONE.split(0))) == "beyond 2"
