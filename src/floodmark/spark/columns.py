"""Columns by exact name, checks of a DataFrame's columns, and the metadata that marks its event-time column."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, TimestampType, VariantType

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, UnknownColumn, UnsupportedFrame

EVENT_TIME_METADATA: Final = "spark.watermarkDelayMs"
"""The entry in a column's metadata by which Spark recognises the event-time column."""
TIME_KEY_METADATA: Final = "floodmark.key"
"""The entry in the metadata of an event-time column that names its time key."""


def quote_name(name: str) -> str:
    """Return a column name quoted for Spark, so that dots and backticks are part of the name."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str) -> Column:
    """Return the column of exactly this name."""
    return F.col(quote_name(name))


def as_event_time(field: StructField) -> Column:
    """Return the column as Spark's event-time column.

    The condition is always true, but non-deterministic, so the optimizer pushes no operator below the select that has
    this column. Below it the column is no event time: a `left_semi` join there keeps its state for ever, and a window
    after the join closes never.
    """
    opaque = F.when(F.spark_partition_id() >= 0, column_of(field.name))
    return opaque.alias(field.name, metadata={**field.metadata, EVENT_TIME_METADATA: 0})


def require_streaming(df: DataFrame) -> None:
    """Raise UnsupportedFrame for a batch DataFrame."""
    if not df.isStreaming:
        raise UnsupportedFrame(
            "The DataFrame is not a streaming one.",
            rule="A watermark exists only in a streaming query.",
            remedy="Read it with spark.readStream; in a batch, filter the mark rows out.",
        )


def require_field(fields: list[StructField], name: str, role: str) -> StructField:
    """Return the one field of exactly this name; `role` is the parameter to name in errors."""
    if not isinstance(name, str):
        raise InvalidOption(
            f"{role} is a {type(name).__name__}.",
            rule="It must be the name of a column, as a string.",
            remedy=f"Pass its name, such as {role}='t'; compute it with df.withColumn first if it is an expression.",
            option=role,
            value=name,
        )
    matches = [field for field in fields if field.name == name]
    if not matches:
        names = [field.name for field in fields]
        raise UnknownColumn(
            f"There is no column {name!r} for {role}.",
            rule="It must be the exact name of a column at the top level of the DataFrame.",
            remedy=did_you_mean(name, names, otherwise=f"The columns are {', '.join(map(repr, names))}."),
            column=name,
            role=role,
            columns=names,
        )
    if len(matches) > 1:
        raise UnsupportedFrame(
            f"There are {len(matches)} columns {name!r}, and {role} names one.",
            rule="The name must be unique in the DataFrame.",
            remedy="Rename or drop all but one.",
            column=name,
            role=role,
        )
    return matches[0]


def require_timestamp_field(fields: list[StructField], name: str, role: str) -> StructField:
    """Return the one field of exactly this name, which must have the type timestamp."""
    field = require_field(fields, name, role)
    kind = field.dataType
    if not isinstance(kind, TimestampType):
        raise UnsupportedFrame(
            f"The column {name!r} for {role} is of type {kind.simpleString()}.",
            rule="Event times and marks are of type timestamp.",
            remedy=f"Convert it first, for example df.withColumn({name!r}, col({name!r}).cast('timestamp')).",
            column=name,
            role=role,
            type=kind.simpleString(),
        )
    return field


def require_comparable(field: StructField, role: str) -> None:
    """Raise UnsupportedFrame for a column whose values Spark cannot hash and compare."""
    if isinstance(field.dataType, MapType | VariantType):
        raise UnsupportedFrame(
            f"The column {field.name!r} for {role} is of type {field.dataType.simpleString()}.",
            rule="Values of this type cannot be compared.",
            remedy="Extract a simple value into a column with df.withColumn, and name that column.",
            column=field.name,
            role=role,
        )


def require_free_name(fields: list[StructField], name: str) -> None:
    """Raise UnsupportedFrame for a DataFrame that has a column of this name."""
    if any(field.name.lower() == name for field in fields):
        raise UnsupportedFrame(
            f"The DataFrame has a column {name!r}.",
            rule="With late='route' late rows get a column of this name.",
            remedy=f"Rename it first: df.withColumnRenamed({name!r}, ...).",
            column=name,
        )


def require_no_watermark(fields: list[StructField]) -> None:
    """Raise UnsupportedFrame for a DataFrame that has a watermark."""
    event_times = [field.name for field in fields if EVENT_TIME_METADATA in field.metadata]
    if event_times:
        raise UnsupportedFrame(
            f"The DataFrame has a watermark already, on {', '.join(map(repr, event_times))}.",
            rule="A DataFrame can have one watermark: Spark refuses a second one when the query runs.",
            remedy="Call this on the DataFrame as it was before withWatermark.",
            columns=event_times,
        )
