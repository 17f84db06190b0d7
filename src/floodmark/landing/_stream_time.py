"""The time of a stream that a job lands in: which column has it, and how far it has come."""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import EventInvalid
from floodmark.ingest import Coverage, Job, SqlSource, UnitCoverage, complete_through
from floodmark.ingest._calendar import days_before, zone_of
from floodmark.ingest._edges import EPOCH_UNITS
from floodmark.ingest._fit import watermark_of

INSTANT: Final = pa.timestamp("us", "UTC")
"""The type of the time column of a stream that a job makes."""

_UTC: Final = ("UTC", "Etc/UTC")


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column that places rows in time, and how it is to be read.

    >>> TimeColumn("day", "Asia/Tokyo").instants(pa.array([1], pa.date32())).to_pylist()[0].isoformat()
    '1970-01-01T15:00:00+00:00'
    """

    name: str
    zone: str
    """Where the clocks are that show wall times and dates."""
    scale: int | None = None
    """How many microseconds a whole number counts."""

    @classmethod
    def of(cls, job: Job) -> "TimeColumn | None":
        """Return that of a job's rows; None if only the ranges that are asked for say when they are."""
        name = watermark_of(job.source)
        if name is None:
            return None
        scale = EPOCH_UNITS.get(job.source.watermark_type) if isinstance(job.source, SqlSource) else None
        return cls(name, job.source.zone or job.zone, scale)

    def is_time(self, kind: Any) -> bool:
        """Tell whether values of a type can be read as moments."""
        if pa.types.is_integer(kind):
            return self.scale is not None
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))

    def is_read_as(self, kind: Any, unit: str) -> bool:
        """Tell whether whoever reads a stream with this column, in its unit, takes its values for the same moments."""
        if pa.types.is_integer(kind):
            return self.scale is not None and {1_000_000: "s", 1_000: "ms", 1: "us"}[self.scale] == unit
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return True
        return self.is_time(kind) and self.zone in _UTC

    def instants(self, column: Any) -> Any:
        """Return moments. An hour that the clocks show twice is the later one, as it is where ranges are read.

        A wall time that they never show is the moment when they are put forward: that is in the range it is read in.
        """
        kind = column.type
        try:
            if pa.types.is_integer(kind):
                return pc.multiply_checked(column.cast(pa.int64()), self.scale).cast(INSTANT)
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                return _micros(column, kind.tz).cast(INSTANT)
            walls = _micros(column, None)
            return pc.assume_timezone(walls, self.zone, ambiguous="latest", nonexistent="latest").cast(INSTANT)
        except pa.ArrowException as error:
            raise EventInvalid(
                f"The column {self.name!r} has a time that cannot be read: {error}.",
                rule="It says when a row is, from about 290,000 years before 1970 to as many after.",
                remedy="Correct it in the source, or leave the row out with `where`.",
                column=self.name,
            ) from error


def _micros(column: Any, zone: str | None) -> Any:
    # Below a microsecond there is nothing to be said; above what an int64 holds there must be.
    is_finer = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(pa.timestamp("us", zone), safe=not is_finer)


def settled_through(job: Job, coverage: Coverage, now: int) -> int | None:
    """Return the time before which ordinary runs will read nothing any more; None if there is none yet.

    That is `complete_through`, and with a grace so many calendar days before what each unit has reached: what is read
    again and again is not over. Backfills, edits, units that are added and a start that is moved back may still bring
    something from before: it is late.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"), grace_days=1)
    >>> job = Job("orders", "UTC", times)
    >>> days = 86_400_000_000
    >>> settled_through(job, {"{}": UnitCoverage([Range(0, 5 * days)])}, 9 * days) == 4 * days
    True
    """
    start = job.time.from_.resolve(now, job.zone)
    through = complete_through(job, coverage, now)
    if through is None:
        return None
    if job.time.grace_days:
        zone = zone_of(job.zone)
        for unit in job.listed_units:
            frontier = coverage.get(unit.key, UnitCoverage()).frontier
            if frontier is not None:
                through = min(through, days_before(frontier, job.time.grace_days, zone))
    return through if through > start else None
