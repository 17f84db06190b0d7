"""The marks log of a stream and key with its index by time, and the rows of writers' marks."""

from typing import Any, Final

from sqlalchemy import CompoundSelect, Row, Select, bindparam, func, insert, select, union_all, update

from floodmark._util.codec import from_json, to_json
from floodmark.control import Home
from floodmark.streams.layout.positions import load_position, save_position
from floodmark.streams.local.tables import ENTRIES, MARKS
from floodmark.streams.marks.log import EntryKind, MarkEntry, unknown_entry
from floodmark.streams.marks.writer_record import WriterRecord, WriterState

_E: Final = ENTRIES.c
_OF_LOG: Final = (_E.stream_id == bindparam("s"), _E.time_key == bindparam("k"))
_WATERMARKS: Final = select(ENTRIES).where(*_OF_LOG, _E.kind == EntryKind.WATERMARK.value).limit(1)
_NEWEST: Final = _WATERMARKS.order_by(_E.lower.desc())
_LOWER_AT_MOST: Final = _NEWEST.where(_E.lower <= bindparam("t"))
# One index lookup for each kind: an entry of another kind states a watermark too, which may be deleted itself.
_FIRST_OF_KINDS: Final = [
    select(ENTRIES)
    .where(*_OF_LOG, _E.kind == kind.value, _E.lower >= bindparam("t"))
    .order_by(_E.lower, _E.seq)
    .limit(1)
    .subquery()
    for kind in EntryKind
]
_LOWER_AT_LEAST: Final = union_all(*map(select, _FIRST_OF_KINDS)).order_by("lower", "seq").limit(1)
_UPPER_AT_MOST: Final = _WATERMARKS.where(_E.upper <= bindparam("t")).order_by(_E.upper.desc(), _E.seq.desc())
# Two subqueries, each one index lookup; min and max in one query would make SQLite scan the index.
_ENDS: Final = select(
    select(func.min(_E.seq)).where(*_OF_LOG).scalar_subquery().label("first"),
    select(func.max(_E.seq)).where(*_OF_LOG).scalar_subquery().label("last"),
)
_ENTRY_FROM: Final = select(ENTRIES).where(*_OF_LOG, _E.seq >= bindparam("n")).order_by(_E.seq).limit(1)
_PAGE: Final = select(ENTRIES).where(*_OF_LOG, _E.seq > bindparam("after")).order_by(_E.seq).limit(bindparam("most"))


class MarksTable:
    """The marks log of one stream and key, with indexed lookups by time."""

    __slots__ = ("_home", "_log")

    def __init__(self, home: Home, stream: int, key: str) -> None:
        """Read the log of this stream and key."""
        self._home = home
        self._log = {"s": stream, "k": key}

    def newest(self) -> MarkEntry | None:
        """Return the newest watermark."""
        return self._find(_NEWEST)

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the newest watermark whose `lower` is not above `time`."""
        return self._find(_LOWER_AT_MOST, t=time)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the oldest entry of any kind whose `lower` is not below `time`."""
        return self._find(_LOWER_AT_LEAST, t=time)

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the newest watermark whose `upper` is not above `time`."""
        return self._find(_UPPER_AT_MOST, t=time)

    def numbers(self) -> range:
        """Return the numbers of the stored entries."""
        with self._home.read() as connection:
            first, last = connection.execute(_ENDS, self._log).one()
        return range(0) if first is None else range(first, last + 1)

    def entry(self, number: int) -> MarkEntry:
        """Return the entry with a number, or raise `UnknownName`."""
        entry = self.entry_from(number)
        if entry.seq != number:
            raise unknown_entry(number)
        return entry

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first stored entry from a number on, or raise `UnknownName`."""
        entry = self._find(_ENTRY_FROM, n=number)
        if entry is None:
            raise unknown_entry(number)
        return entry

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return up to `most` entries after the number `after`, in order."""
        with self._home.read() as connection:
            return [entry_of(row) for row in connection.execute(_PAGE, {**self._log, "after": after, "most": most})]

    def _find(self, query: "Select[Any] | CompoundSelect[Any]", **values: int) -> MarkEntry | None:
        with self._home.read() as connection:
            row = connection.execute(query, {**self._log, **values}).one_or_none()
        return None if row is None else entry_of(row)


_STATES: Final = {state.value: state for state in WriterState}
_KINDS: Final = {kind.value: kind for kind in EntryKind}
_SAME_VERSION: Final = (
    MARKS.c.stream_id == bindparam("s"),
    MARKS.c.time_key == bindparam("k"),
    MARKS.c.writer == bindparam("w"),
    MARKS.c.version == bindparam("v"),
)

UPDATE_MARK: Final = (
    update(MARKS)
    .where(*_SAME_VERSION)
    .values(
        state=bindparam("state"),
        heard_at=bindparam("heard_at"),
        time=bindparam("time"),
        position=bindparam("position"),
        marked_since=bindparam("marked_since"),
        ahead_since=bindparam("ahead_since"),
        set_aside=bindparam("set_aside"),
        version=bindparam("next_version"),
    )
)
"""Updates a record if its version has not changed since it was read."""
INSERT_MARK: Final = insert(MARKS)
INSERT_ENTRY: Final = insert(ENTRIES)


def record_of(row: Row[Any], instance: int = 1) -> WriterRecord:
    """Load the record of a writer. Its instance comes from the table of writers."""
    return WriterRecord(
        writer=row.writer,
        instance=instance,
        state=_STATES[row.state],
        heard_at=row.heard_at,
        time=row.time,
        position={} if row.position == "{}" else load_position(from_json(row.position)),
        marked_since=row.marked_since,
        ahead_since=row.ahead_since,
        set_aside=bool(row.set_aside),
    )


def mark_values(record: WriterRecord) -> dict[str, Any]:
    """Return the column values of a record."""
    return {
        "state": record.state.value,
        "heard_at": record.heard_at,
        "time": record.time,
        "position": to_json(save_position(record.position), "position"),
        "marked_since": record.marked_since,
        "ahead_since": record.ahead_since,
        "set_aside": int(record.set_aside),
    }


def updated_mark_values(stream: int, key: str, version: int, record: WriterRecord) -> dict[str, Any]:
    """Return the parameters of `UPDATE_MARK`."""
    condition = {"s": stream, "k": key, "w": record.writer, "v": version}
    return {**condition, "next_version": version + 1, **mark_values(record)}


def new_mark_values(stream: int, key: str, record: WriterRecord) -> dict[str, Any]:
    """Return the row of a new record."""
    return {"stream_id": stream, "time_key": key, "writer": record.writer, "version": 1, **mark_values(record)}


def entry_of(row: Row[Any]) -> MarkEntry:
    """Load an entry of the marks log."""
    return MarkEntry(
        seq=row.seq,
        kind=_KINDS[row.kind],
        lower=row.lower,
        upper=row.upper,
        writers=tuple(from_json(row.writers)),
        cut=load_position(from_json(row.cut)),
        at=row.at,
    )


def entry_values(stream: int, key: str, entry: MarkEntry) -> dict[str, Any]:
    """Return the row of an entry."""
    return {
        "stream_id": stream,
        "time_key": key,
        "seq": entry.seq,
        "kind": entry.kind.value,
        "lower": entry.lower,
        "upper": entry.upper,
        "writers": to_json(list(entry.writers), "writers"),
        "cut": to_json(save_position(entry.cut), "cut"),
        "at": entry.at,
    }
