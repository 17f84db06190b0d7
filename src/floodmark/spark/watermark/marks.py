"""Marks in the rows become Spark's watermark, for Spark's own operators to close on."""

from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from floodmark._util.options import require_one_of
from floodmark.errors import InvalidOption
from floodmark.spark.columns import (
    as_event_time,
    column_of,
    quote_name,
    require_no_watermark,
    require_streaming,
    require_timestamp_field,
)

__all__ = ["Operators", "follow_marks"]

Operators = Literal["any", "windows"]


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
    require_known_operators(operators)
    require_streaming(df)
    fields = df.schema.fields
    time_field = require_timestamp_field(fields, time, "time")
    mark_field = require_timestamp_field(fields, mark, "mark")
    if time_field is mark_field:
        raise InvalidOption(
            f"time and mark both name the column {time!r}.",
            rule="The event time of data rows and the watermark of mark rows are two columns.",
            remedy="Name the column which is null on data rows as mark, and the rows' own time as time.",
            option="mark",
            value=mark,
        )
    require_no_watermark(fields)

    marked = df.withColumn(mark, spark_watermark(column_of(mark), operators))
    moved = marked.withWatermark(quote_name(mark), "0 seconds")
    data = moved.where(_is_data(column_of(mark)))
    return data.select(
        *(as_event_time(f) if f is time_field else column_of(f.name) for f in fields if f is not mark_field)
    )


def spark_watermark(mark: Column, operators: Operators) -> Column:
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


def require_known_operators(operators: str) -> None:
    """Refuse a choice that does not exist."""
    otherwise = "Leave it out unless every stateful operator of the query is a tumbling or sliding window."
    require_one_of("operators", operators, get_args(Operators), otherwise)
