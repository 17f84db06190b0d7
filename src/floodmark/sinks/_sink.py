"""A sink as a query uses it: it holds, asks the gate, writes, and then moves its holds. Always in this order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from floodmark.bindings import Bindings, Place, Stop
from floodmark.control import Home
from floodmark.sinks._failpoints import HOLD_ADVANCED, Failpoint, go_on
from floodmark.sinks._gate import Batch, Cut, Drop, Write, WriteFrom, cuts, decide, misaligned
from floodmark.sinks._out_rows import OutRow
from floodmark.sinks._progress import Progress
from floodmark.sinks._sinks import Sinks
from floodmark.sinks._source_holds import SourceHolds
from floodmark.sinks._startup import Bounds, Resume, Start
from floodmark.sinks._target_options import Step

Rows = Iterable[Sequence[OutRow]]


class Target(Protocol):
    """Where a sink writes: rows and the record of them become visible together, or not at all."""

    sink: str

    @property
    def progress(self) -> Progress | None:
        """What was written."""

    @property
    def address(self) -> str:
        """What names the target."""

    @property
    def version(self) -> int:
        """The version of the program that writes."""

    def start(self, bounds: Callable[[Iterable[str]], Mapping[str, Bounds]]) -> Start:
        """Fence, read progress, decide."""

    def write(
        self,
        rows: Rows,
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Progress:
        """Write, and return the record."""

    def close(self) -> None:
        """Let go."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch, and the progress after it."""

    decision: Write | WriteFrom | Drop
    progress: Progress | None

    @property
    def rows(self) -> int:
        """How many rows were written; those of a batch that was dropped were before."""
        return 0 if self.progress is None or isinstance(self.decision, Drop) else self.progress.rows


class Sink:
    """Writes the batches of a query to a target, each once."""

    def __init__(self, home: Home, target: Target, *, failpoint: Failpoint = go_on) -> None:
        """Write to this target; sources and holds are in this home."""
        self._target = target
        self._sinks = Sinks(home)
        self._holds = SourceHolds(Bindings(home), target.sink)
        self._failpoint = failpoint

    @property
    def name(self) -> str:
        """Its name."""
        return self._target.sink

    @property
    def progress(self) -> Progress | None:
        """What it has written, as far as this process knows."""
        return self._target.progress

    def start(self) -> Start:
        """Start the target: fence, read progress, decide. Then holds are where the progress says."""
        target = self._target
        self._sinks.register(target.sink, target=target.address, mode="atomic", version=target.version)
        start = target.start(self._holds.bounds)
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
        rows: Callable[[Write | WriteFrom], Rows],
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Outcome:
        """Write a batch unless it was written, and return what became of it.

        `rows` is called, at most once, if there is anything to be written, with which rows that is.
        """
        decision = decide(self._target.progress, batch)
        if isinstance(decision, Cut):
            raise misaligned(decision, batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return Outcome(decision, self._target.progress)
        if self._target.progress is None:
            self._holds.take(batch.ends)
        found: Rows = () if isinstance(decision, Drop) else rows(decision)
        progress = self._target.write(found, batch, decision, watermarks=watermarks, split=split)
        self._holds.follow(progress)
        self._failpoint(HOLD_ADVANCED)
        self._sinks.record(self.name, progress)
        return Outcome(decision, progress)

    def close(self) -> None:
        """Let go of the target. The holds stay: a sink that is not dropped goes on some day."""
        self._target.close()
