"""A sink as a query uses it: hold the sources, check a batch at the gate, write it, then advance the holds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from floodmark.bindings import Bindings
from floodmark.bindings.offsets import BatchStop, QueryPosition, source_of_key
from floodmark.control import Home
from floodmark.errors import SinkFenced, TimestampNotValid, UnknownHold, UnknownSource
from floodmark.sinks.gate import Batch, Drop, SplitAt, Write, WriteFrom, decide_batch, misaligned_error, required_stops
from floodmark.sinks.progress import Progress, first_needed_timestamp
from floodmark.sinks.registry import Sinks, holder_of
from floodmark.sinks.startup import BoundsLookup, Resume, SourceBounds, Start
from floodmark.sinks.target import (
    HOLD_ADVANCED,
    CommitPoint,
    Failpoint,
    SinkTarget,
    TargetIdentity,
    fenced_error,
    no_failpoint,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What was done with a batch, and the progress after it."""

    decision: Write | WriteFrom | Drop
    progress: Progress | None

    @property
    def rows(self) -> int:
        """The number of rows written; 0 for a dropped batch."""
        return 0 if self.progress is None or isinstance(self.decision, Drop) else self.progress.rows


T = TypeVar("T", bound=TargetIdentity)


class BaseSink(Generic[T]):
    """Common part of all sinks: registration in the home, holds on the sources, the decision on each batch."""

    def __init__(self, home: Home, target: T, *, failpoint: Failpoint = no_failpoint) -> None:
        """Write to `target`; the sources and their holds are in `home`."""
        self._target = target
        self._sinks = Sinks(home)
        self._holds = SourceHolds(Bindings(home), target.sink)
        self._failpoint = failpoint
        self._number: int | None = None
        """The number of this process among the starts of the sink; the process with the highest one writes."""

    @property
    def progress(self) -> Progress | None:
        """The progress that this process last wrote or read; None before the first batch."""
        return self._target.progress

    def close(self) -> None:
        """Close the target. The holds stay until the sink is dropped, so that it can resume."""
        self._target.close()

    def _register_and_start(self, start: Callable[[BoundsLookup, Progress | None], Start]) -> Start:
        """Register the sink, start the target, and move the holds to the progress found."""
        target = self._target
        info = self._sinks.register(target.sink, target=target.address, mode=target.mode, version=target.version)
        if self._number is None:
            self._number = self._sinks.take_start(target.sink)
        else:
            self._require_newest()
            target.forget_fence()
        decision = start(self._holds.bounds, info.progress)
        # Compare again: to start fences every other process, also one that has started since.
        self._require_newest()
        if isinstance(decision, Resume):
            self._holds.advance(decision.progress)
            self._sinks.record(target.sink, decision.progress)
        return decision

    def _decide(self, batch: Batch) -> Write | WriteFrom | Drop:
        """Return the decision on a batch. Before the first batch is written, its sources are held."""
        decision = decide_batch(self.progress, batch)
        if isinstance(decision, SplitAt):
            raise misaligned_error(decision, batch)
        if self.progress is None and not isinstance(decision, Drop):
            self._holds.acquire(batch.ends)
        return decision

    def _is_newest(self) -> bool:
        return self._sinks.get(self._target.sink).starts == self._number

    def _require_newest(self) -> None:
        if not self._is_newest():
            self._target.close()
            raise fenced_error(self._target.sink, "it started")

    def _retry_as_newest(self, write: Callable[[], R], restart: Callable[[], Start]) -> R:
        """Return the result of `write`; start again if a process that started earlier has fenced this one.

        Such a process ends when it finds that it is not the newest.
        """
        for _ in range(_FENCED_ATTEMPTS):
            try:
                return write()
            except Exception as error:
                # Spark wraps an error of a task in its own, so it is recognised by its code.
                if SinkFenced.code not in str(error) or not self._is_newest():
                    raise
                restart()
        return write()

    def _record_progress(self, decision: Write | WriteFrom | Drop, progress: Progress) -> BatchOutcome:
        self._holds.advance(progress)
        self._failpoint(HOLD_ADVANCED)
        self._sinks.record(self._target.sink, progress)
        return BatchOutcome(decision, progress)


class Sink(BaseSink[SinkTarget[R]], Generic[R]):
    """Writes each batch of a query once to a target."""

    def start(self) -> Start:
        """Start the target: fence earlier processes, read the progress, decide how to go on."""
        return self._register_and_start(self._target.start)

    def batch_stops(self, starts: QueryPosition | None, *, is_stateful: bool) -> tuple[BatchStop, ...]:
        """Return where batches of the query must end; `starts` is where the query resumes, None a new query."""
        return required_stops(self.progress, starts, is_stateful=is_stateful)

    def write(
        self,
        batch: Batch,
        rows: Callable[[Write | WriteFrom], R],
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> BatchOutcome:
        """Write a batch unless it was written before, and return what was done.

        `rows` is called only if rows must be written, with the decision that says which; and again if a process that
        started earlier has interrupted this one.
        """
        return self._retry_as_newest(lambda: self._write(batch, rows, watermarks, split), self.start)

    def _write(
        self,
        batch: Batch,
        rows: Callable[[Write | WriteFrom], R],
        watermarks: Mapping[str, int] | None,
        split: Callable[[int], CommitPoint] | None,
    ) -> BatchOutcome:
        decision = self._decide(batch)
        if isinstance(decision, Drop) and not decision.adopt:
            return BatchOutcome(decision, self.progress)
        to_write = () if isinstance(decision, Drop) else rows(decision)
        progress = self._target.write(to_write, batch, decision, watermarks=watermarks, split=split)
        return self._record_progress(decision, progress)


_HOLD_ATTEMPTS: Final = 5
_FENCED_ATTEMPTS: Final = 5
"""How many earlier processes may interrupt the newest in one batch."""


class SourceHolds:
    """The holds of one sink on its sources. A hold advances only after the rows it kept readable were written."""

    def __init__(self, bindings: Bindings, sink: str) -> None:
        """Hold sources of these bindings for the sink."""
        self._bindings = bindings
        self._holder = holder_of(sink)

    def acquire(self, sources: Iterable[str]) -> None:
        """Hold each source at its since, so that nothing readable now is compacted."""
        for source in {source_of_key(key) for key in sources}:
            for attempt in range(_HOLD_ATTEMPTS):
                try:
                    self._move_hold(source, self._bindings.source(source).since)
                    break
                except TimestampNotValid:
                    # The source was compacted between the two calls: retry.
                    if attempt == _HOLD_ATTEMPTS - 1:
                        raise

    def bounds(self, sources: Iterable[str]) -> dict[str, SourceBounds]:
        """Hold the sources, then return what can be read of each. Sources without bindings are left out."""
        bounds = {}
        for key in sources:
            source = source_of_key(key)
            try:
                is_held = any(hold.holder == self._holder for hold in self._bindings.holds(source))
                self.acquire([source])
                bounds[key] = SourceBounds.of(self._bindings.source(source), is_held=is_held)
            except UnknownSource:
                continue
        return bounds

    def advance(self, progress: Progress) -> None:
        """Release what the sink no longer needs after this progress."""
        needed_by_source: dict[str, list[int | None]] = {}
        for key in progress.ends:
            needed_by_source.setdefault(source_of_key(key), []).append(first_needed_timestamp(progress, key))
        for source, needed in needed_by_source.items():
            since, stated = self._bindings.source(source).since, [ts for ts in needed if ts is not None]
            # One timestamp earlier, so that the first needed one stays distinct from the one before it.
            self._move_hold(source, since if len(stated) < len(needed) else max(min(stated) - 1, since))

    def _move_hold(self, source: str, ts: int) -> None:
        try:
            self._bindings.advance_hold(source, self._holder, ts)
        except UnknownHold:
            self._bindings.hold(source, self._holder, ts, "sink")
