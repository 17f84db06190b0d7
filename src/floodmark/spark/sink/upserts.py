"""Upserts into a Delta table: files that have rows with the keys of a batch are rewritten.

The newest row of each key is computed once per batch. The files to rewrite are computed from the current version of
the table, and again if another commit comes first.
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
_BYTES_PER_FILE: Final = 64 << 20
_ROWS_PER_FILE: Final = 1_000_000


class Upsert:
    """The upsert of one batch: for each key a row to put into the table, or its deletion."""

    def __init__(self, newest: DataFrame, keys: Sequence[str], log: DeltaManifestLog) -> None:
        """Upsert the result of `TableFormat.newest`."""
        self._newest = newest.persist()
        self._keys = list(keys)
        self._log = log
        self._summary: Row | None = None

    def run(self, attempt: str) -> list[ManifestPart]:
        """Write the files of an attempt, and return its parts; their row counts do not include deletions."""
        summary = self._summary = self._summary or self._summarize()
        if not summary[_KEY_COUNT]:
            return []
        table = self._log.reload()
        _check_nested_order(self._newest, table)
        files = table.files()
        live = live_files(table.path, files.filter(may_overlap_bounds(files, self._bounds(summary))))
        try:
            touched = self._touched_files(live, table.arrow_schema)
            if not touched and not summary[_PUT_COUNT]:
                # Nothing to delete: but that is true only for this version, so it is committed like any other change.
                return self._log.replacement_parts(attempt, [], 0)
            sizes = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
            size = sum(sizes[file.path] for file in touched)
            rows = self._rows(touched, table.arrow_schema)
            coalesced = rows.coalesce(1 + size // _BYTES_PER_FILE + summary[_PUT_COUNT] // _ROWS_PER_FILE)
            write_parquet(coalesced, str(self._log.attempt_directory(attempt)), table.partition_by)
        except Exception as error:
            if all(Path(file.full_path).exists() for file in live):
                raise
            self._log.discard(attempt)
            raise _files_removed(table) from error
        return self._log.replacement_parts(attempt, [file.path for file in touched], summary[_PUT_COUNT])

    def close(self) -> None:
        """Release the cached rows."""
        self._newest.unpersist()

    def _summarize(self) -> Row:
        """Return the number of keys, the number of rows to put, and the bounds of the keys."""
        ends = []
        for name in self._keys:
            value = _as_bound(self._newest.schema[name].dataType, column_of(name))
            ends += [F.min(value).alias(f"first.{name}"), F.max(value).alias(f"last.{name}")]
        put = F.count_if(F.col(IS_PRESENT))
        (summary,) = self._newest.agg(F.count("*").alias(_KEY_COUNT), put.alias(_PUT_COUNT), *ends).collect()
        return summary

    def _bounds(self, summary: Row) -> dict[str, tuple[Any, Any]]:
        bounds = {}
        for name in self._keys:
            ends = key_bounds(self._newest.schema[name].dataType, summary[f"first.{name}"], summary[f"last.{name}"])
            if ends is not None:
                bounds[name] = ends
        return bounds

    def _touched_files(self, live: list[LiveFile], schema: pa.Schema) -> list[LiveFile]:
        """Return the files that have rows with the keys of the batch."""
        if not live:
            return []
        rows = read_live_files(self._newest.sparkSession, live, schema, self._keys, with_file=True)
        matches = rows.join(self._key_rows(), self._keys, "left_semi").select(FILE_COLUMN).distinct().collect()
        touched = {path for (path,) in matches}
        return [file for file in live if file.path in touched]

    def _rows(self, touched: list[LiveFile], schema: pa.Schema) -> DataFrame:
        """Return the rows to put, and the other rows of the touched files."""
        columns = [column_of(name) for name in schema.names]
        put = self._newest.where(F.col(IS_PRESENT)).select(*columns)
        if not touched:
            return put
        old = read_live_files(self._newest.sparkSession, touched, schema)
        kept = old.join(self._key_rows(), self._keys, "left_anti")
        return put.unionAll(kept.select(*columns))

    def _key_rows(self) -> DataFrame:
        return self._newest.select(*(column_of(name) for name in self._keys))


def _as_bound(kind: DataType, value: Column) -> Column:
    """Return values as numbers or text of the same order; null for types without exact bounds in file statistics."""
    if isinstance(kind, IntegralType | StringType):
        return value
    if isinstance(kind, DateType):
        return F.unix_date(value)
    return F.unix_micros(value) if isinstance(kind, TimestampType) else F.lit(None)


def key_bounds(kind: DataType, first: Any, last: Any) -> tuple[Any, Any] | None:
    """Return the bounds of keys in the precision of file statistics; None if they are not known."""
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
    """Refuse struct columns whose fields have another order than in the table: a union matches them by position."""
    for field in from_arrow_schema(table.arrow_schema, prefer_timestamp_ntz=True):
        actual, expected = rows.schema[field.name].dataType.simpleString(), field.dataType.simpleString()
        if actual != expected:
            raise TableUnfit(
                f"In the table {table.path} {field.name} is {expected}, and in the rows it is {actual}.",
                rule="For mode='upsert' nested columns must have the type and the field order of the table.",
                remedy="Build the column with F.struct and its fields in that order, or write to another table.",
                table=str(table.path),
                column=field.name,
            )


def _files_removed(table: DeltaCommits) -> TableConflict:
    return TableConflict(
        f"Files of version {table.version} of the table {table.path} were removed while they were read.",
        rule="An upsert reads the files that it replaces.",
        remedy="Retry on a newer version of the table; the sink does that by itself.",
        table=str(table.path),
    )
