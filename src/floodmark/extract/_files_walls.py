"""Rows that know only what a wall clock showed: which moments of a range they are."""

from datetime import datetime
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from floodmark.ingest._calendar import HOUR, MICROSECOND, clock_set_between, later_wall, offset_at
from floodmark.ingest._ranges import Range

_DAY: Final = 24 * HOUR
_ZERO: Final = datetime(1970, 1, 1)  # noqa: DTZ001


class WallSpan(NamedTuple):
    """What a wall clock shows while it is not set, from one moment on; all in microseconds."""

    wall: int
    """From this on, as if it were in UTC."""
    moment: int
    """When it shows that, or first shows something later."""
    offset: int
    """By how much it is ahead of UTC."""


def wall_spans(of: Range, zone: ZoneInfo) -> tuple[WallSpan, ...]:
    """Return how wall times become moments of a range; the last span begins where the range ends.

    A wall time that comes twice counts as the later one, and one that is skipped as the moment of the skip: as where
    ranges are read from a database, so that each wall time is of exactly one of two ranges that touch.

    >>> from floodmark.ingest._calendar import moment, zone_of
    >>> berlin = zone_of("Europe/Berlin")
    >>> day = Range(moment(datetime(2020, 10, 25), berlin), moment(datetime(2020, 10, 26), berlin))
    >>> [(span.wall // HOUR % 24, span.offset // HOUR) for span in wall_spans(day, berlin)]
    [(0, 2), (2, 1), (0, 1)]
    """
    starts = [of.lo]
    while (after := _next_change(starts[-1], of.hi, zone)) is not None:
        starts.append(after)
    return tuple(
        WallSpan(_micros(later_wall(at, zone)), at, offset_at(at, zone) // MICROSECOND) for at in (*starts, of.hi)
    )


def moment_of(shown: int, spans: tuple[WallSpan, ...]) -> int | None:
    """Return which moment of a range a wall time is, or None if it is none of it.

    >>> moment_of(5, (WallSpan(0, -HOUR, HOUR), WallSpan(HOUR, 0, HOUR))) == 5 - HOUR
    True
    """
    if shown >= spans[-1].wall:
        return None
    for span, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        if shown >= span.wall:
            return max(span.moment, min(shown - span.offset, after.moment - 1))
    return None


def _next_change(since: int, until: int, zone: ZoneInfo) -> int | None:
    """Return when the clock is next set, before the end."""
    low, offset = since, offset_at(since, zone)
    while low < until:
        high = min(low + _DAY, until)
        if offset_at(high, zone) != offset:
            after = clock_set_between(low, high, zone)
            return after if after < until else None
        low = high
    return None


def _micros(shown: datetime) -> int:
    return (shown.replace(fold=0) - _ZERO) // MICROSECOND
