"""Laws of the tracker: order, repetition, batches, restarts and merges make no difference."""

import json
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import ChunkConflict
from floodmark.progress import ReportOutcome, Tracker
from support.examples import examples, is_full

ORIGINS = ("p0", "p1")


@dataclass(frozen=True)
class Report:
    origin: str
    sequence: int
    chunk: int
    last: bool
    watermark: int
    attempt: int = 0


@st.composite
def histories(draw: st.DrawFn) -> list[Report]:
    """All reports of some complete work, shuffled, some of them several times."""
    reports = []
    for origin in ORIGINS:
        for sequence in range(1, draw(st.integers(0, 12)) + 1):
            chunks = draw(st.integers(1, 4))
            reports += [
                Report(origin, sequence, chunk, chunk == chunks - 1, draw(st.integers(-5, 30)))
                for chunk in range(chunks)
            ]
    repeated = draw(st.lists(st.sampled_from(reports), max_size=10)) if reports else []
    withheld = draw(st.sets(st.sampled_from(reports), max_size=3)) if reports else set()
    return draw(st.permutations([report for report in [*reports, *repeated] if report not in withheld]))


wild_reports = st.lists(
    st.builds(
        Report,
        st.sampled_from(ORIGINS),
        st.integers(1, 4),
        st.integers(0, 3),
        st.booleans(),
        st.integers(-3, 20),
        st.integers(0, 2),
    ),
    max_size=40,
)


@dataclass
class ModelSequence:
    attempt: int
    chunks: dict[int, bool] = field(default_factory=dict)
    top: int = -(10**9)

    def agrees(self, chunk: int, last: bool) -> bool:
        ends = {number for number, is_last in {**self.chunks, chunk: last}.items() if is_last}
        beyond = len(ends) == 1 and max([*self.chunks, chunk]) > next(iter(ends))
        return len(ends) < 2 and not beyond and self.chunks.get(chunk, last) == last

    def is_complete(self) -> bool:
        return any(self.chunks.values()) and len(self.chunks) == max(self.chunks) + 1


class Model:
    """Keeps everything it hears and looks at all of it again for each answer."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, int], ModelSequence] = {}

    def take(self, report: Report) -> str:
        place = report.origin, report.sequence
        known = self.heard.get(place)
        if known is not None and report.attempt < known.attempt:
            return "stale"
        if known is not None and known.is_complete():
            known.attempt = report.attempt
            known.top = max(known.top, report.watermark)
            return "duplicate"
        if known is None or report.attempt > known.attempt:
            known = self.heard[place] = ModelSequence(report.attempt)
        if not known.agrees(report.chunk, report.last):
            return "chunk-conflict"
        is_new = report.chunk not in known.chunks
        known.chunks[report.chunk] = report.last
        known.top = max(known.top, report.watermark)
        if not is_new:
            return "duplicate"
        return "advanced" if known.is_complete() and report.sequence <= self.prefix(report.origin) else "waiting"

    def prefix(self, origin: str) -> int:
        sequence = 0
        while (origin, sequence + 1) in self.heard and self.heard[origin, sequence + 1].is_complete():
            sequence += 1
        return sequence

    def local(self, origin: str) -> int | None:
        return max((self.heard[origin, n].top for n in range(1, self.prefix(origin) + 1)), default=None)

    def missing(self, origin: str) -> set[int]:
        highest = max((sequence for name, sequence in self.heard if name == origin), default=0)
        known = self.heard
        return {n for n in range(1, highest + 1) if (origin, n) not in known or not known[origin, n].is_complete()}


def take(tracker: Tracker, report: Report) -> str:
    try:
        return tracker.update(
            report.origin, report.sequence, report.chunk, report.last, report.watermark, report.attempt
        ).value
    except ChunkConflict as conflict:
        return conflict.code


def take_batch(tracker: Tracker, reports: list[Report]) -> None:
    tracker.update_batch(
        [report.origin for report in reports],
        [report.sequence for report in reports],
        [report.watermark for report in reports],
        chunk=[report.chunk for report in reports],
        last=[report.last for report in reports] if reports else None,
        attempt=[report.attempt for report in reports],
    )


def view(tracker: Tracker) -> object:
    """Return what can be seen of progress, and how often something was not news."""
    return {
        origin: (
            tracker.prefix(origin),
            tracker.local(origin),
            tracker.gaps(origin),
            [sorted(tracker.missing_chunks(origin, sequence)) for sequence in range(1, 13)],
        )
        for origin in tracker.origins
    }


def counts(tracker: Tracker) -> object:
    return {origin: (one.duplicates, one.stale) for origin, one in tracker.statistics().items()}


@given(wild_reports, st.sets(st.integers(0, 39)))
@settings(max_examples=examples(400))
def test_every_report_does_what_the_model_does(reports: list[Report], looks: set[int]) -> None:
    tracker, model = Tracker(ORIGINS), Model()
    for number, report in enumerate(reports):
        assert take(tracker, report) == model.take(report), report
        for origin in ORIGINS:
            assert (tracker.prefix(origin), tracker.local(origin)) == (model.prefix(origin), model.local(origin))
            # To ask for gaps packs what waits, so asking each time would hide how it waits unpacked.
            if number not in looks and number != len(reports) - 1:
                continue
            missing = {n for start, end in tracker.gaps(origin) for n in range(start, end + 1)}
            assert missing == model.missing(origin)
            for sequence in range(1, 5):
                assert tracker.is_complete(origin, sequence) == (
                    (origin, sequence) in model.heard and model.heard[origin, sequence].is_complete()
                )


@given(histories())
def test_order_and_repetition_make_no_difference(reports: list[Report]) -> None:
    once, again = Tracker(ORIGINS), Tracker(ORIGINS)
    for report in reports:
        take(once, report)
    for report in [*sorted(reports, key=lambda report: (report.watermark, report.chunk)), *reports]:
        take(again, report)
    assert view(once) == view(again)


@given(histories(), st.integers(1, 9))
def test_batches_of_any_size_do_what_single_reports_do(reports: list[Report], size: int) -> None:
    singly, batched = Tracker(ORIGINS), Tracker(ORIGINS)
    for start in range(0, len(reports), size):
        batch = reports[start : start + size]
        for report in batch:
            take(singly, report)
        take_batch(batched, batch)
        for origin in ORIGINS:
            assert (batched.prefix(origin), batched.local(origin)) == (singly.prefix(origin), singly.local(origin))
        assert counts(batched) == counts(singly)
    assert view(batched) == view(singly)


@given(wild_reports, wild_reports)
def test_a_batch_with_attempts_does_what_its_rows_do_or_is_refused_whole(
    before: list[Report], batch: list[Report]
) -> None:
    singly, batched = Tracker(ORIGINS), Tracker(ORIGINS)
    for report in before:
        take(singly, report)
        take(batched, report)
    untouched = view(Tracker.restore(singly.snapshot()))
    outcomes = [take(singly, report) for report in batch]
    if "chunk-conflict" in outcomes:
        with pytest.raises(ChunkConflict):
            take_batch(batched, batch)
        assert view(batched) == untouched
    else:
        take_batch(batched, batch)
        assert view(batched) == view(singly)
        assert counts(batched) == counts(singly)


@given(histories(), st.integers(0, 60))
def test_a_restart_makes_no_difference(reports: list[Report], restart: int) -> None:
    steady, restarted = Tracker(ORIGINS), Tracker(ORIGINS)
    for number, report in enumerate(reports):
        if number == restart:
            restarted = Tracker.restore(json.loads(json.dumps(restarted.snapshot())))
        assert take(restarted, report) == take(steady, report)
    assert view(restarted) == view(steady)
    assert counts(restarted) == counts(steady)


@given(histories(), st.lists(st.integers(0, 2), min_size=200, max_size=200))
def test_merging_is_a_union(reports: list[Report], who: list[int]) -> None:
    whole = Tracker(ORIGINS)
    parts = [Tracker(ORIGINS) for _ in range(3)]
    for report, part in zip(reports, who, strict=False):
        take(whole, report)
        take(parts[part], report)

    def merged(*order: int) -> Tracker:
        result = Tracker(ORIGINS)
        for part in order:
            result.merge(Tracker.restore(parts[part].snapshot()))
        return result

    assert view(merged(0, 1, 2)) == view(whole)
    assert view(merged(2, 0, 1)) == view(whole)
    assert view(merged(0, 1, 0, 2, 2, 1)) == view(whole)
    left, right = merged(0), merged(1)
    right.merge(merged(2))
    left.merge(right)
    assert view(left) == view(whole)
    assert left.watermark == whole.watermark


@given(histories())
def test_progress_never_goes_back_and_never_runs_ahead(reports: list[Report]) -> None:
    tracker, heard = Tracker(ORIGINS), Model()
    locals_before = dict.fromkeys(ORIGINS, -(10**9))
    for report in reports:
        outcome = tracker.update(
            report.origin, report.sequence, report.chunk, report.last, report.watermark, report.attempt
        )
        heard.take(report)
        local = tracker.local(report.origin)
        assert (outcome is ReportOutcome.ADVANCED) <= (local is not None)
        if local is not None:
            assert local >= locals_before[report.origin]
            locals_before[report.origin] = local
        for origin in ORIGINS:
            assert tracker.prefix(origin) <= heard.prefix(origin)


@pytest.mark.parametrize("seed", range(4 if is_full() else 1))
def test_a_long_history_with_wide_disorder_in_batches_of_all_sizes(seed: int) -> None:
    dice = random.Random(seed)
    reports = [
        Report("p0", sequence, chunk, chunk == chunks - 1, sequence + dice.randint(-50, 50))
        for sequence in range(1, 8001)
        for chunks in [dice.choice([1, 1, 1, 2, 3])]
        for chunk in range(chunks)
    ]
    reports += dice.sample(reports, 500)
    reports.sort(key=lambda report: report.sequence + dice.uniform(0, dice.choice([10, 6000])))
    singly, batched, start = Tracker(["p0"]), Tracker(["p0"]), 0
    while start < len(reports):
        size = dice.choice([1, 10, 300, 3000])
        for report in reports[start : start + size]:
            take(singly, report)
        take_batch(batched, reports[start : start + size])
        start += size
        assert (batched.prefix("p0"), batched.local("p0")) == (singly.prefix("p0"), singly.local("p0"))
    assert (singly.prefix("p0"), singly.gaps("p0")) == (8000, [])
    assert counts(batched) == counts(singly)
