"""How the time of a job is cut into cells: periods of a calendar, counted from where the job begins."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal, Self, get_args

from floodmark._util.text import did_you_mean
from floodmark.errors import GridInvalid
from floodmark.ingest._bound import Bound, rounded
from floodmark.ingest._calendar import LATEST, moment, shown, wall, zone_of
from floodmark.ingest._periods import Periods
from floodmark.ingest._ranges import Range

Period = Literal["none", "hourly", "daily", "weekly", "monthly", "yearly"]

PERIODS: Final[tuple[Period, ...]] = get_args(Period)


@dataclass(frozen=True, slots=True)
class Part:
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
    ...     print(shown(cell.lo, zone_of("UTC"))[:10], shown(cell.hi, zone_of("UTC"))[:10])
    2020-01-31 2020-02-29
    2020-02-29 2020-03-31
    2020-03-31 2020-04-30
    """

    parts: tuple[Part, ...]

    @classmethod
    def plain(cls, period: str) -> Self:
        """Cut by one period, from where the job begins.

        >>> Grid.plain("dayly")
        Traceback (most recent call last):
        floodmark.errors.GridInvalid: There is no period 'dayly'. ... Did you mean 'daily'? [grid-invalid]
        """
        return cls((Part(_period(period)),))

    @classmethod
    def composite(cls, parts: Iterable[tuple[str, Bound, Bound | None]]) -> Self:
        """Cut by several periods; each part begins where the one before it ends, and counts from its own start.

        >>> Grid.composite([("monthly", Bound.parse("2020-01-01", "UTC"), None)]).parts[0].period
        'monthly'
        """
        listed = [Part(_period(period), start, end) for period, start, end in parts]
        if not listed:
            raise _refused("A composite grid has no parts.", "Name at least one period with its start and end.")
        for part in listed:
            if part.start is None or part.start.at is None or (part.end is not None and _is_odd(part.end)):
                raise _refused(
                    f"The part {part.period} goes from {part.start} to {part.end}.",
                    "Write two fixed times, or - as the end of the last part.",
                )
        listed.sort(key=lambda part: _at(part.start))
        for one, other in pairwise(listed):
            if _at(one.end) != _at(other.start):
                what = "a hole" if _at(one.end) < _at(other.start) else "an overlap"
                raise _refused(
                    f"There is {what} between {one.period}, which ends at {one.end or '-'}, and {other.period}, which "
                    f"begins at {other.start}.",
                    "Let each part begin where the one before it ends.",
                )
        for part in listed:
            if _at(part.start) >= _at(part.end):
                raise _refused(
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
            run = Periods(period, moment(anchor, zone_of(zone)), anchor, zone_of(zone), LATEST)
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
            raise _refused(
                f"No cell holds {shown(at, zone)}: the grid goes from {shown(self.start, zone)} to "
                f"{shown(self.end, zone)}.",
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
            raise _refused(
                f"The job reads from {shown(reach.lo, zone)} to {shown(reach.hi, zone)}, and the grid goes from "
                f"{shown(self.start, zone)} to {shown(self.end, zone)}.",
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
    raise _refused(f"There is no period {text!r}.", did_you_mean(str(text), PERIODS, otherwise="Choose one of these."))


def _is_odd(end: Bound) -> bool:
    return end.at is None and end.text != "-"


def _at(bound: Bound | None) -> int:
    return LATEST if bound is None or bound.at is None else bound.at


def _wall(bound: Bound | None, zone: str, at: int | None = None) -> datetime:
    """Return the wall time that was written, which may be one that is skipped on that day and on no other."""
    if bound is not None and bound.wall is not None:
        return bound.wall
    return wall(_at(bound) if at is None else at, zone_of(zone))


def _calendar_start(period: Period, begin: int, zone: str) -> datetime:
    if period == "hourly":
        return wall(rounded(begin, "hour", zone), zone_of(zone))
    day = wall(begin, zone_of(zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "weekly":
        return datetime.fromordinal(day.toordinal() - day.weekday())
    if period == "daily":
        return day
    return day.replace(day=1) if period == "monthly" else day.replace(month=1, day=1)


def _refused(fact: str, remedy: str) -> GridInvalid:
    return GridInvalid(
        fact,
        rule=f"A grid is one of {', '.join(PERIODS)}, or such parts that follow each other without holes.",
        remedy=remedy,
    )
