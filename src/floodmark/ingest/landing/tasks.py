"""The values that a table landing and its tasks exchange: scopes, destinations, staged rows and live files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.delta import StagedFile
from floodmark.errors import OutOfScope, TableUnfit
from floodmark.ingest.calendar.clock import format_moment, zone_of
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.job import Drift
from floodmark.ingest.job.source import WatermarkType, first_value_at
from floodmark.ingest.planning.plan import PlannedRange


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows of a table that belong to a cell: their time is in its range, and they have the values of its unit.

    >>> day = Scope("at", Range(0, 86_400_000_000), "UTC", {"shop": "north"})
    >>> rows = pa.table({"at": pa.array([5, 90_000_000_000], pa.timestamp("us", "UTC")), "shop": ["north", "north"]})
    >>> day.contains(rows).to_pylist()
    [True, False]
    """

    column: str
    range: Range
    zone: str
    """The time zone of timestamps without a zone, and of dates."""
    unit: Mapping[str, Any]
    """The value of each unit column."""
    epoch_type: WatermarkType | None = None
    """What an integer in the column counts: epoch-seconds, epoch-millis or epoch-micros."""
    pattern: str | None = None
    """The strftime format of texts in the column; None for ISO 8601."""

    def contains(self, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
        """Return for each row whether it is in the scope. A row without a time is not."""
        moments, low, high = self._terms(rows.column(self.column))
        is_inside = pc.and_(pc.greater_equal(moments, low), pc.less(moments, high))
        for name, value in self.unit.items():
            column = rows.column(name)
            same = pc.is_null(column) if value is None else pc.equal(column, self._constant(name, value, column.type))
            is_inside = pc.and_(is_inside, pc.fill_null(same, False))
        return pc.fill_null(is_inside, False)

    def check(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Refuse rows outside the scope: no later run would replace them.

        Unit columns that the rows lack are not checked; they are filled in later.
        """
        present = {name: value for name, value in self.unit.items() if name in rows.schema.names}
        is_inside = replace(self, unit=present).contains(rows)
        if pc.all(is_inside, min_count=0).as_py():
            return
        outside = rows.filter(pc.invert(is_inside)).slice(0, 1).select([self.column, *present])
        raise OutOfScope(
            f"A row was read for {self._shown()}, and has {outside.to_pylist()[0]}.",
            rule="A cell is replaced as a whole, so each row read for it lies in its range and belongs to its unit.",
            remedy="Set range_column in [target] to the column the source is read by, correct the query, or write "
            'mode = "merge" with keys.',
            column=self.column,
        )

    def may_contain(self, files: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for each file in a table of `DeltaCommits.files` whether it may have rows in the scope."""
        may_be: Any = pa.repeat(pa.scalar(True), files.num_rows)
        if f"min.{self.column}" in files.column_names:
            lowest, low, high = self._terms(self._bound(files, "min", -_FAR))
            highest, _, _ = self._terms(self._bound(files, "max", _FAR))
            begins_before, ends_after = pc.less(lowest, high), pc.greater_equal(highest, low)
            may_be = pc.and_(pc.fill_null(begins_before, True), pc.fill_null(ends_after, True))
        for name, value in self.unit.items():
            may_be = pc.and_(may_be, self._may_have_unit_value(files, name, value))
        return may_be

    def _may_have_unit_value(self, files: pa.Table, name: str, value: Any) -> Any:
        if value is None:
            null_count = f"null_count.{name}"
            if null_count in files.column_names:
                return pc.fill_null(pc.greater(files.column(null_count), 0), True)
        elif f"partition.{name}" in files.column_names:
            column = files.column(f"partition.{name}")
            return pc.fill_null(pc.equal(column, self._constant(name, value, column.type)), False)
        elif f"min.{name}" in files.column_names:
            low, high = files.column(f"min.{name}"), files.column(f"max.{name}")
            constant = self._constant(name, value, low.type)
            at_least = pc.fill_null(pc.less_equal(low, constant), True)
            return pc.and_(at_least, pc.fill_null(pc.greater_equal(high, constant), True))
        return pa.repeat(pa.scalar(True), files.num_rows)

    def _bound(self, files: pa.Table, which: str, far: timedelta) -> Any:
        """Return a bound of the times in each file. Of ISO texts only the days sort by time, so `far` is added."""
        bound = files.column(f"{which}.{self.column}")
        if self.pattern is not None or not is_text(bound.type):
            return bound
        return pc.add(
            self._parsed(pc.utf8_slice_codeunits(_plain_texts(bound), 0, _DAY)), pa.scalar(far, pa.duration("us"))
        )

    def _terms(self, column: Any) -> tuple[Any, Any, Any]:
        """Return a column and both ends of the range as values that can be compared."""
        if is_text(column.type):
            column = _plain_texts(column)
            if self.pattern is not None:
                return column, *self._ends("text")
            column = self._parsed(column)
        kind = column.type
        if pa.types.is_timestamp(kind):
            ends = self._ends("timestamp" if kind.tz is None else "timestamptz")
            return column, *(pa.scalar(end, pa.timestamp("us", kind.tz)) for end in ends)
        if pa.types.is_date32(kind):
            return column, *self._ends("date")
        if pa.types.is_integer(kind) and self.epoch_type is not None:
            return column, *self._ends(self.epoch_type)
        raise TableUnfit(
            f"The column {self.column} has the type {kind}, which is no time.",
            rule="range_column has timestamps or dates, or integers if the source names their unit.",
            remedy='Set range_column in [target] to a time column, or write mode = "merge" with keys.',
            column=self.column,
        )

    def _ends(self, kind: WatermarkType) -> tuple[Any, Any]:
        return first_value_at(self.range.lo, kind, self.zone, self.pattern), first_value_at(
            self.range.hi, kind, self.zone, self.pattern
        )

    def _parsed(self, column: Any) -> Any:
        """Return texts as timestamps: either all of them have a UTC offset, or none has."""
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return pc.cast(column, kind)
            except pa.ArrowInvalid:
                continue
        raise TableUnfit(
            f"The column {self.column} has texts that are no times, such as {_first_invalid(column)!r}.",
            rule="Times as text are in ISO 8601, and either all of them have a UTC offset or none has.",
            remedy="Convert the column in the source, or set range_column in [target] to another column, or "
            'write mode = "merge" with keys.',
            column=self.column,
        )

    def _constant(self, name: str, value: Any, kind: pa.DataType) -> pa.Scalar:
        try:
            return pa.scalar(value, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            pass
        try:
            return pa.scalar(str(value)).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TableUnfit(
                f"The unit has {name} = {value!r}, and the column has the type {kind}.",
                rule="The rows of a unit are those with its value in the unit's column.",
                remedy=f"Write the unit's {name} as a value of the type {kind}.",
                column=name,
            ) from error

    def _shown(self) -> str:
        zone = zone_of(self.zone)
        ends = [format_moment(end, zone) for end in self.range]
        unit = "".join(f", {name} = {value!r}" for name, value in self.unit.items())
        return f"{self.column} from {ends[0]} to {ends[1]}{unit}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows are written, and what they must fulfil. It is sent to tasks."""

    table: Path
    directory: Path
    """A directory inside that of the table; it may not exist yet."""
    schema: pa.Schema | None
    """The schema of the table; None if the table is still to be created."""
    drift: Drift
    constants: Mapping[str, object]
    """The values of the unit's columns, for rows that lack these columns."""
    keys: tuple[str, ...] = ()
    """Columns that must not be null."""
    scope: Scope | None = None
    """If set, rows outside it are refused."""
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Files that were written and are not committed to the table yet."""

    files: tuple[StagedFile, ...] = ()
    schema: pa.Schema | None = None
    """The columns of the files; None if there are no rows and the columns are unknown."""

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a table, with its partition values, which the file itself does not contain."""

    table: Path
    path: str
    """Relative to the table's directory."""
    rows: int | None
    partition: Mapping[str, Any]

    @property
    def full_path(self) -> str:
        """The path of the file, including the table's directory."""
        return str(self.table / self.path)

    def batches(self, schema: pa.Schema, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield its rows with the columns of the table; columns that the file lacks are null."""
        selected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with pq.ParquetFile(self.full_path) as file:
            for batch in file.iter_batches(batch_size=1 << 16, columns=selected.names):
                yield _with_table_columns(batch, selected, self.partition)

    def count_rows(self, scope: Scope, schema: pa.Schema) -> tuple[int, int]:
        """Return how many of its rows are in a scope, and how many it has in total."""
        inside = rows = 0
        for batch in self.batches(schema, [scope.column, *(name for name in scope.unit if name != scope.column)]):
            inside += pc.sum(scope.contains(batch)).as_py()
            rows += batch.num_rows
        return inside, rows

    def rows_outside(self, scope: Scope, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield its rows that are not in a scope."""
        for batch in self.batches(schema):
            yield batch.filter(pc.invert(scope.contains(batch)))


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """New rows to merge into a table, and the files of the table that may have the same keys."""

    new: Sequence[LiveFile]
    live: Sequence[LiveFile]
    keys: tuple[str, ...]
    newest_by: str


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The files that a merge adds to a table, and those that it removes."""

    staged: StagedRows
    removed: tuple[str, ...]
    """Paths of live files; their rows that stay are among the staged ones."""


class TableTasks(Protocol):
    """Reads and writes rows. Each call returns when everything is written; if it raises, its files are not used."""

    def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
        """Read a planned range from its source and write the rows."""
        ...

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
        """Write the rows of files that are not in a scope to new files."""
        ...

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        """Write the newest row of each key, over the new rows and the live files."""
        ...


_DAY: Final = len("1970-01-01")
_FAR: Final = timedelta(days=3)
"""Larger than the distance of any time to the day in its text, whatever the UTC offsets of the text and the zone."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain_texts(texts: Any) -> Any:
    # Arrow can neither sort, cast nor slice string views.
    return texts.cast(pa.string()) if pa.types.is_string_view(texts.type) else texts


def _first_invalid(column: Any) -> object:
    for value in column.to_pylist():
        if value is not None and not _is_iso_time(value):
            return value
    return None


def _is_iso_time(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def live_files(table: Path, files: pa.Table) -> list[LiveFile]:
    """Return the files in a table of `DeltaCommits.files`."""
    partition_by = [name.removeprefix("partition.") for name in files.column_names if name.startswith("partition.")]
    return [
        LiveFile(table, file["path"], file["num_records"], {name: file[f"partition.{name}"] for name in partition_by})
        for file in files.to_pylist()
    ]


def may_share_keys(files: pa.Table, new: Sequence[StagedFile], keys: Sequence[str]) -> Any:
    """Return for each file of a table whether it may have keys of the new files, judged by the statistics of both."""
    statistics = [json.loads(file.stats) for file in new]
    bounds = {}
    for name in keys:
        lows, highs = ([stats[bound].get(name) for stats in statistics] for bound in ("minValues", "maxValues"))
        if all(value is not None for value in (*lows, *highs)):
            bounds[name] = min(lows), max(highs)
    return may_overlap_bounds(files, bounds)


def may_overlap_bounds(files: pa.Table, bounds: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return for each file of a table whether it may have rows with values within the bounds of each column.

    The statistics of a file may have times truncated to milliseconds, so lower bounds must be whole milliseconds.
    """
    may_overlap: Any = pa.repeat(pa.scalar(True), files.num_rows)
    for name, ends in bounds.items():
        if f"partition.{name}" in files.column_names:
            low = high = files.column(f"partition.{name}")
        elif f"min.{name}" in files.column_names:
            low, high = files.column(f"min.{name}"), files.column(f"max.{name}")
        else:
            continue
        first, last = (pa.array([value]).cast(low.type)[0] for value in ends)
        may_overlap = pc.and_(may_overlap, pc.fill_null(pc.less_equal(low, last), True))
        may_overlap = pc.and_(may_overlap, pc.fill_null(pc.greater_equal(high, first), True))
    return may_overlap


def _with_table_columns(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, Any]) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(_repeated(partition.get(field.name), field.type, batch.num_rows))
    return pa.record_batch(columns, schema=schema)


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    # The log of a table may have partition values as texts.
    return pa.repeat(pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind), rows)
