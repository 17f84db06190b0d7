"""Transactional writers: events that come into a stream together, or not at all."""

import threading
from types import TracebackType
from typing import Any

from floodmark._util.times import Duration, Time, duration_micros, time_in_unit
from floodmark.errors import StreamDeleted, TransactionNotOpen, UnknownTransaction, WriterClosed
from floodmark.streams._backend import Backend, say_closed
from floodmark.streams._buffer import Buffer
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._key_points import Key
from floodmark.streams._log import Opened
from floodmark.streams._positions import furthest
from floodmark.streams._transaction_rows import TransactionState
from floodmark.streams._transactions import CommitResult


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

    def __init__(self, backend: Backend, stream: StreamInfo, opened: Opened) -> None:
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
        say_closed(self._backend, self._stream, self._opened.author, self._position)

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
