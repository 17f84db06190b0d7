"""A sink of several groups as a query uses it: the same order as with one, and tasks do the writing."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from floodmark.bindings import Place, Stop
from floodmark.sinks._gate import Batch, Drop
from floodmark.sinks._kafka_groups import GroupedTarget, GroupResult, GroupWriter
from floodmark.sinks._sink import HeldSink, Outcome
from floodmark.sinks._startup import Start


class GroupedSink(HeldSink[GroupedTarget]):
    """Writes the batches of a query from several tasks, each row once."""

    def start(self, query_id: str | None = None) -> Start:
        """Start the target, for this query if it is known. Then holds are where the progress says."""
        return self._started(lambda bounds: self._target.start(bounds, query_id))

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
        decision = self._decided(batch)
        writers = self._target.writers(batch)
        if not writers:
            return Outcome(Drop(), self.progress)
        return self._wrote(decision, self._target.close_batch(batch, run(writers), watermarks=watermarks))
