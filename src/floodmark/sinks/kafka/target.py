"""A Kafka topic as a target: the rows of a batch and its progress record, in one transaction.

If anything fails before Kafka has accepted the commit, the next start aborts the transaction. If anything fails
after that, the next start reads the record and drops the batch. There is no third case.
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
    """Writes the rows of a sink."""

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
        """Fence, and wait until the outcome of every transaction before is known. In bulk rows have no headers."""
        self._sink = sink
        options = {
            # As Kafka's other clients do it, and so that the same key goes to the same place today and tomorrow.
            "partitioner": "murmur2",
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "linger.ms": round(linger * 1_000),
        }
        super().__init__(settings, transactional_id, timeout=timeout, options=options, bulk=bulk)

    def send(self, topic: str, rows: OutRows, *, stamp: bool = True) -> None:
        """Put rows into the transaction, with their timestamps unless told otherwise. It waits while the queue is full.

        A header takes longer than all the rest of a small row.
        """
        if not isinstance(rows, RowColumns):
            self._send_rows(topic, rows, stamp=stamp)
        elif isinstance(self.client, BulkClient):
            self._send_columns(topic, rows)
        else:
            self._send_rows(topic, rows.rows(), stamp=stamp)
        self.poll(0, topic)

    def _send_columns(self, topic: str, columns: RowColumns) -> None:
        assert columns.headers is None, "there are none in bulk"
        partitions = columns.partitions
        places = None if partitions is None else partitions.fill_null(-1).to_numpy()
        self.put_columns(topic, columns.keys, columns.values, places)

    def _send_rows(self, topic: str, rows: Sequence[OutRow], *, stamp: bool) -> None:
        produce = self.client.produce
        last: int | None = None
        stamped: list[tuple[str, bytes | None]] = []
        for key, value, ts, partition, headers in rows:
            if stamp and ts != last:
                last, stamped = ts, [(TS_HEADER, str(ts).encode())]
            full = [*headers, *stamped] if headers else stamped or None
            try:
                # What is not given takes no time: a third of it all, for small rows.
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
        """Return the error for what went wrong."""
        problem = super().failure(error, doing)
        if not isinstance(problem, Fenced):
            return problem
        return fenced_error(self._sink, problem.doing, kafka_code=problem.code)


def transactional_id_of(progress_topic: str, sink: str) -> str:
    """Return the id under which a sink writes: no two sinks share it, and all processes of one do.

    >>> transactional_id_of("orders.progress", "out")
    'floodmark.sink.orders.progress.out'
    """
    return f"floodmark.sink.{progress_topic}.{sink}"


class KafkaTarget:
    """Writes batches to a topic, each once. One thread at a time.

    `start` comes first, and again after every error. `decide_batch` says what becomes of a batch, given `progress`.
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
        """Write for this sink; nothing is asked of Kafka before `start`."""
        self.settings = settings
        self.sink = sink
        self.options = options
        self.topic = topic
        """The topic that rows go to; one of its own if the sink has begun elsewhere."""
        self.cluster = KafkaCluster(settings)
        self.progress: Progress | None = None
        """What was written, as far as this process knows."""
        self._wanted_topic = topic
        self._topic_id = ""
        self._first_marks: dict[str, SinkMark] = {}
        """What the marks topic told before the first record."""
        self._failpoint = failpoint
        self._producer: SinkProducer | None = None
        self._done = TransactionSize()
        self._timed_out = 0
        self._ended: FloodmarkError | None = None

    @property
    def mode(self) -> SinkMode:
        """All rows of a batch appear at once."""
        return "atomic"

    @property
    def address(self) -> str:
        """The cluster and the topic, without any secret."""
        return f"{self.settings.url}/{self._wanted_topic}"

    @property
    def version(self) -> int:
        """The version of the program."""
        return self.options.version

    @property
    def progress_topic(self) -> str:
        """Where progress is recorded."""
        return self.options.progress_topic or progress_topic_of(self._wanted_topic)

    def start(self, bounds: BoundsLookup) -> Start:
        """Fence those before, read what they have written, and decide: in this order.

        `bounds` tells what can be read of sources; those without bindings are left out.
        """
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._let_go()
        shapes = SinkTopics(self.settings, self.cluster)
        shapes.ensure_progress_topic(self.progress_topic)
        self._check_alone()
        producer, progress = self._fence_and_read()
        self._check_known(progress)
        start = self._decide(progress, bounds)
        if isinstance(start, Resume):
            self.progress = start.progress
            self.topic, self._topic_id = start.progress.topic, start.progress.topic_id
        else:
            self._begin_in(start.topic)
        if self.options.marks:
            shapes.ensure_marks_topic(marks_topic_of(self.topic))
            if self.progress is None:
                self._first_marks = read_last_marks(self.cluster, marks_topic_of(self.topic))
        self._producer = producer
        self._failpoint(STARTED)
        return start

    def resume(self, base: Progress, *, total: int = 0) -> Progress:
        """Start as one of several writers to a topic: fence, read, and go on from `base` if nothing was written yet."""
        if self._ended is not None:
            raise self._ended
        self._let_go()
        producer, progress = self._fence_and_read()
        if progress is None or progress.topic_id != base.topic_id:
            progress = replace(base, sink=self.sink, rows=0, total=total, position={}, marks={})
        self.progress = progress
        self.topic, self._topic_id = base.topic, base.topic_id
        self._producer = producer
        self._failpoint(STARTED)
        return progress

    def fence(self, names: Iterable[str]) -> dict[str, Progress]:
        """Fence writers of these names, and return what they have written."""
        fenced = [self._new_producer(name) for name in names]
        scan = ProgressTopicReader(self.settings, self.progress_topic, timeout=self.options.timeout)
        found = scan.read(self.sink, self.cluster, set(names).__contains__)
        del fenced
        found.pop(self.sink, None)
        return found

    def write(
        self,
        rows: Iterable[OutRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop = Write(),  # noqa: B008
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Write rows, which come in pieces, and the record that `batch` was written; return the record.

        Nothing is begun before the first piece is there. With `split` the rows are in the order of their timestamps,
        and a transaction that is full ends after one of them, at the step that `split` gives for it. `watermarks` are
        those that hold for what comes after these rows. After any error the target must be started again.
        """
        producer = self._started()
        try:
            # Windows have no timestamps of their own between which to cut.
            steps = None if batch.is_stateful else split
            progress = self._write(producer, rows, batch, decision, watermarks or {}, steps)
        except BaseException as error:
            self._give_up(producer, error)
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
        watermarks: Mapping[str, int] | None = None,
    ) -> Progress:
        """Write the record that `batch` was written by others, so many rows, and return it."""
        producer = self._started()
        try:
            return self._finish(producer, batch, decision, watermarks or {}, TransactionSize(rows), layout)
        except BaseException as error:
            self._give_up(producer, error)
            raise

    def close(self) -> None:
        """Let go of Kafka; an open transaction is aborted."""
        self._let_go()

    def _write(
        self,
        producer: SinkProducer,
        rows: Iterable[OutRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
        split: Callable[[int], CommitPoint] | None,
    ) -> Progress:
        options, done = self.options, self._done
        done.clear()
        self._failpoint(BEFORE_BEGIN)
        for piece, step in split_rows(rows, split, options, done):
            if not producer.is_open:
                producer.begin()
            producer.send(self.topic, piece, stamp=options.stamp)
            done.rows += len(piece)
            if options.max_bytes is not None:
                done.bytes += byte_size(piece)
            self._failpoint(SOME_ROWS_SENT)
            self._check_time(producer, done)
            if step is not None:
                part = replace(batch, ends=step.place)
                self._finish(producer, part, WriteFrom(batch.starts), step.watermarks, done)
                batch, decision = replace(batch, starts=step.place), Write()
                done.clear()
        return self._finish(producer, batch, decision, watermarks, done)

    def _finish(
        self,
        producer: SinkProducer,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
        done: TransactionSize,
        layout: GroupLayout | None = None,
    ) -> Progress:
        if not producer.is_open:
            producer.begin()
        self._check_time(producer, done)
        producer.flush()
        self._failpoint(ROWS_FLUSHED)
        known = self.progress or replace(
            initial_progress(self.sink, self.topic, self._topic_id, self.options.version, batch),
            marks=self._first_marks,
        )
        told = watermarks if self.options.marks else {}
        progress = progress_after(known, batch, decision, rows=done.rows, watermarks=told)
        rising = {key: mark for key, mark in progress.marks.items() if mark != known.marks.get(key)}
        position = known.position
        if self.options.marks and (done.rows or rising):
            # What others write there as well only makes a mark come later.
            partitions = range(self.cluster.topic(self.topic).partitions)
            position = self.cluster.ends(self.topic, partitions, committed=False)
        for key, mark in rising.items():
            record = MarkRecord(key, mark.seq, "watermark", mark.time, mark.time, "us", (self.sink,), dict(position))
            producer.put(marks_topic_of(self.topic), record.save(), key.encode(), 0)
        progress = replace(progress, version=self.options.version, position=position, layout=layout or known.layout)
        producer.put(self.progress_topic, progress.save(), progress.key, 0)
        producer.flush()
        self._failpoint(PROGRESS_FLUSHED)
        self._check_time(producer, done)
        producer.commit()
        self.progress = progress
        self._failpoint(COMMITTED)
        return progress

    def _check_time(self, producer: SinkProducer, done: TransactionSize) -> None:
        if producer.seconds >= self.options.timeout:
            raise self._took_too_long(done, producer.seconds)

    def _took_too_long(self, done: TransactionSize, seconds: float) -> SinkTimedOut:
        self._timed_out += 1
        maximum = SinkTopics(self.settings, self.cluster).broker_maximum()
        return timeout_error(
            self.sink,
            done.rows,
            seconds,
            self.options.timeout,
            again=self._timed_out < MAX_TIMEOUTS_IN_A_ROW,
            more=f"; the brokers allow {'?' if maximum is None else f'{maximum:g}'} s",
            rule="Kafka gives up a transaction that takes longer: nothing of it is seen.",
            maximum=maximum,
        )

    def _give_up(self, producer: SinkProducer, error: BaseException) -> None:
        """End what was begun: nothing more is written before the next start, or never, if this one is fenced."""
        self._producer, seconds = None, producer.seconds
        fenced = error if isinstance(error, SinkFenced) else None
        try:
            producer.abort()
        except SinkFenced as told:
            fenced = fenced or told
        except FloodmarkError:
            # The next start aborts it.
            pass
        if fenced is not None and seconds < self.options.timeout:
            self._ended = fenced
        elif fenced is error:
            # Kafka fences also whoever took too long.
            error = self._took_too_long(self._done, seconds)
            self._end_after(error)
            raise error from fenced
        self._end_after(error)

    def _end_after(self, error: BaseException) -> None:
        if isinstance(error, SinkTimedOut) and not error.fields["again"]:
            self._ended = error

    def _fence_and_read(self) -> tuple[SinkProducer, Progress | None]:
        producer = self._new_producer(self.sink)
        self._failpoint(FENCED)
        timeout = self.options.timeout
        scan = ProgressTopicReader(self.settings, self.progress_topic, timeout=timeout, failpoint=self._failpoint)
        return producer, scan.read(self.sink, self.cluster).get(self.sink)

    def _new_producer(self, name: str) -> SinkProducer:
        id_ = transactional_id_of(self.progress_topic, name)
        options = self.options
        bulk = not (options.stamp or options.headers)
        return SinkProducer(self.settings, id_, name, timeout=options.timeout, linger=options.linger, bulk=bulk)

    def _decide(self, progress: Progress | None, bounds: BoundsLookup) -> Start:
        topic = topic_in_use(self._wanted_topic, self.sink, progress)
        found = self.cluster.find_topic(topic)
        return decide_start(
            StartupState(
                self.sink,
                self.options.version,
                topic,
                None if found is None else found.id,
                found is not None and progress is None and has_records(self.cluster, topic, found.partitions),
                progress,
                {} if progress is None else bounds(progress.ends),
            ),
            append=self.options.append,
            on_missing_bindings=self.options.on_missing_bindings,
            nonce=secrets.token_hex(4),
        )

    def _begin_in(self, topic: str) -> None:
        made = self.cluster.find_topic(topic) or self.cluster.create_topic(topic, self.options.partitions, {})
        self.topic, self._topic_id = made.name, made.id
        self.progress, self._first_marks = None, {}

    def _check_alone(self) -> None:
        """After a transaction that took too long, see that nobody has taken over meanwhile, before fencing again."""
        if not self._timed_out:
            return
        scan = ProgressTopicReader(self.settings, self.progress_topic, timeout=self.options.timeout)
        found = scan.read(self.sink, self.cluster).get(self.sink)
        if found is not None and found != self.progress:
            self._ended = fenced_error(self.sink, "a transaction took too long", kafka_code=None)
            raise self._ended

    def _check_known(self, found: Progress | None) -> None:
        """See that nobody has written less than what this process has seen written."""
        known = self.progress
        if known is not None and (found is None or found.total < known.total):
            raise SinkProgressInvalid(
                f"The sink {self.sink!r} has written {known.total} rows, and its progress topic "
                f"{self.progress_topic!r} knows of {0 if found is None else found.total}.",
                rule="What was committed stays.",
                remedy="See who has deleted the topic or its records; if it went on, rows would be there twice.",
                sink=self.sink,
            )

    def _started(self) -> SinkProducer:
        if self._ended is not None:
            raise self._ended
        if self._producer is None:
            raise not_started_error(self.sink)
        return self._producer

    def _let_go(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # If it cannot be aborted, the next start does it.
            with suppress(FloodmarkError):
                producer.abort()
