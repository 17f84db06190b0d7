"""The progress of one origin: its longest gap-free prefix, and what waits behind the gaps; saved, loaded, merged."""

import enum
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any, Final

from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_number, check_watermark
from floodmark.errors import ChunkConflict, PendingLimitReached
from floodmark.progress.tracker.sequences import (
    FIRST_ATTEMPT,
    AttemptRun,
    Attempts,
    OpenSequence,
    Run,
    insert_runs,
    run_index,
    runs_cover,
)

NO_WATERMARK: Final = INT64_MIN - 1
"""Below every time, so that the hot path compares only ints."""

_SINGLES: Final = 2048
"""How many sequences wait as dictionary entries (fast) before they are packed into runs (small)."""


_COUNTERS = ("duplicates", "stale", "conflicts", "falls")


class ReportOutcome(enum.Enum):
    """What one report did."""

    ADVANCED = "advanced"
    """The gap-free prefix of its origin grew."""
    WAITING = "waiting"
    """It is kept, because something before it is missing."""
    DUPLICATE = "duplicate"
    """It was reported before; only its watermark was merged, by maximum."""
    STALE = "stale"
    """It came from an older attempt and was ignored."""


ADVANCED, WAITING, DUPLICATE, STALE = ReportOutcome
"""Module-level names, because attribute lookup on an enum is slow."""


class Prefix:
    """What one origin has completed. `next` is the first incomplete sequence, which holds back all after it."""

    __slots__ = (
        "attempts",
        "chunks_ahead",
        "conflicts",
        "duplicates",
        "falls",
        "max_pending",
        "next",
        "open",
        "room",
        "runs",
        "stale",
        "waiting",
        "watermark",
    )

    def __init__(self, first: int, watermark: int, max_pending: int) -> None:
        self.next = first
        self.watermark = watermark
        self.waiting: dict[int, int] = {}
        self.runs: list[Run] = []
        self.open: dict[int, OpenSequence] = {}
        self.attempts = Attempts()
        self.chunks_ahead = 0
        self.duplicates = 0
        self.stale = 0
        self.conflicts = 0
        self.falls = 0
        self.max_pending = max_pending
        self.room = min(_SINGLES, max_pending)

    def is_complete(self, sequence: int) -> bool:
        """Return whether all of `sequence` has been seen."""
        return sequence < self.next or sequence in self.waiting or (bool(self.runs) and runs_cover(self.runs, sequence))

    def report(
        self, sequence: int, chunk: int, is_last: bool, watermark: int, attempt: int, chunk_base: int
    ) -> ReportOutcome:
        """Process any report."""
        partial = self.open.get(sequence)
        if partial is None:
            if sequence < self.next or sequence in self.waiting or (self.runs and runs_cover(self.runs, sequence)):
                return self.repeat(sequence, watermark, attempt)
            if is_last and chunk == chunk_base:
                self._refuse_run_if_full(sequence)
                return self.complete(sequence, watermark, attempt)
            if len(self.open) + self.chunks_ahead >= self.max_pending:
                self._refuse_chunk(sequence)
            partial = self.open[sequence] = OpenSequence(attempt, chunk_base, chunk, is_last, watermark)
            self.chunks_ahead += len(partial.ahead)
            return WAITING
        if attempt < partial.attempt:
            self.stale += 1
            return STALE
        if attempt > partial.attempt:
            self.chunks_ahead -= len(partial.ahead)
            del self.open[sequence]
            return self.report(sequence, chunk, is_last, watermark, attempt, chunk_base)
        if not self._report_chunk(partial, sequence, chunk, is_last, watermark):
            self.duplicates += 1
            return DUPLICATE
        if not partial.is_complete():
            return WAITING
        del self.open[sequence]
        return self.complete(sequence, partial.watermark, attempt)

    def _report_chunk(self, partial: OpenSequence, sequence: int, chunk: int, is_last: bool, watermark: int) -> bool:
        ahead_before = len(partial.ahead)
        if (
            len(self.open) + self.chunks_ahead >= self.max_pending
            and chunk > partial.next
            and chunk not in partial.ahead
        ):
            self._refuse_chunk(sequence)
        try:
            is_new = partial.report(chunk, is_last, watermark)
        except ChunkConflict as conflict:
            self.conflicts += 1
            conflict.fields["sequence"] = sequence
            raise
        self.chunks_ahead += len(partial.ahead) - ahead_before
        return is_new

    def repeat(self, sequence: int, watermark: int, attempt: int) -> ReportOutcome:
        """Process another report of a complete sequence; one of an older attempt changes nothing."""
        newest = self.attempts.of(sequence)
        if attempt < newest:
            self.stale += 1
            return STALE
        if attempt > newest:
            self.attempts.assign(sequence, sequence, attempt)
        self.duplicates += 1
        if sequence < self.next:
            self.watermark = max(self.watermark, watermark)
        elif sequence in self.waiting:
            self.waiting[sequence] = max(self.waiting[sequence], watermark)
        else:
            index = run_index(self.runs, sequence)
            run = self.runs[index]
            self.runs[index] = run._replace(top=max(run.top, watermark))
        return DUPLICATE

    def complete(self, sequence: int, watermark: int, attempt: int) -> ReportOutcome:
        """Add a sequence that this attempt has just completed."""
        if attempt != FIRST_ATTEMPT:
            self.attempts.assign(sequence, sequence, attempt)
        if sequence != self.next:
            if len(self.waiting) >= self.room:
                self.pack()
            self.waiting[sequence] = watermark
            return WAITING
        if watermark > self.watermark:
            self.watermark = watermark
        elif watermark < self.watermark:
            self.falls += 1
        self.next = sequence + 1
        if self.waiting or self.runs:
            self.drain()
        return ADVANCED

    def complete_many(self, runs: list[Run], singles: dict[int, int]) -> None:
        """Add sequences that have just become complete, none of which was complete before."""
        if runs:
            insert_runs(self.runs, runs)
        self.waiting |= singles
        self.drain()
        if len(self.waiting) > self.room:
            self.pack()

    def drain(self) -> None:
        """Advance `next` over everything that waited for it."""
        while True:
            self._drain_waiting()
            if not self.runs or self.runs[-1].start != self.next:
                return
            run = self.runs.pop()
            self.falls += run.falls + (run.top < self.watermark)
            self.watermark = max(self.watermark, run.top)
            self.next = run.end + 1

    def _drain_waiting(self) -> None:
        waiting = self.waiting
        if not waiting:
            return
        first, top = self.next, self.watermark
        for sequence in count(first):
            watermark = waiting.get(sequence)
            if watermark is None:
                break
            if watermark > top:
                top = watermark
            elif watermark < top:
                self.falls += 1
        if sequence - first == len(waiting):
            waiting.clear()
        else:
            for passed in range(first, sequence):
                del waiting[passed]
        self.next, self.watermark = sequence, top

    def pack(self) -> None:
        """Pack the sequences that wait singly into runs."""
        if self.waiting:
            insert_runs(
                self.runs, [Run(sequence, sequence, watermark, 0) for sequence, watermark in self.waiting.items()]
            )
            self.waiting.clear()
        # Proportional to the runs, so that the packing cost per sequence does not grow with the number of gaps.
        self.room = min(max(_SINGLES, len(self.runs)), self.max_pending)

    def pending(self) -> int:
        """Return the number of objects kept for sequences behind gaps."""
        return len(self.runs) + len(self.waiting) + len(self.open) + self.chunks_ahead

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the missing sequences up to the highest one reported, as inclusive ranges."""
        self.pack()
        missing = self.next
        for run in reversed(self.runs):
            yield missing, run.start - 1
            missing = run.end + 1
        highest = max(self.open, default=missing - 1)
        if highest >= missing:
            yield missing, highest

    def copy(self) -> "Prefix":
        """Return an independent copy."""
        twin = Prefix(self.next, self.watermark, self.max_pending)
        twin.waiting = dict(self.waiting)
        twin.runs = list(self.runs)
        twin.open = {sequence: partial.copy() for sequence, partial in self.open.items()}
        twin.attempts = Attempts(self.attempts.runs)
        twin.chunks_ahead = self.chunks_ahead
        twin.take_counters(self)
        return twin

    def take_counters(self, other: "Prefix") -> None:
        """Set the counters to those of another prefix."""
        for counter in _COUNTERS:
            setattr(self, counter, getattr(other, counter))

    def refuse_if_overfull(self) -> None:
        """Raise an error if more than `max_pending` wait, as a batch could leave it."""
        self.pack()
        if len(self.runs) > self.max_pending:
            raise self._limit_reached(self.runs[0].end, f"{len(self.runs)} runs of complete sequences")
        if len(self.open) + self.chunks_ahead > self.max_pending + 1:
            raise self._limit_reached(
                max(self.open), f"{len(self.open) + self.chunks_ahead} chunks of incomplete sequences"
            )

    def _refuse_run_if_full(self, sequence: int) -> None:
        if sequence == self.next or len(self.waiting) + len(self.runs) < self.max_pending:
            return
        self.pack()
        touches_a_run = runs_cover(self.runs, sequence - 1) or runs_cover(self.runs, sequence + 1)
        if len(self.runs) >= self.max_pending and not touches_a_run:
            raise self._limit_reached(sequence, f"{len(self.runs)} runs of complete sequences")

    def _refuse_chunk(self, sequence: int) -> None:
        if sequence != self.next:
            raise self._limit_reached(sequence, f"{len(self.open) + self.chunks_ahead} chunks of incomplete sequences")

    def _limit_reached(self, sequence: int, kept: str) -> PendingLimitReached:
        return PendingLimitReached(
            f"Sequence {sequence} was reported while {self.next} is missing and {kept} wait behind it.",
            rule=f"At most {self.max_pending} may wait behind a gap (max_pending).",
            remedy=f"Report the missing sequences from {self.next} on, then this one again; or raise max_pending.",
            sequence=sequence,
            missing=self.next,
            max_pending=self.max_pending,
        )


def save_prefix(prefix: Prefix) -> dict[str, Any]:
    """Return the prefix as JSON values; the size depends on the gaps, not on its length."""
    prefix.pack()
    return {
        "next": prefix.next,
        "watermark": prefix.watermark if prefix.watermark != NO_WATERMARK else None,
        "runs": [list(run) for run in prefix.runs],
        "open": [
            [sequence, partial.attempt, partial.next, sorted(partial.ahead), partial.last, partial.watermark]
            for sequence, partial in sorted(prefix.open.items())
        ],
        "attempts": [list(run) for run in prefix.attempts.runs],
        **{counter: getattr(prefix, counter) for counter in _COUNTERS},
    }


def load_prefix(state: dict[str, Any], first: int, chunk_base: int, max_pending: int) -> Prefix:
    """Return a saved prefix; raise a ValueError if it is none that `save_prefix` writes."""
    watermark = state["watermark"]
    prefix = Prefix(
        _load_next(state["next"], first),
        NO_WATERMARK if watermark is None else check_watermark(watermark),
        max_pending,
    )
    prefix.runs = [_load_run(*run) for run in state["runs"]]
    for later, earlier in pairwise(prefix.runs):
        _require(earlier.end + 1 < later.start, f"the runs {earlier} and {later} overlap or touch")
    _require(not prefix.runs or prefix.runs[-1].start > prefix.next, "a run does not lie behind a gap")
    for sequence, *partial in state["open"]:
        number = check_int64(sequence, "sequence")
        _require(number not in prefix.open and not prefix.is_complete(number), f"sequence {number} is there twice")
        prefix.open[number] = opened = _load_open(chunk_base, *partial)
        prefix.chunks_ahead += len(opened.ahead)
    # Snapshots of earlier releases have no attempts.
    prefix.attempts = Attempts(
        AttemptRun(*(check_int64(value, "attempt") for value in run)) for run in state.get("attempts", ())
    )
    for run in prefix.attempts.runs:
        _require(run.start <= run.end, f"the run of attempts {run} is empty")
    for before, after in pairwise(prefix.attempts.runs):
        _require(before.end < after.start, f"the runs of attempts {before} and {after} overlap")
    for counter in _COUNTERS:
        setattr(prefix, counter, check_number(counter, state[counter]))
    prefix.pack()
    return prefix


def _load_next(number: object, first: int) -> int:
    """Return the number of the next sequence or chunk: after the last int64 it is the one beyond."""
    if type(number) is int and first <= number <= INT64_MAX + 1:
        return number
    raise ValueError(f"{number!r} cannot be the next sequence or chunk")


def _load_run(start: object, end: object, top: object, falls: object) -> Run:
    run = Run(check_int64(start, "run"), check_int64(end, "run"), check_watermark(top), check_number("falls", falls))
    _require(run.start <= run.end, f"the run {run} is empty")
    return run


def _load_open(
    chunk_base: int, attempt: object, following: object, ahead: list[object], last: object, top: object
) -> OpenSequence:
    number = _load_next(following, chunk_base)
    chunks = {check_int64(chunk, "chunk") for chunk in ahead}
    end = None if last is None else check_int64(last, "last chunk")
    _require(number < min(chunks, default=number + 1), f"chunk {number} cannot be the next one")
    _require(number > chunk_base or bool(chunks), "a sequence has no chunk")
    _require(end is None or end == max(chunks, default=None), f"chunk {end} cannot be the last one")
    _require(len(chunks) == len(ahead), "a chunk is there twice")
    return OpenSequence.load(check_int64(attempt, "attempt"), number, chunks, end, check_watermark(top))


def _require(is_valid: bool, otherwise: str) -> None:
    if not is_valid:
        raise ValueError(otherwise)


def merge_prefix(ours: Prefix, theirs: Prefix) -> Prefix:
    """Return the union of two prefixes; counters and limit are ours. Raises an error on a contradiction.

    Order and repetition of merges make no difference: positions merge by union, watermarks by maximum. Nor does
    grouping, unless the trackers saw different attempts of a sequence: it is complete as soon as one attempt is.
    """
    ours.pack()
    theirs.pack()
    merged = ours.copy()
    merged.next = max(ours.next, theirs.next)
    merged.watermark = max(ours.watermark, theirs.watermark)
    merged.attempts = ours.attempts.merged_with(theirs.attempts)
    merged.runs = _unite_runs([*ours.runs, *theirs.runs])
    while merged.runs and merged.runs[-1].start <= merged.next:
        run = merged.runs.pop()
        merged.next = max(merged.next, run.end + 1)
        merged.watermark = max(merged.watermark, run.top)
    for sequence, partial in theirs.open.items():
        mine = merged.open.get(sequence)
        merged.open[sequence] = partial.copy() if mine is None else mine.merged_with(partial)
    for sequence, partial in sorted(merged.open.items()):
        if sequence < merged.next or runs_cover(merged.runs, sequence):
            merged.repeat(sequence, partial.watermark, partial.attempt)
            del merged.open[sequence]
        elif partial.is_complete():
            del merged.open[sequence]
            merged.complete(sequence, partial.watermark, partial.attempt)
    merged.pack()
    merged.chunks_ahead = sum(len(partial.ahead) for partial in merged.open.values())
    merged.refuse_if_overfull()
    merged.take_counters(ours)
    return merged


def _unite_runs(runs: list[Run]) -> list[Run]:
    """Return runs that may overlap as a descending list of disjoint ones."""
    ascending: list[Run] = []
    for run in sorted(runs):
        if ascending and run.start <= ascending[-1].end + 1:
            before = ascending[-1]
            falls = max(before.falls, run.falls)
            ascending[-1] = Run(before.start, max(before.end, run.end), max(before.top, run.top), falls)
        else:
            ascending.append(run)
    return ascending[::-1]
