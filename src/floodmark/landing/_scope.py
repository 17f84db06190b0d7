"""Which rows of a table a cell stands for: those of its range, of its unit. They give way when it is landed again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import OutOfScope, TableUnfit
from floodmark.ingest._calendar import shown, zone_of
from floodmark.ingest._edges import edge
from floodmark.ingest._ranges import Range
from floodmark.ingest._source_spec import WatermarkType

_DAY: Final = len("1970-01-01")
_FAR: Final = timedelta(days=3)
"""A moment is nearer to the day with which its text begins, whatever the offsets of the text and of the zone are."""


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
        return pc.add(self._parsed(pc.utf8_slice_codeunits(_plain(bound), 0, _DAY)), pa.scalar(far, pa.duration("us")))

    def _terms(self, column: Any) -> tuple[Any, Any, Any]:
        """Return a column, and both ends of the range, as values that can be compared."""
        if is_text(column.type):
            column = _plain(column)
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
        return edge(self.range.lo, kind, self.zone, self.pattern), edge(self.range.hi, kind, self.zone, self.pattern)

    def _parsed(self, column: Any) -> Any:
        """Return texts as moments: all of them name their offset, or none does."""
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return pc.cast(column, kind)
            except pa.ArrowInvalid:
                continue
        raise TableUnfit(
            f"The column {self.column} has texts that are no moments, such as {_first(column)!r}.",
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
        ends = [shown(end, zone) for end in self.range]
        unit = "".join(f", {name} = {value!r}" for name, value in self.unit.items())
        return f"{self.column} from {ends[0]} to {ends[1]}{unit}"


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column has texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain(texts: Any) -> Any:
    # Views can be neither sorted, nor cast, nor cut.
    return texts.cast(pa.string()) if pa.types.is_string_view(texts.type) else texts


def _first(column: Any) -> object:
    for value in column.to_pylist():
        if value is not None and not _is_moment(value):
            return value
    return None


def _is_moment(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True
