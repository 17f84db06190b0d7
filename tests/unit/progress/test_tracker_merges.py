"""Laws of merging trackers: a union of what is known about the origins, under a watermark that never falls."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import ChunkConflict
from floodmark.progress import ReportOutcome, Tracker
from support.examples import examples

ORIGINS = ("a", "b", "c")
LAST_SEQUENCE = 4

Report = tuple[str, int, int, int]
"""Origin, sequence, chunk, watermark. A sequence n has 1 + n % 2 chunks and attempt n % 3, on every tracker."""


def chunks_of(sequence: int) -> int:
    return 1 + sequence % 2


@dataclass(frozen=True)
class Part:
    """What one tracker knows: its origins, what they reported, and which of them are closed."""

    origins: frozenset[str] = frozenset()
    reports: frozenset[Report] = frozenset()
    closed: frozenset[str] = frozenset()

    def __or__(self, other: "Part") -> "Part":
        return Part(self.origins | other.origins, self.reports | other.reports, self.closed | other.closed)

    def tracker(self) -> Tracker:
        tracker = Tracker(sorted(self.origins))
        for report in sorted(self.reports):
            send(tracker, report)
        for origin in sorted(self.closed):
            tracker.close(origin)
        return tracker

    def tops(self, origin: str) -> Iterable[int]:
        """Yield the highest watermark of each sequence of the gap-free prefix."""
        for sequence in range(1, LAST_SEQUENCE + 1):
            times = {chunk: [] for chunk in range(chunks_of(sequence))}  # type: dict[int, list[int]]
            for name, number, chunk, time in self.reports:
                if (name, number) == (origin, sequence):
                    times[chunk].append(time)
            if not all(times.values()):
                return
            yield max(itertools.chain(*times.values()))

    def local(self, origin: str) -> int | None:
        return max(self.tops(origin), default=None)

    def minimum(self) -> int | None:
        """Return the minimum over the open origins; if all are closed, the highest of all."""
        locals_ = {origin: self.local(origin) for origin in self.origins}
        held = [time for origin, time in locals_.items() if origin not in self.closed]
        if not held:
            return max((time for time in locals_.values() if time is not None), default=None)
        return None if None in held else min(time for time in held if time is not None)


def send(tracker: Tracker, report: Report) -> None:
    origin, sequence, chunk, time = report
    tracker.update(origin, sequence, chunk, chunk == chunks_of(sequence) - 1, time, sequence % 3)


def known(tracker: Tracker) -> dict[str | int, object]:
    """Return everything that a tracker shows about its origins."""
    return {
        name: (
            one.closed,
            tracker.prefix(name),
            tracker.local(name),
            tracker.gaps(name),
            [sorted(tracker.missing_chunks(name, sequence)) for sequence in range(1, LAST_SEQUENCE + 1)],
        )
        for name, one in tracker.statistics().items()
    }


def merged(*trackers: Tracker) -> Tracker:
    first, *others = trackers
    for other in others:
        first.merge(other)
    return first


@st.composite
def parts(draw: st.DrawFn, origins: Sequence[str] | None = None) -> Part:
    names = frozenset(origins) if origins is not None else frozenset(draw(st.sets(st.sampled_from(ORIGINS))))
    if not names:
        return Part()
    one = st.sampled_from(sorted(names))
    sequences = st.integers(1, LAST_SEQUENCE).flatmap(
        lambda sequence: st.tuples(st.just(sequence), st.integers(0, chunks_of(sequence) - 1))
    )
    reports = st.tuples(one, sequences, st.integers(0, 9)).map(lambda row: (row[0], *row[1], row[2]))
    return Part(names, draw(st.frozensets(reports, max_size=14)), draw(st.frozensets(one, max_size=2)))


@given(parts(ORIGINS), parts(ORIGINS), parts(ORIGINS))
@settings(max_examples=examples(400))
def test_trackers_of_the_same_origins_merge_in_any_order_and_grouping(x: Part, y: Part, z: Part) -> None:
    union = x | y | z
    results = [
        merged(x.tracker(), y.tracker(), z.tracker()),
        merged(z.tracker(), y.tracker(), x.tracker()),
        merged(x.tracker(), merged(y.tracker(), z.tracker())),
        merged(y.tracker(), merged(z.tracker(), x.tracker()), y.tracker(), merged(z.tracker(), z.tracker())),
        Part(frozenset(ORIGINS), union.reports, union.closed).tracker(),
    ]
    assert [result.watermark for result in results] == [union.minimum()] * len(results)
    assert all(known(result) == known(results[0]) for result in results)


@given(parts(), parts(), parts())
@settings(max_examples=examples(400))
def test_what_is_known_about_any_origins_merges_in_any_order_and_grouping(x: Part, y: Part, z: Part) -> None:
    union = x | y | z
    everything = Part(union.origins)
    results = [
        merged(everything.tracker(), x.tracker(), y.tracker(), z.tracker()),
        merged(everything.tracker(), z.tracker(), x.tracker(), y.tracker()),
        merged(everything.tracker(), merged(x.tracker(), y.tracker(), z.tracker())),
        merged(everything.tracker(), merged(x.tracker(), merged(z.tracker(), y.tracker()), x.tracker())),
    ]
    assert [result.watermark for result in results] == [union.minimum()] * len(results)
    assert all(known(result) == known(union.tracker()) for result in results)


@dataclass
class Promising:
    """A tracker and its model: the watermark is the highest minimum that it ever had."""

    tracker: Tracker = field(default_factory=Tracker)
    part: Part = Part()
    promise: int | None = None

    def becomes(self, part: Part) -> None:
        self.part |= part
        minimum = self.part.minimum()
        if minimum is not None and (self.promise is None or minimum > self.promise):
            self.promise = minimum
        assert self.tracker.watermark == self.promise


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("merge"), parts()),
        st.tuples(st.just("report"), parts(ORIGINS)),
        st.tuples(st.sampled_from(["add", "close"]), st.sampled_from(ORIGINS)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=examples(400))
def test_the_watermark_is_the_highest_minimum_so_far_and_never_falls(steps: list[tuple[str, object]]) -> None:
    state = Promising()
    for kind, value in steps:
        if isinstance(value, Part):
            if kind == "merge":
                state.tracker.merge(value.tracker())
                state.becomes(value)
                continue
            for report in sorted(value.reports):
                if report[0] in state.part.origins - state.part.closed:
                    send(state.tracker, report)
                    state.becomes(Part(reports=frozenset([report])))
        elif isinstance(value, str):
            if kind == "add" and value not in state.part.origins:
                state.tracker.add(value)
                state.becomes(Part(frozenset([value])))
            elif kind == "close" and value in state.part.origins:
                state.tracker.close(value)
                state.becomes(Part(closed=frozenset([value])))
        else:
            state.tracker = Tracker.restore(state.tracker.snapshot())


WILD = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans(), st.integers(0, 9), st.integers(0, 2)), max_size=12
)


def wild_tracker(reports: list[tuple[int, int, bool, int, int]]) -> Tracker:
    tracker = Tracker(["a"])
    for report in reports:
        with contextlib.suppress(ChunkConflict):
            tracker.update("a", *report)
    return tracker


@given(WILD, WILD)
@settings(max_examples=examples(400))
def test_trackers_that_saw_different_attempts_merge_in_any_order_without_falling(
    left: list[tuple[int, int, bool, int, int]], right: list[tuple[int, int, bool, int, int]]
) -> None:
    one, other = wild_tracker(left), wild_tracker(right)
    locals_before = [tracker.local("a") or -1 for tracker in (one, other)]
    try:
        one.merge(wild_tracker(right))
    except ChunkConflict:
        with pytest.raises(ChunkConflict):
            other.merge(wild_tracker(left))
        return
    other.merge(wild_tracker(left))
    assert known(one) == known(other)
    assert (one.local("a") or -1) >= max(locals_before)
    once = known(one)
    one.merge(wild_tracker(right))
    one.merge(Tracker.restore(one.snapshot()))
    assert known(one) == once


def at(origin: str, time: int) -> Tracker:
    tracker = Tracker([origin])
    tracker.update(origin, 1, 0, True, time)
    return tracker


def closed(*origins: str) -> Tracker:
    tracker = Tracker(origins)
    for origin in origins:
        tracker.close(origin)
    return tracker


MERGES: dict[str, tuple[Callable[[], Tracker], int | None]] = {
    "closed by the other": (lambda: merged(at("a", 100), closed("a")), 100),
    "closed here": (lambda: merged(closed("a"), at("a", 100)), 100),
    "closed by both": (lambda: merged(merged(closed("a"), at("a", 100)), closed("a")), 100),
    "all closed, the highest first": (
        lambda: merged(Tracker(["a", "b"]), at("a", 100), at("b", 20), closed("a"), closed("b")),
        100,
    ),
    "all closed, the lowest first": (
        lambda: merged(Tracker(["a", "b"]), at("a", 100), at("b", 20), closed("b"), closed("a")),
        100,
    ),
    "into a tracker of both, grouped": (lambda: merged(Tracker(["a", "b"]), merged(at("a", 100), at("b", 20))), 20),
    "into a tracker of both, one by one": (lambda: merged(Tracker(["a", "b"]), at("a", 100), at("b", 20)), 20),
    "into a tracker of the slower one, grouped": (
        lambda: merged(Tracker(["b"]), merged(at("a", 100), at("b", 20))),
        20,
    ),
    "into a tracker of the slower one, one by one": (lambda: merged(Tracker(["b"]), at("a", 100), at("b", 20)), 20),
    "a promise stays with its tracker": (lambda: merged(at("a", 100), at("b", 20)), 100),
    "an origin that was added after a promise": (lambda: merged(at("a", 100), Tracker(["b"]), at("b", 120)), 100),
}


@pytest.mark.parametrize(("merge", "watermark"), MERGES.values(), ids=MERGES)
def test_watermark_after_merges(merge: Callable[[], Tracker], watermark: int | None) -> None:
    assert merge().watermark == watermark


def test_a_merged_origin_gets_the_limit_and_the_statistics_of_this_tracker() -> None:
    mine, other = Tracker(max_pending=1), Tracker(["a"], max_pending=50)
    other.update("a", 3, 0, True, 1)
    other.update("a", 3, 0, True, 1)
    mine.merge(other)
    assert mine.statistics()["a"].duplicates == 0
    other.update("a", 5, 0, True, 1)
    before = mine.snapshot()
    with pytest.raises(Exception, match="pending-limit-reached"):
        mine.merge(other)
    with pytest.raises(Exception, match="pending-limit-reached"):
        Tracker(max_pending=1).merge(other)
    assert mine.snapshot() == before


def test_a_chunk_far_ahead_is_merged_without_counting_up_to_it() -> None:
    mine, other = Tracker(["a"]), Tracker(["a"])
    mine.update("a", 1, 2**62, False, 3)
    other.update("a", 1, 0, False, 4)
    mine.merge(other)
    assert sorted(mine.missing_chunks("a", 1, limit=2)) == [1, 2]
    other.update("a", 1, 2**62, True, 4)
    with pytest.raises(ChunkConflict):
        mine.merge(other)


AFTER_COMPLETION: dict[str, tuple[list[tuple[int, int]], list[int], ReportOutcome]] = {
    "an older attempt": ([(1, 9), (0, 50)], [9, 9], ReportOutcome.STALE),
    "the same attempt": ([(1, 9), (1, 50)], [9, 50], ReportOutcome.DUPLICATE),
    "the same attempt again, lower": ([(1, 9), (1, 5)], [9, 9], ReportOutcome.DUPLICATE),
    "a newer attempt": ([(0, 9), (2, 50)], [9, 50], ReportOutcome.DUPLICATE),
    "an older one after a newer one": ([(0, 9), (2, 20), (1, 50)], [9, 20, 20], ReportOutcome.STALE),
    "the first one after a newer one": ([(0, 9), (2, 20), (0, 50)], [9, 20, 20], ReportOutcome.STALE),
    "a negative attempt": ([(-1, 9), (-1, 20), (-2, 50)], [9, 20, 20], ReportOutcome.STALE),
    "the largest attempt": ([(2**63 - 1, 9), (2**63 - 2, 50)], [9, 9], ReportOutcome.STALE),
}


@pytest.mark.parametrize(("reports", "locals_", "outcome"), AFTER_COMPLETION.values(), ids=AFTER_COMPLETION)
@pytest.mark.parametrize("sequence", [1, 3], ids=["passed", "waiting"])
@pytest.mark.parametrize("how", ["single", "batches", "one batch", "restarts", "gaps"])
def test_an_older_attempt_changes_nothing_after_completion(
    reports: list[tuple[int, int]], locals_: list[int], outcome: ReportOutcome, sequence: int, how: str
) -> None:
    tracker = Tracker(["a"])
    if how == "one batch":
        attempts, times = zip(*reports, strict=True)
        count = len(reports)
        answer = tracker.update_batch("a", [sequence] * count, times, attempt=attempts)
        assert answer.stale == sum(1 for before, after in itertools.pairwise(reports) if after[0] < before[0])
        assert answer.duplicates == count - 1 - answer.stale
    for step, (attempt, time) in enumerate(reports if how != "one batch" else []):
        if how == "restarts":
            tracker = Tracker.restore(tracker.snapshot())
        if how == "batches":
            batch = tracker.update_batch("a", [sequence], [time], attempt=[attempt])
            assert step == 0 or (batch.duplicates, batch.stale) == (
                (0, 1) if attempt < reports[step - 1][0] else (1, 0)
            )
        else:
            found = tracker.update("a", sequence, 0, True, time, attempt)
            assert step < len(reports) - 1 or found is outcome
        if how == "gaps":
            tracker.gaps("a")
        assert tracker.local("a") == (locals_[step] if sequence == 1 else None)
    statistics = tracker.statistics()["a"]
    assert statistics.stale == (outcome is ReportOutcome.STALE)
    assert statistics.duplicates == len(reports) - 1 - statistics.stale
    for number in range(1, sequence):
        tracker.update("a", number, 0, True, 0)
    assert tracker.local("a") == locals_[-1]


def test_attempts_of_many_sequences_take_little_room() -> None:
    tracker = Tracker(["a"])
    for attempt in range(3):
        first = attempt * 10_000 + 1
        tracker.update_batch("a", range(first, first + 10_000), [attempt] * 10_000, attempt=[attempt] * 10_000)
    assert len(str(tracker.snapshot())) < 1000
    assert tracker.update("a", 5, 0, True, 50, 0) is ReportOutcome.DUPLICATE
    assert tracker.update("a", 10_005, 0, True, 60, 0) is ReportOutcome.STALE
    assert tracker.local("a") == 50


@pytest.mark.parametrize("in_batches", [False, True], ids=["single", "batches"])
def test_scattered_retries_keep_a_bounded_state_that_never_raises_the_watermark_wrongly(in_batches: bool) -> None:
    tracker = Tracker(["a"])
    sequences = range(1, 5001)
    attempts = [sequence % 2 for sequence in sequences]
    if in_batches:
        tracker.update_batch("a", sequences, [9] * 5000, attempt=attempts)
    else:
        for sequence, attempt in zip(sequences, attempts, strict=True):
            tracker.update("a", sequence, 0, True, 9, attempt)
    assert len(str(tracker.snapshot())) < 20_000
    for sequence in range(1, 5001, 2):
        assert tracker.update("a", sequence, 0, True, 50, 0) is ReportOutcome.STALE
    assert tracker.local("a") == 9
    # The newest retries are known exactly.
    assert tracker.update("a", 5000, 0, True, 50, 0) is ReportOutcome.DUPLICATE
    assert tracker.local("a") == 50
