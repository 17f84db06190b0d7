"""Where a moment lies in what a watermark column holds: the edges of ranges, in the source's own terms.

A column holds wall times, dates, numbers or texts; a range is of moments. Each value of a column has one moment, and a
larger value never an earlier one:

| watermark_type | the moment of a value |
|---|---|
| `timestamp` | when a clock in the source's zone shows it: the *later* time of two; that of the skip if never |
| `timestamptz` | itself |
| `date` | its midnight, as `timestamp` says |
| `epoch-*` | itself, so many seconds, milliseconds or microseconds after the epoch |
| `text` | the first wall time that is written so, by the pattern |

The edge of a moment is the smallest value whose moment is not before it. So ranges that touch share an edge: what one
reads up to, without it, the next reads from. No row is lost between them, and none is read twice. An hour that comes
twice is read when it is over.
"""

from datetime import date, datetime, time, timedelta
from itertools import pairwise
from typing import Final

from floodmark.errors import InvalidOption
from floodmark.ingest._calendar import EPOCH, MICROSECOND, later_wall, zone_of
from floodmark.ingest._source_spec import WatermarkType

Edge = datetime | date | int | str

EPOCH_UNITS: Final = {"epoch-seconds": 1_000_000, "epoch-millis": 1_000, "epoch-micros": 1}
"""How many microseconds a number counts."""
_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=800)

# Each is later than the one before by another part of a date, or by more hours than twelve.
_LADDER: Final = tuple(
    datetime.fromisoformat(text)
    for text in (
        "1999-12-31T23:59:59.999999",
        "2009-10-02T09:10:20.000001",
        "2010-09-01T21:10:20.000001",
        "2010-09-10T02:03:04.000001",
        "2010-10-02T01:59:59.000001",
        "2010-10-02T09:58:59.000001",
        "2010-10-02T11:08:09.000001",
        "2010-10-02T13:07:05.000001",
    )
)


def edge(micros: int, kind: WatermarkType, zone: str, pattern: str | None = None) -> Edge:
    """Return the smallest value of a column of this type whose moment is not before this one.

    >>> edge(1_500_000, "epoch-seconds", "UTC"), edge(1_500_000, "date", "UTC")
    (2, datetime.date(1970, 1, 2))
    >>> edge(5_400_000_000, "text", "Asia/Kolkata", "%Y-%m-%d %H")
    '1970-01-01 07'
    """
    if kind in EPOCH_UNITS:
        return -(-micros // EPOCH_UNITS[kind])
    if kind == "timestamptz":
        return EPOCH + timedelta(microseconds=micros)
    local = later_wall(micros, zone_of(zone))
    if kind == "date":
        return local.date() if local.time() == time.min else local.date() + _DAY
    return local if kind == "timestamp" else _text_edge(local, pattern or "")


def check_pattern(pattern: str) -> None:
    """Refuse a pattern whose texts do not sort as their times do.

    >>> check_pattern("%d.%m.%Y")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: Texts of the pattern '%d.%m.%Y' do not sort as their times do. ... [invalid-option]
    """
    texts = [one.strftime(pattern) for one in _LADDER]
    if any(one > other for one, other in pairwise(texts)) or texts[0] >= texts[-1]:
        raise _refused(pattern, f"Texts of the pattern {pattern!r} do not sort as their times do.")
    if {"%z", "%Z"} & {pattern[at : at + 2] for at in range(len(pattern))}:
        raise _refused(pattern, f"The pattern {pattern!r} has a zone in it.")


def _text_edge(local: datetime, pattern: str) -> str:
    check_pattern(pattern)
    text = local.strftime(pattern)
    if text != (local - MICROSECOND).strftime(pattern):
        return text
    # Not the first that is written so: the next text is the edge.
    low, step = local, MICROSECOND
    while (local + step).strftime(pattern) == text:
        low, step = local + step, step * 2
        if step > _LONGEST:
            raise _refused(pattern, f"Texts of the pattern {pattern!r} do not change for years.")
    high = local + step
    while high - low > MICROSECOND:
        middle = low + (high - low) // 2
        low, high = (middle, high) if middle.strftime(pattern) == text else (low, middle)
    return high.strftime(pattern)


def _refused(pattern: str, fact: str) -> InvalidOption:
    return InvalidOption(
        fact,
        rule="A watermark that is a text is compared as a text: year, month, day, hour and so on, in full digits.",
        remedy="Read a query whose watermark is written so, and name its pattern, such as '%Y-%m-%dT%H:%M:%S'.",
        option="pattern",
        pattern=pattern,
    )
