"""A computed watermark on any streaming DataFrame, and the late rows that it kept apart."""

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
    operators: Operators = "any",
    home: str | Path | None = None,
    **unknown: Never,
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
    clock than this do not move the watermark. An origin is waited for from its first row on; one batch may have up to
    65,536 of them. What a batch says counts from the batch after the next, one later than with Spark's own watermark.

    `late` says what happens to a row whose time is before the watermark that its batch runs under. With "drop" it goes
    on, and Spark's operators drop it if it is too late for them. With "count" it does too, and `floodmark why` tells
    how many there were of each origin, and the oldest. With "fail" it makes the query fail. With "route" it is taken
    out and kept apart, in files of the home that `late(query)` reads. All but "drop" look up the watermark in each
    batch from the tasks, so these must reach the home, for "route" a directory; and "route" shows every row to a Python
    worker. bench/RESULTS.md has what each costs. `operators` is that of `follow_marks`.

    What each origin said is kept in the `home` (a directory or the URL of a PostgreSQL database; by default
    `.floodmark`) and survives restarts. The batch is the place of its rows here: batches that are cut differently may
    judge a row differently, a batch that runs again never does.
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
    if late == "route":
        require_free_name(fields, WATERMARK_COLUMN)
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
    frame, kept = uuid4().hex, Home.open(home)
    spark = df.sparkSession
    spark.dataSource.register(MarkSource)
    session_listener(spark).watch(frame, settings, kept)

    options = {"home": kept.location, "settings": settings.to_json(), "frame": frame}
    marks_read = spark.readStream.format(MARKS_FORMAT).options(**options)
    moved = marks_read.load().select(mark.alias("w")).withWatermark("w", "0 seconds")
    # Never true, which Spark does not know: no mark leaves, but each has passed the watermark node.
    marks = moved.where(F.spark_partition_id() < 0)
    if late == "drop":
        rows = observe_statistics(df, settings, observation_name(frame))
    else:
        watermark = spark.read.format(MARKS_FORMAT).options(**options).load().scalar()
        rows = _handle_late_rows(df, settings, observation_name(frame), watermark, kept)
    nothing = marks.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields))
    united = rows.unionByName(nothing).where(_keep_columns_above_union(set(rows.columns) - set(df.columns)))
    return united.select(*(as_event_time(f) if f is event_time else column_of(f.name) for f in fields))


def _keep_columns_above_union(columns: Iterable[str]) -> Column:
    """Return what is always true, though Spark does not know, and looks as if it needed these columns.

    Spark takes what comes after a union below it, and so it does with leaving columns out. Each row would then be built
    once more only to pass the union. Behind this it is not: the union hands rows on as they are, to be compiled as one
    with the user's operators.
    """
    is_true = F.spark_partition_id() >= 0
    for column in sorted(columns):
        is_true = is_true | column_of(column).isNull()
    return is_true


def _handle_late_rows(
    df: DataFrame, settings: WatermarkSettings, name: str, watermark: Column, home: Home
) -> DataFrame:
    """Return the rows with those that are late counted, refused or kept apart, as the settings say."""
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
    """Return the late rows of a query over `with_watermark(..., late="route")`, as far as it has run.

    Besides its own columns a row has `_watermark`, under which its batch ran, and `_lateness`, how far behind it the
    row was. A batch that ran again after a crash counts once.

    ```python
    query = orders.writeStream.queryName("orders").start()
    fm.late(query).groupBy("partition").agg(F.count("*"), F.max("_lateness")).show()
    ```

    A query can also be named, or be given by its id or the beginning of it, as `floodmark why` takes it. `column` is
    needed where a query has several watermarks. The `home` of a query that this program started is known.
    """
    spark = SparkSession.active()
    asked = query if isinstance(query, str) else str(query.id)
    known = query_home(spark, asked) if home is None else None
    with Home.open_existing(known or home) as kept:
        record = Queries(kept).find(asked)
        steps = WatermarkSteps(kept)
        settings = {one: steps.incarnation(incarnation).settings for incarnation, _, one in record.incarnations}
        routed = {one: found["schema"] for one, found in settings.items() if found.get("schema")}
        wanted = [one for one in routed if column in (None, one)]
        if len(wanted) != 1:
            raise NoLateRows(
                f"The query {asked!r} keeps late rows apart on {', '.join(map(repr, routed)) or 'no column'}.",
                rule="Late rows are kept where with_watermark was told late='route'.",
                remedy="Name one of these columns." if routed else "Start the query with late='route'.",
                query=asked,
                columns=list(routed),
            )
        files = _late_files(late_directory(kept.path, record.query_id, wanted[0]))
    schema = StructType.fromJson(json.loads(routed[wanted[0]])).add(WATERMARK_COLUMN, TimestampType())
    rows = spark.read.schema(schema).parquet(*map(str, files)) if files else spark.createDataFrame([], schema)
    return rows.withColumn(LATENESS_COLUMN, F.col(WATERMARK_COLUMN) - column_of(wanted[0]))


def _late_files(place: Path) -> list[Path]:
    """Return the files of all batches, of each the last run that ran it: when it runs again it finds the same rows."""
    files: list[Path] = []
    for batch in _directories(place):
        runs = _directories(batch)
        if runs:
            files += sorted(max(runs, key=lambda run: run.stat().st_mtime_ns).glob("*.parquet"))
    return files


def _directories(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
