"""Writes batches of a query as Parquet files, to a Delta table or a directory."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import InvalidOption, UnsupportedFrame
from floodmark.sinks import Batch, BatchOutcome, Sink, Write, WriteFrom
from floodmark.sinks.manifest.target import AttemptWriter, ManifestLog, ManifestOptions, ManifestPart, ManifestTarget
from floodmark.sinks.target import Failpoint, no_failpoint
from floodmark.spark.columns import column_of, require_comparable
from floodmark.spark.sink.batch_sink import BaseSinkWriter, default_row_ts, last_written_ts, published_watermarks
from floodmark.spark.sink.rows import (
    DIFF_COLUMN,
    TS_COLUMN,
    RowFormat,
    is_data_column,
    refuse_early,
    refuse_missing_key,
    repeat_by_diff,
    row_diff,
)


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The columns that the rows of a DataFrame have in files."""

    form: RowFormat
    columns: tuple[str, ...]
    with_ts: bool
    schema: str
    """Their schema, as JSON."""

    @classmethod
    def of(cls, schema: StructType, form: RowFormat, *, with_ts: bool) -> "TableFormat":
        """Return the format of rows with this schema; `with_ts` adds the column `_ts`."""
        fields = [field for field in schema.fields if is_data_column(field.name)]
        if with_ts:
            fields.append(StructField(TS_COLUMN, TimestampType()))
        file_schema = json.loads(StructType(fields).json())
        _check_type(file_schema, "")
        for name in form.key if form.mode == "upsert" else ():
            require_comparable(schema[name], "key")
            if not is_data_column(name):
                raise InvalidOption(
                    f"The key is {name!r}, which is not in the table.",
                    rule="The columns of the key must be data, not columns that the source adds.",
                    remedy="Name data columns as key=, or copy the column with df.withColumn under another name.",
                    option="key",
                    value=name,
                )
        columns = tuple(field.name for field in fields if field.name != TS_COLUMN)
        return cls(form, columns, with_ts, _without_metadata(file_schema))

    def rows(self, df: DataFrame, ts: int, *, after: int | None, published: Mapping[str, int]) -> DataFrame:
        """Return the rows to append. Rows without `_ts` get `ts`; rows up to `after` are left out.

        A row that must not be written, or is earlier than a `published` watermark, fails Spark's job; `parse_refusal`
        makes an error of that.
        """
        form, stamp = self.form, self._stamp(ts)
        remaining = df if after is None else df.where(F.unix_micros(stamp) > after)
        if form.has_diff:
            remaining = remaining.withColumn(DIFF_COLUMN, repeat_by_diff())
        columns = [column_of(name) for name in self.columns]
        for name, watermark in sorted(published.items()):
            columns[0] = refuse_early(columns[0], F.expr(dict(form.times)[name]), name, watermark)
        named = [column.alias(name) for name, column in zip(self.columns, columns, strict=True)]
        return remaining.select(*named, *([stamp.alias(TS_COLUMN)] if self.with_ts else ()))

    def newest(
        self,
        df: DataFrame,
        ts: int,
        *,
        after: int | None,
        published: Mapping[str, int],
        partition_by: Sequence[str] = (),
    ) -> DataFrame:
        """Return the newest row of each key; the column IS_PRESENT is false if it deletes the key.

        Rows are ordered by timestamp, deletions before replacements, and otherwise as they were read. The arguments are
        those of `rows`.
        """
        form, stamp = self.form, self._stamp(ts)
        diff = row_diff() if form.has_diff else F.lit(1)
        columns = {name: column_of(name) for name in self.columns}
        for name in form.key:
            is_text = isinstance(df.schema[name].dataType, StringType)
            # In a partition column an empty string is stored as null.
            value = F.nullif(columns[name], F.lit("")) if is_text and name in partition_by else columns[name]
            columns[name] = refuse_missing_key(value)
        first = self.columns[0]
        for name, watermark in sorted(published.items()):
            checked = refuse_early(columns[first], F.expr(dict(form.times)[name]), name, watermark)
            columns[first] = F.when(diff > 0, checked).otherwise(columns[first])
        remaining = df.where(diff != 0) if form.has_diff else df
        if after is not None:
            remaining = remaining.where(F.unix_micros(stamp) > after)
        named = [column.alias(name) for name, column in columns.items()]
        if self.with_ts:
            named.append(stamp.alias(TS_COLUMN))
        order = F.struct(stamp, diff, F.monotonically_increasing_id())
        rows = remaining.select(*named, (diff > 0).alias(IS_PRESENT), order.alias(_ORDER_COLUMN))
        whole = F.struct(*(column_of(name) for name in rows.columns if name != _ORDER_COLUMN))
        newest = rows.groupBy(*(column_of(name) for name in form.key)).agg(
            F.max_by(whole, _ORDER_COLUMN).alias(_ORDER_COLUMN)
        )
        return newest.select(f"{_ORDER_COLUMN}.*")

    def _stamp(self, ts: int) -> Column:
        return column_of(TS_COLUMN) if self.form.has_ts else F.timestamp_micros(F.lit(ts))


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """The table or directory that a sink writes to, and how it writes."""

    kind: Literal["delta", "file"]
    path: Path
    sink: str
    options: ManifestOptions
    form: TableFormat
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "FileWriter":
        """Return the writer."""
        return FileWriter(home, self)


class FileClosingLog(ManifestLog, Protocol):
    """A manifest log whose parts are files."""

    def attempt_directory(self, attempt: str) -> Path:
        """Return the directory for the files of an attempt."""

    def attempt_parts(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has written."""


class FileWriter(BaseSinkWriter[Sink[AttemptWriter]]):
    """Lets Spark's tasks write the files of a batch, and closes them."""

    def __init__(self, home: Home, spec: FilesSpec) -> None:
        """Write as the spec says; `start` is the first access to the table or directory."""
        self._spec = spec
        self._bindings = Bindings(home)
        self._log = _open_log(spec)
        target = ManifestTarget(
            self._log,
            spec.options,
            mode="atomic" if spec.kind == "delta" else "staged",
            failpoint=spec.failpoint,
        )
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""
        with ExitStack() as cleanup:
            run = partial(self._replace, cleanup) if self._spec.form.form.mode == "upsert" else self._append
            return self._sink.write(batch, partial(run, df, batch), watermarks=watermarks)

    def _append(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        return partial(self._run, df, batch, decision)

    def _replace(self, cleanup: ExitStack, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        from floodmark.sinks.manifest.delta import DeltaManifestLog
        from floodmark.spark.sink.upserts import Upsert

        form, log = self._spec.form, self._log
        assert isinstance(log, DeltaManifestLog)
        newest = form.newest(
            df,
            default_row_ts(batch),
            after=last_written_ts(decision, batch, form.form, self._bindings),
            published=published_watermarks(form.form, batch, self.progress),
            partition_by=log.table.partition_by,
        )
        upsert = Upsert(newest, form.form.key, log)
        cleanup.callback(upsert.close)
        return upsert.run

    def _run(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, attempt: str) -> list[ManifestPart]:
        form, log = self._spec.form, self._log
        after = last_written_ts(decision, batch, form.form, self._bindings)
        published = published_watermarks(form.form, batch, self.progress)
        rows = form.rows(df, default_row_ts(batch), after=after, published=published)
        write_parquet(rows, str(log.attempt_directory(attempt)), _partition_by(log))
        return log.attempt_parts(attempt)


def _open_log(spec: FilesSpec) -> FileClosingLog:
    if spec.kind == "file":
        from floodmark.sinks.manifest.files import FileManifestLog

        return FileManifestLog(spec.path, spec.sink, spec.form.schema)
    # Imported here: only Delta tables need the client of Delta Lake.
    from floodmark.sinks.manifest.delta import DeltaManifestLog

    return DeltaManifestLog(spec.path, spec.sink, spec.form.schema, replaces=spec.form.form.mode == "upsert")


def _partition_by(log: FileClosingLog) -> tuple[str, ...]:
    table = getattr(log, "table", None)
    return () if table is None else tuple(table.partition_by)


IS_PRESENT: Final = "_floodmark_is_there"
_ORDER_COLUMN: Final = "_floodmark_order"
_DATA_TYPES: Final = (
    *("binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string", "timestamp"),
    "timestamp_ntz",
)
_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
_PARQUET_SETTINGS: Final = {
    # Spark's defaults write timestamps that other Parquet readers misread.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def write_parquet(df: DataFrame, directory: str, partition_by: tuple[str, ...] = ()) -> None:
    """Write rows as Parquet files to a new directory. A failed task leaves no files."""
    with _parquet_settings(df.sparkSession):
        writer = df.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").mode("error")
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(f"file://{directory}")


@contextmanager
def _parquet_settings(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in _PARQUET_SETTINGS}
    for name, value in _PARQUET_SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _check_type(kind: Any, path: str) -> None:
    """Refuse column types and names that tables cannot have; `kind` is a type in Spark's JSON."""
    if isinstance(kind, str):
        if kind not in _DATA_TYPES and not kind.startswith("decimal("):
            raise UnsupportedFrame(
                f"The column {path} has the type {kind}.",
                rule=f"The types of a table are {', '.join(_DATA_TYPES)}, decimal, and structs, arrays, maps of them.",
                remedy="Cast the column, or drop it with df.drop.",
                column=path,
                type=kind,
            )
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            name = f"{path}.{field['name']}" if path else field["name"]
            if _NOT_IN_NAMES & set(field["name"]):
                raise UnsupportedFrame(
                    f"A column is named {name!r}.",
                    rule="Column names in tables must not have a space, comma, semicolon, bracket, tab or equals sign.",
                    remedy="Rename the column, such as count('*').alias('n').",
                    column=name,
                )
            _check_type(field["type"], name)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                _check_type(kind[part], f"{path}.{part.removesuffix('Type')}")


def _without_metadata(schema: Any) -> str:
    """Return a schema as JSON, without Spark's metadata of columns."""

    def strip(value: Any) -> Any:
        if isinstance(value, list):
            return [strip(item) for item in value]
        if isinstance(value, dict):
            return {name: {} if name == "metadata" else strip(item) for name, item in value.items()}
        return value

    return json.dumps(strip(schema))
