"""Wall clocks and moments: the only place that knows what a zone does to a day.

Two wall times have no moment of their own, and each is decided one way, everywhere:

- One that is skipped, as 02:30 where clocks go from 02:00 to 03:00, is the moment of the skip. A day whose midnight is
  skipped begins at its first moment.
- One that comes twice is the first of the two, unless it is known which.

So a later wall time is never an earlier moment, and cells never overlap.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from floodmark._util.text import did_you_mean
from floodmark.errors import ZoneUnknown

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


def moment(wall: datetime, zone: ZoneInfo) -> int:
    """Return when a wall clock in a zone shows this time, in microseconds; `fold` says which, if it does twice.

    >>> skipped = moment(datetime(2020, 3, 8, 2, 30), zone_of("America/Los_Angeles"))
    >>> shown(skipped, zone_of("America/Los_Angeles"))
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


def wall(micros: int, zone: ZoneInfo) -> datetime:
    """Return what a wall clock in a zone shows at a moment; `fold` is 1 if it shows this for the second time.

    >>> wall(0, zone_of("Asia/Kolkata"))
    datetime.datetime(1970, 1, 1, 5, 30)
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).replace(tzinfo=None)


def later_wall(micros: int, zone: ZoneInfo) -> datetime:
    """Return the smallest wall time whose moment is not before this one, if of two moments the later one counts.

    Rows that know only their wall time are read by it: an hour that comes twice is read when it is over, and what is
    skipped belongs to the moment of the skip. Ranges that touch each other are ranges of wall times that do.

    >>> berlin = zone_of("Europe/Berlin")
    >>> first = moment(datetime(2020, 10, 25, 2, 30), berlin)
    >>> [later_wall(first + hours * HOUR, berlin).strftime("%H:%M") for hours in (-1, 0, 1)]
    ['01:30', '02:00', '02:30']
    >>> later_wall(moment(datetime(2020, 3, 29, 3), berlin), berlin).strftime("%H:%M")
    '02:00'
    """
    local = wall(micros, zone).replace(fold=0)
    before, now = offset_at(micros - 1, zone), offset_at(micros, zone)
    if now > before:
        return local - (now - before)
    again = local.replace(tzinfo=zone, fold=1).utcoffset()
    assert again is not None
    if now <= again:
        return local
    # The clock is set back after this moment, and before it shows this again.
    set_back = clock_set_between(micros, micros + (now - again) // MICROSECOND, zone)
    return wall(set_back, zone).replace(fold=0)


def shown(micros: int, zone: ZoneInfo) -> str:
    """Return a moment as people write it, with its offset.

    >>> shown(0, zone_of("UTC"))
    '1970-01-01T00:00:00+00:00'
    """
    return (EPOCH + timedelta(microseconds=micros)).astimezone(zone).isoformat()


def days_before(micros: int, days: int, zone: ZoneInfo) -> int:
    """Return the moment so many calendar days earlier, at the same time of the day.

    >>> days_before(moment(datetime(2020, 3, 9), zone_of("America/Los_Angeles")), 1, zone_of("America/Los_Angeles"))
    1583654400000000
    """
    if not days:
        return micros
    return moment(wall(micros, zone) - timedelta(days=days), zone)


def day_number(micros: int, zone: ZoneInfo) -> int:
    """Return the calendar day of a moment, counted without holes.

    >>> day_number(0, zone_of("UTC")) - day_number(0, zone_of("America/Los_Angeles"))
    1
    """
    return wall(micros, zone).toordinal()


def clock_set_between(low: int, high: int, zone: ZoneInfo) -> int:
    """Return when the clock of a zone is set: after the first moment, and at the second one at the latest.

    >>> berlin = zone_of("Europe/Berlin")
    >>> shown(
    ...     clock_set_between(moment(datetime(2020, 3, 29), berlin), moment(datetime(2020, 3, 30), berlin), berlin),
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
