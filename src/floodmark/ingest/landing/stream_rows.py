"""Rows on their way into a stream: what the stream must look like, its time column, and the keys of rows."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark._util.ddl import write_ddl
from floodmark._util.text import did_you_mean
from floodmark.errors import EventInvalid, JobInvalid, StreamUnfit, TableUnfit, UnknownStream
from floodmark.ingest.calendar.clock import days_before, zone_of
from floodmark.ingest.job.job import Drift, Job, Landing, unit_fields
from floodmark.ingest.job.source import EPOCH_UNITS, SqlSource, watermark_column
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.landing.fitting import RowConverter, RowFitter
from floodmark.ingest.planning.coverage import Coverage, UnitCoverage, complete_through
from floodmark.streams import Stream, StreamHome


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
        name = watermark_column(job.source)
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
                return pc.multiply_checked(column.cast(pa.int64()), self.scale).cast(INSTANT_TYPE)
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                return _to_microseconds(column, kind.tz).cast(INSTANT_TYPE)
            walls = _to_microseconds(column, None)
            return pc.assume_timezone(walls, self.zone, ambiguous="latest", nonexistent="latest").cast(INSTANT_TYPE)
        except pa.ArrowException as error:
            raise EventInvalid(
                f"The column {self.name!r} has a time that cannot be read: {error}.",
                rule="It says when a row is, from about 290,000 years before 1970 to as many after.",
                remedy="Correct it in the source, or leave the row out with `where`.",
                column=self.name,
            ) from error


@dataclass(frozen=True, slots=True)
class StreamRequirements:
    """What a job says of the stream that it lands in."""

    name: str
    job: str
    time: TimeColumn | None
    keys: tuple[str, ...]
    """For merging: the columns that name a row; none if rows are appended."""
    newest_by: str | None
    drift: Drift = "freeze"
    units: tuple[tuple[str, Any], ...] = ()
    """The fields of units that may become columns, and their types."""
    columns: tuple[tuple[str, str], ...] = ()
    """Which column of the rows a field is, if the source says so."""

    @classmethod
    def of(cls, job: Job) -> "StreamRequirements":
        """Return that of a job, or refuse one whose target is no stream, or asks of a stream what it cannot do."""
        target = job.target
        if not isinstance(target, Landing) or target.stream is None:
            raise JobInvalid(
                f"The target of the job {job.name!r} is no stream.",
                rule="What lands in a stream names it.",
                remedy='Write stream = "orders" in [target].',
                job=job.name,
            )
        if target.drift == "evolve":
            raise JobInvalid(
                f"The job {job.name!r} lands in a stream, and its drift is 'evolve'.",
                rule="The columns of a stream stay as they are: its readers have been told them.",
                remedy='Leave drift out, or write "rescue"; for other columns land in a stream of another name.',
                job=job.name,
            )
        merges = target.mode == "merge"
        renamed = dict(job.source.units) if isinstance(job.source, SqlSource) else {}
        return cls(
            target.stream,
            job.name,
            TimeColumn.of(job),
            target.keys,
            (target.newest_by or watermark_column(job.source)) if merges else None,
            target.drift,
            tuple(
                (name, _unit_column_type(unit.fields[name] for unit in job.listed_units)) for name in unit_fields(job)
            ),
            tuple(renamed.items()),
        )

    def find(self, home: StreamHome) -> Stream | None:
        """Return the stream, if there is one, or refuse one whose times this job cannot tell."""
        try:
            stream = home.stream(self.name)
        except UnknownStream:
            return None
        settings = stream.settings
        if settings.schema is None:
            raise self._unfit("has no schema", "Rows have columns, and so has a stream that they land in.")
        if len(settings.keys) != 1:
            keys = ", ".join(map(repr, settings.keys))
            raise self._unfit(f"has the time keys {keys}", "A job tells one time, and all of a stream's must be told.")
        column = settings.time_columns[settings.keys[0]]
        if self.time is not None and column is not None:
            if column != self.time.name:
                raise self._unfit(
                    f"has its times in the column {column!r}, and the job reads by {self.time.name!r}",
                    "The time that is told is that of the column by which the source is read.",
                )
            kind = settings.schema.field(column).type
            if not self.time.is_read_as(kind, settings.unit):
                raise self._unfit(
                    f"has its times in {column!r} as {kind} in {settings.unit}, read in the zone {self.time.zone}",
                    "Its readers take them for times of UTC.",
                    "Make the column a TIMESTAMP: what is read becomes one by itself.",
                )
        for name in self.needed:
            self._check_column(name, settings.schema)
        return stream

    def make(self, home: StreamHome, rows: Any, segments: int) -> Stream:
        """Return a new stream for rows of a schema. Fields of units that rows do not have become columns too."""
        schema = RowFitter(None, self.drift, required=self.needed).fit(self.with_instants(rows)).schema
        for name, kind in self.units:
            if dict(self.columns).get(name, name) not in schema.names and name not in schema.names:
                schema = schema.append(pa.field(name, kind))
        time = self.time
        is_time = time is not None and time.name in schema.names and schema.field(time.name).type == INSTANT_TYPE
        return home.create_stream(self.name, schema, segments, time.name if time is not None and is_time else None)

    def with_instants(self, rows: Any) -> Any:
        """Return a schema of rows, in which the times are moments, if they can be."""
        place = -1 if self.time is None else rows.get_field_index(self.time.name)
        if self.time is None or place < 0 or not self.time.is_time(rows.field(place).type):
            return rows
        return rows.set(place, pa.field(self.time.name, INSTANT_TYPE))

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which rows cannot be merged."""
        newest_by = () if self.newest_by is None or self.newest_by in self.keys else (self.newest_by,)
        return (*self.keys, *newest_by)

    def _check_column(self, name: str, schema: Any) -> None:
        if name not in schema.names:
            raise self._unfit(
                f"has no column {name!r}",
                "Merging needs the keys of a row, and what says which is newer.",
                did_you_mean(name, schema.names, otherwise="Read it too, or name another column in [target]."),
            )

    def _unfit(self, fact: str, rule: str, remedy: str = "") -> StreamUnfit:
        return StreamUnfit(
            f"The stream {self.name!r} {fact}.",
            rule=rule,
            remedy=remedy or "Land in a stream of another name: it is made as the rows need it.",
            stream=self.name,
            job=self.job,
        )


def _unit_column_type(values: Iterable[Any]) -> Any:
    """Return the type of a column for the values that a field of units has.

    >>> _unit_column_type(["a", 7]), _unit_column_type([1, None]), _unit_column_type([1, 2.5])
    (DataType(string), DataType(int64), DataType(double))
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string()


_REDUCE_AT_ROWS: Final = 500_000
"""So many rows are gathered before they are reduced to the newest of each key."""

_PLACE: Final = "\0place"


class StreamRowFitter:
    """Makes rows of a cell fit a stream: with its columns, in their order and of their types; or refuses them.

    Whether they fit is said by the types alone: what fits today does not fail tomorrow for a larger number. A column
    that rows lack is null, or has the value of the unit's field of that name.
    """

    def __init__(self, form: StreamRequirements, schema: Any, unit: Unit) -> None:
        """Fit rows of this unit to a stream of this schema."""
        self._form = form
        self._schema = schema
        constants = {
            name: _constant(value, schema.field(name).type)
            for name, value in unit.fields.items()
            if name in schema.names
        }
        self._fitting = RowFitter(schema, form.drift, constants, form.needed)
        self._known: dict[Any, RowConverter] = {}

    def __call__(self, batch: Any) -> Any:
        """Return the rows of a batch as the stream takes them."""
        try:
            known = self._known.get(batch.schema)
            if known is None:
                known = self._known[batch.schema] = self._fit(batch.schema)
            return known.apply(self._with_instants(batch))
        except TableUnfit as error:
            column = error.fields.get("column")
            raise StreamUnfit(
                f"The rows do not fit the stream {self._form.name!r}, here called the table: {error.fact}",
                rule=f"It has the columns {write_ddl(self._schema)}.",
                remedy=f"Cast {column or 'them'} where the rows come from or leave it out there, "
                "or land in a stream of another name.",
                stream=self._form.name,
                column=column,
            ) from error

    def _fit(self, rows: Any) -> RowConverter:
        fitted = self._fitting.fit(self._timed(rows))
        if fitted.added:
            name = fitted.added[0].name
            raise StreamUnfit(
                f"The stream {self._form.name!r} has no column {name!r}.",
                rule="What does not fit is kept there, and the columns of a stream stay as they are.",
                remedy='Write drift = "freeze", or land in a stream of another name.',
                stream=self._form.name,
                column=name,
            )
        return fitted

    def _timed(self, rows: Any) -> Any:
        """Return the schema of rows, whose times are moments where the stream has moments."""
        time = self._form.time
        has_moments = time is not None and time.name in self._schema.names and _is_moment(self._schema.field(time.name))
        return self._form.with_instants(rows) if has_moments else rows

    def _with_instants(self, batch: Any) -> Any:
        timed = self._timed(batch.schema)
        if timed is batch.schema or self._form.time is None:
            return batch
        place = timed.get_field_index(self._form.time.name)
        columns = batch.columns
        columns[place] = self._form.time.instants(columns[place])
        return pa.RecordBatch.from_arrays(columns, schema=timed)


def newest_rows(batches: Iterable[Any], form: StreamRequirements) -> Iterator[Any]:
    """Give the newest row of each key, in the order in which they came; of two that are as new, the later one.

    All keys are held in memory. A row whose `newest_by` is null is older than any other.
    """
    gathered: list[Any] = []
    rows, limit = 0, _REDUCE_AT_ROWS
    for batch in batches:
        for key in form.keys:
            if batch.column(key).null_count:
                raise EventInvalid(
                    f"A row has no value in the column {key!r}.",
                    rule="It is one of the keys, and a row without its key could never be found again.",
                    remedy="Leave such rows out with `where`, or name other keys.",
                    column=key,
                )
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            gathered = [_newest_of(pa.concat_tables(_to_table(gathered)), form)]
            rows = gathered[0].num_rows
            limit = rows + max(rows, _REDUCE_AT_ROWS)
    if gathered:
        reduced = _newest_of(pa.concat_tables(_to_table(gathered)), form)
        yield from reduced.to_batches(max_chunksize=65_536)


def row_keys(batch: Any, form: StreamRequirements) -> Any:
    """Return the key of each row: the value of its one key column, or several as JSON; None if rows have none.

    >>> form = StreamRequirements("orders", "load", None, ("id", "shop"), "at")
    >>> row_keys(pa.record_batch({"id": [7], "shop": ["north"]}), form).to_pylist()
    ['{"id":7,"shop":"north"}']
    """
    if not form.keys:
        return None
    if len(form.keys) == 1:
        return batch.column(form.keys[0])
    rows = batch.select(list(form.keys)).to_pylist()
    return pa.array([json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str) for row in rows])


def _to_table(some: list[Any]) -> list[Any]:
    return [one if isinstance(one, pa.Table) else pa.Table.from_batches([one]) for one in some]


def _newest_of(rows: Any, form: StreamRequirements) -> Any:
    placed = rows.append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    assert form.newest_by is not None
    # Nulls come at the end, whichever way it goes; so the newest come first.
    order = pc.sort_indices(
        placed.select([form.newest_by, _PLACE]), sort_keys=[(form.newest_by, "descending"), (_PLACE, "descending")]
    )
    # The order of rows counts for what is first, and only one thread keeps it.
    ordered = placed.select([*form.keys, _PLACE]).take(order)
    first = ordered.group_by(list(form.keys), use_threads=False).aggregate([(_PLACE, "first")])
    places = first.column(f"{_PLACE}_first")
    return rows.take(places.take(pc.sort_indices(places)))


def _is_moment(field: Any) -> bool:
    return bool(pa.types.is_timestamp(field.type) and field.type.tz is not None)


def _constant(value: Any, kind: Any) -> Any:
    """Return the value of a unit's field as a column of a type has it: others may have made it text, or a float."""
    if pa.types.is_string(kind) and value is not None:
        return str(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_number and pa.types.is_floating(kind) else value


INSTANT_TYPE: Final = pa.timestamp("us", "UTC")
"""The type of the time column of a stream that a job makes."""

_UTC: Final = ("UTC", "Etc/UTC")


def _to_microseconds(column: Any, zone: str | None) -> Any:
    # Below a microsecond there is nothing to be said; above what an int64 holds there must be.
    is_finer = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(pa.timestamp("us", zone), safe=not is_finer)


def final_through(job: Job, coverage: Coverage, now: int) -> int | None:
    """Return the time before which ordinary runs will read nothing any more; None if there is none yet.

    That is `complete_through`, and with a grace so many calendar days before what each unit has reached: what is read
    again and again is not over. Backfills, edits, units that are added and a start that is moved back may still bring
    something from before: it is late.

    >>> times = TimeWatermark("day", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"), grace_days=1)
    >>> job = Job("orders", "UTC", times)
    >>> days = 86_400_000_000
    >>> final_through(job, {"{}": UnitCoverage([Range(0, 5 * days)])}, 9 * days) == 4 * days
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
