"""How the ends of a range are written into a request, and what may not be written so.

A range is asked for exactly or not at all: an end that a format cannot say, as 10:37 where only the day is written,
would be asked for as another one, and what lies between would be lost.
"""

from datetime import UTC, datetime, timedelta

from floodmark.errors import RestRequestInvalid
from floodmark.ingest._calendar import EPOCH, MICROSECOND, moment, shown, zone_of
from floodmark.ingest._edges import EPOCH_UNITS


def written_time(micros: int, time_format: str, zone: str) -> str:
    """Return a moment as `time_format` writes it in a zone.

    >>> written_time(0, "iso", "Asia/Kolkata"), written_time(1_000_000, "epoch-millis", "UTC")
    ('1970-01-01T05:30:00+05:30', '1000')
    >>> written_time(0, "%d.%m.%Y", "UTC")
    '01.01.1970'
    >>> written_time(3_600_000_000, "%d.%m.%Y", "UTC")
    Traceback (most recent call last):
    floodmark.errors.RestRequestInvalid: '%d.%m.%Y' writes 1970-01-01T01:00:00+00:00 as 01.01.1970. ...
    """
    if time_format == "iso":
        return shown(micros, zone_of(zone))
    if time_format in EPOCH_UNITS:
        whole, rest = divmod(micros, EPOCH_UNITS[time_format])
        if rest:
            raise _inexact(micros, time_format, zone, str(whole))
        return str(whole)
    text = (EPOCH + timedelta(microseconds=micros)).astimezone(zone_of(zone)).strftime(time_format)
    if not _says(text, micros, time_format, zone):
        raise _inexact(micros, time_format, zone, text)
    return text


def _says(text: str, micros: int, time_format: str, zone: str) -> bool:
    try:
        read = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is added below
    except ValueError:
        return True  # a directive that cannot be read back, such as %s: its author knows what it says
    if read.tzinfo is not None:
        return (read.astimezone(UTC) - EPOCH) // MICROSECOND == micros
    return moment(read, zone_of(zone)) == micros


def _inexact(micros: int, time_format: str, zone: str, text: str) -> RestRequestInvalid:
    return RestRequestInvalid(
        f"{time_format!r} writes {shown(micros, zone_of(zone))} as {text}.",
        rule="Both ends of a range are asked for exactly; else rows between are lost or read twice.",
        remedy='Let time_format say all of it, for example "iso", or let the job end at whole days, as to = "P0D".',
        time_format=time_format,
        time=micros,
    )
