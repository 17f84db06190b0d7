"""Mark rows of a DataFrame become Spark's watermark, on which Spark's own operators close."""

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

Operators = Literal["any", "windows"]


def follow_marks(df: DataFrame, time: str, mark: str, *, operators: Operators = "any") -> DataFrame:
    """Return the data rows of a streaming DataFrame, with the watermark that its mark rows state.

    ```python
    from pyspark.sql import functions as F
    from floodmark.spark import follow_marks, session

    lines = session().readStream.schema("t timestamp, item string, mark timestamp").json("orders/")
    orders = follow_marks(lines, time="t", mark="mark")
    per_minute = orders.groupBy(F.window("t", "1 minute")).count()
    ```

    A row with a timestamp W in the column `mark` is a mark row: it promises that no later row has `time` < W. A row
    whose `mark` is null is a data row. The result has the data rows without the column `mark`, and `time` is Spark's
    event-time column. Windows, session windows, deduplication and stream joins after it close on the marks only: a row
    with a time in the far future does not move the watermark.

    A row at exactly W is on time. Most of Spark's operators drop such a row, and Spark counts whole milliseconds, so
    Spark gets the last millisecond before W as its watermark. A window that ends at W then closes with the next mark.

    As always in Spark, a mark takes effect after the micro-batch that contains it, the watermark of a query with
    several inputs is the lowest one, and times before 1970 are late. It works through Spark Connect too.

    Args:
        df: A streaming DataFrame without a watermark.
        time: The event-time column, of type timestamp.
        mark: The column that is a timestamp in mark rows and null in data rows.
        operators: "windows" closes a window that ends at W at once; choose it only if every stateful operator of the
            query is a tumbling or sliding window. With other operators it makes rows at exactly W late.

    Returns:
        The data rows, without the column `mark`.

    Raises:
        UnsupportedFrame: The DataFrame is not streaming, has a watermark, or a column has the wrong type. A watermark
            on a column that was dropped since is found only when the query runs.
        UnknownColumn: There is no column `time` or `mark`.
        InvalidOption: `time` and `mark` are the same column, or `operators` is unknown.
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
            remedy="Pass as mark the column that is null in data rows, and as time the event time of the rows.",
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
    """Return the watermark for Spark, in whole milliseconds, that stands for a mark; null for a data row."""
    micros = F.unix_micros(mark)
    if operators == "any":
        micros = micros - 1
    # Not a division: that would go through a double, or round towards zero for times before 1970.
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(1000)))


def _is_data(mark: Column) -> Column:
    # An optimizer barrier: the second term is never true, but it is non-deterministic, so Spark moves no filter across
    # this one. Without it the optimizer pushes later filters, and those it infers from windows and joins, below the
    # watermark node, where they remove the mark rows before they count.
    return mark.isNull() | (F.spark_partition_id() < 0)


def require_known_operators(operators: str) -> None:
    """Raise InvalidOption for an unknown value of `operators`."""
    otherwise = "Leave it out unless every stateful operator of the query is a tumbling or sliding window."
    require_one_of("operators", operators, get_args(Operators), otherwise)
