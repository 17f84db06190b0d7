"""A query, its sources and its checkpoints, small enough to be run thousands of times, with a sink whose gate is tried.

What a batch puts out is what Spark would: rows as they come, or the windows that were closed where the batch began.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from floodmark.bindings import SourceOffset
from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.errors import FloodmarkError
from floodmark.sinks.gate import (
    Batch,
    Drop,
    SplitAt,
    Write,
    WriteFrom,
    advance_sources,
    decide_batch,
    is_at_most,
    is_same,
    misaligned_error,
    required_stops,
)
from floodmark.sinks.progress import Progress

WIDTH = 10
_BEGINNING = SourceOffset("q", None, {})


def is_written(after: SourceOffset, row: "Row") -> bool:
    """Return whether a row lies below the recorded progress: by its timestamp, then by its offset."""
    if after.ts is None or row.ts != after.ts:
        return after.ts is not None and row.ts < after.ts
    return row.number < after.cut.get(0, 0)


@dataclass(frozen=True)
class Row:
    source: str
    number: int
    ts: int
    time: int
    watermark: int
    """That of the place of the row."""

    @property
    def window(self) -> int:
        return self.time // WIDTH * WIDTH

    @property
    def is_late(self) -> bool:
        return self.window + WIDTH <= self.watermark


class Source:
    """Rows in timestamps 1, 2, ..., with a watermark after each. Times lie on a coarse grid."""

    def __init__(self, name: str, dice: Random) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.ends, self.watermarks = [0], [0]
        for ts in range(1, dice.randint(3, 7)):
            for _ in range(dice.choice((0, 1, 1, 2, 3))):
                time = self.watermarks[-1] + 5 * dice.randint(-1, 6)
                self.rows.append(Row(name, len(self.rows), ts, max(time, 0), self.watermarks[-1]))
            self.ends.append(len(self.rows))
            self.watermarks.append(self.watermarks[-1] + 5 * dice.randint(0, 3))
        # Everything is closed in the end, and a batch comes after that.
        for watermark in (1_000, 1_000):
            self.ends.append(len(self.rows))
            self.watermarks.append(watermark)
        self.offsets = [_BEGINNING]
        for ts in range(1, len(self.ends)):
            inside = range(self.ends[ts - 1] + 1, self.ends[ts])
            self.offsets += [SourceOffset("q", ts, {0: end}) for end in (*inside, self.ends[ts])]

    def watermark(self, offset: SourceOffset) -> int:
        """Return that of the last timestamp that was read to its end."""
        if offset.ts is None:
            return 0
        return self.watermarks[offset.ts if offset.cut[0] == self.ends[offset.ts] else offset.ts - 1]


@dataclass
class Checkpoint:
    query_id: str
    planned: list[QueryPosition] = field(default_factory=list)
    states: list[Counter[int]] = field(default_factory=list)

    @property
    def committed(self) -> int:
        return len(self.states)

    def copy(self) -> "Checkpoint":
        return Checkpoint(self.query_id, list(self.planned), [Counter(state) for state in self.states])

    def until(self, batches: int, *, planned: bool) -> "Checkpoint":
        kept = self.copy()
        del kept.states[batches:], kept.planned[batches + planned :]
        return kept


class Gate(Protocol):
    """What may be asked whether a batch is to be written. It keeps what it has learned in the target."""

    def batch_stops(self, starts: QueryPosition | None) -> tuple[BatchStop, ...]: ...
    def write(self, batch: Batch, number: int, output: list[tuple[Hashable, Row | None]]) -> list[Hashable]: ...


class Floodmarks:
    """The gate of the sinks."""

    def __init__(self, *, is_stateful: bool) -> None:
        self.is_stateful = is_stateful
        self.progress: Progress | None = None

    def batch_stops(self, starts: QueryPosition | None) -> tuple[BatchStop, ...]:
        return required_stops(self.progress, starts, is_stateful=self.is_stateful)

    def write(self, batch: Batch, number: int, output: list[tuple[Hashable, Row | None]]) -> list[Hashable]:
        decision = decide_batch(self.progress, batch)
        if isinstance(decision, SplitAt):
            raise misaligned_error(decision, batch)
        known = self.progress or Progress("K", "out", "t1", 1, "", batch.starts, batch.starts, self.is_stateful)
        self.progress = advance_sources(known, batch, decision)
        match decision:
            case Write():
                return [value for value, _ in output]
            case Drop():
                return []
            case WriteFrom(after):
                return [value for value, row in output if row and not is_written(after[row.source], row)]


class Query:
    """Runs batches of a query against a gate, and is stopped and started again in many ways."""

    def __init__(self, dice: Random, gate: Gate, *, is_stateful: bool, sources: int) -> None:
        self.dice = dice
        self.gate = gate
        self.is_stateful = is_stateful
        self.sources = {name: Source(name, dice) for name in "ab"[:sources]}
        self.written: list[Hashable] = []
        self.refused = 0
        self._queries = 0
        self.checkpoint = self._new()
        self.old: list[Checkpoint] = []
        self._stops = gate.batch_stops(None)

    @property
    def expected(self) -> Counter[Hashable]:
        rows = [row for source in self.sources.values() for row in source.rows]
        if not self.is_stateful:
            return Counter((row.source, row.number) for row in rows)
        windows = Counter(row.window for row in rows if not row.is_late)
        return Counter(windows.items())

    def run(self) -> None:
        """Run to the end, with crashes on the way."""
        crashes = self.dice.randint(1, 5)
        while not self._is_over():
            crashed = self._batch(crashes > 0)
            if crashed:
                crashes -= 1
                self._restart()

    def _batch(self, may_crash: bool) -> bool:
        checkpoint, dice = self.checkpoint, self.dice
        if len(checkpoint.planned) == checkpoint.committed:
            checkpoint.planned.append(self._plan())
        if may_crash and dice.random() < 0.15:
            return True
        number = checkpoint.committed
        starts, ends = self._end(number - 1), checkpoint.planned[number]
        output, state = self._compute(starts, ends)
        batch = Batch(checkpoint.query_id, starts, ends, self.is_stateful)
        try:
            self.written += self.gate.write(batch, number, output)
        except FloodmarkError:
            # The remedy it names: a new checkpoint.
            self.refused += 1
            self._start(self._new())
            return False
        if may_crash and dice.random() < 0.3:
            return True
        checkpoint.states.append(state)
        self.old.append(checkpoint.copy())
        return False

    def _plan(self) -> QueryPosition:
        """Choose where a batch ends: anywhere, but not beyond a place where all must end."""
        start = self._end(self.checkpoint.committed - 1)
        self._stops = tuple(stop for stop in self._stops if not is_same(stop.position, start))
        limits = self._stops[0].position if self._stops else None
        if self._stops and self._stops[0].in_one:
            return self._stops[0].position
        last = {name: source.offsets[-2] for name, source in self.sources.items()}
        if limits is None and not is_at_most(last, start):
            # A source ticks once more when the watermark has moved for the last time.
            limits = last
        for _ in range(1_000):
            end: dict[str, SourceOffset] = {}
            for name, source in self.sources.items():
                first = source.offsets.index(start[name])
                most = len(source.offsets) - 1 if limits is None else source.offsets.index(limits[name])
                end[name] = source.offsets[self.dice.randint(first, max(min(most, first + 5), first))]
            if not is_same(start, end):
                return end
        raise AssertionError("the query does not move")

    def _compute(
        self, starts: QueryPosition, ends: QueryPosition
    ) -> tuple[list[tuple[Hashable, Row | None]], Counter[int]]:
        rows = [
            row
            for name, source in self.sources.items()
            for row in source.rows[starts[name].cut.get(0, 0) : ends[name].cut.get(0, 0)]
        ]
        number = self.checkpoint.committed
        state = Counter(self.checkpoint.states[number - 1] if number else {})
        if not self.is_stateful:
            return [((row.source, row.number), row) for row in rows], state
        state.update(row.window for row in rows if not row.is_late)
        watermark = min(source.watermark(starts[name]) for name, source in self.sources.items())
        closed = [window for window in state if window + WIDTH <= watermark]
        return [((window, state.pop(window)), None) for window in closed], state

    def _restart(self) -> None:
        """Go on with the checkpoint, with none, or with an older one that somebody has put back."""
        how = self.dice.choice(("kept", "kept", "deleted", "older"))
        if how == "deleted":
            self._start(self._new())
        elif how == "older" and self.old:
            old = self.dice.choice(self.old)
            self._start(old.until(self.dice.randint(0, old.committed), planned=self.dice.random() < 0.5))
        else:
            self._start(self.checkpoint)

    def _start(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        begun = len(checkpoint.planned)
        self._stops = self.gate.batch_stops(self._end(begun - 1) if begun else None)

    def _new(self) -> Checkpoint:
        self._queries += 1
        return Checkpoint(f"q{self._queries}")

    def _end(self, number: int) -> QueryPosition:
        return dict.fromkeys(self.sources, _BEGINNING) if number < 0 else self.checkpoint.planned[number]

    def _is_over(self) -> bool:
        end = self._end(self.checkpoint.committed - 1)
        return all(end[name] == source.offsets[-1] for name, source in self.sources.items())
