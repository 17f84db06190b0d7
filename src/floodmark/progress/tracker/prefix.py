"""The progress of one origin: its longest gap-free prefix, and what waits behind the gaps; saved, loaded, merged."""

import enum
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from floodmark._util.ints import INT64_MIN, check_int64
from floodmark.errors import ChunkConflict, PendingLimitReached
from floodmark.progress.tracker.sequences import OpenSequence, Run, insert_runs, run_index, runs_cover

NO_WATERMARK: Final = INT64_MIN - 1
"""Stands below every time, so that the hot path compares numbers only."""

_SINGLES: Final = 2048
"""How many sequences wait as dictionary entries (fast) before they are packed into runs (small)."""


_COUNTERS = ("duplicates", "stale", "conflicts", "falls")


class ReportOutcome(enum.Enum):
    """What one report did."""

    ADVANCED = "advanced"
    """The gap-free prefix of its origin grew."""
    WAITING = "waiting"
    """It is kept: something before it is missing."""
    DUPLICATE = "duplicate"
    """It was known already; only its watermark was merged, by maximum."""
    STALE = "stale"
    """It came from an older attempt and was ignored."""


ADVANCED, WAITING, DUPLICATE, STALE = ReportOutcome
"""As names of the module, because looking up a member of an enumeration is slow."""


class Prefix:
    """What one origin has completed. `next` is the first sequence that is not complete: it holds the rest back."""

    __slots__ = (
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
        """Take any report."""
        known = self.open.get(sequence)
        if known is None:
            if sequence < self.next or sequence in self.waiting or (self.runs and runs_cover(self.runs, sequence)):
                return self.repeat(sequence, watermark)
            if is_last and chunk == chunk_base:
                self._refuse_run_if_full(sequence)
                return self.complete(sequence, watermark)
            if len(self.open) + self.chunks_ahead >= self.max_pending:
                self._refuse_chunk(sequence)
            known = self.open[sequence] = OpenSequence(attempt, chunk_base, chunk, is_last, watermark)
            self.chunks_ahead += len(known.ahead)
            return WAITING
        if attempt < known.attempt:
            self.stale += 1
            return STALE
        if attempt > known.attempt:
            self.chunks_ahead -= len(known.ahead)
            del self.open[sequence]
            return self.report(sequence, chunk, is_last, watermark, attempt, chunk_base)
        if not self._report_chunk(known, sequence, chunk, is_last, watermark):
            self.duplicates += 1
            return DUPLICATE
        if not known.is_complete():
            return WAITING
        del self.open[sequence]
        return self.complete(sequence, known.watermark)

    def _report_chunk(self, known: OpenSequence, sequence: int, chunk: int, is_last: bool, watermark: int) -> bool:
        ahead_before = len(known.ahead)
        if len(self.open) + self.chunks_ahead >= self.max_pending and chunk > known.next and chunk not in known.ahead:
            self._refuse_chunk(sequence)
        try:
            is_new = known.report(chunk, is_last, watermark)
        except ChunkConflict as conflict:
            self.conflicts += 1
            conflict.fields["sequence"] = sequence
            raise
        self.chunks_ahead += len(known.ahead) - ahead_before
        return is_new

    def repeat(self, sequence: int, watermark: int) -> ReportOutcome:
        """Take another report of a complete sequence."""
        self.duplicates += 1
        if sequence < self.next:
            self.watermark = max(self.watermark, watermark)
        elif sequence in self.waiting:
            self.waiting[sequence] = max(self.waiting[sequence], watermark)
        else:
            place = run_index(self.runs, sequence)
            run = self.runs[place]
            self.runs[place] = run._replace(top=max(run.top, watermark))
        return DUPLICATE

    def complete(self, sequence: int, watermark: int) -> ReportOutcome:
        """Take a sequence that has just become complete."""
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
        """Take sequences that have just become complete, none of which is known yet."""
        if runs:
            insert_runs(self.runs, runs)
        self.waiting |= singles
        self.drain()
        if len(self.waiting) > self.room:
            self.pack()

    def drain(self) -> None:
        """Move on over everything that waited for `next`."""
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
        """Turn the sequences that wait singly into runs."""
        if self.waiting:
            insert_runs(
                self.runs, [Run(sequence, sequence, watermark, 0) for sequence, watermark in self.waiting.items()]
            )
            self.waiting.clear()
        # In proportion to the runs, so that packing costs the same for each sequence however many gaps there are.
        self.room = min(max(_SINGLES, len(self.runs)), self.max_pending)

    def pending(self) -> int:
        """Return how many pieces are kept for what lies behind the gaps."""
        return len(self.runs) + len(self.waiting) + len(self.open) + self.chunks_ahead

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Return what is missing up to the highest sequence heard of, as inclusive ranges."""
        self.pack()
        missing = self.next
        for run in reversed(self.runs):
            yield missing, run.start - 1
            missing = run.end + 1
        heard_of = max(self.open, default=missing - 1)
        if heard_of >= missing:
            yield missing, heard_of

    def copy(self) -> "Prefix":
        """Return an independent copy."""
        twin = Prefix(self.next, self.watermark, self.max_pending)
        twin.waiting = dict(self.waiting)
        twin.runs = list(self.runs)
        twin.open = {sequence: known.copy() for sequence, known in self.open.items()}
        twin.chunks_ahead = self.chunks_ahead
        twin.duplicates, twin.stale, twin.conflicts, twin.falls = (
            self.duplicates,
            self.stale,
            self.conflicts,
            self.falls,
        )
        return twin

    def refuse_if_overfull(self) -> None:
        """Raise if more waits than may, as a batch could leave it."""
        self.pack()
        if len(self.runs) > self.max_pending:
            raise self._full(self.runs[0].end, f"{len(self.runs)} runs of complete sequences")
        if len(self.open) + self.chunks_ahead > self.max_pending + 1:
            raise self._full(max(self.open), f"{len(self.open) + self.chunks_ahead} parts of incomplete sequences")

    def _refuse_run_if_full(self, sequence: int) -> None:
        if sequence == self.next or len(self.waiting) + len(self.runs) < self.max_pending:
            return
        self.pack()
        touches_a_run = runs_cover(self.runs, sequence - 1) or runs_cover(self.runs, sequence + 1)
        if len(self.runs) >= self.max_pending and not touches_a_run:
            raise self._full(sequence, f"{len(self.runs)} runs of complete sequences")

    def _refuse_chunk(self, sequence: int) -> None:
        if sequence != self.next:
            raise self._full(sequence, f"{len(self.open) + self.chunks_ahead} parts of incomplete sequences")

    def _full(self, sequence: int, kept: str) -> PendingLimitReached:
        return PendingLimitReached(
            f"Sequence {sequence} came while {self.next} is missing and {kept} wait behind it.",
            rule=f"At most {self.max_pending} of them may wait (max_pending).",
            remedy=f"Send what is missing, beginning with {self.next}, then this again; or raise max_pending.",
            sequence=sequence,
            missing=self.next,
            max_pending=self.max_pending,
        )


def save_prefix(prefix: Prefix) -> dict[str, Any]:
    """Return the prefix as JSON values; its size depends on the gaps, not on how far it has come."""
    prefix.pack()
    return {
        "next": prefix.next,
        "watermark": prefix.watermark if prefix.watermark != NO_WATERMARK else None,
        "runs": [list(run) for run in prefix.runs],
        "open": [
            [sequence, known.attempt, known.next, sorted(known.ahead), known.last, known.watermark]
            for sequence, known in sorted(prefix.open.items())
        ],
        **{counter: getattr(prefix, counter) for counter in _COUNTERS},
    }


def load_prefix(state: dict[str, Any], max_pending: int) -> Prefix:
    """Return the prefix that was saved."""
    watermark = state["watermark"]
    prefix = Prefix(
        check_int64(state["next"], "next sequence"),
        NO_WATERMARK if watermark is None else check_int64(watermark, "watermark"),
        max_pending,
    )
    prefix.runs = [Run(*(check_int64(value, "run") for value in run)) for run in state["runs"]]
    for sequence, attempt, following, ahead, last, top in state["open"]:
        prefix.open[sequence] = OpenSequence.load(attempt, following, ahead, last, top)
        prefix.chunks_ahead += len(ahead)
    for counter in _COUNTERS:
        setattr(prefix, counter, check_int64(state[counter], counter))
    prefix.pack()
    return prefix


def merge_prefix(ours: Prefix, theirs: Prefix, chunk_base: int) -> Prefix:
    """Return a prefix that knows what both know. The counters stay ours. Raises on a contradiction.

    Order, grouping and repetition of merges make no difference: positions by union, watermarks by maximum.
    """
    ours.pack()
    theirs.pack()
    merged = ours.copy()
    merged.next = max(ours.next, theirs.next)
    merged.watermark = max(ours.watermark, theirs.watermark)
    merged.runs = _unite_runs([*ours.runs, *theirs.runs])
    while merged.runs and merged.runs[-1].start <= merged.next:
        run = merged.runs.pop()
        merged.next = max(merged.next, run.end + 1)
        merged.watermark = max(merged.watermark, run.top)
    for sequence, known in theirs.open.items():
        mine = merged.open.get(sequence)
        merged.open[sequence] = known.copy() if mine is None else mine.merged_with(known, chunk_base)
    falls, duplicates = merged.falls, merged.duplicates
    for sequence, known in sorted(merged.open.items()):
        if sequence < merged.next or runs_cover(merged.runs, sequence):
            merged.repeat(sequence, known.watermark)
            del merged.open[sequence]
        elif known.is_complete():
            del merged.open[sequence]
            merged.complete(sequence, known.watermark)
    merged.pack()
    merged.falls, merged.duplicates = falls, duplicates
    merged.chunks_ahead = sum(len(known.ahead) for known in merged.open.values())
    merged.refuse_if_overfull()
    return merged


def _unite_runs(runs: list[Run]) -> list[Run]:
    """Return runs that may overlap as a descending list of separate ones."""
    ascending: list[Run] = []
    for run in sorted(runs):
        if ascending and run.start <= ascending[-1].end + 1:
            before = ascending[-1]
            falls = max(before.falls, run.falls)
            ascending[-1] = Run(before.start, max(before.end, run.end), max(before.top, run.top), falls)
        else:
            ascending.append(run)
    return ascending[::-1]
