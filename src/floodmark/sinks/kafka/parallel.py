"""Parallel mode: several tasks write one batch, each for a group of partitions, in a transaction of its own.

Each group has its own progress record, so a task that is retried or runs twice does no harm. When all groups have
written a batch, the driver closes it with the sink's own record, which also carries the watermarks. Readers may see
the rows of a batch group by group.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.errors import SinkBatchInvalid, SinkGroupsUnequal, SinkTopicUnfit
from floodmark.kafka import KafkaSettings
from floodmark.sinks.gate import (
    Batch,
    Drop,
    SplitAt,
    Write,
    WriteFrom,
    decide_batch,
    is_at_most,
    misaligned_error,
    required_stops,
)
from floodmark.sinks.kafka.rows import OutRows, RowColumns
from floodmark.sinks.kafka.target import KafkaTarget
from floodmark.sinks.progress import GroupLayout, Progress, check_layout, group_name, group_of
from floodmark.sinks.sink import BaseSink, BatchOutcome
from floodmark.sinks.startup import BoundsLookup, GroupStart, Resume, Start, decide_group_start
from floodmark.sinks.target import Failpoint, SinkMode, TargetOptions, no_failpoint


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a task has written for its group."""

    group: int
    ends: QueryPosition
    rows: int
    """Rows written by this attempt."""
    total: int
    """Rows written by the group in total; group 0 also counts those from before there were groups."""


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """Writes one group of a batch, in any process; it can be pickled."""

    settings: KafkaSettings
    options: TargetOptions
    base: Progress
    """The closed record, which all groups have reached."""
    group: int

    def write(
        self,
        rows: Callable[[Write | WriteFrom], Iterable[OutRows]],
        batch: Batch,
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> GroupResult:
        """Fence, read the group's progress, and write the batch unless the group has; also if it has no rows.

        `rows` returns the rows of this group; each must name its partition.
        """
        layout = self.base.layout
        assert layout is not None
        target = KafkaTarget(
            self.settings,
            self.base.topic,
            group_name(self.base.sink, layout, self.group),
            replace(self.options, marks=False),
            failpoint=failpoint,
        )
        try:
            # Group 0 also counts the rows written before this layout.
            progress = target.resume(self.base, total=self.base.total if self.group == 0 else 0)
            decision = decide_batch(progress, batch)
            if isinstance(decision, SplitAt):
                raise misaligned_error(decision, batch)
            if isinstance(decision, Drop) and not decision.adopt:
                return GroupResult(self.group, progress.ends, 0, progress.total)
            checked = () if isinstance(decision, Drop) else _check_partitions(rows(decision), self.group, layout)
            written = target.write(checked, batch, decision)
            return GroupResult(self.group, written.ends, written.total - progress.total, written.total)
        finally:
            target.close()


class GroupedTarget:
    """The driver's side of parallel mode: starts all groups, creates their writers, closes batches. Not thread-safe."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        sink: str,
        layout: GroupLayout,
        options: TargetOptions = TargetOptions(),  # noqa: B008
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Write for this sink with these groups; the version of the layout is chosen by `start`."""
        # The progress topic must stay the same if the sink begins in another topic.
        named = replace(options, progress_topic=options.progress_topic or f"{topic}.progress")
        self._options = replace(named, partitions=layout.partitions)
        self._target = KafkaTarget(settings, topic, sink, self._options, failpoint=failpoint)
        self._requested = check_layout(layout)
        self._start: GroupStart | None = None

    @property
    def sink(self) -> str:
        """Name of the sink."""
        return self._target.sink

    @property
    def mode(self) -> SinkMode:
        """Rows of a batch appear group by group."""
        return "parallel"

    @property
    def address(self) -> str:
        """URL of the topic, without secrets."""
        return self._target.address

    @property
    def version(self) -> int:
        """Version of the program."""
        return self._target.version

    @property
    def progress(self) -> Progress | None:
        """The closed record, which all groups have reached."""
        return self._target.progress

    def start(self, bounds: BoundsLookup, known: Progress | None = None, query_id: str | None = None) -> Start:
        """Fence the earlier driver, then every group; read their progress and decide how to start."""
        target = self._target
        start = target.start(bounds, known)
        self._start = None
        topic = target.cluster.topic(target.topic)
        if topic.partitions < self._requested.partitions:
            raise SinkTopicUnfit(
                f"The topic {topic.name!r} has {topic.partitions} partitions; the layout {self._requested.partitions}.",
                rule="A topic needs at least as many partitions as the layout.",
                remedy=f"Add partitions to the topic, or use a layout of at most {topic.partitions}.",
                topic=topic.name,
                partitions=topic.partitions,
            )
        if not isinstance(start, Resume):
            return start
        closed = self._record_start(start.progress)
        groups = self._fence_groups(closed)
        group_start = decide_group_start(closed, groups, requested=self._requested, query_id=query_id)
        if group_start.close_first is not None:
            last, rows = group_start.close_first, sum(group.total for group in groups.values()) - closed.total
            written = Batch(last.query_id, last.starts, last.ends, closed.is_stateful)
            closed = target.record(written, Write(), rows=rows)
        if group_start.is_change(closed):
            closed = target.record(_last_batch(closed), Drop(), rows=0, layout=group_start.layout)
        self._start = group_start
        return Resume(closed)

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where batches of the query must end; `starts` is where the query resumes, None a new query."""
        own = required_stops(self.progress, starts, is_stateful=is_stateful)
        # The first stop of the groups is the closed record, which is among the sink's own stops.
        return own if self._start is None else (*own, *self._start.stops[1:])

    def writers(self, batch: Batch) -> list[GroupWriter]:
        """Return a writer for each group; none if the batch was written.

        Before the first rows of a sink, a progress record claims the topic.
        """
        target = self._target
        if target.progress is None:
            if isinstance(decide_batch(None, batch), Drop):
                return []
            target.record(replace(batch, ends=batch.starts), Write(), rows=0, layout=self._requested, start=1)
        base = target.progress
        assert base is not None
        assert base.layout is not None
        decision = decide_batch(base, batch)
        if isinstance(decision, SplitAt):
            raise misaligned_error(decision, batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return []
        return [GroupWriter(target.settings, self._options, base, group) for group in range(base.layout.groups)]

    def close_batch(
        self, batch: Batch, results: Iterable[GroupResult], *, watermarks: Mapping[str, int] | None = None
    ) -> Progress:
        """Record that all groups have written a batch, or raise an error that names those that have not."""
        base = self._target.progress
        assert base is not None
        assert base.layout is not None
        by_group = {result.group: result for result in results}
        missing = [
            group
            for group in range(base.layout.groups)
            # Without state, a group may be ahead of the batch.
            if group not in by_group or not is_at_most(batch.ends, by_group[group].ends)
        ]
        if missing:
            raise SinkGroupsUnequal(
                f"Groups {missing} of the sink {self._target.sink!r} have not written the batch.",
                rule="A batch is closed only when all groups have written it, also those without rows.",
                remedy="Run the tasks of these groups again.",
                sink=self._target.sink,
                groups=missing,
            )
        self._start = None
        decision = decide_batch(base, batch)
        assert not isinstance(decision, SplitAt), "writers() refuses such a batch"
        rows = sum(result.total for result in by_group.values()) - base.total
        return self._target.record(batch, decision, rows=rows, watermarks=watermarks)

    def forget_fence(self) -> None:
        """Let the target start again after a process that started earlier has fenced it."""
        self._target.forget_fence()

    def close(self) -> None:
        """Abort the open transaction and close the connection."""
        self._target.close()

    def _record_start(self, closed: Progress) -> Progress:
        """Record, before the groups are fenced, that this driver has started: no task of an earlier one then begins."""
        if closed.layout is None:
            return closed
        return self._target.record(_last_batch(closed), Drop(), rows=0, start=closed.start + 1)

    def _fence_groups(self, closed: Progress) -> dict[int, Progress]:
        """Fence all groups of the current layout, and return their progress."""
        layout = closed.layout
        if layout is None:
            return {}
        names = {group_name(closed.sink, layout, group): group for group in range(layout.groups)}
        progress = self._target.fence(names)
        # Skip groups of an earlier topic, from before the sink began in this one.
        return {names[name]: group for name, group in progress.items() if group.topic_id == closed.topic_id}


def _last_batch(closed: Progress) -> Batch:
    return Batch(closed.query_id, closed.starts, closed.ends, closed.is_stateful)


def _check_partitions(rows: Iterable[OutRows], group: int, layout: GroupLayout) -> Iterator[OutRows]:
    for piece in rows:
        for partition in _partitions_of(piece):
            if partition is None or not 0 <= partition < layout.partitions or group_of(partition, layout) != group:
                raise SinkBatchInvalid(
                    f"A row for partition {partition} came to group {group} of {layout.groups}.",
                    rule="A group writes only its own partitions; else two groups could write the same row.",
                    remedy="Set each row's partition with partition_of(), and send it to group_of(partition, layout).",
                    partition=partition,
                    group=group,
                )
        yield piece


def _partitions_of(piece: OutRows) -> set[int | None]:
    if not isinstance(piece, RowColumns):
        return {row[3] for row in piece}
    return {None} if piece.partitions is None else set(piece.partitions.unique().to_pylist())


class GroupedSink(BaseSink[GroupedTarget]):
    """Writes each batch of a query once, from several tasks."""

    def start(self, query_id: str | None = None) -> Start:
        """Start the target, for the query `query_id` if it is known, and move the holds to the progress found."""
        return self._register_and_start(lambda bounds, known: self._target.start(bounds, known, query_id))

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where batches of the query must end; `starts` is where the query resumes, None a new query."""
        return self._target.batch_stops(starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        run: Callable[[Sequence[GroupWriter]], Iterable[GroupResult]],
        *,
        watermarks: Mapping[str, int] | None = None,
    ) -> BatchOutcome:
        """Write a batch unless it was written before, and return what was done.

        `run` runs all writers, in any process, and returns their results.
        """

        def write() -> BatchOutcome:
            return self._write(batch, run, watermarks)

        return self._retry_as_newest(write, lambda: self.start(batch.query_id))

    def _write(
        self,
        batch: Batch,
        run: Callable[[Sequence[GroupWriter]], Iterable[GroupResult]],
        watermarks: Mapping[str, int] | None,
    ) -> BatchOutcome:
        decision = self._decide(batch)
        writers = self._target.writers(batch)
        if not writers:
            return BatchOutcome(Drop(), self.progress)
        return self._record_progress(decision, self._target.close_batch(batch, run(writers), watermarks=watermarks))
