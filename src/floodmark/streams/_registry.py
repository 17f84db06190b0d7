"""The writers of a stream, as the store knows them: opened, heard, idle, closed. Any process may take their word."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, select, update

from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import FloodmarkError
from floodmark.streams._catalog import Catalog, StreamInfo, marks_topic
from floodmark.streams._log import Author, Opened, StreamLog
from floodmark.streams._mark_rows import INSERT_MARK, UPDATE_MARK, changed_mark, new_mark, record_of
from floodmark.streams._positions import Position, check_position
from floodmark.streams._schema import KEYS, MARKS, TRANSACTIONS, WRITERS
from floodmark.streams._settling import Note, Settled, settle, unknown_writer
from floodmark.streams._table_log import check_instance
from floodmark.streams._transaction_rows import OPENED_AGAIN
from floodmark.streams._writers import MarkOutcome, WriterRecord

ANONYMOUS: Final = "~"
"""What the names of writers without an id begin with."""

_FORGET_ANONYMOUS: Final = 24 * 3_600_000_000
Step = Callable[[WriterRecord], WriterRecord]


class Registry:
    """Takes what writers say. What is said of a stream and key is settled one after the other."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Keep it in this home; `log` knows what writers have really written."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> Opened:
        """Open a writer, new or known. A known one goes on from its mark, and its older instance is heard no more."""
        return self._log.opened(stream, retry_on_conflict(lambda: self._open(stream, writer, keys)))

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Take a mark, or say why not. A race that was lost is run again."""
        (settled,) = self.note_many([Note(stream, author, key, time, position)])
        return outcome_of(settled)

    def note_many(self, notes: Sequence[Note]) -> list[Settled]:
        """Take many marks in one transaction, in their order, and return for each what became of it, or its error."""

        def transaction() -> list[Settled]:
            with self._home.write() as connection:
                return settle(connection, self._catalog, notes, self._home.now(connection))

        return retry_on_conflict(transaction)

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes for now."""
        self._step(stream, author, position, lambda record: record.idle(instance=author.instance))

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more."""
        self._log.closed(stream, author)
        if author.writer.startswith(ANONYMOUS):
            here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
            with self._home.write() as connection:
                connection.execute(delete(WRITERS).where(*here))
            return
        self._step(stream, author, position, lambda record: record.close(instance=author.instance))

    def note_for(
        self, connection: Connection, stream: StreamInfo, writer: str, times: Mapping[str, int], position: Position
    ) -> dict[str, MarkOutcome]:
        """Take marks on behalf of a writer, whichever instance of it is the newest, as part of a transaction."""
        here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
        instance = connection.execute(select(WRITERS.c.instance).where(*here)).scalar_one()
        notes = [Note(stream, Author(writer, instance), key, time, position) for key, time in times.items()]
        settled = settle(connection, self._catalog, notes, self._home.now(connection))
        return {note.key: outcome_of(one) for note, one in zip(notes, settled, strict=True)}

    def check_newest(self, connection: Connection, stream: StreamInfo, author: Author) -> None:
        """Refuse an author that is not known, or is not the newest instance of its writer."""
        wanted = select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
        row = connection.execute(wanted).one_or_none()
        if row is None:
            raise unknown_writer(author)
        check_instance(row, author)

    def _open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> Opened:
        with self._home.write() as connection:
            now = self._home.now(connection)
            self._catalog.require(connection, stream)
            old = (WRITERS.c.is_named == 0, WRITERS.c.touched_at < now - _FORGET_ANONYMOUS)
            if writer is None:
                connection.execute(delete(WRITERS).where(WRITERS.c.stream_id == stream.id, *old))
                author = Author(ANONYMOUS + uuid.uuid4().hex, 1)
                _insert_writer(connection, stream, author, now, is_named=0)
                return Opened(author, 0, {})
            _insert_writer(connection, stream, Author(writer, 0), now, is_named=1)
            here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
            taken = update(WRITERS).where(*here).values(instance=WRITERS.c.instance + 1, touched_at=now)
            row = connection.execute(taken.returning(WRITERS.c.instance, WRITERS.c.next_number)).one()
            author = Author(writer, row.instance)
            _abandon(connection, stream, writer)
            watermarks = {}
            for key in sorted(keys):
                watermarks[key] = _touch(connection, stream, key, raises_version=True)
                mark = _mark_row(connection, stream, key, writer)
                if mark is None:
                    record = replace(WriterRecord.open(writer, now=now), instance=author.instance)
                    connection.execute(INSERT_MARK, [new_mark(stream.id, key, record)])
                else:
                    again = record_of(mark, author.instance - 1).open_again(now=now)
                    connection.execute(UPDATE_MARK, changed_mark(stream.id, key, mark.version, again))
            announce_change(connection, marks_topic(stream.bucket))
        return Opened(author, row.next_number, watermarks)

    def _step(self, stream: StreamInfo, author: Author, position: Position, step: Step) -> None:
        """Change the records of a writer in all keys in which it is known."""

        def transaction() -> None:
            with self._home.write() as connection:
                info = self._catalog.require(connection, stream)
                self.check_newest(connection, info, author)
                check_position(info.layout, position)
                for mark in _marks_of(connection, info, author.writer):
                    record = record_of(mark, author.instance)
                    _touch(connection, info, mark.time_key, raises_version=True)
                    _store(connection, info, mark.time_key, mark, step(record.moved(position, layout=info.layout)))
                announce_change(connection, marks_topic(info.bucket))

        retry_on_conflict(transaction)


def outcome_of(settled: Settled) -> MarkOutcome:
    """Return the outcome of a mark, or raise the error that it ended with."""
    if isinstance(settled, FloodmarkError):
        raise settled
    return settled


def _touch(connection: Connection, stream: StreamInfo, key: str, *, raises_version: bool) -> int | None:
    """Say that a key has changed, and return its watermark; nobody decides on the key before the transaction ends."""
    here = (KEYS.c.stream_id == stream.id, KEYS.c.time_key == key)
    values: dict[str, Any] = {"changed": KEYS.c.changed + 1}
    if raises_version:
        values["writers_version"] = KEYS.c.writers_version + 1
    lower: int | None = connection.execute(
        update(KEYS).where(*here).values(values).returning(KEYS.c.last_lower)
    ).scalar_one()
    return lower


def _store(connection: Connection, stream: StreamInfo, key: str, mark: Row[Any] | None, record: WriterRecord) -> None:
    if mark is None:
        connection.execute(INSERT_MARK, [new_mark(stream.id, key, record)])
    elif connection.execute(UPDATE_MARK, changed_mark(stream.id, key, mark.version, record)).rowcount != 1:
        raise LostRace


def _insert_writer(connection: Connection, stream: StreamInfo, author: Author, now: int, is_named: int) -> None:
    row = {"stream_id": stream.id, "writer": author.writer, "instance": author.instance, "next_number": 0}
    insert_if_absent(connection, WRITERS, {**row, "is_named": is_named, "touched_at": now})


def _mark_row(connection: Connection, stream: StreamInfo, key: str, writer: str) -> Row[Any] | None:
    here = (MARKS.c.stream_id == stream.id, MARKS.c.time_key == key, MARKS.c.writer == writer)
    return connection.execute(select(MARKS).where(*here)).one_or_none()


def _marks_of(connection: Connection, stream: StreamInfo, writer: str) -> list[Row[Any]]:
    # In the order of the keys, in which all lock them.
    here = (MARKS.c.stream_id == stream.id, MARKS.c.writer == writer, MARKS.c.time_key.in_(stream.settings.keys))
    return list(connection.execute(select(MARKS).where(*here).order_by(MARKS.c.time_key)))


def _abandon(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Give up the open transactions of an older instance; what it has asked to commit is committed all the same."""
    here = (TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.writer == writer, TRANSACTIONS.c.state == "open")
    connection.execute(update(TRANSACTIONS).where(*here).values(state="aborting", reason=OPENED_AGAIN))
