"""The scenarios of parallel progress, row by row, under Floodmark's rulings.

A report is (sequence, chunk, L or -, watermark); rows count chunks from 1 unless they say otherwise. `None` stands
where the model system says 0: nothing is known yet. `!` is an error that changed nothing.
"""

import json
import random
import threading

import pytest

from floodmark.errors import DuplicateName, FloodmarkError, UnknownOrigin
from floodmark.progress import ReportOutcome, Tracker

Report = tuple[int, int, str, int]
L, _ = "L", "-"


def single(*sequences: int, times: int = 10) -> list[Report]:
    return [(sequence, 1, L, sequence * times) for sequence in sequences]


LOCALS: dict[str, tuple[list[Report], list[int | str | None]]] = {
    "S01": ([(1, 1, L, 31), (2, 1, L, 63), (4, 1, L, 99), (3, 1, L, 80)], [31, 63, 63, 99]),
    "S10": (single(1, 2, 4, 6, 3, 7, 5), [10, 20, 20, 20, 40, 40, 70]),
    "S11": (single(9, 8, 7, 6, 5, 4, 3, 2, 1), [*[None] * 8, 90]),
    # The local watermark never falls.
    "S12": ([(1, 1, L, 100), (2, 1, L, 50), (3, 1, L, 120)], [100, 100, 120]),
    "S14": ([(1, 1, L, 100), (2, 1, L, 0), (3, 1, L, 150)], [100, 100, 150]),
    "S15": ([(1, 1, L, 5), (2, 1, L, 5), (3, 1, L, 5)], [5, 5, 5]),
    # int64 MAX is refused; what lies right below it is a time like any other.
    "S16": ([(1, 1, L, 2**63 - 1), (1, 1, L, 2**63 - 2), (2, 1, L, 5)], ["!reserved-time", 2**63 - 2, 2**63 - 2]),
    "S16-uint64": ([(1, 1, L, 2**64 - 1), (1, 1, L, 5)], ["!not-int64", 5]),
    "S17": ([(0, 1, L, 77), (1, 1, L, 10)], ["!number-out-of-range", 10]),
    "S18": ([(1_000_000, 1, L, 5)], [None]),
    "S20": ([(1, 1, L, 32)], [32]),
    "S21": ([(1, 1, _, 2), (1, 2, L, 12)], [None, 12]),
    "S22": ([(1, 2, L, 42), (1, 1, _, 2)], [None, 42]),
    "S23": ([(1, 2, L, 32), (101, 1, _, 32), (1, 1, _, 32), (101, 2, L, 32)], [None, None, 32, 32]),
    "S24": ([(1, 1, _, 2), (1, 2, L, 12), (1, 3, L, 12)], [None, 12, 12]),
    "S27": ([(2, 1, L, 20), (1, 1, _, 5), (1, 2, L, 10)], [None, None, 20]),
    "S28": ([(1, 2, L, 10), (2, 1, L, 20)], [None, None]),
    # A contradiction is refused while the sequence is open; afterwards it is a duplicate, merged by maximum.
    "S33": (
        [(1, 2, L, 10), (1, 3, L, 11), (1, 1, _, 12), (1, 2, _, 13)],
        [None, "!chunk-conflict", 12, 13],
    ),
    "S33-beyond": ([(1, 2, L, 10), (1, 3, _, 11), (1, 1, _, 9)], [None, "!chunk-conflict", 10]),
    "S33-before": ([(1, 3, _, 10), (1, 2, L, 11), (1, 4, L, 12)], [None, "!chunk-conflict", None]),
    "S33-both": ([(1, 2, _, 10), (1, 2, L, 11)], [None, "!chunk-conflict"]),
    "S40": ([(1, 1, L, 10), (1, 1, L, 10), (2, 1, L, 20), (3, 1, L, 30)], [10, 10, 20, 30]),
    "S41": ([(3, 1, L, 30), (3, 1, L, 35), (1, 1, L, 10), (2, 1, L, 20)], [None, None, 10, 35]),
    "S42": ([(1, 1, _, 10), (1, 1, _, 10), (1, 2, L, 12), (2, 1, L, 20)], [None, None, 12, 20]),
    "S45": (
        [(2, 1, _, 20), *[(1, 1, L, 10)] * 4, (2, 2, L, 21), (3, 1, L, 30)],
        [None, 10, 10, 10, 10, 21, 30],
    ),
    "negative": ([(1, 1, L, -50), (2, 1, L, -(2**63))], [-50, -50]),
    "lowest-time": ([(1, 1, L, -(2**63))], [-(2**63)]),
}


def take(tracker: Tracker, report: Report, origin: int = 1) -> int | str | None:
    sequence, chunk, last, watermark = report
    try:
        tracker.update(origin, sequence, chunk, last == L, watermark)
    except FloodmarkError as error:
        return f"!{error.code}"
    return tracker.local(origin)


@pytest.mark.parametrize(("reports", "expected"), LOCALS.values(), ids=LOCALS)
def test_local_watermark_after_each_report(reports: list[Report], expected: list[int | str | None]) -> None:
    tracker = Tracker([1], chunk_base=1)
    assert [take(tracker, report) for report in reports] == expected


@pytest.mark.parametrize(("reports", "expected"), LOCALS.values(), ids=LOCALS)
def test_the_same_in_batches_of_one_and_through_a_restart(
    reports: list[Report], expected: list[int | str | None]
) -> None:
    tracker = Tracker([1], chunk_base=1)
    for (sequence, chunk, last, watermark), want in zip(reports, expected, strict=True):
        tracker = Tracker.restore(json.loads(json.dumps(tracker.snapshot())))
        found: int | str | None
        try:
            tracker.update_batch(1, [sequence], [watermark], chunk=[chunk], last=[last == L])
            found = tracker.local(1)
        except FloodmarkError as error:
            found = f"!{error.code}"
        assert found == want


GAPS = {
    "S02": ([1, 2, 3, 4, 5], 5, []),
    "S03": ([1, 2, 3, 5, 6], 3, [(4, 4)]),
    "S04": ([1, 3, 4, 6], 1, [(2, 2), (5, 5)]),
    "S18": ([1_000_000], 0, [(1, 999_999)]),
    "none": ([], 0, []),
}


@pytest.mark.parametrize(("sequences", "prefix", "gaps"), GAPS.values(), ids=GAPS)
def test_prefix_and_gaps(sequences: list[int], prefix: int, gaps: list[tuple[int, int]]) -> None:
    tracker = Tracker(["o"])
    for sequence in sequences:
        tracker.update("o", sequence, 0, True, sequence)
    assert (tracker.prefix("o"), tracker.gaps("o")) == (prefix, gaps)


def test_s05_in_order_ten_thousand() -> None:
    tracker = Tracker(["o"])
    for number in range(1, 10_001):
        assert tracker.local("o") == (number - 1 or None)
        tracker.update("o", number, 0, True, number)
    assert tracker.local("o") == 10_000


def test_s06_backwards_ten_thousand() -> None:
    tracker = Tracker(["o"])
    for number in range(10_000, 1, -1):
        assert tracker.update("o", number, 0, True, number) is ReportOutcome.WAITING
        assert tracker.local("o") is None
    assert tracker.update("o", 1, 0, True, 1) is ReportOutcome.ADVANCED
    assert tracker.local("o") == 10_000


def test_s07_shuffled_a_report_never_counts_before_it_came() -> None:
    tracker, numbers = Tracker(["o"]), list(range(1, 101))
    random.Random(7).shuffle(numbers)
    for number in numbers:
        assert (tracker.local("o") or 0) < number
        tracker.update("o", number, 0, True, number)
    assert tracker.local("o") == 100


@pytest.mark.parametrize(("withheld", "last", "size"), [(667, 100_000, 1), (None, 1_000_000, 500)], ids=["S08", "S09"])
def test_ten_threads_behind_a_lock(withheld: int | None, last: int, size: int) -> None:
    tracker, lock = Tracker(["o"]), threading.Lock()
    highest: list[int] = []

    def work(thread: int) -> None:
        for start in range(1 + thread * size, last + 1, 10 * size):
            mine = [number for number in range(start, min(start + size, last + 1)) if number != withheld]
            with lock:
                if size == 1:
                    for number in mine:
                        tracker.update("o", number, 0, True, number)
                else:
                    tracker.update_batch("o", mine, mine)
        highest.append(tracker.local("o") or 0)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if withheld is not None:
        assert max(highest) < withheld
        assert tracker.local("o") == withheld - 1
        tracker.update("o", withheld, 0, True, withheld)
    assert tracker.local("o") == last


def test_s28_names_the_missing_chunk() -> None:
    tracker = Tracker(["o"], chunk_base=1)
    tracker.update("o", 1, 2, True, 10)
    tracker.update("o", 2, 1, True, 20)
    assert tracker.missing_chunks("o", 1) == {1}
    assert tracker.missing_chunks("o", 2) == frozenset()
    assert tracker.missing_chunks("o", 9) == {1}


def test_s29_shuffled_chunks_equal_the_plain_model_after_every_step() -> None:
    dice = random.Random(29)
    chunks = {sequence: dice.randint(2, 21) for sequence in range(1, 1001)}
    reports = [(sequence, chunk) for sequence, count in chunks.items() for chunk in range(1, count + 1)]
    dice.shuffle(reports)
    tracker, missing, complete = Tracker(["o"], chunk_base=1), dict(chunks), 0
    for sequence, chunk in reports:
        tracker.update("o", sequence, chunk, chunk == chunks[sequence], sequence)
        missing[sequence] -= 1
        while missing.get(complete + 1) == 0:
            complete += 1
        assert tracker.local("o") == (complete or None)
    assert tracker.local("o") == 1000


@pytest.mark.parametrize(
    ("reports", "expected"),
    [([(1, 0, _, 5), (1, 1, L, 10)], [None, 10]), ([(1, 0, L, 5)], [5])],
    ids=["S30", "S31"],
)
def test_chunks_from_zero_are_the_default(reports: list[Report], expected: list[int | None]) -> None:
    tracker = Tracker([1])
    assert [take(tracker, report) for report in reports] == expected


def test_s30_a_chunk_below_the_base_is_refused() -> None:
    assert take(Tracker([1], chunk_base=1), (1, 0, _, 5)) == "!number-out-of-range"


def test_s46_a_newer_attempt_starts_the_sequence_anew_and_an_older_one_is_ignored() -> None:
    tracker = Tracker(["o"], chunk_base=1)
    tracker.update("o", 1, 1, False, 90, attempt=1)
    tracker.update("o", 1, 2, False, 91, attempt=1)
    assert tracker.update("o", 1, 1, False, 10, attempt=2) is ReportOutcome.WAITING
    assert tracker.update("o", 1, 3, True, 99, attempt=1) is ReportOutcome.STALE
    assert tracker.update("o", 1, 2, True, 12, attempt=2) is ReportOutcome.ADVANCED
    assert tracker.local("o") == 12
    assert tracker.statistics()["o"].stale == 1


def test_s46_a_complete_sequence_never_opens_again() -> None:
    tracker = Tracker(["o"])
    tracker.update("o", 1, 0, True, 10)
    assert tracker.update("o", 1, 0, False, 10, attempt=5) is ReportOutcome.DUPLICATE
    assert tracker.prefix("o") == 1


ORIGINS = {
    "S51": ([1, 2, 3], [(1, 100), (2, 40), (3, 7)], [None, None, 7]),
    "S55": ([1, 2], [(1, 1), (2, 1), (1, 2), (2, 2)], [None, 1, 1, 2]),
}


@pytest.mark.parametrize(("origins", "reports", "expected"), ORIGINS.values(), ids=ORIGINS)
def test_watermark_over_all_origins(
    origins: list[int], reports: list[tuple[int, int]], expected: list[int | None]
) -> None:
    tracker = Tracker(origins)
    found = []
    for origin, watermark in reports:
        tracker.update(origin, tracker.prefix(origin) + 1, 0, True, watermark)
        found.append(tracker.watermark)
    assert found == expected


def test_s52_an_unknown_origin_is_refused() -> None:
    tracker = Tracker([1, 2])
    with pytest.raises(UnknownOrigin):
        tracker.update(7, 1, 0, True, 100)
    assert tracker.watermark is None


def test_s53_without_origins_there_is_no_watermark() -> None:
    assert Tracker().watermark is None


def test_s54_an_origin_named_twice_is_refused() -> None:
    with pytest.raises(DuplicateName):
        Tracker([1, 1])


@pytest.mark.parametrize("shuffled", [False, True], ids=["S55", "S56"])
def test_ten_origins_ten_thousand_each(shuffled: bool) -> None:
    reports = [(origin, number) for number in range(1, 10_001) for origin in range(10)]
    if shuffled:
        random.Random(56).shuffle(reports)
    tracker = Tracker(range(10))
    for step, (origin, number) in enumerate(reports):
        tracker.update(origin, number, 0, True, number)
        if not shuffled:
            assert tracker.local(origin) == number
            if step % 997 == 0:
                assert tracker.watermark == (number if origin == 9 else number - 1 or None)
    assert tracker.watermark == 10_000


def test_s57_the_join_of_the_document() -> None:
    now, y = 1000, 7
    build, probe = Tracker([1, 2]), Tracker([3])
    build.update(1, 1, 0, True, now)
    build.update(2, 1, 0, True, now + y)
    assert build.watermark == now
    probe.update(3, 1, 0, False, now + y)
    probe.update(3, 2, 0, True, now + 3)
    assert probe.prefix(3) == 0
    probe.update(3, 1, 1, True, now)
    assert (probe.watermark, probe.prefix(3)) == (now + y, 2)


def test_s58_a_closed_origin_holds_nothing_back() -> None:
    tracker = Tracker([1, 2])
    tracker.update(1, 1, 0, True, 100)
    for number in range(1, 101):
        tracker.update(2, number, 0, True, number * 100)
    assert tracker.watermark == 100
    tracker.close(1)
    assert tracker.watermark == 10_000
