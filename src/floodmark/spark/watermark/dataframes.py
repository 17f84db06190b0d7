"""A computed watermark on any streaming DataFrame, and the late rows that it has routed to files."""

import json
from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Final, Never, get_args
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampType

from floodmark._util.options import refuse_unknown_options, require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import InvalidOption, NoLateRows
from floodmark.spark.columns import (
    as_event_time,
    column_of,
    require_comparable,
    require_field,
    require_free_name,
    require_no_watermark,
    require_streaming,
    require_timestamp_field,
)
from floodmark.spark.sessions import require_supported
from floodmark.spark.watermark.chain import Late, WatermarkSettings
from floodmark.spark.watermark.late import WATERMARK_COLUMN, fail_if_late, is_late, late_directory, route_late_rows
from floodmark.spark.watermark.listener import observation_name, query_home, session_listener
from floodmark.spark.watermark.mark_source import MARKS_FORMAT, MarkSource
from floodmark.spark.watermark.marks import Operators, require_known_operators, spark_watermark
from floodmark.spark.watermark.statistics import observe_statistics


def with_watermark(
    df: DataFrame,
    column: str,
    *,
    delay: Duration = "0 seconds",
    per: Sequence[str] = (),
    idle: Duration | None = None,
    future: Duration | None = None,
    assume_caught_up: bool = False,
    late: Late = "drop",
    late_retention: Duration | None = None,
    operators: Operators = "any",
    home: str | Path | None = None,
    **unknown: Never,
) -> DataFrame:
    """Return a streaming DataFrame with a watermark on `column` that waits for the slowest origin.

    ```python
    import floodmark as fm

    orders = fm.with_watermark(orders, "order_time", delay="1 minute", per=["partition"], future="1 hour")
    ```

    Spark's own watermark follows the newest row of all. This one takes, for each origin (each combination of the
    columns `per`), the newest time minus `delay`, and the watermark is the lowest of them. Windows, session windows,
    deduplication and joins after it run unchanged. A batch's rows move the watermark of the batch after the next, one
    batch later than with Spark's own. The watermark survives restarts, and a retried batch gets the same one.

    A row is late if its time is before the watermark of its batch. All values of `late` but "drop" read that watermark
    from the home inside tasks, so executors must reach the home; bench/RESULTS.md has their cost.

    Args:
        df: A streaming DataFrame without a watermark.
        column: The event-time column, of type timestamp.
        delay: How much out of order the rows of one origin may be.
        per: The columns that identify an origin, such as topic and partition, device or region. The watermark waits
            for an origin from its first row on. One batch may have up to 65,536 origins.
        idle: After this long without rows an origin is ignored until it has rows again, provided that the query has
            read everything available.
        future: Rows further ahead of the clock than this do not move the watermark; by default all rows do.
        assume_caught_up: Needed for `idle` if the source does not report its latest offset.
        late: What happens to late rows. "drop" leaves them to Spark's operators; "count" does too, and `floodmark why`
            shows their number and the oldest by origin; "fail" fails the query; "route" writes them to files of the
            home, which `late(query)` reads. "route" needs a home in a directory and passes every row through a Python
            worker.
        late_retention: How long late rows of `late="route"` are kept, counted from when their batch wrote them; by
            default forever. The running query removes older ones, a whole batch at a time, and never those of its
            current batch, which Spark may run again.
        operators: As in `follow_marks`.
        home: Where the watermark is stored: a directory or a PostgreSQL URL; by default `.floodmark`.
        **unknown: Refused; named so that a misspelled option gets a suggestion.

    Returns:
        The same rows and columns, with `column` as Spark's event-time column.

    Raises:
        UnsupportedFrame: The DataFrame is not streaming, has a watermark, or a column has the wrong type.
        UnknownColumn: There is no such column.
        InvalidOption: An option is unknown or has an invalid value.
        UnsupportedSpark: Spark is too old.
    """
    refuse_unknown_options(unknown, _OPTIONS)
    require_one_of("late", late, get_args(Late))
    require_known_operators(operators)
    require_streaming(df)
    require_supported(df.sparkSession)
    fields = df.schema.fields
    event_time = require_timestamp_field(fields, column, "column")
    require_no_watermark(fields)
    for part in _origin_columns(per):
        require_comparable(require_field(fields, part, "per"), "per")
    kept_for = None if late_retention is None else duration_micros(late_retention, "late_retention", least=1)
    if late == "route":
        require_free_name(fields, WATERMARK_COLUMN)
    elif kept_for is not None:
        raise InvalidOption(
            f"late_retention was given with late={late!r}.",
            rule="Only late='route' keeps late rows.",
            remedy="Leave late_retention out, or pass late='route'.",
            option="late_retention",
            value=late_retention,
        )
    settings = WatermarkSettings(
        column=column,
        per=tuple(per),
        delay=duration_micros(delay, "delay"),
        idle=None if idle is None else duration_micros(idle, "idle", least=1),
        future=None if future is None else duration_micros(future, "future"),
        assume_caught_up=assume_caught_up,
        late=late,
        schema=df.schema.json() if late == "route" else None,
    )
    mark = spark_watermark(F.timestamp_micros("w"), operators)
    frame, opened_home = uuid4().hex, Home.open(home)
    spark = df.sparkSession
    spark.dataSource.register(MarkSource)
    session_listener(spark).watch(frame, settings, opened_home, kept_for)

    options = {"home": opened_home.location, "settings": settings.to_json(), "frame": frame}
    marks_read = spark.readStream.format(MARKS_FORMAT).options(**options)
    moved = marks_read.load().select(mark.alias("w")).withWatermark("w", "0 seconds")
    # Never true, but the optimizer cannot know: mark rows are removed after they have passed the watermark node.
    marks = moved.where(F.spark_partition_id() < 0)
    if late == "drop":
        rows = observe_statistics(df, settings, observation_name(frame))
    else:
        watermark = spark.read.format(MARKS_FORMAT).options(**options).load().scalar()
        rows = _handle_late_rows(df, settings, observation_name(frame), watermark, opened_home)
    no_rows = marks.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields))
    united = rows.unionByName(no_rows).where(_keep_columns_above_union(set(rows.columns) - set(df.columns)))
    return united.select(*(as_event_time(f) if f is event_time else column_of(f.name) for f in fields))


def _keep_columns_above_union(columns: Iterable[str]) -> Column:
    """Return a condition that is always true, but seems to the optimizer to need these columns.

    The optimizer would push the final select below the union, and every row would be copied once more. With this
    condition in between the union passes rows on unchanged, and is compiled together with the user's operators.
    """
    is_true = F.spark_partition_id() >= 0
    for column in sorted(columns):
        is_true = is_true | column_of(column).isNull()
    return is_true


def _handle_late_rows(
    df: DataFrame, settings: WatermarkSettings, name: str, watermark: Column, home: Home
) -> DataFrame:
    """Return the rows, with late ones counted, refused or routed, as the settings say."""
    column = settings.column
    if settings.late == "count":
        return observe_statistics(df, settings, name, is_late(column, watermark))
    observed = observe_statistics(df, settings, name)
    if settings.late == "fail":
        return observed.withColumn(column, fail_if_late(column, watermark))
    return route_late_rows(observed.select(*map(column_of, df.columns)), column, watermark, home.path)


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


_OPTIONS: Final = [
    name for name, option in signature(with_watermark).parameters.items() if option.kind is option.KEYWORD_ONLY
]


LATENESS_COLUMN: Final = "_lateness"


def late(query: StreamingQuery | str, *, column: str | None = None, home: str | Path | None = None) -> DataFrame:
    """Return the late rows that a query over `with_watermark(..., late="route")` has written so far.

    ```python
    query = orders.writeStream.queryName("orders").start()
    fm.late(query).groupBy("partition").agg(F.count("*"), F.max("_lateness")).show()
    ```

    The rows of a batch that was run again after a crash are there once.

    Args:
        query: The query, or its name, its id, or the beginning of its id.
        column: The event-time column; needed if the query routes late rows on several.
        home: The home of the watermark; not needed for a query that this program has started.

    Returns:
        A batch DataFrame with the columns of the rows, `_watermark` (the watermark of their batch) and `_lateness`
        (how far the row was behind it).

    Raises:
        NoLateRows: The query has no watermark with `late="route"`, or several and no `column` was given.
    """
    spark = SparkSession.active()
    query_key = query if isinstance(query, str) else str(query.id)
    location = query_home(spark, query_key) if home is None else None
    with Home.open_existing(location or home) as opened_home:
        record = Queries(opened_home).find(query_key)
        steps = WatermarkSteps(opened_home)
        settings = {name: steps.incarnation(incarnation).settings for incarnation, _, name in record.incarnations}
        routed = {name: choices["schema"] for name, choices in settings.items() if choices.get("schema")}
        matches = [name for name in routed if column in (None, name)]
        if len(matches) != 1:
            raise NoLateRows(
                f"The query {query_key!r} routes late rows on {', '.join(map(repr, routed)) or 'no column'}.",
                rule="Late rows are stored only with with_watermark(..., late='route').",
                remedy="Pass one of these as column=." if routed else "Start the query with late='route'.",
                query=query_key,
                columns=list(routed),
            )
        event_time = matches[0]
        files = _late_files(late_directory(opened_home.path, record.query_id, event_time))
    schema = StructType.fromJson(json.loads(routed[event_time])).add(WATERMARK_COLUMN, TimestampType())
    rows = spark.read.schema(schema).parquet(*map(str, files)) if files else spark.createDataFrame([], schema)
    return rows.withColumn(LATENESS_COLUMN, F.col(WATERMARK_COLUMN) - column_of(event_time))


def _late_files(directory: Path) -> list[Path]:
    """Return the files of all batches. If several runs have run a batch, they wrote the same rows: take the last."""
    files: list[Path] = []
    for batch in _directories(directory):
        runs = _directories(batch)
        if runs:
            files += sorted(max(runs, key=lambda run: run.stat().st_mtime_ns).glob("*.parquet"))
    return files


def _directories(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
