"""Writes batches of a query to a Kafka topic.

`AtomicWriter`: the driver, in one transaction. `ParallelWriter`: tasks, in one transaction per group of partitions.
`StagedTopicWriter`: tasks without transactions; a record then names the tasks whose rows count. Every attempt of a
task has its own name, and the record has the name of the one attempt per partition whose result Spark accepted.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from floodmark.bindings import Bindings
from floodmark.bindings.offsets import (
    BatchLimits,
    BatchStop,
    load_query_position,
    next_offset,
    save_query_position,
    source_of_key,
)
from floodmark.control import Home
from floodmark.kafka import KafkaSettings
from floodmark.sinks import (
    Batch,
    BatchOutcome,
    CommitPoint,
    GroupedSink,
    GroupedTarget,
    GroupLayout,
    GroupResult,
    GroupWriter,
    KafkaTarget,
    OutRow,
    Sink,
    Start,
    TargetOptions,
    Write,
    WriteFrom,
)
from floodmark.sinks.gate import SplitAt, misaligned_error
from floodmark.sinks.kafka.rows import OutRows, RowColumns
from floodmark.sinks.manifest.target import AttemptWriter, ManifestOptions, ManifestPart, ManifestTarget
from floodmark.sinks.manifest.topic import PlainProducer, TopicManifestLog
from floodmark.sinks.target import SOME_ROWS_SENT, Failpoint, no_failpoint
from floodmark.spark.sink.batch_sink import BaseSinkWriter, default_row_ts, last_written_ts, published_watermarks
from floodmark.spark.sink.rows import RowFormat
from floodmark.spark.transfer import bring_to_driver, decode_batches, pack_rows, split_batches

PARTITION_FUNCTION: Final = "spark-murmur3"
"""How tasks choose partitions: by Spark's hash of the key, or of the value if no key is named."""
_GROUP_RESULT: Final = "of_group INT, ends STRING, written BIGINT, total BIGINT"


@dataclass(frozen=True, slots=True)
class KafkaSpec:
    """The topic that a sink writes to in transactions, and how it writes."""

    settings: KafkaSettings
    topic: str
    sink: str
    options: TargetOptions
    form: RowFormat
    groups: int | None = None
    """How many tasks write at the same time; None if the driver writes."""
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "AtomicWriter | ParallelWriter":
        """Return the writer."""
        return AtomicWriter(home, self) if self.groups is None else ParallelWriter(home, self, self.groups)


class AtomicWriter(BaseSinkWriter[Sink[Iterable[OutRows]]]):
    """Collects the rows of a batch on the driver, and writes them in one transaction."""

    def __init__(self, home: Home, spec: KafkaSpec) -> None:
        """Write as the spec says; `start` is the first access to Kafka."""
        self._spec = spec
        self._bindings = Bindings(home)
        target = KafkaTarget(spec.settings, spec.topic, spec.sink, spec.options, failpoint=spec.failpoint)
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""
        split = self._split(batch)
        rows = partial(self._rows, df, batch, ordered=split is not None)
        return self._sink.write(batch, rows, watermarks=watermarks, split=split)

    def _rows(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, *, ordered: bool) -> Iterator[RowColumns]:
        spec = self._spec
        after = last_written_ts(decision, batch, spec.form, self._bindings)
        published = published_watermarks(spec.form, batch, self.progress)
        records = spec.form.records(df, default_row_ts(batch), after=after, ordered=ordered, published=published)
        return unpack_rows(bring_to_driver(pack_rows(records)))

    def _split(self, batch: Batch) -> Callable[[int], CommitPoint] | None:
        """Return a function from a timestamp to its end, at which a transaction may end; None if batches stay whole."""
        options = self._spec.options
        if options.max_rows is None and options.max_bytes is None:
            return None
        if batch.is_stateful or not self._spec.form.has_ts or len(batch.starts) != 1:
            return None
        ((source, start),) = batch.starts.items()
        history = self._bindings.history(source_of_key(source))

        # Without watermarks: only the last transaction of the batch publishes them.
        return lambda ts: CommitPoint({source: next_offset(history, start, BatchLimits(until=ts))})


class ParallelWriter(BaseSinkWriter[GroupedSink]):
    """Lets each task write a group of partitions, and closes the batch when all groups are written."""

    def __init__(self, home: Home, spec: KafkaSpec, groups: int) -> None:
        """Write as the spec says; `start` is the first access to Kafka."""
        self._spec = spec
        layout = GroupLayout(max(spec.options.partitions, groups), groups, PARTITION_FUNCTION)
        target = GroupedTarget(spec.settings, spec.topic, spec.sink, layout, spec.options, failpoint=spec.failpoint)
        super().__init__(GroupedSink(home, target, failpoint=spec.failpoint))

    def start(self, query_id: str | None) -> Start:
        """Fence earlier writers of all groups, and read the progress."""
        return self._sink.start(query_id)

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""
        return self._sink.write(batch, partial(self._run, df, batch), watermarks=watermarks)

    def _run(self, df: DataFrame, batch: Batch, writers: Sequence[GroupWriter]) -> list[GroupResult]:
        spec, layout = self._spec, writers[0].base.layout
        assert layout is not None
        published = published_watermarks(spec.form, batch, self.progress)
        # Rows are refused in the stage before the shuffle, so before any group is written.
        records = spec.form.records(df, default_row_ts(batch), published=published)
        partition = F.pmod(F.hash("key" if spec.form.key else "value"), F.lit(layout.partitions))
        partitioned = records.withColumn("partition", partition)
        grouped = partitioned.repartitionById(layout.groups, F.pmod("partition", F.lit(layout.groups)))
        write = partial(_write_group, list(writers), batch, spec.failpoint)
        results = grouped.mapInArrow(write, _GROUP_RESULT).collect()
        return [
            GroupResult(row.of_group, load_query_position(json.loads(row.ends)), row.written, row.total)
            for row in results
        ]


def _write_group(
    writers: Sequence[GroupWriter],
    batch: Batch,
    failpoint: Failpoint,
    records: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write, in a task, the rows of one group, even if there are none."""
    context = TaskContext.get()
    assert context is not None
    writer = writers[context.partitionId()]

    def rows(decision: Write | WriteFrom) -> Iterator[RowColumns]:
        if isinstance(decision, WriteFrom):
            raise misaligned_error(SplitAt((BatchStop(decision.after, in_one=False),)), batch)
        return map(RowColumns.of, split_batches(records))

    done = writer.write(rows, batch, failpoint=failpoint)
    ends = json.dumps(save_query_position(done.ends))
    columns = (("of_group", pa.int32(), done.group), ("ends", pa.string(), ends))
    counts = (("written", pa.int64(), done.rows), ("total", pa.int64(), done.total))
    arrays = {name: pa.array([value], kind) for name, kind, value in (*columns, *counts)}
    yield pa.RecordBatch.from_pydict(arrays)


_TASK_RESULT: Final = "task STRING, sent BIGINT"


@dataclass(frozen=True, slots=True)
class StagedTopicSpec:
    """The topic that a sink writes to without transactions, and how it writes."""

    settings: KafkaSettings
    topic: str
    sink: str
    options: ManifestOptions
    form: RowFormat
    partitions: int = 1
    progress_topic: str | None = None
    linger: float = 0.01
    timeout: float = 60.0
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "StagedTopicWriter":
        """Return the writer."""
        return StagedTopicWriter(home, self)


class StagedTopicWriter(BaseSinkWriter[Sink[AttemptWriter]]):
    """Lets tasks send the rows of a batch, and closes it when all rows are sent."""

    def __init__(self, home: Home, spec: StagedTopicSpec) -> None:
        """Write as the spec says; `start` is the first access to Kafka."""
        self._spec = spec
        self._bindings = Bindings(home)
        log = TopicManifestLog(
            spec.settings, spec.topic, spec.sink, partitions=spec.partitions, progress_topic=spec.progress_topic
        )
        target = ManifestTarget(log, spec.options, failpoint=spec.failpoint)
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch, unless it was already written."""
        return self._sink.write(batch, lambda decision: partial(self._run, df, batch, decision), watermarks=watermarks)

    def _run(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, attempt: str) -> list[ManifestPart]:
        form = self._spec.form
        after = last_written_ts(decision, batch, form, self._bindings)
        published = published_watermarks(form, batch, self.progress)
        records = form.records(df, default_row_ts(batch), after=after, published=published)
        results = records.mapInArrow(partial(_send_rows, self._spec, attempt), _TASK_RESULT).collect()
        return [ManifestPart(row.task, row.sent) for row in results if row.sent]


def _send_rows(spec: StagedTopicSpec, attempt: str, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send, in a task, its rows under the name of this attempt."""
    context = TaskContext.get()
    assert context is not None
    task = f"{attempt}.{context.partitionId()}.{context.taskAttemptId()}"

    def rows() -> Iterator[Sequence[OutRow]]:
        for piece in split_batches(records):
            yield RowColumns.of(piece).rows()
            spec.failpoint(SOME_ROWS_SENT)

    pieces = rows()
    first = next(pieces, None)
    sent = 0
    if first is not None:
        producer = PlainProducer(spec.settings, linger=spec.linger, seconds=spec.timeout)
        sent = producer.send(spec.topic, task, chain([first], pieces))
    yield pa.RecordBatch.from_pydict({"task": pa.array([task], pa.string()), "sent": pa.array([sent], pa.int64())})


def unpack_rows(blocks: Iterable[Any]) -> Iterator[RowColumns]:
    """Return the records that `pack_rows` has packed, block by block."""
    for (block,) in blocks:
        for batch in decode_batches(block):
            yield RowColumns.of(batch)
