"""Columns by their exact names, checks of the columns of a DataFrame, and the metadata of its event time."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, TimestampType, VariantType

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, UnknownColumn, UnsupportedFrame

# Spark knows an event-time column by this entry in its metadata, and by nothing else.
EVENT_TIME_METADATA: Final = "spark.watermarkDelayMs"


def quote_name(name: str) -> str:
    """Return a name as Spark parses it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def column_of(name: str) -> Column:
    """Return the column of exactly this name."""
    return F.col(quote_name(name))


def as_event_time(field: StructField) -> Column:
    """Return the column as Spark's event-time column."""
    return column_of(field.name).alias(field.name, metadata={**field.metadata, EVENT_TIME_METADATA: 0})


def require_streaming(df: DataFrame) -> None:
    """Refuse a DataFrame in which there is no time."""
    if not df.isStreaming:
        raise UnsupportedFrame(
            "The DataFrame is not a streaming one.",
            rule="A watermark exists only in a streaming query.",
            remedy="Read it with spark.readStream; in a batch, filter the mark rows out.",
        )


def require_field(fields: list[StructField], name: str, role: str) -> StructField:
    """Return the one field of exactly this name, or refuse the name."""
    if not isinstance(name, str):
        raise InvalidOption(
            f"{role} is a {type(name).__name__}.",
            rule="A column is named by a string here.",
            remedy=f"Pass its name, such as {role}='t'; compute it with df.withColumn first if it is an expression.",
            option=role,
            value=name,
        )
    found = [field for field in fields if field.name == name]
    if not found:
        names = [field.name for field in fields]
        raise UnknownColumn(
            f"There is no column {name!r} for {role}.",
            rule="It must be the exact name of a column at the top level of the DataFrame.",
            remedy=did_you_mean(name, names, otherwise=f"The columns are {', '.join(map(repr, names))}."),
            column=name,
            role=role,
            columns=names,
        )
    if len(found) > 1:
        raise UnsupportedFrame(
            f"There are {len(found)} columns {name!r}, and {role} names one.",
            rule="The name must be unique in the DataFrame.",
            remedy="Rename or drop all but one.",
            column=name,
            role=role,
        )
    return found[0]


def require_timestamp_field(fields: list[StructField], name: str, role: str) -> StructField:
    """Return the field of a timestamp column, or refuse the name."""
    found = require_field(fields, name, role)
    kind = found.dataType
    if not isinstance(kind, TimestampType):
        raise UnsupportedFrame(
            f"The column {name!r} for {role} is of type {kind.simpleString()}.",
            rule="Event times and marks are of type timestamp.",
            remedy=f"Convert it first, for example df.withColumn({name!r}, col({name!r}).cast('timestamp')).",
            column=name,
            role=role,
            type=kind.simpleString(),
        )
    return found


def require_comparable(field: StructField, role: str) -> None:
    """Refuse a column whose values Spark cannot tell apart by their hash."""
    if isinstance(field.dataType, MapType | VariantType):
        raise UnsupportedFrame(
            f"The column {field.name!r} for {role} is of type {field.dataType.simpleString()}.",
            rule="Values of this type cannot be compared.",
            remedy="Name a part of it: compute a column of its own first.",
            column=field.name,
            role=role,
        )


def require_free_name(fields: list[StructField], name: str) -> None:
    """Refuse a DataFrame that has a column of this name already."""
    if any(field.name.lower() == name for field in fields):
        raise UnsupportedFrame(
            f"The DataFrame has a column {name!r}.",
            rule="Late rows that are kept apart get a column of this name.",
            remedy="Rename it first.",
            column=name,
        )


def require_no_watermark(fields: list[StructField]) -> None:
    """Refuse a DataFrame that has a watermark already."""
    taken = [field.name for field in fields if EVENT_TIME_METADATA in field.metadata]
    if taken:
        raise UnsupportedFrame(
            f"The DataFrame has a watermark already, on {', '.join(map(repr, taken))}.",
            rule="A stream whose watermark is stated has no other: Spark refuses a second one when the query runs.",
            remedy="Call this on the DataFrame as it was before withWatermark.",
            columns=taken,
        )


TIME_KEY_METADATA: Final = "floodmark.key"
"""The entry in the metadata of an event-time column that says which key of the stream it is."""
