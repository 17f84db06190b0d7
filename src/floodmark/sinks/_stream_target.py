"""A stream as the target of a sink: rows, their times and the record of them are decided in one transaction.

The rows of a batch wait in a transaction of the stream, where nobody sees them. Then one transaction of the store does
three things: it moves the sink's record on, it lets the stream's transaction be committed, and it says with which
marks. It fails as a whole if another process has started for the sink since, or if the stream's transaction is over.
Before it nothing is written; after it everything is, though it may take a moment until readers see it: what was decided
is done by this process, by any controller of the home, or by the sink's next start, whichever comes first. The next
batch waits for it.

So it is with SQLite and with PostgreSQL, and whether the events are in the home or in Kafka. In Kafka a transaction of
Kafka's has them, whose end is looked for before it is tried again; the mark comes after it, with the position that it
had. Only the sealing of a stream, which lets nothing more in, undoes what was decided, and the record goes back.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from floodmark._util.times import micros_in_unit
from floodmark.errors import (
    FloodmarkError,
    SinkFenced,
    StreamExists,
    StreamSealed,
    TransactionNotOpen,
    UnknownTransaction,
    WriterSuperseded,
)
from floodmark.sinks._failpoints import (
    BEFORE_BEGIN,
    COMMITTED,
    FENCED,
    PROGRESS_FLUSHED,
    ROWS_FLUSHED,
    SCANNED_IN_PART,
    SOME_ROWS_SENT,
    STARTED,
    Failpoint,
    go_on,
)
from floodmark.sinks._gate import Batch, Drop, Write, WriteFrom
from floodmark.sinks._next_record import first_progress, progress_after
from floodmark.sinks._progress import Progress, check_sink_name
from floodmark.sinks._sink_errors import MOST_TIMEOUTS, fenced_off, not_started, timed_out
from floodmark.sinks._sinks import Mode
from floodmark.sinks._startup import BeginElsewhere, BoundsOf, Found, Resume, Start, decide_start, topic_in_use
from floodmark.sinks._stream_records import StreamRecord, StreamRecords
from floodmark.sinks._stream_shape import StreamShape
from floodmark.sinks._target_options import Step, TargetOptions
from floodmark.streams import Position, Stream, StreamHome, Transaction, TransactionalWriter
from floodmark.streams._catalog import check_not_sealed
from floodmark.streams._positions import furthest
from floodmark.streams._transaction_rows import OPENED_AGAIN, TIMED_OUT, Told

_FLUSH_BYTES: Final = 16 * 2**20
"""After so many bytes rows leave this process, and wait in the home."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows as an Arrow batch with the columns of the stream, and their keys, if they have any."""

    rows: Any
    keys: Any = None


@dataclass(slots=True)
class _Started:
    """A sink that may write: where, as which writer, and what was written up to now."""

    stream: Stream
    writer: TransactionalWriter
    record: StreamRecord
    position: Position
    """How far what was written fills the segments of the stream."""


class StreamTarget:
    """Writes the batches of a sink to a stream, as the writer that has the sink's name.

    `start` comes first, and again after every error. What a batch comes to is decided by `decide`, with `progress`.

    The writer is not closed when a query ends, since it goes on some day: it falls silent. The watermark of the stream
    waits for it as for any writer, for the stream's `writer_timeout`, and then goes on without it; one that has no
    other writers stands where it was. Whoever lets the query rest for longer, beside other writers, finds its rows late
    there, as those of any writer.
    """

    def __init__(
        self,
        home: StreamHome,
        name: str,
        shape: StreamShape,
        sink: str,
        options: TargetOptions,
        *,
        failpoint: Failpoint = go_on,
    ) -> None:
        """Write rows of this shape to the stream of that name; nothing is done before `start`."""
        self.sink = sink
        self.options = options
        self.progress: Progress | None = None
        self._home = home
        self._name = name
        self._shape = shape
        self._records = StreamRecords(home.home)
        self._failpoint = failpoint
        self._started: _Started | None = None
        self._known: StreamRecord | None = None
        self._open: Transaction | None = None
        self._begun_at = 0.0
        self._rows = 0
        self._timed_out = 0
        self._ended: FloodmarkError | None = None

    @property
    def mode(self) -> Mode:
        """All rows of a batch appear at once."""
        return "atomic"

    @property
    def address(self) -> str:
        """The stream."""
        return f"stream://{self._name}"

    @property
    def version(self) -> int:
        """The version of the program."""
        return self.options.version

    def start(self, bounds: BoundsOf) -> Start:
        """Fence those before, bring to its end what they have decided, and decide: in this order.

        A stream that is missing is made, unless something was written to it. `bounds` tells what can be read of
        sources; those without bindings are left out.
        """
        check_sink_name(self.sink)
        if self._ended is not None:
            raise self._ended
        self._let_go()
        found = self._records.find(self.sink)
        if self._known is not None and (found is None or found.fence != self._known.fence):
            self._ended = fenced_off(self.sink, "it was to start again")
            raise self._ended
        progress = None if found is None else found.progress
        topic = topic_in_use(self._name, self.sink, progress)
        stream = self._shape.find(self._home, topic)
        if progress is not None and (stream is None or str(stream.info.id) != progress.topic_id):
            self._decide(progress, topic, stream, bounds, has_rows=True)
        started = self._take(self._make(topic) if stream is None else stream)
        check_not_sealed(started.stream.info)
        has_rows = bool(started.writer.events_written)
        start = self._decide(started.record.progress, topic, started.stream, bounds, has_rows=has_rows)
        if isinstance(start, BeginElsewhere):
            other = self._make(start.topic)
            writer = other.transactional_writer(self.sink)
            record = self._records.move(started.record, other.info.id, writer.instance)
            started = _Started(other, writer, record, {})
        self.progress = start.progress if isinstance(start, Resume) else None
        self._started, self._known = started, started.record
        self._failpoint(STARTED)
        return start

    def write(
        self,
        rows: Iterable[Any],
        batch: Batch,
        decision: Write | WriteFrom | Drop = Write(),  # noqa: B008
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Progress:
        """Write rows, which come as `KeyedRows`, and the record that `batch` was written; return the record.

        Nothing is begun before the first of them is there. `watermarks` are those that hold for what comes after these
        rows. A batch is one transaction: `split` is not asked. After any error the target must be started again.
        """
        started = self._require_started()
        try:
            progress = self._write(started, rows, batch, decision, watermarks or {})
        except BaseException as error:
            self._started = None
            self._let_go()
            known = self._explained(error, started)
            if known is None:
                raise
            raise known from error
        self._timed_out = 0
        return progress

    def close(self) -> None:
        """Give up what is open. The writer stays: a sink that is not dropped goes on some day."""
        self._started = None
        self._let_go()

    def _take(self, stream: Stream) -> _Started:
        """Be the one that writes, and finish what those before have decided."""
        writer = stream.transactional_writer(self.sink)
        self._failpoint(FENCED)
        record = self._records.take(self.sink, stream.info.id, writer.instance)
        self._failpoint(SCANNED_IN_PART)
        position: Position = {} if record.progress is None else record.progress.position
        if record.transaction is not None:
            try:
                done = self._home.local.transactions.finish(stream.info, record.transaction).position
            except UnknownTransaction:
                # It was done long ago; what others have written since only makes the next mark come later.
                done = stream.tail()
            except (StreamSealed, TransactionNotOpen):
                record, done = self._records.take_back(record), {}
            position = furthest(stream.layout, [position, done])
            self._home.local.wake()
        return _Started(stream, writer, record, position)

    def _decide(
        self,
        progress: Progress | None,
        topic: str,
        stream: Stream | None,
        bounds: BoundsOf,
        *,
        has_rows: bool,
    ) -> Start:
        return decide_start(
            Found(
                self.sink,
                self.options.version,
                topic,
                None if stream is None else str(stream.info.id),
                # Those of other writers are none of a sink's business.
                progress is None and has_rows,
                progress,
                {} if progress is None else bounds(progress.ends),
            ),
            append=self.options.append,
            on_missing_bindings=self.options.on_missing_bindings,
            nonce=secrets.token_hex(4),
        )

    def _make(self, name: str) -> Stream:
        try:
            return self._shape.make(self._home, name)
        except StreamExists:
            found = self._shape.find(self._home, name)
            if found is None:
                raise
            return found

    def _write(
        self,
        started: _Started,
        rows: Iterable[KeyedRows],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        watermarks: Mapping[str, int],
    ) -> Progress:
        self._rows = waiting = 0
        self._failpoint(BEFORE_BEGIN)
        for piece in rows:
            if piece.rows.num_rows:
                transaction = self._transaction(started)
                transaction.write_batch(piece.rows, key=piece.keys)
                self._rows += piece.rows.num_rows
                waiting += piece.rows.nbytes
                if waiting >= _FLUSH_BYTES:
                    transaction.flush()
                    waiting = 0
                self._failpoint(SOME_ROWS_SENT)
        if self._open is not None:
            self._open.flush()
        self._failpoint(ROWS_FLUSHED)
        info = started.stream.info
        known = self.progress or first_progress(self.sink, info.name, str(info.id), self.options.version, batch)
        told = {key: at for key, at in watermarks.items() if key in self._shape.times}
        progress = replace(
            progress_after(known, batch, decision, rows=self._rows, watermarks=told),
            version=self.options.version,
            position=started.position,
        )
        if self._open is None and progress.marks == known.marks:
            with self._home.home.write() as connection:
                started.record = self._records.record(connection, started.record, progress)
        else:
            self._commit(started, progress)
        self.progress, self._known = progress, started.record
        self._failpoint(COMMITTED)
        return progress

    def _commit(self, started: _Started, progress: Progress) -> None:
        transaction, stream = self._transaction(started), started.stream
        info = stream.info
        times = {key: micros_in_unit(info.settings.unit, mark.time) for key, mark in progress.marks.items()}

        def also(connection: Connection) -> None:
            started.record = self._records.record(connection, started.record, progress, transaction.id)

        self._home.local.transactions.decide(info, transaction.id, Told(times, started.position), also)
        # From here on it will be there, whatever happens.
        self._open = None
        self._failpoint(PROGRESS_FLUSHED)
        try:
            result = transaction.result()
        except (StreamSealed, TransactionNotOpen):
            self._records.take_back(started.record)
            raise
        started.position = furthest(stream.layout, [started.position, result.position])

    def _transaction(self, started: _Started) -> Transaction:
        if self._open is None:
            self._open = started.writer.begin(timedelta(seconds=self.options.timeout))
            self._begun_at = time.monotonic()
        return self._open

    def _explained(self, error: BaseException, started: _Started) -> FloodmarkError | None:
        """Return what an error means for a sink; None if it says so itself."""
        reason = error.fields["reason"] if isinstance(error, TransactionNotOpen) else None
        if isinstance(error, TransactionNotOpen) and reason == TIMED_OUT:
            self._timed_out += 1
            seconds, again = time.monotonic() - self._begun_at, self._timed_out < MOST_TIMEOUTS
            late = timed_out(self.sink, self._rows, seconds, self.options.timeout, again=again)
            if not late.fields["again"]:
                self._ended = late
            return late
        if isinstance(error, SinkFenced):
            self._ended = error
        elif isinstance(error, WriterSuperseded) or reason == OPENED_AGAIN:
            self._ended = fenced_off(self.sink, "it wrote a batch")
            return self._ended
        elif isinstance(error, UnknownTransaction):
            with suppress(UnknownTransaction):
                # It goes with its stream, which says so.
                started.stream.info  # noqa: B018
        return None

    def _require_started(self) -> _Started:
        if self._ended is not None:
            raise self._ended
        if self._started is None:
            raise not_started(self.sink)
        return self._started

    def _let_go(self) -> None:
        transaction, self._open = self._open, None
        if transaction is not None:
            # If it cannot be aborted, its timeout does it.
            with suppress(FloodmarkError):
                transaction.abort()
