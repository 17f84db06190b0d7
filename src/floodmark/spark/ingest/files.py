"""The files of a cell as a DataFrame: exactly those that were listed, and nothing that was not understood.

How they are read differs from Spark's own ways only where those would be silent:

- The files are named one by one, and a name means itself, whatever is in it.
- CSV and JSON that cannot be parsed fails the cell, unless the option `mode` says otherwise.
- A header of CSV that names other columns than the schema, or than the header of the first file, fails the cell,
  unless `enforceSchema` is set.
- Without a schema, columns are those of all files of the cell, not of one of them (Parquet, ORC; see
  `mergeSchema`).
- Timestamps in CSV and JSON are of the source's zone where they have no offset (see `timeZone`).

Directories such as day=2020-01-01 are columns if `basePath` names the directory above them. The times that rows
have themselves become microseconds here, and errors raised inside Spark become Floodmark's again.
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
# Hadoop keeps a checksum beside each file, and cannot name it if there is a colon in the name of the file.
_WITHOUT_CHECKSUMS: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def read_files(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], row: PlannedRange, zone: str
) -> DataFrame | None:
    """Return the rows of a row of a plan, of exactly these files; `zone` counts where the source has none.

    They have the columns of the files, then `_file`, the path, and `_file_time`, the time of the file, unless rows have
    times of their own. Those are filtered to the range: a column of type timestamp, timestamp_ntz or date, or an ISO
    text. A wall time that comes twice counts as the later one. A row without a time fails the cell.

    Without files there are no rows; if nothing says which columns they would have, None is returned. What goes wrong
    when the rows are read is told by `reading_error`.
    """
    check_reader_options(source)
    require_unchanged(files)
    schema = _declared_schema(source)
    if schema is None and source.format in _TEXT_FORMATS:
        files = [file for file in files if file.size]  # no column can be found in the others
    if not files:
        return None if schema is None else _add_file_columns(spark, spark.createDataFrame([], schema), files, source)
    try:
        frame = _load(spark, source, files, source.zone or zone, schema if source.schema is not None else None)
        if source.column is None:
            return _add_file_columns(spark, frame, files, source)
        return _filter_by_time(spark, source, files, row, source.zone or zone, frame)
    except FloodmarkError:
        raise
    except Exception as error:  # what Spark meets in its tasks does not come as an error of PySpark's
        raise reading_error(error, source, files) from error


def reading_error(error: Exception, source: FilesSource, files: Sequence[ListedFile]) -> FloodmarkError:
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
    return parse_raised(said, column=source.column) or SourceFailed(
        f"Spark cannot read the files: {summarize_error(said) or type(error).__name__}",
        rule="Every file of a cell is read whole, as the format, the schema and the options of the source say.",
        remedy="Correct the file, or the source; CSV and JSON that cannot be parsed can be taken with the option mode.",
        format=source.format,
    )


def _declared_schema(source: FilesSource) -> StructType | None:
    if source.schema is None:
        return _FIXED_SCHEMAS.get(source.format)
    try:
        schema = StructType.fromDDL(source.schema)
    except PySparkException as error:
        raise _schema_refused(source.schema, str(error).strip().splitlines()[0]) from error
    if not isinstance(schema, StructType):
        raise _schema_refused(source.schema, f"it is {schema.simpleString()}.")
    return schema


def _schema_refused(written: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"The schema {written!r} cannot be used: {why}",
        rule="A schema names columns and their types, as Spark writes them.",
        remedy="Write for example 'id BIGINT, at TIMESTAMP'.",
        option="schema",
    )


def _load(
    spark: SparkSession, source: FilesSource, files: Sequence[ListedFile], zone: str, schema: StructType | None
) -> DataFrame:
    reader: DataFrameReader = spark.read.format(_READER_FORMATS.get(source.format, source.format))
    for name, value in _reader_options(source, files, zone, is_found=schema is None).items():
        reader = reader.option(name, value)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load([_escape_pattern(file.path) for file in files])


def _reader_options(source: FilesSource, files: Sequence[ListedFile], zone: str, *, is_found: bool) -> dict[str, str]:
    chosen = {name.lower(): value for name, value in source.options.items()}
    options = {"timeZone": zone, "mode": "FAILFAST"} if source.format in _TEXT_FORMATS else {}
    if source.format == "csv" and chosen.get("header", "").lower() == "true":
        options["enforceSchema"] = "false"
    if source.format in _MERGED_FORMATS and is_found:
        options["mergeSchema"] = "true"
    if any(":" in os.path.basename(file.path) for file in files):
        options |= _WITHOUT_CHECKSUMS
    options = {name: value for name, value in options.items() if name.lower() not in chosen} | dict(source.options)
    return options | {"recursiveFileLookup": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def _escape_pattern(path: str) -> str:
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
        # Spark would take the first of two hours, and what a later hour has written would be in no cell any more.
        field = StructField(field.name, StringType())
        kept = [field if one.name == field.name else one for one in frame.schema.fields]
        frame = _load(spark, source, files, zone, StructType(kept))
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
    """Return the rows with their file, and with its time where it has one."""
    added = [FILE_COLUMN] if source.time == "column" else [FILE_COLUMN, FILE_TIME_COLUMN]
    for name in frame.columns:
        if name.lower() in added:
            raise UnsupportedFrame(
                f"The files have a column {name!r}.",
                rule=f"Rows get the {'columns' if added[1:] else 'column'} {' and '.join(added)}.",
                remedy="Give the column another name in the schema of the source, or in the files.",
                column=name,
            )
    if not files:
        known = {FILE_COLUMN: F.lit(None).cast("string"), FILE_TIME_COLUMN: F.lit(None).cast("timestamp")}
        return frame.select("*", *(known[name].alias(name) for name in added))
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
    unknown = raise_in_spark(
        SourceFailed,
        F.concat(column_of(FILE_COLUMN), F.lit(" was read and is not listed.")),
        "Exactly those files are read that were listed.",
        "Rename the file.",
    )
    time = F.timestamp_micros(F.coalesce(column_of(FILE_TIME_COLUMN), unknown))
    return joined.select(
        *(column_of(name) for name in frame.columns), column_of(FILE_COLUMN), time.alias(FILE_TIME_COLUMN)
    )


def _file_path(frame: DataFrame) -> Column:
    """Return the path of a row's file, as it is listed; Spark has a URI."""
    uri = frame.metadataColumn("_metadata")["file_path"]
    plain = F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(plain, "^file:/+", "/")


_DAY: Final = 86_400_000_000
_CLOCK: Final = r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_PLAIN: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}({_CLOCK})?$"
_ZONED: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK} ?(Z|[+-]\d{{2}}(:?\d{{2}})?)$"
# Spark wants offsets with seconds before them, and with a colon.
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
    """Return the moments of a column in microseconds: exact within a range, and outside it on the right side of it.

    NULL is what is no time. `pattern` is how texts are written, as Spark says it; by default as ISO does. What need not
    be exact, but within the range or not, costs less where clocks are set often.
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
            rule="The time of a row is a timestamp, a date or an ISO text.",
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
    """Return whether rows are of a range; a row without a time, or with something else in its place, is an error."""
    missing = raise_in_spark(
        WatermarkMissing,
        F.concat(F.lit(f"A row has no {name!r}, in "), path, F.lit(".")),
        "Every row has a time; else no range would ever read it.",
        "Give it one, or place the files in time by their names or when they were modified.",
    )
    unfit = raise_in_spark(
        SourceValueUnfit,
        F.concat(F.lit(f"A row has {name!r} = "), F.substring(column.cast("string"), 1, 40), F.lit(", in "), path),
        "The time of a row is a timestamp, a date or an ISO text.",
        "Correct the file, or give the column another type in the schema of the source.",
    )
    return (
        F.when(column.isNull(), missing).when(at.isNull(), unfit).otherwise((at >= F.lit(of.lo)) & (at < F.lit(of.hi)))
    )


def raise_in_spark(kind: type[FloodmarkError], fact: Column, rule: str, remedy: str) -> Column:
    """Return a column that fails the job when it is needed, with an error that `parse_raised` knows again."""
    # A name may have lines in it, and they are what parts the sentences here.
    return F.raise_error(F.concat_ws("\n", F.lit(kind.code), F.translate(fact, "\n", " "), F.lit(rule), F.lit(remedy)))


def parse_raised(said: str, **fields: object) -> FloodmarkError | None:
    r"""Return the error that a column has raised, from what Spark says of it.

    >>> print(
    ...     parse_raised("[USER_RAISED_EXCEPTION] source-failed\nIt is so.\nIt must not.\nChange it. SQLSTATE: P0001")
    ... )
    It is so. It must not. Change it. [source-failed]
    """
    found = _RAISED.search(said)
    parts = found[1].split("\n") if found else []
    if len(parts) != 4 or parts[0] not in _RAISED_KINDS:
        return None
    return _RAISED_KINDS[parts[0]](parts[1], rule=parts[2], remedy=parts[3], **fields)


def summarize_error(said: str) -> str:
    r"""Return what an error of Spark says, with its first cause, without the names of classes and lines of code.

    >>> summarize_error(
    ...     "An error occurred.\n: a.b.SparkException: It is so.\n\tat a.b.c\nCaused by: x.IOError: It broke."
    ... )
    'It is so. It broke.'
    """
    told: list[list[str]] = [[]]
    for line in said.splitlines():
        if match := _CAUSE_PREFIX.match(line):
            told.append([line[match.end() :].strip()])
        elif line.startswith("\t"):
            told.append([])
        elif line.strip() and (told[-1] or len(told) == 1):
            told[-1].append(line.strip())
    found = [" ".join(one) for one in told if one]
    # What Py4J says first is only that something went wrong.
    found = found[1:] if found and found[0].startswith("An error occurred") else found
    return " ".join(dict.fromkeys(found[:2]))


def _wall_micros(shown: Column) -> Column:
    """Return what a clock shows as a number, without asking the session for a zone."""
    seconds = F.extract(F.lit("SECOND"), shown) * F.lit(1_000_000)
    return (
        F.unix_date(shown.cast("date")).cast("bigint") * _DAY
        + F.hour(shown).cast("bigint") * F.lit(3_600_000_000)
        + F.minute(shown).cast("bigint") * F.lit(60_000_000)
        + seconds.cast("bigint")
    )


def _moments_of_walls(shown: Column, of: Range, zone: ZoneInfo, exact: bool) -> Column:
    """Return the moments of wall times, as `moment_of` does it for one."""
    spans = wall_spans(of, zone)
    if not exact:
        spans = (spans[0], spans[-1])
    result = F.when(shown >= F.lit(spans[-1].wall), F.lit(of.hi))
    for span, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        inside = F.greatest(F.lit(span.moment), F.least(shown - F.lit(span.offset), F.lit(after.moment - 1)))
        at = inside if exact else F.lit(of.lo)
        result = result.when(shown >= F.lit(span.wall), at)
    return result.when(shown.isNotNull(), F.lit(of.lo - 1))
