"""Mark rows of a DataFrame become Spark's watermark, on which Spark's own operators close."""

from typing import Literal, get_args
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

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
from floodmark.spark.watermark.listener import OnFallingMark, marks_observation_name, session_listener

Operators = Literal["any", "windows"]


def follow_marks(
    df: DataFrame, time: str, mark: str, *, operators: Operators = "any", on_falling_mark: OnFallingMark = "fail"
) -> DataFrame:
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

    After a restart Spark has the watermark of the query, but not that of each input. If a query has several inputs, its
    watermark rests until each of them has a mark again. `read_stream`, `read_topics` and `with_watermark` repeat their
    marks; this function cannot, since the marks are in the rows of a source that it does not control. Let the writer of
    the marks repeat them from time to time.

    Args:
        df: A streaming DataFrame without a watermark.
        time: The event-time column, of type timestamp.
        mark: The column that is a timestamp in mark rows and null in data rows.
        operators: "windows" closes a window that ends at W at once; choose it only if every stateful operator of the
            query is a tumbling or sliding window. With other operators it makes rows at exactly W late.
        on_falling_mark: What happens if the largest mark of a batch lies below that of an earlier batch. Spark goes on
            with the higher mark. "fail": the program that has started the query logs the mark as an error and lets the
            query fail, by cancelling its next batch; through Spark Connect it stops the query. "count" logs a warning,
            and `falling_marks` returns the number. Of batches before a restart only the query's watermark is known: a
            mark below it is falling.

    Returns:
        The data rows, without the column `mark`.

    Raises:
        UnsupportedFrame: The DataFrame is not streaming, has a watermark, or a column has the wrong type. A watermark
            on a column that was dropped since is found only when the query runs.
        UnknownColumn: There is no column `time` or `mark`.
        InvalidOption: `time` and `mark` are the same column, or `operators` or `on_falling_mark` is unknown.
    """
    require_known_operators(operators)
    require_one_of("on_falling_mark", on_falling_mark, get_args(OnFallingMark))
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

    frame = uuid4().hex
    session_listener(df.sparkSession).watch_marks(frame, mark, on_falling_mark)
    observed = df.observe(marks_observation_name(frame), F.max(F.unix_micros(column_of(mark))).alias("largest"))
    marked = observed.withColumn(mark, spark_watermark(column_of(mark), operators))
    moved = marked.withWatermark(quote_name(mark), "0 seconds")
    data = moved.where(_is_data(column_of(mark)))
    return data.select(
        *(as_event_time(f) if f is time_field else column_of(f.name) for f in fields if f is not mark_field)
    )


def falling_marks(query: StreamingQuery) -> int:
    """Return how many batches of a running query had a falling mark since it was started: see `follow_marks`.

    ```python
    orders = fm.follow_marks(lines, time="t", mark="mark", on_falling_mark="count")
    query = orders.writeStream.format("noop").start()
    fm.falling_marks(query)
    ```

    Args:
        query: A query that this program has started.

    Returns:
        The number of batches that have ended so far whose largest mark was below that of an earlier one.
    """
    return session_listener(SparkSession.active()).falling[str(query.runId)]


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
