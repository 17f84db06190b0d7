"""Rows of writers' marks and of the marks log, and what they say."""

from typing import Any, Final

from sqlalchemy import Row, bindparam, insert, update

from floodmark._util.codec import from_json, to_json
from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._positions import load_position, save_position
from floodmark.streams._schema import ENTRIES, MARKS
from floodmark.streams._writers import WriterRecord, WriterState

_STATES: Final = {state.value: state for state in WriterState}
_KINDS: Final = {kind.value: kind for kind in EntryKind}
_HERE: Final = (
    MARKS.c.stream_id == bindparam("s"),
    MARKS.c.time_key == bindparam("k"),
    MARKS.c.writer == bindparam("w"),
    MARKS.c.version == bindparam("v"),
)

UPDATE_MARK: Final = (
    update(MARKS)
    .where(*_HERE)
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


def changed_mark(stream: int, key: str, version: int, record: WriterRecord) -> dict[str, Any]:
    """Return the parameters of `UPDATE_MARK`."""
    here = {"s": stream, "k": key, "w": record.writer, "v": version, "next_version": version + 1}
    return {**here, **mark_values(record)}


def new_mark(stream: int, key: str, record: WriterRecord) -> dict[str, Any]:
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
