"""Batches of a query into a topic without transactions: tasks send the rows, and a record says which tasks count.

A task that is tried again has another name each time. Spark tells the driver one name for each part of the batch, that
of the task whose result it has taken; only those are in the record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.kafka import KafkaSettings
from floodmark.sinks import Batch, BatchOutcome, OutRow, Sink, Sinks, Write, WriteFrom
from floodmark.sinks.kafka.rows import RowColumns
from floodmark.sinks.manifest.target import AttemptWriter, ManifestOptions, ManifestPart, ManifestTarget
from floodmark.sinks.manifest.topic import PlainProducer, TopicManifestLog
from floodmark.sinks.target import SOME_ROWS_SENT, Failpoint, no_failpoint
from floodmark.spark._batch_sink import WriterOver
from floodmark.spark._packed_rows import pieces_of
from floodmark.spark._sink_batches import known_times, newest_ts, rows_after
from floodmark.spark._sink_rows import RowForm

_RESULT: Final = "task STRING, sent BIGINT"


@dataclass(frozen=True, slots=True)
class StagedTopicSpec:
    """Which topic is written, and how."""

    settings: KafkaSettings
    topic: str
    sink: str
    options: ManifestOptions
    form: RowForm
    partitions: int = 1
    progress_topic: str | None = None
    linger: float = 0.01
    timeout: float = 60.0
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "StagedTopicWriter":
        """Return the writer."""
        return StagedTopicWriter(home, self)


class StagedTopicWriter(WriterOver[Sink[AttemptWriter]]):
    """Lets tasks send the rows of a batch, and closes it when all have."""

    def __init__(self, home: Home, spec: StagedTopicSpec) -> None:
        """Write as the spec says; nothing is asked of Kafka before `start`."""
        self._spec = spec
        self._bindings = Bindings(home)
        log = TopicManifestLog(
            spec.settings, spec.topic, spec.sink, partitions=spec.partitions, progress_topic=spec.progress_topic
        )
        target = ManifestTarget(
            log, spec.options, known=lambda: Sinks(home).get(spec.sink).progress, failpoint=spec.failpoint
        )
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch unless it was written."""
        return self._sink.write(batch, lambda decision: partial(self._run, df, batch, decision), watermarks=watermarks)

    def _run(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, attempt: str) -> list[ManifestPart]:
        form = self._spec.form
        after = rows_after(decision, batch, form, self._bindings)
        told = known_times(form, batch, self.progress)
        records = form.records(df, newest_ts(batch), after=after, told=told)
        found = records.mapInArrow(partial(_send, self._spec, attempt), _RESULT).collect()
        return [ManifestPart(row.task, row.sent) for row in found if row.sent]


def _send(spec: StagedTopicSpec, attempt: str, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As a task, send the rows that it has been given under a name of its own."""
    context = TaskContext.get()
    assert context is not None
    task = f"{attempt}.{context.partitionId()}.{context.taskAttemptId()}"

    def rows() -> Iterator[Sequence[OutRow]]:
        for piece in pieces_of(records):
            yield RowColumns.of(piece).rows()
            spec.failpoint(SOME_ROWS_SENT)

    pieces = rows()
    first = next(pieces, None)
    sent = 0
    if first is not None:
        producer = PlainProducer(spec.settings, linger=spec.linger, seconds=spec.timeout)
        sent = producer.send(spec.topic, task, chain([first], pieces))
    yield pa.RecordBatch.from_pydict({"task": pa.array([task], pa.string()), "sent": pa.array([sent], pa.int64())})
