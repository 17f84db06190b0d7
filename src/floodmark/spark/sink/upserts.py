"""Rows that take the place of others in a table of Delta Lake, by key: files that have such rows are written anew.

What is left of a batch is computed once. What it changes in the table is computed from the version of the table that is
seen, and once more if others have committed before it could be.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DateType, IntegralType, StringType, TimestampType

from floodmark.delta import DeltaCommits
from floodmark.errors import TableConflict, TableUnfit
from floodmark.ingest.landing.tasks import LiveFile, live_files, may_overlap_bounds
from floodmark.sinks.manifest.delta import DeltaManifestLog
from floodmark.sinks.manifest.target import ManifestPart
from floodmark.spark.columns import column_of
from floodmark.spark.live_files import FILE_COLUMN, read_live_files
from floodmark.spark.sink.files import IS_PRESENT, write_parquet

_KEY_COUNT: Final = "keys"
_PUT_COUNT: Final = "put"
_BYTES_OF_FILE: Final = 64 << 20
_ROWS_OF_FILE: Final = 1_000_000
"""About how much is put into one file."""


class Upsert:
    """One batch that is put into a table: of each key the row that is to be there, or that none is to be."""

    def __init__(self, newest: DataFrame, keys: Sequence[str], log: DeltaManifestLog) -> None:
        """Put rows, as TableForm.newest has them, in the place of those with the same keys."""
        self._newest = newest.persist()
        self._keys = list(keys)
        self._log = log
        self._told: Row | None = None

    def run(self, attempt: str) -> list[ManifestPart]:
        """Write the files of an attempt, and return how many rows it puts in place: those deleted do not count."""
        told = self._told = self._told or self._evaluated()
        if not told[_KEY_COUNT]:
            return []
        table = self._log.look()
        _check_nested_order(self._newest, table)
        files = table.files()
        live = live_files(table.path, files.filter(may_overlap_bounds(files, self._bounds(told))))
        try:
            touched = self._touched(live, table.arrow_schema)
            if not touched and not told[_PUT_COUNT]:
                # Also that nothing is there to be deleted holds for this version only.
                return self._log.replaced(attempt, [], 0)
            sizes = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
            size = sum(sizes[one.path] for one in touched)
            rows = self._rows(touched, table.arrow_schema)
            few = rows.coalesce(1 + size // _BYTES_OF_FILE + told[_PUT_COUNT] // _ROWS_OF_FILE)
            write_parquet(few, str(self._log.begin(attempt)), table.partition_by)
        except Exception as error:
            if all(Path(one.place).exists() for one in live):
                raise
            self._log.give_up(attempt)
            raise _files_removed(table) from error
        return self._log.replaced(attempt, [one.path for one in touched], told[_PUT_COUNT])

    def over(self) -> None:
        """Let Spark forget what the batch has come to."""
        self._newest.unpersist()

    def _evaluated(self) -> Row:
        """Return how many keys there are, how many rows are to be put, and the bounds of the keys."""
        ends = []
        for name in self._keys:
            value = _as_bound(self._newest.schema[name].dataType, column_of(name))
            ends += [F.min(value).alias(f"first.{name}"), F.max(value).alias(f"last.{name}")]
        put = F.count_if(F.col(IS_PRESENT))
        (told,) = self._newest.agg(F.count("*").alias(_KEY_COUNT), put.alias(_PUT_COUNT), *ends).collect()
        return told

    def _bounds(self, told: Row) -> dict[str, tuple[Any, Any]]:
        found = {}
        for name in self._keys:
            ends = key_bounds(self._newest.schema[name].dataType, told[f"first.{name}"], told[f"last.{name}"])
            if ends is not None:
                found[name] = ends
        return found

    def _touched(self, live: list[LiveFile], schema: pa.Schema) -> list[LiveFile]:
        """Return the files that have rows with the keys of the batch."""
        if not live:
            return []
        there = read_live_files(self._newest.sparkSession, live, schema, self._keys, with_file=True)
        found = {
            path
            for (path,) in there.join(self._named(), self._keys, "left_semi").select(FILE_COLUMN).distinct().collect()
        }
        return [one for one in live if one.path in found]

    def _rows(self, touched: list[LiveFile], schema: pa.Schema) -> DataFrame:
        """Return the rows that are to be there, and those that stay of files in which others do not."""
        columns = [column_of(name) for name in schema.names]
        put = self._newest.where(F.col(IS_PRESENT)).select(*columns)
        if not touched:
            return put
        stay = read_live_files(self._newest.sparkSession, touched, schema).join(self._named(), self._keys, "left_anti")
        return put.unionAll(stay.select(*columns))

    def _named(self) -> DataFrame:
        return self._newest.select(*(column_of(name) for name in self._keys))


def _as_bound(kind: DataType, value: Column) -> Column:
    """Return values as numbers or texts that have the same order; none for types whose files tell no sure bounds."""
    if isinstance(kind, IntegralType | StringType):
        return value
    if isinstance(kind, DateType):
        return F.unix_date(value)
    return F.unix_micros(value) if isinstance(kind, TimestampType) else F.lit(None)


def key_bounds(kind: DataType, first: Any, last: Any) -> tuple[Any, Any] | None:
    """Return between which values keys are, as files tell them; None if that is not known."""
    if first is None or last is None:
        return None
    try:
        if isinstance(kind, DateType):
            return date(1970, 1, 1) + timedelta(first), date(1970, 1, 1) + timedelta(last)
        if isinstance(kind, TimestampType):
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            return epoch + timedelta(milliseconds=first // 1_000), epoch + timedelta(microseconds=last)
    except OverflowError:
        return None
    return first, last


def _check_nested_order(rows: DataFrame, table: DeltaCommits) -> None:
    """Refuse columns that have columns inside in another order than the table: Spark puts rows together by order."""
    for field in from_arrow_schema(table.arrow_schema, prefer_timestamp_ntz=True):
        come, there = rows.schema[field.name].dataType.simpleString(), field.dataType.simpleString()
        if come != there:
            raise TableUnfit(
                f"The rows do not fit the table {table.path}: {field.name} is {there} there, and {come} in the rows.",
                rule="Where rows take the place of others, what is inside of a column has the order of the table.",
                remedy="Make the column with its parts in that order, or name another table.",
                table=str(table.path),
                column=field.name,
            )


def _files_removed(table: DeltaCommits) -> TableConflict:
    return TableConflict(
        f"Files of version {table.version} of the table {table.path} were removed while they were read.",
        rule="What takes the place of rows is computed from the files that have them.",
        remedy="Compute it again, on a newer version.",
        table=str(table.path),
    )
