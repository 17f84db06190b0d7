"""The rows of a batch as they stand in files: all columns of the data with their types, and nothing else."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from floodmark.errors import InvalidOption, UnsupportedFrame
from floodmark.spark._columns import column_of, require_comparable
from floodmark.spark._row_refusals import DIFF, as_often_as_told, diff_of_row, unless_early, with_key
from floodmark.spark._sink_rows import TS, RowForm, is_data

IS_THERE: Final = "_floodmark_is_there"
_ORDER: Final = "_floodmark_order"
_KINDS: Final = (
    *("binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string", "timestamp"),
    "timestamp_ntz",
)
_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
_SETTINGS: Final = {
    # What Spark writes by default other readers have to guess.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


@dataclass(frozen=True, slots=True)
class TableForm:
    """Which columns the rows of a DataFrame have in files."""

    form: RowForm
    columns: tuple[str, ...]
    with_ts: bool
    schema: str
    """Their schema, as JSON."""

    @classmethod
    def of(cls, schema: StructType, form: RowForm, *, with_ts: bool) -> "TableForm":
        """Return the form for rows of a schema, or refuse it. With `with_ts` there is a column for the timestamp."""
        fields = [field for field in schema.fields if is_data(field.name)]
        if with_ts:
            fields.append(StructField(TS, TimestampType()))
        found = json.loads(StructType(fields).json())
        _check(found, "")
        for name in form.key if form.mode == "upsert" else ():
            require_comparable(schema[name], "key")
            if not is_data(name):
                raise InvalidOption(
                    f"The key is {name!r}, which is not in the table.",
                    rule="Rows of a table are known by columns of the data.",
                    remedy="Name columns of the data, or select it under another name.",
                    option="key",
                    value=name,
                )
        return cls(form, tuple(field.name for field in fields if field.name != TS), with_ts, _bare(found))

    def rows(self, df: DataFrame, ts: int, *, after: int | None, told: Mapping[str, int]) -> DataFrame:
        """Return the rows. Those without a timestamp of their own get `ts`; those up to `after` are left out.

        One that must not be written, or is before what was `told` of time, ends Spark's job: see `refused`.
        """
        form, stamp = self.form, self._stamp(ts)
        found = df if after is None else df.where(F.unix_micros(stamp) > after)
        if form.has_diff:
            found = found.withColumn(DIFF, as_often_as_told())
        columns = [column_of(name) for name in self.columns]
        for name, known in sorted(told.items()):
            columns[0] = unless_early(columns[0], F.expr(dict(form.times)[name]), name, known)
        named = [column.alias(name) for name, column in zip(self.columns, columns, strict=True)]
        return found.select(*named, *([stamp.alias(TS)] if self.with_ts else ()))

    def newest(
        self, df: DataFrame, ts: int, *, after: int | None, told: Mapping[str, int], partition_by: Sequence[str] = ()
    ) -> DataFrame:
        """Return what is left of each key: its newest row, and in the column IS_THERE whether it is to be there.

        Rows come in the order of their timestamps, what is taken back before what takes its place, and otherwise as
        they were read. The rest is as in `rows`.
        """
        form, stamp = self.form, self._stamp(ts)
        diff = diff_of_row() if form.has_diff else F.lit(1)
        columns = {name: column_of(name) for name in self.columns}
        for name in form.key:
            is_text = isinstance(df.schema[name].dataType, StringType)
            # To a partition an empty text is no value.
            value = F.nullif(columns[name], F.lit("")) if is_text and name in partition_by else columns[name]
            columns[name] = with_key(value)
        first = self.columns[0]
        for name, known in sorted(told.items()):
            checked = unless_early(columns[first], F.expr(dict(form.times)[name]), name, known)
            columns[first] = F.when(diff > 0, checked).otherwise(columns[first])
        found = df.where(diff != 0) if form.has_diff else df
        if after is not None:
            found = found.where(F.unix_micros(stamp) > after)
        named = [column.alias(name) for name, column in columns.items()]
        if self.with_ts:
            named.append(stamp.alias(TS))
        order = F.struct(stamp, diff, F.monotonically_increasing_id())
        rows = found.select(*named, (diff > 0).alias(IS_THERE), order.alias(_ORDER))
        whole = F.struct(*(column_of(name) for name in rows.columns if name != _ORDER))
        newest = rows.groupBy(*(column_of(name) for name in form.key)).agg(F.max_by(whole, _ORDER).alias(_ORDER))
        return newest.select(f"{_ORDER}.*")

    def _stamp(self, ts: int) -> Column:
        return column_of(TS) if self.form.has_ts else F.timestamp_micros(F.lit(ts))


def write_parquet(df: DataFrame, directory: str, partition_by: tuple[str, ...] = ()) -> None:
    """Write rows as Parquet files into a directory that is not there yet. A task that fails leaves none."""
    with _settings(df.sparkSession):
        writer = df.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").mode("error")
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(f"file://{directory}")


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def _check(kind: Any, place: str) -> None:
    """Refuse types and names that tables do not have."""
    if isinstance(kind, str):
        if kind not in _KINDS and not kind.startswith("decimal("):
            raise UnsupportedFrame(
                f"The column {place} has the type {kind}.",
                rule=f"Tables have columns of the types {', '.join(_KINDS)} and decimal, and of those in others.",
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
            _check(field["type"], name)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                _check(kind[part], f"{place}.{part.removesuffix('Type')}")


def _bare(schema: Any) -> str:
    """Return a schema as JSON without what Spark says of columns for itself."""

    def bare(value: Any) -> Any:
        if isinstance(value, list):
            return [bare(one) for one in value]
        if isinstance(value, dict):
            return {name: {} if name == "metadata" else bare(one) for name, one in value.items()}
        return value

    return json.dumps(bare(schema))
