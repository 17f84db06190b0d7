"""The files of a cell as a DataFrame: exactly those that were listed, and nothing that was not understood.

How they are read differs from Spark's own ways only where those would be silent:

- The files are named one by one, and a name means itself, whatever is in it.
- CSV and JSON that cannot be parsed fails the cell, unless the option `mode` says otherwise.
- A header of CSV that names other columns than the schema, or than the header of the first file, fails the cell, unless
  `enforceSchema` is set.
- Without a schema, columns are those of all files of the cell, not of one of them (Parquet, ORC; see `mergeSchema`).
- Timestamps in CSV and JSON are of the source's zone where they have no offset (see `timeZone`).

Directories such as day=2020-01-01 are columns if `basePath` names the directory above them.
"""

import os
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from floodmark.errors import FloodmarkError, InvalidOption, MissingPackage, SourceFailed, UnsupportedFrame
from floodmark.extract import ListedFile, require_unchanged
from floodmark.extract._files import FILE, check_options
from floodmark.ingest import FilesSource, Row
from floodmark.ingest._calendar import zone_of
from floodmark.ingest._fit import FILE_TIME
from floodmark.spark._columns import column_of, known_field
from floodmark.spark._file_cell_times import first_words, is_within, moments, raised, raising

_PATTERNS: Final = re.compile(r"[{}\[\]*?\\]")
_READERS: Final = {"binary": "binaryFile"}
_TEXTS: Final = ("csv", "json")
_MERGED: Final = ("parquet", "orc")
_FIXED: Final = {
    "text": StructType([StructField("value", StringType())]),
    "binary": StructType(
        [
            StructField("path", StringType()),
            StructField("modificationTime", TimestampType()),
            StructField("length", LongType()),
            StructField("content", BinaryType()),
        ]
    ),
}
# Hadoop keeps a checksum beside each file, and cannot name it if there is a colon in the name of the file.
_WITHOUT_CHECKSUMS: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def read_files(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], row: Row, zone: str
) -> DataFrame | None:
    """Return the rows of a row of a plan, of exactly these files; `zone` counts where the source has none.

    They have the columns of the files, then `_file`, the path, and `_file_time`, the time of the file, unless rows have
    times of their own. Those are filtered to the range: a column of type timestamp, timestamp_ntz or date, or an ISO
    text. A wall time that comes twice counts as the later one. A row without a time fails the cell.

    Without files there are no rows; if nothing says which columns they would have, None is returned. What goes wrong
    when the rows are read is told by `reading_failed`.
    """
    check_options(source)
    require_unchanged(files)
    schema = _schema(source)
    if schema is None and source.format in _TEXTS:
        files = [file for file in files if file.size]  # no column can be found in the others
    if not files:
        return None if schema is None else _placed(spark, spark.createDataFrame([], schema), files, source)
    try:
        frame = _loaded(spark, source, files, source.zone or zone, schema if source.schema is not None else None)
        if source.column is None:
            return _placed(spark, frame, files, source)
        return _filtered(spark, source, files, row, source.zone or zone, frame)
    except FloodmarkError:
        raise
    except Exception as error:  # what Spark meets in its tasks does not come as an error of PySpark's
        raise reading_failed(error, source, files) from error


def reading_failed(error: Exception, source: FilesSource, files: Sequence[ListedFile]) -> FloodmarkError:
    """Return what to say of an error that Spark has met in the files of a cell."""
    if isinstance(error, FloodmarkError):
        return error
    try:
        require_unchanged(files)
    except FloodmarkError as changed:
        return changed
    said = str(error)
    if "AVRO_DATA_SOURCE_NOT_ENABLED" in said:
        return MissingPackage(
            "This Spark cannot read Avro.",
            rule="Avro is a package of Spark's that a session must be started with.",
            remedy="Set spark.jars.packages to org.apache.spark:spark-avro_2.13:VERSION, with the version of Spark.",
            package="spark-avro",
        )
    return raised(said, column=source.column) or SourceFailed(
        f"Spark cannot read the files: {first_words(said) or type(error).__name__}",
        rule="Every file of a cell is read whole, as the format, the schema and the options of the source say.",
        remedy="Correct the file, or the source; CSV and JSON that cannot be parsed can be taken with the option mode.",
        format=source.format,
    )


def _schema(source: FilesSource) -> StructType | None:
    if source.schema is None:
        return _FIXED.get(source.format)
    try:
        schema = StructType.fromDDL(source.schema)
    except PySparkException as error:
        raise _no_schema(source.schema, str(error).strip().splitlines()[0]) from error
    if not isinstance(schema, StructType):
        raise _no_schema(source.schema, f"it is {schema.simpleString()}.")
    return schema


def _no_schema(written: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"The schema {written!r} cannot be used: {why}",
        rule="A schema names columns and their types, as Spark writes them.",
        remedy="Write for example 'id BIGINT, at TIMESTAMP'.",
        option="schema",
    )


def _loaded(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], zone: str, schema: StructType | None
) -> DataFrame:
    reader: DataFrameReader = spark.read.format(_READERS.get(source.format, source.format))
    for name, value in _options(source, files, zone, is_found=schema is None).items():
        reader = reader.option(name, value)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([_literal(file.path) for file in files])


def _options(source: FilesSource, files: Sequence[ListedFile], zone: str, *, is_found: bool) -> dict[str, str]:
    chosen = {name.lower(): value for name, value in source.options.items()}
    options = {"timeZone": zone, "mode": "FAILFAST"} if source.format in _TEXTS else {}
    if source.format == "csv" and chosen.get("header", "").lower() == "true":
        options["enforceSchema"] = "false"
    if source.format in _MERGED and is_found:
        options["mergeSchema"] = "true"
    if any(":" in os.path.basename(file.path) for file in files):
        options |= _WITHOUT_CHECKSUMS
    options = {name: value for name, value in options.items() if name.lower() not in chosen} | dict(source.options)
    return options | {"recursiveFileLookup": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def _literal(path: str) -> str:
    """Return a path as a pattern that Hadoop takes for nothing but itself."""
    # Spark has an option for paths that are no patterns, but with several it then reads the others more than once.
    literal = _PATTERNS.sub(r"\\\g<0>", path)
    if literal != path and ":" in path:
        raise SourceFailed(
            f"The path {path!r} has a colon, and a character that is a pattern to Hadoop.",
            rule="Hadoop can read a path with either of them, but not with both.",
            remedy=r"Rename it without the colon, or without *, ?, [, ], {, } and \.",
            path=path,
        )
    return literal


def _filtered(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], row: Row, zone: str, frame: DataFrame
) -> DataFrame:
    """Return the rows whose own times are in the range."""
    assert source.column is not None
    field = known_field(frame.schema.fields, source.column, "column")
    is_parsed = source.format in _TEXTS and isinstance(field.dataType, TimestampType)
    pattern = None
    if is_parsed:
        # Spark would take the first of two hours, and what a later hour has written would be in no cell any more.
        field = StructField(field.name, StringType())
        kept = [field if one.name == field.name else one for one in frame.schema.fields]
        frame = _loaded(spark, source, files, zone, StructType(kept))
        pattern = next((value for name, value in source.options.items() if name.lower() == "timestampformat"), None)
    frame = _placed(spark, frame, files, source)
    column = column_of(field.name)
    at = moments(field, column, row.range, zone_of(zone), pattern, exact=False)
    frame = frame.filter(is_within(at, column, field.name, column_of(FILE), row.range))
    if not is_parsed:
        return frame
    return frame.withColumn(field.name, F.timestamp_micros(moments(field, column, row.range, zone_of(zone), pattern)))


def _placed(spark: SparkSession, frame: DataFrame, files: Sequence[ListedFile], source: FilesSource) -> DataFrame:
    """Return the rows with their file, and with its time where it has one."""
    added = [FILE] if source.time == "column" else [FILE, FILE_TIME]
    for name in frame.columns:
        if name.lower() in added:
            raise UnsupportedFrame(
                f"The files have a column {name!r}.",
                rule=f"Rows get the {'columns' if added[1:] else 'column'} {' and '.join(added)}.",
                remedy="Give the column another name in the schema of the source, or in the files.",
                column=name,
            )
    if not files:
        known = {FILE: F.lit(None).cast("string"), FILE_TIME: F.lit(None).cast("timestamp")}
        return frame.select("*", *(known[name].alias(name) for name in added))
    path = _path(frame)
    if source.time == "column":
        return frame.select("*", path.alias(FILE))
    if len(files) == 1:
        return frame.select("*", path.alias(FILE), F.timestamp_micros(F.lit(files[0].time)).alias(FILE_TIME))
    times = pa.table({FILE_TIME: [file.time for file in files], "path": [file.path for file in files]})
    joined = frame.select("*", path.alias(FILE)).join(
        F.broadcast(spark.createDataFrame(times).toDF(FILE_TIME, "\0path")), F.col(FILE) == column_of("\0path"), "left"
    )
    unknown = raising(
        SourceFailed,
        F.concat(column_of(FILE), F.lit(" was read and is not listed.")),
        "Exactly those files are read that were listed.",
        "Rename the file.",
    )
    time = F.timestamp_micros(F.coalesce(column_of(FILE_TIME), unknown))
    return joined.select(*(column_of(name) for name in frame.columns), column_of(FILE), time.alias(FILE_TIME))


def _path(frame: DataFrame) -> Column:
    """Return the path of a row's file, as it is listed; Spark has a URI."""
    uri = frame.metadataColumn("_metadata")["file_path"]
    plain = F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, "^file:/+", "/")
