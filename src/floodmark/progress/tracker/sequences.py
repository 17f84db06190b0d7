"""What waits behind a gap: sequences with missing chunks, and runs of complete sequences; and the attempts of both.

A list of runs is descending, the lowest run last, so that closing a gap is a `pop`. Its size depends only on the gaps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from floodmark.errors import ChunkConflict

_NO_CHUNKS: frozenset[int] = frozenset()
"""Shared by all sequences whose chunks arrive in order, which is most of them."""

FIRST_ATTEMPT: Final = 0
"""The attempt of a report that names none."""

_MOST_ATTEMPT_RUNS: Final = 256
"""How many runs of retried sequences are kept exactly."""


class OpenSequence:
    """The chunks seen of an incomplete sequence, as a set: all below `next`, and those in `ahead`.

    It is a set and not a count, because retried tasks report the same chunk again. `is_in_order` is true while each
    chunk came right after the one before it.
    """

    __slots__ = ("ahead", "attempt", "is_in_order", "last", "next", "watermark")

    def __init__(self, attempt: int, chunk_base: int, chunk: int, is_last: bool, watermark: int) -> None:
        """Start with one chunk."""
        self.attempt = attempt
        self.watermark = watermark
        self.last = chunk if is_last else None
        if chunk == chunk_base:
            self.next = chunk + 1
            self.ahead: set[int] | frozenset[int] = _NO_CHUNKS
            self.is_in_order = not is_last
        else:
            self.next = chunk_base
            self.ahead = {chunk}
            self.is_in_order = False

    def report(self, chunk: int, is_last: bool, watermark: int) -> bool:
        """Add one chunk; return whether it is new. If it raises `ChunkConflict`, nothing has changed."""
        following = self.next
        if self.last is None:
            if is_last:
                if chunk < following or (self.ahead and max(self.ahead) >= chunk):
                    raise _chunk_conflict(f"Chunk {chunk} was reported as the last one, but a later one was reported.")
                self.last = chunk
                self.is_in_order = False
        elif chunk > self.last or is_last != (chunk == self.last):
            role = "the last one" if is_last else "not the last one"
            raise _chunk_conflict(f"Chunk {chunk} was reported as {role}, but {self.last} was the last one.")
        if watermark > self.watermark:
            self.watermark = watermark
        if chunk == following:
            following += 1
            ahead = self.ahead
            if isinstance(ahead, set):
                while following in ahead:
                    ahead.remove(following)
                    following += 1
            self.next = following
            return True
        if chunk < following or chunk in self.ahead:
            return False
        if isinstance(self.ahead, set):
            self.ahead.add(chunk)
        else:
            self.ahead = {chunk}
        self.is_in_order = False
        return True

    def merged_with(self, other: "OpenSequence") -> "OpenSequence":
        """Return the union of both; the newer attempt wins. Raises `ChunkConflict` if they contradict each other."""
        if self.attempt != other.attempt:
            return max(self, other, key=_attempt_of).copy()
        last = other.last if self.last is None else self.last
        if other.last is not None and other.last != last:
            raise _chunk_conflict(f"Chunk {other.last} was reported as the last one, but {last} was the last one.")
        for one in (self, other):
            # Without a last chunk, all chunks of this side were reported as not the last one.
            if last is not None and one.last is None and one.highest() >= last:
                raise _chunk_conflict(f"Chunk {last} was reported as the last one, but a later one was reported.")
        following = max(self.next, other.next)
        ahead = self.ahead | other.ahead
        while following in ahead:
            following += 1
        kept = [chunk for chunk in ahead if chunk > following]
        return self.load(self.attempt, following, kept, last, max(self.watermark, other.watermark))

    def highest(self) -> int:
        """Return the highest chunk seen."""
        return max(self.ahead, default=self.next - 1)

    def is_complete(self) -> bool:
        """Return whether every chunk up to the last has been seen."""
        return self.last is not None and self.next > self.last

    def missing(self, limit: int) -> frozenset[int]:
        """Return the first `limit` chunk numbers that are known to be missing."""
        known_end = self.last if self.last is not None else max(self.ahead, default=self.next)
        missing: list[int] = []
        for chunk in range(self.next, known_end + 1):
            if len(missing) == limit:
                break
            if chunk not in self.ahead:
                missing.append(chunk)
        return frozenset(missing)

    def copy(self) -> "OpenSequence":
        """Return an independent copy."""
        return self.load(self.attempt, self.next, self.ahead, self.last, self.watermark)

    @classmethod
    def load(
        cls, attempt: int, following: int, ahead: Iterable[int], last: int | None, watermark: int
    ) -> "OpenSequence":
        """Return a sequence with exactly these values."""
        sequence = cls(attempt, following - 1, following - 1, False, watermark)
        sequence.ahead = set(ahead)
        sequence.last = last
        sequence.is_in_order = last is None and not sequence.ahead
        return sequence


def _attempt_of(sequence: OpenSequence) -> int:
    return sequence.attempt


def _chunk_conflict(fact: str) -> ChunkConflict:
    return ChunkConflict(
        fact,
        rule="A sequence has one last chunk and none beyond it.",
        remedy="If a retry split the sequence differently, report it with a higher attempt number.",
    )


class Run(NamedTuple):
    """Consecutive complete sequences, `start` to `end` inclusive, with their highest watermark `top`.

    A run is only consumed as a whole, so `top` is all that progress needs. `falls` is a statistic: at least this many
    of its sequences had a watermark below that of one before them.
    """

    start: int
    end: int
    top: int
    falls: int

    def then(self, after: "Run") -> "Run":
        """Return this run joined with the one that begins right after it.

        >>> Run(7, 7, 50, 0).then(Run(8, 8, 40, 0))
        Run(start=7, end=8, top=50, falls=1)
        """
        falls = self.falls + after.falls + (after.top < self.top)
        return Run(self.start, after.end, max(self.top, after.top), falls)


def join_runs(runs: Iterable[Run]) -> list[Run]:
    """Return non-overlapping runs as a descending list, with adjacent runs joined.

    >>> join_runs([Run(4, 4, 7, 0), Run(2, 2, 6, 0), Run(1, 1, 5, 0)])
    [Run(start=4, end=4, top=7, falls=0), Run(start=1, end=2, top=6, falls=0)]
    """
    ascending: list[Run] = []
    for run in sorted(runs):
        if ascending and ascending[-1].end + 1 == run.start:
            ascending[-1] = ascending[-1].then(run)
        else:
            ascending.append(run)
    return ascending[::-1]


def insert_runs(runs: list[Run], more: list[Run]) -> None:
    """Insert `more` runs (at least one, in any order, without overlap) into a descending list, joining adjacent ones.

    Only the affected part of the list is touched, so the cost does not grow with the gaps elsewhere.

    >>> runs = [Run(9, 9, 90, 0), Run(4, 4, 40, 0), Run(1, 1, 10, 0)]
    >>> insert_runs(runs, [Run(5, 8, 80, 0)])
    >>> [(run.start, run.end) for run in runs]
    [(4, 9), (1, 1)]
    """
    highest = run_index(runs, max(run.end for run in more) + 1)
    lowest = run_index(runs, min(run.start for run in more) - 1) + 1
    runs[highest:lowest] = join_runs([*runs[highest:lowest], *more])


def run_index(runs: list[Run], sequence: int) -> int:
    """Return the index of the run with the highest start that is not above `sequence`, or `len(runs)`.

    >>> run_index([Run(8, 9, 0, 0), Run(2, 3, 0, 0)], 5)
    1
    """
    return bisect_left(runs, -sequence, key=_negated_start)


def runs_cover(runs: list[Run], sequence: int) -> bool:
    """Return whether `sequence` lies in one of the descending `runs`.

    >>> runs_cover([Run(8, 9, 0, 0), Run(2, 3, 0, 0)], 5)
    False
    """
    index = run_index(runs, sequence)
    return index < len(runs) and sequence <= runs[index].end


def _negated_start(run: Run) -> int:
    return -run.start


class AttemptRun(NamedTuple):
    """Complete sequences, `start` to `end` inclusive, that were completed or repeated by the same attempt."""

    start: int
    end: int
    attempt: int


class Attempts:
    """The newest attempt of each complete sequence, kept as ascending runs of those that were retried.

    Where there is no run, it is `FIRST_ATTEMPT`. Beyond 256 runs the lowest two become one with the higher attempt: a
    report of an old sequence may then be called stale though it is not, and never the other way round.

    >>> attempts = Attempts()
    >>> attempts.assign(5, 9, 2)
    >>> attempts.assign(8, 20, 3)
    >>> attempts.runs
    [AttemptRun(start=5, end=7, attempt=2), AttemptRun(start=8, end=20, attempt=3)]
    >>> attempts.of(8), attempts.of(21)
    (3, 0)
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[AttemptRun] = ()) -> None:
        self.runs = list(runs)

    def of(self, sequence: int) -> int:
        """Return the newest attempt of a complete sequence."""
        index = bisect_right(self.runs, sequence, key=_attempt_start) - 1
        return self.runs[index].attempt if index >= 0 and sequence <= self.runs[index].end else FIRST_ATTEMPT

    def assign(self, start: int, end: int, attempt: int) -> None:
        """Set the attempt of the complete sequences from `start` to `end` inclusive."""
        runs = self.runs
        # The runs that overlap the range or touch it: only these change.
        low = bisect_left(runs, start - 1, key=_attempt_end)
        high = bisect_right(runs, end + 1, key=_attempt_start)
        parts = [AttemptRun(run.start, min(run.end, start - 1), run.attempt) for run in runs[low:high]]
        parts += [AttemptRun(start, end, attempt)]
        parts += [AttemptRun(max(run.start, end + 1), run.end, run.attempt) for run in runs[low:high]]
        changed: list[AttemptRun] = []
        for part in parts:
            if part.start > part.end or part.attempt == FIRST_ATTEMPT:
                continue
            before = changed[-1] if changed else None
            if before is not None and before.end + 1 == part.start and before.attempt == part.attempt:
                changed[-1] = before._replace(end=part.end)
            else:
                changed.append(part)
        runs[low:high] = changed
        while len(runs) > _MOST_ATTEMPT_RUNS:
            lowest, second = runs[:2]
            runs[:2] = [AttemptRun(lowest.start, second.end, max(lowest.attempt, second.attempt, FIRST_ATTEMPT))]

    def merged_with(self, other: "Attempts") -> "Attempts":
        """Return the higher attempt of each sequence.

        >>> one, two = Attempts([AttemptRun(1, 5, 2)]), Attempts([AttemptRun(4, 8, 1)])
        >>> one.merged_with(two).runs
        [AttemptRun(start=1, end=5, attempt=2), AttemptRun(start=6, end=8, attempt=1)]
        """
        merged = Attempts(self.runs)
        bounds = sorted({bound for run in (*self.runs, *other.runs) for bound in (run.start, run.end + 1)})
        for run in other.runs:
            inside = [run.start, *(bound for bound in bounds if run.start < bound <= run.end), run.end + 1]
            for start, after in pairwise(inside):
                merged.assign(start, after - 1, max(run.attempt, self.of(start)))
        return merged


def _attempt_start(run: AttemptRun) -> int:
    return run.start


def _attempt_end(run: AttemptRun) -> int:
    return run.end
