"""Parallel mode: several tasks write a batch, each for a group of partitions, in a transaction of its own.

Each group has its own record of what it has written, so a task that is retried or runs twice does no harm. When
all groups have written a batch, the driver closes it with a record of its own, which also carries the
watermarks. Rows of one batch may appear group by group.
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
    """What a task has done for its group."""

    group: int
    ends: QueryPosition
    rows: int
    """How many rows this attempt has written."""
    total: int
    """How many the group has written in all, the first one also those from before there were groups."""


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """What one task does for one group. It can be sent to another process."""

    settings: KafkaSettings
    options: TargetOptions
    base: Progress
    """The closed record: what all groups have written."""
    group: int

    def write(
        self,
        rows: Callable[[Write | WriteFrom], Iterable[OutRows]],
        batch: Batch,
        *,
        failpoint: Failpoint = no_failpoint,
    ) -> GroupResult:
        """Fence, read what the group has written, and write the batch unless it was: also if it has no rows.

        `rows` are those of this group's partitions, which each of them names.
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
            # Somebody must count what was written before the layout.
            progress = target.resume(self.base, total=self.base.total if self.group == 0 else 0)
            decision = decide_batch(progress, batch)
            if isinstance(decision, SplitAt):
                raise misaligned_error(decision, batch)
            if isinstance(decision, Drop) and not decision.adopt:
                return GroupResult(self.group, progress.ends, 0, progress.total)
            found = () if isinstance(decision, Drop) else _check_partitions(rows(decision), self.group, layout)
            written = target.write(found, batch, decision)
            return GroupResult(self.group, written.ends, written.total - progress.total, written.total)
        finally:
            target.close()


class GroupedTarget:
    """The driver's side: it starts all groups, gives out their writers, and closes batches. One thread at a time."""

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
        """Write for this sink, in groups of this layout; its version is chosen when it starts."""
        # Where progress is recorded must not depend on a topic that the sink may have to make for itself.
        named = replace(options, progress_topic=options.progress_topic or f"{topic}.progress")
        self._options = replace(named, partitions=layout.partitions)
        self._target = KafkaTarget(settings, topic, sink, self._options, failpoint=failpoint)
        self._wanted = check_layout(layout)
        self._start: GroupStart | None = None

    @property
    def sink(self) -> str:
        """The name of the sink."""
        return self._target.sink

    @property
    def mode(self) -> SinkMode:
        """Rows of a batch appear group by group."""
        return "parallel"

    @property
    def address(self) -> str:
        """What names the target."""
        return self._target.address

    @property
    def version(self) -> int:
        """The version of the program."""
        return self._target.version

    @property
    def progress(self) -> Progress | None:
        """What all groups have written."""
        return self._target.progress

    def start(self, bounds: BoundsLookup, query_id: str | None = None) -> Start:
        """Fence the driver before, and then every group; read what they have written, and decide."""
        target = self._target
        start = target.start(bounds)
        self._start = None
        topic = target.cluster.topic(target.topic)
        if topic.partitions < self._wanted.partitions:
            raise SinkTopicUnfit(
                f"{topic.name!r} has {topic.partitions} partitions, and its layout {self._wanted.partitions}.",
                rule="Each row is sent to a partition of the layout.",
                remedy="Add partitions to the topic, or use a layout of as many as it has.",
                topic=topic.name,
                partitions=topic.partitions,
            )
        if not isinstance(start, Resume):
            return start
        closed, groups = start.progress, self._groups(start.progress)
        found = decide_group_start(closed, groups, wanted=self._wanted, query_id=query_id)
        if found.close_first is not None:
            one, rows = found.close_first, sum(one.total for one in groups.values()) - closed.total
            written = Batch(one.query_id, one.starts, one.ends, closed.is_stateful)
            closed = target.record(written, Write(), rows=rows)
        if found.is_change(closed):
            here = Batch(closed.query_id, closed.starts, closed.ends, closed.is_stateful)
            closed = target.record(here, Drop(), rows=0, layout=found.layout)
        self._start = found
        return Resume(closed)

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        own = required_stops(self.progress, starts, is_stateful=is_stateful)
        # The first of those that the groups have is where all of them are, which is among the others.
        return own if self._start is None else (*own, *self._start.stops[1:])

    def writers(self, batch: Batch) -> list[GroupWriter]:
        """Return a writer for each group, or none if all of them have written the batch.

        Before the first rows of a sink, it is recorded that they are its own.
        """
        target = self._target
        if target.progress is None:
            if isinstance(decide_batch(None, batch), Drop):
                return []
            target.record(replace(batch, ends=batch.starts), Write(), rows=0, layout=self._wanted)
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
        """Record that all groups have written a batch, or say which have not."""
        base = self._target.progress
        assert base is not None
        assert base.layout is not None
        found = {result.group: result for result in results}
        missing = [
            group
            for group in range(base.layout.groups)
            # One that is ahead has written it too; windows are never so.
            if group not in found or not is_at_most(batch.ends, found[group].ends)
        ]
        if missing:
            raise SinkGroupsUnequal(
                f"Groups {missing} of the sink {self._target.sink!r} have not written the batch.",
                rule="A batch is closed when all groups have written it, also those without rows.",
                remedy="Run their tasks again.",
                sink=self._target.sink,
                groups=missing,
            )
        self._start = None
        decision = decide_batch(base, batch)
        assert not isinstance(decision, SplitAt), "no writer was given out for it"
        rows = sum(one.total for one in found.values()) - base.total
        return self._target.record(batch, decision, rows=rows, watermarks=watermarks)

    def close(self) -> None:
        """Let go of Kafka."""
        self._target.close()

    def _groups(self, closed: Progress) -> dict[int, Progress]:
        """Fence all groups of the layout in use, and return what they have written."""
        layout = closed.layout
        if layout is None:
            return {}
        names = {group_name(closed.sink, layout, group): group for group in range(layout.groups)}
        fenced = self._target.fence(names)
        # Groups that have written to another topic, before the sink began elsewhere, were others.
        return {names[name]: one for name, one in fenced.items() if one.topic_id == closed.topic_id}


def _check_partitions(rows: Iterable[OutRows], group: int, layout: GroupLayout) -> Iterator[OutRows]:
    for piece in rows:
        for partition in _partitions_of(piece):
            if partition is None or not 0 <= partition < layout.partitions or group_of(partition, layout) != group:
                raise SinkBatchInvalid(
                    f"A row for partition {partition} came to group {group} of {layout.groups}.",
                    rule="A group writes its own partitions, or a row could be written by two.",
                    remedy="Give each row its partition with partition_of(), and send it to the group of that.",
                    partition=partition,
                    group=group,
                )
        yield piece


def _partitions_of(piece: OutRows) -> set[int | None]:
    if not isinstance(piece, RowColumns):
        return {row[3] for row in piece}
    return {None} if piece.partitions is None else set(piece.partitions.unique().to_pylist())


class GroupedSink(BaseSink[GroupedTarget]):
    """Writes the batches of a query from several tasks, each row once."""

    def start(self, query_id: str | None = None) -> Start:
        """Start the target, for this query if it is known. Then holds are where the progress says."""
        return self._started(lambda bounds: self._target.start(bounds, query_id))

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return self._target.cuts(starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        run: Callable[[Sequence[GroupWriter]], Iterable[GroupResult]],
        *,
        watermarks: Mapping[str, int] | None = None,
    ) -> BatchOutcome:
        """Write a batch unless it was written, and return what became of it.

        `run` lets each writer write the rows of its group, in any process, and returns what they return.
        """
        decision = self._decided(batch)
        writers = self._target.writers(batch)
        if not writers:
            return BatchOutcome(Drop(), self.progress)
        return self._wrote(decision, self._target.close_batch(batch, run(writers), watermarks=watermarks))
