"""The gate: whether a batch is to be written, was written before, or must not be; and the record after it.

A row of a query without state has a place of its own, and is written if its place was not. A window has none:
it is emitted in the batch after the one that closed it. When a batch (Q, R] is written, all windows closed up
to Q have been emitted. So a query that rebuilds its state must end batches at exactly Q and R: its output up to
R is dropped, and nothing that it emits later was written before. Batch numbers cannot tell this: after a
rollback the same number stands for other rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from floodmark.bindings import SourceOffset
from floodmark.bindings.offsets import BatchStop, QueryPosition, compare_offsets
from floodmark.errors import (
    SinkBatchInvalid,
    SinkBatchMisaligned,
    SinkGap,
    SinkInputUnbound,
    SinkSourcesChanged,
    SinkStateUnknown,
)
from floodmark.sinks.progress import Progress, SinkMark

_NEW_CHECKPOINT_REMEDY: Final = (
    "Start the query with a new checkpoint, from the beginning; its source ends batches where it must."
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a query has read in one batch, of each source the rows behind `starts` up to `ends`."""

    query_id: str
    starts: QueryPosition
    ends: QueryPosition
    is_stateful: bool
    unbound: tuple[str, ...] = ()
    """Inputs of the query that have no bindings."""

    @classmethod
    def of(
        cls, query_id: str, ranges: Mapping[str, tuple[SourceOffset, SourceOffset]], *, is_stateful: bool
    ) -> "Batch":
        """Return a batch, from {source: (start, end)}."""
        starts = {source: start for source, (start, _) in ranges.items()}
        return cls(query_id, starts, {source: end for source, (_, end) in ranges.items()}, is_stateful)


@dataclass(frozen=True, slots=True)
class Write:
    """All rows of the batch are to be written."""


@dataclass(frozen=True, slots=True)
class Drop:
    """All of it was written before."""

    adopt: bool = False
    """Whether the query has now the state with which another one has written, which is to be recorded."""


@dataclass(frozen=True, slots=True)
class WriteFrom:
    """Rows behind `after` are to be written; the others were."""

    after: QueryPosition


@dataclass(frozen=True, slots=True)
class SplitAt:
    """Batches must first end at each of these places."""

    stops: tuple[BatchStop, ...]


Decision = Write | Drop | WriteFrom | SplitAt


def decide_batch(progress: Progress | None, batch: Batch) -> Decision:
    """Return what is to be done with a batch, or refuse it.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> decide_batch(progress, Batch("q1", at(1, 5), at(2, 9), is_stateful=True))
    Drop(adopt=False)
    >>> decide_batch(progress, Batch("q1", at(2, 9), at(3, 12), is_stateful=True))
    Write()
    >>> decide_batch(progress, Batch("q1", at(3, 12), at(4, 13), is_stateful=True))
    Traceback (most recent call last):
    floodmark.errors.SinkGap: A batch begins at {'orders': 3}, and {'orders': 2} is what was written ... [sink-gap]
    """
    _check_batch(batch)
    if progress is None:
        return Write() if not is_same(batch.starts, batch.ends) else Drop()
    _check_sources(progress, batch)
    _check_statefulness(progress, batch)
    beyond = {
        source
        for source, offset in batch.starts.items()
        if compare_in_source(source, offset, progress.ends[source]) > 0
    }
    if beyond:
        raise SinkGap(
            f"A batch begins at {_ts_of(batch.starts)}, and {_ts_of(progress.ends)} is what was written last.",
            rule="What lies between would be lost.",
            remedy="Start the query at what was written, or with a new checkpoint; name a new sink to begin anew.",
            sources=sorted(beyond),
            starts=_ts_of(batch.starts),
            written=_ts_of(progress.ends),
        )
    return _decide_stateful(progress, batch) if batch.is_stateful else _decide_stateless(progress, batch)


def required_stops(
    progress: Progress | None, starts: QueryPosition | None, *, is_stateful: bool
) -> tuple[BatchStop, ...]:
    """Return where the batches of a query that goes on from `starts` must end; None is its beginning.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> [(stop.place["orders"].ts, stop.in_one) for stop in required_stops(progress, None, is_stateful=True)]
    [(1, False), (2, True)]
    >>> [(stop.place["orders"].ts, stop.in_one) for stop in required_stops(progress, at(1, 5), is_stateful=True)]
    [(2, True)]
    """
    if progress is None:
        return ()
    stops: tuple[BatchStop, ...] = (BatchStop(progress.starts, in_one=False), BatchStop(progress.ends, in_one=True))
    if not is_stateful or is_same(progress.starts, progress.ends):
        # Rows without state only must be told from those that come after.
        stops = (BatchStop(progress.ends, in_one=False),)
    if starts is None:
        # Before the first row nothing ends.
        return tuple(stop for stop in stops if any(offset.ts is not None for offset in stop.place.values()))
    return tuple(stop for stop in stops if not is_at_most(stop.place, starts))


def advance_sources(progress: Progress, batch: Batch, decision: Write | WriteFrom | Drop) -> Progress:
    """Return what is true of the sources once a decision was carried out; the counts are as before."""
    if isinstance(decision, Drop):
        return replace(progress, query_id=batch.query_id) if decision.adopt else progress
    starts, ends = batch.starts, batch.ends
    if isinstance(decision, WriteFrom):
        starts = {source: _later_offset(source, offset, progress.ends[source]) for source, offset in starts.items()}
        ends = {source: _later_offset(source, offset, progress.ends[source]) for source, offset in ends.items()}
    return replace(progress, query_id=batch.query_id, starts=starts, ends=ends, is_stateful=batch.is_stateful)


def misaligned_error(cut: SplitAt, batch: Batch) -> SinkBatchMisaligned:
    """Return the error for a batch that is there already, and should have ended elsewhere."""
    places = [_ts_of(stop.place) for stop in cut.stops]
    return SinkBatchMisaligned(
        f"A batch goes from {_ts_of(batch.starts)} to {_ts_of(batch.ends)}, and does not end at each of {places}.",
        rule="A query with state ends batches where the written ones have ended, or windows would be lost or doubled.",
        remedy=_NEW_CHECKPOINT_REMEDY,
        places=places,
        starts=_ts_of(batch.starts),
        ends=_ts_of(batch.ends),
    )


def _decide_stateful(progress: Progress, batch: Batch) -> Decision:
    last, written = progress.starts, progress.ends
    if is_same(batch.starts, written):
        # Where nothing was written, nobody needs the state of whoever did.
        if batch.query_id != progress.query_id and not is_same(last, written):
            raise SinkStateUnknown(
                f"The query {batch.query_id!r} goes on at {_ts_of(written)}, up to which {progress.query_id!r} has "
                "written.",
                rule="A query with state writes behind its own batches, or after it has built the same state.",
                remedy=_NEW_CHECKPOINT_REMEDY,
                query_id=batch.query_id,
                written_by=progress.query_id,
            )
        return Write()
    if is_same(batch.starts, last) and is_same(batch.ends, written):
        return Drop(adopt=batch.query_id != progress.query_id)
    if is_at_most(batch.ends, last):
        return Drop()
    if is_at_most(batch.starts, last):
        return SplitAt(required_stops(progress, batch.starts, is_stateful=True))
    raise misaligned_error(SplitAt((BatchStop(last, in_one=False), BatchStop(written, in_one=True))), batch)


def _decide_stateless(progress: Progress, batch: Batch) -> Decision:
    if is_at_most(batch.ends, progress.ends):
        return Drop()
    return Write() if is_same(batch.starts, progress.ends) else WriteFrom(progress.ends)


def _check_batch(batch: Batch) -> None:
    if batch.unbound or not batch.ends:
        names = ", ".join(batch.unbound) or "none of its inputs is bound"
        raise SinkInputUnbound(
            f"The query {batch.query_id!r} reads what has no bindings: {names}.",
            rule="What is written exactly once comes from sources whose offsets have timestamps.",
            remedy="Read it through Floodmark's own source, or write with a sink that may repeat rows.",
            inputs=list(batch.unbound),
        )
    if batch.starts.keys() != batch.ends.keys() or not is_at_most(batch.starts, batch.ends):
        raise SinkBatchInvalid(
            f"A batch goes from {_ts_of(batch.starts)} to {_ts_of(batch.ends)}.",
            rule="It begins before it ends, in each of its sources.",
            remedy="Take both from the offset log of the query.",
            starts=_ts_of(batch.starts),
            ends=_ts_of(batch.ends),
        )
    if batch.is_stateful and is_same(batch.starts, batch.ends):
        raise SinkBatchInvalid(
            f"A batch of a query with state begins and ends at {_ts_of(batch.ends)}.",
            rule="Windows may come out in it, and after a restart nobody could tell whether it was written.",
            remedy="Set spark.sql.streaming.noDataMicroBatches.enabled to false.",
            starts=_ts_of(batch.starts),
        )


def _check_sources(progress: Progress, batch: Batch) -> None:
    missing = sorted(progress.ends.keys() - batch.ends.keys())
    unknown = sorted(batch.ends.keys() - progress.ends.keys())
    if missing or unknown:
        told = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", unknown)) if names]
        raise SinkSourcesChanged(
            f"A batch comes {' and '.join(told)}; the sink {progress.sink!r} has written "
            f"{', '.join(sorted(progress.ends))}.",
            rule="What was written is known by the sources it came from.",
            remedy="Give the query its sources back, or name a new sink, with a topic of its own.",
            missing=missing,
            unknown=unknown,
        )


def _check_statefulness(progress: Progress, batch: Batch) -> None:
    if progress.is_stateful != batch.is_stateful:
        kinds = ("with" if progress.is_stateful else "without", "with" if batch.is_stateful else "without")
        raise SinkStateUnknown(
            f"The sink {progress.sink!r} was written by a query {kinds[0]} state, and now comes one {kinds[1]}.",
            rule="What was written says how far rows have come, or how far windows have, and not both.",
            remedy="Name a new sink, with a topic of its own.",
            query_id=batch.query_id,
            written_by=progress.query_id,
        )


def _later_offset(source: str, one: SourceOffset, other: SourceOffset) -> SourceOffset:
    return one if compare_in_source(source, one, other) > 0 else other


def _ts_of(place: QueryPosition) -> dict[str, int | None]:
    return {source: offset.ts for source, offset in sorted(place.items())}


def initial_progress(sink: str, place: str, place_id: str, version: int, batch: Batch) -> Progress:
    """Return the record of a sink that has written nothing, before its first batch."""
    return Progress(sink, place, place_id, version, batch.query_id, batch.starts, batch.starts, batch.is_stateful)


def progress_after(
    known: Progress, batch: Batch, decision: Write | WriteFrom | Drop, *, rows: int, watermarks: Mapping[str, int]
) -> Progress:
    """Return what is written after a batch of so many rows. What was told of time is not taken back.

    >>> batch = Batch("q", {}, {}, is_stateful=False)
    >>> first = progress_after(
    ...     initial_progress("out", "s", "1", 1, batch), batch, Write(), rows=5, watermarks={"at": 7}
    ... )
    >>> second = progress_after(first, batch, Write(), rows=2, watermarks={"at": 6})
    >>> second.rows, second.total, second.marks
    (2, 7, {'at': SinkMark(time=7, seq=1)})
    """
    marks = dict(known.marks)
    for key, time in sorted(watermarks.items()):
        if key not in marks or time > marks[key].time:
            marks[key] = SinkMark(time, marks[key].seq + 1 if key in marks else 1)
    return replace(
        advance_sources(known, batch, decision),
        marks=marks,
        rows=known.rows if isinstance(decision, Drop) else rows,
        total=known.total + rows,
    )


def is_at_most(one: QueryPosition, other: QueryPosition) -> bool:
    """Return whether `one` lies at or before `other` in every source; both have the same.

    >>> is_at_most({"a": SourceOffset("q", 1, {0: 5})}, {"a": SourceOffset("q", 2, {0: 5})})
    True
    """
    return all(compare_in_source(source, offset, other[source]) <= 0 for source, offset in one.items())


def is_same(one: QueryPosition, other: QueryPosition) -> bool:
    """Return whether two places are the same in every source."""
    return all(compare_in_source(source, offset, other[source]) == 0 for source, offset in one.items())


def compare_in_source(source: str, one: SourceOffset, other: SourceOffset) -> int:
    """Return how two offsets of a source lie, or refuse those that cannot be compared."""
    found = compare_offsets(one, other)
    if found is None:
        raise SinkBatchInvalid(
            f"The source {source!r} is at {_shown(one)} in a batch, neither before nor behind {_shown(other)}.",
            rule="Everybody reads a source in the order of its timestamps, and so passes the same places.",
            remedy="Start the query at a timestamp, not at a cut of its own; see that the home is the same one.",
            source=source,
            offset=one.save(),
            other=other.save(),
        )
    return found


def _shown(offset: SourceOffset) -> str:
    return f"{offset.ts} {dict(sorted(offset.cut.items()))}"
