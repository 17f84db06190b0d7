"""The embedded log: batches of events as rows of the home's own tables. Each operation is one transaction."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from floodmark._util.retry import retry_on_conflict
from floodmark.control import Home
from floodmark.errors import Conflict, UnknownWriter
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events, schema_of
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.registry import check_instance
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
"""Lets events of a writer count, if they are the next ones of its newest instance."""
_OF_SEGMENT: Final = (BATCHES.c.stream_id == bindparam("s"), BATCHES.c.segment == bindparam("g"))
# The batch that a range begins in begins before it.
_BEGIN: Final = (
    select(func.coalesce(func.max(BATCHES.c.first_offset), bindparam("start")))
    .where(*_OF_SEGMENT, BATCHES.c.first_offset <= bindparam("start"))
    .scalar_subquery()
)
_PAGE: Final = (
    select(BATCHES.c.first_offset, BATCHES.c.events, BATCHES.c.body)
    .where(*_OF_SEGMENT, BATCHES.c.first_offset >= _BEGIN, BATCHES.c.first_offset < bindparam("end"))
    .where(BATCHES.c.first_offset + BATCHES.c.events > bindparam("start"))
    .order_by(BATCHES.c.first_offset)
    .limit(_PAGE_ROWS)
)


class _NotNext(Exception):
    """The events are not the next ones of the newest instance of their writer; nothing was kept."""


class TableLog:
    """Keeps the events of streams in the tables of a home.

    A flush over several segments is one transaction: all of it is kept, or nothing.
    """

    __slots__ = ("_catalog", "_home")

    def __init__(self, home: Home, catalog: Catalog) -> None:
        """Keep them in this home."""
        self._home = home
        self._catalog = catalog

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Keep events, each once, and return how far the segments they went to are filled by them."""
        after = first_number + len(events)

        def write(connection: Connection, current: StreamInfo) -> dict[int, int]:
            sent = {"s": current.id, "w": author.writer, "i": author.instance, "first": first_number}
            now = self._home.now(connection)
            if connection.execute(ADVANCE_NEXT_NUMBER, {**sent, "after": after, "now": now}).rowcount != 1:
                raise _NotNext
            return append_rows(connection, current, author.writer, first_number, events)

        try:
            return self._routed(stream, write)
        except _NotNext:
            self.check_is_repeat(stream, author, first_number, after)
            return self.ends_for(stream, events, self.ends)

    def opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Return a writer as it was opened: what was written is settled in the same step."""
        return opened

    def closed(self, stream: StreamInfo, author: Author) -> None:
        """Hear that a writer comes to its end, which changes nothing."""

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included."""
        wanted = select(SEGMENTS.c.segment, SEGMENTS.c.end_offset).where(SEGMENTS.c.stream_id == stream.id)
        with self._home.read() as connection:
            self._catalog.require(connection, stream)
            return {row.segment: row.end_offset for row in connection.execute(wanted.order_by(SEGMENTS.c.segment))}

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from one offset to before another, as far as they are there."""
        return join_small_chunks(self._chunks(stream, segment, start, end))

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""
        return self._catalog.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""
        return self._catalog.seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Keep events apart until their transaction is committed. A part that comes twice is kept once."""
        with self._home.write() as connection:
            self._catalog.require(connection, stream)
            find_open_transaction(connection, stream, transaction, self._home.now(connection))
            stage_part(connection, stream, transaction, part, events)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Put all events of a transaction into the stream, or none; return how far they fill the segments."""

        def write(connection: Connection, current: StreamInfo) -> dict[int, int]:
            kept = read_staged(connection, stream, transaction)
            if kept.position is not None:
                return dict(kept.position)
            ends: dict[int, int] = {}
            if kept.events is not None:
                first_number = claim_event_numbers(connection, stream, kept.writer, len(kept.events))
                ends = append_rows(connection, current, kept.writer, first_number, kept.events)
            mark_committed(connection, stream, transaction, ends)
            return ends

        return self._routed(stream, write)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Forget the events of a transaction."""
        with self._home.write() as connection:
            delete_staged_parts(connection, stream, transaction)

    def _routed(self, stream: StreamInfo, write: Callable[[Connection, StreamInfo], dict[int, int]]) -> dict[int, int]:
        """Write by the layout that is known; if it turns out to be an old one, by the one that holds."""
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
        """Refuse events that are not there already."""
        if self.is_next(stream, author, after):
            return
        raise _not_next(author, first_number, after, self._writer(stream, author).next_number)

    def is_next(self, stream: StreamInfo, author: Author, number: int) -> bool:
        """Return whether an event of the newest instance of its writer is the next one."""
        return bool(self._writer(stream, author).next_number == number)

    def _writer(self, stream: StreamInfo, author: Author) -> Row[Any]:
        """Return what is known of a writer, of which this must be the newest instance."""
        with self._home.read() as connection:
            self._catalog.require(connection, stream)
            row = connection.execute(
                select(WRITERS).where(WRITERS.c.stream_id == stream.id, WRITERS.c.writer == author.writer)
            ).one_or_none()
        if row is None:
            raise UnknownWriter(
                f"The writer {author.writer!r} is not known.",
                rule="A writer is opened before it writes; one without an id is forgotten after a day of silence.",
                remedy="Open it again.",
                writer=author.writer,
            )
        check_instance(row, author)
        return row

    def ends_for(
        self, stream: StreamInfo, events: Events, ends_of: Callable[[StreamInfo], dict[int, int]]
    ) -> dict[int, int]:
        """Return ends that surely lie behind events that were kept before, wherever that was."""
        current = self._catalog.refresh(stream)
        ends = ends_of(current)
        return {segment: ends[segment] for segment, _ in events.split(current.layout)}

    def _chunks(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        schema = schema_of(stream)
        while start < end:
            # A page each, so that no transaction lasts as long as its reader thinks.
            rows = self._page(stream, segment, start, end)
            if not rows:
                return
            for row in rows:
                chunk = load_chunk(row, segment, schema)
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


def _not_next(author: Author, first_number: int, after: int, number: int) -> Conflict:
    return Conflict(
        f"The writer {author.writer!r} sent its events {first_number} to {after - 1}, and {number} is the next one.",
        rule="A writer numbers its events without gaps.",
        remedy="Use a writer from one thread, or open it again.",
        writer=author.writer,
        first=first_number,
        next=number,
    )


_MOST_ROWS: Final = 65_536
_MOST_BYTES: Final = 16 * 2**20
# What is smaller is joined with its neighbours when it is read.
_SMALL: Final = 16_384

_EXTEND: Final = (
    update(SEGMENTS)
    .where(SEGMENTS.c.stream_id == bindparam("s"), SEGMENTS.c.segment == bindparam("g"), SEGMENTS.c.sealed == 0)
    .values(end_offset=SEGMENTS.c.end_offset + bindparam("n"))
    .returning(SEGMENTS.c.end_offset)
)


class SegmentGone(Exception):
    """A segment that was to be written is sealed, or gone with its stream; the transaction must end without trace."""


def append_rows(
    connection: Connection, stream: StreamInfo, writer: str, first_number: int, events: Events
) -> dict[int, int]:
    """Put events behind the ends of their segments, and return the new ends."""
    ends: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    number = first_number
    # In the order of their ids, as all do that lock segments: so nobody waits in a circle.
    for segment, batch in events.split(stream.layout):
        here = {"s": stream.id, "g": segment, "n": batch.num_rows}
        end = connection.execute(_EXTEND, here).scalar_one_or_none()
        if end is None:
            raise SegmentGone
        ends[segment] = end
        offset = end - batch.num_rows
        for piece in _pieces(batch):
            rows.append(
                {
                    "stream_id": stream.id,
                    "segment": segment,
                    "first_offset": offset,
                    "events": piece.num_rows,
                    "writer": writer,
                    "first_number": number,
                    "body": memoryview(piece.serialize()),
                }
            )
            offset += piece.num_rows
            number += piece.num_rows
    connection.execute(insert(BATCHES), rows)
    return ends


def load_chunk(row: Row[Any], segment: int, schema: Any) -> Chunk:
    """Return a row of the log as what it holds."""
    return Chunk(segment, row.first_offset, pa.ipc.read_record_batch(pa.py_buffer(row.body), schema))


def join_small_chunks(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Join small chunks that lie side by side: who reads pays for each batch, not for each row."""
    waiting: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        fits = waiting and waiting[-1].end == chunk.first and rows + chunk.batch.num_rows <= _MOST_ROWS
        if waiting and not (fits and chunk.batch.num_rows < _SMALL):
            yield _concatenated(waiting)
            waiting, rows = [], 0
        if chunk.batch.num_rows >= _SMALL:
            yield chunk
        else:
            waiting.append(chunk)
            rows += chunk.batch.num_rows
    if waiting:
        yield _concatenated(waiting)


def _concatenated(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(chunks[0].segment, chunks[0].first, pa.concat_batches([chunk.batch for chunk in chunks]))


def _pieces(batch: Any) -> Iterator[Any]:
    each = batch.nbytes // max(batch.num_rows, 1)
    most = max(1, min(_MOST_ROWS, _MOST_BYTES // max(each, 1)))
    if batch.num_rows <= most:
        yield batch
        return
    for start in range(0, batch.num_rows, most):
        yield batch.slice(start, most)
