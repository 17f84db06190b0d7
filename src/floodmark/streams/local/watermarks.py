"""One round over the watermarks of some streams and keys: read the records, decide, and store the decisions."""

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
from floodmark.streams.marks.log import MarkEntry
from floodmark.streams.marks.watermark import Decision, Emit, decide_watermark
from floodmark.streams.marks.writer_record import WriterRecord

StreamKey = tuple[int, str]
"""A stream, by its id, and a key."""

_AT_ONCE: Final = 200
"""How many are decided together: more would keep others from writing for too long."""

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
    """All that a decision on one stream and key is made on, as it was read."""

    stream: StreamInfo
    key: str
    records: list[WriterRecord]
    versions: Mapping[str, int]
    last: MarkEntry | None
    last_seq: int
    writers_version: int
    changed: int

    def decide(self, now: int) -> Decision:
        """Return what to do."""
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
    """What came of a look: whether what was decided holds, when to look again, and what had been heard by then."""

    target: StreamKey
    decision: Decision
    is_stored: bool
    look_at: int | None
    changed: int


def entries_counter(bucket: int) -> str:
    """Return what changes when an entry is appended to a marks log in this bucket: see `Home.changes`."""
    return f"entries/{bucket}"


def update_watermarks(
    home: Home, catalog: Catalog, targets: Iterable[StreamKey], leases: Mapping[int, Lease]
) -> list[WatermarkUpdate]:
    """Look at each target once. Only what is in a bucket that is leased is touched; the rest is left out."""
    wanted = sorted(targets)
    results: list[WatermarkUpdate] = []
    for start in range(0, len(wanted), _AT_ONCE):
        known = read_inputs(home, catalog, wanted[start : start + _AT_ONCE])
        now = home.now()
        decided = [(one, one.decide(now)) for one in known if one.stream.bucket in leases]
        stored = store_decisions(home, decided, leases)
        for (one, decision), is_stored in zip(decided, stored, strict=True):
            target = (one.stream.id, one.key)
            look_at: int | None
            if isinstance(decision, Emit):
                # The next one may be due; until it is, or if this one came too late, look again.
                look_at = now + one.stream.settings.rate_floor if is_stored else now
            else:
                look_at = decision.until if is_stored else now
            results.append(WatermarkUpdate(target, decision, is_stored, look_at, one.changed))
    return results


def read_inputs(home: Home, catalog: Catalog, targets: list[StreamKey]) -> list[WatermarkInputs]:
    """Return what is known of each target, as of one moment. Those that are gone are left out."""
    ids = sorted({stream for stream, _ in targets})
    with home.read() as connection:
        # Should the store not give one moment: the versions come first, and the layouts last. What comes in between
        # then makes the decision fail, or is seen early, which does no harm.
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
    wanted = set(targets)
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
        if (row.stream_id, row.time_key) in wanted and row.stream_id in infos
    ]


def store_decisions(
    home: Home, decided: list[tuple[WatermarkInputs, Decision]], leases: Mapping[int, Lease]
) -> list[bool]:
    """Store decisions in one transaction, each if what it was made on still stands; return which do.

    The lease of each bucket is checked in the same transaction. If one is lost, nothing is stored.
    """
    done = [False] * len(decided)
    to_store = []
    for place, (known, decision) in enumerate(decided):
        if isinstance(decision, Emit) or any(True for _ in decision.changes.updates()):
            to_store.append((place, known, decision))
        else:
            done[place] = True
    if not to_store:
        return done
    with home.write() as connection:
        for bucket in sorted({known.stream.bucket for _, known, _ in to_store}):
            Leases.check(connection, leases[bucket])
        now_there = _lock_keys(connection, [(known.stream.id, known.key) for _, known, _ in to_store])
        entries, keys = [], []
        for place, known, decision in to_store:
            target = (known.stream.id, known.key)
            if now_there.get(target) != (decision.after, decision.writers_version) or decision.after != known.last_seq:
                continue
            changes = _change_records(connection, known, decision)
            entry = decision.entry if isinstance(decision, Emit) else known.last
            if isinstance(decision, Emit):
                entries.append(entry_values(known.stream.id, known.key, decision.entry))
                announce_change(connection, entries_counter(known.stream.bucket))
            lower = None if entry is None else entry.lower
            seq = 0 if entry is None else entry.seq
            keys.append({"s": target[0], "k": target[1], "seq": seq, "lower": lower, "raised": int(changes)})
            done[place] = True
        if entries:
            connection.execute(INSERT_ENTRY, entries)
        if keys:
            connection.execute(_UPDATE_KEY, keys)
        _drop_old_entries(connection, [(known, decision) for place, known, decision in to_store if done[place]])
    return done


def _lock_keys(connection: Connection, targets: list[StreamKey]) -> dict[StreamKey, tuple[int, int]]:
    wanted = select(KEYS).where(tuple_(KEYS.c.stream_id, KEYS.c.time_key).in_(targets))
    rows = connection.execute(wanted.order_by(KEYS.c.stream_id, KEYS.c.time_key).with_for_update())
    return {(row.stream_id, row.time_key): (row.last_seq, row.writers_version) for row in rows}


def _change_records(connection: Connection, known: WatermarkInputs, decision: Decision) -> bool:
    """Change the records that are still those that were looked at; return whether any were to be changed."""
    is_changed = False
    updates, deletes = [], []
    for before, after in decision.changes.updates():
        is_changed = True
        version = known.versions[before.writer]
        if after is None:
            deletes.append({"s": known.stream.id, "k": known.key, "w": before.writer, "v": version})
        else:
            updates.append(updated_mark_values(known.stream.id, known.key, version, after))
    # One statement for many would not say how many rows it met, but here nobody asks.
    if updates:
        connection.execute(UPDATE_MARK, updates)
    if deletes:
        connection.execute(_DELETE_MARK, deletes)
    return is_changed


def _drop_old_entries(connection: Connection, decided: list[tuple[WatermarkInputs, Decision]]) -> None:
    """Drop entries that are older than the stream keeps them; the newest stays whatever its age."""
    for known, decision in decided:
        retention = known.stream.settings.marks_retention
        if retention is None or not isinstance(decision, Emit):
            continue
        here = (ENTRIES.c.stream_id == known.stream.id, ENTRIES.c.time_key == known.key)
        young = select(ENTRIES.c.seq).where(*here, ENTRIES.c.at >= decision.entry.at - retention)
        first = connection.execute(young.order_by(ENTRIES.c.seq).limit(1)).scalar_one_or_none()
        if first is not None:
            connection.execute(delete(ENTRIES).where(*here, ENTRIES.c.seq < first))
