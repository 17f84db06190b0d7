"""A computed watermark on any streaming DataFrame, and the late rows that it has written to files."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Final, Literal, Never, get_args
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampType

from floodmark._util.disk import LATE_DIRECTORY
from floodmark._util.options import refuse_unknown_options, require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import HomeUnusable, InvalidOption, NoLateRows
from floodmark.progress import OriginAction, Revived
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
from floodmark.spark.executors import Needs, require_executors
from floodmark.spark.private_options import private_home, register_source
from floodmark.spark.sessions import require_supported
from floodmark.spark.watermark.chain import Late, WatermarkSettings
from floodmark.spark.watermark.late import WATERMARK_COLUMN, fail_if_late, is_late, query_directory, store_late_rows
from floodmark.spark.watermark.listener import observation_name, query_home, session_listener
from floodmark.spark.watermark.mark_source import MarkSource
from floodmark.spark.watermark.marks import Operators, require_known_operators, spark_watermark
from floodmark.spark.watermark.statistics import display_name, observe_statistics, origin_id, origin_text

_log = logging.getLogger("floodmark")

OriginState = Literal["active", "idle", "finished", "removed"]
"""What `with_watermark` can declare about an origin."""

_ACTIONS: Final[dict[OriginState, OriginAction]] = {
    "active": "revive", "idle": "idle", "finished": "finish", "removed": "remove",
}  # fmt: skip


def with_watermark(
    df: DataFrame,
    column: str,
    *,
    delay: Duration = "0 seconds",
    per: Sequence[str] = (),
    origins: Sequence[object] | Mapping[Any, OriginState] = (),
    idle: Duration | None = None,
    remove_idle: Duration | None = None,
    revived: Revived = "hold",
    future: Duration | None = None,
    assume_caught_up: bool = False,
    late: Late = "drop",
    late_path: str | Path | None = None,
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

    An origin that has stopped for good would hold the watermark for ever. `floodmark why QUERY` names it, and
    `floodmark origins QUERY idle ORIGIN` (or `finish`, `remove`, `revive`) decides about it: the running query follows
    at its next batch, and keeps to it after restarts.

    A row is late if its time is before the watermark of its batch. What happens to it:

    | `late` | the late row | its window, if that is still open |
    |---|---|---|
    | `with_watermark`: "drop" | stays; Spark's operators drop what is too late for them | counts it |
    | "count" | stays; `floodmark why` shows the number and the oldest by origin | counts it |
    | "copy" | stays, and is copied to files that `late(query)` reads | counts it |
    | "route" | **is taken out**, and moved to files that `late(query)` reads | **misses it** |
    | "fail" | fails the query | |
    | `read_stream`, `read_topics`: "keep" | stays; Spark's operators drop what is too late for them | counts it |
    | "strict" | is taken out, by the watermark at its position: results do not depend on batches | misses it |
    | "only" | is all there is: a DataFrame of the late rows | |

    All values of `with_watermark` but "drop" read the watermark from the home inside tasks, so executors must reach the
    home; bench/RESULTS.md has their cost. "route" and "copy" pass every row through a Python worker.

    `StreamingQueryProgress.eventTime` shows Spark's own statistics: `watermark` is 1970 until the first watermark, and
    `min`, `avg` and `max` are those of the watermarks that Floodmark feeds in, not of the rows.

    Args:
        df: A streaming DataFrame without a watermark.
        column: The event-time column, of type timestamp.
        delay: How much out of order the rows of one origin may be.
        per: The columns that identify an origin, such as topic and partition, device or region. The watermark waits
            for an origin from its first row on. One batch may have up to 65,536 origins.
        origins: Origins that are known up front: a list of those to wait for before their first row, or {origin:
            state} with the states "active" (as in a list), "idle", "finished" and "removed". An origin is the value of
            the column `per`, or a tuple of the values of several. Each declaration counts once: a later command
            `floodmark origins` remains in force when the query starts again.
        idle: After this long without rows an origin is ignored until it has rows again, provided that the query has
            read everything available.
        remove_idle: An origin that has been idle for this long is removed: after its next row it is a new origin. It
            limits the stored state where origins come and go.
        revived: What happens if an idle origin has rows again and is behind the watermark. "hold": the watermark waits
            until it has caught up; "exclude": it is left out until then.
        future: Rows further ahead of the clock than this do not move the watermark; by default all rows do.
        assume_caught_up: Needed for `idle` if the source does not report its latest offset.
        late: What happens to late rows: see the table above. "route" changes results: it also takes out rows whose
            window is still open. "copy" does not.
        late_path: The directory for the late rows of "route" and "copy", which the driver and all executors can write
            to; by default `late` in the home. Needed if the home is in PostgreSQL.
        late_retention: How long late rows of "route" and "copy" are kept, counted from when their batch wrote them; by
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
    require_one_of("revived", revived, get_args(Revived))
    require_known_operators(operators)
    require_streaming(df)
    require_supported(df.sparkSession)
    fields = df.schema.fields
    event_time = require_timestamp_field(fields, column, "column")
    require_no_watermark(fields)
    for part in _origin_columns(per):
        require_comparable(require_field(fields, part, "per"), "per")
    stores_late_rows = late in ("route", "copy")
    if stores_late_rows:
        require_free_name(fields, WATERMARK_COLUMN)
    _check_late_options(late, late_path=late_path, late_retention=late_retention)
    kept_for = None if late_retention is None else duration_micros(late_retention, "late_retention", least=1)
    settings = WatermarkSettings(
        column=column,
        per=tuple(per),
        delay=duration_micros(delay, "delay"),
        idle=None if idle is None else duration_micros(idle, "idle", least=1),
        future=None if future is None else duration_micros(future, "future"),
        assume_caught_up=assume_caught_up,
        late=late,
        schema=df.schema.json() if stores_late_rows else None,
        origins=declared_origins(origins, per),
        revived=revived,
        remove_idle=None if remove_idle is None else duration_micros(remove_idle, "remove_idle", least=1),
    )
    opened_home = Home.open(home)
    if stores_late_rows:
        try:
            settings = replace(settings, late_path=str(_late_directory(opened_home, late_path)))
        except InvalidOption:
            opened_home.close()
            raise
    if late == "route":
        _log.warning(
            "late='route' takes every row behind the watermark of %r out of the query, also rows whose window is still "
            "open, so results may miss rows. late='copy' keeps them in the query.",
            column,
        )
    mark = spark_watermark(F.timestamp_micros("w"), operators)
    frame, spark = uuid4().hex, df.sparkSession
    require_executors(spark, Needs(home=None if late == "drop" else opened_home.location))
    session_listener(spark).watch(frame, settings, opened_home, kept_for)

    marks_format = register_source(spark, MarkSource, private_home(opened_home))
    options = {"home": opened_home.address, "settings": settings.to_json(), "frame": frame}
    marks_read = spark.readStream.format(marks_format).options(**options)
    # Spark's `eventTime` statistics are those of `w` at this node: min, avg and max of the marks in the batch, none if
    # it has no mark, and as `watermark` 0, the year 1970, until a mark has passed. No row without a mark may reach the
    # node: Spark would take a null `w` for 1970 in min and avg.
    moved = marks_read.load().select(mark.alias("w")).withWatermark("w", "0 seconds")
    # Never true, but the optimizer cannot know: mark rows are removed after they have passed the watermark node.
    marks = moved.where(F.spark_partition_id() < 0)
    if late == "drop":
        rows = observe_statistics(df, settings, observation_name(frame))
    else:
        watermark = spark.read.format(marks_format).options(**options).load().scalar()
        rows = _handle_late_rows(df, settings, observation_name(frame), watermark)
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


def _handle_late_rows(df: DataFrame, settings: WatermarkSettings, name: str, watermark: Column) -> DataFrame:
    """Return the rows, with late ones counted, refused, routed or copied, as the settings say."""
    column = settings.column
    if settings.late == "count":
        return observe_statistics(df, settings, name, is_late(column, watermark))
    observed = observe_statistics(df, settings, name)
    if settings.late == "fail":
        return observed.withColumn(column, fail_if_late(column, watermark))
    assert settings.late_path is not None
    rows = observed.select(*map(column_of, df.columns))
    return store_late_rows(rows, column, watermark, Path(settings.late_path), keep=settings.late == "copy")


def _check_late_options(late: Late, *, late_path: str | Path | None, late_retention: Duration | None) -> None:
    for option, value in {"late_path": late_path, "late_retention": late_retention}.items():
        if value is not None and late not in ("route", "copy"):
            raise InvalidOption(
                f"{option} is given, and late is {late!r}.",
                rule="Late rows are written to files only with late='route' or late='copy'.",
                remedy=f"Set late='copy' to keep a copy of late rows, or omit {option}.",
                option=option,
                value=str(value),
            )
    if late_path is not None and "://" in str(late_path):
        raise InvalidOption(
            f"late_path is {str(late_path)!r}.",
            rule="Late rows are written as files of a local or shared directory, not to a URL.",
            remedy="Pass the path of a directory that the driver and all executors can write to.",
            option="late_path",
            value=str(late_path),
        )


def _late_directory(home: Home, late_path: str | Path | None) -> Path:
    """Return the directory of late rows, or raise an error if none is given and the home has none."""
    if late_path is not None:
        return Path(late_path).absolute()
    try:
        return home.path / LATE_DIRECTORY
    except HomeUnusable as error:
        raise InvalidOption(
            f"Late rows need a directory, and the home {home!r} has none.",
            rule="late='route' and late='copy' write late rows to files, and only a home in SQLite has a directory.",
            remedy="Pass as late_path= a directory that the driver and all executors can write to.",
            option="late_path",
            value=None,
        ) from error


def declared_origins(
    origins: Sequence[object] | Mapping[Any, OriginState], per: Sequence[str]
) -> tuple[tuple[str, str, OriginAction], ...]:
    """Return (id, name, action) of each declared origin."""
    if isinstance(origins, str) or not isinstance(origins, Sequence | Mapping):
        raise _invalid_origins(origins, "It is a list of origins, or a mapping from origins to states.")
    if origins and not per:
        raise _invalid_origins(origins, "Origins are told apart by the columns per, and there are none.")
    states: Iterable[tuple[object, OriginState]] = (
        origins.items() if isinstance(origins, Mapping) else ((origin, "active") for origin in origins)
    )
    declared: dict[str, tuple[str, str, OriginAction]] = {}
    for origin, state in states:
        require_one_of(f"The state of {origin!r}", state, get_args(OriginState), "Use 'active' to wait for the origin.")
        parts = tuple(origin) if isinstance(origin, tuple | list) else (origin,)
        text = origin_text(parts)
        if text is None or len(parts) != len(per):
            columns = f"the value of {per[0]!r}" if len(per) == 1 else f"a tuple of the values of {', '.join(per)}"
            raise _invalid_origins(origin, f"An origin is {columns}: text, whole numbers, booleans or None.")
        declared[text] = origin_id(text), display_name(text), _ACTIONS[state]
    return tuple(declared.values())


def _invalid_origins(value: object, rule: str) -> InvalidOption:
    return InvalidOption(
        f"origins has {value!r}.",
        rule=rule,
        remedy="Write origins=['eu', 'us'] with per=['region'], or origins=[('orders', 0)] with two columns. "
        "Write other types as the text that Spark casts them to.",
        option="origins",
        value=value,
    )


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
    """Return the late rows that a query over `with_watermark` with `late="copy"` or `"route"` has written so far.

    ```python
    query = orders.writeStream.queryName("orders").start()
    fm.late(query).groupBy("partition").agg(F.count("*"), F.max("_lateness")).show()
    ```

    The rows of a batch that was run again after a crash are there once.

    Args:
        query: The query, or its name, its id, or the beginning of its id.
        column: The event-time column; needed if the query stores late rows on several.
        home: The home of the watermark; not needed for a query that this program has started.

    Returns:
        A batch DataFrame with the columns of the rows, `_watermark` (the watermark of their batch) and `_lateness`
        (how far the row was behind it).

    Raises:
        NoLateRows: The query stores no late rows, or on several columns and no `column` was given.
    """
    spark = SparkSession.active()
    query_key = query if isinstance(query, str) else str(query.id)
    location = query_home(spark, query_key) if home is None else None
    with Home.open_existing(location or home) as opened_home:
        record = Queries(opened_home).find(query_key)
        steps = WatermarkSteps(opened_home)
        settings = {name: steps.incarnation(incarnation).settings for incarnation, _, name in record.incarnations}
        stored = {name: choices for name, choices in settings.items() if choices.get("schema")}
        matches = [name for name in stored if column in (None, name)]
        if len(matches) != 1:
            raise NoLateRows(
                f"The query {query_key!r} stores late rows on {', '.join(map(repr, stored)) or 'no column'}.",
                rule="Late rows are stored only with with_watermark(..., late='copy') or late='route'.",
                remedy="Pass one of these as column=." if stored else "Start the query with late='copy'.",
                query=query_key,
                columns=list(stored),
            )
        event_time = matches[0]
        directory = _late_directory(opened_home, stored[event_time].get("late_path"))
        files = _late_files(query_directory(directory, record.query_id, event_time))
    schema = StructType.fromJson(json.loads(stored[event_time]["schema"])).add(WATERMARK_COLUMN, TimestampType())
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
