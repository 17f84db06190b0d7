"""How the time of a job is cut into cells: periods of a calendar, counted from where the job begins.

The k-th period begins k periods after the start, never one period after the one before it: from 01-31, months begin on
02-29 and 03-31. Hours are equally long; all others follow the wall clock, so that a day may have 23 or 25 hours.
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
        local = micros_to_wall(at, self._zone)
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
            edge = self._edges[index] = max(wall_to_micros(self._at(index), self._zone), self.start)
        return edge

    def _at(self, index: int) -> datetime:
        if self._days:
            return self._anchor + timedelta(days=index * self._days)
        months = self._anchor.month - 1 + index * self._months
        year, month = self._anchor.year + months // 12, months % 12 + 1
        return self._anchor.replace(year=year, month=month, day=min(self._anchor.day, monthrange(year, month)[1]))


Period = Literal["none", "hourly", "daily", "weekly", "monthly", "yearly"]

PERIODS: Final[tuple[Period, ...]] = get_args(Period)


@dataclass(frozen=True, slots=True)
class GridPart:
    """A stretch of a grid that is cut by one period. A plain grid has one, which begins and ends with the job."""

    period: Period
    start: Bound | None = None
    end: Bound | None = None
    """None, or - , if it goes on for ever."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How time is cut: by one period, or by several, one after the other.

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
        """Cut by one period, from where the job begins.

        >>> Grid.plain("dayly")
        Traceback (most recent call last):
        floodmark.errors.GridInvalid: There is no period 'dayly'. ... Did you mean 'daily'? [grid-invalid]
        """
        return cls((GridPart(_period(period)),))

    @classmethod
    def composite(cls, parts: Iterable[tuple[str, Bound, Bound | None]]) -> Self:
        """Cut by several periods; each part begins where the one before it ends, and counts from its own start.

        >>> Grid.composite([("monthly", Bound.parse("2020-01-01", "UTC"), None)]).parts[0].period
        'monthly'
        """
        listed = [GridPart(_period(period), start, end) for period, start, end in parts]
        if not listed:
            raise _invalid_grid("A composite grid has no parts.", "Name at least one period with its start and end.")
        for part in listed:
            if part.start is None or part.start.at is None or (part.end is not None and _is_odd(part.end)):
                raise _invalid_grid(
                    f"The part {part.period} goes from {part.start} to {part.end}.",
                    "Write two fixed times, or - as the end of the last part.",
                )
        listed.sort(key=lambda part: _at(part.start))
        for one, other in pairwise(listed):
            if _at(one.end) != _at(other.start):
                what = "a hole" if _at(one.end) < _at(other.start) else "an overlap"
                raise _invalid_grid(
                    f"There is {what} between {one.period}, which ends at {one.end or '-'}, and {other.period}, which "
                    f"begins at {other.start}.",
                    "Let each part begin where the one before it ends.",
                )
        for part in listed:
            if _at(part.start) >= _at(part.end):
                raise _invalid_grid(
                    f"The part {part.period} ends at {part.end}, which is not after its start.", "Swap them."
                )
        return cls(tuple(listed))

    @property
    def is_plain(self) -> bool:
        """Whether one period cuts everything."""
        return self.parts[0].start is None

    def cells_from(self, start: Bound, now: int, zone: str) -> "Cells":
        """Return the cells of a job that begins there, as they are now.

        If the start moves, the cells stay: they then begin at hours, midnights, Mondays, firsts of months and of years.
        """
        if not self.is_plain:
            runs = [
                Periods(part.period, _at(part.start), _wall(part.start, zone), zone_of(zone), _at(part.end))
                for part in self.parts
            ]
            return Cells(runs, zone)
        period, begin = self.parts[0].period, start.resolve(now, zone)
        if start.moves and period != "none":
            anchor = _calendar_start(period, begin, zone)
            run = Periods(period, wall_to_micros(anchor, zone_of(zone)), anchor, zone_of(zone), LATEST)
        else:
            run = Periods(period, begin, _wall(start, zone, begin), zone_of(zone), LATEST)
        return Cells([run], zone)


class Cells:
    """The cells of a grid, in order and without holes. None is made before it is asked for."""

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
        """Where the first cell begins."""
        return self._runs[0].start

    @property
    def end(self) -> int:
        """Where the last cell ends, if any does."""
        return self._runs[-1].end

    def index(self, at: int) -> int:
        """Return the number of the cell that holds a moment."""
        place = len(self._runs) - 1
        run = self._runs[place]
        while place and at < run.start:
            place -= 1
            run = self._runs[place]
        if not run.start <= at < run.end:
            zone = zone_of(self._zone)
            raise _invalid_grid(
                f"No cell holds {format_moment(at, zone)}: the grid goes from {format_moment(self.start, zone)} to "
                f"{format_moment(self.end, zone)}.",
                "Let the parts of the grid reach from the job's start to its end.",
            )
        return self._bases[place] + run.index(at)

    def cell(self, index: int) -> Range:
        """Return a cell by its number. One that a zone skips, as Apia did 2011-12-30, begins where it ends."""
        place = len(self._runs) - 1
        while place and index < self._bases[place]:
            place -= 1
        return self._runs[place].cell(index - self._bases[place])

    def check(self, reach: Range) -> None:
        """Refuse a stretch of time that the cells do not cover."""
        if reach.lo < self.start or reach.hi > self.end:
            zone = zone_of(self._zone)
            raise _invalid_grid(
                f"The job reads from {format_moment(reach.lo, zone)} to {format_moment(reach.hi, zone)}, "
                "and the grid goes from "
                f"{format_moment(self.start, zone)} to {format_moment(self.end, zone)}.",
                "Let the parts of the grid reach from the job's start to its end, or write - as the last end.",
            )

    def whole_until(self, at: int) -> int:
        """Return where the last cell ends that is over at a moment. Where time is not cut, everything always is."""
        run = next((run for run in reversed(self._runs) if run.start < at), self._runs[0])
        return at if run.is_uncut or at >= run.end else run.cell(run.index(at)).lo

    def cell_of(self, at: int) -> Range:
        """Return the cell that holds a moment."""
        return self.cell(self.index(at))

    def between(self, lo: int, hi: int) -> Iterator[Range]:
        """Give the cells that hold anything from `lo` to `hi`, whole, one after the other."""
        if lo >= hi:
            return
        for index in range(self.index(lo), self.index(hi - 1) + 1):
            cell = self.cell(index)
            if cell.lo < cell.hi:
                yield cell

    def count(self, lo: int, hi: int) -> int:
        """Return how many cells hold anything from `lo` to `hi`, without making them; skipped days count too."""
        return self.index(hi - 1) - self.index(lo) + 1 if lo < hi else 0


def _period(text: str) -> Period:
    for period in PERIODS:
        if isinstance(text, str) and text.lower() == period:
            return period
    raise _invalid_grid(
        f"There is no period {text!r}.", did_you_mean(str(text), PERIODS, otherwise="Choose one of these.")
    )


def _is_odd(end: Bound) -> bool:
    return end.at is None and end.text != "-"


def _at(bound: Bound | None) -> int:
    return LATEST if bound is None or bound.at is None else bound.at


def _wall(bound: Bound | None, zone: str, at: int | None = None) -> datetime:
    """Return the wall time that was written, which may be one that is skipped on that day and on no other."""
    if bound is not None and bound.wall is not None:
        return bound.wall
    return micros_to_wall(_at(bound) if at is None else at, zone_of(zone))


def _calendar_start(period: Period, begin: int, zone: str) -> datetime:
    if period == "hourly":
        return micros_to_wall(floor_moment(begin, "hour", zone), zone_of(zone))
    day = micros_to_wall(begin, zone_of(zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "weekly":
        return datetime.fromordinal(day.toordinal() - day.weekday())
    if period == "daily":
        return day
    return day.replace(day=1) if period == "monthly" else day.replace(month=1, day=1)


def _invalid_grid(fact: str, remedy: str) -> GridInvalid:
    return GridInvalid(
        fact,
        rule=f"A grid is one of {', '.join(PERIODS)}, or such parts that follow each other without holes.",
        remedy=remedy,
    )
