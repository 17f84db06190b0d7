"""Marks settled together: few statements for many, each with an outcome of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select, tuple_, update

from floodmark._util.ints import check_int64
from floodmark._util.names import check_id
from floodmark._util.retry import LostRace
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import FloodmarkError, UnknownWriter
from floodmark.streams._catalog import Catalog, StreamInfo, marks_topic, stream_deleted
from floodmark.streams._log import Author
from floodmark.streams._mark_rows import INSERT_MARK, UPDATE_MARK, changed_mark, new_mark, record_of
from floodmark.streams._positions import Position
from floodmark.streams._schema import KEYS, MARKS, WRITERS
from floodmark.streams._table_log import check_instance
from floodmark.streams._writers import MarkOutcome, WriterRecord, WriterState

Settled = MarkOutcome | FloodmarkError
"""What became of a mark: an outcome, or why it was none."""

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

Target = tuple[int, str]
Place = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Note:
    """A mark that a writer wants to make in a stream, for a key."""

    stream: StreamInfo
    author: Author
    key: str
    time: int
    position: Position

    @property
    def target(self) -> Target:
        """The stream and key it is for."""
        return self.stream.id, self.key

    @property
    def place(self) -> Place:
        """Where the record of its writer is."""
        return self.stream.id, self.key, self.author.writer


def settle(connection: Connection, catalog: Catalog, notes: Sequence[Note], now: int) -> list[Settled]:
    """Take each mark or say why not, in their order, as part of a transaction. None touches what becomes of another.

    From here to the end of the transaction nobody else changes what is known of the writers of these streams and keys.
    """
    results: list[Settled | None] = [_refusal(note) for note in notes]
    sound = [note for note, refusal in zip(notes, results, strict=True) if refusal is None]
    if sound:
        batch = _Batch(connection, catalog, sound, now)
        for place, note in enumerate(notes):
            if results[place] is None:
                results[place] = batch.take(note)
        batch.store()
    return [result for result in results if result is not None]


class _Batch:
    """What is known of the writers of a batch of marks, and what the marks make of it."""

    def __init__(self, connection: Connection, catalog: Catalog, notes: Sequence[Note], now: int) -> None:
        self._connection = connection
        self._now = now
        # The keys are locked before anything else is read: what is read then stays true to the end.
        targets = sorted({note.target for note in notes})
        found = connection.execute(_KEYS, {"targets": targets})
        self._watermarks: dict[Target, int | None] = {(row.stream_id, row.time_key): row.last_lower for row in found}
        self._streams = catalog.infos(connection, {note.stream.id for note in notes})
        writers = sorted({(note.stream.id, note.author.writer) for note in notes})
        self._writers: dict[tuple[int, str], Any] = {
            (row.stream_id, row.writer): row for row in connection.execute(_WRITERS, {"writers": writers})
        }
        records = sorted({note.place for note in notes})
        self._marks: dict[Place, Row[Any]] = {
            (row.stream_id, row.time_key, row.writer): row for row in connection.execute(_MARKS, {"records": records})
        }
        self._records: dict[Place, WriterRecord] = {}
        self._touched: dict[Target, list[int]] = {}

    def take(self, note: Note) -> Settled:
        try:
            return self._take(note)
        except FloodmarkError as refusal:
            return refusal

    def _take(self, note: Note) -> MarkOutcome:
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

    def _record(self, note: Note) -> WriterRecord:
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
                inserts.append(new_mark(stream, key, record))
            else:
                updates.append(changed_mark(stream, key, mark.version, record))
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
            announce_change(self._connection, marks_topic(bucket))


def unknown_writer(author: Author) -> UnknownWriter:
    """Return the error for a writer that was never opened."""
    return UnknownWriter(
        f"The writer {author.writer!r} is not known.",
        rule="A writer is opened before it is heard.",
        remedy="Open it with writer().",
        writer=author.writer,
    )


def _refusal(note: Note) -> FloodmarkError | None:
    """Return why a mark cannot even be looked up; in one statement with others it would take them along."""
    try:
        check_id("writer", note.author.writer)
        check_id("key", note.key)
        check_int64(note.author.instance, "instance")
    except FloodmarkError as refusal:
        return refusal
    return None
