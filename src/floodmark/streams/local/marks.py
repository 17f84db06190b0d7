"""Rows of writers' marks and of the marks log, and the marks log with its index by time."""

from typing import Any, Final

from sqlalchemy import Row, Select, bindparam, func, insert, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.control import Home
from floodmark.errors import UnknownName
from floodmark.streams.layout.positions import load_position, save_position
from floodmark.streams.local.tables import ENTRIES, MARKS
from floodmark.streams.marks.log import EntryKind, MarkEntry
from floodmark.streams.marks.writer_record import WriterRecord, WriterState

_E: Final = ENTRIES.c
_OF_LOG: Final = (_E.stream_id == bindparam("s"), _E.time_key == bindparam("k"))
_WATERMARKS: Final = select(ENTRIES).where(*_OF_LOG, _E.kind == EntryKind.WATERMARK.value).limit(1)
_NEWEST: Final = _WATERMARKS.order_by(_E.lower.desc())
_LOWER_AT_MOST: Final = _NEWEST.where(_E.lower <= bindparam("t"))
_LOWER_AT_LEAST: Final = _WATERMARKS.where(_E.lower >= bindparam("t")).order_by(_E.lower)
_UPPER_AT_MOST: Final = _WATERMARKS.where(_E.upper <= bindparam("t")).order_by(_E.upper.desc(), _E.seq.desc())
# Two looks at the ends of the index; asked for together, SQLite would read all of it.
_ENDS: Final = select(
    select(func.min(_E.seq)).where(*_OF_LOG).scalar_subquery().label("first"),
    select(func.max(_E.seq)).where(*_OF_LOG).scalar_subquery().label("last"),
)
_ENTRY: Final = select(ENTRIES).where(*_OF_LOG, _E.seq == bindparam("n"))
_PAGE: Final = select(ENTRIES).where(*_OF_LOG, _E.seq > bindparam("after")).order_by(_E.seq).limit(bindparam("most"))


class MarksTable:
    """The entries of one stream and key; it finds what `cut_at` and its like ask for by an index."""

    __slots__ = ("_here", "_home")

    def __init__(self, home: Home, stream: int, key: str) -> None:
        """Read those of this stream and key."""
        self._home = home
        self._here = {"s": stream, "k": key}

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""
        return self._one(_NEWEST)

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `lower` is not above `time`."""
        return self._one(_LOWER_AT_MOST, t=time)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first watermark whose `lower` is not below `time`."""
        return self._one(_LOWER_AT_LEAST, t=time)

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `upper` is not above `time`."""
        return self._one(_UPPER_AT_MOST, t=time)

    def numbers(self) -> range:
        """Return the numbers of all entries that are kept."""
        with self._home.read() as connection:
            first, last = connection.execute(_ENDS, self._here).one()
        return range(0) if first is None else range(first, last + 1)

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""
        found = self._one(_ENTRY, n=number)
        if found is None:
            raise UnknownName(
                f"The marks log has no entry {number}.",
                rule="Entries are kept as long as the stream's marks_retention says, the newest for ever.",
                remedy="Look at the entries that are kept.",
                number=number,
            )
        return found

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return entries in their order, from behind a number on."""
        with self._home.read() as connection:
            return [entry_of(row) for row in connection.execute(_PAGE, {**self._here, "after": after, "most": most})]

    def _one(self, wanted: Select[Any], **values: int) -> MarkEntry | None:
        with self._home.read() as connection:
            row = connection.execute(wanted, {**self._here, **values}).one_or_none()
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
"""Changes a record that is still the one that was read."""
INSERT_MARK: Final = insert(MARKS)
INSERT_ENTRY: Final = insert(ENTRIES)


def record_of(row: Row[Any], instance: int = 1) -> WriterRecord:
    """Return what a row says of a writer. Its instance is kept elsewhere, since it outlives the row."""
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
    """Return the values of a row that says this of a writer."""
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
    here = {"s": stream, "k": key, "w": record.writer, "v": version, "next_version": version + 1}
    return {**here, **mark_values(record)}


def new_mark_values(stream: int, key: str, record: WriterRecord) -> dict[str, Any]:
    """Return the row of a new record."""
    return {"stream_id": stream, "time_key": key, "writer": record.writer, "version": 1, **mark_values(record)}


def entry_of(row: Row[Any]) -> MarkEntry:
    """Return a row of the marks log as the entry that it is."""
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
