"""The files of a cell as a DataFrame: exactly the listed files, and an error for anything that cannot be parsed.

They are read as Spark does it, except where Spark would ignore a problem:

- Files are named one by one, and names are never taken for patterns.
- CSV or JSON that cannot be parsed fails the cell, unless the option `mode` says otherwise.
- A CSV header that differs from the schema, or from the header of the first file, fails the cell, unless
  `enforceSchema` is set.
- Without a schema, the columns are those of all files of the cell (Parquet, ORC; see `mergeSchema`).
- Timestamps without an offset in CSV and JSON are in the source's time zone (see `timeZone`).

Directories such as day=2020-01-01 are columns if `basePath` names the directory above them. This module also converts
the times of rows to microseconds, and exceptions from inside Spark to Floodmark's errors.
"""

import os
import re
from collections.abc import Sequence
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from floodmark.errors import (
    FloodmarkError,
    InvalidOption,
    MissingPackage,
    SourceFailed,
    SourceValueUnfit,
    UnsupportedFrame,
    WatermarkMissing,
)
from floodmark.ingest import FilesSource, PlannedRange, Range
from floodmark.ingest.calendar.clock import wall_spans, zone_of
from floodmark.ingest.extract.files import FILE_COLUMN, ListedFile, check_reader_options, require_unchanged
from floodmark.ingest.job.source import FILE_TIME_COLUMN
from floodmark.spark.columns import column_of, require_field

_PATTERNS: Final = re.compile(r"[{}\[\]*?\\]")
_READER_FORMATS: Final = {"binary": "binaryFile"}
_TEXT_FORMATS: Final = ("csv", "json")
_MERGED_FORMATS: Final = ("parquet", "orc")
_FIXED_SCHEMAS: Final = {
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
# Hadoop's default local file system fails on file names with a colon when it looks for their checksum files.
_WITHOUT_CHECKSUMS: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def read_files(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], row: PlannedRange, zone: str
) -> DataFrame | None:
    """Return the rows of a planned range from exactly these files; `zone` is used if the source has no time zone.

    They have the columns of the files, then `_file`, the path, and `_file_time`, the time of the file. If rows have
    their own times (a column of type timestamp, timestamp_ntz, date or ISO text), there is no `_file_time`, and rows
    are filtered to the range. A wall time that occurs twice counts as the later one. A row without a time fails the
    cell.

    Without files the result has no rows; it is None if the columns are not known either. Pass an exception from
    reading the rows to `reading_error`.
    """
    check_reader_options(source)
    require_unchanged(files)
    schema = _declared_schema(source)
    if schema is None and source.format in _TEXT_FORMATS:
        files = [file for file in files if file.size]  # Spark cannot infer columns from empty files
    if not files:
        return None if schema is None else _add_file_columns(spark, spark.createDataFrame([], schema), files, source)
    try:
        frame = _load(spark, source, files, source.zone or zone, schema if source.schema is not None else None)
        if source.column is None:
            return _add_file_columns(spark, frame, files, source)
        return _filter_by_time(spark, source, files, row, source.zone or zone, frame)
    except FloodmarkError:
        raise
    except Exception as error:  # errors of tasks are not always PySparkException
        raise reading_error(error, source, files) from error


def reading_error(error: Exception, source: FilesSource, files: Sequence[ListedFile]) -> FloodmarkError:
    """Return the FloodmarkError for an exception that Spark has raised while reading the files of a cell."""
    if isinstance(error, FloodmarkError):
        return error
    try:
        require_unchanged(files)
    except FloodmarkError as changed:
        return changed
    message = str(error)
    if "AVRO_DATA_SOURCE_NOT_ENABLED" in message:
        return MissingPackage(
            "This Spark cannot read Avro.",
            rule="Avro is a Spark package that must be loaded when the session starts.",
            remedy="Set spark.jars.packages to org.apache.spark:spark-avro_2.13:VERSION, with the version of Spark.",
            package="spark-avro",
        )
    return parse_raised(message, column=source.column) or SourceFailed(
        f"Spark cannot read the files: {summarize_error(message) or type(error).__name__}",
        rule="Every file of a cell must fit the format, the schema and the options of the source.",
        remedy="Repair the file, or change the source; for CSV and JSON the option mode=PERMISSIVE accepts bad rows.",
        format=source.format,
    )


def _declared_schema(source: FilesSource) -> StructType | None:
    if source.schema is None:
        return _FIXED_SCHEMAS.get(source.format)
    try:
        schema = StructType.fromDDL(source.schema)
    except PySparkException as error:
        raise _invalid_schema(source.schema, str(error).strip().splitlines()[0]) from error
    if not isinstance(schema, StructType):
        raise _invalid_schema(source.schema, f"it is {schema.simpleString()}.")
    return schema


def _invalid_schema(text: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"The schema {text!r} cannot be used: {why}",
        rule="It must be a Spark DDL schema: columns and their types.",
        remedy="Write for example 'id BIGINT, at TIMESTAMP'.",
        option="schema",
    )


def _load(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], zone: str, schema: StructType | None
) -> DataFrame:
    reader: DataFrameReader = spark.read.format(_READER_FORMATS.get(source.format, source.format))
    for name, value in _reader_options(source, files, zone, infers_schema=schema is None).items():
        reader = reader.option(name, value)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([_escape_pattern(file.path) for file in files])


def _reader_options(
    source: FilesSource, files: Sequence[ListedFile], zone: str, *, infers_schema: bool
) -> dict[str, str]:
    chosen = {name.lower(): value for name, value in source.options.items()}
    options = {"timeZone": zone, "mode": "FAILFAST"} if source.format in _TEXT_FORMATS else {}
    if source.format == "csv" and chosen.get("header", "").lower() == "true":
        options["enforceSchema"] = "false"
    if source.format in _MERGED_FORMATS and infers_schema:
        options["mergeSchema"] = "true"
    if any(":" in os.path.basename(file.path) for file in files):
        options |= _WITHOUT_CHECKSUMS
    options = {name: value for name, value in options.items() if name.lower() not in chosen} | dict(source.options)
    return options | {"recursiveFileLookup": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def _escape_pattern(path: str) -> str:
    """Return a path as a pattern that matches only this path."""
    # Spark's option to disable patterns reads files more than once if there are several paths.
    literal = _PATTERNS.sub(r"\\\g<0>", path)
    if literal != path and ":" in path:
        raise SourceFailed(
            f"The path {path!r} has a colon and a pattern character.",
            rule="Hadoop can read a path with either of them, but not with both.",
            remedy=r"Rename the file without the colon, or without *, ?, [, ], {, } and \.",
            path=path,
        )
    return literal


def _filter_by_time(
    spark: SparkSession,
    source: FilesSource,
    files: Sequence[ListedFile],
    row: PlannedRange,
    zone: str,
    frame: DataFrame,
) -> DataFrame:
    """Return the rows whose own times are in the range."""
    assert source.column is not None
    field = require_field(frame.schema.fields, source.column, "column")
    is_parsed = source.format in _TEXT_FORMATS and isinstance(field.dataType, TimestampType)
    pattern = None
    if is_parsed:
        # Read the column as text: of an hour that occurs twice Spark would take the first, whose cell may be done.
        field = StructField(field.name, StringType())
        fields = [field if other.name == field.name else other for other in frame.schema.fields]
        frame = _load(spark, source, files, zone, StructType(fields))
        pattern = next((value for name, value in source.options.items() if name.lower() == "timestampformat"), None)
    frame = _add_file_columns(spark, frame, files, source)
    column = column_of(field.name)
    at = column_moments(field, column, row.range, zone_of(zone), pattern, exact=False)
    frame = frame.filter(is_within(at, column, field.name, column_of(FILE_COLUMN), row.range))
    if not is_parsed:
        return frame
    return frame.withColumn(
        field.name, F.timestamp_micros(column_moments(field, column, row.range, zone_of(zone), pattern))
    )


def _add_file_columns(
    spark: SparkSession, frame: DataFrame, files: Sequence[ListedFile], source: FilesSource
) -> DataFrame:
    """Return the rows with the path of their file, and with its time if the source uses file times."""
    added = [FILE_COLUMN] if source.time == "column" else [FILE_COLUMN, FILE_TIME_COLUMN]
    for name in frame.columns:
        if name.lower() in added:
            raise UnsupportedFrame(
                f"The files have a column {name!r}.",
                rule=f"Floodmark adds the {'columns' if added[1:] else 'column'} {' and '.join(added)} to the rows.",
                remedy="Give the column another name in the schema of the source, or in the files.",
                column=name,
            )
    if not files:
        empty = {FILE_COLUMN: F.lit(None).cast("string"), FILE_TIME_COLUMN: F.lit(None).cast("timestamp")}
        return frame.select("*", *(empty[name].alias(name) for name in added))
    path = _file_path(frame)
    if source.time == "column":
        return frame.select("*", path.alias(FILE_COLUMN))
    if len(files) == 1:
        return frame.select(
            "*", path.alias(FILE_COLUMN), F.timestamp_micros(F.lit(files[0].time)).alias(FILE_TIME_COLUMN)
        )
    times = pa.table({FILE_TIME_COLUMN: [file.time for file in files], "path": [file.path for file in files]})
    joined = frame.select("*", path.alias(FILE_COLUMN)).join(
        F.broadcast(spark.createDataFrame(times).toDF(FILE_TIME_COLUMN, "\0path")),
        F.col(FILE_COLUMN) == column_of("\0path"),
        "left",
    )
    unlisted = raise_in_spark(
        SourceFailed,
        F.concat(column_of(FILE_COLUMN), F.lit(" was read and is not listed.")),
        "Only listed files may be read.",
        "Rename the file, so that its name has only letters, digits, '-', '_' and '.'.",
    )
    time = F.timestamp_micros(F.coalesce(column_of(FILE_TIME_COLUMN), unlisted))
    return joined.select(
        *(column_of(name) for name in frame.columns), column_of(FILE_COLUMN), time.alias(FILE_TIME_COLUMN)
    )


def _file_path(frame: DataFrame) -> Column:
    """Return the path of a row's file as it is listed, from Spark's URI."""
    uri = frame.metadataColumn("_metadata")["file_path"]
    plain = F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, "^file:/+", "/")


_DAY: Final = 86_400_000_000
_CLOCK: Final = r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_PLAIN: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}({_CLOCK})?$"
_ZONED: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK} ?(Z|[+-]\d{{2}}(:?\d{{2}})?)$"
# Spark parses an offset only after seconds, and only with a colon.
_SHORT_OFFSETS: Final = (
    (r"([T ]\d{2}:\d{2})( ?[Z+-])", "$1:00$2"),
    (r"([+-]\d{2})(\d{2})$", "$1:$2"),
    (r"(:.*[+-]\d{2})$", "$1:00"),
)
_QUOTED: Final = re.compile(r"'[^']*'")
_ZONE_LETTERS: Final = re.compile(r"[VzOXxZ]")
_CAUSE_PREFIX: Final = re.compile(r"(?:: |Caused by: )(?:[\w.$]+(?:Exception|Error): )?")
_RAISED_KINDS: Final[dict[str, type[FloodmarkError]]] = {
    kind.code: kind for kind in (SourceFailed, SourceValueUnfit, WatermarkMissing)
}
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)\s*SQLSTATE", re.DOTALL)


def column_moments(
    field: StructField, text: Column, of: Range, zone: ZoneInfo, pattern: str | None = None, *, exact: bool = True
) -> Column:
    """Return the times of a column in microseconds: exact inside the range, and outside of it on the correct side.

    A value that is not a time is null. `pattern` is Spark's datetime pattern of text; by default ISO 8601. Without
    `exact`, times inside the range are only known to be inside, which is cheaper in zones with many clock changes.
    """
    kind: DataType = field.dataType
    if isinstance(kind, TimestampType):
        return F.unix_micros(text)
    if isinstance(kind, TimestampNTZType):
        return _moments_of_walls(_wall_micros(text), of, zone, exact)
    if isinstance(kind, DateType):
        return _moments_of_walls(F.unix_date(text).cast("bigint") * _DAY, of, zone, exact)
    if not isinstance(kind, StringType):
        raise UnsupportedFrame(
            f"The column {field.name!r} is of type {kind.simpleString()}.",
            rule="The time of a row must be a timestamp, a date or ISO 8601 text.",
            remedy="Name another column, or give it such a type in the schema of the source.",
            column=field.name,
        )
    if pattern is not None:
        if _ZONE_LETTERS.search(_QUOTED.sub("", pattern)):
            return F.unix_micros(F.to_timestamp(text, pattern))
        return _moments_of_walls(_wall_micros(F.to_timestamp_ntz(text, F.lit(pattern))), of, zone, exact)
    trimmed = F.trim(text)
    full = trimmed
    for short, long in _SHORT_OFFSETS:
        full = F.regexp_replace(full, short, long)
    zoned = F.unix_micros(full.try_cast("timestamp"))
    plain = _moments_of_walls(_wall_micros(trimmed.try_cast("timestamp_ntz")), of, zone, exact)
    return F.when(trimmed.rlike(_ZONED), zoned).when(trimmed.rlike(_PLAIN), plain)


def is_within(at: Column, column: Column, name: str, path: Column, of: Range) -> Column:
    """Return whether rows are in a range; a row whose time is missing or not a time fails the job."""
    missing = raise_in_spark(
        WatermarkMissing,
        F.concat(F.lit(f"A row has no {name!r}, in "), path, F.lit(".")),
        "Every row must have a time: otherwise it belongs to no range.",
        "Give the row a time, or set the source's time to that of the file's name or modification.",
    )
    unfit = raise_in_spark(
        SourceValueUnfit,
        F.concat(F.lit(f"A row has {name!r} = "), F.substring(column.cast("string"), 1, 40), F.lit(", in "), path),
        "The time of a row must be a timestamp, a date or ISO 8601 text.",
        "Repair the file, or give the column another type in the schema of the source.",
    )
    return (
        F.when(column.isNull(), missing).when(at.isNull(), unfit).otherwise((at >= F.lit(of.lo)) & (at < F.lit(of.hi)))
    )


def raise_in_spark(kind: type[FloodmarkError], fact: Column, rule: str, remedy: str) -> Column:
    """Return a column that fails the job when it is evaluated, with an error that `parse_raised` recognises."""
    # A newline separates the sentences, so it is removed from names.
    return F.raise_error(F.concat_ws("\n", F.lit(kind.code), F.translate(fact, "\n", " "), F.lit(rule), F.lit(remedy)))


def parse_raised(message: str, **fields: object) -> FloodmarkError | None:
    r"""Return the error that `raise_in_spark` has raised, from the message of Spark's exception.

    >>> print(
    ...     parse_raised("[USER_RAISED_EXCEPTION] source-failed\nIt is so.\nIt must not.\nChange it. SQLSTATE: P0001")
    ... )
    It is so. It must not. Change it. [source-failed]
    """
    match = _RAISED.search(message)
    parts = match[1].split("\n") if match else []
    if len(parts) != 4 or parts[0] not in _RAISED_KINDS:
        return None
    return _RAISED_KINDS[parts[0]](parts[1], rule=parts[2], remedy=parts[3], **fields)


def summarize_error(message: str) -> str:
    r"""Return the message of a Spark exception and its first cause, without class names and stack traces.

    >>> summarize_error(
    ...     "An error occurred.\n: a.b.SparkException: It is so.\n\tat a.b.c\nCaused by: x.IOError: It broke."
    ... )
    'It is so. It broke.'
    """
    blocks: list[list[str]] = [[]]
    for line in message.splitlines():
        if match := _CAUSE_PREFIX.match(line):
            blocks.append([line[match.end() :].strip()])
        elif line.startswith("\t"):
            blocks.append([])
        elif line.strip() and (blocks[-1] or len(blocks) == 1):
            blocks[-1].append(line.strip())
    sentences = [" ".join(block) for block in blocks if block]
    # The first line of Py4J says only that an error occurred.
    sentences = sentences[1:] if sentences and sentences[0].startswith("An error occurred") else sentences
    return " ".join(dict.fromkeys(sentences[:2]))


def _wall_micros(wall: Column) -> Column:
    """Return a wall time (timestamp_ntz) as microseconds, independent of the session's time zone."""
    seconds = F.extract(F.lit("SECOND"), wall) * F.lit(1_000_000)
    return (
        F.unix_date(wall.cast("date")).cast("bigint") * _DAY
        + F.hour(wall).cast("bigint") * F.lit(3_600_000_000)
        + F.minute(wall).cast("bigint") * F.lit(60_000_000)
        + seconds.cast("bigint")
    )


def _moments_of_walls(wall: Column, of: Range, zone: ZoneInfo, exact: bool) -> Column:
    """Return the moments of wall times; a wall time that occurs twice counts as the later one."""
    spans = wall_spans(of, zone)
    if not exact:
        spans = (spans[0], spans[-1])
    result = F.when(wall >= F.lit(spans[-1].wall), F.lit(of.hi))
    for span, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        inside = F.greatest(F.lit(span.moment), F.least(wall - F.lit(span.offset), F.lit(after.moment - 1)))
        at = inside if exact else F.lit(of.lo)
        result = result.when(wall >= F.lit(span.wall), at)
    return result.when(wall.isNotNull(), F.lit(of.lo - 1))
