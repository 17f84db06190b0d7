"""What a stream must look like so that the rows of a job fit into it; if it is missing, it is made so."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark._util.text import did_you_mean
from floodmark.errors import JobInvalid, StreamUnfit, UnknownStream
from floodmark.ingest import Job, Landing, SqlSource
from floodmark.ingest._fit import unit_fields, watermark_of
from floodmark.ingest._target_spec import Drift
from floodmark.landing._fit import Fitting
from floodmark.landing._stream_time import INSTANT, TimeColumn
from floodmark.streams import Stream, StreamHome


@dataclass(frozen=True, slots=True)
class StreamForm:
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
    def of(cls, job: Job) -> "StreamForm":
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
            (target.newest_by or watermark_of(job.source)) if merges else None,
            target.drift,
            tuple((name, _type_of(unit.fields[name] for unit in job.listed_units)) for name in unit_fields(job)),
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
        schema = Fitting(None, self.drift, required=self.needed).fit(self.with_instants(rows)).schema
        for name, kind in self.units:
            if dict(self.columns).get(name, name) not in schema.names and name not in schema.names:
                schema = schema.append(pa.field(name, kind))
        time = self.time
        is_time = time is not None and time.name in schema.names and schema.field(time.name).type == INSTANT
        return home.create_stream(self.name, schema, segments, time.name if time is not None and is_time else None)

    def with_instants(self, rows: Any) -> Any:
        """Return a schema of rows, in which the times are moments, if they can be."""
        place = -1 if self.time is None else rows.get_field_index(self.time.name)
        if self.time is None or place < 0 or not self.time.is_time(rows.field(place).type):
            return rows
        return rows.set(place, pa.field(self.time.name, INSTANT))

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


def _type_of(values: Iterable[Any]) -> Any:
    """Return the type of a column for the values that a field of units has.

    >>> _type_of(["a", 7]), _type_of([1, None]), _type_of([1, 2.5])
    (DataType(string), DataType(int64), DataType(double))
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string()
