"""One update of the watermarks of some streams and keys: read the records, decide, store the decisions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, select, tuple_, update

from floodmark.control import Home, Lease, Leases
from floodmark.control.store.change_counters import announce_change
from floodmark.streams.definition import StreamInfo
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.marks import (
    INSERT_ENTRY,
    UPDATE_MARK,
    entry_of,
    entry_values,
    record_of,
    updated_mark_values,
)
from floodmark.streams.local.tables import ENTRIES, KEYS, MARKS, STREAMS
from floodmark.streams.marks.log import EntryKind, MarkEntry
from floodmark.streams.marks.watermark import Decision, Emit, decide_watermark
from floodmark.streams.marks.writer_record import WriterRecord
from floodmark.streams.ports import StreamKey

_BATCH_SIZE: Final = 200
"""Decisions in one transaction; more would block other writers for too long."""

_DELETE_MARK: Final = delete(MARKS).where(
    MARKS.c.stream_id == bindparam("s"),
    MARKS.c.time_key == bindparam("k"),
    MARKS.c.writer == bindparam("w"),
    MARKS.c.version == bindparam("v"),
)
_UPDATE_KEY: Final = (
    update(KEYS)
    .where(KEYS.c.stream_id == bindparam("s"), KEYS.c.time_key == bindparam("k"))
    .values(
        last_seq=bindparam("seq"),
        last_lower=bindparam("lower"),
        writers_version=KEYS.c.writers_version + bindparam("raised"),
    )
)


@dataclass(frozen=True, slots=True)
class WatermarkInputs:
    """The inputs of a decision on one stream and key, as read from the store."""

    stream: StreamInfo
    key: str
    records: list[WriterRecord]
    versions: Mapping[str, int]
    last: MarkEntry | None
    last_seq: int
    writers_version: int
    changed: int

    def decide(self, now: int) -> Decision:
        """Return the decision on the watermark."""
        return decide_watermark(
            self.records,
            self.last,
            self.stream.settings.rules,
            layout=self.stream.layout,
            now=now,
            writers_version=self.writers_version,
        )


@dataclass(frozen=True, slots=True)
class WatermarkUpdate:
    """The result of an update: whether the decision was stored, when to check again, and the change count it saw."""

    target: StreamKey
    decision: Decision
    is_stored: bool
    look_at: int | None
    changed: int


def entries_counter(bucket: int) -> str:
    """Return the counter that rises when a marks log in this bucket grows; see `Home.changes`."""
    return f"entries/{bucket}"


def update_watermarks(
    home: Home, catalog: Catalog, targets: Iterable[StreamKey], leases: Mapping[int, Lease]
) -> list[WatermarkUpdate]:
    """Update the watermark of each target whose bucket is leased; skip the others."""
    ordered = sorted(targets)
    results: list[WatermarkUpdate] = []
    for start in range(0, len(ordered), _BATCH_SIZE):
        all_inputs = read_inputs(home, catalog, ordered[start : start + _BATCH_SIZE])
        now = home.now()
        decided = [(inputs, inputs.decide(now)) for inputs in all_inputs if inputs.stream.bucket in leases]
        stored = store_decisions(home, decided, leases)
        for (inputs, decision), is_stored in zip(decided, stored, strict=True):
            target = (inputs.stream.id, inputs.key)
            look_at: int | None
            if isinstance(decision, Emit):
                # The next watermark may be due after the rate floor; after a lost race, retry at once.
                look_at = now + inputs.stream.settings.rate_floor if is_stored else now
            else:
                look_at = decision.until if is_stored else now
            results.append(WatermarkUpdate(target, decision, is_stored, look_at, inputs.changed))
    return results


def read_inputs(home: Home, catalog: Catalog, targets: list[StreamKey]) -> list[WatermarkInputs]:
    """Read the inputs of each target in one snapshot. Deleted targets are left out."""
    ids = sorted({stream for stream, _ in targets})
    with home.read() as connection:
        # Versions first, layouts last: even without a snapshot, a change in between only makes the decision fail.
        keys = connection.execute(select(KEYS).where(KEYS.c.stream_id.in_(ids))).all()
        marks = connection.execute(select(MARKS).where(MARKS.c.stream_id.in_(ids))).all()
        ends = [(row.stream_id, row.time_key, row.last_seq) for row in keys if row.last_seq]
        at_end = tuple_(ENTRIES.c.stream_id, ENTRIES.c.time_key, ENTRIES.c.seq).in_(ends)
        entries = connection.execute(select(ENTRIES).where(at_end)).all() if ends else []
        streams = connection.execute(select(STREAMS).where(STREAMS.c.stream_id.in_(ids))).all()
    infos = {row.stream_id: catalog.info(row) for row in streams}
    last = {(row.stream_id, row.time_key): entry_of(row) for row in entries}
    by_target: dict[StreamKey, list[Any]] = {}
    for row in marks:
        by_target.setdefault((row.stream_id, row.time_key), []).append(row)
    requested = set(targets)
    return [
        WatermarkInputs(
            stream=infos[row.stream_id],
            key=row.time_key,
            records=[record_of(mark) for mark in by_target.get((row.stream_id, row.time_key), ())],
            versions={mark.writer: mark.version for mark in by_target.get((row.stream_id, row.time_key), ())},
            last=last.get((row.stream_id, row.time_key)),
            last_seq=row.last_seq,
            writers_version=row.writers_version,
            changed=row.changed,
        )
        for row in sorted(keys, key=lambda row: (row.stream_id, row.time_key))
        if (row.stream_id, row.time_key) in requested and row.stream_id in infos
    ]


def store_decisions(
    home: Home, decided: list[tuple[WatermarkInputs, Decision]], leases: Mapping[int, Lease]
) -> list[bool]:
    """Store each decision whose inputs have not changed, in one transaction; return which were stored.

    The lease of each bucket is checked in the same transaction. If one is lost, nothing is stored.
    """
    is_stored = [False] * len(decided)
    to_store = []
    for index, (inputs, decision) in enumerate(decided):
        if isinstance(decision, Emit) or any(True for _ in decision.changes.updates()):
            to_store.append((index, inputs, decision))
        else:
            is_stored[index] = True
    if not to_store:
        return is_stored
    with home.write() as connection:
        for bucket in sorted({inputs.stream.bucket for _, inputs, _ in to_store}):
            Leases.check(connection, leases[bucket])
        current = _lock_keys(connection, [(inputs.stream.id, inputs.key) for _, inputs, _ in to_store])
        entries, keys = [], []
        for index, inputs, decision in to_store:
            target = (inputs.stream.id, inputs.key)
            if current.get(target) != (decision.after, decision.writers_version):
                continue
            changes = _change_records(connection, inputs, decision)
            entry = decision.entry if isinstance(decision, Emit) else inputs.last
            if isinstance(decision, Emit):
                entries.append(entry_values(inputs.stream.id, inputs.key, decision.entry))
                announce_change(connection, entries_counter(inputs.stream.bucket))
            lower = None if entry is None else entry.lower
            seq = 0 if entry is None else entry.seq
            keys.append({"s": target[0], "k": target[1], "seq": seq, "lower": lower, "raised": int(changes)})
            is_stored[index] = True
        if entries:
            connection.execute(INSERT_ENTRY, entries)
        if keys:
            connection.execute(_UPDATE_KEY, keys)
        _drop_old_entries(connection, [(inputs, decision) for index, inputs, decision in to_store if is_stored[index]])
    return is_stored


def _lock_keys(connection: Connection, targets: list[StreamKey]) -> dict[StreamKey, tuple[int, int]]:
    query = select(KEYS).where(tuple_(KEYS.c.stream_id, KEYS.c.time_key).in_(targets))
    rows = connection.execute(query.order_by(KEYS.c.stream_id, KEYS.c.time_key).with_for_update())
    return {(row.stream_id, row.time_key): (row.last_seq, row.writers_version) for row in rows}


def _change_records(connection: Connection, inputs: WatermarkInputs, decision: Decision) -> bool:
    """Change the records that have not changed since they were read; return whether the decision changes any."""
    is_changed = False
    updates, deletes = [], []
    for before, after in decision.changes.updates():
        is_changed = True
        version = inputs.versions[before.writer]
        if after is None:
            deletes.append({"s": inputs.stream.id, "k": inputs.key, "w": before.writer, "v": version})
        else:
            updates.append(updated_mark_values(inputs.stream.id, inputs.key, version, after))
    # The row counts are not needed: a record that has changed meanwhile is decided on again.
    if updates:
        connection.execute(UPDATE_MARK, updates)
    if deletes:
        connection.execute(_DELETE_MARK, deletes)
    return is_changed


def _drop_old_entries(connection: Connection, decided: list[tuple[WatermarkInputs, Decision]]) -> None:
    """Delete entries older than the stream's retention, up to the newest watermark.

    Lookups by time need that watermark, however old it is, and entries are numbered without gaps.
    """
    for inputs, decision in decided:
        retention = inputs.stream.settings.marks_retention
        if retention is None or not isinstance(decision, Emit):
            continue
        is_log = (ENTRIES.c.stream_id == inputs.stream.id, ENTRIES.c.time_key == inputs.key)
        retained = select(ENTRIES.c.seq).where(*is_log, ENTRIES.c.at >= decision.entry.at - retention)
        first = connection.execute(retained.order_by(ENTRIES.c.seq).limit(1)).scalar_one()
        watermarks = select(ENTRIES.c.seq).where(*is_log, ENTRIES.c.kind == EntryKind.WATERMARK.value)
        standing = connection.execute(watermarks.order_by(ENTRIES.c.lower.desc()).limit(1)).scalar_one_or_none()
        kept = first if standing is None else min(first, standing)
        connection.execute(delete(ENTRIES).where(*is_log, ENTRIES.c.seq < kept))
