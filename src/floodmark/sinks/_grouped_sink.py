"""A sink of several groups as a query uses it: the same order as with one, and tasks do the writing."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from floodmark.bindings import Bindings, Place, Stop
from floodmark.control import Home
from floodmark.sinks._failpoints import HOLD_ADVANCED, Failpoint, go_on
from floodmark.sinks._gate import Batch, Cut, Drop, decide, misaligned
from floodmark.sinks._kafka_groups import GroupedTarget, GroupResult, GroupWriter
from floodmark.sinks._progress import Progress
from floodmark.sinks._sink import Outcome
from floodmark.sinks._sinks import Sinks
from floodmark.sinks._source_holds import SourceHolds
from floodmark.sinks._startup import Resume, Start


class GroupedSink:
    """Writes the batches of a query from several tasks, each row once."""

    def __init__(self, home: Home, target: GroupedTarget, *, failpoint: Failpoint = go_on) -> None:
        """Write to this target; sources and holds are in this home."""
        self._target = target
        self._sinks = Sinks(home)
        self._holds = SourceHolds(Bindings(home), target.sink)
        self._failpoint = failpoint

    @property
    def progress(self) -> Progress | None:
        """What all groups have written."""
        return self._target.progress

    def start(self, query_id: str | None = None) -> Start:
        """Start the target, for this query if it is known. Then holds are where the progress says."""
        target = self._target
        self._sinks.register(target.sink, target=target.address, mode="parallel", version=target.version)
        start = target.start(self._holds.bounds, query_id)
        if isinstance(start, Resume):
            self._follow(start.progress)
        return start

    def cuts(self, starts: Place | None, *, is_stateful: bool) -> tuple[Stop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return self._target.cuts(starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        run: Callable[[Sequence[GroupWriter]], Iterable[GroupResult]],
        *,
        watermarks: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Write a batch unless it was written, and return what became of it.

        `run` lets each writer write the rows of its group, in any process, and returns what they return.
        """
        decision = decide(self._target.progress, batch)
        if isinstance(decision, Cut):
            raise misaligned(decision, batch)
        if self._target.progress is None:
            self._holds.take(batch.ends)
        writers = self._target.writers(batch)
        if not writers:
            return Outcome(Drop(), self._target.progress)
        progress = self._target.close_batch(batch, run(writers), watermarks=watermarks)
        self._follow(progress)
        self._failpoint(HOLD_ADVANCED)
        return Outcome(decision, progress)

    def close(self) -> None:
        """Let go of the target. The holds stay: a sink that is not dropped goes on some day."""
        self._target.close()

    def _follow(self, progress: Progress) -> None:
        self._holds.follow(progress)
        self._sinks.record(self._target.sink, progress)
