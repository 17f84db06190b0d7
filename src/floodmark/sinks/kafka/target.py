"""A Kafka topic as a target: the rows of a batch and its progress record are in one transaction.

After a failure before Kafka accepts the commit, the next start aborts the transaction. After a failure later than that,
the next start reads the record and drops the batch. There is no third case.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException

from floodmark.errors import FloodmarkError, SinkFenced, SinkProgressInvalid, SinkTimedOut
from floodmark.kafka import Fenced, KafkaCluster, KafkaSettings, MarkRecord, TransactionalProducer, marks_topic_of
from floodmark.kafka.bulk_producer import BulkClient
from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom, initial_progress, progress_after
from floodmark.sinks.kafka.rows import TS_HEADER, OutRow, OutRows, RowColumns, TransactionSize, byte_size, split_rows
from floodmark.sinks.kafka.topics import (
    ProgressTopicReader,
    SinkTopics,
    has_records,
    progress_topic_of,
    read_last_marks,
)
from floodmark.sinks.progress import GroupLayout, Progress, SinkMark, check_sink_name
from floodmark.sinks.startup import BoundsLookup, Resume, Start, StartupState, decide_start, topic_in_use
from floodmark.sinks.target import (
    BEFORE_BEGIN,
    COMMITTED,
    FENCED,
    MAX_TIMEOUTS_IN_A_ROW,
    PROGRESS_FLUSHED,
    ROWS_FLUSHED,
    SOME_ROWS_SENT,
    STARTED,
    CommitPoint,
    Failpoint,
    SinkMode,
    TargetOptions,
    fenced_error,
    no_failpoint,
    not_started_error,
    timeout_error,
)


class SinkProducer(TransactionalProducer):
    """The transactional producer of a sink."""

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        sink: str,
        *,
        timeout: float,
        linger: float,
        bulk: bool = False,
    ) -> None:
        """Fence earlier producers and wait for their transactions to end. With `bulk`, rows have no headers."""
        self._sink = sink
        options = {
            # The partitioner of Kafka's Java client, so that all clients send a key to the same partition.
            "partitioner": "murmur2",
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "linger.ms": round(linger * 1_000),
        }
        super().__init__(settings, transactional_id, timeout=timeout, options=options, bulk=bulk)

    def send(self, topic: str, rows: OutRows, *, stamp: bool = True) -> None:
        """Add rows to the transaction, by default with their timestamps. Blocks while the queue is full.

        Without a header, small rows are sent much faster.
        """
        if not isinstance(rows, RowColumns):
            self._send_rows(topic, rows, stamp=stamp)
        elif isinstance(self.client, BulkClient):
            self._send_columns(topic, rows)
        else:
            self._send_rows(topic, rows.rows(), stamp=stamp)
        self.poll(0, topic)

    def _send_columns(self, topic: str, columns: RowColumns) -> None:
        assert columns.headers is None, "bulk rows have no headers"
        partitions = columns.partitions
        numbers = None if partitions is None else partitions.fill_null(-1).to_numpy()
        self.put_columns(topic, columns.keys, columns.values, numbers)

    def _send_rows(self, topic: str, rows: Sequence[OutRow], *, stamp: bool) -> None:
        produce = self.client.produce
        last: int | None = None
        stamped: list[tuple[str, bytes | None]] = []
        for key, value, ts, partition, headers in rows:
            if stamp and ts != last:
                last, stamped = ts, [(TS_HEADER, str(ts).encode())]
            full = [*headers, *stamped] if headers else stamped or None
            try:
                # Omitted arguments save a third of the time for small rows.
                if full is not None:
                    produce(topic, value, key, -1 if partition is None else partition, headers=full)
                elif partition is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, partition)
            except BufferError:
                self.put(topic, value, key, -1 if partition is None else partition, full)
            except KafkaException as error:
                raise self.failure(error.args[0], f"writing to {topic}") from error

    def failure(self, error: KafkaError, doing: str) -> Exception:
        """Return the error for a Kafka error; a fenced producer means a fenced sink."""
        problem = super().failure(error, doing)
        if not isinstance(problem, Fenced):
            return problem
        return fenced_error(self._sink, problem.doing, kafka_code=problem.code)


def transactional_id_of(progress_topic: str, sink: str) -> str:
    """Return the transactional id of a sink: all its processes share it, no other sink does.

    >>> transactional_id_of("orders.progress", "out")
    'floodmark.sink.orders.progress.out'
    """
    return f"floodmark.sink.{progress_topic}.{sink}"


class KafkaTarget:
    """Writes batches to a topic, each once. Not thread-safe.

    Call `start` first, and again after every error. `decide_batch` decides on a batch, given `progress`.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        sink: str,
        options: TargetOptions = TargetOptions(),  # noqa: B008
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Write for this sink; Kafka is not contacted before `start`."""
        self.settings = settings
        self.sink = sink
        self.options = options
        self.topic = topic
        """The topic of the rows; a new one after `BeginElsewhere`."""
        self.cluster = KafkaCluster(settings)
        self.progress: Progress | None = None
        """The progress that this process last wrote or read."""
        self._configured_topic = topic
        self._topic_id = ""
        self._first_marks: dict[str, SinkMark] = {}
        """The last marks in the marks topic when the sink first starts there."""
        self._failpoint = failpoint
        self._producer: SinkProducer | None = None
        self._sent = TransactionSize()
        self._timed_out = 0
        self._ended: FloodmarkError | None = None

    @property
    def mode(self) -> SinkMode:
        """All rows of a batch appear at once."""
        return "atomic"

    @property
    def address(self) -> str:
        """URL of the topic, without secrets."""
        return f"{self.settings.url}/{self._configured_topic}"

    @property
    def version(self) -> int:
        """Version of the program."""
        return self.options.version

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records."""
        return self.options.progress_topic or progress_topic_of(self._configured_topic)

    def start(self, bounds: BoundsLookup, known: Progress | None = None) -> Start:
        """Fence earlier processes, read their progress, and decide how to start, in this order."""
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._abort_open()
        topics = SinkTopics(self.cluster)
        topics.ensure_progress_topic(self.progress_topic)
        producer, newest = self._fence_and_read()
        progress = newest.get(self.sink)
        for earlier in (self.progress, known):
            self._check_not_lost(earlier, progress)
        start = self._decide(progress, bounds)
        if isinstance(start, Resume):
            self.progress = start.progress
            self.topic, self._topic_id = start.progress.topic, start.progress.topic_id
        else:
            self._begin_in(start.topic)
        if self.options.marks:
            topics.ensure_marks_topic(marks_topic_of(self.topic))
            if self.progress is None:
                self._first_marks = read_last_marks(self.cluster, marks_topic_of(self.topic))
        self._producer = producer
        self._failpoint(STARTED)
        return start

    def forget_fence(self) -> None:
        """Let the target start again after a process that started earlier has fenced it."""
        if isinstance(self._ended, SinkFenced):
            self._ended = None

    def resume(self, base: Progress, *, total: int = 0) -> Progress:
        """Start as one of several writers of a topic: fence, read, and begin at `base` if nothing was written yet.

        Raises SinkFenced if `base` is not the newest record of its sink: another driver has started since. A driver
        that starts records this first, and then fences all groups.
        """
        if self._ended is not None:
            raise self._ended
        self._abort_open()
        producer, newest = self._fence_and_read(base.sink)
        closed = newest.get(base.sink)
        if closed is None or closed.save() != base.save():
            raise fenced_error(base.sink, "a task began to write")
        progress = newest.get(self.sink)
        if progress is None or progress.topic_id != base.topic_id:
            progress = replace(base, sink=self.sink, rows=0, total=total, position={}, marks={})
        self.progress = progress
        self.topic, self._topic_id = base.topic, base.topic_id
        self._producer = producer
        self._failpoint(STARTED)
        return progress

    def fence(self, names: Iterable[str]) -> dict[str, Progress]:
        """Fence the writers with these names, and return their progress by name."""
        producers = [self._new_producer(name) for name in names]
        reader = ProgressTopicReader(self.settings, self.progress_topic, timeout=self.options.timeout)
        progress = reader.read(self.sink, self.cluster, set(names).__contains__)
        del producers
        progress.pop(self.sink, None)
        return progress

    def write(
        self,
        rows: Iterable[OutRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop = Write(),  # noqa: B008
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Write pieces of rows and the progress record of `batch` in one transaction; return the record.

        The transaction begins with the first piece. With `split`, rows must come in timestamp order: a full transaction
        is committed after a timestamp, at the commit point that `split` returns, and a new one begins.
        """
        producer = self._require_started()
        try:
            # Windows have no timestamps of their own to split at.
            commit_points = None if batch.is_stateful else split
            progress = self._write(producer, rows, batch, decision, watermarks or {}, commit_points)
        except BaseException as error:
            self._abort_after(producer, error)
            raise
        self._timed_out = 0
        return progress

    def record(
        self,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        rows: int,
        layout: GroupLayout | None = None,
        start: int | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> Progress:
        """Write the progress record of a batch whose rows other producers have written, and return it.

        Without `layout` and `start`, those of the record before it stay.
        """
        producer = self._require_started()
        try:
            return self._commit(producer, batch, decision, watermarks or {}, TransactionSize(rows), layout, start)
        except BaseException as error:
            self._abort_after(producer, error)
            raise

    def close(self) -> None:
        """Abort the open transaction and close the connection."""
        self._abort_open()

    def _write(
        self,
        producer: SinkProducer,
        rows: Iterable[OutRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
        split: Callable[[int], CommitPoint] | None,
    ) -> Progress:
        options, sent = self.options, self._sent
        sent.clear()
        self._failpoint(BEFORE_BEGIN)
        for piece, point in split_rows(rows, split, options, sent):
            if not producer.is_open:
                producer.begin()
            producer.send(self.topic, piece, stamp=options.stamp)
            sent.rows += len(piece)
            if options.max_bytes is not None:
                sent.bytes += byte_size(piece)
            self._failpoint(SOME_ROWS_SENT)
            self._check_time(producer, sent)
            if point is not None:
                first_part = replace(batch, ends=point.position)
                self._commit(producer, first_part, WriteFrom(batch.starts), point.watermarks, sent)
                batch, decision = replace(batch, starts=point.position), Write()
                sent.clear()
        return self._commit(producer, batch, decision, watermarks, sent)

    def _commit(
        self,
        producer: SinkProducer,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
        sent: TransactionSize,
        layout: GroupLayout | None = None,
        start: int | None = None,
    ) -> Progress:
        if not producer.is_open:
            producer.begin()
        self._check_time(producer, sent)
        producer.flush()
        self._failpoint(ROWS_FLUSHED)
        before = self.progress or replace(
            initial_progress(self.sink, self.topic, self._topic_id, self.options.version, batch),
            marks=self._first_marks,
        )
        marked = watermarks if self.options.marks else {}
        progress = progress_after(before, batch, decision, rows=sent.rows, watermarks=marked)
        rising = {key: mark for key, mark in progress.marks.items() if mark != before.marks.get(key)}
        position = before.position
        if self.options.marks and (sent.rows or rising):
            # Rows of other writers below these ends only delay the mark.
            partitions = range(self.cluster.topic(self.topic).partitions)
            position = self.cluster.ends(self.topic, partitions, committed=False)
        for key, mark in rising.items():
            record = MarkRecord(key, mark.seq, "watermark", mark.time, mark.time, "us", (self.sink,), dict(position))
            producer.put(marks_topic_of(self.topic), record.save(), key.encode(), 0)
        progress = replace(
            progress,
            version=self.options.version,
            position=position,
            layout=layout or before.layout,
            start=before.start if start is None else start,
        )
        producer.put(self.progress_topic, progress.save(), progress.key, 0)
        producer.flush()
        self._failpoint(PROGRESS_FLUSHED)
        self._check_time(producer, sent)
        producer.commit()
        self.progress = progress
        self._failpoint(COMMITTED)
        return progress

    def _check_time(self, producer: SinkProducer, sent: TransactionSize) -> None:
        if producer.seconds >= self.options.timeout:
            raise self._count_timeout(sent, producer.seconds)

    def _count_timeout(self, sent: TransactionSize, seconds: float) -> SinkTimedOut:
        """Count a transaction timeout, and return the error for it."""
        self._timed_out += 1
        maximum = SinkTopics(self.cluster).broker_maximum()
        return timeout_error(
            self.sink,
            sent.rows,
            seconds,
            self.options.timeout,
            again=self._timed_out < MAX_TIMEOUTS_IN_A_ROW,
            more=f"; the brokers allow {'?' if maximum is None else f'{maximum:g}'} s",
            rule="Kafka aborts a transaction that takes longer; readers see none of its rows.",
            maximum=maximum,
        )

    def _abort_after(self, producer: SinkProducer, error: BaseException) -> None:
        """Abort the transaction after an error. The target must be started again; a fenced one never starts again."""
        self._producer, seconds = None, producer.seconds
        fenced = error if isinstance(error, SinkFenced) else None
        try:
            producer.abort()
        except SinkFenced as abort_error:
            fenced = fenced or abort_error
        except FloodmarkError:
            # The next start aborts the transaction.
            pass
        if fenced is not None and seconds < self.options.timeout:
            self._ended = fenced
        elif fenced is error:
            # Kafka also fences a producer whose transaction timed out.
            error = self._count_timeout(self._sent, seconds)
            self._end_after(error)
            raise error from fenced
        self._end_after(error)

    def _end_after(self, error: BaseException) -> None:
        if isinstance(error, SinkTimedOut) and not error.fields["again"]:
            self._ended = error

    def _fence_and_read(self, *others: str) -> tuple[SinkProducer, dict[str, Progress]]:
        """Fence the earlier producer of this writer, then read its newest progress and that of others, by name."""
        producer = self._new_producer(self.sink)
        self._failpoint(FENCED)
        timeout = self.options.timeout
        reader = ProgressTopicReader(self.settings, self.progress_topic, timeout=timeout, failpoint=self._failpoint)
        return producer, reader.read(self.sink, self.cluster, others.__contains__)

    def _new_producer(self, name: str) -> SinkProducer:
        id_ = transactional_id_of(self.progress_topic, name)
        options = self.options
        bulk = not (options.stamp or options.headers)
        return SinkProducer(self.settings, id_, name, timeout=options.timeout, linger=options.linger, bulk=bulk)

    def _decide(self, progress: Progress | None, bounds: BoundsLookup) -> Start:
        topic = topic_in_use(self._configured_topic, self.sink, progress)
        info = self.cluster.find_topic(topic)
        return decide_start(
            StartupState(
                self.sink,
                self.options.version,
                topic,
                None if info is None else info.id,
                info is not None and progress is None and has_records(self.cluster, topic, info.partitions),
                progress,
                {} if progress is None else bounds(progress.ends),
            ),
            append=self.options.append,
            on_missing_bindings=self.options.on_missing_bindings,
            nonce=secrets.token_hex(4),
        )

    def _begin_in(self, topic: str) -> None:
        info = self.cluster.find_topic(topic) or self.cluster.create_topic(topic, self.options.partitions, {})
        self.topic, self._topic_id = info.name, info.id
        self.progress, self._first_marks = None, {}

    def _check_not_lost(self, earlier: Progress | None, stored: Progress | None) -> None:
        """Check that the progress topic still has what was recorded for the topic of the rows."""
        if earlier is None or (
            stored is not None and (stored.topic_id != earlier.topic_id or stored.total >= earlier.total)
        ):
            return
        info = self.cluster.find_topic(earlier.topic)
        if info is not None and info.id == earlier.topic_id:
            raise SinkProgressInvalid(
                f"The sink {self.sink!r} has written {earlier.total} rows, but its progress topic "
                f"{self.progress_topic!r} records {0 if stored is None else stored.total}.",
                rule="Committed progress must stay; without it the sink would write rows twice.",
                remedy="Find out what deleted records of the progress topic; start over with a new sink and topic.",
                sink=self.sink,
            )

    def _require_started(self) -> SinkProducer:
        if self._ended is not None:
            raise self._ended
        if self._producer is None:
            raise not_started_error(self.sink)
        return self._producer

    def _abort_open(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # If the abort fails, the next start aborts the transaction.
            with suppress(FloodmarkError):
                producer.abort()
