"""A watermark of Floodmark's on any streaming DataFrame."""

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from floodmark.control import Home
from floodmark.errors import InvalidOption
from floodmark.spark._batch_statistics import observe
from floodmark.spark._columns import (
    as_event_time,
    column_of,
    known_field,
    require_no_watermark,
    require_streaming,
    timestamp_field,
)
from floodmark.spark._durations import Duration, micros_of
from floodmark.spark._listener import listener_of, observation_name
from floodmark.spark._mark_source import FORMAT, MarkSource
from floodmark.spark._marks import Operators, require_known_operators, spark_watermark
from floodmark.spark._settings import WatermarkSettings


def with_watermark(
    df: DataFrame,
    column: str,
    *,
    delay: Duration = "0 seconds",
    per: Sequence[str] = (),
    idle: Duration | None = None,
    future: Duration | None = None,
    assume_caught_up: bool = False,
    operators: Operators = "any",
    home: str | Path | None = None,
) -> DataFrame:
    """Return a streaming DataFrame with a watermark on `column` that waits for the slowest of its origins.

    Spark's own watermark follows the newest row of all. This one follows, for each combination of the columns `per`
    (a topic and its partition, a device, a region), the newest row of that origin, less `delay`, and is the lowest
    of those. Windows, session windows, deduplication and joins after it run unchanged and close on it.

    ```python
    import floodmark as fm

    orders = fm.with_watermark(orders, "order_time", delay="1 minute", per=["partition"], future="1 hour")
    ```

    `idle`: an origin from which nothing came for so long is left out until it speaks again, provided that everything
    has been read; a source that does not tell so needs `assume_caught_up=True`. `future`: rows further ahead of the
    clock than this do not move the watermark. With `per`, times count in steps of a second, wider for rows older
    than an hour, so the watermark may stay that much behind, and origins are told apart by a hash of 32 bits: for
    some thousands of them, not for millions. `operators` is that of `follow_marks`.

    What each origin said is kept in the `home` (a directory; by default `.floodmark`) and survives restarts.
    """
    require_known_operators(operators)
    require_streaming(df)
    fields = df.schema.fields
    event_time = timestamp_field(fields, column, "column")
    require_no_watermark(fields)
    for part in _origin_columns(per):
        known_field(fields, part, "per")
    settings = WatermarkSettings(
        column=column,
        per=tuple(per),
        delay=micros_of(delay, "delay"),
        idle=None if idle is None else micros_of(idle, "idle", least=1),
        future=None if future is None else micros_of(future, "future"),
        assume_caught_up=assume_caught_up,
    )
    mark = spark_watermark(F.timestamp_micros("w"), operators)
    frame, kept = uuid4().hex, Home.open(home)
    spark = df.sparkSession
    spark.dataSource.register(MarkSource)
    listener_of(spark).watch(frame, settings, kept)

    source = spark.readStream.format(FORMAT).options(home=str(kept.path), settings=settings.to_json(), frame=frame)
    moved = source.load().select(mark.alias("w")).withWatermark("w", "0 seconds")
    # Never true, which Spark does not know: no mark leaves, but each has passed the watermark node.
    marks = moved.where(F.spark_partition_id() < 0)
    nothing = marks.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in fields))
    united = observe(df, settings, observation_name(frame)).unionByName(nothing)
    return united.select(*(as_event_time(f) if f is event_time else column_of(f.name) for f in fields))


def _origin_columns(per: Sequence[str]) -> Sequence[str]:
    if isinstance(per, str) or not all(isinstance(part, str) for part in per):
        raise InvalidOption(
            f"per is {per!r}.",
            rule="It is a list of column names.",
            remedy="Write per=['topic', 'partition'], also for a single column.",
            option="per",
            value=per,
        )
    return per
