"""Writers put events into a stream in order, each once, and note time; transactional ones all events or none."""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from floodmark._util.ticker import TRANSIENT_ERRORS, Ticker
from floodmark._util.times import Duration, Time, duration_micros, micros_in_unit, time_in_unit
from floodmark.errors import (
    AutomaticTime,
    FloodmarkError,
    StreamDeleted,
    TransactionNotOpen,
    UnknownTransaction,
    WriterClosed,
    WriterSuperseded,
    WriterWithoutId,
)
from floodmark.streams.definition import ANONYMOUS_PREFIX, StreamInfo
from floodmark.streams.layout.layout import Key
from floodmark.streams.layout.positions import Position, furthest
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import Author, Backend, CommitResult, OpenedWriter, TransactionState
from floodmark.streams.writers.buffer import Buffer


class Writer:
    """Writes events to a stream. Get one from `Stream.writer`; one thread at a time uses it.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills")
    ...     with stream.writer("till-3") as writer:
    ...         writer.write({"paid": 7}, key="customer-7")
    ...         writer.note_time(1_000).value
    'accepted'

    What was written is in the stream for certain once `flush` returns, and `note_time`, `mark_idle` and `close`
    flush first. If a flush fails and it is not known whether the events arrived, flush again: none comes twice.
    """

    __slots__ = (
        "_backend",
        "_buffer",
        "_failure",
        "_is_closed",
        "_lock",
        "_next",
        "_opened",
        "_position",
        "_stream",
        "_ticker",
    )

    def __init__(
        self,
        backend: Backend,
        stream: StreamInfo,
        opened: OpenedWriter,
        position: Position,
        interval: float | None = None,
    ) -> None:
        """Use `Stream.writer`."""
        self._backend = backend
        self._stream = stream
        self._opened = opened
        self._buffer = Buffer(stream.settings.schema)
        self._next = opened.next_number
        self._position = dict(position)
        self._lock = threading.RLock()
        self._is_closed = False
        self._failure: FloodmarkError | None = None
        self._ticker = None if interval is None else Ticker(interval, self._note_clock, f"floodmark time {self.id}")

    @property
    def id(self) -> str | None:
        """Its id, by which it is known when it is started again; None if it was opened without one."""
        writer = self._opened.author.writer
        return None if writer.startswith(ANONYMOUS_PREFIX) else writer

    @property
    def instance(self) -> int:
        """How often a writer was opened under this id; only the newest is heard."""
        return self._opened.author.instance

    @property
    def events_written(self) -> int:
        """How many events are in the stream from this id, those of earlier instances included."""
        return self._next

    @property
    def watermarks(self) -> Mapping[str, int | None]:
        """For each key what the watermark was when the writer was opened: its times must be above that to count."""
        return self._opened.watermarks

    def write(self, event: object, key: Key | None = None) -> None:
        """Give it an event. Events of one key stay in order; those without a key are spread over the segments.

        Without a schema an event is kept as JSON, or as it is if it is bytes or text; with one it is a dict of
        column to value.
        """
        with self._lock:
            self._check_open()
            self._buffer.add(event, key)
            if self._buffer.is_full:
                self._flush()

    def write_batch(self, data: Any, key: object = None) -> None:
        """Give it many events at once: an Arrow table, or an iterable of events. It is taken whole or refused whole.

        `key` is the column that has the keys, or a list with a key for each event.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders", schema="id BIGINT, customer STRING")
        ...     with stream.writer() as writer:
        ...         writer.write_batch([{"id": 1, "customer": "a"}, {"id": 2, "customer": "b"}], key="customer")
        ...     stream.tail()
        {0: 2}
        """
        with self._lock:
            self._check_open()
            self._buffer.add_batch(data, key)
            if self._buffer.is_full:
                self._flush()

    def flush(self) -> None:
        """Return when all events are in the stream."""
        with self._lock:
            self._check_open()
            self._flush()

    def note_time(self, time: Time, key: str | None = None) -> MarkOutcome:
        """Say that all that is written from now on has at least this time, after flushing what was written before.

        The outcome says whether the mark was taken; a time below that of the last mark is not.
        """
        with self._lock:
            self._check_open()
            self._check_may_note()
            if self._ticker is not None:
                raise AutomaticTime(
                    f"The writer {self.id!r} notes the time by itself.",
                    rule="A writer notes the clock's time, or what it is told, and not both.",
                    remedy="Open it without automatic, or leave note_time out.",
                    writer=self.id,
                )
            if key is not None and key not in self._stream.settings.keys:
                self._stream = self._backend.catalog.refresh(self._stream)
            settings = self._stream.settings
            return self._note(settings.key(key), time_in_unit(time, settings.unit))

    def mark_idle(self) -> None:
        """Say that nothing comes for now, so that nobody waits; the next mark ends it."""
        with self._lock:
            self._check_open()
            self._check_may_note()
            self._flush()
            self._backend.registry.idle(self._stream, self._opened.author, self._position)
            self._backend.wake()

    def close(self) -> None:
        """Flush, say that nothing comes any more, and end; to say so twice is no error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._flush()
            finally:
                announce_close(self._backend, self._stream, self._opened.author, self._position)
                if self._ticker is not None:
                    self._ticker.stop()
        if self._ticker is not None:
            self._ticker.join()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush(self) -> None:
        while (events := self._buffer.next()) is not None:
            ends = self._backend.log.append(self._stream, self._opened.author, self._next, events)
            self._buffer.done()
            self._next += len(events)
            if self._position and not ends.keys() <= self._position.keys():
                self._stream = self._backend.catalog.refresh(self._stream)
                self._position = furthest(self._stream.layout, [self._position, ends])
            else:
                self._position.update(ends)

    def _note(self, key: str, time: int) -> MarkOutcome:
        self._flush()
        outcome = self._backend.registry.note(self._stream, self._opened.author, key, time, self._position)
        self._backend.wake()
        return outcome

    def _note_clock(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                now = micros_in_unit(self._stream.settings.unit, self._backend.now())
                for key in self._stream.settings.keys:
                    self._note(key, now)
            except TRANSIENT_ERRORS:
                raise
            except FloodmarkError as failure:
                self._failure = failure
                raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise WriterClosed(
                f"The writer {self.id!r} has been closed.",
                rule="A writer is used between open and close.",
                remedy="Open it again.",
                writer=self.id,
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _check_may_note(self) -> None:
        if self.id is None:
            raise WriterWithoutId(
                "A writer without an id was to note the time.",
                rule="Time is noted under an id, so that a writer that starts again goes on where it was.",
                remedy="Open it as stream.writer('some id').",
            )


class TransactionalWriter:
    """Writes to a stream in transactions, of which several may be under way. Get one from `Stream`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills", segments=4)
    ...     with stream.transactional_writer("till-3") as writer:
    ...         transaction = writer.begin()
    ...         transaction.write_batch([{"paid": 7}, {"paid": 9}], key=["customer-7", "customer-8"])
    ...         stream.tail(), transaction.commit(time=1_000).outcome.value
    ({0: 0, 1: 0, 2: 0, 3: 0}, 'accepted')
    """

    __slots__ = ("_backend", "_is_closed", "_lock", "_open", "_opened", "_position", "_stream")

    def __init__(self, backend: Backend, stream: StreamInfo, opened: OpenedWriter) -> None:
        """Use `Stream.transactional_writer`."""
        self._backend = backend
        self._stream = stream
        self._opened = opened
        self._position: dict[int, int] = {}
        self._open: dict[str, Transaction] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def id(self) -> str:
        """Its id, by which it is known when it is started again."""
        return self._opened.author.writer

    @property
    def instance(self) -> int:
        """How often a writer was opened under this id; only the newest is heard."""
        return self._opened.author.instance

    @property
    def events_written(self) -> int:
        """How many events were in the stream from this id, those of earlier instances, when it was opened."""
        return self._opened.next_number

    def begin(self, timeout: Duration | None = None) -> "Transaction":
        """Begin a transaction. After its timeout it is aborted; without one, that of the stream holds."""
        if self._is_closed:
            raise WriterClosed(
                f"The writer {self.id!r} has been closed.",
                rule="A writer is used between open and close.",
                remedy="Open it again.",
                writer=self.id,
            )
        micros = None if timeout is None else duration_micros(timeout, "timeout", least=1)
        number = self._backend.transactions.begin(self._stream, self._opened.author, micros)
        transaction = Transaction(self, number)
        with self._lock:
            self._open[number] = transaction
        return transaction

    def close(self) -> None:
        """Abort what is open, and say that nothing comes any more; to say so twice is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        for transaction in list(self._open.values()):
            try:
                transaction.abort()
            except (StreamDeleted, TransactionNotOpen, UnknownTransaction):
                continue
        announce_close(self._backend, self._stream, self._opened.author, self._position)

    def __enter__(self) -> "TransactionalWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended(self, transaction: str, result: CommitResult | None) -> None:
        with self._lock:
            self._open.pop(transaction, None)
            if result is not None:
                layout = self._backend.catalog.refresh(self._stream).layout
                self._position = furthest(layout, [self._position, result.position])


class Transaction:
    """Events that come into the stream together when they are committed. As a context it commits at its end."""

    __slots__ = ("_buffer", "_parts", "_writer", "id")

    def __init__(self, writer: TransactionalWriter, number: str) -> None:
        """Use `TransactionalWriter.begin`."""
        self.id = number
        self._writer = writer
        self._buffer = Buffer(writer._stream.settings.schema)
        self._parts = 0

    @property
    def state(self) -> TransactionState:
        """Where it is: open, committing, committed, aborting or aborted."""
        return self._writer._backend.transactions.state(self._writer._stream, self.id)

    def write(self, event: object, key: Key | None = None) -> None:
        """Give it an event; see `Writer.write`."""
        self._buffer.add(event, key)
        if self._buffer.is_full:
            self.flush()

    def write_batch(self, data: Any, key: object = None) -> None:
        """Give it many events at once; see `Writer.write_batch`."""
        self._buffer.add_batch(data, key)
        if self._buffer.is_full:
            self.flush()

    def flush(self) -> None:
        """Return when all events are kept, though nobody can read them yet."""
        writer = self._writer
        while (events := self._buffer.next()) is not None:
            writer._backend.log.add(writer._stream, self.id, self._parts, events)
            self._buffer.done()
            self._parts += 1

    def commit(self, time: Time | None = None, key: str | None = None) -> CommitResult:
        """Put its events into the stream, and note a time for what comes after them, if there is one.

        A mark that is refused does not undo the commit: its outcome is in the result.
        """
        self.request_commit(time, key)
        return self.result()

    def request_commit(self, time: Time | None = None, key: str | None = None) -> None:
        """Ask for the commit and do not wait for it: from here on it comes, after those asked for before."""
        writer = self._writer
        settings = writer._stream.settings
        noted = None if time is None else time_in_unit(time, settings.unit)
        time_key = settings.key(key) if time is not None or key is not None else None
        self.flush()
        writer._backend.transactions.request(writer._stream, self.id, time_key if time is not None else None, noted)

    def result(self) -> CommitResult:
        """Return what the commit came to that was asked for, when it is done."""
        writer = self._writer
        result = writer._backend.transactions.finish(writer._stream, self.id)
        writer._ended(self.id, result)
        writer._backend.wake()
        return result

    def abort(self) -> None:
        """Give it up; nobody will have seen its events."""
        self._writer._backend.transactions.abort(self._writer._stream, self.id)
        self._writer._ended(self.id, None)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.id not in self._writer._open:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()


def announce_close(backend: Backend, stream: StreamInfo, author: Author, position: Position) -> None:
    """Take a writer's word that nothing comes any more, if there is still somebody to hear it."""
    try:
        backend.registry.close(stream, author, position)
    except (StreamDeleted, WriterSuperseded):
        # Nobody waits for this one any more. If events were lost by that, to flush them has failed and said so.
        return
    if not author.writer.startswith(ANONYMOUS_PREFIX):
        backend.wake()
