"""What waits behind a gap: sequences with missing chunks, and runs of complete sequences.

A list of runs is descending, the lowest run last, so that closing a gap is a `pop`. Its size depends only on the gaps.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from floodmark.errors import ChunkConflict

_NO_CHUNKS: frozenset[int] = frozenset()
"""Shared by all sequences whose chunks arrive in order, which is most of them."""


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

    def merged_with(self, other: "OpenSequence", chunk_base: int) -> "OpenSequence":
        """Return the union of both; the newer attempt wins."""
        if self.attempt != other.attempt:
            return max(self, other, key=_attempt_of).copy()
        merged = self.copy()
        others = [*range(chunk_base, other.next), *sorted(other.ahead)]
        # Add the last chunk at the end, so that a contradiction on either side is found.
        for chunk in others:
            if chunk != other.last:
                merged.report(chunk, False, other.watermark)
        if other.last is not None:
            merged.report(other.last, True, other.watermark)
        return merged

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
