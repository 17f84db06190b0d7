"""Start a streaming query that writes exactly once, after checking its plan and its checkpoint."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, get_args

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from floodmark._util.options import require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings import SourceOffset
from floodmark.bindings.coordination import QueryReaders
from floodmark.control import Home
from floodmark.errors import InvalidOption, SinkInputUnbound
from floodmark.sinks.startup import OnMissingBindings
from floodmark.spark.columns import EVENT_TIME_METADATA, TIME_KEY_METADATA, column_of, quote_name, require_streaming
from floodmark.spark.executors import require_executors
from floodmark.spark.sessions import require_supported
from floodmark.spark.sink.address import SinkOptions, needs_of_tasks, sink_spec
from floodmark.spark.sink.batch_sink import BatchSink, OffsetLog, SinkQuery, batch_end
from floodmark.spark.sink.rows import RowFormat, WriteMode
from floodmark.spark.sink.stability import require_stable_routing
from floodmark.spark.source.bound_reader import open_home

OutputMode = Literal["append", "update"]

_NO_DATA_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_FIELDS_SHOWN: Final = "spark.sql.debug.maxToStringFields"
_TRIGGERS: Final = ("processingTime", "availableNow")
_READER_TIMEOUT_SECONDS: Final = 60.0


def write_stream(
    df: DataFrame,
    *,
    to: str,
    name: str,
    checkpoint: str | Path,
    home: str | Path | None = None,
    trigger: Mapping[str, Any] | None = None,
    mode: WriteMode = "append",
    output_mode: OutputMode = "append",
    key: str | Sequence[str] | None = None,
    times: Mapping[str, str] | None = None,
    lag: Duration = "0 seconds",
    parallel: int | None = None,
    partitions: int | None = None,
    version: int = 1,
    append: bool = False,
    on_missing_bindings: OnMissingBindings = "error",
    max_rows: int | None = None,
    max_bytes: int | None = None,
    linger: Duration = "10 milliseconds",
    timeout: Duration = "1 minute",
    progress_topic: str | None = None,
    staged: bool = False,
    with_ts: bool = False,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query that writes each row exactly once, across crashes and restarts.

    ```python
    import floodmark as fm

    orders = fm.read_stream(fm.session(), "shop/orders")
    per_minute = fm.window(orders, "1 minute").groupBy("window").count()
    query = fm.write_stream(
        per_minute, to="kafka://localhost:9092/per-minute", name="per-minute", checkpoint="checkpoints/per-minute"
    )
    ```

    The sources must be `read_stream` or `read_topics` with the same `home`. Progress belongs to the sink's `name`, not
    to the checkpoint: that may be deleted, or be an older copy, and the query then reads again what it needs and writes
    only what is missing. One process writes for a sink: a new one fences the one before it.

    The targets, by their address:

    - `kafka://host:port/topic`: the driver writes each batch in one transaction, together with a progress record in
      `<topic>.progress` and the watermark in `<topic>.marks`. Consumers with isolation.level=read_committed see whole
      batches. The value of a record is the row as JSON, or the column `value` if the DataFrame has only `key`, `value`
      and `headers`. `_ts` becomes the header `floodmark.ts`. A missing topic is created.
    - `stream://shop/per-minute`: a stream of the same home, created if it is missing, with the columns and time keys of
      the DataFrame. A batch is one transaction of the home's store. The query is a writer of the stream with the sink's
      name; after the query ends, other writers wait for it up to the stream's `writer_timeout`.
    - `delta:///data/per-minute`: a Delta table (`floodmark[delta]`), created if it is missing. Spark's tasks write the
      files, and one commit adds them with the progress (`floodmark.closing`) and the watermark (`floodmark.marks`).
    - `file:///data/rows`: Parquet files in a directory. A small record closes each batch; read with `read_closed`.

    If a column `_diff` is there, a row is appended that many times; a negative number is only valid with mode="upsert".

    Args:
        df: A streaming DataFrame.
        to: The address of the target.
        name: The name of the sink, unique in the home.
        checkpoint: The directory of the query's checkpoint.
        home: The home of the sources and the sink: a directory or a PostgreSQL URL; by default `.floodmark`.
        trigger: Spark's trigger: {"processingTime": "1 second"} or {"availableNow": True}; by default as fast as
            possible.
        mode: "append", or "upsert": a row replaces the row with its key, and a `_diff` below 0 deletes it. In a Delta
            table an upsert rewrites the files that contain the keys of the batch.
        output_mode: Spark's output mode, "append" or "update".
        key: The columns of a record's key; needed for mode="upsert".
        times: The time keys of the target, and the columns or expressions of their times; by default the event time of
            the DataFrame, and of a window its end (in a stream its last microsecond).
        lag: How far rows may be behind the watermark of the query, such as rows of a join; the published watermark is
            earlier by this.
        parallel: With Kafka, how many tasks write at the same time, each a group of partitions in its own transaction.
            Rows of a batch then become visible group by group, and the progress record follows last. Rows are routed
            by their key, or by their value without one; what they are routed by must be the same when a row is
            computed again: rand(), collect_list(), a sum of fractions and the like are refused there. Other columns
            may differ: each row is written once, with the values of one computation.
        partitions: The number of partitions of a topic that is created, or of segments of a stream.
        version: The version of the program; one that is older than the last is refused.
        append: Whether to write to a target that already has rows of others.
        on_missing_bindings: What to do if the bindings of what was written are gone: "error", or "nonce" to begin a new
            topic.
        max_rows: With Kafka, the most rows of a transaction. A batch is split at timestamps, if the query has no state
            and keeps `_ts`.
        max_bytes: With Kafka, the most bytes of a transaction; as `max_rows`.
        linger: How long Kafka's producer collects records before it sends them.
        timeout: After how long a transaction is aborted; it is then tried once more.
        progress_topic: The topic of progress records; by default `<topic>.progress`.
        staged: Whether to write to a Kafka topic without transactions, by Spark's tasks; read it with `read_closed`.
        with_ts: Whether rows of a Delta table have the column `_ts`.
        options: Options of Kafka's client, such as {"kafka.sasl.password": ...}. They are never shown or stored.

    Returns:
        The running query.

    Raises:
        SinkInputUnbound: The query reads another kind of source, or one DataFrame twice.
        InvalidOption: An option has an invalid value, or does not apply to the target.
        UnsupportedFrame: The DataFrame is not streaming, or has a column that the target cannot store.
        FloodmarkError: The target or the checkpoint does not belong to the sink; the message says what to do.
    """
    spark = df.sparkSession
    require_supported(spark)
    require_streaming(df)
    require_one_of("mode", mode, get_args(WriteMode))
    require_one_of("output_mode", output_mode, get_args(OutputMode))
    chosen = check_trigger(trigger)
    plan = _require_bound_plan(df)
    with Home.open_existing(home) as opened_home:
        location = opened_home.location
    keys = dict(event_times(df.schema) if times is None else times)
    form = RowFormat.of(df.schema, mode, key, keys)
    if parallel is not None:
        routed = df.select(*(column_of(name) for name in form.routing))
        require_stable_routing(explain(routed), routed.schema, form.key)
    settings = SinkOptions(
        parallel=parallel,
        partitions=partitions,
        version=version,
        append=append,
        on_missing_bindings=on_missing_bindings,
        max_rows=max_rows,
        max_bytes=max_bytes,
        linger=duration_micros(linger, "linger"),
        timeout=duration_micros(timeout, "timeout", least=1),
        progress_topic=progress_topic,
        client=dict(options or {}),
        staged=staged,
        with_ts=with_ts,
    )
    spec = sink_spec(to, name, form, settings, df.schema)
    require_executors(spark, needs_of_tasks(to, settings))
    home_of_sink = open_home(location).home
    writer = spec.open(home_of_sink)
    try:
        checkpoint_state = _Checkpoint(spark, str(checkpoint), QueryReaders(home_of_sink), name)
        writer.start(checkpoint_state.query_id)
        stops = writer.batch_stops(checkpoint_state.position, is_stateful=plan.is_stateful)
        readers = QueryReaders(home_of_sink)
        run = readers.announce(
            name,
            {} if checkpoint_state.has_begun else plan.numbered_readers(),
            stops,
            extra_empty_batch=plan.is_stateful,
            incarnations=checkpoint_state.incarnations,
        )
        micros = duration_micros(lag, "lag")
        query = SinkQuery(name, location, str(checkpoint), plan.is_stateful, spec, tuple(keys), micros, run, stops)
        # Spark's own empty batches begin where they end, so they could not be told from retries.
        with _settings_of_session(spark, {_NO_DATA_BATCHES: "false"}):
            started = (
                df.writeStream.queryName(name)
                .outputMode(output_mode)
                .option("checkpointLocation", str(checkpoint))
                .trigger(**chosen)
                .foreachBatch(BatchSink(query, writer))
                .start()
            )
    except BaseException:
        writer.close()
        raise
    if not checkpoint_state.has_begun:
        _await_readers(started, readers, run, plan.readers)
    return started


def event_times(schema: StructType) -> dict[str, str]:
    """Return the time keys of a DataFrame, and the expressions of their times; the time of a window is its end.

    >>> event_times(StructType())
    {}
    """
    times = {}
    for field in schema.fields:
        if EVENT_TIME_METADATA in field.metadata:
            is_window = isinstance(field.dataType, StructType)
            key = str(field.metadata.get(TIME_KEY_METADATA, field.name))
            times[key] = quote_name(field.name) + (".end" if is_window else "")
    return times


def check_trigger(trigger: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the trigger; refuse one under which a retried batch may have other rows.

    >>> check_trigger({"availableNow": True})
    {'availableNow': True}
    >>> check_trigger({"continuous": "1 second"})
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The trigger is {'continuous': '1 second'}. ... [invalid-option]
    """
    chosen = dict(trigger or {"processingTime": "0 seconds"})
    if len(chosen) == 1 and next(iter(chosen)) in _TRIGGERS:
        return chosen
    raise InvalidOption(
        f"The trigger is {chosen}.",
        rule="In continuous and real-time mode Spark writes rows before it has logged where their batch ends, so "
        "repeated rows could not be recognised.",
        remedy=f"Use one of {', '.join(_TRIGGERS)}, such as {{'processingTime': '1 second'}}.",
        option="trigger",
        value=chosen,
    )


class _Checkpoint:
    """The state of a checkpoint, from which the query continues."""

    def __init__(self, spark: SparkSession, location: str, readers: QueryReaders, sink: str) -> None:
        log = OffsetLog(location)
        committed = log.last_committed(spark)
        self.query_id = log.query_id(spark)
        logged = log.last_logged(spark)
        self.has_begun = logged is not None
        ends = None if logged is None else log.offsets(spark, logged)
        self.incarnations = [SourceOffset.load(end).incarnation for end in ends or () if end is not None]
        self.position = None if committed is None else batch_end(log, readers, sink, spark, committed)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The sources of a query, and whether it has state."""

    readers: tuple[str, ...]
    """The ids of the DataFrames that it reads with read_stream and read_topics; see `reader_id`."""
    others: tuple[str, ...]
    """The formats of its other streaming sources."""
    is_stateful: bool

    def numbered_readers(self) -> dict[str, int]:
        """Return the readers, each with its number among those of the same source, in the order of the plan.

        >>> QueryPlan(("a1-77", "a2-88", "a3-77"), (), is_stateful=False).numbered_readers()
        {'a1-77': 1, 'a2-88': 1, 'a3-77': 2}
        """
        counts: Counter[str] = Counter()
        numbers = {}
        for reader in self.readers:
            source = reader.partition("-")[2]
            counts[source] += 1
            numbers[reader] = counts[source]
        return numbers

    @classmethod
    def of(cls, df: DataFrame) -> "QueryPlan":
        """Return the plan of a DataFrame."""
        return cls.read(explain(df))

    @classmethod
    def read(cls, explanation: str) -> "QueryPlan":
        """Return the plan from the output of `df.explain("extended")`.

        >>> QueryPlan.read('''
        ... == Analyzed Logical Plan ==
        ... +- ~StreamingRelationV2 a.RateProvider@30a5, rate, a.Table@3b76, [], [value#24L]
        ... == Optimized Logical Plan ==
        ... == Physical Plan ==
        ... StreamingDeduplicate [value#24L], state info [ checkpoint = <unknown>]
        ... ''')
        QueryPlan(readers=(), others=('rate',), is_stateful=True)
        """
        analyzed = explanation.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
        physical = explanation.partition("== Physical Plan ==")[2]
        readers, others = [], []
        for relation in _RELATION.finditer(analyzed):
            reader = _READER.search(relation["args"])
            if reader is not None:
                readers.append(reader["name"])
                continue
            format_match = _FORMAT.match(relation["args"])
            others.append("?" if format_match is None else format_match["format"])
        return cls(tuple(readers), tuple(others), "state info [" in physical)


def explain(df: DataFrame) -> str:
    """Return what `df.explain("extended")` prints, in full.

    PySpark has no public function that returns it: `explain` prints, and stdout belongs to all threads of the process.
    SQL's EXPLAIN gives no physical plan of a streaming query. So this calls what `explain` calls: Connect's client, or
    the JVM.
    """
    plan: Any = df
    # Spark shortens the list of a source's options, and the reader's id could be among those it leaves out.
    with _settings_of_session(df.sparkSession, {_FIELDS_SHOWN: str(2**31 - 1)}):
        if hasattr(plan, "_explain_string"):
            return str(plan._explain_string(mode="extended"))
        jvm: Any = SparkContext._jvm
        return str(jvm.PythonSQLUtils.explainString(plan._jdf.queryExecution(), "extended"))


def _require_bound_plan(df: DataFrame) -> QueryPlan:
    plan = QueryPlan.of(df)
    if plan.others or not plan.readers:
        others = ", ".join(plan.others) or "no streaming source"
        raise SinkInputUnbound(
            f"The query reads {others}.",
            rule="Exactly-once output needs sources whose offsets are bound to timestamps.",
            remedy="Read the input with read_stream or read_topics, or use df.writeStream, which may repeat rows.",
            inputs=list(plan.others),
        )
    if len(set(plan.readers)) < len(plan.readers):
        raise SinkInputUnbound(
            "The query reads one DataFrame twice.",
            rule="Progress is recorded by DataFrame, and each has one position.",
            remedy="Call read_stream a second time, and use that DataFrame for the second input.",
            inputs=list(plan.readers),
        )
    return plan


_settings_lock: Final = Lock()


@contextmanager
def _settings_of_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session inside the block, by one thread at a time: each restores what was set before."""
    with _settings_lock:
        before = {name: str(spark.conf.get(name)) for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)


def _await_readers(query: StreamingQuery, readers: QueryReaders, run: str, names: Sequence[str]) -> None:
    """Wait until the readers of a new query have registered, so that another query cannot register in their place."""
    give_up = time.monotonic() + _READER_TIMEOUT_SECONDS
    while query.isActive and time.monotonic() < give_up:
        if set(names) <= readers.names(run):
            readers.stop_expecting(run)
            return
        time.sleep(0.02)


# A node of the plan; relations of Spark's older sources, such as files, have no "~".
_RELATION: Final = re.compile(r"^[ :+-]*~?StreamingRelation(?:V2)? (?P<args>.*)", re.MULTILINE)
_READER: Final = re.compile(r"\breader=(?P<name>[0-9a-f]{32}-[0-9a-f]{16})\b")
_FORMAT: Final = re.compile(r"^(?:[\w.$]+@[0-9a-f]+, )?(?P<format>[\w-]+)")
