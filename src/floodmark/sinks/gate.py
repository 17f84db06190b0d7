"""The gate: decides whether a batch is written, dropped as written before, or refused; and the progress after it.

Rows of a stateless query have positions of their own, so each is written unless its position was written. A window has
none: Spark emits it in the batch after the one that closed it. Once a batch (Q, R] is written, all windows closed up to
Q have been emitted. A query that rebuilds its state must therefore end batches at exactly Q and R: its output up to R
is dropped, and nothing it emits later was written before. Batch numbers cannot decide this: after a rollback the same
number stands for other rows.
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
from floodmark.sinks.progress import Progress, SinkMark, position_timestamps

_NEW_CHECKPOINT_REMEDY: Final = (
    "Start the query with a new checkpoint, from the beginning; its source then ends batches at the required positions."
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a query has read in one batch: from each source the rows after `starts` up to `ends`."""

    query_id: str
    starts: QueryPosition
    ends: QueryPosition
    is_stateful: bool
    unbound: tuple[str, ...] = ()
    """Inputs of the query that have no bindings."""
    is_first: bool = False
    """Whether it is the first batch of the query. Spark starts one even if there is no row to read yet."""

    @classmethod
    def of(
        cls, query_id: str, ranges: Mapping[str, tuple[SourceOffset, SourceOffset]], *, is_stateful: bool
    ) -> "Batch":
        """Return a batch from {source: (start, end)}."""
        starts = {source: start for source, (start, _) in ranges.items()}
        return cls(query_id, starts, {source: end for source, (_, end) in ranges.items()}, is_stateful)


@dataclass(frozen=True, slots=True)
class Write:
    """Write all rows of the batch."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Write nothing: the whole batch was written before."""

    adopt: bool = False
    """Whether to record this query as the writer: it has rebuilt the state of the query that wrote the batch."""


@dataclass(frozen=True, slots=True)
class WriteFrom:
    """Write only the rows after `after`; the others were written before."""

    after: QueryPosition


@dataclass(frozen=True, slots=True)
class SplitAt:
    """The batch must be split: batches must first end at each of these stops."""

    stops: tuple[BatchStop, ...]


Decision = Write | Drop | WriteFrom | SplitAt


def decide_batch(progress: Progress | None, batch: Batch) -> Decision:
    """Return the decision on a batch, or raise an error if it must not be written.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> decide_batch(progress, Batch("q1", at(1, 5), at(2, 9), is_stateful=True))
    Drop(adopt=False)
    >>> decide_batch(progress, Batch("q1", at(2, 9), at(3, 12), is_stateful=True))
    Write()
    >>> decide_batch(progress, Batch("q1", at(3, 12), at(4, 13), is_stateful=True))
    Traceback (most recent call last):
    floodmark.errors.SinkGap: A batch begins at {'orders': 3}, but the sink has written ... [sink-gap]
    """
    _check_batch(batch)
    if (progress is None or batch.is_first) and is_same(batch.starts, batch.ends):
        return Drop()
    if progress is None:
        return Write()
    _check_sources(progress, batch)
    _check_statefulness(progress, batch)
    beyond = {
        source
        for source, offset in batch.starts.items()
        if compare_in_source(source, offset, progress.ends[source]) > 0
    }
    if beyond:
        raise SinkGap(
            f"A batch begins at {position_timestamps(batch.starts)}, but the sink has written up to "
            f"{position_timestamps(progress.ends)}.",
            rule="The rows in between would be lost.",
            remedy="Start the query where the sink stopped, or with a new checkpoint; to start over, name a new sink.",
            sources=sorted(beyond),
            starts=position_timestamps(batch.starts),
            written=position_timestamps(progress.ends),
        )
    return _decide_stateful(progress, batch) if batch.is_stateful else _decide_stateless(progress, batch)


def required_stops(
    progress: Progress | None, starts: QueryPosition | None, *, is_stateful: bool
) -> tuple[BatchStop, ...]:
    """Return where batches of a query must end; `starts` is where it resumes, None its beginning.

    >>> def at(ts, end):
    ...     return {"orders": SourceOffset("q", ts, {0: end})}
    >>> progress = Progress("out", "t", "t1", 1, "q1", at(1, 5), at(2, 9), is_stateful=True)
    >>> [(stop.position["orders"].ts, stop.in_one) for stop in required_stops(progress, None, is_stateful=True)]
    [(1, False), (2, True)]
    >>> [(stop.position["orders"].ts, stop.in_one) for stop in required_stops(progress, at(1, 5), is_stateful=True)]
    [(2, True)]
    """
    if progress is None:
        return ()
    stops: tuple[BatchStop, ...] = (BatchStop(progress.starts, in_one=False), BatchStop(progress.ends, in_one=True))
    if not is_stateful or is_same(progress.starts, progress.ends):
        # Without state, only the end of what was written matters.
        stops = (BatchStop(progress.ends, in_one=False),)
    if starts is None:
        # A stop before the first row of every source needs no batch.
        return tuple(stop for stop in stops if any(offset.ts is not None for offset in stop.position.values()))
    return tuple(stop for stop in stops if not is_at_most(stop.position, starts))


def advance_sources(progress: Progress, batch: Batch, decision: Write | WriteFrom | Drop) -> Progress:
    """Return the progress with sources and query as of this batch; the counts do not change."""
    if isinstance(decision, Drop):
        return replace(progress, query_id=batch.query_id) if decision.adopt else progress
    starts, ends = batch.starts, batch.ends
    if isinstance(decision, WriteFrom):
        starts = {source: _later_offset(source, offset, progress.ends[source]) for source, offset in starts.items()}
        ends = {source: _later_offset(source, offset, progress.ends[source]) for source, offset in ends.items()}
    return replace(progress, query_id=batch.query_id, starts=starts, ends=ends, is_stateful=batch.is_stateful)


def misaligned_error(split: SplitAt, batch: Batch) -> SinkBatchMisaligned:
    """Return the error for a batch that does not end at the required stops."""
    places = [position_timestamps(stop.position) for stop in split.stops]
    return SinkBatchMisaligned(
        f"A batch goes from {position_timestamps(batch.starts)} to {position_timestamps(batch.ends)}, not ending at "
        f"each of {places}.",
        rule="A query with state must end batches where the written ones ended; else windows are lost or doubled.",
        remedy=_NEW_CHECKPOINT_REMEDY,
        places=places,
        starts=position_timestamps(batch.starts),
        ends=position_timestamps(batch.ends),
    )


def _decide_stateful(progress: Progress, batch: Batch) -> Decision:
    last, written = progress.starts, progress.ends
    if is_same(batch.starts, written):
        # If the last batch was empty, no state belongs to it.
        if batch.query_id != progress.query_id and not is_same(last, written):
            raise SinkStateUnknown(
                f"The query {batch.query_id!r} resumes at {position_timestamps(written)}, but {progress.query_id!r} "
                "has written up to there.",
                rule="A query with state resumes after its own batches, or after it has rebuilt the same state.",
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
            f"The query {batch.query_id!r} reads inputs without timestamp bindings: {names}.",
            rule="A sink writes exactly once only from sources whose offsets have timestamps.",
            remedy="Read these inputs through Floodmark's own source, or write with a sink that may repeat rows.",
            inputs=list(batch.unbound),
        )
    if batch.starts.keys() != batch.ends.keys() or not is_at_most(batch.starts, batch.ends):
        raise SinkBatchInvalid(
            f"A batch goes from {position_timestamps(batch.starts)} to {position_timestamps(batch.ends)}.",
            rule="A batch begins at or before its end, in the same sources.",
            remedy="Take starts and ends of the batch from the offset log of the query.",
            starts=position_timestamps(batch.starts),
            ends=position_timestamps(batch.ends),
        )
    if batch.is_stateful and not batch.is_first and is_same(batch.starts, batch.ends):
        raise SinkBatchInvalid(
            f"A batch of a query with state begins and ends at {position_timestamps(batch.ends)}.",
            rule="Spark may emit windows in it, and after a restart the sink could not know whether they were written.",
            remedy="Set spark.sql.streaming.noDataMicroBatches.enabled to false.",
            starts=position_timestamps(batch.starts),
        )


def _check_sources(progress: Progress, batch: Batch) -> None:
    missing = sorted(progress.ends.keys() - batch.ends.keys())
    unknown = sorted(batch.ends.keys() - progress.ends.keys())
    if missing or unknown:
        changes = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", unknown)) if names]
        raise SinkSourcesChanged(
            f"A batch comes {' and '.join(changes)}; the sink {progress.sink!r} has written "
            f"{', '.join(sorted(progress.ends))}.",
            rule="A sink's progress is recorded per source, so its sources cannot change.",
            remedy="Read the same sources as before, or name a new sink with a topic of its own.",
            missing=missing,
            unknown=unknown,
        )


def _check_statefulness(progress: Progress, batch: Batch) -> None:
    if progress.is_stateful != batch.is_stateful:
        kinds = ("with" if progress.is_stateful else "without", "with" if batch.is_stateful else "without")
        raise SinkStateUnknown(
            f"The sink {progress.sink!r} was written by a query {kinds[0]} state, and this query is one {kinds[1]}.",
            rule="The progress of a query with state cannot be continued by one without, nor the reverse.",
            remedy="Name a new sink with a topic of its own.",
            query_id=batch.query_id,
            written_by=progress.query_id,
        )


def _later_offset(source: str, one: SourceOffset, other: SourceOffset) -> SourceOffset:
    return one if compare_in_source(source, one, other) > 0 else other


def initial_progress(sink: str, topic: str, topic_id: str, version: int, batch: Batch) -> Progress:
    """Return the progress of a sink before its first batch, with nothing written."""
    return Progress(sink, topic, topic_id, version, batch.query_id, batch.starts, batch.starts, batch.is_stateful)


def progress_after(
    before: Progress, batch: Batch, decision: Write | WriteFrom | Drop, *, rows: int, watermarks: Mapping[str, int]
) -> Progress:
    """Return the progress after a batch of so many rows. Marks never go back.

    >>> batch = Batch("q", {}, {}, is_stateful=False)
    >>> first = progress_after(
    ...     initial_progress("out", "s", "1", 1, batch), batch, Write(), rows=5, watermarks={"at": 7}
    ... )
    >>> second = progress_after(first, batch, Write(), rows=2, watermarks={"at": 6})
    >>> second.rows, second.total, second.marks
    (2, 7, {'at': SinkMark(time=7, seq=1)})
    """
    marks = dict(before.marks)
    for key, time in sorted(watermarks.items()):
        if key not in marks or time > marks[key].time:
            marks[key] = SinkMark(time, marks[key].seq + 1 if key in marks else 1)
    return replace(
        advance_sources(before, batch, decision),
        marks=marks,
        rows=before.rows if isinstance(decision, Drop) else rows,
        total=before.total + rows,
    )


def is_at_most(one: QueryPosition, other: QueryPosition) -> bool:
    """Return whether `one` lies at or before `other` in every source; both must have the same sources.

    >>> is_at_most({"a": SourceOffset("q", 1, {0: 5})}, {"a": SourceOffset("q", 2, {0: 5})})
    True
    """
    return all(compare_in_source(source, offset, other[source]) <= 0 for source, offset in one.items())


def is_same(one: QueryPosition, other: QueryPosition) -> bool:
    """Return whether two positions are equal in every source."""
    return all(compare_in_source(source, offset, other[source]) == 0 for source, offset in one.items())


def compare_in_source(source: str, one: SourceOffset, other: SourceOffset) -> int:
    """Return -1, 0 or 1 for two offsets of a source; raise an error if neither lies before the other."""
    order = compare_offsets(one, other)
    if order is None:
        raise SinkBatchInvalid(
            f"In a batch the source {source!r} is at {_shown(one)}, neither before nor after {_shown(other)}.",
            rule="All queries read a source in timestamp order, so they pass the same positions.",
            remedy="Start the query at a timestamp instead of a custom cut, and use the home that the sink started in.",
            source=source,
            offset=one.save(),
            other=other.save(),
        )
    return order


def _shown(offset: SourceOffset) -> str:
    return f"{offset.ts} {dict(sorted(offset.cut.items()))}"
