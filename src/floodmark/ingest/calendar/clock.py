"""Wall clocks and moments: the only place that knows what a zone does to a day.

Two wall times have no moment of their own, and each is decided one way, everywhere:

- One that is skipped, as 02:30 where clocks go from 02:00 to 03:00, is the moment of the skip. A day whose midnight is
  skipped begins at its first moment.
- One that comes twice is the first of the two, unless it is known which.

So a later wall time is never an earlier moment, and cells never overlap.

Where rows are read by a column of wall times, a wall time that comes twice is the later one: see `wall_not_before` and
`wall_spans`.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from floodmark._util.text import did_you_mean
from floodmark.errors import ZoneUnknown
from floodmark.ingest.calendar.ranges import Range

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
HOUR: Final = 3_600_000_000

EARLIEST: Final = (datetime(2, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST: Final = (datetime(9998, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
"""What lies between can be reckoned with in every zone, a year more or less."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """Return a zone by its name, or refuse it.

    >>> zone_of("Europe/Berln")
    Traceback (most recent call last):
    floodmark.errors.ZoneUnknown: There is no zone 'Europe/Berln'. ... Did you mean 'Europe/Berlin'? [zone-unknown]
    """
    try:
        # A directory of zones, or a name that leads out of it, is refused in other ways than a missing one.
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        near = did_you_mean(str(name), available_timezones(), otherwise="Write 'UTC' if it does not matter.")
        raise ZoneUnknown(
            f"There is no zone {name!r}.",
            rule="A zone is named as in the tz database, such as 'Europe/Berlin' or 'UTC'.",
            remedy=near,
            zone=name,
        ) from error


def wall_to_micros(wall: datetime, zone: ZoneInfo) -> int:
    """Return when a wall clock in a zone shows this time, in microseconds; `fold` says which, if it does twice.

    >>> skipped = wall_to_micros(datetime(2020, 3, 8, 2, 30), zone_of("America/Los_Angeles"))
    >>> format_moment(skipped, zone_of("America/Los_Angeles"))
    '2020-03-08T03:00:00-07:00'
    """
    local = wall.replace(tzinfo=zone)
    before, after = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    assert before is not None
    assert after is not None
    if before == after:
        return ((wall - before).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    if before > after:
        offset = after if wall.fold else before
        return ((wall - offset).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    # Skipped: the clock jumps somewhere between these two.
    low = ((wall - after).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    high = ((wall - before).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    return clock_set_between(low, high, zone)


def micros_to_wall(micros: int, zone: ZoneInfo) -> datetime:
    """Return what a wall clock in a zone shows at a moment; `fold` is 1 if it shows this for the second time.

    >>> micros_to_wall(0, zone_of("Asia/Kolkata"))
    datetime.datetime(1970, 1, 1, 5, 30)
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).replace(tzinfo=None)


def wall_not_before(micros: int, zone: ZoneInfo) -> datetime:
    """Return the smallest wall time whose moment is not before this one, if of two moments the later one counts.

    Rows that know only their wall time are read by it: an hour that comes twice is read when it is over, and what is
    skipped belongs to the moment of the skip. Ranges that touch each other are ranges of wall times that do.

    >>> berlin = zone_of("Europe/Berlin")
    >>> first = wall_to_micros(datetime(2020, 10, 25, 2, 30), berlin)
    >>> [wall_not_before(first + hours * HOUR, berlin).strftime("%H:%M") for hours in (-1, 0, 1)]
    ['01:30', '02:00', '02:30']
    >>> wall_not_before(wall_to_micros(datetime(2020, 3, 29, 3), berlin), berlin).strftime("%H:%M")
    '02:00'
    """
    local = micros_to_wall(micros, zone).replace(fold=0)
    before, now = offset_at(micros - 1, zone), offset_at(micros, zone)
    if now > before:
        return local - (now - before)
    again = local.replace(tzinfo=zone, fold=1).utcoffset()
    assert again is not None
    if now <= again:
        return local
    # The clock is set back after this moment, and before it shows this again.
    set_back = clock_set_between(micros, micros + (now - again) // MICROSECOND, zone)
    return micros_to_wall(set_back, zone).replace(fold=0)


def format_moment(micros: int, zone: ZoneInfo) -> str:
    """Return a moment as people write it, with its offset.

    >>> format_moment(0, zone_of("UTC"))
    '1970-01-01T00:00:00+00:00'
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).isoformat()


def days_before(micros: int, days: int, zone: ZoneInfo) -> int:
    """Return the moment so many calendar days earlier, at the same time of the day.

    >>> days_before(
    ...     wall_to_micros(datetime(2020, 3, 9), zone_of("America/Los_Angeles")), 1, zone_of("America/Los_Angeles")
    ... )
    1583654400000000
    """
    if not days:
        return micros
    return wall_to_micros(micros_to_wall(micros, zone) - timedelta(days=days), zone)


def day_number(micros: int, zone: ZoneInfo) -> int:
    """Return the calendar day of a moment, counted without holes.

    >>> day_number(0, zone_of("UTC")) - day_number(0, zone_of("America/Los_Angeles"))
    1
    """
    return micros_to_wall(micros, zone).toordinal()


def clock_set_between(low: int, high: int, zone: ZoneInfo) -> int:
    """Return when the clock of a zone is set: after the first moment, and at the second one at the latest.

    >>> berlin = zone_of("Europe/Berlin")
    >>> format_moment(
    ...     clock_set_between(
    ...         wall_to_micros(datetime(2020, 3, 29), berlin), wall_to_micros(datetime(2020, 3, 30), berlin), berlin
    ...     ),
    ...     berlin,
    ... )
    '2020-03-29T03:00:00+02:00'
    """
    before = offset_at(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(middle, zone) == before else (low, middle)
    return high


def offset_at(micros: int, zone: ZoneInfo) -> timedelta:
    """Return by how much the clock of a zone is ahead of UTC at a moment."""
    offset = (EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset


_DAY: Final = 24 * HOUR
_WALL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001


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

    >>> berlin = zone_of("Europe/Berlin")
    >>> day = Range(wall_to_micros(datetime(2020, 10, 25), berlin), wall_to_micros(datetime(2020, 10, 26), berlin))
    >>> [(span.wall // HOUR % 24, span.offset // HOUR) for span in wall_spans(day, berlin)]
    [(0, 2), (2, 1), (0, 1)]
    """
    starts = [of.lo]
    while (after := _next_clock_change(starts[-1], of.hi, zone)) is not None:
        starts.append(after)
    return tuple(
        WallSpan(_wall_micros(wall_not_before(at, zone)), at, offset_at(at, zone) // MICROSECOND)
        for at in (*starts, of.hi)
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


def _next_clock_change(since: int, until: int, zone: ZoneInfo) -> int | None:
    """Return when the clock is next set, before the end."""
    low, offset = since, offset_at(since, zone)
    while low < until:
        high = min(low + _DAY, until)
        if offset_at(high, zone) != offset:
            after = clock_set_between(low, high, zone)
            return after if after < until else None
        low = high
    return None


def _wall_micros(shown: datetime) -> int:
    return (shown.replace(fold=0) - _WALL_EPOCH) // MICROSECOND
