"""Periods of one kind, counted from a start: hours, days, weeks, months, years.

The k-th begins k periods after the start, never one period after the one before it: from 01-31, months begin on 02-29
and 03-31. Hours are equally long; all others follow the wall clock, so that a day may have 23 or 25 hours.
"""

from calendar import monthrange
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from floodmark.ingest._calendar import HOUR, moment, wall
from floodmark.ingest._ranges import Range

_DAYS: Final = {"daily": 1, "weekly": 7}
_MONTHS: Final = {"monthly": 1, "yearly": 12}


class Periods:
    """The periods of a stretch of time; the last one ends where the stretch does, whole or not.

    >>> days = Periods("daily", 0, datetime(1970, 1, 1), ZoneInfo("UTC"), 10**12)
    >>> days.index(86_400_000_000), days.cell(0)
    (1, Range(lo=0, hi=86400000000))
    """

    __slots__ = ("_anchor", "_days", "_edges", "_kind", "_months", "_zone", "end", "start")

    def __init__(self, kind: str, start: int, anchor: datetime, zone: ZoneInfo, end: int) -> None:
        """Count from `anchor`, what the wall clock shows at `start`."""
        self.start = start
        self.end = end
        self._kind = kind
        self._anchor = anchor.replace(fold=0)
        self._zone = zone
        self._days = _DAYS.get(kind, 0)
        self._months = _MONTHS.get(kind, 0)
        # Each unit asks for the same few edges.
        self._edges: dict[int, int] = {0: start}

    @property
    def is_uncut(self) -> bool:
        """Whether there is one period only, which lasts as long as the stretch does."""
        return self._kind == "none"

    def index(self, at: int) -> int:
        """Return the number of the period that holds a moment."""
        if self._kind == "none":
            return 0
        if self._kind == "hourly":
            return (at - self.start) // HOUR
        local = wall(at, self._zone)
        if self._days:
            guess = (local - self._anchor) // timedelta(days=self._days)
        else:
            months = (local.year - self._anchor.year) * 12 + local.month - self._anchor.month
            guess = months // self._months
        guess = max(guess, 0)
        # A wall time that comes twice, or a month that is too short, may put the guess beside it.
        while self._edge(guess) > at:
            guess -= 1
        while self._edge(guess + 1) <= at:
            guess += 1
        return guess

    def cell(self, index: int) -> Range:
        """Return a period by its number."""
        if self._kind == "none":
            return Range(self.start, self.end)
        return Range(min(self._edge(index), self.end), min(self._edge(index + 1), self.end))

    def _edge(self, index: int) -> int:
        if self._kind == "hourly":
            return self.start + index * HOUR
        edge = self._edges.get(index)
        if edge is None:
            edge = self._edges[index] = max(moment(self._at(index), self._zone), self.start)
        return edge

    def _at(self, index: int) -> datetime:
        if self._days:
            return self._anchor + timedelta(days=index * self._days)
        months = self._anchor.month - 1 + index * self._months
        year, month = self._anchor.year + months // 12, months % 12 + 1
        return self._anchor.replace(year=year, month=month, day=min(self._anchor.day, monthrange(year, month)[1]))
