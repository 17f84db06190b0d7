"""Removal of old events: the readers that still need events, and the removal of batches from the home.

A run has two steps. First the starts of segments rise in one transaction, which locks the sources of the stream, so
that no hold is taken meanwhile; from then on no reader gets the events before them. Then their batches are deleted,
page by page. A run that dies in between is completed by the next one. Several processes may run at once: the starts
rise only from the values that a run has read, and deleting what is deleted changes nothing.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, column, delete, func, select, table, update

from floodmark._util.codec import from_json
from floodmark._util.retry import LostRace, retry_on_conflict
from floodmark.control import Home
from floodmark.errors import StreamDeleted
from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.state import GroupState
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import expand_cut
from floodmark.streams.layout.retention import (
    Claim,
    RetentionDecision,
    RetentionStatus,
    SegmentRange,
    StoredBatch,
    decide_retention,
    head_cut,
)
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.tables import BATCHES, GROUPS, SEGMENTS, STREAMS

_PAGE: Final = 500
"""The batches of a segment that one run looks at, and that one transaction deletes."""

# The tables of `bindings`, which is above this room. A controller must respect holds, whatever its process imports.
_SOURCES: Final = table("binding_source", *map(column, ("source_id", "source", "kind", "identity")))
_HOLDS: Final = table("binding_hold", *map(column, ("source_id", "holder", "kind", "ts")))
_PAIRS: Final = table("binding_pair", *map(column, ("source_id", "ts", "part", "end_offset")))
_FLOORS: Final = table("binding_floor", *map(column, ("source_id", "part", "end_offset")))

Failpoint = Callable[[str], None]


class ClaimReader:
    """The claims on a stream, read in steps: first the readers, then, with a layout at least as new, their offsets."""

    __slots__ = ("_positions",)

    def __init__(self, connection: Connection, stream: StreamInfo, *, lock: bool) -> None:
        """Read the reader groups and holds. With `lock`, no hold can be taken until the transaction ends."""
        self._positions: list[tuple[str, str, Mapping[int, int]]] = []
        for row in _sources_of(connection, stream, lock=lock):
            holds = select(_HOLDS).where(_HOLDS.c.source_id == row.source_id).order_by(_HOLDS.c.holder)
            for hold in connection.execute(holds).all():
                offsets = _ends_before(connection, row.source_id, hold.ts)
                self._positions.append((hold.kind, f"{hold.holder} of {row.source}", offsets))
        # Without locks: a group moves back only by a reset, which starts at the head if it would start before it.
        for saved in connection.execute(select(GROUPS.c.state).order_by(GROUPS.c.name)).scalars():
            self._add_group(GroupState.load(from_json(saved)), stream)

    def claims(self, layout: Layout, ends: Mapping[int, int]) -> list[Claim]:
        """Return the claims. The layout and the ends must have been read after the readers."""
        return [Claim(kind, name, expand_cut(layout, position, ends)) for kind, name, position in self._positions]

    def _add_group(self, group: GroupState, stream: StreamInfo) -> None:
        for progress in group.progress:
            if progress.stream_id == stream.id and not progress.is_finished:
                self._positions.append(("group", group.name, progress.position))
        for checkpoint in group.checkpoints:
            for cut in checkpoint.cut.cuts:
                if cut.stream_id == stream.id:
                    self._positions.append(("checkpoint", f"{checkpoint.name} of {group.name}", cut.cut))
        if group.pending is not None:
            for progress in group.pending.progress:
                if progress.stream_id == stream.id:
                    self._positions.append(("checkpoint", f"{group.pending.name} of {group.name}", progress.position))


def _sources_of(connection: Connection, stream: StreamInfo, *, lock: bool) -> list[Row[Any]]:
    """Return the binding sources of a stream, locked in the order of their ids to avoid deadlocks."""
    query = select(_SOURCES).where(_SOURCES.c.kind == "stream").order_by(_SOURCES.c.source_id)
    ids = [row.source_id for row in connection.execute(query) if from_json(row.identity).get("stream_id") == stream.id]
    if not lock:
        return list(connection.execute(query.where(_SOURCES.c.source_id.in_(ids))).all())
    return list(connection.execute(query.where(_SOURCES.c.source_id.in_(ids)).with_for_update()).all())


def _ends_before(connection: Connection, source: int, ts: int) -> dict[int, int]:
    """Return the ends that were bound before a timestamp: a reader that holds it may read from there on."""
    is_before = (_PAIRS.c.source_id == source, _PAIRS.c.ts < ts)
    newest = connection.execute(select(func.max(_PAIRS.c.ts)).where(*is_before)).scalar()
    if newest is None:
        rows = connection.execute(select(_FLOORS).where(_FLOORS.c.source_id == source))
    else:
        rows = connection.execute(select(_PAIRS).where(_PAIRS.c.source_id == source, _PAIRS.c.ts == newest))
    return {row.part: row.end_offset for row in rows}


def raise_starts(
    connection: Connection, stream: StreamInfo, before: Mapping[int, int], after: Mapping[int, int], sizes: Any = None
) -> None:
    """Move the starts of segments forward, or raise `LostRace` if another process has moved one.

    `sizes` are the bytes that are removed from each segment.
    """
    # Lock segments in id order, as writers do, to avoid deadlocks.
    for segment in sorted(after):
        if after[segment] > before[segment]:
            is_same = (
                SEGMENTS.c.stream_id == stream.id,
                SEGMENTS.c.segment == segment,
                SEGMENTS.c.start_offset == before[segment],
            )
            values = {"start_offset": after[segment], "bytes": SEGMENTS.c.bytes - (sizes or {}).get(segment, 0)}
            if connection.execute(update(SEGMENTS).where(*is_same).values(values)).rowcount != 1:
                raise LostRace


def streams_with_retention(
    home: Home, catalog: Catalog, buckets: Collection[int], *, in_topics: bool
) -> list[StreamInfo]:
    """Return the streams of these buckets whose old events are to be removed, with events in Kafka or in the home."""
    where = STREAMS.c.log.is_not(None) if in_topics else STREAMS.c.log.is_(None)
    query = select(STREAMS).where(STREAMS.c.retains == 1, STREAMS.c.bucket.in_(list(buckets)), where)
    with home.read() as connection:
        return [catalog.info(row) for row in connection.execute(query.order_by(STREAMS.c.stream_id))]


_BATCH: Final = (
    select(BATCHES.c.first_offset, BATCHES.c.events, BATCHES.c.at, func.length(BATCHES.c.body).label("size"))
    .where(
        BATCHES.c.stream_id == bindparam("s"),
        BATCHES.c.segment == bindparam("g"),
        BATCHES.c.first_offset >= bindparam("start"),
    )
    .order_by(BATCHES.c.first_offset)
    .limit(bindparam("most"))
)
_FIRST_ARRIVAL: Final = (
    select(BATCHES.c.at)
    .where(BATCHES.c.stream_id == bindparam("s"), BATCHES.c.segment == bindparam("g"), BATCHES.c.at.is_not(None))
    .order_by(BATCHES.c.first_offset)
    .limit(1)
)
_REMOVED: Final = (
    select(BATCHES.c.segment, BATCHES.c.first_offset)
    .join(
        SEGMENTS,
        (SEGMENTS.c.stream_id == BATCHES.c.stream_id)
        & (SEGMENTS.c.segment == BATCHES.c.segment)
        & (BATCHES.c.first_offset < SEGMENTS.c.start_offset),
    )
    .where(SEGMENTS.c.stream_id == bindparam("s"), SEGMENTS.c.start_offset > 0)
    .limit(_PAGE)
)


class TableRetention:
    """Removes old events of streams that are kept in the home."""

    __slots__ = ("_catalog", "_failpoint", "_home")

    def __init__(self, home: Home, catalog: Catalog, failpoint: Failpoint = lambda place: None) -> None:
        """Remove events of streams of this home."""
        self._home = home
        self._catalog = catalog
        self._failpoint = failpoint

    def sweep(self, buckets: Collection[int]) -> None:
        """Remove what is due of the streams of these buckets."""
        for stream in streams_with_retention(self._home, self._catalog, buckets, in_topics=False):
            try:
                self.remove(stream)
            except StreamDeleted:
                continue

    def remove(self, stream: StreamInfo) -> None:
        """Remove what is due of a stream."""
        while self._raise_starts(stream):
            self._failpoint("retention: starts raised")
            self._delete_removed(stream)
        # What a run that died has left.
        self._delete_removed(stream)

    def status(self, stream: StreamInfo) -> RetentionStatus:
        """Return what was removed, what is due, and which readers retention waits for."""
        with self._home.read() as connection:
            claims = ClaimReader(connection, stream, lock=False)
            current = self._catalog.require(connection, stream)
            segments, decision = self._decide(connection, current, claims, _PAGE)
        starts = {number: one.start for number, one in segments.items()}
        ends = {number: one.end for number, one in segments.items()}
        settings = current.settings
        return RetentionStatus(
            stream.name,
            head_cut(current.layout, starts, ends),
            {number: due for number, due in decision.due.items() if due > starts[number]},
            decision.waits_for,
            settings.retention,
            settings.retention_bytes,
        )

    def _raise_starts(self, stream: StreamInfo) -> bool:
        """Move the starts of segments over batches that are due; return whether any moved."""
        with self._home.read() as connection:
            # The usual case: nothing is due, whatever readers need.
            current = self._catalog.require(connection, stream)
            segments, decision = self._decide(connection, current, None, 1)
            if not current.settings.has_retention or all(decision.due[n] == one.start for n, one in segments.items()):
                return False

        def transaction() -> bool:
            with self._home.write() as connection:
                claims = ClaimReader(connection, stream, lock=True)
                self._failpoint("retention: claims read")
                current = self._catalog.require(connection, stream)
                segments, decision = self._decide(connection, current, claims, _PAGE)
                before = {number: one.start for number, one in segments.items()}
                if decision.starts == before:
                    return False
                sizes = {
                    number: sum(batch.size for batch in one.batches if batch.end <= decision.starts[number])
                    for number, one in segments.items()
                }
                raise_starts(connection, stream, before, decision.starts, sizes)
                self._failpoint("retention: before the commit")
                return True

        return retry_on_conflict(transaction)

    def _decide(
        self, connection: Connection, stream: StreamInfo, claims: ClaimReader | None, most: int
    ) -> tuple[dict[int, SegmentRange], RetentionDecision]:
        layout, settings = stream.layout, stream.settings
        rows = connection.execute(
            select(SEGMENTS).where(SEGMENTS.c.stream_id == stream.id).order_by(SEGMENTS.c.segment)
        ).all()
        segments = {
            row.segment: SegmentRange(row.start_offset, row.end_offset, _batches(connection, row, most))
            for row in rows
            if row.segment < len(layout.segments)
        }
        ends = {number: one.end for number, one in segments.items()}
        decision = decide_retention(
            layout,
            segments,
            [] if claims is None else claims.claims(layout, ends),
            now=self._home.now(connection),
            age=settings.retention,
            size=settings.retention_bytes,
            total=sum(row.bytes for row in rows),
        )
        return segments, decision

    def _delete_removed(self, stream: StreamInfo) -> None:
        """Delete the batches before the starts of their segments."""
        while True:
            with self._home.read() as connection:
                rows = connection.execute(_REMOVED, {"s": stream.id}).all()
            if not rows:
                return
            with self._home.write() as connection:
                for segment in sorted({row.segment for row in rows}):
                    last = max(row.first_offset for row in rows if row.segment == segment)
                    is_removed = (
                        BATCHES.c.stream_id == stream.id,
                        BATCHES.c.segment == segment,
                        BATCHES.c.first_offset <= last,
                    )
                    connection.execute(delete(BATCHES).where(*is_removed))
            self._failpoint("retention: page deleted")


def _batches(connection: Connection, segment: Row[Any], most: int) -> list[StoredBatch]:
    """Return the oldest batches of a segment; none of one that is removed whole."""
    if segment.start_offset >= segment.end_offset:
        return []
    place = {"s": segment.stream_id, "g": segment.segment}
    rows = connection.execute(_BATCH, {**place, "start": segment.start_offset, "most": most}).all()
    known = None
    if any(row.at is None for row in rows):
        # Batches of an earlier release arrived no later than the first one of this release.
        known = connection.execute(_FIRST_ARRIVAL, place).scalar_one_or_none()
    return [
        StoredBatch(row.first_offset, row.first_offset + row.events, known if row.at is None else row.at, row.size)
        for row in rows
    ]
