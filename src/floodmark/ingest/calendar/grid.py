"""The grid: how the time of a job is cut into cells, which are calendar periods counted from the job's start.

Period k starts k periods after the start of the grid, not one period after period k - 1: from 01-31, months start on
02-29 and 03-31. Hours have a fixed length; all other periods follow the wall clock, so a day may have 23 or 25 hours.
"""

from calendar import monthrange
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal, Self, get_args
from zoneinfo import ZoneInfo

from floodmark._util.text import did_you_mean
from floodmark.errors import GridInvalid
from floodmark.ingest.calendar.bound import Bound, floor_moment
from floodmark.ingest.calendar.clock import HOUR, LATEST, format_moment, micros_to_wall, wall_to_micros, zone_of
from floodmark.ingest.calendar.ranges import Range

_DAYS: Final = {"daily": 1, "weekly": 7}
_MONTHS: Final = {"monthly": 1, "yearly": 12}


class Periods:
    """The periods of one kind between a start and an end; the last period may be cut short by the end.

    >>> days = Periods("daily", 0, datetime(1970, 1, 1), ZoneInfo("UTC"), 10**12)
    >>> days.index(86_400_000_000), days.cell(0)
    (1, Range(lo=0, hi=86400000000))
    """

    __slots__ = ("_anchor", "_days", "_edges", "_kind", "_months", "_zone", "end", "start")

    def __init__(self, kind: str, start: int, anchor: datetime, zone: ZoneInfo, end: int) -> None:
        """Count periods from `anchor`, the wall time of `start`."""
        self.start = start
        self.end = end
        self._kind = kind
        self._anchor = anchor.replace(fold=0)
        self._zone = zone
        self._days = _DAYS.get(kind, 0)
        self._months = _MONTHS.get(kind, 0)
        # Cached, because every unit uses the same few edges.
        self._edges: dict[int, int] = {0: start}

    @property
    def is_uncut(self) -> bool:
        """Whether everything is one period."""
        return self._kind == "none"

    def index(self, at: int) -> int:
        """Return the index of the period that contains a moment."""
        if self._kind == "none":
            return 0
        if self._kind == "hourly":
            return (at - self.start) // HOUR
        local = micros_to_wall(at, self._zone)
        if self._days:
            guess = (local - self._anchor) // timedelta(days=self._days)
        else:
            months = (local.year - self._anchor.year) * 12 + local.month - self._anchor.month
            guess = months // self._months
        guess = max(guess, 0)
        # Repeated wall times and short months can make the guess wrong by one.
        while self._edge(guess) > at:
            guess -= 1
        while self._edge(guess + 1) <= at:
            guess += 1
        return guess

    def cell(self, index: int) -> Range:
        """Return the period with this index."""
        if self._kind == "none":
            return Range(self.start, self.end)
        return Range(min(self._edge(index), self.end), min(self._edge(index + 1), self.end))

    def _edge(self, index: int) -> int:
        if self._kind == "hourly":
            return self.start + index * HOUR
        edge = self._edges.get(index)
        if edge is None:
            edge = self._edges[index] = max(wall_to_micros(self._edge_wall(index), self._zone), self.start)
        return edge

    def _edge_wall(self, index: int) -> datetime:
        if self._days:
            return self._anchor + timedelta(days=index * self._days)
        months = self._anchor.month - 1 + index * self._months
        year, month = self._anchor.year + months // 12, months % 12 + 1
        return self._anchor.replace(year=year, month=month, day=min(self._anchor.day, monthrange(year, month)[1]))


Period = Literal["none", "hourly", "daily", "weekly", "monthly", "yearly"]

PERIODS: Final[tuple[Period, ...]] = get_args(Period)


@dataclass(frozen=True, slots=True)
class GridPart:
    """A section of a grid with one period. A plain grid has one part without bounds, which covers the whole job."""

    period: Period
    start: Bound | None = None
    end: Bound | None = None
    """None, or `-`, if it has no end."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How time is cut: into one kind of period, or into several kinds one after the other.

    >>> job_start = Bound.parse("2020-01-31", "UTC")
    >>> cells = Grid.plain("monthly").cells_from(job_start, 0, "UTC")
    >>> for cell in cells.between(job_start.at, job_start.at + 80 * 86_400_000_000):
    ...     print(format_moment(cell.lo, zone_of("UTC"))[:10], format_moment(cell.hi, zone_of("UTC"))[:10])
    2020-01-31 2020-02-29
    2020-02-29 2020-03-31
    2020-03-31 2020-04-30
    """

    parts: tuple[GridPart, ...]

    @classmethod
    def plain(cls, period: str) -> Self:
        """Return a grid with one period, counted from the start of the job.

        >>> Grid.plain("dayly")
        Traceback (most recent call last):
        floodmark.errors.GridInvalid: There is no period 'dayly'. ... Did you mean 'daily'? [grid-invalid]
        """
        return cls((GridPart(_parse_period(period)),))

    @classmethod
    def composite(cls, parts: Iterable[tuple[str, Bound, Bound | None]]) -> Self:
        """Return a grid of several parts without holes; each counts its periods from its own start.

        >>> Grid.composite([("monthly", Bound.parse("2020-01-01", "UTC"), None)]).parts[0].period
        'monthly'
        """
        listed = [GridPart(_parse_period(period), start, end) for period, start, end in parts]
        if not listed:
            raise _invalid_grid("A composite grid has no parts.", "Add at least one part with period, start and end.")
        for part in listed:
            if part.start is None or part.start.at is None or (part.end is not None and _is_relative_end(part.end)):
                raise _invalid_grid(
                    f"The part {part.period} is from {part.start} to {part.end}.",
                    "Use two fixed times, or - as the end of the last part.",
                )
        listed.sort(key=lambda part: _fixed_or_latest(part.start))
        for one, other in pairwise(listed):
            if _fixed_or_latest(one.end) != _fixed_or_latest(other.start):
                fault = "a hole" if _fixed_or_latest(one.end) < _fixed_or_latest(other.start) else "an overlap"
                raise _invalid_grid(
                    f"There is {fault} between {one.period}, which ends at {one.end or '-'}, and {other.period}, which "
                    f"starts at {other.start}.",
                    "Start each part where the one before it ends.",
                )
        for part in listed:
            if _fixed_or_latest(part.start) >= _fixed_or_latest(part.end):
                raise _invalid_grid(
                    f"The part {part.period} ends at {part.end}, which is not after its start.", "Swap start and end."
                )
        return cls(tuple(listed))

    @property
    def is_plain(self) -> bool:
        """Whether the grid has a single period."""
        return self.parts[0].start is None

    def cells_from(self, start: Bound, now: int, zone: str) -> "Cells":
        """Return the cells of a job that starts at `start`, as of `now`.

        With a relative start, cells are aligned to the calendar (full hours, midnights, Mondays, first days of months
        and years), so that they stay the same while the start moves.
        """
        if not self.is_plain:
            runs = [
                Periods(
                    part.period,
                    _fixed_or_latest(part.start),
                    _anchor_of(part.start, zone),
                    zone_of(zone),
                    _fixed_or_latest(part.end),
                )
                for part in self.parts
            ]
            return Cells(runs, zone)
        period, start_at = self.parts[0].period, start.resolve(now, zone)
        if start.moves and period != "none":
            anchor = _calendar_start(period, start_at, zone)
            run = Periods(period, wall_to_micros(anchor, zone_of(zone)), anchor, zone_of(zone), LATEST)
        else:
            run = Periods(period, start_at, _anchor_of(start, zone, start_at), zone_of(zone), LATEST)
        return Cells([run], zone)


class Cells:
    """The cells of a grid, numbered in order and without holes; computed on demand."""

    __slots__ = ("_bases", "_runs", "_zone")

    def __init__(self, runs: list[Periods], zone: str) -> None:
        """Use `Grid.cells_from`."""
        self._runs = runs
        self._zone = zone
        self._bases = [0]
        for run in runs[:-1]:
            self._bases.append(self._bases[-1] + run.index(run.end - 1) + 1)

    @property
    def start(self) -> int:
        """The start of the first cell."""
        return self._runs[0].start

    @property
    def end(self) -> int:
        """The end of the last cell; `LATEST` if the grid has no end."""
        return self._runs[-1].end

    def index(self, at: int) -> int:
        """Return the index of the cell that contains a moment."""
        position = len(self._runs) - 1
        run = self._runs[position]
        while position and at < run.start:
            position -= 1
            run = self._runs[position]
        if not run.start <= at < run.end:
            zone = zone_of(self._zone)
            raise _invalid_grid(
                f"No cell contains {format_moment(at, zone)}: the grid is from {format_moment(self.start, zone)} to "
                f"{format_moment(self.end, zone)}.",
                "Extend the parts of the grid to cover the job's `from` to `to`.",
            )
        return self._bases[position] + run.index(at)

    def cell(self, index: int) -> Range:
        """Return the cell with this index. A day that a zone skips (2011-12-30 in Apia) is an empty range."""
        position = len(self._runs) - 1
        while position and index < self._bases[position]:
            position -= 1
        return self._runs[position].cell(index - self._bases[position])

    def check(self, reach: Range) -> None:
        """Raise `GridInvalid` if the cells do not cover a range."""
        if reach.lo < self.start or reach.hi > self.end:
            zone = zone_of(self._zone)
            raise _invalid_grid(
                f"The job reads from {format_moment(reach.lo, zone)} to {format_moment(reach.hi, zone)}, "
                "and the grid is from "
                f"{format_moment(self.start, zone)} to {format_moment(self.end, zone)}.",
                "Extend the parts of the grid to cover that range, or set the last end to -.",
            )

    def whole_until(self, at: int) -> int:
        """Return the end of the last cell that is over at a moment; with the grid none, that is the moment itself."""
        run = next((run for run in reversed(self._runs) if run.start < at), self._runs[0])
        return at if run.is_uncut or at >= run.end else run.cell(run.index(at)).lo

    def cell_of(self, at: int) -> Range:
        """Return the cell that contains a moment."""
        return self.cell(self.index(at))

    def between(self, lo: int, hi: int) -> Iterator[Range]:
        """Yield the cells that overlap `lo` to `hi`, not clipped, in order."""
        if lo >= hi:
            return
        for index in range(self.index(lo), self.index(hi - 1) + 1):
            cell = self.cell(index)
            if cell.lo < cell.hi:
                yield cell

    def count(self, lo: int, hi: int) -> int:
        """Return how many cells overlap `lo` to `hi`, including days that the zone skips."""
        return self.index(hi - 1) - self.index(lo) + 1 if lo < hi else 0


def _parse_period(text: str) -> Period:
    for period in PERIODS:
        if isinstance(text, str) and text.lower() == period:
            return period
    raise _invalid_grid(
        f"There is no period {text!r}.", did_you_mean(str(text), PERIODS, otherwise=f"Use one of {', '.join(PERIODS)}.")
    )


def _is_relative_end(end: Bound) -> bool:
    return end.at is None and end.text != "-"


def _fixed_or_latest(bound: Bound | None) -> int:
    return LATEST if bound is None or bound.at is None else bound.at


def _anchor_of(bound: Bound | None, zone: str, at: int | None = None) -> datetime:
    """Return the wall time that periods count from: as written, even if it is skipped on that day."""
    if bound is not None and bound.wall is not None:
        return bound.wall
    return micros_to_wall(_fixed_or_latest(bound) if at is None else at, zone_of(zone))


def _calendar_start(period: Period, start_at: int, zone: str) -> datetime:
    if period == "hourly":
        return micros_to_wall(floor_moment(start_at, "hour", zone), zone_of(zone))
    day = micros_to_wall(start_at, zone_of(zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "weekly":
        return datetime.fromordinal(day.toordinal() - day.weekday())
    if period == "daily":
        return day
    return day.replace(day=1) if period == "monthly" else day.replace(month=1, day=1)


def _invalid_grid(fact: str, remedy: str) -> GridInvalid:
    return GridInvalid(
        fact,
        rule=f"A grid is one of {', '.join(PERIODS)}, or parts of these without holes or overlaps.",
        remedy=remedy,
    )
