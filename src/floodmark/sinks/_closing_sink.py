"""A sink whose batches are closed by records, as a query uses it: the same order as with transactions."""

from collections.abc import Callable, Mapping, Sequence

from floodmark.bindings import Bindings, Place, Stop
from floodmark.control import Home
from floodmark.sinks._closing_target import ClosingTarget
from floodmark.sinks._closings import Part
from floodmark.sinks._failpoints import HOLD_ADVANCED, Failpoint, go_on
from floodmark.sinks._gate import Batch, Cut, Drop, Write, WriteFrom, cuts, decide, misaligned
from floodmark.sinks._progress import Progress
from floodmark.sinks._sink import Outcome
from floodmark.sinks._sinks import Mode, Sinks
from floodmark.sinks._source_holds import SourceHolds
from floodmark.sinks._startup import Resume, Start


class ClosingSink:
    """Writes the batches of a query to a target, each once."""

    def __init__(self, home: Home, target: ClosingTarget, mode: Mode, *, failpoint: Failpoint = go_on) -> None:
        """Write to this target; sources and holds are in this home."""
        self._target = target
        self._mode = mode
        self._sinks = Sinks(home)
        self._holds = SourceHolds(Bindings(home), target.sink)
        self._failpoint = failpoint

    @property
    def progress(self) -> Progress | None:
        """What was written, as far as this process knows."""
        return self._target.progress

    def start(self) -> Start:
        """Start the target. Then holds are where the progress says."""
        target, version = self._target, self._target.options.version
        known = self._sinks.register(target.sink, target=target.log.address, mode=self._mode, version=version)
        start = target.start(self._holds.bounds, known.progress)
        if isinstance(start, Resume):
            self._holds.follow(start.progress)
            self._sinks.record(target.sink, start.progress)
        return start

    def cuts(self, starts: Place | None, *, is_stateful: bool) -> tuple[Stop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return cuts(self._target.progress, starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        run: Callable[[Write | WriteFrom, str], Sequence[Part]],
        *,
        watermarks: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Write a batch unless it was written, and return what became of it.

        `run` is called, at most once, if there is anything to be written, with which rows that is and for which
        attempt; it returns what it has made.
        """
        decision = decide(self._target.progress, batch)
        if isinstance(decision, Cut):
            raise misaligned(decision, batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return Outcome(decision, self._target.progress)
        if self._target.progress is None:
            self._holds.take(batch.ends)
        if isinstance(decision, Drop):
            progress = self._target.write(None, batch, decision, watermarks=watermarks)
        else:
            chosen = decision
            progress = self._target.write(lambda attempt: run(chosen, attempt), batch, decision, watermarks=watermarks)
        self._holds.follow(progress)
        self._failpoint(HOLD_ADVANCED)
        self._sinks.record(self._target.sink, progress)
        return Outcome(decision, progress)

    def close(self) -> None:
        """Let go of the target. The holds stay: a sink that is not dropped goes on some day."""
        self._target.close()
