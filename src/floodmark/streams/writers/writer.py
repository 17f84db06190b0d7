"""Writers append events to a stream, in order and exactly once, and note time; transactional ones do so atomically."""

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from floodmark._util.options import require_one_of
from floodmark._util.ticker import TRANSIENT_ERRORS, Ticker
from floodmark._util.times import Duration, Time, duration_micros, micros_in_unit, time_in_unit
from floodmark.errors import (
    AutomaticTime,
    FloodmarkError,
    InvalidOption,
    MarkRefused,
    StreamDeleted,
    StreamSealed,
    TransactionNotOpen,
    UnknownTransaction,
    WriterClosed,
    WriterSuperseded,
    WriterWithoutId,
)
from floodmark.streams.definition import ANONYMOUS_PREFIX, StreamInfo
from floodmark.streams.layout.layout import Key
from floodmark.streams.layout.positions import Position, furthest_position
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import Author, Backend, CommitResult, OpenedWriter, TransactionState
from floodmark.streams.writers.buffer import EventBuffer

_LOG: Final = logging.getLogger("floodmark.streams")


class RefusalPolicy:
    """What a writer does when one of its marks is refused: log a warning once, raise `MarkRefused`, or nothing.

    >>> policy = RefusalPolicy("raise", "shop/tills", "till-3")
    >>> policy.check("at", 90, MarkOutcome.TIME_WENT_BACK)
    Traceback (most recent call last):
    floodmark.errors.MarkRefused: A mark of the writer 'till-3' in 'shop/tills' was refused: ... [mark-refused]
    """

    __slots__ = ("_has_warned", "_policy", "_stream", "_writer")

    def __init__(self, policy: str, stream: str, writer: str) -> None:
        """Apply `policy`, which is "warn", "raise" or "ignore", to the marks of this writer."""
        require_one_of("refused_marks", policy, ("warn", "raise", "ignore"))
        self._policy = policy
        self._stream = stream
        self._writer = writer
        self._has_warned = False

    def check(self, key: str, time: int, outcome: MarkOutcome) -> MarkOutcome:
        """Return the outcome of a mark, after the action for a refused one."""
        if outcome is MarkOutcome.ACCEPTED or self._policy == "ignore":
            return outcome
        reason = (
            f"the time {time} of {key!r} is below that of its last mark"
            if outcome is MarkOutcome.TIME_WENT_BACK
            else f"its position in some segment is below that of its last mark of {key!r}"
        )
        fact = f"A mark of the writer {self._writer!r} in {self._stream!r} was refused: {reason}."
        if self._policy == "raise":
            raise MarkRefused(
                fact,
                rule="The times that a writer notes never go back, because the watermark is based on them.",
                remedy="Note the least time of the events that can still come, or open the writer with "
                "refused_marks='warn' to continue.",
                stream=self._stream,
                writer=self._writer,
                key=key,
                time=time,
                outcome=outcome.value,
            )
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("%s The watermark ignores it. Further refusals of this writer are not logged.", fact)
        return outcome


class Writer:
    """Appends events to a stream and notes time, on which the watermark is based. Open one with `Stream.writer`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills")
    ...     with stream.writer("till-3") as writer:
    ...         writer.write({"paid": 7}, key="customer-7")
    ...         writer.note_time(1_000).value
    'accepted'

    Events are buffered, and durable once `flush` returns; `note_time`, `mark_idle` and `close` flush first. If a flush
    fails with an unknown outcome, call it again: no event is appended twice. A writer with an id that is restarted
    continues where its earlier instance stopped, and fences that instance.
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
        "_refusals",
        "_stream",
        "_ticker",
    )

    def __init__(
        self,
        backend: Backend,
        stream: StreamInfo,
        opened: OpenedWriter,
        position: Position,
        interval: float | None,
        refusals: RefusalPolicy,
    ) -> None:
        """Use `Stream.writer`."""
        self._refusals = refusals
        self._backend = backend
        self._stream = stream
        self._opened = opened
        self._buffer = EventBuffer(stream.settings.schema)
        self._next = opened.next_number
        self._position = dict(position)
        self._lock = threading.RLock()
        self._is_closed = False
        self._failure: FloodmarkError | None = None
        self._ticker = None if interval is None else Ticker(interval, self._note_clock, f"floodmark time {self.id}")

    @property
    def id(self) -> str | None:
        """The id of the writer, which survives restarts; None for an anonymous writer."""
        writer = self._opened.author.writer
        return None if writer.startswith(ANONYMOUS_PREFIX) else writer

    @property
    def instance(self) -> int:
        """How many times this writer id was opened; older instances are fenced."""
        return self._opened.author.instance

    @property
    def events_written(self) -> int:
        """How many events of this id are in the stream, including those of earlier instances."""
        return self._next

    @property
    def watermarks(self) -> Mapping[str, int | None]:
        """The watermark of each time key when the writer was opened. Only later times advance it."""
        return self._opened.watermarks

    def write(self, event: object, key: Key | None = None) -> None:
        """Add an event to the buffer, and flush if the buffer is full.

        Args:
            event: A dict of column to value. In a stream without a schema: bytes, text, or a value that is stored as
                JSON.
            key: The routing key. Events with the same key stay in order; events without a key are spread over the
                segments.
        """
        with self._lock:
            self._check_open()
            self._buffer.add(event, key)
            if self._buffer.is_full:
                self._flush()

    def write_batch(self, data: Any, key: object = None) -> None:
        """Add many events at once. All of them are accepted, or none.

        Args:
            data: An Arrow table or record batch, or an iterable of events.
            key: The name of the column with the routing keys, or a list with one key for each event.

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
        """Send all buffered events, and return when they are durable in the stream."""
        with self._lock:
            self._check_open()
            self._flush()

    def note_time(self, time: Time, key: str | None = None) -> MarkOutcome:
        """Flush, then promise that all events written from now on have at least this time.

        Returns whether the mark was accepted. A time below that of the writer's last mark is ignored, with a warning
        the first time, or raises `MarkRefused`; see `refused_marks` of `Stream.writer`.

        Args:
            time: A number in the unit of the stream, or a datetime.
            key: The time key; the default key of the stream if left out.
        """
        with self._lock:
            self._check_open()
            self._check_may_note()
            if self._ticker is not None:
                raise AutomaticTime(
                    f"The writer {self.id!r} notes the time automatically.",
                    rule="A writer notes time either automatically or by note_time, not both.",
                    remedy="Open it without automatic=True, or remove the call of note_time.",
                    writer=self.id,
                )
            if key is not None and key not in self._stream.settings.keys:
                self._stream = self._backend.catalog.refresh(self._stream)
            settings = self._stream.settings
            return self._note(settings.key(key), time_in_unit(time, settings.unit))

    def mark_idle(self) -> None:
        """Flush, then declare the writer idle, so that the watermark does not wait for it until its next mark."""
        with self._lock:
            self._check_open()
            self._check_may_note()
            self._flush()
            self._backend.registry.idle(self._stream, self._opened.author, self._position)
            self._backend.wake()

    def close(self) -> None:
        """Flush and close the writer, so that the watermark no longer waits for it. Idempotent."""
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
                self._position = furthest_position(self._stream.layout, [self._position, ends])
            else:
                self._position.update(ends)

    def _note(self, key: str, time: int) -> MarkOutcome:
        self._flush()
        outcome = self._backend.registry.note(self._stream, self._opened.author, key, time, self._position)
        self._backend.wake()
        return self._refusals.check(key, time, outcome)

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
                f"The writer {self.id!r} was closed.",
                rule="A closed writer cannot be used.",
                remedy="Open it again with stream.writer(id).",
                writer=self.id,
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _check_may_note(self) -> None:
        if self.id is None:
            raise WriterWithoutId(
                "A writer without an id cannot note time.",
                rule="Time is noted under an id, so that a restarted writer continues where it stopped.",
                remedy="Open it with an id, for example stream.writer('till-3').",
            )


class TransactionalWriter:
    """Appends events in transactions: all events of a transaction become readable at its commit, or none.

    Open one with `Stream.transactional_writer`. Several transactions may be open at the same time.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills", segments=4)
    ...     with stream.transactional_writer("till-3") as writer:
    ...         transaction = writer.begin()
    ...         transaction.write_batch([{"paid": 7}, {"paid": 9}], key=["customer-7", "customer-8"])
    ...         stream.tail(), transaction.commit(time=1_000).outcome.value
    ({0: 0, 1: 0, 2: 0, 3: 0}, 'accepted')
    """

    __slots__ = ("_backend", "_is_closed", "_lock", "_open", "_opened", "_refusals", "_stream")

    def __init__(self, backend: Backend, stream: StreamInfo, opened: OpenedWriter, refusals: RefusalPolicy) -> None:
        """Use `Stream.transactional_writer`."""
        self._backend = backend
        self._stream = stream
        self._opened = opened
        self._refusals = refusals
        self._open: dict[str, Transaction] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def id(self) -> str:
        """The id of the writer, which survives restarts."""
        return self._opened.author.writer

    @property
    def instance(self) -> int:
        """How many times this writer id was opened; older instances are fenced."""
        return self._opened.author.instance

    @property
    def events_written(self) -> int:
        """How many events earlier instances of this id had written when this one was opened."""
        return self._opened.next_number

    def begin(self, timeout: Duration | None = None) -> "Transaction":
        """Begin a transaction. It is aborted after `timeout`, by default the `transaction_timeout` of the stream."""
        self._check_open()
        micros = None if timeout is None else duration_micros(timeout, "timeout", least=1)
        transaction_id = self._backend.transactions.begin(self._stream, self._opened.author, micros)
        transaction = Transaction(self, transaction_id)
        with self._lock:
            self._open[transaction_id] = transaction
        return transaction

    def note_time(self, time: Time, key: str | None = None) -> MarkOutcome:
        """Finish the requested commits, then promise that all events committed from now on have at least this time.

        Open transactions are not finished: their events must have at least this time too. Args and outcome are those
        of `Writer.note_time`.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     with stream.transactional_writer("till-3") as writer:
        ...         writer.note_time(1_000).value
        'accepted'
        """
        self._check_open()
        ((time_key, noted),) = self._times(time, key, None).items()
        self._finish_requested()
        # The store knows how far the commits of this writer reach.
        outcome = self._backend.registry.note(self._stream, self._opened.author, time_key, noted, {})
        self._backend.wake()
        return self._refusals.check(time_key, noted, outcome)

    def mark_idle(self) -> None:
        """Finish the requested commits, then declare the writer idle for all keys, until its next mark."""
        self._check_open()
        self._finish_requested()
        self._backend.registry.idle(self._stream, self._opened.author, {})
        self._backend.wake()

    def close(self) -> None:
        """Finish the requested commits, abort the open transactions, and close the writer. Idempotent.

        If a requested commit cannot be carried out, because the stream was sealed, the writer is closed and the error
        raised. After any other error, such as Kafka being unavailable, the writer stays open: close it again.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        failure: FloodmarkError | None = None
        try:
            for transaction in list(self._open.values()):
                try:
                    transaction._end()
                except (MarkRefused, StreamSealed, TransactionNotOpen, UnknownTransaction) as error:
                    failure = failure or error
                except StreamDeleted:
                    continue
            announce_close(self._backend, self._stream, self._opened.author, {})
        except BaseException:
            self._is_closed = False
            raise
        if failure is not None:
            raise failure

    def __enter__(self) -> "TransactionalWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self, transaction: str) -> None:
        """Remove a transaction that has ended."""
        with self._lock:
            self._open.pop(transaction, None)

    def _finish_requested(self) -> None:
        for transaction in list(self._open.values()):
            if transaction._times is not None:
                transaction.result()

    def _times(self, time: Time | None, key: str | None, times: Mapping[str, Time] | None) -> dict[str, int]:
        """Return the times to note, in the unit of the stream."""
        if times is not None and (time is not None or key is not None):
            raise InvalidOption(
                "A commit was given a time or key, and times.",
                rule="One time is given as time and key, times of several keys as {key: time}.",
                remedy="Pass all of them in times.",
                option="times",
            )
        if times is None:
            times = {} if time is None and key is None else {self._stream.settings.key(key): time}  # type: ignore[dict-item]
        if any(key not in self._stream.settings.keys for key in times):
            self._stream = self._backend.catalog.refresh(self._stream)
        settings = self._stream.settings
        return {settings.key(key): time_in_unit(value, settings.unit) for key, value in times.items()}

    def _check_open(self) -> None:
        if self._is_closed:
            raise WriterClosed(
                f"The writer {self.id!r} was closed.",
                rule="A closed writer cannot be used.",
                remedy="Open it again with stream.transactional_writer(id).",
                writer=self.id,
            )


class Transaction:
    """Events that become readable together when they are committed. Open one with `TransactionalWriter.begin`.

    As a context manager it commits at the end of the block, and aborts if the block raises an error.
    """

    __slots__ = ("_buffer", "_parts", "_times", "_writer", "id")

    def __init__(self, writer: TransactionalWriter, transaction_id: str) -> None:
        """Use `TransactionalWriter.begin`."""
        self.id = transaction_id
        self._writer = writer
        self._buffer = EventBuffer(writer._stream.settings.schema)
        self._parts = 0
        self._times: dict[str, int] | None = None
        """The times of the requested commit; None if none was requested."""

    @property
    def state(self) -> TransactionState:
        """The current state: open, committing, committed, aborting or aborted."""
        return self._writer._backend.transactions.state(self._writer._stream, self.id)

    def write(self, event: object, key: Key | None = None) -> None:
        """Add an event; see `Writer.write`."""
        self._buffer.add(event, key)
        if self._buffer.is_full:
            self.flush()

    def write_batch(self, data: Any, key: object = None) -> None:
        """Add many events at once; see `Writer.write_batch`."""
        self._buffer.add_batch(data, key)
        if self._buffer.is_full:
            self.flush()

    def flush(self) -> None:
        """Send all buffered events, and return when they are durable. They are not readable before the commit."""
        writer = self._writer
        while (events := self._buffer.next()) is not None:
            writer._backend.log.add(writer._stream, self.id, self._parts, events)
            self._buffer.done()
            self._parts += 1

    def commit(
        self, time: Time | None = None, key: str | None = None, *, times: Mapping[str, Time] | None = None
    ) -> CommitResult:
        """Commit the events, and optionally note times for the events that follow.

        A mark that is refused does not undo the commit; see `CommitResult.outcomes`.

        >>> with connect() as home:
        ...     schema = "placed TIMESTAMP, paid TIMESTAMP"
        ...     stream = home.create_stream("shop/orders", schema=schema, time_columns=["placed", "paid"])
        ...     with stream.transactional_writer("till-3") as writer:
        ...         result = writer.begin().commit(times={"placed": 1_000, "paid": 700})
        ...     {key: outcome.value for key, outcome in result.outcomes.items()}
        {'placed': 'accepted', 'paid': 'accepted'}

        Args:
            time: As in `Writer.note_time`; None to note no time.
            key: The time key; the default key of the stream if left out.
            times: The times of several keys, as {key: time}, instead of `time` and `key`.
        """
        self.request_commit(time, key, times=times)
        return self.result()

    def request_commit(
        self, time: Time | None = None, key: str | None = None, *, times: Mapping[str, Time] | None = None
    ) -> None:
        """Request the commit without waiting for it. Commits are carried out in the order of their requests.

        It is carried out even if this process dies, at the latest when the writer is closed or becomes idle, or when a
        controller finds it.
        """
        writer = self._writer
        noted = writer._times(time, key, times)
        self.flush()
        writer._backend.transactions.request(writer._stream, self.id, noted)
        self._times = noted

    def result(self) -> CommitResult:
        """Wait for the requested commit, and return its result."""
        writer = self._writer
        try:
            result = writer._backend.transactions.finish(writer._stream, self.id)
        except (StreamSealed, TransactionNotOpen) as error:
            if error.fields.get("state") != TransactionState.OPEN.value:
                writer._forget(self.id)
            raise
        writer._forget(self.id)
        writer._backend.wake()
        for key, outcome in result.outcomes.items():
            writer._refusals.check(key, (self._times or {}).get(key, 0), outcome)
        return result

    def abort(self) -> None:
        """Abort the transaction: its events are discarded and never become readable."""
        self._writer._backend.transactions.abort(self._writer._stream, self.id)
        self._writer._forget(self.id)

    def _end(self) -> None:
        """Finish the commit if it was requested, and abort the transaction otherwise."""
        if self._times is None:
            try:
                self.abort()
                return
            except UnknownTransaction:
                return
            except TransactionNotOpen as refusal:
                # The answer to a request may have been lost.
                if refusal.fields["state"] != TransactionState.COMMITTING.value:
                    return
        self.result()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.id not in self._writer._open:
            return
        if kind is None:
            self.commit() if self._times is None else self.result()
        elif self._times is None:
            self.abort()


def announce_close(backend: Backend, stream: StreamInfo, author: Author, position: Position) -> None:
    """Record that a writer was closed. Does nothing if its stream was deleted or a newer instance was opened."""
    try:
        backend.registry.close(stream, author, position)
    except (StreamDeleted, WriterSuperseded):
        # The watermark does not wait for this instance any more. Lost events have already failed in flush.
        return
    if not author.writer.startswith(ANONYMOUS_PREFIX):
        backend.wake()
