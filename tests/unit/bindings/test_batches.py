"""However a bound source is cut into batches, each row comes once, with the same timestamp and watermarks."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.bindings.history import BindingHistory
from floodmark.bindings.offsets import BatchLimits, BoundRange, SourceOffset, bound_ranges, next_offset
from floodmark.errors import SnapshotInvalid

START = SourceOffset("q", None, {})

Tick = tuple[list[int], int | None]
TICKS = st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3), st.none() | st.integers(0, 12)), max_size=8)
LIMITS = st.builds(
    BatchLimits,
    rows=st.none() | st.integers(1, 6),
    event_time=st.none() | st.tuples(st.just("at"), st.integers(0, 4)),
    at_marks=st.booleans(),
)


def history_of(ticks: list[Tick]) -> BindingHistory:
    history = BindingHistory.start(10)
    ends: dict[int, int] = {}
    for place, (rows, watermark) in enumerate(ticks):
        for partition, count in enumerate(rows):
            ends[partition] = ends.get(partition, 0) + count
        stamps = {} if watermark is None else {"at": watermark}
        history = history.append(10 + 3 * place, ends, watermarks=stamps)
    return history


def batches(
    history: BindingHistory, limits: Iterator[BatchLimits] | None = None, start: SourceOffset = START
) -> list[tuple[SourceOffset, SourceOffset]]:
    found: list[tuple[SourceOffset, SourceOffset]] = []
    while True:
        end = next_offset(history, start, next(limits) if limits is not None else BatchLimits())
        if end == start:
            return found
        found.append((start, end))
        start = end


def read_of(offset: SourceOffset) -> dict[int, int]:
    """Return how far partitions were read; one of which nothing was read may be left out."""
    return {partition: end for partition, end in offset.cut.items() if end}


def rows(history: BindingHistory, cut: list[tuple[SourceOffset, SourceOffset]]) -> list[tuple[object, ...]]:
    parts: list[BoundRange] = [part for start, end in cut for part in bound_ranges(history, start, end)]
    return [(part.partition, n, part.ts, dict(part.watermarks)) for part in parts for n in range(part.first, part.end)]


@given(TICKS, st.lists(LIMITS, min_size=1))
def test_any_limits_give_the_same_rows_in_the_same_places(ticks: list[Tick], limits: list[BatchLimits]) -> None:
    history = history_of(ticks)
    endless = (limits[number % len(limits)] for number in range(10**6))
    cut, whole = batches(history, endless), batches(history)
    assert len(whole) <= 1
    assert sorted(rows(history, cut), key=repr) == sorted(rows(history, whole), key=repr)
    assert len({row[:2] for row in rows(history, cut)}) == sum(history.ends.values())
    if whole:
        last, at_once = cut[-1][1], whole[-1][1]
        assert (read_of(last), last.watermarks) == (read_of(at_once), at_once.watermarks)


@given(TICKS, LIMITS)
def test_a_batch_has_no_more_than_its_limits_and_always_something(ticks: list[Tick], limits: BatchLimits) -> None:
    history = history_of(ticks)
    for start, end in batches(history, iter(lambda: limits, None)):
        count = len(rows(history, [(start, end)]))
        assert limits.rows is None or count <= limits.rows
        assert count or end.watermarks != start.watermarks or end.step > start.step


@given(TICKS, LIMITS)
def test_time_moves_only_where_a_timestamp_was_read_to_its_end(ticks: list[Tick], limits: BatchLimits) -> None:
    history = history_of(ticks)
    for start, end in batches(history, iter(lambda: limits, None)):
        assert end.ts is not None
        whole = end.is_at_end_of_ts(history)
        assert end.watermarks == (history.watermark_at(end.ts) if whole else history.watermark_before(end.ts))
        assert all(end.watermarks[key] >= time for key, time in start.watermarks.items())


@given(TICKS, LIMITS, st.integers(0, 20), st.integers(0, 20))
def test_nothing_is_read_beyond_the_end(ticks: list[Tick], limits: BatchLimits, first: int, second: int) -> None:
    history, end = history_of(ticks), {0: first, 1: second}
    bounded = replace(limits, end=end)
    cut = batches(history, iter(lambda: bounded, None))
    found = {(partition, offset) for partition, offset, *_ in rows(history, cut)}
    ends = history.ends
    assert found == {(p, n) for p in end for n in range(min(end[p], ends.get(p, 0)))}


@given(TICKS, st.integers(0, 40))
def test_what_was_compacted_is_read_as_one_and_judged_by_no_watermark(ticks: list[Tick], since: int) -> None:
    history = history_of(ticks)
    since = min(since, history.upper - 1)
    compacted = history.compact(since)
    before, after = rows(history, batches(history)), rows(compacted, batches(compacted))
    assert [row[:2] for row in before] == [row[:2] for row in after]
    for (*_, ts, stamps), (*_, new_ts, new_stamps) in zip(before, after, strict=True):
        assert isinstance(ts, int)
        assert new_ts == max(ts, compacted.since)
        assert new_stamps == (stamps if ts > since or not compacted.is_compacted else {})


def test_a_batch_that_may_not_go_further_in_time_ends_at_the_last_mark_within() -> None:
    history = history_of([([1], 0), ([1], 30), ([1], 60), ([1], 95)])
    ends = [end.watermarks["at"] for _, end in batches(history, iter(lambda: BatchLimits(event_time=("at", 60)), None))]
    assert ends == [60, 95]


def test_who_may_not_pass_a_time_takes_what_is_before_it_and_at_least_the_next() -> None:
    history = history_of([([1], 0), ([1], 30), ([1], 60), ([1], 95)])
    first = next_offset(history, START, BatchLimits(time_at_most=("at", 40)))
    assert (first.watermarks, first.cut) == ({"at": 30}, {0: 2})
    assert next_offset(history, first, BatchLimits(time_at_most=("at", 40))).watermarks == {"at": 60}


def test_an_availablenow_run_ends_at_its_last_timestamp() -> None:
    history = history_of([([1], 0), ([1], 30), ([1], 60)])
    ((_, end),) = batches(history, iter(lambda: BatchLimits(until=13), None))
    assert (end.ts, end.cut) == (13, {0: 2})


def test_an_offset_of_another_form_is_refused() -> None:
    with pytest.raises(SnapshotInvalid):
        SourceOffset.load({"incarnation": "q", "ts": 5})
