"""Batches of a query as Parquet files, of a Delta table or of a directory: all data columns with their types."""

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
from floodmark.sinks import Batch, BatchOutcome, Sink, Sinks, Write, WriteFrom
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
    """Which columns the rows of a DataFrame have in files."""

    form: RowFormat
    columns: tuple[str, ...]
    with_ts: bool
    schema: str
    """Their schema, as JSON."""

    @classmethod
    def of(cls, schema: StructType, form: RowFormat, *, with_ts: bool) -> "TableFormat":
        """Return the form for rows of a schema, or refuse it. With `with_ts` there is a column for the timestamp."""
        fields = [field for field in schema.fields if is_data_column(field.name)]
        if with_ts:
            fields.append(StructField(TS_COLUMN, TimestampType()))
        found = json.loads(StructType(fields).json())
        _check_type(found, "")
        for name in form.key if form.mode == "upsert" else ():
            require_comparable(schema[name], "key")
            if not is_data_column(name):
                raise InvalidOption(
                    f"The key is {name!r}, which is not in the table.",
                    rule="Rows of a table are known by columns of the data.",
                    remedy="Name columns of the data, or select it under another name.",
                    option="key",
                    value=name,
                )
        return cls(
            form, tuple(field.name for field in fields if field.name != TS_COLUMN), with_ts, _without_metadata(found)
        )

    def rows(self, df: DataFrame, ts: int, *, after: int | None, told: Mapping[str, int]) -> DataFrame:
        """Return the rows. Those without a timestamp of their own get `ts`; those up to `after` are left out.

        One that must not be written, or is before what was `told` of time, ends Spark's job: see `refused`.
        """
        form, stamp = self.form, self._stamp(ts)
        found = df if after is None else df.where(F.unix_micros(stamp) > after)
        if form.has_diff:
            found = found.withColumn(DIFF_COLUMN, repeat_by_diff())
        columns = [column_of(name) for name in self.columns]
        for name, known in sorted(told.items()):
            columns[0] = refuse_early(columns[0], F.expr(dict(form.times)[name]), name, known)
        named = [column.alias(name) for name, column in zip(self.columns, columns, strict=True)]
        return found.select(*named, *([stamp.alias(TS_COLUMN)] if self.with_ts else ()))

    def newest(
        self, df: DataFrame, ts: int, *, after: int | None, told: Mapping[str, int], partition_by: Sequence[str] = ()
    ) -> DataFrame:
        """Return what is left of each key: its newest row, and in the column IS_PRESENT whether it is to be there.

        Rows come in the order of their timestamps, what is taken back before what takes its place, and otherwise as
        they were read. The rest is as in `rows`.
        """
        form, stamp = self.form, self._stamp(ts)
        diff = row_diff() if form.has_diff else F.lit(1)
        columns = {name: column_of(name) for name in self.columns}
        for name in form.key:
            is_text = isinstance(df.schema[name].dataType, StringType)
            # To a partition an empty text is no value.
            value = F.nullif(columns[name], F.lit("")) if is_text and name in partition_by else columns[name]
            columns[name] = refuse_missing_key(value)
        first = self.columns[0]
        for name, known in sorted(told.items()):
            checked = refuse_early(columns[first], F.expr(dict(form.times)[name]), name, known)
            columns[first] = F.when(diff > 0, checked).otherwise(columns[first])
        found = df.where(diff != 0) if form.has_diff else df
        if after is not None:
            found = found.where(F.unix_micros(stamp) > after)
        named = [column.alias(name) for name, column in columns.items()]
        if self.with_ts:
            named.append(stamp.alias(TS_COLUMN))
        order = F.struct(stamp, diff, F.monotonically_increasing_id())
        rows = found.select(*named, (diff > 0).alias(IS_PRESENT), order.alias(_ORDER_COLUMN))
        whole = F.struct(*(column_of(name) for name in rows.columns if name != _ORDER_COLUMN))
        newest = rows.groupBy(*(column_of(name) for name in form.key)).agg(
            F.max_by(whole, _ORDER_COLUMN).alias(_ORDER_COLUMN)
        )
        return newest.select(f"{_ORDER_COLUMN}.*")

    def _stamp(self, ts: int) -> Column:
        return column_of(TS_COLUMN) if self.form.has_ts else F.timestamp_micros(F.lit(ts))


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Which table or directory is written, and how."""

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
    """A log that closes files."""

    def begin(self, attempt: str) -> Path:
        """Return the directory in which the files of an attempt are to be written."""

    def made(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has made."""


class FileWriter(BaseSinkWriter[Sink[AttemptWriter]]):
    """Lets Spark write the files of a batch, and closes them."""

    def __init__(self, home: Home, spec: FilesSpec) -> None:
        """Write as the spec says; nothing is looked at before `start`."""
        self._spec = spec
        self._bindings = Bindings(home)
        self._log = _open_log(spec)
        target = ManifestTarget(
            self._log,
            spec.options,
            mode="atomic" if spec.kind == "delta" else "staged",
            known=lambda: Sinks(home).get(spec.sink).progress,
            failpoint=spec.failpoint,
        )
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch unless it was written."""
        with ExitStack() as kept:
            run = partial(self._replace, kept) if self._spec.form.form.mode == "upsert" else self._append
            return self._sink.write(batch, partial(run, df, batch), watermarks=watermarks)

    def _append(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        return partial(self._run, df, batch, decision)

    def _replace(self, kept: ExitStack, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        from floodmark.sinks.manifest.delta import DeltaManifestLog
        from floodmark.spark.sink.upserts import Upsert

        form, log = self._spec.form, self._log
        assert isinstance(log, DeltaManifestLog)
        newest = form.newest(
            df,
            default_row_ts(batch),
            after=last_written_ts(decision, batch, form.form, self._bindings),
            told=published_watermarks(form.form, batch, self.progress),
            partition_by=log.table.partition_by,
        )
        upsert = Upsert(newest, form.form.key, log)
        kept.callback(upsert.over)
        return upsert.run

    def _run(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, attempt: str) -> list[ManifestPart]:
        form, log = self._spec.form, self._log
        after = last_written_ts(decision, batch, form.form, self._bindings)
        told = published_watermarks(form.form, batch, self.progress)
        rows = form.rows(df, default_row_ts(batch), after=after, told=told)
        write_parquet(rows, str(log.begin(attempt)), _partition_by(log))
        return log.made(attempt)


def _open_log(spec: FilesSpec) -> FileClosingLog:
    if spec.kind == "file":
        from floodmark.sinks.manifest.files import FileManifestLog

        return FileManifestLog(spec.path, spec.sink, spec.form.schema)
    # Whoever writes elsewhere needs no client for Delta Lake.
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
    # What Spark writes by default other readers have to guess.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def write_parquet(df: DataFrame, directory: str, partition_by: tuple[str, ...] = ()) -> None:
    """Write rows as Parquet files into a directory that is not there yet. A task that fails leaves none."""
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


def _check_type(kind: Any, place: str) -> None:
    """Refuse types and names that tables do not have."""
    if isinstance(kind, str):
        if kind not in _DATA_TYPES and not kind.startswith("decimal("):
            raise UnsupportedFrame(
                f"The column {place} has the type {kind}.",
                rule=f"Tables have columns of the types {', '.join(_DATA_TYPES)} and decimal, and of those in others.",
                remedy="Cast it, or leave it out.",
                column=place,
                type=kind,
            )
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            name = f"{place}.{field['name']}" if place else field["name"]
            if _NOT_IN_NAMES & set(field["name"]):
                raise UnsupportedFrame(
                    f"A column is named {name!r}.",
                    rule="Names of columns in tables have no space, comma, semicolon, bracket, tab or equals sign.",
                    remedy="Name it otherwise, such as count('*').alias('n').",
                    column=name,
                )
            _check_type(field["type"], name)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                _check_type(kind[part], f"{place}.{part.removesuffix('Type')}")


def _without_metadata(schema: Any) -> str:
    """Return a schema as JSON without what Spark says of columns for itself."""

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(one) for one in value]
        if isinstance(value, dict):
            return {name: {} if name == "metadata" else bare(one) for name, one in value.items()}
        return value

    return json.dumps(bare(schema))
