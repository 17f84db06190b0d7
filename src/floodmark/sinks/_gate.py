"""The gate: whether a batch is to be written, was written before, or must not be.

A row of a query without state has a place of its own, and is written if its place was not. A window has none: it comes
out in the batch after the one that closed it. What is out when a batch (Q, R] is written, is what was closed up to Q.
So a query that builds its state anew must pass Q and R just so: what comes out up to R is dropped, and nothing that
comes out later was written. No number of a batch says any of this, since after a rollback it stands for other rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from floodmark.bindings import Place, SourceOffset, Stop
from floodmark.errors import (
    SinkBatchInvalid,
    SinkBatchMisaligned,
    SinkGap,
    SinkInputUnbound,
    SinkSourcesChanged,
    SinkStateUnknown,
)
from floodmark.sinks._order import is_at_most, is_same, order_in
from floodmark.sinks._progress import Progress

_ANEW: Final = "Start the query with a new checkpoint, from the beginning; its source ends batches where it must."


@dataclass(frozen=True, slots=True)
class Batch:
    """What a query has read in one batch, of each source the rows behind `starts` up to `ends`."""

    query_id: str
    starts: Place
    ends: Place
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

    after: Place


@dataclass(frozen=True, slots=True)
class Cut:
    """Batches must first end at each of these places."""

    stops: tuple[Stop, ...]


Decision = Write | Drop | WriteFrom | Cut


def decide(progress: Progress | None, batch: Batch) -> Decision:
    """Return what is to be done with a batch, or refuse it.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> decide(progress, Batch("q1", at(1, 5), at(2, 9), is_stateful=True))
    Drop(adopt=False)
    >>> decide(progress, Batch("q1", at(2, 9), at(3, 12), is_stateful=True))
    Write()
    >>> decide(progress, Batch("q1", at(3, 12), at(4, 13), is_stateful=True))
    Traceback (most recent call last):
    floodmark.errors.SinkGap: A batch begins at {'orders': 3}, and {'orders': 2} is what was written ... [sink-gap]
    """
    _check_whole(batch)
    if progress is None:
        return Write() if not is_same(batch.starts, batch.ends) else Drop()
    _check_sources(progress, batch)
    _check_kind(progress, batch)
    beyond = {source for source, offset in batch.starts.items() if order_in(source, offset, progress.ends[source]) > 0}
    if beyond:
        raise SinkGap(
            f"A batch begins at {_times(batch.starts)}, and {_times(progress.ends)} is what was written last.",
            rule="What lies between would be lost.",
            remedy="Start the query at what was written, or with a new checkpoint; name a new sink to begin anew.",
            sources=sorted(beyond),
            starts=_times(batch.starts),
            written=_times(progress.ends),
        )
    return _of_stateful(progress, batch) if batch.is_stateful else _of_stateless(progress, batch)


def cuts(progress: Progress | None, starts: Place | None, *, is_stateful: bool) -> tuple[Stop, ...]:
    """Return where the batches of a query that goes on from `starts` must end; None is its beginning.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> [(stop.place["orders"].ts, stop.in_one) for stop in cuts(progress, None, is_stateful=True)]
    [(1, False), (2, True)]
    >>> [(stop.place["orders"].ts, stop.in_one) for stop in cuts(progress, at(1, 5), is_stateful=True)]
    [(2, True)]
    """
    if progress is None:
        return ()
    stops: tuple[Stop, ...] = (Stop(progress.starts, in_one=False), Stop(progress.ends, in_one=True))
    if not is_stateful or is_same(progress.starts, progress.ends):
        # Rows without state only must be told from those that come after.
        stops = (Stop(progress.ends, in_one=False),)
    if starts is None:
        # Before the first row nothing ends.
        return tuple(stop for stop in stops if any(offset.ts is not None for offset in stop.place.values()))
    return tuple(stop for stop in stops if not is_at_most(stop.place, starts))


def next_progress(progress: Progress, batch: Batch, decision: Write | WriteFrom | Drop) -> Progress:
    """Return what is true of the sources once a decision was carried out; the counts are as before."""
    if isinstance(decision, Drop):
        return replace(progress, query_id=batch.query_id) if decision.adopt else progress
    starts, ends = batch.starts, batch.ends
    if isinstance(decision, WriteFrom):
        starts = {source: _later(source, offset, progress.ends[source]) for source, offset in starts.items()}
        ends = {source: _later(source, offset, progress.ends[source]) for source, offset in ends.items()}
    return replace(progress, query_id=batch.query_id, starts=starts, ends=ends, is_stateful=batch.is_stateful)


def is_written(after: SourceOffset, ts: int, partition: int | None = None, offset: int | None = None) -> bool:
    """Return whether a row was written, by its timestamp and, where that does not tell, its partition and offset.

    >>> after = SourceOffset("q", 2, {0: 7})
    >>> is_written(after, 1), is_written(after, 3), is_written(after, 2, 0, 6), is_written(after, 2, 0, 7)
    (True, False, True, False)
    """
    if after.ts is None or ts != after.ts:
        return after.ts is not None and ts < after.ts
    if partition is None or offset is None:
        raise SinkBatchInvalid(
            f"A row has the timestamp {ts}, of which a part was written.",
            rule="Inside of a timestamp rows are told apart by their partitions and offsets.",
            remedy="Keep the columns of partition and offset up to the sink.",
            ts=ts,
        )
    return offset < after.cut.get(partition, 0)


def misaligned(cut: Cut, batch: Batch) -> SinkBatchMisaligned:
    """Return the error for a batch that is there already, and should have ended elsewhere."""
    places = [_times(stop.place) for stop in cut.stops]
    return SinkBatchMisaligned(
        f"A batch goes from {_times(batch.starts)} to {_times(batch.ends)}, and does not end at each of {places}.",
        rule="A query with state ends batches where the written ones have ended, or windows would be lost or doubled.",
        remedy=_ANEW,
        places=places,
        starts=_times(batch.starts),
        ends=_times(batch.ends),
    )


def _of_stateful(progress: Progress, batch: Batch) -> Decision:
    last, written = progress.starts, progress.ends
    if is_same(batch.starts, written):
        # Where nothing was written, nobody needs the state of whoever did.
        if batch.query_id != progress.query_id and not is_same(last, written):
            raise SinkStateUnknown(
                f"The query {batch.query_id!r} goes on at {_times(written)}, up to which {progress.query_id!r} has "
                "written.",
                rule="A query with state writes behind its own batches, or after it has built the same state.",
                remedy=_ANEW,
                query_id=batch.query_id,
                written_by=progress.query_id,
            )
        return Write()
    if is_same(batch.starts, last) and is_same(batch.ends, written):
        return Drop(adopt=batch.query_id != progress.query_id)
    if is_at_most(batch.ends, last):
        return Drop()
    if is_at_most(batch.starts, last):
        return Cut(cuts(progress, batch.starts, is_stateful=True))
    raise misaligned(Cut((Stop(last, in_one=False), Stop(written, in_one=True))), batch)


def _of_stateless(progress: Progress, batch: Batch) -> Decision:
    if is_at_most(batch.ends, progress.ends):
        return Drop()
    return Write() if is_same(batch.starts, progress.ends) else WriteFrom(progress.ends)


def _check_whole(batch: Batch) -> None:
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
            f"A batch goes from {_times(batch.starts)} to {_times(batch.ends)}.",
            rule="It begins before it ends, in each of its sources.",
            remedy="Take both from the offset log of the query.",
            starts=_times(batch.starts),
            ends=_times(batch.ends),
        )
    if batch.is_stateful and is_same(batch.starts, batch.ends):
        raise SinkBatchInvalid(
            f"A batch of a query with state begins and ends at {_times(batch.ends)}.",
            rule="Windows may come out in it, and after a restart nobody could tell whether it was written.",
            remedy="Set spark.sql.streaming.noDataMicroBatches.enabled to false.",
            starts=_times(batch.starts),
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


def _check_kind(progress: Progress, batch: Batch) -> None:
    if progress.is_stateful != batch.is_stateful:
        kinds = ("with" if progress.is_stateful else "without", "with" if batch.is_stateful else "without")
        raise SinkStateUnknown(
            f"The sink {progress.sink!r} was written by a query {kinds[0]} state, and now comes one {kinds[1]}.",
            rule="What was written says how far rows have come, or how far windows have, and not both.",
            remedy="Name a new sink, with a topic of its own.",
            query_id=batch.query_id,
            written_by=progress.query_id,
        )


def _later(source: str, one: SourceOffset, other: SourceOffset) -> SourceOffset:
    return one if order_in(source, one, other) > 0 else other


def _times(place: Place) -> dict[str, int | None]:
    return {source: offset.ts for source, offset in sorted(place.items())}
