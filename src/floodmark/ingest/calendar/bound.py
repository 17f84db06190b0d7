"""The bounds `from` and `to` of a job: a fixed moment, or a duration before now."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, Self

from floodmark.errors import BoundInvalid
from floodmark.ingest.calendar.clock import EARLIEST, HOUR, LATEST, days_before, micros_to_wall, wall_to_micros, zone_of

Floor = Literal["day", "hour", "minute"]

MINUTE: Final = 60_000_000
MAX_DAYS: Final = 366_000
"""About a thousand years; a longer duration is taken for a typing error."""

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
_BOUND_RULE: Final = (
    "A bound is a date (2020-01-31), a date with a time to the second (2020-01-31T10:00:00+01:00), a duration before "
    "now (P1D, P0DT7H, P0DT1H30M, optionally with a zone: P0D.UTC), or, as the end, - for now."
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of the time that a job reads: a moment, or a duration before now, rounded down to its smallest unit.

    >>> now = wall_to_micros(datetime(2020, 2, 21, 10, 37, 12), zone_of("America/Los_Angeles"))
    >>> for text in ("2020-01-01", "P1D", "P2DT5H", "P0DT1H30M", "-"):
    ...     bound = Bound.parse(text, "America/Los_Angeles")
    ...     print(micros_to_wall(bound.resolve(now, "America/Los_Angeles"), zone_of("America/Los_Angeles")))
    2020-01-01 00:00:00
    2020-02-20 00:00:00
    2020-02-19 05:00:00
    2020-02-21 09:07:00
    2020-02-21 10:37:00

    Days are calendar days, which may have 23 or 25 hours; hours and minutes have a fixed length.
    """

    text: str
    """The bound as written in the job file."""
    at: int | None = None
    """The moment in microseconds, if the bound is fixed."""
    wall: datetime | None = None
    """The wall time, if the bound is written as one in the job's zone."""
    days: int = 0
    hours: int = 0
    minutes: int = 0
    floor: Floor = "minute"
    """The unit that now is rounded down to before the duration is subtracted."""
    zone: str | None = None
    """The zone of a duration that names one."""

    @classmethod
    def parse(cls, text: str, zone: str, *, dil: bool = False) -> Self:
        """Parse a bound; times without a zone are in `zone`.

        With `dil`, also refuse a text that DIL would silently read as another time.

        >>> Bound.parse("P0DT30H", "UTC")
        Traceback (most recent call last):
        floodmark.errors.BoundInvalid: 'P0DT30H' has 30 hours. ... [bound-invalid]
        """
        zone_of(zone)
        if not isinstance(text, str):
            raise _invalid_bound(text, f"The bound {text!r} is not a string.", "Put it in quotes.")
        if text == "-":
            return cls(text)
        duration = _DURATION.fullmatch(text)
        if duration is not None:
            return cls._duration(text, duration)
        if _DATE.fullmatch(text):
            return cls._fixed(text, _parse_iso(text, text), zone)
        written = _TIME.fullmatch(text)
        if written is not None:
            return cls._time(text, written, zone, dil=dil)
        raise _invalid_bound(text, f"{text!r} is neither a date, a time nor a duration.", _format_hint(text))

    @classmethod
    def _duration(cls, text: str, match: re.Match[str]) -> Self:
        days, hours, minutes = (int(match[unit] or 0) for unit in ("days", "hours", "minutes"))
        for count, most, unit, remedy in (
            (days, MAX_DAYS, "days", "Use a date instead."),
            (hours, 23, "hours", f"Write P{days + hours // 24}DT{hours % 24}H."),
            (minutes, 59, "minutes", f"Write P{days}DT{hours + minutes // 60}H{minutes % 60}M."),
        ):
            if count > most:
                raise _invalid_bound(text, f"{text!r} has {count} {unit}.", f"At most {most} are allowed. {remedy}")
        if match["zone"] is not None:
            zone_of(match["zone"])
        floor: Floor = "day" if match["hours"] is None else "hour" if match["minutes"] is None else "minute"
        return cls(text, days=days, hours=hours, minutes=minutes, floor=floor, zone=match["zone"])

    @classmethod
    def _time(cls, text: str, match: re.Match[str], zone: str, *, dil: bool) -> Self:
        fraction, rest = match["fraction"] or "", match["rest"]
        if len(fraction) > 6:
            raise _invalid_bound(
                text, f"{text!r} is finer than a microsecond.", "Write at most six digits after the point."
            )
        local = _parse_iso(text, f"{match['date']}T{match['time']}.{fraction:0<6}")
        if not rest:
            return cls._fixed(text, local, zone)
        offset = _OFFSET.fullmatch(rest)
        if offset is not None:
            ahead = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
            if ahead > timedelta(hours=18) or int(offset["minutes"]) > 59:
                raise _invalid_bound(text, f"The offset {rest.strip()} does not exist.", "Write an offset up to 18:00.")
            return cls._instant(text, local + (ahead if offset["sign"] == "-" else -ahead))
        name = rest.strip()
        is_dropped_by_dil = match["form"] == "T" and len(fraction) < 2
        if name in _SHORT_ZONES and not (dil and (is_dropped_by_dil or name == "Z")):
            return cls._instant(text, local - timedelta(hours=_SHORT_ZONES[name]))
        if rest.startswith(" ") and "/" in name and not dil:
            return cls(text, at=_require_supported(text, wall_to_micros(local, zone_of(name))))
        remedy = "Write the UTC offset instead, as in +01:00 or -0800."
        if dil:
            raise _invalid_bound(text, f"DIL ignores the time in {text!r} and uses midnight.", remedy)
        raise _invalid_bound(text, f"{text!r} has an unknown zone.", remedy)

    @classmethod
    def _fixed(cls, text: str, local: datetime, zone: str) -> Self:
        return cls(text, at=_require_supported(text, wall_to_micros(local, zone_of(zone))), wall=local)

    @classmethod
    def _instant(cls, text: str, utc: datetime) -> Self:
        return cls(text, at=_require_supported(text, wall_to_micros(utc, zone_of("UTC"))))

    @property
    def moves(self) -> bool:
        """Whether the bound is relative to now."""
        return self.at is None

    def resolve(self, now: int, zone: str) -> int:
        """Return the moment of the bound at the time `now`, for a job in this zone.

        >>> Bound.parse("P1D.UTC", "Asia/Tokyo").resolve(86_400_000_000 + 5, "Asia/Tokyo")
        0
        """
        if self.at is not None:
            return self.at
        own = zone_of(self.zone or zone)
        start = floor_moment(now, self.floor, self.zone or zone)
        if self.days:
            start = days_before(start, self.days, own)
        return start - self.hours * HOUR - self.minutes * MINUTE

    def __str__(self) -> str:
        return self.text


def floor_moment(now: int, floor: Floor, zone: str) -> int:
    """Return the start of the day, hour or minute of a wall clock in a zone.

    >>> floor_moment(HOUR + 5, "hour", "UTC") == HOUR
    True
    """
    own = zone_of(zone)
    local = micros_to_wall(now, own).replace(second=0, microsecond=0)
    if floor != "minute":
        local = local.replace(minute=0)
    if floor == "day":
        # Of a repeated midnight, the first.
        local = local.replace(hour=0, fold=0)
    return min(wall_to_micros(local, own), now)


def _parse_iso(text: str, iso: str) -> datetime:
    try:
        return datetime.fromisoformat(iso)
    except ValueError as error:
        raise _invalid_bound(
            text, f"{text!r} is not a valid date or time: {error}.", "Write a date of the calendar, such as 2020-01-31."
        ) from error


def _require_supported(text: str, micros: int) -> int:
    if not EARLIEST <= micros < LATEST:
        raise _invalid_bound(text, f"{text!r} is out of range.", "Use a year from 2 to 9997.")
    return micros


def _format_hint(text: str) -> str:
    if re.fullmatch(r"\d{8}", text):
        return f"Write {text[:4]}-{text[4:6]}-{text[6:]}."
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}", text):
        return f"Add the seconds: {text}:00."
    minutes = re.fullmatch(r"P(?:(\d+)D)?T(\d+)M", text)
    if minutes:
        return f"Add days and hours: P{minutes[1] or 0}DT0H{minutes[2]}M."
    hours = re.fullmatch(r"PT(\d+)H", text)
    if hours:
        return f"Add the days: P0DT{hours[1]}H."
    return "Write for example 2020-01-31, P1D or P0DT6H."


def _invalid_bound(text: object, fact: str, remedy: str) -> BoundInvalid:
    return BoundInvalid(fact, rule=_BOUND_RULE, remedy=remedy, text=text)
