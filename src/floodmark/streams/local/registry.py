"""The writers of streams in the store: open, note marks, idle, close. Any process may serve any writer."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, select, update

from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.store.change_counters import announce_change
from floodmark.streams.definition import ANONYMOUS_PREFIX, StreamInfo
from floodmark.streams.layout.positions import Position, check_position
from floodmark.streams.local.catalog import Catalog, marks_counter
from floodmark.streams.local.mark_batch import check_newest, outcome_of, store_marks
from floodmark.streams.local.marks import INSERT_MARK, UPDATE_MARK, new_mark_values, record_of, updated_mark_values
from floodmark.streams.local.tables import KEYS, MARKS, TRANSACTIONS, WRITERS
from floodmark.streams.local.transactions import Transactions
from floodmark.streams.marks.writer_record import MarkOutcome, WriterRecord
from floodmark.streams.ports import REASON_OPENED_AGAIN, Author, MarkRequest, OpenedWriter, OutcomeOrError, StreamLog

_FORGET_ANONYMOUS: Final = 24 * 3_600_000_000
RecordChange = Callable[[WriterRecord], WriterRecord]


class Registry:
    """Stores the reports of writers. Reports on the same stream and key are serialized.

    A commit that a writer has requested is carried out before the writer is opened again, becomes idle or is closed.
    Otherwise the watermark could pass its events before they are in the stream.
    """

    __slots__ = ("_catalog", "_home", "_log", "_transactions")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog, transactions: Transactions) -> None:
        """Use the writers of this home; `log` knows which events each has written."""
        self._home = home
        self._catalog = catalog
        self._log = log
        self._transactions = transactions

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer. An existing one continues from its mark, and its earlier instance is fenced."""
        opened = retry_on_conflict(lambda: self._open(stream, writer, keys))
        if writer is not None and self._transactions.finish_requested(stream, writer):
            is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
            with self._home.read() as connection:
                number = connection.execute(select(WRITERS.c.next_number).where(*is_writer)).scalar_one()
            opened = replace(opened, next_number=number)
        return self._log.writer_opened(stream, opened)

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
        self._transactions.finish_requested(stream, author.writer)
        self._change_records(stream, author, position, lambda record: record.idle(instance=author.instance))

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Close a writer; an anonymous one is deleted."""
        self._log.writer_closed(stream, author)
        if author.writer.startswith(ANONYMOUS_PREFIX):
            is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
            with self._home.write() as connection:
                connection.execute(delete(WRITERS).where(*is_writer))
            return
        self._transactions.finish_requested(stream, author.writer)
        self._change_records(stream, author, position, lambda record: record.close(instance=author.instance))

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
                check_newest(connection, info, author)
                check_position(info.layout, position)
                for mark in _marks_of(connection, info, author.writer):
                    record = record_of(mark, author.instance)
                    _touch_key(connection, info, mark.time_key, raises_version=True)
                    _store_record(
                        connection, info, mark.time_key, mark, change(record.moved(position, layout=info.layout))
                    )
                announce_change(connection, marks_counter(info.bucket))

        retry_on_conflict(transaction)


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
