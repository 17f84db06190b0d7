"""Merging by key on Spark: of each key the newest row stays, be it in the table already or just read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from floodmark.landing import LiveFile, Merge
from floodmark.spark._columns import column_of

FILE: Final = "_floodmark_file"
_NEW: Final = "_floodmark_new"
_PLACE: Final = "_floodmark_place"
_MOST_TASKS: Final = 64


@dataclass(frozen=True, slots=True)
class Merging:
    """The rows that are to be written, and the live files that give way for them."""

    rows: DataFrame
    gone: tuple[str, ...]
    kept: tuple[DataFrame, ...]
    """What Spark keeps until the rows are written."""

    def over(self) -> None:
        """Let Spark forget what it keeps."""
        for frame in self.kept:
            frame.unpersist()


def merging(spark: SparkSession, merge: Merge, schema: pa.Schema) -> Merging:
    """Return what merging comes to. Of two rows that are equally new the one that was just read stays."""
    keys, newest_by, live = merge.keys, merge.newest_by, merge.live
    best = _newest(frame_of(spark, merge.new, schema), keys, newest_by)
    if not live:
        return Merging(best, (), ())
    best.persist()
    old = frame_of(spark, live, schema, [*keys, newest_by] if newest_by not in keys else list(keys), with_file=True)
    meets = old.join(best.select(*_named(keys), column_of(newest_by).alias(_NEW)), list(keys)).persist()
    wins = column_of(newest_by).isNull() | (F.col(_NEW) >= column_of(newest_by))
    wins = F.coalesce(wins, F.lit(False))
    gone = {file for (file,) in meets.where(wins).select(FILE).distinct().collect()}
    rows = best.join(meets.where(~wins).select(*_named(keys)), list(keys), "left_anti")
    if gone:
        left = frame_of(spark, [one for one in live if one.path in gone], schema)
        stays = left.join(meets.where(wins).select(*_named(keys)), list(keys), "left_anti")
        rows = rows.select(*_named(schema.names)).unionAll(stays.select(*_named(schema.names)))
    return Merging(rows, tuple(sorted(gone)), (best, meets))


def frame_of(
    spark: SparkSession,
    files: Sequence[LiveFile],
    schema: pa.Schema,
    columns: list[str] | None = None,
    *,
    with_file: bool = False,
) -> DataFrame:
    """Return the rows of files as a DataFrame, perhaps with the file that each is in."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    told = wanted.append(pa.field(FILE, pa.string())) if with_file else wanted
    parts = spark.range(0, len(files), 1, max(1, min(len(files), _MOST_TASKS)))
    read = partial(_read, tuple(files), schema, wanted.names, with_file)
    return parts.mapInArrow(read, from_arrow_schema(told, prefer_timestamp_ntz=True))


def _read(
    files: Sequence[LiveFile],
    schema: pa.Schema,
    columns: list[str],
    with_file: bool,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for rows in files[number].batches(schema, columns):
                path = pa.repeat(pa.scalar(files[number].path), rows.num_rows)
                yield rows.append_column(FILE, path) if with_file else rows


def _newest(rows: DataFrame, keys: tuple[str, ...], newest_by: str) -> DataFrame:
    """Return one row of each key, the newest; NULL is older than anything."""
    order = F.struct(column_of(newest_by), F.col(_PLACE))
    whole = F.max_by(F.struct(*_named(rows.columns)), order)
    best = rows.withColumn(_PLACE, F.monotonically_increasing_id()).groupBy(*_named(keys)).agg(whole.alias(_NEW))
    return best.select(*(F.col(_NEW).getField(name).alias(name) for name in rows.columns))


def _named(names: Iterable[str]) -> list[Column]:
    return [column_of(name) for name in names]
