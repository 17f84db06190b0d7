"""A sink as a query uses it: it holds, asks the gate, writes, and then moves its holds. Always in this order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from floodmark.bindings import Bindings, Place, Stop
from floodmark.control import Home
from floodmark.sinks._failpoints import HOLD_ADVANCED, Failpoint, go_on
from floodmark.sinks._gate import Batch, Cut, Drop, Write, WriteFrom, cuts, decide, misaligned
from floodmark.sinks._progress import Progress
from floodmark.sinks._sinks import Mode, Sinks
from floodmark.sinks._source_holds import SourceHolds
from floodmark.sinks._startup import BoundsOf, Resume, Start
from floodmark.sinks._target_options import Step

R_contra = TypeVar("R_contra", contravariant=True)
R = TypeVar("R")


class Named(Protocol):
    """What a home must know of a target."""

    @property
    def sink(self) -> str:
        """The name of the sink."""

    @property
    def mode(self) -> Mode:
        """How its rows appear."""

    @property
    def address(self) -> str:
        """What names the target."""

    @property
    def version(self) -> int:
        """The version of the program that writes."""

    @property
    def progress(self) -> Progress | None:
        """What was written."""

    def close(self) -> None:
        """Let go."""


class Target(Named, Protocol[R_contra]):
    """Where a sink writes: rows and the record of them become visible together, or not at all."""

    def start(self, bounds: BoundsOf) -> Start:
        """Fence, read progress, decide."""

    def write(
        self,
        rows: R_contra | tuple[()],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Progress:
        """Write, and return the record."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch, and the progress after it."""

    decision: Write | WriteFrom | Drop
    progress: Progress | None

    @property
    def rows(self) -> int:
        """How many rows were written; those of a batch that was dropped were before."""
        return 0 if self.progress is None or isinstance(self.decision, Drop) else self.progress.rows


T = TypeVar("T", bound=Named)


class HeldSink(Generic[T]):
    """What sinks of all kinds do: the home knows them, and what they may need of their sources is kept."""

    def __init__(self, home: Home, target: T, *, failpoint: Failpoint = go_on) -> None:
        """Write to this target; sources and holds are in this home."""
        self._target = target
        self._sinks = Sinks(home)
        self._holds = SourceHolds(Bindings(home), target.sink)
        self._failpoint = failpoint

    @property
    def progress(self) -> Progress | None:
        """What it has written, as far as this process knows."""
        return self._target.progress

    def close(self) -> None:
        """Let go of the target. The holds stay: a sink that is not dropped goes on some day."""
        self._target.close()

    def _started(self, start: Callable[[BoundsOf], Start]) -> Start:
        """Start the target. Then holds are where the progress says."""
        target = self._target
        self._sinks.register(target.sink, target=target.address, mode=target.mode, version=target.version)
        found = start(self._holds.bounds)
        if isinstance(found, Resume):
            self._holds.follow(found.progress)
            self._sinks.record(target.sink, found.progress)
        return found

    def _decided(self, batch: Batch) -> Write | WriteFrom | Drop:
        """Return what becomes of a batch. What the first one needs is held before anything is written."""
        decision = decide(self.progress, batch)
        if isinstance(decision, Cut):
            raise misaligned(decision, batch)
        if self.progress is None and not isinstance(decision, Drop):
            self._holds.take(batch.ends)
        return decision

    def _wrote(self, decision: Write | WriteFrom | Drop, progress: Progress) -> Outcome:
        self._holds.follow(progress)
        self._failpoint(HOLD_ADVANCED)
        self._sinks.record(self._target.sink, progress)
        return Outcome(decision, progress)


class Sink(HeldSink[Target[R]], Generic[R]):
    """Writes the batches of a query to a target, each once."""

    def start(self) -> Start:
        """Start the target: fence, read progress, decide."""
        return self._started(self._target.start)

    def cuts(self, starts: Place | None, *, is_stateful: bool) -> tuple[Stop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return cuts(self.progress, starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        rows: Callable[[Write | WriteFrom], R],
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], Step] | None = None,
    ) -> Outcome:
        """Write a batch unless it was written, and return what became of it.

        `rows` is called, at most once, if there is anything to be written, with which rows that is.
        """
        decision = self._decided(batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return Outcome(decision, self.progress)
        found = () if isinstance(decision, Drop) else rows(decision)
        progress = self._target.write(found, batch, decision, watermarks=watermarks, split=split)
        return self._wrote(decision, progress)
