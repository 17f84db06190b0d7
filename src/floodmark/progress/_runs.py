"""Runs: what is known of complete sequences behind a gap, in space that depends on the gaps alone.

A list of runs is kept descending, the lowest run last, so that closing a gap is a `pop`, however many there are.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive complete sequences, `start` to `end` inclusive, and what they said of time.

    A run is only ever consumed whole, so its highest watermark (`top`) is all that progress needs. `falls` is
    a statistic: at least so many of its sequences had a watermark below that of one before them.
    """

    start: int
    end: int
    top: int
    falls: int

    def then(self, after: "Run") -> "Run":
        """Return this run and the one that begins where it ends, as one.

        >>> Run(7, 7, 50, 0).then(Run(8, 8, 40, 0))
        Run(start=7, end=8, top=50, falls=1)
        """
        falls = self.falls + after.falls + (after.top < self.top)
        return Run(self.start, after.end, max(self.top, after.top), falls)


def join(runs: Iterable[Run]) -> list[Run]:
    """Return runs that do not overlap as a descending list, those that touch made one.

    >>> join([Run(4, 4, 7, 0), Run(2, 2, 6, 0), Run(1, 1, 5, 0)])
    [Run(start=4, end=4, top=7, falls=0), Run(start=1, end=2, top=6, falls=0)]
    """
    ascending: list[Run] = []
    for run in sorted(runs):
        if ascending and ascending[-1].end + 1 == run.start:
            ascending[-1] = ascending[-1].then(run)
        else:
            ascending.append(run)
    return ascending[::-1]


def insert(runs: list[Run], more: list[Run]) -> None:
    """Put `more` (at least one, in any order, overlapping nothing) into a descending list, joining what touches.

    Only the part of the list that `more` reaches into is looked at, so the cost does not grow with the gaps elsewhere.

    >>> runs = [Run(9, 9, 90, 0), Run(4, 4, 40, 0), Run(1, 1, 10, 0)]
    >>> insert(runs, [Run(5, 8, 80, 0)])
    >>> [(run.start, run.end) for run in runs]
    [(4, 9), (1, 1)]
    """
    highest = place_of(runs, max(run.end for run in more) + 1)
    lowest = place_of(runs, min(run.start for run in more) - 1) + 1
    runs[highest:lowest] = join([*runs[highest:lowest], *more])


def place_of(runs: list[Run], sequence: int) -> int:
    """Return the index of the run with the highest start that is not above `sequence`, or `len(runs)`.

    >>> place_of([Run(8, 9, 0, 0), Run(2, 3, 0, 0)], 5)
    1
    """
    return bisect_left(runs, -sequence, key=_negated_start)


def covers(runs: list[Run], sequence: int) -> bool:
    """Return whether `sequence` lies in one of the descending `runs`.

    >>> covers([Run(8, 9, 0, 0), Run(2, 3, 0, 0)], 5)
    False
    """
    place = place_of(runs, sequence)
    return place < len(runs) and sequence <= runs[place].end


def _negated_start(run: Run) -> int:
    return -run.start
