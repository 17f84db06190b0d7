"""Marks of writers, many at once: the records they change are locked, loaded, changed and stored in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select, tuple_, update

from floodmark._util.ints import check_int64
from floodmark._util.names import check_id
from floodmark._util.retry import LostRace
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import FloodmarkError, UnknownWriter, WriterSuperseded
from floodmark.streams.definition import StreamInfo
from floodmark.streams.layout.positions import Position
from floodmark.streams.local.catalog import Catalog, marks_counter, stream_deleted
from floodmark.streams.local.marks import INSERT_MARK, UPDATE_MARK, new_mark_values, record_of, updated_mark_values
from floodmark.streams.local.tables import KEYS, MARKS, WRITERS
from floodmark.streams.marks.writer_record import MarkOutcome, WriterRecord, WriterState
from floodmark.streams.ports import Author, MarkRequest, OutcomeOrError, RecordKey, StreamKey

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


def outcome_of(result: OutcomeOrError) -> MarkOutcome:
    """Return the outcome of a mark, or raise its error."""
    if isinstance(result, FloodmarkError):
        raise result
    return result


def note_for_writer(
    connection: Connection,
    catalog: Catalog,
    stream: StreamInfo,
    writer: str,
    times: Mapping[str, int],
    position: Position,
    now: int,
) -> dict[str, MarkOutcome]:
    """Note marks for the newest instance of a writer, inside a transaction, and return the outcome of each key."""
    is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
    instance = connection.execute(select(WRITERS.c.instance).where(*is_writer)).scalar_one()
    requests = [MarkRequest(stream, Author(writer, instance), key, time, position) for key, time in times.items()]
    results = store_marks(connection, catalog, requests, now)
    return {request.key: outcome_of(result) for request, result in zip(requests, results, strict=True)}


def check_newest(connection: Connection, stream: StreamInfo, author: Author) -> None:
    """Raise an error unless the author is the newest instance of an open writer."""
    query = select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_writer(author)
    check_instance(row, author)


def move_writer(connection: Connection, catalog: Catalog, stream: StreamInfo, writer: str, ends: Position) -> None:
    """Move the records of a writer, for all keys, to the end of events that were just appended for it.

    So the next mark of any key also covers events that were committed without a mark of that key.
    """
    if not ends:
        return
    layout = catalog.require(connection, stream).layout
    # Lock the keys before the records are read, in the same order as a controller.
    is_key = KEYS.c.stream_id == stream.id
    connection.execute(select(KEYS.c.time_key).where(is_key).order_by(KEYS.c.time_key).with_for_update())
    is_mark = (MARKS.c.stream_id == stream.id, MARKS.c.writer == writer)
    moved = [
        updated_mark_values(stream.id, row.time_key, row.version, record_of(row).moved(ends, layout=layout))
        for row in connection.execute(select(MARKS).where(*is_mark)).all()
    ]
    if moved:
        connection.execute(UPDATE_MARK, moved)


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
