"""The embedded log: batches of events as rows of the home's tables. Each operation is one transaction."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from floodmark._util.retry import retry_on_conflict
from floodmark.control import Home
from floodmark.errors import Conflict, UnknownWriter
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events, schema_of, stored_schema, widen_batch
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.mark_batch import check_instance
from floodmark.streams.local.stored_batch import pack_batch, unpack_batch
from floodmark.streams.local.tables import BATCHES, SEGMENTS, WRITERS
from floodmark.streams.local.transactions import (
    claim_event_numbers,
    delete_staged_parts,
    find_open_transaction,
    mark_committed,
    read_staged,
    stage_part,
)
from floodmark.streams.ports import Author, Chunk, OpenedWriter

_PAGE_ROWS: Final = 128
_PAGE_BYTES: Final = 16 * 2**20

ADVANCE_NEXT_NUMBER: Final = (
    update(WRITERS)
    .where(
        WRITERS.c.stream_id == bindparam("s"),
        WRITERS.c.writer == bindparam("w"),
        WRITERS.c.instance == bindparam("i"),
        WRITERS.c.next_number == bindparam("first"),
    )
    .values(next_number=bindparam("after"), touched_at=bindparam("now"))
)
"""Advances a writer's event number, if the events are the next ones of its newest instance."""
_OF_SEGMENT: Final = (BATCHES.c.stream_id == bindparam("s"), BATCHES.c.segment == bindparam("g"))
# The first batch of a range may begin before the range.
_BEGIN: Final = (
    select(func.coalesce(func.max(BATCHES.c.first_offset), bindparam("start")))
    .where(*_OF_SEGMENT, BATCHES.c.first_offset <= bindparam("start"))
    .scalar_subquery()
)
_PAGE: Final = (
    select(BATCHES.c.first_offset, BATCHES.c.events, BATCHES.c.body, BATCHES.c.columns, BATCHES.c.checksum)
    .where(*_OF_SEGMENT, BATCHES.c.first_offset >= _BEGIN, BATCHES.c.first_offset < bindparam("end"))
    .where(BATCHES.c.first_offset + BATCHES.c.events > bindparam("start"))
    .order_by(BATCHES.c.first_offset)
    .limit(_PAGE_ROWS)
)


class _OutOfSequence(Exception):
    """The events are not the next ones of the newest instance of their writer; nothing was stored."""


class TableLog:
    """Stores the events of streams in the tables of a home.

    A flush over several segments is one transaction.
    """

    __slots__ = ("_catalog", "_home")

    def __init__(self, home: Home, catalog: Catalog) -> None:
        """Store events in this home."""
        self._home = home
        self._catalog = catalog

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Append events, each once, and return the new ends of their segments."""
        after = first_number + len(events)

        def write(connection: Connection, current: StreamInfo) -> dict[int, int]:
            sent = {"s": current.id, "w": author.writer, "i": author.instance, "first": first_number}
            now = self._home.now(connection)
            if connection.execute(ADVANCE_NEXT_NUMBER, {**sent, "after": after, "now": now}).rowcount != 1:
                raise _OutOfSequence
            return append_rows(connection, current, author.writer, first_number, events, now)

        try:
            return self._write_routed(stream, write)
        except _OutOfSequence:
            self.check_is_repeat(stream, author, first_number, after)
            return self.ends_for(stream, events, self.ends)

    def writer_opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Return the writer unchanged: the store knows all of its events."""
        return opened

    def writer_closed(self, stream: StreamInfo, author: Author) -> None:
        """Do nothing."""

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included."""
        query = select(SEGMENTS.c.segment, SEGMENTS.c.end_offset).where(SEGMENTS.c.stream_id == stream.id)
        with self._home.read() as connection:
            self._catalog.require(connection, stream)
            return {row.segment: row.end_offset for row in connection.execute(query.order_by(SEGMENTS.c.segment))}

    def starts(self, stream: StreamInfo) -> dict[int, int]:
        """Return the start of each segment from which retention has removed events."""
        is_removed = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.start_offset > 0)
        query = select(SEGMENTS.c.segment, SEGMENTS.c.start_offset).where(*is_removed).order_by(SEGMENTS.c.segment)
        with self._home.read() as connection:
            return {row.segment: row.start_offset for row in connection.execute(query)}

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment in a range of offsets."""
        return join_small_chunks(self._chunks(stream, segment, start, end))

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors."""
        return self._catalog.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream."""
        return self._catalog.seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Stage events until their transaction is committed. Idempotent for each part."""

        def stage() -> None:
            with self._home.write() as connection:
                self._catalog.require(connection, stream)
                find_open_transaction(connection, stream, transaction, self._home.now(connection))
                stage_part(connection, stream, transaction, part, events)

        retry_on_conflict(stage)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Append all events of a transaction, or none; return the new ends of their segments."""

        def write(connection: Connection, current: StreamInfo) -> dict[int, int]:
            # A cached definition may lack columns of the staged events.
            staged = read_staged(connection, self._catalog.require(connection, stream), transaction)
            if staged.position is not None:
                return dict(staged.position)
            ends: dict[int, int] = {}
            if staged.events is not None:
                first_number = claim_event_numbers(connection, stream, staged.writer, len(staged.events))
                now = self._home.now(connection)
                ends = append_rows(connection, current, staged.writer, first_number, staged.events, now)
            mark_committed(connection, self._catalog, stream, transaction, staged.writer, ends)
            return ends

        return self._write_routed(stream, write)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Delete the staged events of a transaction."""
        with self._home.write() as connection:
            delete_staged_parts(connection, stream, transaction)

    def _write_routed(
        self, stream: StreamInfo, write: Callable[[Connection, StreamInfo], dict[int, int]]
    ) -> dict[int, int]:
        """Write with the cached layout; if it is outdated, retry with the current one."""
        current = self._catalog.newest_known(stream)

        def transaction() -> dict[int, int]:
            with self._home.write() as connection:
                return write(connection, current)

        while True:
            try:
                return retry_on_conflict(transaction)
            except SegmentGone:
                current = self._catalog.refresh(stream)
                check_not_sealed(current)

    def check_is_repeat(self, stream: StreamInfo, author: Author, first_number: int, after: int) -> None:
        """Raise `Conflict` unless these events were stored before."""
        if self.is_next(stream, author, after):
            return
        raise _out_of_sequence(author, first_number, after, self._require_writer(stream, author).next_number)

    def is_next(self, stream: StreamInfo, author: Author, number: int) -> bool:
        """Return whether `number` is the next event number of the writer; `author` must be its newest instance."""
        return bool(self._require_writer(stream, author).next_number == number)

    def _require_writer(self, stream: StreamInfo, author: Author) -> Row[Any]:
        """Return the row of a writer; `author` must be its newest instance."""
        with self._home.read() as connection:
            self._catalog.require(connection, stream)
            row = connection.execute(
                select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
            ).one_or_none()
        if row is None:
            raise UnknownWriter(
                f"There is no writer {author.writer!r}.",
                rule="A writer must be opened before it writes; an anonymous one is deleted after a day without "
                "events.",
                remedy="Open it again with writer().",
                writer=author.writer,
            )
        check_instance(row, author)
        return row

    def ends_for(
        self, stream: StreamInfo, events: Events, ends_of: Callable[[StreamInfo], dict[int, int]]
    ) -> dict[int, int]:
        """Return segment ends that lie behind events which were stored before."""
        current = self._catalog.refresh(stream)
        ends = ends_of(current)
        return {segment: ends[segment] for segment, _ in events.split(current.layout)}

    def _chunks(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        while start < end:
            # One transaction for each page, so that a slow reader does not keep one open.
            rows = self._page(stream, segment, start, end)
            if not rows:
                return
            for row in rows:
                if row.columns is not None and row.columns > len(schema_of(stream)):
                    stream = self._catalog.refresh(stream)
                chunk = load_chunk(row, stream, segment)
                yield chunk if chunk.first >= start and chunk.end <= end else chunk.slice(start, end)
            start = rows[-1].first_offset + rows[-1].events

    def _page(self, stream: StreamInfo, segment: int, start: int, end: int) -> list[Any]:
        page: list[Any] = []
        size = 0
        with self._home.read() as connection:
            for row in connection.execute(_PAGE, {"s": stream.id, "g": segment, "start": start, "end": end}):
                page.append(row)
                size += len(row.body)
                if size >= _PAGE_BYTES:
                    break
            if not page:
                self._catalog.require(connection, stream)
        return page


def _out_of_sequence(author: Author, first_number: int, after: int, number: int) -> Conflict:
    return Conflict(
        f"The writer {author.writer!r} sent its events {first_number} to {after - 1}, but its next event is {number}.",
        rule="A writer numbers its events without gaps.",
        remedy="Use each writer from one thread only, and open this one again.",
        writer=author.writer,
        first=first_number,
        next=number,
    )


_MOST_ROWS: Final = 65_536
_MOST_BYTES: Final = 16 * 2**20
# Smaller batches are joined with their neighbours when they are read.
_SMALL: Final = 16_384

_EXTEND: Final = (
    update(SEGMENTS)
    .where(SEGMENTS.c.stream_id == bindparam("s"), SEGMENTS.c.segment == bindparam("g"), SEGMENTS.c.sealed == 0)
    .values(end_offset=SEGMENTS.c.end_offset + bindparam("n"), bytes=SEGMENTS.c.bytes + bindparam("b"))
    .returning(SEGMENTS.c.end_offset)
)


class SegmentGone(Exception):
    """A segment to write to is sealed, or its stream deleted; the transaction must be rolled back."""


def append_rows(
    connection: Connection, stream: StreamInfo, writer: str, first_number: int, events: Events, now: int
) -> dict[int, int]:
    """Append events to their segments and return the new ends; `now` is their time of arrival."""
    ends: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    number = first_number
    # Lock segments in id order to avoid deadlocks.
    for segment, batch in events.split(stream.layout):
        pieces = [(piece, *pack_batch(piece)) for piece in _split_large(batch)]
        size = sum(len(body) for _, body, _ in pieces)
        extension = {"s": stream.id, "g": segment, "n": batch.num_rows, "b": size}
        end = connection.execute(_EXTEND, extension).scalar_one_or_none()
        if end is None:
            raise SegmentGone
        ends[segment] = end
        offset = end - batch.num_rows
        for piece, body, checksum in pieces:
            rows.append(
                {
                    "stream_id": stream.id,
                    "segment": segment,
                    "first_offset": offset,
                    "events": piece.num_rows,
                    "writer": writer,
                    "first_number": number,
                    "body": body,
                    "checksum": checksum,
                    "columns": piece.num_columns,
                    "at": now,
                }
            )
            offset += piece.num_rows
            number += piece.num_rows
    connection.execute(insert(BATCHES), rows)
    return ends


def load_chunk(row: Row[Any], stream: StreamInfo, segment: int) -> Chunk:
    """Return the events of a row of the log, with the columns of the stream."""
    place = {"stream": stream.name, "segment": segment, "offset": row.first_offset}
    batch = unpack_batch(row.body, row.events, stored_schema(stream, row.columns), row.checksum, place)
    return Chunk(segment, row.first_offset, widen_batch(batch, schema_of(stream)))


def join_small_chunks(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Join small adjacent chunks, because the cost of reading grows with the number of batches."""
    pending: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        fits = pending and pending[-1].end == chunk.first and rows + chunk.batch.num_rows <= _MOST_ROWS
        fits = fits and pending[-1].batch.num_columns == chunk.batch.num_columns
        if pending and not (fits and chunk.batch.num_rows < _SMALL):
            yield _concatenated(pending)
            pending, rows = [], 0
        if chunk.batch.num_rows >= _SMALL:
            yield chunk
        else:
            pending.append(chunk)
            rows += chunk.batch.num_rows
    if pending:
        yield _concatenated(pending)


def _concatenated(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(chunks[0].segment, chunks[0].first, pa.concat_batches([chunk.batch for chunk in chunks]))


def _split_large(batch: Any) -> Iterator[Any]:
    row_bytes = batch.nbytes // max(batch.num_rows, 1)
    most = max(1, min(_MOST_ROWS, _MOST_BYTES // max(row_bytes, 1)))
    if batch.num_rows <= most:
        yield batch
        return
    for start in range(0, batch.num_rows, most):
        yield batch.slice(start, most)
