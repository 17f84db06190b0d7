"""Conversion between wall-clock times and moments; the only code that handles daylight saving.

A wall time without a single moment of its own is resolved the same way everywhere:

- A skipped one, such as 02:30 where clocks go from 02:00 to 03:00, is the moment of the skip. So a day whose midnight
  is skipped starts at its first moment.
- A repeated one is the first of the two moments, unless `fold` says otherwise.

So a later wall time is never an earlier moment, and cells never overlap.

A column of wall times is different: there a repeated wall time is the later moment. See `wall_not_before` and
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
"""Times between these can be converted to every zone, plus or minus a year, without overflow."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """Return the zone with this name of the tz database.

    >>> zone_of("Europe/Berln")
    Traceback (most recent call last):
    floodmark.errors.ZoneUnknown: There is no zone 'Europe/Berln'. ... Did you mean 'Europe/Berlin'? [zone-unknown]
    """
    try:
        # Besides KeyError: a directory raises OSError, a path outside the database ValueError.
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        hint = did_you_mean(str(name), available_timezones(), otherwise="Use 'UTC' if the zone does not matter.")
        raise ZoneUnknown(
            f"There is no zone {name!r}.",
            rule="A zone is named as in the tz database, such as 'Europe/Berlin' or 'UTC'.",
            remedy=hint,
            zone=name,
        ) from error


def wall_to_micros(wall: datetime, zone: ZoneInfo) -> int:
    """Return the moment of a wall time in a zone, in microseconds; `fold` selects one of a repeated time.

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
    # Skipped: the clock change is between these two moments.
    low = ((wall - after).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    high = ((wall - before).replace(tzinfo=UTC, fold=0) - EPOCH) // MICROSECOND
    return find_clock_change(low, high, zone)


def micros_to_wall(micros: int, zone: ZoneInfo) -> datetime:
    """Return the wall time in a zone at a moment; `fold` is 1 for the second of a repeated time.

    >>> micros_to_wall(0, zone_of("Asia/Kolkata"))
    datetime.datetime(1970, 1, 1, 5, 30)
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).replace(tzinfo=None)


def wall_not_before(micros: int, zone: ZoneInfo) -> datetime:
    """Return the smallest wall time whose moment is not before this one; a repeated wall time is the later moment.

    Used to select rows by a column of wall times: a repeated hour is read only after its second pass, and a skipped
    wall time belongs to the moment of the skip. Adjacent ranges of moments give adjacent ranges of wall times.

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
    # The clock is set back after this moment, before it shows this time again.
    set_back = find_clock_change(micros, micros + (now - again) // MICROSECOND, zone)
    return micros_to_wall(set_back, zone).replace(fold=0)


def format_moment(micros: int, zone: ZoneInfo) -> str:
    """Return a moment in ISO 8601 with the offset of a zone.

    >>> format_moment(0, zone_of("UTC"))
    '1970-01-01T00:00:00+00:00'
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).isoformat()


def days_before(micros: int, days: int, zone: ZoneInfo) -> int:
    """Return the moment a number of calendar days earlier, at the same wall time, at least `EARLIEST`.

    >>> days_before(
    ...     wall_to_micros(datetime(2020, 3, 9), zone_of("America/Los_Angeles")), 1, zone_of("America/Los_Angeles")
    ... )
    1583654400000000
    """
    if not days:
        return micros
    wall = micros_to_wall(micros, zone)
    # The calendar begins in the year 1, and the difference of two of its times always exists.
    if wall - micros_to_wall(EARLIEST, zone) <= timedelta(days=days):
        return min(micros, EARLIEST)
    return wall_to_micros(wall - timedelta(days=days), zone)


def day_number(micros: int, zone: ZoneInfo) -> int:
    """Return the ordinal of the calendar day of a moment.

    >>> day_number(0, zone_of("UTC")) - day_number(0, zone_of("America/Los_Angeles"))
    1
    """
    return micros_to_wall(micros, zone).toordinal()


def find_clock_change(low: int, high: int, zone: ZoneInfo) -> int:
    """Return the moment of the clock change in (low, high], by binary search.

    >>> berlin = zone_of("Europe/Berlin")
    >>> format_moment(
    ...     find_clock_change(
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
    """Return the UTC offset of a zone at a moment."""
    offset = (EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset


_DAY: Final = 24 * HOUR
_WALL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001


class WallSpan(NamedTuple):
    """A period without clock change, by its start; all values are microseconds."""

    wall: int
    """The first wall time, written as if it were UTC."""
    moment: int
    """The moment of that wall time."""
    offset: int
    """The UTC offset."""


def wall_spans(range_: Range, zone: ZoneInfo) -> tuple[WallSpan, ...]:
    """Return the spans that map wall times to moments of a range; the last span starts at the end of the range.

    As in `wall_not_before`, a repeated wall time is the later moment and a skipped one the moment of the skip. So each
    wall time belongs to exactly one of two adjacent ranges.

    >>> berlin = zone_of("Europe/Berlin")
    >>> day = Range(wall_to_micros(datetime(2020, 10, 25), berlin), wall_to_micros(datetime(2020, 10, 26), berlin))
    >>> [(span.wall // HOUR % 24, span.offset // HOUR) for span in wall_spans(day, berlin)]
    [(0, 2), (2, 1), (0, 1)]
    """
    starts = [range_.lo]
    while (after := _next_clock_change(starts[-1], range_.hi, zone)) is not None:
        starts.append(after)
    return tuple(
        WallSpan(_wall_micros(wall_not_before(at, zone)), at, offset_at(at, zone) // MICROSECOND)
        for at in (*starts, range_.hi)
    )


def wall_to_moment(wall: int, spans: tuple[WallSpan, ...]) -> int | None:
    """Return the moment of a wall time within the range of `spans`, or None if it is outside.

    >>> wall_to_moment(5, (WallSpan(0, -HOUR, HOUR), WallSpan(HOUR, 0, HOUR))) == 5 - HOUR
    True
    """
    if wall >= spans[-1].wall:
        return None
    for span, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        if wall >= span.wall:
            return max(span.moment, min(wall - span.offset, after.moment - 1))
    return None


def _next_clock_change(since: int, until: int, zone: ZoneInfo) -> int | None:
    """Return the first clock change after `since` and before `until`, if any."""
    low, offset = since, offset_at(since, zone)
    while low < until:
        high = min(low + _DAY, until)
        if offset_at(high, zone) != offset:
            after = find_clock_change(low, high, zone)
            return after if after < until else None
        low = high
    return None


def _wall_micros(wall: datetime) -> int:
    return (wall.replace(fold=0) - _WALL_EPOCH) // MICROSECOND
