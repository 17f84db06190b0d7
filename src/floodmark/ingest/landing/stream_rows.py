"""How a job's rows fit a stream: what the job requires of the stream, its time column, and the keys of rows."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark._util.ddl import write_ddl
from floodmark._util.text import did_you_mean
from floodmark.errors import EventInvalid, JobInvalid, StreamUnfit, TableUnfit, UnknownStream
from floodmark.ingest.job.job import Drift, Job, Landing, unit_fields
from floodmark.ingest.job.source import EPOCH_UNITS, SqlSource, watermark_column
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.landing.fitting import RowConverter, RowFitter
from floodmark.streams import Stream, StreamHome


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column with the event time of rows, and how its values are read.

    >>> TimeColumn("day", "Asia/Tokyo").instants(pa.array([1], pa.date32())).to_pylist()[0].isoformat()
    '1970-01-01T15:00:00+00:00'
    """

    name: str
    zone: str
    """The time zone of timestamps without a zone, and of dates."""
    scale: int | None = None
    """How many microseconds an integer value counts; None if integers are not times."""

    @classmethod
    def of(cls, job: Job) -> "TimeColumn | None":
        """Return the time column of a job's rows; None if the source names no watermark column."""
        name = watermark_column(job.source)
        if name is None:
            return None
        scale = EPOCH_UNITS.get(job.source.watermark_type) if isinstance(job.source, SqlSource) else None
        return cls(name, job.source.zone or job.zone, scale)

    def is_time(self, kind: Any) -> bool:
        """Return whether values of a type can be read as moments."""
        if pa.types.is_integer(kind):
            return self.scale is not None
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))

    def is_read_as(self, kind: Any, unit: str) -> bool:
        """Return whether readers of a stream with this type and unit see the same moments as this job.

        Readers take timestamps without a zone, and dates, as UTC.
        """
        if pa.types.is_integer(kind):
            return self.scale is not None and {1_000_000: "s", 1_000: "ms", 1: "us"}[self.scale] == unit
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return True
        return self.is_time(kind) and self.zone in _UTC

    def instants(self, column: Any) -> Any:
        """Return the column's values as moments in UTC.

        A wall time that occurs twice is the later one, and a wall time skipped by daylight saving is the moment of the
        change: either way the moment lies in the range in which the row was read.
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
                rule="Event times lie within about 290,000 years of 1970.",
                remedy="Correct the value in the source, or exclude the row with `where` in [source].",
                column=self.name,
            ) from error


@dataclass(frozen=True, slots=True)
class StreamRequirements:
    """What a job requires of the stream in which it lands."""

    name: str
    job: str
    time: TimeColumn | None
    keys: tuple[str, ...]
    """For merging: the columns that identify a row; empty if rows are appended."""
    newest_by: str | None
    drift: Drift = "freeze"
    units: tuple[tuple[str, Any], ...] = ()
    """The fields of units that may become columns, and their types."""
    columns: tuple[tuple[str, str], ...] = ()
    """Pairs of a unit field and the column of the rows that holds it, where the source maps them."""

    @classmethod
    def of(cls, job: Job) -> "StreamRequirements":
        """Return the requirements of a job; refuse a target that is no stream, and a drift no stream supports."""
        target = job.target
        if not isinstance(target, Landing) or target.stream is None:
            raise JobInvalid(
                f"The target of the job {job.name!r} is no stream.",
                rule="A job that lands in a stream names it in [target].",
                remedy='Write stream = "orders" in [target], with the name of the stream.',
                job=job.name,
            )
        if target.drift == "evolve":
            raise JobInvalid(
                f"The job {job.name!r} lands in a stream, and its drift is 'evolve'.",
                rule="The columns of a stream never change.",
                remedy='Leave drift out or write drift = "rescue"; to land other columns, use another stream.',
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
        """Return the stream, or None if it does not exist; refuse one that this job cannot write marks for."""
        try:
            stream = home.stream(self.name)
        except UnknownStream:
            return None
        settings = stream.settings
        if settings.schema is None:
            raise self._unfit("has no schema", "A job lands only in a stream with a schema.")
        if len(settings.keys) != 1:
            keys = ", ".join(map(repr, settings.keys))
            raise self._unfit(
                f"has the time keys {keys}", "A job writes marks for one time key, so the stream must have only one."
            )
        column = settings.time_columns[settings.keys[0]]
        if self.time is not None and column is not None:
            if column != self.time.name:
                raise self._unfit(
                    f"has its times in the column {column!r}, and the job reads by {self.time.name!r}",
                    "The time column of the stream is the watermark column of the source.",
                )
            kind = settings.schema.field(column).type
            if not self.time.is_read_as(kind, settings.unit):
                raise self._unfit(
                    f"has its times in {column!r} as {kind} in {settings.unit}, read in the zone {self.time.zone}",
                    "Readers of a stream take times without a zone as UTC.",
                    "Create the stream with that column as TIMESTAMP: the job converts its values by itself.",
                )
        for name in self.required_columns:
            self._check_column(name, settings.schema)
        return stream

    def create(self, home: StreamHome, rows: Any, segments: int) -> Stream:
        """Create the stream for rows of a schema. Fields of units that the rows lack become columns too."""
        schema = RowFitter(None, self.drift, required=self.required_columns).fit(self.with_instants(rows)).schema
        for name, kind in self.units:
            if dict(self.columns).get(name, name) not in schema.names and name not in schema.names:
                schema = schema.append(pa.field(name, kind))
        time = self.time
        is_time = time is not None and time.name in schema.names and schema.field(time.name).type == INSTANT_TYPE
        return home.create_stream(self.name, schema, segments, time.name if time is not None and is_time else None)

    def with_instants(self, rows: Any) -> Any:
        """Return a schema of rows with the time column as moments in UTC, if its type can be read as such."""
        index = -1 if self.time is None else rows.get_field_index(self.time.name)
        if self.time is None or index < 0 or not self.time.is_time(rows.field(index).type):
            return rows
        return rows.set(index, pa.field(self.time.name, INSTANT_TYPE))

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The columns without which rows cannot be merged."""
        newest_by = () if self.newest_by is None or self.newest_by in self.keys else (self.newest_by,)
        return (*self.keys, *newest_by)

    def _check_column(self, name: str, schema: Any) -> None:
        if name not in schema.names:
            raise self._unfit(
                f"has no column {name!r}",
                "A job that merges needs the key columns and the newest_by column.",
                did_you_mean(name, schema.names, otherwise="Name one of its columns in keys or newest_by of [target]."),
            )

    def _unfit(self, fact: str, rule: str, remedy: str = "") -> StreamUnfit:
        return StreamUnfit(
            f"The stream {self.name!r} {fact}.",
            rule=rule,
            remedy=remedy or "Name a new stream in [target]: the job creates it with the columns of its rows.",
            stream=self.name,
            job=self.job,
        )


def _unit_column_type(values: Iterable[Any]) -> Any:
    """Return the column type that holds all values of a unit field.

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
"""This many rows are gathered before they are reduced to the newest row of each key."""

_ROW_NUMBER: Final = "\0row"


class StreamRowFitter:
    """Converts rows of a cell to the columns of a stream, in their order and with their types, or refuses them.

    The types alone decide whether rows fit, never the values. A column that the rows lack is null, or has the value of
    the unit's field of that name.
    """

    def __init__(self, requirements: StreamRequirements, schema: Any, unit: Unit) -> None:
        """Fit rows of this unit to a stream of this schema."""
        self._requirements = requirements
        self._schema = schema
        constants = {
            name: _constant(value, schema.field(name).type)
            for name, value in unit.fields.items()
            if name in schema.names
        }
        self._fitter = RowFitter(schema, requirements.drift, constants, requirements.required_columns)
        self._converters: dict[Any, RowConverter] = {}

    def __call__(self, batch: Any) -> Any:
        """Return the rows of a batch with the columns of the stream."""
        try:
            converter = self._converters.get(batch.schema)
            if converter is None:
                converter = self._converters[batch.schema] = self._converter(batch.schema)
            return converter.apply(self._with_instants(batch))
        except TableUnfit as error:
            column = error.fields.get("column")
            raise StreamUnfit(
                f"The rows do not fit the stream {self._requirements.name!r}, here called the table: {error.fact}",
                rule=f"The stream has the columns {write_ddl(self._schema)}.",
                remedy=f"Cast or leave out {column or 'the columns that differ'} in the source, or land in another "
                "stream.",
                stream=self._requirements.name,
                column=column,
            ) from error

    def _converter(self, rows: Any) -> RowConverter:
        converter = self._fitter.fit(self._timed_schema(rows))
        if converter.added:
            name = converter.added[0].name
            raise StreamUnfit(
                f"The stream {self._requirements.name!r} has no column {name!r}.",
                rule='With drift = "rescue", values that fit no column need that column, and a stream gets none later.',
                remedy='Write drift = "freeze" in [target], or land in a new stream.',
                stream=self._requirements.name,
                column=name,
            )
        return converter

    def _timed_schema(self, rows: Any) -> Any:
        """Return the schema of rows, with the time column as moments if the stream has it as moments."""
        time = self._requirements.time
        has_moments = time is not None and time.name in self._schema.names and _is_moment(self._schema.field(time.name))
        return self._requirements.with_instants(rows) if has_moments else rows

    def _with_instants(self, batch: Any) -> Any:
        timed, time = self._timed_schema(batch.schema), self._requirements.time
        if timed is batch.schema or time is None:
            return batch
        index = timed.get_field_index(time.name)
        columns = batch.columns
        columns[index] = time.instants(columns[index])
        return pa.RecordBatch.from_arrays(columns, schema=timed)


def newest_rows(batches: Iterable[Any], requirements: StreamRequirements) -> Iterator[Any]:
    """Yield the newest row of each key, in the order of the input; of two equally new rows, the later one.

    All keys are held in memory. A row whose `newest_by` is null is older than any other.
    """
    gathered: list[Any] = []
    rows, limit = 0, _REDUCE_AT_ROWS
    for batch in batches:
        for key in requirements.keys:
            if batch.column(key).null_count:
                raise EventInvalid(
                    f"A row has no value in the column {key!r}.",
                    rule="A key column is never null in rows that are merged.",
                    remedy="Exclude such rows with `where` in [source], or name other keys in [target].",
                    column=key,
                )
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            gathered = [_newest_of(pa.concat_tables(_to_tables(gathered)), requirements)]
            rows = gathered[0].num_rows
            limit = rows + max(rows, _REDUCE_AT_ROWS)
    if gathered:
        reduced = _newest_of(pa.concat_tables(_to_tables(gathered)), requirements)
        yield from reduced.to_batches(max_chunksize=65_536)


def row_keys(batch: Any, requirements: StreamRequirements) -> Any:
    """Return the key of each row: its one key column, or several columns as JSON; None for rows without keys.

    >>> requirements = StreamRequirements("orders", "load", None, ("id", "shop"), "at")
    >>> row_keys(pa.record_batch({"id": [7], "shop": ["north"]}), requirements).to_pylist()
    ['{"id":7,"shop":"north"}']
    """
    keys = requirements.keys
    if not keys:
        return None
    if len(keys) == 1:
        return batch.column(keys[0])
    rows = batch.select(list(keys)).to_pylist()
    return pa.array([json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str) for row in rows])


def _to_tables(parts: list[Any]) -> list[Any]:
    return [part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in parts]


def _newest_of(rows: Any, requirements: StreamRequirements) -> Any:
    numbered = rows.append_column(_ROW_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    newest_by = requirements.newest_by
    assert newest_by is not None
    # Newest first; Arrow sorts nulls to the end in either direction.
    order = pc.sort_indices(
        numbered.select([newest_by, _ROW_NUMBER]),
        sort_keys=[(newest_by, "descending"), (_ROW_NUMBER, "descending")],
    )
    # "first" depends on the order of rows, which only a single thread keeps.
    ordered = numbered.select([*requirements.keys, _ROW_NUMBER]).take(order)
    first = ordered.group_by(list(requirements.keys), use_threads=False).aggregate([(_ROW_NUMBER, "first")])
    numbers = first.column(f"{_ROW_NUMBER}_first")
    return rows.take(numbers.take(pc.sort_indices(numbers)))


def _is_moment(field: Any) -> bool:
    return bool(pa.types.is_timestamp(field.type) and field.type.tz is not None)


def _constant(value: Any, kind: Any) -> Any:
    """Return the value of a unit's field as the column's type: other units may have made the column text or float."""
    if pa.types.is_string(kind) and value is not None:
        return str(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_number and pa.types.is_floating(kind) else value


INSTANT_TYPE: Final = pa.timestamp("us", "UTC")
"""The type of the time column of a stream that a job creates."""

_UTC: Final = ("UTC", "Etc/UTC")


def _to_microseconds(column: Any, zone: str | None) -> Any:
    # Truncating nanoseconds is fine; overflowing the int64 of microseconds must raise.
    is_finer = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(pa.timestamp("us", zone), safe=not is_finer)
