"""Marks in the rows become Spark's watermark, for Spark's own operators to close on."""

from difflib import get_close_matches
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, TimestampType

from floodmark.errors import InvalidOption, UnknownColumn, UnsupportedFrame

__all__ = ["Operators", "follow_marks"]

Operators = Literal["any", "windows"]

# Spark knows an event-time column by this entry in its metadata, and by nothing else.
_EVENT_TIME = "spark.watermarkDelayMs"


def follow_marks(df: DataFrame, time: str, mark: str, *, operators: Operators = "any") -> DataFrame:
    """Return the data rows of a stream, with the watermark that the stream's mark rows state.

    A row with a timestamp W in the column `mark` is a mark row: it promises that no row with `time` < W comes
    after it. A row whose `mark` is null is a data row. In the result the mark rows and the column `mark` are gone,
    `time` is Spark's event-time column, and windows, session windows, deduplication and stream joins after it
    close on the marks and on nothing else: no event time can move the watermark, however far in the future it is.

    ```python
    from pyspark.sql import functions as F
    from floodmark.spark import follow_marks, session

    lines = session().readStream.schema("t timestamp, item string, mark timestamp").json("orders/")
    orders = follow_marks(lines, time="t", mark="mark")
    per_minute = orders.groupBy(F.window("t", "1 minute")).count()
    ```

    A row at exactly W is on time. Spark drops such a row in most of its operators and counts whole milliseconds,
    so it is told the last millisecond before W; a window that ends at W then closes with the next mark. Where all
    stateful operators of the query are tumbling or sliding windows, `operators="windows"` closes it at once. With
    any other operator that choice makes rows at exactly W late.

    Spark does the rest as always: a mark takes effect after the micro-batch that contains it, the watermark of a
    query with several inputs is the lowest one, and times before 1970 are late from the start. Nothing is read
    here, and no part of it needs the JVM, so it works through Spark Connect too. A frame that cannot work is
    refused here, but for one case: a watermark on a column that was dropped since shows only when the query runs.
    """
    _require_known_operators(operators)
    _require_streaming(df)
    fields = df.schema.fields
    time_field = _timestamp_field(fields, time, "time")
    mark_field = _timestamp_field(fields, mark, "mark")
    if time_field is mark_field:
        raise InvalidOption(
            f"time and mark both name the column {time!r}.",
            rule="The event time of data rows and the watermark of mark rows are two columns.",
            remedy="Name the column which is null on data rows as mark, and the rows' own time as time.",
            option="mark",
            value=mark,
        )
    _require_no_watermark(fields)

    marked = df.withColumn(mark, _spark_watermark(_column(mark), operators))
    moved = marked.withWatermark(_quoted(mark), "0 seconds")
    data = moved.where(_is_data(_column(mark)))
    event_time = _column(time).alias(time, metadata={**time_field.metadata, _EVENT_TIME: 0})
    return data.select(*(event_time if f is time_field else _column(f.name) for f in fields if f is not mark_field))


def _spark_watermark(mark: Column, operators: Operators) -> Column:
    """Return the whole millisecond that Spark has to be told for a mark, null for a data row."""
    micros = F.unix_micros(mark)
    if operators == "any":
        micros = micros - 1
    # Division would go through a double, or towards zero for times before 1970.
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(1000)))


def _is_data(mark: Column) -> Column:
    # The second term is never true, but Spark does not know. A filter that might depend on where a row lies stays
    # where it is and lets none past. Without it the optimizer takes filters that come after this one, also those
    # it infers by itself from windows and joins, below the watermark node, and they remove the mark rows unseen.
    return mark.isNull() | (F.spark_partition_id() < 0)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    return F.col(_quoted(name))


def _require_known_operators(operators: str) -> None:
    known = get_args(Operators)
    if operators not in known:
        raise InvalidOption(
            f"operators is {operators!r}.",
            rule=f"It is one of {', '.join(map(repr, known))}.",
            remedy="Leave it out unless every stateful operator of the query is a tumbling or sliding window.",
            option="operators",
            value=operators,
        )


def _require_streaming(df: DataFrame) -> None:
    if not df.isStreaming:
        raise UnsupportedFrame(
            "The DataFrame is not a streaming one.",
            rule="A watermark exists only in a streaming query.",
            remedy="Read it with spark.readStream; in a batch, filter the mark rows out.",
        )


def _timestamp_field(fields: list[StructField], name: str, role: str) -> StructField:
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
        spelled = {n.lower(): n for n in names}
        close = get_close_matches(name.lower(), spelled, n=1)
        raise UnknownColumn(
            f"There is no column {name!r} for {role}.",
            rule="It must be the exact name of a column at the top level of the DataFrame.",
            remedy=f"Did you mean {spelled[close[0]]!r}?"
            if close
            else f"The columns are {', '.join(map(repr, names))}.",
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
    kind = found[0].dataType
    if not isinstance(kind, TimestampType):
        raise UnsupportedFrame(
            f"The column {name!r} for {role} is of type {kind.simpleString()}.",
            rule="Event times and marks are of type timestamp.",
            remedy=f"Convert it first, for example df.withColumn({name!r}, col({name!r}).cast('timestamp')).",
            column=name,
            role=role,
            type=kind.simpleString(),
        )
    return found[0]


def _require_no_watermark(fields: list[StructField]) -> None:
    taken = [field.name for field in fields if _EVENT_TIME in field.metadata]
    if taken:
        raise UnsupportedFrame(
            f"The DataFrame has a watermark already, on {', '.join(map(repr, taken))}.",
            rule="A stream that follows marks has no other watermark: Spark refuses a second one when the query runs.",
            remedy="Call follow_marks on the DataFrame as it was before withWatermark.",
            columns=taken,
        )
