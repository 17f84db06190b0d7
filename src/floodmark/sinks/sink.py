"""A sink as a query uses it: it holds its sources, asks the gate, writes, then advances its holds, in this order."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from floodmark.bindings import Bindings
from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.control import Home
from floodmark.errors import TimestampNotValid, UnknownHold, UnknownSource
from floodmark.sinks.gate import Batch, Drop, SplitAt, Write, WriteFrom, decide_batch, misaligned_error, required_stops
from floodmark.sinks.progress import Progress, first_needed_timestamp
from floodmark.sinks.registry import Sinks, holder_of
from floodmark.sinks.startup import BoundsLookup, Resume, SourceBounds, Start
from floodmark.sinks.target import HOLD_ADVANCED, CommitPoint, Failpoint, SinkTarget, TargetIdentity, no_failpoint

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of a batch, and the progress after it."""

    decision: Write | WriteFrom | Drop
    progress: Progress | None

    @property
    def rows(self) -> int:
        """How many rows were written; those of a batch that was dropped were before."""
        return 0 if self.progress is None or isinstance(self.decision, Drop) else self.progress.rows


T = TypeVar("T", bound=TargetIdentity)


class BaseSink(Generic[T]):
    """What sinks of all kinds do: the home knows them, and what they may need of their sources is kept."""

    def __init__(self, home: Home, target: T, *, failpoint: Failpoint = no_failpoint) -> None:
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

    def _started(self, start: Callable[[BoundsLookup], Start]) -> Start:
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
        decision = decide_batch(self.progress, batch)
        if isinstance(decision, SplitAt):
            raise misaligned_error(decision, batch)
        if self.progress is None and not isinstance(decision, Drop):
            self._holds.take(batch.ends)
        return decision

    def _wrote(self, decision: Write | WriteFrom | Drop, progress: Progress) -> BatchOutcome:
        self._holds.follow(progress)
        self._failpoint(HOLD_ADVANCED)
        self._sinks.record(self._target.sink, progress)
        return BatchOutcome(decision, progress)


class Sink(BaseSink[SinkTarget[R]], Generic[R]):
    """Writes the batches of a query to a target, each once."""

    def start(self) -> Start:
        """Start the target: fence, read progress, decide."""
        return self._started(self._target.start)

    def cuts(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where the batches of a query that goes on from `starts`, or begins, must end."""
        return required_stops(self.progress, starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        rows: Callable[[Write | WriteFrom], R],
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> BatchOutcome:
        """Write a batch unless it was written, and return what became of it.

        `rows` is called, at most once, if there is anything to be written, with which rows that is.
        """
        decision = self._decided(batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return BatchOutcome(decision, self.progress)
        found = () if isinstance(decision, Drop) else rows(decision)
        progress = self._target.write(found, batch, decision, watermarks=watermarks, split=split)
        return self._wrote(decision, progress)


_HOLD_ATTEMPTS: Final = 5


class SourceHolds:
    """The holds of one sink. They only move on, and only after what they kept was written."""

    def __init__(self, bindings: Bindings, sink: str) -> None:
        """Hold sources of these bindings."""
        self._bindings = bindings
        self._holder = holder_of(sink)

    def take(self, sources: Iterable[str]) -> None:
        """Before anything is written or decided, keep all that can still be read."""
        for source in sources:
            for attempt in range(_HOLD_ATTEMPTS):
                try:
                    self._move(source, self._bindings.source(source).since)
                    break
                except TimestampNotValid:
                    # It was compacted in between.
                    if attempt == _HOLD_ATTEMPTS - 1:
                        raise

    def bounds(self, sources: Iterable[str]) -> dict[str, SourceBounds]:
        """Hold sources, and return what can be read of them, which stays so; those without bindings are left out."""
        found = {}
        for source in sources:
            try:
                self.take([source])
                found[source] = SourceBounds.of(self._bindings.source(source))
            except UnknownSource:
                continue
        return found

    def follow(self, progress: Progress) -> None:
        """Let go of what a sink does not need any more, now that so much is written."""
        for source in progress.ends:
            needed, since = first_needed_timestamp(progress, source), self._bindings.source(source).since
            # What lies before the first timestamp that is needed must be told from it.
            self._move(source, since if needed is None else max(needed - 1, since))

    def _move(self, source: str, ts: int) -> None:
        try:
            self._bindings.advance_hold(source, self._holder, ts)
        except UnknownHold:
            self._bindings.hold(source, self._holder, ts, "sink")
