"""The writers of streams in the store: open, note marks, idle, close. Any process may serve any writer."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, select, tuple_, update

from floodmark._util.ints import check_int64
from floodmark._util.names import check_id
from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import FloodmarkError, UnknownWriter, WriterSuperseded
from floodmark.streams.definition import ANONYMOUS_PREFIX, StreamInfo
from floodmark.streams.layout.positions import Position, check_position
from floodmark.streams.local.catalog import Catalog, marks_counter, stream_deleted
from floodmark.streams.local.marks import INSERT_MARK, UPDATE_MARK, new_mark_values, record_of, updated_mark_values
from floodmark.streams.local.tables import KEYS, MARKS, TRANSACTIONS, WRITERS
from floodmark.streams.marks.writer_record import MarkOutcome, WriterRecord, WriterState
from floodmark.streams.ports import (
    REASON_OPENED_AGAIN,
    Author,
    MarkRequest,
    OpenedWriter,
    OutcomeOrError,
    RecordKey,
    StreamKey,
    StreamLog,
)

_FORGET_ANONYMOUS: Final = 24 * 3_600_000_000
RecordChange = Callable[[WriterRecord], WriterRecord]


class Registry:
    """Stores the reports of writers. Reports on the same stream and key are serialized."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Use the writers of this home; `log` knows which events each has written."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer. An existing one continues from its mark, and its earlier instance is fenced."""
        return self._log.writer_opened(stream, retry_on_conflict(lambda: self._open(stream, writer, keys)))

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Note a mark and return its outcome."""
        (result,) = self.note_many([MarkRequest(stream, author, key, time, position)])
        return outcome_of(result)

    def note_many(self, requests: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Note many marks in one transaction, in order, and return the outcome or error of each."""

        def transaction() -> list[OutcomeOrError]:
            with self._home.write() as connection:
                return store_marks(connection, self._catalog, requests, self._home.now(connection))

        return retry_on_conflict(transaction)

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Mark a writer as idle."""
        self._change_records(stream, author, position, lambda record: record.idle(instance=author.instance))

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Close a writer; an anonymous one is deleted."""
        self._log.writer_closed(stream, author)
        if author.writer.startswith(ANONYMOUS_PREFIX):
            is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
            with self._home.write() as connection:
                connection.execute(delete(WRITERS).where(*is_writer))
            return
        self._change_records(stream, author, position, lambda record: record.close(instance=author.instance))

    def note_for(
        self, connection: Connection, stream: StreamInfo, writer: str, times: Mapping[str, int], position: Position
    ) -> dict[str, MarkOutcome]:
        """Note marks for the newest instance of a writer, inside a transaction."""
        is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
        instance = connection.execute(select(WRITERS.c.instance).where(*is_writer)).scalar_one()
        requests = [MarkRequest(stream, Author(writer, instance), key, time, position) for key, time in times.items()]
        results = store_marks(connection, self._catalog, requests, self._home.now(connection))
        return {request.key: outcome_of(result) for request, result in zip(requests, results, strict=True)}

    def check_newest(self, connection: Connection, stream: StreamInfo, author: Author) -> None:
        """Raise an error unless the author is the newest instance of an open writer."""
        query = select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise unknown_writer(author)
        check_instance(row, author)

    def _open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        with self._home.write() as connection:
            now = self._home.now(connection)
            self._catalog.require(connection, stream)
            is_expired = (WRITERS.c.is_named == 0, WRITERS.c.touched_at < now - _FORGET_ANONYMOUS)
            if writer is None:
                connection.execute(delete(WRITERS).where(WRITERS.c.stream_id == stream.id, *is_expired))
                author = Author(ANONYMOUS_PREFIX + uuid.uuid4().hex, 1)
                _insert_writer(connection, stream, author, now, is_named=0)
                return OpenedWriter(author, 0, {})
            _insert_writer(connection, stream, Author(writer, 0), now, is_named=1)
            is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
            next_instance = update(WRITERS).where(*is_writer).values(instance=WRITERS.c.instance + 1, touched_at=now)
            row = connection.execute(next_instance.returning(WRITERS.c.instance, WRITERS.c.next_number)).one()
            author = Author(writer, row.instance)
            _abort_open_transactions(connection, stream, writer)
            watermarks = {}
            for key in sorted(keys):
                watermarks[key] = _touch_key(connection, stream, key, raises_version=True)
                mark = _mark_row(connection, stream, key, writer)
                if mark is None:
                    record = replace(WriterRecord.open(writer, now=now), instance=author.instance)
                    connection.execute(INSERT_MARK, [new_mark_values(stream.id, key, record)])
                else:
                    reopened = record_of(mark, author.instance - 1).open_again(now=now)
                    connection.execute(UPDATE_MARK, updated_mark_values(stream.id, key, mark.version, reopened))
            announce_change(connection, marks_counter(stream.bucket))
        return OpenedWriter(author, row.next_number, watermarks)

    def _change_records(self, stream: StreamInfo, author: Author, position: Position, change: RecordChange) -> None:
        """Change the records of a writer for all of its keys."""

        def transaction() -> None:
            with self._home.write() as connection:
                info = self._catalog.require(connection, stream)
                self.check_newest(connection, info, author)
                check_position(info.layout, position)
                for mark in _marks_of(connection, info, author.writer):
                    record = record_of(mark, author.instance)
                    _touch_key(connection, info, mark.time_key, raises_version=True)
                    _store_record(
                        connection, info, mark.time_key, mark, change(record.moved(position, layout=info.layout))
                    )
                announce_change(connection, marks_counter(info.bucket))

        retry_on_conflict(transaction)


def outcome_of(result: OutcomeOrError) -> MarkOutcome:
    """Return the outcome of a mark, or raise its error."""
    if isinstance(result, FloodmarkError):
        raise result
    return result


def _touch_key(connection: Connection, stream: StreamInfo, key: str, *, raises_version: bool) -> int | None:
    """Count a change of a key and return its watermark. This locks the key until the transaction ends."""
    is_key = (KEYS.c.stream_id == stream.id, KEYS.c.time_key == key)
    values: dict[str, Any] = {"changed": KEYS.c.changed + 1}
    if raises_version:
        values["writers_version"] = KEYS.c.writers_version + 1
    lower: int | None = connection.execute(
        update(KEYS).where(*is_key).values(values).returning(KEYS.c.last_lower)
    ).scalar_one()
    return lower


def _store_record(
    connection: Connection, stream: StreamInfo, key: str, mark: Row[Any] | None, record: WriterRecord
) -> None:
    if mark is None:
        connection.execute(INSERT_MARK, [new_mark_values(stream.id, key, record)])
    elif connection.execute(UPDATE_MARK, updated_mark_values(stream.id, key, mark.version, record)).rowcount != 1:
        raise LostRace


def _insert_writer(connection: Connection, stream: StreamInfo, author: Author, now: int, is_named: int) -> None:
    row = {"stream_id": stream.id, "writer": author.writer, "instance": author.instance, "next_number": 0}
    insert_if_absent(connection, WRITERS, {**row, "is_named": is_named, "touched_at": now})


def _mark_row(connection: Connection, stream: StreamInfo, key: str, writer: str) -> Row[Any] | None:
    is_mark = (MARKS.c.stream_id == stream.id, MARKS.c.time_key == key, MARKS.c.writer == writer)
    return connection.execute(select(MARKS).where(*is_mark)).one_or_none()


def _marks_of(connection: Connection, stream: StreamInfo, writer: str) -> list[Row[Any]]:
    # Lock keys in order to avoid deadlocks.
    is_mark = (MARKS.c.stream_id == stream.id, MARKS.c.writer == writer, MARKS.c.time_key.in_(stream.settings.keys))
    return list(connection.execute(select(MARKS).where(*is_mark).order_by(MARKS.c.time_key)))


def _abort_open_transactions(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Abort the open transactions of an earlier instance; its requested commits are still carried out."""
    is_open = (TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.writer == writer, TRANSACTIONS.c.state == "open")
    connection.execute(update(TRANSACTIONS).where(*is_open).values(state="aborting", reason=REASON_OPENED_AGAIN))


_KEYS: Final = (
    select(KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.last_lower)
    .where(tuple_(KEYS.c.stream_id, KEYS.c.time_key).in_(bindparam("targets", expanding=True)))
    # The same lock order as a controller, to avoid deadlocks.
    .order_by(KEYS.c.stream_id, KEYS.c.time_key)
    .with_for_update()
)
_WRITERS: Final = select(WRITERS.c.stream_id, WRITERS.c.writer, WRITERS.c.instance).where(
    tuple_(WRITERS.c.stream_id, WRITERS.c.writer).in_(bindparam("writers", expanding=True))
)
_MARKS: Final = select(MARKS).where(
    tuple_(MARKS.c.stream_id, MARKS.c.time_key, MARKS.c.writer).in_(bindparam("records", expanding=True))
)
_TOUCH: Final = (
    update(KEYS)
    .where(KEYS.c.stream_id == bindparam("s"), KEYS.c.time_key == bindparam("k"))
    .values(changed=KEYS.c.changed + bindparam("heard"), writers_version=KEYS.c.writers_version + bindparam("raised"))
)


def store_marks(
    connection: Connection, catalog: Catalog, requests: Sequence[MarkRequest], now: int
) -> list[OutcomeOrError]:
    """Store marks in order, inside a transaction, and return the outcome or error of each, independent of the others.

    The writers' records of these streams and keys stay locked until the transaction ends.
    """
    results: list[OutcomeOrError | None] = [_validate_request(request) for request in requests]
    valid = [request for request, refusal in zip(requests, results, strict=True) if refusal is None]
    if valid:
        batch = _MarkBatch(connection, catalog, valid, now)
        for index, request in enumerate(requests):
            if results[index] is None:
                results[index] = batch.apply(request)
        batch.store()
    return [result for result in results if result is not None]


class _MarkBatch:
    """The writers' records that a batch of marks changes: loaded, changed, and stored."""

    def __init__(self, connection: Connection, catalog: Catalog, requests: Sequence[MarkRequest], now: int) -> None:
        self._connection = connection
        self._now = now
        # Lock the keys before anything else is read, so that it cannot change before the transaction ends.
        targets = sorted({request.stream_key for request in requests})
        keys = connection.execute(_KEYS, {"targets": targets})
        self._watermarks: dict[StreamKey, int | None] = {(row.stream_id, row.time_key): row.last_lower for row in keys}
        self._streams = catalog.infos(connection, {request.stream.id for request in requests})
        writers = sorted({(request.stream.id, request.author.writer) for request in requests})
        self._writers: dict[tuple[int, str], Any] = {
            (row.stream_id, row.writer): row for row in connection.execute(_WRITERS, {"writers": writers})
        }
        records = sorted({request.record_key for request in requests})
        self._marks: dict[RecordKey, Row[Any]] = {
            (row.stream_id, row.time_key, row.writer): row for row in connection.execute(_MARKS, {"records": records})
        }
        self._records: dict[RecordKey, WriterRecord] = {}
        self._touched: dict[StreamKey, list[int]] = {}

    def apply(self, request: MarkRequest) -> OutcomeOrError:
        try:
            return self._apply(request)
        except FloodmarkError as refusal:
            return refusal

    def _apply(self, request: MarkRequest) -> MarkOutcome:
        info, author = self._streams.get(request.stream.id), request.author
        if info is None:
            raise stream_deleted(self._connection, request.stream)
        info.settings.key(request.key)
        writer = self._writers.get((info.id, author.writer))
        if writer is None:
            raise unknown_writer(author)
        check_instance(writer, author)
        if request.stream_key not in self._watermarks:
            # The key was added after the keys were locked.
            raise LostRace
        record = self._record(request)
        watermark = self._watermarks[request.stream_key]
        noted = record.note(
            request.time,
            request.position,
            layout=info.layout,
            now=self._now,
            watermark=watermark,
            instance=author.instance,
        )
        if noted.outcome is MarkOutcome.ACCEPTED:
            self._records[request.record_key] = noted.record
            touched = self._touched.setdefault(request.stream_key, [0, 0])
            touched[0] += 1
            touched[1] += record.time is None or record.state is not WriterState.ALIVE
        return noted.outcome

    def _record(self, request: MarkRequest) -> WriterRecord:
        record = self._records.get(request.record_key)
        if record is not None:
            return record
        mark, author = self._marks.get(request.record_key), request.author
        if mark is None:
            return replace(WriterRecord.open(author.writer, now=self._now), instance=author.instance)
        return record_of(mark, author.instance)

    def store(self) -> None:
        """Store the changed records."""
        if not self._records:
            return
        inserts, updates = [], []
        for place, record in self._records.items():
            stream, key, _ = place
            mark = self._marks.get(place)
            if mark is None:
                inserts.append(new_mark_values(stream, key, record))
            else:
                updates.append(updated_mark_values(stream, key, mark.version, record))
        if updates and self._connection.execute(UPDATE_MARK, updates).rowcount != len(updates):
            raise LostRace
        if inserts:
            self._connection.execute(INSERT_MARK, inserts)
        touches = [
            {"s": stream, "k": key, "heard": heard, "raised": raised}
            for (stream, key), (heard, raised) in self._touched.items()
        ]
        self._connection.execute(_TOUCH, touches)
        for bucket in {self._streams[stream].bucket for stream, _ in self._touched}:
            announce_change(self._connection, marks_counter(bucket))


def unknown_writer(author: Author) -> UnknownWriter:
    """Return the error for a writer that was never opened."""
    return UnknownWriter(
        f"There is no writer {author.writer!r}.",
        rule="A writer must be opened before it notes time.",
        remedy="Open it with writer().",
        writer=author.writer,
    )


def _validate_request(request: MarkRequest) -> FloodmarkError | None:
    """Return the error of a malformed request, which would make the statement for the whole batch fail."""
    try:
        check_id("writer", request.author.writer)
        check_id("key", request.key)
        check_int64(request.author.instance, "instance")
    except FloodmarkError as refusal:
        return refusal
    return None


def check_instance(row: Row[Any], author: Author) -> None:
    """Raise `WriterSuperseded` unless the author is the newest instance of its writer."""
    if row.instance != author.instance:
        raise WriterSuperseded(
            f"Instance {author.instance} of the writer {author.writer!r} was superseded by instance {row.instance}.",
            rule="A writer id belongs to the writer that opened it last.",
            remedy="Stop this writer, or open it again with writer() to supersede the other one.",
            writer=author.writer,
            instance=author.instance,
            newest=row.instance,
        )
