"""What a landing and its tasks exchange: destinations, scopes (rows a range stands for), live and staged files."""

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
    """Rows with a moment in a range, and with the values of a unit.

    >>> day = Scope("at", Range(0, 86_400_000_000), "UTC", {"shop": "north"})
    >>> rows = pa.table({"at": pa.array([5, 90_000_000_000], pa.timestamp("us", "UTC")), "shop": ["north", "north"]})
    >>> day.holds(rows).to_pylist()
    [True, False]
    """

    column: str
    range: Range
    zone: str
    """In which wall times count."""
    unit: Mapping[str, Any]
    """Columns, and the value that all of its rows have there."""
    numbers: WatermarkType | None = None
    """What a number in the column counts: epoch-seconds, epoch-millis or epoch-micros."""
    pattern: str | None = None
    """How a text in the column is written, as strftime says it; by default as ISO 8601 does."""

    def holds(self, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
        """Return for each row whether it is one of them. A row without a moment is none."""
        moments, low, high = self._terms(rows.column(self.column))
        found = pc.and_(pc.greater_equal(moments, low), pc.less(moments, high))
        for name, value in self.unit.items():
            column = rows.column(name)
            same = pc.is_null(column) if value is None else pc.equal(column, self._constant(name, value, column.type))
            found = pc.and_(found, pc.fill_null(same, False))
        return pc.fill_null(found, False)

    def check(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Refuse rows that are not of this cell: nobody would ever replace them.

        Columns of the unit that they do not have yet are left out.
        """
        present = {name: value for name, value in self.unit.items() if name in rows.schema.names}
        is_held = replace(self, unit=present).holds(rows)
        if pc.all(is_held, min_count=0).as_py():
            return
        outside = rows.filter(pc.invert(is_held)).slice(0, 1).select([self.column, *present])
        raise OutOfScope(
            f"A row was read for {self._shown()}, and has {outside.to_pylist()[0]}.",
            rule="A cell is replaced as a whole, so all that is read for it lies in its range, and is of its unit.",
            remedy="Name the column by which the source is asked as range_column, correct the query, or merge by key.",
            column=self.column,
        )

    def may_hold(self, files: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for each file of a table, as DeltaCommits.files knows them, whether rows of the cell may be in it."""
        told: Any = pa.repeat(pa.scalar(True), files.num_rows)
        if f"min.{self.column}" in files.column_names:
            lowest, low, high = self._terms(self._bound(files, "min", -_FAR))
            highest, _, _ = self._terms(self._bound(files, "max", _FAR))
            begins_before, ends_after = pc.less(lowest, high), pc.greater_equal(highest, low)
            told = pc.and_(pc.fill_null(begins_before, True), pc.fill_null(ends_after, True))
        for name, value in self.unit.items():
            told = pc.and_(told, self._unit_may_be(files, name, value))
        return told

    def _unit_may_be(self, files: pa.Table, name: str, value: Any) -> Any:
        if value is None:
            known = f"null_count.{name}"
            if known in files.column_names:
                return pc.fill_null(pc.greater(files.column(known), 0), True)
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
        """Return a bound of the moments in each file. Texts do not sort as their moments do, but their days do."""
        bound = files.column(f"{which}.{self.column}")
        if self.pattern is not None or not is_text(bound.type):
            return bound
        return pc.add(
            self._parsed(pc.utf8_slice_codeunits(_plain_texts(bound), 0, _DAY)), pa.scalar(far, pa.duration("us"))
        )

    def _terms(self, column: Any) -> tuple[Any, Any, Any]:
        """Return a column, and both ends of the range, as values that can be compared."""
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
        if pa.types.is_integer(kind) and self.numbers is not None:
            return column, *self._ends(self.numbers)
        raise TableUnfit(
            f"The column {self.column} has the type {kind}, which is no moment.",
            rule="What is replaced is a range of moments or dates, or of numbers if the source says what they count.",
            remedy="Name another column as range_column, or merge by key.",
            column=self.column,
        )

    def _ends(self, kind: WatermarkType) -> tuple[Any, Any]:
        return first_value_at(self.range.lo, kind, self.zone, self.pattern), first_value_at(
            self.range.hi, kind, self.zone, self.pattern
        )

    def _parsed(self, column: Any) -> Any:
        """Return texts as moments: all of them name their offset, or none does."""
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return pc.cast(column, kind)
            except pa.ArrowInvalid:
                continue
        raise TableUnfit(
            f"The column {self.column} has texts that are no moments, such as {_first_value(column)!r}.",
            rule="A text that says when a row was is written as ISO 8601 says it, and all of them in the same way.",
            remedy="Convert it in the source, name another column as range_column, or merge by key.",
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
                rule="The rows of a unit are told by its values.",
                remedy="Write the unit's value as the column has it.",
                column=name,
            ) from error

    def _shown(self) -> str:
        zone = zone_of(self.zone)
        ends = [format_moment(end, zone) for end in self.range]
        unit = "".join(f", {name} = {value!r}" for name, value in self.unit.items())
        return f"{self.column} from {ends[0]} to {ends[1]}{unit}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows are written, and what must hold of them. It is sent to tasks."""

    table: Path
    directory: Path
    """Inside the table's directory; it may not be there yet."""
    schema: pa.Schema | None
    """Of the table; None if it is to be made of these rows."""
    drift: Drift
    constants: Mapping[str, object]
    """Columns of the unit, for rows that do not have them."""
    keys: tuple[str, ...] = ()
    """Columns in which each row has a value."""
    scope: Scope | None = None
    """Rows outside of it are refused."""
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What was written, and is in no table yet."""

    files: tuple[StagedFile, ...] = ()
    schema: pa.Schema | None = None
    """The columns of the files; None if it is not known, and there are no rows."""

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that is part of a table, and the values of its partition, which are not in it."""

    table: Path
    path: str
    """Inside the table's directory."""
    rows: int | None
    partition: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.table / self.path)

    def batches(self, schema: pa.Schema, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Give its rows with the columns of the table; those that it does not have are NULL."""
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with pq.ParquetFile(self.place) as file:
            for batch in file.iter_batches(batch_size=1 << 16, columns=wanted.names):
                yield _with_table_columns(batch, wanted, self.partition)

    def held(self, scope: Scope, schema: pa.Schema) -> tuple[int, int]:
        """Return how many of its rows are in a scope, and how many it has."""
        held = rows = 0
        for batch in self.batches(schema, [scope.column, *(name for name in scope.unit if name != scope.column)]):
            held += pc.sum(scope.holds(batch)).as_py()
            rows += batch.num_rows
        return held, rows

    def outside(self, scope: Scope, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Give its rows that are not in a scope."""
        for batch in self.batches(schema):
            yield batch.filter(pc.invert(scope.holds(batch)))


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """What is to be merged: rows that were just read, and files of the table that may have the same keys."""

    new: Sequence[LiveFile]
    live: Sequence[LiveFile]
    keys: tuple[str, ...]
    newest_by: str


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What becomes of a table by merging."""

    staged: StagedRows
    gone: tuple[str, ...]
    """Live files that give way: what stays of them was written anew."""


class TableTasks(Protocol):
    """Reads and writes rows. Each call ends when all is written, or raises and what was written is in vain."""

    def extract(self, row: PlannedRange, to: Destination) -> StagedRows:
        """Read what a row of a plan is about from its source, and write it."""
        ...

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> StagedRows:
        """Write the rows of files anew that are not in a scope."""
        ...

    def merge(self, merge: MergeRequest, to: Destination) -> MergeResult:
        """Write rows so that of each key only the newest is there, in them and in the live files."""
        ...


_DAY: Final = len("1970-01-01")
_FAR: Final = timedelta(days=3)
"""A moment is nearer to the day with which its text begins, whatever the offsets of the text and of the zone are."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column has texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain_texts(texts: Any) -> Any:
    # Views can be neither sorted, nor cast, nor cut.
    return texts.cast(pa.string()) if pa.types.is_string_view(texts.type) else texts


def _first_value(column: Any) -> object:
    for value in column.to_pylist():
        if value is not None and not _is_iso_moment(value):
            return value
    return None


def _is_iso_moment(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def live_files(table: Path, files: pa.Table) -> list[LiveFile]:
    """Return files as DeltaCommits.files knows them."""
    partition_by = [name.removeprefix("partition.") for name in files.column_names if name.startswith("partition.")]
    return [
        LiveFile(table, one["path"], one["num_records"], {name: one[f"partition.{name}"] for name in partition_by})
        for one in files.to_pylist()
    ]


def may_share_keys(files: pa.Table, new: Sequence[StagedFile], keys: Sequence[str]) -> Any:
    """Return for each file of a table whether keys of new files may be in it, as far as bounds of both are known."""
    stats = [json.loads(file.stats) for file in new]
    bounds = {}
    for name in keys:
        lows, highs = ([one[what].get(name) for one in stats] for what in ("minValues", "maxValues"))
        if all(value is not None for value in (*lows, *highs)):
            bounds[name] = min(lows), max(highs)
    return may_overlap_bounds(files, bounds)


def may_overlap_bounds(files: pa.Table, bounds: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return for each file of a table whether rows with values from the first to the last may be in it, by column.

    Files may tell moments in whole milliseconds, cut off: the first one has none that is cut.
    """
    told: Any = pa.repeat(pa.scalar(True), files.num_rows)
    for name, ends in bounds.items():
        if f"partition.{name}" in files.column_names:
            low = high = files.column(f"partition.{name}")
        elif f"min.{name}" in files.column_names:
            low, high = files.column(f"min.{name}"), files.column(f"max.{name}")
        else:
            continue
        first, last = (pa.array([value]).cast(low.type)[0] for value in ends)
        told = pc.and_(told, pc.fill_null(pc.less_equal(low, last), True))
        told = pc.and_(told, pc.fill_null(pc.greater_equal(high, first), True))
    return told


def _with_table_columns(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, Any]) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(_repeated(partition.get(field.name), field.type, batch.num_rows))
    return pa.record_batch(columns, schema=schema)


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    # A table's log has the values of partitions as texts.
    return pa.repeat(pa.scalar(value).cast(kind) if isinstance(value, str) else pa.scalar(value, kind), rows)
