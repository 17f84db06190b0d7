"""What the tracker refuses, what it costs, and what happens to origins that come and go."""

import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import FloodmarkError, PendingLimitReached
from floodmark.progress import BatchOutcome, ReportOutcome, Tracker


def test_a_million_sequences_behind_one_gap_stay_small() -> None:
    tracker = Tracker(["o"])
    tracemalloc.start()
    try:
        for sequence in range(2, 20_002):
            tracker.update("o", sequence, 0, True, sequence)
        for start in range(20_002, 1_000_002, 5000):
            sequences = np.arange(start, min(start + 5000, 1_000_002))
            tracker.update_batch("o", sequences, sequences)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert size < 1_000_000
    assert tracker.gaps("o") == [(1, 1)]
    tracker.update("o", 1, 0, True, 1)
    assert (tracker.prefix("o"), tracker.local("o")) == (1_000_001, 1_000_001)


def test_a_batch_far_ahead_costs_by_its_rows_and_not_by_its_distance() -> None:
    tracker = Tracker(["o"])
    far = np.array([1, 10**9, 10**15, 2**62])
    tracker.update_batch("o", far, far)
    assert tracker.gaps("o") == [(2, 10**9 - 1), (10**9 + 1, 10**15 - 1), (10**15 + 1, 2**62 - 1)]
    tracker.update_batch("o", [5, 5], [1, 1], chunk=[10**12, 0], last=[True, False])
    assert tracker.missing_chunks("o", 5, limit=3) == {1, 2, 3}


def test_many_gaps_close_one_by_one() -> None:
    tracker, last = Tracker(["o"]), 20_000
    for sequence in range(2, last + 1, 2):
        tracker.update("o", sequence, 0, True, sequence)
    assert len(tracker.gaps("o")) == last // 2
    for sequence in range(1, last, 2):
        assert tracker.update("o", sequence, 0, True, sequence) is ReportOutcome.ADVANCED
        assert tracker.prefix("o") == sequence + 1
    assert tracker.statistics()["o"].pending == 0


def test_what_waits_is_bounded_and_the_missing_piece_always_gets_in() -> None:
    tracker = Tracker(["o"], max_pending=3)
    for sequence in (3, 5, 7):
        tracker.update("o", sequence, 0, True, sequence)
    with pytest.raises(PendingLimitReached) as refusal:
        tracker.update("o", 9, 0, True, 9)
    assert refusal.value.fields == {"sequence": 9, "missing": 1, "max_pending": 3}
    assert tracker.update("o", 5, 0, True, 5) is ReportOutcome.DUPLICATE
    assert tracker.update("o", 8, 0, True, 8) is ReportOutcome.WAITING
    assert tracker.update("o", 6, 0, True, 6) is ReportOutcome.WAITING
    with pytest.raises(PendingLimitReached):
        tracker.update_batch("o", [10, 12], [10, 12])
    tracker.update_batch("o", [1, 2, 4, 10], [1, 2, 4, 10])
    assert (tracker.prefix("o"), tracker.gaps("o")) == (8, [(9, 9)])


def test_chunks_that_wait_are_bounded_too() -> None:
    tracker = Tracker(["o"], max_pending=2)
    tracker.update("o", 2, 0, False, 1)
    tracker.update("o", 3, 0, False, 1)
    with pytest.raises(PendingLimitReached):
        tracker.update("o", 4, 0, False, 1)
    with pytest.raises(PendingLimitReached):
        tracker.update("o", 2, 5, False, 1)
    assert tracker.update("o", 2, 1, True, 1) is ReportOutcome.WAITING
    assert tracker.update("o", 1, 1, True, 9) is ReportOutcome.WAITING
    assert tracker.update("o", 1, 0, False, 1) is ReportOutcome.ADVANCED
    assert tracker.prefix("o") == 2


def test_an_added_origin_is_waited_for_but_the_watermark_does_not_fall() -> None:
    tracker = Tracker(["a"])
    tracker.update("a", 1, 0, True, 70)
    tracker.add("b")
    assert tracker.watermark == 70
    tracker.update("a", 2, 0, True, 90)
    assert tracker.watermark == 70
    tracker.update("b", 1, 0, True, 60)
    assert tracker.watermark == 70
    tracker.update("b", 2, 0, True, 80)
    assert tracker.watermark == 80


def test_closing_the_last_origin_leaves_the_watermark_where_it_was() -> None:
    tracker = Tracker(["a"])
    tracker.update("a", 1, 0, True, 70)
    tracker.close("a")
    assert tracker.watermark == 70


def test_a_closed_origin_takes_repeats_and_nothing_new() -> None:
    tracker = Tracker(["a", "b"])
    for sequence in (1, 3, 5):
        tracker.update("a", sequence, 0, True, 70)
    tracker.close("a")
    assert tracker.update("a", 1, 0, True, 70) is ReportOutcome.DUPLICATE
    assert tracker.update_batch("a", [1, 3, 5], [70, 70, 70]) == BatchOutcome(advanced=(), duplicates=3, stale=0)
    before = tracker.snapshot()
    for report in (
        lambda: tracker.update("a", 2, 0, True, 80),
        lambda: tracker.update_batch(["b", "a"], [1, 2], [5, 80]),
    ):
        with pytest.raises(FloodmarkError, match="origin-closed"):
            report()
    assert tracker.snapshot() == before
    assert tracker.update("b", 1, 0, True, 5) is ReportOutcome.ADVANCED


def test_merging_brings_origins_and_closes_them_without_going_back() -> None:
    mine, other = Tracker(["a"]), Tracker(["b", "c"])
    mine.update("a", 1, 0, True, 100)
    other.update("b", 1, 0, True, 40)
    other.close("c")
    mine.merge(other)
    assert mine.origins == ("a", "b", "c")
    assert mine.watermark == 100
    assert mine.statistics()["c"].closed
    mine.update("b", 2, 0, True, 150)
    mine.update("a", 2, 0, True, 130)
    assert mine.watermark == 130


def test_a_merge_that_contradicts_changes_nothing() -> None:
    mine, other = Tracker(["a", "b"]), Tracker(["a", "b"])
    other.update("a", 1, 0, True, 7)
    mine.update("b", 1, 1, True, 5)
    other.update("b", 1, 2, False, 5)
    before = mine.snapshot()
    with pytest.raises(FloodmarkError, match="chunk-conflict"):
        mine.merge(other)
    assert mine.snapshot() == before


ARROW = {
    "strings": pa.array(["a", "b", "a"]),
    "large strings": pa.array(["a", "b", "a"], pa.large_string()),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "chunked": pa.chunked_array([["a"], ["b", "a"]]),
}


@pytest.mark.parametrize("origin", ARROW.values(), ids=ARROW)
def test_arrow_tables_of_any_make(origin: pa.Array) -> None:
    tracker = Tracker(["a", "b"])
    columns = {"sequence": [1, 1, 2], "chunk": [0, 0, 0], "last": [True, True, True], "watermark": [10, 20, 30]}
    outcome = tracker.update_arrow(pa.table({"origin": origin, **columns}))
    assert outcome == BatchOutcome(advanced=("a", "b"), duplicates=0, stale=0)
    assert (tracker.local("a"), tracker.local("b"), tracker.watermark) == (30, 20, 20)


@pytest.mark.parametrize("ids", [[3, 900], [-3, 2**40]], ids=["small", "any"])
def test_origins_may_be_numbers(ids: list[int]) -> None:
    tracker = Tracker(ids)
    tracker.update_batch(np.array([ids[0], ids[1], ids[0]]), [1, 1, 2], [10, 20, 30])
    assert (tracker.local(ids[0]), tracker.local(ids[1])) == (30, 20)
    with pytest.raises(FloodmarkError, match="unknown-origin"):
        tracker.update_batch(np.array([ids[0], 77]), [3, 1], [1, 1])
    assert tracker.prefix(ids[0]) == 2


MIXED: dict[str, Any] = {
    "a list": ["a", 7],
    "a list that begins with a number": [7, "a"],
    "a tuple": ("a", "7"),
    "an array of objects": np.array(["7", 7], dtype=object),
    "numbers of numpy": [np.int64(7), "a"],
    "strings of numpy": np.array(["7", "a"]),
    "numbers": np.array([7, 7]),
    "a large number beside a name": [2**62, "a"],
}


@pytest.mark.parametrize("column", MIXED.values(), ids=MIXED)
def test_a_number_and_its_digits_are_different_origins(column: Any) -> None:
    tracker, expected = (Tracker([7, "7", "a", 2**62, str(2**62)]) for _ in range(2))
    tracker.update_batch(column, range(1, len(column) + 1), range(len(column)))
    for sequence, name in enumerate(column, start=1):
        expected.update(name, sequence, 0, True, sequence - 1)
    assert tracker.snapshot() == expected.snapshot()


def test_one_origin_for_all_rows_may_be_a_number_of_numpy() -> None:
    tracker = Tracker([7])
    assert tracker.update_batch(np.int64(7), [1, 2], [3, 4]).advanced == (7,)


LAST = 2**63 - 1


@pytest.mark.parametrize("chunk_base", [0, 1, LAST])
def test_the_last_numbers_of_int64_can_be_saved_and_used(chunk_base: int) -> None:
    tracker = Tracker(["a", "b", "c"], first=LAST - 1, chunk_base=chunk_base)
    tracker.update_batch("a", [LAST, LAST - 1], [7, 5], chunk=[chunk_base] * 2, last=[True, True])
    tracker.update("b", LAST, chunk_base, False, 5, attempt=LAST)
    tracker.update("c", LAST, LAST, True, 5, attempt=-LAST - 1)
    tracker.add("d", after=LAST, watermark=-LAST - 1)
    for _ in range(2):
        tracker = Tracker.restore(json.loads(json.dumps(tracker.snapshot())))
        assert (tracker.prefix("a"), tracker.local("a"), tracker.gaps("a")) == (LAST, 7, [])
        assert (tracker.prefix("d"), tracker.local("d")) == (LAST, -LAST - 1)
        assert tracker.gaps("b") == [(LAST - 1, LAST)]
        assert tracker.update_batch("a", [LAST], [7], chunk=[chunk_base]).duplicates == 1
        tracker.merge(Tracker.restore(tracker.snapshot()))


def batch(**columns: object) -> Callable[[Tracker], object]:
    rows: dict[str, object] = {"origin": "a", "sequence": [1, 2], "watermark": [1, 2]} | columns
    return lambda tracker: tracker.update_batch(**rows)  # type: ignore[arg-type]


def report(*values: object) -> Callable[[Tracker], object]:
    return lambda tracker: tracker.update(*values)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[Tracker], object], str]] = {
    "sequence as float": (report("a", 1.0, 0, True, 5), "not-int64"),
    "sequence as bool": (report("a", True, 0, True, 5), "not-int64"),
    "sequence as text": (report("a", "1", 0, True, 5), "not-int64"),
    "sequence beyond 64 bits": (report("a", 2**63, 0, True, 5), "not-int64"),
    "chunk as float": (report("a", 1, 0.0, True, 5), "not-int64"),
    "chunk as bool": (report("a", 1, False, True, 5), "not-int64"),
    "chunk beyond 64 bits": (report("a", 1, 2**64, False, 5), "not-int64"),
    "watermark as float": (report("a", 1, 0, True, 5.5), "not-int64"),
    "watermark missing": (report("a", 1, 0, True, None), "not-int64"),
    "watermark beyond 64 bits": (report("a", 1, 0, True, -(2**63) - 1), "not-int64"),
    "attempt as text": (report("a", 1, 0, True, 5, "x"), "not-int64"),
    "last as number": (report("a", 1, 0, 1, 5), "invalid-value"),
    "unknown origin": (report("z", 1, 0, True, 5), "unknown-origin"),
    "origin as list": (report(["a"], 1, 0, True, 5), "unknown-origin"),
    "ragged column": (batch(watermark=[[1], [2, 3]]), "batch-invalid"),
    "ragged sequences": (batch(sequence=[1, [2]]), "batch-invalid"),
    "ragged flags": (batch(last=[[True], [True, False]]), "batch-invalid"),
    "column of objects": (batch(watermark=np.array([1, 2], dtype=object)), "not-int64"),
    "column of mixed objects": (batch(sequence=np.array([1, "a"], dtype=object)), "not-int64"),
    "masked column": (batch(watermark=np.ma.array([1, 2], mask=[False, True])), "batch-invalid"),
    "origins as mixed objects": (batch(origin=np.array(["a", None], dtype=object)), "unknown-origin"),
    "origins that are lists": (batch(origin=[["a"], ["a"]]), "unknown-origin"),
    "ragged origins": (batch(origin=[["a"], ["a", "b"]]), "unknown-origin"),
    "origin as set": (batch(origin={"a"}), "unknown-origin"),
    "origin missing": (batch(origin=None), "unknown-origin"),
    "origins as floats": (batch(origin=np.array([1.0, 2.0])), "unknown-origin"),
    "masked origins": (batch(origin=np.ma.array([1, 2], mask=[False, True])), "batch-invalid"),
    "column of floats": (batch(watermark=[1.0, 2.0]), "not-int64"),
    "column with a null": (batch(watermark=pa.array([1, None])), "not-int64"),
    "column of uint64 too large": (batch(watermark=np.array([1, 2**64 - 1], dtype=np.uint64)), "not-int64"),
    "column with MAX": (batch(watermark=[1, 2**63 - 1]), "reserved-time"),
    "column too short": (batch(watermark=[1]), "batch-invalid"),
    "column of two dimensions": (batch(sequence=[[1, 2]]), "batch-invalid"),
    "flags as numbers": (batch(last=[1, 0]), "batch-invalid"),
    "sequence 0 in a column": (batch(sequence=[0, 1]), "number-out-of-range"),
    "chunk -1 in a column": (batch(chunk=[0, -1]), "number-out-of-range"),
    "unknown origin in a column": (batch(origin=["a", "z"]), "unknown-origin"),
    "origin column too short": (batch(origin=["a"]), "batch-invalid"),
    "null origin": (batch(origin=pa.array(["a", None])), "unknown-origin"),
    "conflict in a batch": (batch(sequence=[1, 1], chunk=[1, 2], last=[True, True]), "chunk-conflict"),
    "chunk beyond the last in a batch": (batch(sequence=[1, 1], chunk=[1, 2], last=[True, False]), "chunk-conflict"),
    "arrow without columns": (lambda tracker: tracker.update_arrow(pa.table({"origin": ["a"]})), "batch-invalid"),
    "origin twice": (lambda tracker: tracker.add("a"), "duplicate-name"),
    "origin without a name": (lambda tracker: tracker.add(None), "invalid-option"),  # type: ignore[arg-type]
    "unknown origin closed": (lambda tracker: tracker.close("z"), "unknown-origin"),
    "merge of another base": (lambda tracker: tracker.merge(Tracker(chunk_base=1)), "invalid-option"),
    "negative chunk base": (lambda tracker: Tracker(chunk_base=-1), "invalid-option"),
    "lowest chunk base": (lambda tracker: Tracker(chunk_base=-(2**63)), "invalid-option"),
    "negative limit of chunks": (lambda tracker: tracker.missing_chunks("a", 1, -1), "number-out-of-range"),
    "nothing may wait": (lambda tracker: Tracker(max_pending=0), "invalid-option"),
    "snapshot of another version": (
        lambda tracker: Tracker.restore(tracker.snapshot() | {"version": 2}),
        "snapshot-version-unknown",
    ),
    "snapshot of another kind": (lambda tracker: Tracker.restore({"kind": "coalescer"}), "snapshot-invalid"),
    "snapshot with a hole": (
        lambda tracker: Tracker.restore({k: v for k, v in tracker.snapshot().items() if k != "origins"}),
        "snapshot-invalid",
    ),
    "snapshot with a wrong value": (
        lambda tracker: Tracker.restore(tracker.snapshot() | {"floor": "x"}),
        "snapshot-invalid",
    ),
}


@pytest.mark.parametrize(("action", "code"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_nothing_changes(action: Callable[[Tracker], object], code: str) -> None:
    tracker = Tracker(["a", "b"])
    tracker.update("a", 3, 0, True, 3)
    before = tracker.snapshot()
    with pytest.raises(FloodmarkError) as refusal:
        action(tracker)
    assert refusal.value.code == code
    after = tracker.snapshot()
    for _, state in [*before["origins"], *after["origins"]]:
        state.pop("conflicts")
    assert after == before


def test_chunks_of_different_attempts_do_not_add_up_in_a_batch() -> None:
    tracker = Tracker(["a"])
    tracker.update_batch("a", [1, 1], [5, 6], chunk=[0, 1], last=[False, True], attempt=[0, 1])
    assert tracker.missing_chunks("a", 1) == {0}
    assert tracker.prefix("a") == 0


@pytest.mark.parametrize("far_chunk", [1, 5000], ids=["dense", "sparse"])
def test_a_chunk_that_came_twice_in_a_batch_does_not_stand_for_another(far_chunk: int) -> None:
    tracker = Tracker(["a"])
    outcome = tracker.update_batch(
        "a", [1, 1, 1, 2], [5, 6, 7, 8], chunk=[0, 0, 2, far_chunk], last=[False, False, True, True]
    )
    assert outcome == BatchOutcome(advanced=(), duplicates=1, stale=0)
    assert tracker.missing_chunks("a", 1) == {1}


def test_numbers_of_numpy_are_numbers() -> None:
    tracker = Tracker(["a"])
    assert tracker.update("a", np.int64(1), np.int64(0), np.True_, np.int64(5)) is ReportOutcome.ADVANCED  # type: ignore[arg-type]
    assert tracker.local("a") == 5


def test_regressions_are_counted() -> None:
    tracker = Tracker(["a"])
    for sequence, watermark in enumerate([100, 50, 120], start=1):
        tracker.update("a", sequence, 0, True, watermark)
    assert tracker.statistics()["a"].regressions == 1
    tracker.update_batch("a", [4, 5, 6], [130, 125, 140])
    assert tracker.statistics()["a"].regressions == 2


def test_a_snapshot_grows_with_the_gaps_and_not_with_the_past() -> None:
    tracker = Tracker(["a"])
    tracker.update_batch("a", np.arange(1, 100_001), np.arange(100_000))
    short = len(str(tracker.snapshot()))
    tracker.update_batch("a", np.arange(100_001, 200_001), np.arange(100_000))
    assert len(str(tracker.snapshot())) == short
    assert sys.getsizeof(tracker.snapshot()) < 2000
