"""The writers of streams in the store: opened, marked, idle, closed. Any process may record what a writer says."""

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
    """Takes what writers say. What is said of a stream and key is settled one after the other."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Keep it in this home; `log` knows what writers have really written."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer, new or known. A known one goes on from its mark, and its older instance is heard no more."""
        return self._log.opened(stream, retry_on_conflict(lambda: self._open(stream, writer, keys)))

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Take a mark, or say why not. A race that was lost is run again."""
        (settled,) = self.note_many([MarkRequest(stream, author, key, time, position)])
        return outcome_of(settled)

    def note_many(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Take many marks in one transaction, in their order, and return for each what became of it, or its error."""

        def transaction() -> list[OutcomeOrError]:
            with self._home.write() as connection:
                return take_marks(connection, self._catalog, notes, self._home.now(connection))

        return retry_on_conflict(transaction)

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes for now."""
        self._step(stream, author, position, lambda record: record.idle(instance=author.instance))

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more."""
        self._log.closed(stream, author)
        if author.writer.startswith(ANONYMOUS_PREFIX):
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
        notes = [MarkRequest(stream, Author(writer, instance), key, time, position) for key, time in times.items()]
        settled = take_marks(connection, self._catalog, notes, self._home.now(connection))
        return {note.key: outcome_of(one) for note, one in zip(notes, settled, strict=True)}

    def check_newest(self, connection: Connection, stream: StreamInfo, author: Author) -> None:
        """Refuse an author that is not known, or is not the newest instance of its writer."""
        wanted = select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
        row = connection.execute(wanted).one_or_none()
        if row is None:
            raise unknown_writer(author)
        check_instance(row, author)

    def _open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        with self._home.write() as connection:
            now = self._home.now(connection)
            self._catalog.require(connection, stream)
            old = (WRITERS.c.is_named == 0, WRITERS.c.touched_at < now - _FORGET_ANONYMOUS)
            if writer is None:
                connection.execute(delete(WRITERS).where(WRITERS.c.stream_id == stream.id, *old))
                author = Author(ANONYMOUS_PREFIX + uuid.uuid4().hex, 1)
                _insert_writer(connection, stream, author, now, is_named=0)
                return OpenedWriter(author, 0, {})
            _insert_writer(connection, stream, Author(writer, 0), now, is_named=1)
            here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
            taken = update(WRITERS).where(*here).values(instance=WRITERS.c.instance + 1, touched_at=now)
            row = connection.execute(taken.returning(WRITERS.c.instance, WRITERS.c.next_number)).one()
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
                    again = record_of(mark, author.instance - 1).open_again(now=now)
                    connection.execute(UPDATE_MARK, updated_mark_values(stream.id, key, mark.version, again))
            announce_change(connection, marks_counter(stream.bucket))
        return OpenedWriter(author, row.next_number, watermarks)

    def _step(self, stream: StreamInfo, author: Author, position: Position, step: RecordChange) -> None:
        """Change the records of a writer in all keys in which it is known."""

        def transaction() -> None:
            with self._home.write() as connection:
                info = self._catalog.require(connection, stream)
                self.check_newest(connection, info, author)
                check_position(info.layout, position)
                for mark in _marks_of(connection, info, author.writer):
                    record = record_of(mark, author.instance)
                    _touch_key(connection, info, mark.time_key, raises_version=True)
                    _store_record(
                        connection, info, mark.time_key, mark, step(record.moved(position, layout=info.layout))
                    )
                announce_change(connection, marks_counter(info.bucket))

        retry_on_conflict(transaction)


def outcome_of(settled: OutcomeOrError) -> MarkOutcome:
    """Return the outcome of a mark, or raise the error that it ended with."""
    if isinstance(settled, FloodmarkError):
        raise settled
    return settled


def _touch_key(connection: Connection, stream: StreamInfo, key: str, *, raises_version: bool) -> int | None:
    """Say that a key has changed, and return its watermark; nobody decides on the key before the transaction ends."""
    here = (KEYS.c.stream_id == stream.id, KEYS.c.time_key == key)
    values: dict[str, Any] = {"changed": KEYS.c.changed + 1}
    if raises_version:
        values["writers_version"] = KEYS.c.writers_version + 1
    lower: int | None = connection.execute(
        update(KEYS).where(*here).values(values).returning(KEYS.c.last_lower)
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
    here = (MARKS.c.stream_id == stream.id, MARKS.c.time_key == key, MARKS.c.writer == writer)
    return connection.execute(select(MARKS).where(*here)).one_or_none()


def _marks_of(connection: Connection, stream: StreamInfo, writer: str) -> list[Row[Any]]:
    # In the order of the keys, in which all lock them.
    here = (MARKS.c.stream_id == stream.id, MARKS.c.writer == writer, MARKS.c.time_key.in_(stream.settings.keys))
    return list(connection.execute(select(MARKS).where(*here).order_by(MARKS.c.time_key)))


def _abort_open_transactions(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Give up the open transactions of an older instance; what it has asked to commit is committed all the same."""
    here = (TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.writer == writer, TRANSACTIONS.c.state == "open")
    connection.execute(update(TRANSACTIONS).where(*here).values(state="aborting", reason=REASON_OPENED_AGAIN))


_KEYS: Final = (
    select(KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.last_lower)
    .where(tuple_(KEYS.c.stream_id, KEYS.c.time_key).in_(bindparam("targets", expanding=True)))
    # As a controller locks them: so nobody waits in a circle.
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


def take_marks(
    connection: Connection, catalog: Catalog, notes: Sequence[MarkRequest], now: int
) -> list[OutcomeOrError]:
    """Take each mark or say why not, in their order, as part of a transaction. None touches what becomes of another.

    From here to the end of the transaction nobody else changes what is known of the writers of these streams and keys.
    """
    results: list[OutcomeOrError | None] = [_invalid_request(note) for note in notes]
    sound = [note for note, refusal in zip(notes, results, strict=True) if refusal is None]
    if sound:
        batch = _MarkBatch(connection, catalog, sound, now)
        for place, note in enumerate(notes):
            if results[place] is None:
                results[place] = batch.take(note)
        batch.store()
    return [result for result in results if result is not None]


class _MarkBatch:
    """What is known of the writers of a batch of marks, and what the marks make of it."""

    def __init__(self, connection: Connection, catalog: Catalog, notes: Sequence[MarkRequest], now: int) -> None:
        self._connection = connection
        self._now = now
        # The keys are locked before anything else is read: what is read then stays true to the end.
        targets = sorted({note.target for note in notes})
        found = connection.execute(_KEYS, {"targets": targets})
        self._watermarks: dict[StreamKey, int | None] = {(row.stream_id, row.time_key): row.last_lower for row in found}
        self._streams = catalog.infos(connection, {note.stream.id for note in notes})
        writers = sorted({(note.stream.id, note.author.writer) for note in notes})
        self._writers: dict[tuple[int, str], Any] = {
            (row.stream_id, row.writer): row for row in connection.execute(_WRITERS, {"writers": writers})
        }
        records = sorted({note.place for note in notes})
        self._marks: dict[RecordKey, Row[Any]] = {
            (row.stream_id, row.time_key, row.writer): row for row in connection.execute(_MARKS, {"records": records})
        }
        self._records: dict[RecordKey, WriterRecord] = {}
        self._touched: dict[StreamKey, list[int]] = {}

    def take(self, note: MarkRequest) -> OutcomeOrError:
        try:
            return self._take(note)
        except FloodmarkError as refusal:
            return refusal

    def _take(self, note: MarkRequest) -> MarkOutcome:
        info, author = self._streams.get(note.stream.id), note.author
        if info is None:
            raise stream_deleted(self._connection, note.stream)
        info.settings.key(note.key)
        writer = self._writers.get((info.id, author.writer))
        if writer is None:
            raise unknown_writer(author)
        check_instance(writer, author)
        if note.target not in self._watermarks:
            # The key was added since the keys were locked.
            raise LostRace
        record = self._record(note)
        watermark = self._watermarks[note.target]
        noted = record.note(
            note.time, note.position, layout=info.layout, now=self._now, watermark=watermark, instance=author.instance
        )
        if noted.outcome is MarkOutcome.ACCEPTED:
            self._records[note.place] = noted.record
            touched = self._touched.setdefault(note.target, [0, 0])
            touched[0] += 1
            touched[1] += record.time is None or record.state is not WriterState.ALIVE
        return noted.outcome

    def _record(self, note: MarkRequest) -> WriterRecord:
        record = self._records.get(note.place)
        if record is not None:
            return record
        mark, author = self._marks.get(note.place), note.author
        if mark is None:
            return replace(WriterRecord.open(author.writer, now=self._now), instance=author.instance)
        return record_of(mark, author.instance)

    def store(self) -> None:
        """Store what was taken."""
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
        f"The writer {author.writer!r} is not known.",
        rule="A writer is opened before it is heard.",
        remedy="Open it with writer().",
        writer=author.writer,
    )


def _invalid_request(note: MarkRequest) -> FloodmarkError | None:
    """Return why a mark cannot even be looked up; in one statement with others it would take them along."""
    try:
        check_id("writer", note.author.writer)
        check_id("key", note.key)
        check_int64(note.author.instance, "instance")
    except FloodmarkError as refusal:
        return refusal
    return None


def check_instance(row: Row[Any], author: Author) -> None:
    """Refuse an author that is not the newest instance of its writer."""
    if row.instance != author.instance:
        raise WriterSuperseded(
            f"Instance {author.instance} of the writer {author.writer!r} was superseded by instance {row.instance}.",
            rule="A writer id is used by one writer at a time, the one opened last.",
            remedy="Stop this one; to go on here, open the writer again.",
            writer=author.writer,
            instance=author.instance,
            newest=row.instance,
        )
