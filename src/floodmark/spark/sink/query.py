"""Start a streaming query that writes exactly once, after a look at its plan and its checkpoint."""

import contextlib
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from floodmark._util.options import require_one_of
from floodmark._util.times import Duration, duration_micros
from floodmark.bindings.coordination import QueryReaders
from floodmark.control import Home
from floodmark.errors import InvalidOption, SinkInputUnbound
from floodmark.sinks.startup import OnMissingBindings
from floodmark.spark.columns import EVENT_TIME_METADATA, TIME_KEY_METADATA, quote_name, require_streaming
from floodmark.spark.sessions import require_supported
from floodmark.spark.sink.address import SinkOptions, sink_spec
from floodmark.spark.sink.batch_sink import BatchSink, OffsetLog, SinkQuery, batch_end
from floodmark.spark.sink.rows import RowFormat, WriteMode
from floodmark.spark.source.bound_reader import open_home

OutputMode = Literal["append", "update"]

_NO_DATA_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
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
    """Start a query that writes each row once, whatever is killed and started again, and return it.

    ```python
    import floodmark as fm

    orders = fm.read_stream(fm.session(), "shop/orders")
    per_minute = fm.window(orders, "1 minute").groupBy("window").count()
    query = fm.write_stream(
        per_minute, to="kafka://localhost:9092/per-minute", name="per-minute", checkpoint="checkpoints/per-minute"
    )
    ```

    It reads what `read_stream` and `read_topics` return, of the same `home`. What was written is known by the sink's
    `name`, not by the `checkpoint`: that may be deleted, or be an older copy, and then the query reads again what it
    needs and writes what is missing. One process writes for a sink, whoever started last. `version` is that of the
    program: an older one does not start any more. `trigger` is Spark's, such as {"processingTime": "1 second"}.

    `to="kafka://host:port/topic"` writes a batch in one transaction, through the driver, with a record of how far that
    is in `<topic>.progress` (or `progress_topic`), and how far time has come in `<topic>.marks`: who reads with
    isolation.level=read_committed sees whole batches and whole timestamps. A missing topic is made, with so many
    `partitions`; one with records of others is refused, unless `append`. Where bindings are gone, nobody can know what
    was written: that is refused, or with on_missing_bindings="nonce" a topic of its own is begun. A transaction that
    takes longer than `timeout` is given up, and tried once more. With `max_rows` or `max_bytes` several are made of a
    batch, each of whole timestamps, if the query has no state and keeps `_ts`; `linger` is how long records wait for
    company. With `parallel=n` n of Spark's tasks write at a time, each a group of partitions in a transaction of its
    own; rows of a batch then appear group by group, and the record follows when all are there. `options` are those of
    Kafka's client, such as {"kafka.sasl.password": ...}.

    The value of a record is the row as JSON, or the column `value` where that is text or bytes and there are only
    `key`, `value` and `headers`; `key` names the columns of the key. Rows that keep `_ts` have it in a header,
    `floodmark.ts`. A row is written as often as `_diff` says, if
    there is such a column. With mode="upsert" a row takes the place of the one with its key, and a `_diff` below 0
    leaves nothing there. In mode="append" that is refused, and so is an upsert without a key: nothing of the batch is
    seen then.

    `times` are the time keys that are told to readers, and the columns or expressions that have them; without it the
    event time of the DataFrame, of a window its end. What is told is the watermark of the query, less a `lag`, which
    rows need that lie further back, such as those of a join.

    `to="stream://shop/per-minute"` writes to a stream of the same home, wherever its events are, and makes it if it is
    missing: with the columns of the DataFrame, and its times as time keys. A stream with other columns or time keys is
    refused. A window's time is its last moment, a microsecond before its end, in a column that is called as the key.
    Rows, watermark and the record of what was written are decided in one transaction of the home's store; what was
    decided appears a moment later, also if this process dies. The query is a writer of the stream that has the sink's
    name, so that its watermark goes on to those who read it. When the query ends that writer falls silent and is not
    closed: others in the same stream wait for it as long as the stream's `writer_timeout` says, and then go on. A batch
    is one transaction, and its rows pass through the driver; `parallel`, `max_rows` and `max_bytes` are refused.

    `to="delta:///data/per-minute"` writes to a table of Delta Lake (`floodmark[delta]`), and makes it if it is missing.
    Spark writes the files of a batch into the table's directory, which all machines share, and one commit adds them
    and says how far the sink is: `floodmark.closing` in the commit's information is its record, `floodmark.marks` how
    far time has come by key. Rows have the columns of the data, and with `with_ts` their timestamps as `_ts`. A table
    with other columns, or that asks for more than files, is refused. Rows are appended; with mode="upsert" the table
    has one row of each `key`, the newest, and none of those whose newest `_diff` is below 0. A key has a value in each
    of its columns, which are of the data. Files with rows that give way are written anew without them, so that a batch
    costs as much as the files that it touches; if others have committed in the meantime, that is done once more. The
    rows that a sink is said to have written are then those that it has put in place, not those deleted or copied.

    For targets without transactions readers must know what counts, and `read_closed` does. `to="file:///data/rows"`
    writes Parquet files to a directory, and `staged=True` to a topic without transactions, by Spark's tasks. A small
    record closes each batch, and names the files or tasks of the one attempt that counts.
    """
    spark = df.sparkSession
    require_supported(spark)
    require_streaming(df)
    require_one_of("mode", mode, get_args(WriteMode))
    require_one_of("output_mode", output_mode, get_args(OutputMode))
    chosen = check_trigger(trigger)
    plan = _require_bound_plan(df)
    with Home.open_existing(home) as kept:
        location = kept.location
    keys = dict(event_times(df.schema) if times is None else times)
    form = RowFormat.of(df.schema, mode, key, keys)
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
    home_of_sink = open_home(location).home
    writer = spec.open(home_of_sink)
    try:
        found = _Checkpoint(spark, str(checkpoint), QueryReaders(home_of_sink), name)
        writer.start(found.query_id)
        stops = writer.cuts(found.place, is_stateful=plan.is_stateful)
        query = SinkQuery(
            name, location, str(checkpoint), plan.is_stateful, spec, tuple(keys), duration_micros(lag, "lag"), stops
        )
        readers = QueryReaders(home_of_sink)
        readers.expect(name, () if found.has_begun else plan.readers, stops, settles=plan.is_stateful)
        with _no_empty_batches(spark):
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
    if not found.has_begun:
        _await_readers(started, readers, name, plan.readers)
    return started


def event_times(schema: StructType) -> dict[str, str]:
    """Return the time keys of a DataFrame, and the expressions of their times; of a window it is the end that counts.

    >>> event_times(StructType())
    {}
    """
    found = {}
    for field in schema.fields:
        if EVENT_TIME_METADATA in field.metadata:
            is_window = isinstance(field.dataType, StructType)
            found[str(field.metadata.get(TIME_KEY_METADATA, field.name))] = quote_name(field.name) + (
                ".end" if is_window else ""
            )
    return found


def check_trigger(trigger: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a trigger of Spark under which a batch that runs again is the same, or refuse it.

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
        rule="In continuous and real-time mode Spark writes rows before it knows where their batch ends: they could "
        "not be told from those that come again.",
        remedy=f"Use one of {', '.join(_TRIGGERS)}, such as {{'processingTime': '1 second'}}.",
        option="trigger",
        value=chosen,
    )


class _Checkpoint:
    """What a query would go on from."""

    def __init__(self, spark: SparkSession, location: str, readers: QueryReaders, sink: str) -> None:
        log = OffsetLog(location)
        committed = log.last_committed(spark)
        self.query_id = log.query_id(spark)
        self.has_begun = log.has_begun(spark)
        self.place = None if committed is None else batch_end(log, readers, sink, spark, committed)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The sources of a query, and whether it has state."""

    readers: tuple[str, ...]
    """The DataFrames of ours that it reads, as read_stream and read_topics have named them."""
    others: tuple[str, ...]
    """The formats of the other streams that it reads."""
    is_stateful: bool

    @classmethod
    def of(cls, df: DataFrame) -> "QueryPlan":
        """Return those of a DataFrame."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            df.explain("extended")
        return cls.read(said.getvalue())

    @classmethod
    def read(cls, explanation: str) -> "QueryPlan":
        """Return what an explanation says.

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
            named = _READER.search(relation["args"])
            if named is not None:
                readers.append(named["name"])
                continue
            found = _FORMAT.match(relation["args"])
            others.append("?" if found is None else found["format"])
        return cls(tuple(readers), tuple(others), "state info [" in physical)


def _require_bound_plan(df: DataFrame) -> QueryPlan:
    plan = QueryPlan.of(df)
    if plan.others or not plan.readers:
        others = ", ".join(plan.others) or "nothing that was found"
        raise SinkInputUnbound(
            f"The query reads {others}.",
            rule="What is written exactly once comes from sources whose offsets have timestamps.",
            remedy="Read it with read_stream or read_topics, or write with a sink that may repeat rows.",
            inputs=list(plan.others),
        )
    if len(set(plan.readers)) < len(plan.readers):
        raise SinkInputUnbound(
            "The query reads one DataFrame twice.",
            rule="What is written is known by the sources that it came from, and each has one place.",
            remedy="Call read_stream once more, with another `source`, for the second one.",
            inputs=list(plan.readers),
        )
    return plan


@contextmanager
def _no_empty_batches(spark: SparkSession) -> Iterator[None]:
    """Let Spark make no batches by itself, which would begin where they end: nobody could tell them apart."""
    before = spark.conf.get(_NO_DATA_BATCHES)
    spark.conf.set(_NO_DATA_BATCHES, "false")
    try:
        yield
    finally:
        spark.conf.set(_NO_DATA_BATCHES, str(before))


def _await_readers(query: StreamingQuery, readers: QueryReaders, sink: str, names: Sequence[str]) -> None:
    """Wait until the readers of a new query have found it, so that no other query can be taken for it."""
    give_up = time.monotonic() + _READER_TIMEOUT_SECONDS
    while query.isActive and time.monotonic() < give_up:
        if set(names) <= readers.names(sink):
            readers.begun(sink)
            return
        time.sleep(0.02)


_RELATION: Final = re.compile(r"~StreamingRelation(?:V2)? (?P<args>.*)")
_READER: Final = re.compile(r"\breader=(?P<name>[0-9a-f]{32})\b")
_FORMAT: Final = re.compile(r"^(?:[\w.$]+@[0-9a-f]+, )?(?P<format>[\w-]+)")
