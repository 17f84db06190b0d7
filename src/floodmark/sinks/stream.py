"""A stream as the target of a sink: the rows, their marks and the progress record are committed in one transaction.

The rows of a batch wait in a transaction of the stream, invisible to readers. One transaction of the store then updates
the sink's record, marks the stream's transaction as to be committed, and stores the marks to commit with it. It fails
as a whole if another process has started for the sink since, or if the stream's transaction is over. Before it, nothing
is written. After it, the batch is written, though readers may see it a little later: this process, any controller of
the home, or the next start of the sink completes the commit. The next batch waits for it.

This holds for SQLite and PostgreSQL, and for events in the home or in Kafka. In Kafka the rows are in a Kafka
transaction, whose outcome is looked up before the commit is retried; the mark follows, with the position of that
transaction. Only sealing the stream, which refuses all further rows, can undo the decision: the record then goes back.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Row, and_, or_, select, update

from floodmark._util.ddl import write_ddl
from floodmark._util.times import micros_in_unit
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import (
    FloodmarkError,
    SinkFenced,
    SinkTopicUnfit,
    StreamExists,
    StreamSealed,
    TransactionNotOpen,
    UnknownStream,
    UnknownTransaction,
    WriterSuperseded,
)
from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom, initial_progress, progress_after
from floodmark.sinks.progress import Progress, check_sink_name
from floodmark.sinks.registry import STREAM_SINKS
from floodmark.sinks.startup import (
    BeginElsewhere,
    BoundsLookup,
    Resume,
    Start,
    StartupState,
    decide_start,
    topic_in_use,
)
from floodmark.sinks.target import (
    BEFORE_BEGIN,
    COMMITTED,
    FENCED,
    MAX_TIMEOUTS_IN_A_ROW,
    PROGRESS_FLUSHED,
    ROWS_FLUSHED,
    SCANNED_IN_PART,
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
from floodmark.streams import Position, Stream, StreamHome, Transaction, TransactionalWriter
from floodmark.streams.definition import check_not_sealed
from floodmark.streams.layout.positions import furthest_position
from floodmark.streams.local.transactions import CommitMarks
from floodmark.streams.ports import REASON_OPENED_AGAIN, REASON_TIMED_OUT


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The columns of the rows, and which of them are time columns.

    >>> shape = StreamShape(pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]), {"at": "at"})
    >>> with connect() as home:
    ...     shape.create(home, "shop/per-minute").settings.ddl
    'at TIMESTAMP'
    """

    schema: Any
    """The Arrow schema. Nullability is ignored: all columns of a created stream are nullable."""
    times: Mapping[str, str]
    """The column of each time key."""
    segments: int = 1
    """Number of segments of a stream that the sink creates."""

    def find(self, home: StreamHome, name: str) -> Stream | None:
        """Return the stream, or None if it does not exist; raise an error if the rows do not fit its schema."""
        try:
            stream = home.stream(name)
        except UnknownStream:
            return None
        settings = stream.settings
        if settings.schema is None:
            raise _unfit_error(name, "has no schema", f"The rows have the columns {self._text(self.schema)}.")
        ours, theirs = self._text(self.schema, in_order=False), self._text(settings.schema, in_order=False)
        if ours != theirs:
            columns = f"{self._text(settings.schema)}, and the rows have {self._text(self.schema)}"
            raise _unfit_error(name, f"has the columns {columns}", "Both must have the same columns and types.")
        if dict(settings.time_columns) != dict(self.times):
            times = f"{dict(settings.time_columns)}, and the query has {dict(self.times)}"
            raise _unfit_error(name, f"has the time columns {times}", "A sink must mark all time keys of the stream.")
        return stream

    def create(self, home: StreamHome, name: str) -> Stream:
        """Create a stream for these rows."""
        schema = pa.schema([_nullable(field) for field in self.schema])
        return home.create_stream(name, schema, self.segments, dict(self.times))

    @staticmethod
    def _text(schema: Any, *, in_order: bool = True) -> str:
        fields = [_nullable(field) for field in schema]
        return write_ddl(pa.schema(fields if in_order else sorted(fields, key=lambda field: str(field.name))))


def _nullable(field: Any) -> Any:
    return pa.field(field.name, _nullable_type(field.type), nullable=True)


def _nullable_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable_type(kind.item_type))
    return kind


def _unfit_error(stream: str, fact: str, rule: str) -> SinkTopicUnfit:
    return SinkTopicUnfit(
        f"The stream {stream!r} {fact}.",
        rule=rule,
        remedy="Select and cast the columns, set their time keys with `times`, or write to another stream.",
        stream=stream,
    )


_COLUMNS = STREAM_SINKS.c


@dataclass(frozen=True, slots=True)
class StreamSinkRecord:
    """How far a sink has written to a stream."""

    sink: str
    stream_id: int
    fence: int
    """The instance of the stream's writer that may write; older instances are fenced."""
    progress: Progress | None
    transaction: str | None
    """The stream's transaction with the rows of the last batch, once its commit is decided."""
    earlier: Progress | None
    """The progress before that batch, restored if the commit proves impossible."""


class StreamSinkRecords:
    """The records of a home's stream sinks. Updates are conditional on the fence, so that only one process writes."""

    def __init__(self, home: Home) -> None:
        """Read and write the records of `home`."""
        self._home = home

    def find(self, sink: str) -> StreamSinkRecord | None:
        """Return the record of a sink; None if it was never started."""
        with self._home.read() as connection:
            row = connection.execute(select(STREAM_SINKS).where(_COLUMNS.sink == sink)).one_or_none()
        return None if row is None else _load_record(row)

    def take_over(self, sink: str, stream_id: int, fence: int) -> StreamSinkRecord:
        """Make this instance of the stream's writer the one that may write, and return the record.

        Raises SinkFenced if a newer instance has taken over, or if the sink has rows in another stream.
        """
        is_newer = and_(_COLUMNS.stream_id == stream_id, _COLUMNS.fence < fence)
        is_unused = and_(_COLUMNS.stream_id != stream_id, _COLUMNS.progress.is_(None))
        with self._home.write() as connection:
            insert_if_absent(connection, STREAM_SINKS, {"sink": sink, "stream_id": stream_id, "fence": 0})
            claim = update(STREAM_SINKS).where(_COLUMNS.sink == sink, or_(is_newer, is_unused))
            values = {"stream_id": stream_id, "fence": fence}
            row = connection.execute(claim.values(values).returning(*STREAM_SINKS.columns)).one_or_none()
            if row is None:
                raise fenced_error(sink, "it started")
            return _load_record(row)

    def move(self, record: StreamSinkRecord, stream_id: int, fence: int) -> StreamSinkRecord:
        """Start the sink over in another stream."""
        values = {"stream_id": stream_id, "fence": fence, "progress": None, "transaction_id": None, "earlier": None}
        with self._home.write() as connection:
            _update_record(connection, record, values)
        return StreamSinkRecord(record.sink, stream_id, fence, None, None, None)

    def record(
        self, connection: Connection, record: StreamSinkRecord, progress: Progress, transaction: str | None = None
    ) -> StreamSinkRecord:
        """Store, as part of a transaction of the store, the progress that holds once `transaction` is committed."""
        earlier = None if transaction is None else record.progress
        values = {
            "progress": _save_progress(progress),
            "transaction_id": transaction,
            "earlier": _save_progress(earlier),
        }
        _update_record(connection, record, values)
        return StreamSinkRecord(record.sink, record.stream_id, record.fence, progress, transaction, earlier)

    def revert(self, record: StreamSinkRecord) -> StreamSinkRecord:
        """Restore the progress before the last batch, whose commit failed."""
        values = {"progress": _save_progress(record.earlier), "transaction_id": None, "earlier": None}
        with self._home.write() as connection:
            _update_record(connection, record, values)
        return StreamSinkRecord(record.sink, record.stream_id, record.fence, record.earlier, None, None)


def _update_record(connection: Connection, record: StreamSinkRecord, values: dict[str, Any]) -> None:
    is_ours = (_COLUMNS.sink == record.sink, _COLUMNS.stream_id == record.stream_id, _COLUMNS.fence == record.fence)
    if connection.execute(update(STREAM_SINKS).where(*is_ours).values(values)).rowcount != 1:
        raise fenced_error(record.sink, "it recorded a batch")


def _save_progress(progress: Progress | None) -> str | None:
    return None if progress is None else progress.save().decode()


def _load_record(row: Row[Any]) -> StreamSinkRecord:
    progress, earlier = (None if text is None else Progress.load(text) for text in (row.progress, row.earlier))
    return StreamSinkRecord(row.sink, row.stream_id, row.fence, progress, row.transaction_id, earlier)


_FLUSH_BYTES: Final = 16 * 2**20
"""Rows are flushed to the home after this many bytes."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows as an Arrow batch with the columns of the stream, and the routing key of each row, if any."""

    rows: Any
    keys: Any = None


@dataclass(slots=True)
class _StartedStream:
    """What a started target needs to write."""

    stream: Stream
    writer: TransactionalWriter
    record: StreamSinkRecord
    position: Position
    """End offsets of the stream's segments after the last batch."""


class StreamTarget:
    """Writes the batches of a sink to a stream, as a writer with the sink's name.

    Call `start` first, and again after every error. `decide_batch` decides on a batch, given `progress`.

    The writer stays open when a query ends, since the query may resume. The stream's watermark waits for it up to the
    stream's `writer_timeout`, then goes on without it; without other writers it stays where it is. If the query
    pauses for longer than that beside other writers, its rows are late when it resumes.
    """

    def __init__(
        self,
        home: StreamHome,
        name: str,
        shape: StreamShape,
        sink: str,
        options: TargetOptions,
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Write rows of this shape to the stream `name`; nothing is done before `start`."""
        self.sink = sink
        self.options = options
        self.progress: Progress | None = None
        self._home = home
        self._name = name
        self._shape = shape
        self._records = StreamSinkRecords(home.home)
        self._failpoint = failpoint
        self._started: _StartedStream | None = None
        self._open: Transaction | None = None
        self._begun_at = 0.0
        self._rows = 0
        self._timed_out = 0
        self._ended: FloodmarkError | None = None

    @property
    def mode(self) -> SinkMode:
        """All rows of a batch appear at once."""
        return "atomic"

    @property
    def address(self) -> str:
        """URL of the stream."""
        return f"stream://{self._name}"

    @property
    def version(self) -> int:
        """Version of the program."""
        return self.options.version

    def start(self, bounds: BoundsLookup, known: Progress | None = None) -> Start:
        """Fence earlier processes, complete the commit they decided, then decide how to start.

        A missing stream is created, unless the sink has written to it before. `known` is not needed: the home has the
        progress itself.
        """
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._abort_open()
        record = self._records.find(self.sink)
        progress = None if record is None else record.progress
        topic = topic_in_use(self._name, self.sink, progress)
        stream = self._shape.find(self._home, topic)
        if progress is not None and (stream is None or str(stream.info.id) != progress.topic_id):
            self._decide(progress, topic, stream, bounds, has_rows=True)
        started = self._take_over(self._create(topic) if stream is None else stream)
        check_not_sealed(started.stream.info)
        has_rows = any(started.stream.ends().values())
        start = self._decide(started.record.progress, topic, started.stream, bounds, has_rows=has_rows)
        if isinstance(start, BeginElsewhere):
            other = self._create(start.topic)
            writer = other.transactional_writer(self.sink)
            record = self._records.move(started.record, other.info.id, writer.instance)
            started = _StartedStream(other, writer, record, {})
        self.progress = start.progress if isinstance(start, Resume) else None
        self._started = started
        self._failpoint(STARTED)
        return start

    def write(
        self,
        rows: Iterable[Any],
        batch: Batch,
        decision: Write | WriteFrom | Drop = Write(),  # noqa: B008
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Write `KeyedRows` and the progress record of `batch` in one transaction; return the record.

        The transaction begins with the first rows. `split` is not used: a batch is one transaction.
        """
        started = self._require_started()
        try:
            progress = self._write(started, rows, batch, decision, watermarks or {})
        except BaseException as error:
            self._started = None
            self._abort_open()
            cause = self._sink_error(error, started)
            if cause is None:
                raise
            raise cause from error
        self._timed_out = 0
        return progress

    def forget_fence(self) -> None:
        """Let the target start again after a process that started earlier has fenced it."""
        if isinstance(self._ended, SinkFenced):
            self._ended = None

    def close(self) -> None:
        """Abort the open transaction. The writer stays open, so that the sink can resume."""
        self._started = None
        self._abort_open()

    def _take_over(self, stream: Stream) -> _StartedStream:
        """Fence earlier processes, and complete the commit that they decided."""
        writer = stream.transactional_writer(self.sink)
        self._failpoint(FENCED)
        record = self._records.take_over(self.sink, stream.info.id, writer.instance)
        self._failpoint(SCANNED_IN_PART)
        position: Position = {} if record.progress is None else record.progress.position
        if record.transaction is not None:
            try:
                end = self._home.local.transactions.finish(stream.info, record.transaction).position
            except UnknownTransaction:
                # It was completed long ago. Rows of other writers in the tail only delay the next mark.
                end = stream.tail()
            except (StreamSealed, TransactionNotOpen):
                record, end = self._records.revert(record), {}
            position = furthest_position(stream.layout, [position, end])
            self._home.local.wake()
        return _StartedStream(stream, writer, record, position)

    def _decide(
        self,
        progress: Progress | None,
        topic: str,
        stream: Stream | None,
        bounds: BoundsLookup,
        *,
        has_rows: bool,
    ) -> Start:
        return decide_start(
            StartupState(
                self.sink,
                self.options.version,
                topic,
                None if stream is None else str(stream.info.id),
                progress is None and has_rows,
                progress,
                {} if progress is None else bounds(progress.ends),
                "stream",
            ),
            append=self.options.append,
            on_missing_bindings=self.options.on_missing_bindings,
            nonce=secrets.token_hex(4),
        )

    def _create(self, name: str) -> Stream:
        try:
            return self._shape.create(self._home, name)
        except StreamExists:
            stream = self._shape.find(self._home, name)
            if stream is None:
                raise
            return stream

    def _write(
        self,
        started: _StartedStream,
        rows: Iterable[KeyedRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
    ) -> Progress:
        self._rows = unflushed = 0
        self._failpoint(BEFORE_BEGIN)
        for piece in rows:
            if piece.rows.num_rows:
                transaction = self._transaction(started)
                transaction.write_batch(piece.rows, key=piece.keys)
                self._rows += piece.rows.num_rows
                unflushed += piece.rows.nbytes
                if unflushed >= _FLUSH_BYTES:
                    transaction.flush()
                    unflushed = 0
                self._failpoint(SOME_ROWS_SENT)
        if self._open is not None:
            self._open.flush()
        self._failpoint(ROWS_FLUSHED)
        info = started.stream.info
        before = self.progress or initial_progress(self.sink, info.name, str(info.id), self.options.version, batch)
        marked = {key: at for key, at in watermarks.items() if key in self._shape.times}
        progress = replace(
            progress_after(before, batch, decision, rows=self._rows, watermarks=marked),
            version=self.options.version,
            position=started.position,
        )
        if self._open is None and progress.marks == before.marks:
            with self._home.home.write() as connection:
                started.record = self._records.record(connection, started.record, progress)
        else:
            self._commit(started, progress)
        self.progress = progress
        self._failpoint(COMMITTED)
        return progress

    def _commit(self, started: _StartedStream, progress: Progress) -> None:
        transaction, stream = self._transaction(started), started.stream
        info = stream.info
        times = {key: micros_in_unit(info.settings.unit, mark.time) for key, mark in progress.marks.items()}

        def store_record(connection: Connection) -> None:
            started.record = self._records.record(connection, started.record, progress, transaction.id)

        self._home.local.transactions.decide(info, transaction.id, CommitMarks(times, started.position), store_record)
        # The commit is decided: from here on it is only completed, by this process or another.
        self._open = None
        self._failpoint(PROGRESS_FLUSHED)
        try:
            result = transaction.result()
        except (StreamSealed, TransactionNotOpen):
            self._records.revert(started.record)
            raise
        started.position = furthest_position(stream.layout, [started.position, result.position])

    def _transaction(self, started: _StartedStream) -> Transaction:
        if self._open is None:
            self._open = started.writer.begin(timedelta(seconds=self.options.timeout))
            self._begun_at = time.monotonic()
        return self._open

    def _sink_error(self, error: BaseException, started: _StartedStream) -> FloodmarkError | None:
        """Return the sink error for an error of the stream; None to raise the error itself."""
        reason = error.fields["reason"] if isinstance(error, TransactionNotOpen) else None
        if isinstance(error, TransactionNotOpen) and reason == REASON_TIMED_OUT:
            self._timed_out += 1
            seconds, again = time.monotonic() - self._begun_at, self._timed_out < MAX_TIMEOUTS_IN_A_ROW
            late = timeout_error(self.sink, self._rows, seconds, self.options.timeout, again=again)
            if not late.fields["again"]:
                self._ended = late
            return late
        if isinstance(error, SinkFenced):
            self._ended = error
        elif isinstance(error, WriterSuperseded) or reason == REASON_OPENED_AGAIN:
            self._ended = fenced_error(self.sink, "it wrote a batch")
            return self._ended
        elif isinstance(error, UnknownTransaction):
            with suppress(UnknownTransaction):
                # A dropped stream takes its transactions with it: reading `info` then raises UnknownStream.
                started.stream.info  # noqa: B018
        return None

    def _require_started(self) -> _StartedStream:
        if self._ended is not None:
            raise self._ended
        if self._started is None:
            raise not_started_error(self.sink)
        return self._started

    def _abort_open(self) -> None:
        transaction, self._open = self._open, None
        if transaction is not None:
            # If the abort fails, the transaction times out.
            with suppress(FloodmarkError):
                transaction.abort()
