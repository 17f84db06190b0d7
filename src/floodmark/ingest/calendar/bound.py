"""The two ends of what a job reads: a fixed moment, or so long before now."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, Self

from floodmark.errors import BoundInvalid
from floodmark.ingest.calendar.clock import EARLIEST, HOUR, LATEST, micros_to_wall, wall_to_micros, zone_of

Floor = Literal["day", "hour", "minute"]

MINUTE: Final = 60_000_000
MAX_DAYS: Final = 366_000
"""A thousand years back: what is longer is a slip of the pen."""

_DURATION: Final = re.compile(
    r"P(?P<days>\d+)D(?:T(?P<hours>\d+)H(?:(?P<minutes>\d+)M)?)?(?:\.(?P<zone>.+))?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME: Final = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?P<form>[ T])(?P<time>\d{2}:\d{2}:\d{2})(?:\.(?P<fraction>\d+))?(?P<rest>.*)",
    re.ASCII,
)
_OFFSET: Final = re.compile(r" ?(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})", re.ASCII)
_SHORT_ZONES: Final = {
    "Z": 0,
    "UTC": 0,
    "GMT": 0,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
}
_RULE: Final = (
    "It is a date (2020-01-31), a date with a time to the second (2020-01-31T10:00:00+01:00), a duration back from now "
    "(P1D, P0DT7H, P0DT1H30M, each perhaps with a zone: P0D.UTC), or, as the end, - for now."
)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a job begins or ends to read: a moment, or a duration back from now, whose form says how now is rounded.

    >>> now = wall_to_micros(datetime(2020, 2, 21, 10, 37, 12), zone_of("America/Los_Angeles"))
    >>> for text in ("2020-01-01", "P1D", "P2DT5H", "P0DT1H30M", "-"):
    ...     bound = Bound.parse(text, "America/Los_Angeles")
    ...     print(micros_to_wall(bound.resolve(now, "America/Los_Angeles"), zone_of("America/Los_Angeles")))
    2020-01-01 00:00:00
    2020-02-20 00:00:00
    2020-02-19 05:00:00
    2020-02-21 09:07:00
    2020-02-21 10:37:00

    Days are those of the calendar; hours and minutes are always equally long.
    """

    text: str
    """As it was written."""
    at: int | None = None
    """The moment in microseconds, if it is fixed."""
    wall: datetime | None = None
    """What was written, if that was a time on the wall of the job's own zone."""
    days: int = 0
    hours: int = 0
    minutes: int = 0
    floor: Floor = "minute"
    """To what now is rounded down, before the duration is taken off."""
    zone: str | None = None
    """The zone of a duration, if it has one of its own."""

    @classmethod
    def parse(cls, text: str, zone: str, *, dil: bool = False) -> Self:
        """Return what a text says, where times without a zone are of this one; or refuse it.

        With `dil`, what DIL would have read as something else than it says is refused too.

        >>> Bound.parse("P0DT30H", "UTC")
        Traceback (most recent call last):
        floodmark.errors.BoundInvalid: 'P0DT30H' has 30 hours. ... [bound-invalid]
        """
        zone_of(zone)
        if not isinstance(text, str):
            raise _invalid_bound(text, f"{text!r} is no text.", "Write it in quotes.")
        if text == "-":
            return cls(text)
        duration = _DURATION.fullmatch(text)
        if duration is not None:
            return cls._duration(text, duration)
        if _DATE.fullmatch(text):
            return cls._fixed(text, _read(text, text), zone)
        written = _TIME.fullmatch(text)
        if written is not None:
            return cls._time(text, written, zone, dil=dil)
        raise _invalid_bound(text, f"{text!r} is neither a time nor a duration.", _guess(text))

    @classmethod
    def _duration(cls, text: str, found: re.Match[str]) -> Self:
        days, hours, minutes = (int(found[part] or 0) for part in ("days", "hours", "minutes"))
        for many, most, unit, remedy in (
            (days, MAX_DAYS, "days", "Write a date instead."),
            (hours, 23, "hours", f"Write whole days apart: P{days + hours // 24}DT{hours % 24}H."),
            (minutes, 59, "minutes", "Write whole hours apart."),
        ):
            if many > most:
                raise _invalid_bound(text, f"{text!r} has {many} {unit}.", f"There may be {most}. {remedy}")
        if found["zone"] is not None:
            zone_of(found["zone"])
        floor: Floor = "day" if found["hours"] is None else "hour" if found["minutes"] is None else "minute"
        return cls(text, days=days, hours=hours, minutes=minutes, floor=floor, zone=found["zone"])

    @classmethod
    def _time(cls, text: str, found: re.Match[str], zone: str, *, dil: bool) -> Self:
        fraction, rest = found["fraction"] or "", found["rest"]
        if len(fraction) > 6:
            raise _invalid_bound(
                text, f"{text!r} has parts of a microsecond.", "Leave at most six digits after the point."
            )
        local = _read(text, f"{found['date']}T{found['time']}.{fraction:0<6}")
        if not rest:
            return cls._fixed(text, local, zone)
        offset = _OFFSET.fullmatch(rest)
        if offset is not None:
            ahead = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
            if ahead > timedelta(hours=18) or int(offset["minutes"]) > 59:
                raise _invalid_bound(text, f"No place on earth is {rest.strip()} from UTC.", "Correct the offset.")
            return cls._instant(text, local + (ahead if offset["sign"] == "-" else -ahead))
        name = rest.strip()
        is_lost_by_dil = found["form"] == "T" and len(fraction) < 2
        if name in _SHORT_ZONES and not (dil and (is_lost_by_dil or name == "Z")):
            return cls._instant(text, local - timedelta(hours=_SHORT_ZONES[name]))
        if rest.startswith(" ") and "/" in name and not dil:
            return cls(text, at=_checked(text, wall_to_micros(local, zone_of(name))))
        remedy = "Write the offset, as in +01:00 or -0800."
        if dil:
            raise _invalid_bound(text, f"DIL drops the time of {text!r}, and takes the midnight of its date.", remedy)
        raise _invalid_bound(text, f"{text!r} has a zone that is not known.", remedy)

    @classmethod
    def _fixed(cls, text: str, local: datetime, zone: str) -> Self:
        return cls(text, at=_checked(text, wall_to_micros(local, zone_of(zone))), wall=local)

    @classmethod
    def _instant(cls, text: str, utc: datetime) -> Self:
        return cls(text, at=_checked(text, wall_to_micros(utc, zone_of("UTC"))))

    @property
    def moves(self) -> bool:
        """Whether it depends on when it is asked."""
        return self.at is None

    def resolve(self, now: int, zone: str) -> int:
        """Return the moment it means at this time for a job of this zone, in microseconds.

        >>> Bound.parse("P1D.UTC", "Asia/Tokyo").resolve(86_400_000_000 + 5, "Asia/Tokyo")
        0
        """
        if self.at is not None:
            return self.at
        own = zone_of(self.zone or zone)
        start = floor_moment(now, self.floor, self.zone or zone)
        if self.days:
            start = wall_to_micros(micros_to_wall(start, own) - timedelta(days=self.days), own)
        return start - self.hours * HOUR - self.minutes * MINUTE

    def __str__(self) -> str:
        return self.text


def floor_moment(now: int, floor: Floor, zone: str) -> int:
    """Return when the day, hour or minute of a wall clock began.

    >>> floor_moment(HOUR + 5, "hour", "UTC") == HOUR
    True
    """
    own = zone_of(zone)
    local = micros_to_wall(now, own).replace(second=0, microsecond=0)
    if floor != "minute":
        local = local.replace(minute=0)
    if floor == "day":
        # The first midnight, also where there are two.
        local = local.replace(hour=0, fold=0)
    return min(wall_to_micros(local, own), now)


def _read(text: str, iso: str) -> datetime:
    try:
        return datetime.fromisoformat(iso)
    except ValueError as error:
        raise _invalid_bound(text, f"{text!r} is in no calendar: {error}.", "Correct it.") from error


def _checked(text: str, micros: int) -> int:
    if not EARLIEST <= micros < LATEST:
        raise _invalid_bound(text, f"{text!r} is too far away.", "Name a time of the years 2 to 9997.")
    return micros


def _guess(text: str) -> str:
    if re.fullmatch(r"\d{8}", text):
        return f"Write {text[:4]}-{text[4:6]}-{text[6:]}."
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}", text):
        return f"Write the seconds too: {text}:00."
    minutes = re.fullmatch(r"P(?:(\d+)D)?T(\d+)M", text)
    if minutes:
        return f"Write the days and the hours too: P{minutes[1] or 0}DT0H{minutes[2]}M."
    hours = re.fullmatch(r"PT(\d+)H", text)
    if hours:
        return f"Write the days too: P0DT{hours[1]}H."
    return "Write it in one of these ways."


def _invalid_bound(text: object, fact: str, remedy: str) -> BoundInvalid:
    return BoundInvalid(fact, rule=_RULE, remedy=remedy, text=text)
