"""What is remembered of one origin whose rows make watermarks."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from floodmark._util.ints import Int64Array
from floodmark.progress._generators import GeneratorState

IdleCause = Literal["declared", "timeout"]
"""Why an origin is idle: it said so, or it was silent for long and had nothing unread."""


@dataclass(frozen=True, slots=True)
class OriginActivity:
    """One origin: when it was last heard of, why it is idle, and its rows from the future, which moved nothing."""

    state: str
    last_heard: int
    idle_cause: IdleCause | None
    future_rows: int
    newest_future: int | None


class OriginMemory:
    """The state of each key's generator, and what else was seen."""

    __slots__ = ("future_rows", "idle_cause", "last_heard", "newest_future", "states")

    def __init__(self, last_heard: int) -> None:
        self.states: dict[str, GeneratorState] = {}
        self.last_heard = last_heard
        self.idle_cause: IdleCause | None = None
        self.future_rows = 0
        self.newest_future: int | None = None

    def hear(self, now: int) -> None:
        """Take note that the origin spoke."""
        self.idle_cause = None
        self.last_heard = max(self.last_heard, now)

    def is_future(self, latest: int, limit: int | None) -> bool:
        """Return whether a row lies beyond the limit; if so it is counted."""
        if limit is None or latest <= limit:
            return False
        self._count_future(1, latest)
        return True

    def without_future(self, column: Int64Array, limit: int | None) -> Int64Array:
        """Return the rows that lie within the limit; the others are counted."""
        if limit is None or not len(column) or (newest := int(column.max())) <= limit:
            return column
        ahead = column > limit
        self._count_future(int(np.count_nonzero(ahead)), newest)
        return column[~ahead]

    def activity(self, state: str) -> OriginActivity:
        """Return what there is to tell of the origin, which is in this state."""
        return OriginActivity(state, self.last_heard, self.idle_cause, self.future_rows, self.newest_future)

    def save(self) -> list[Any]:
        """Return everything but when it was last heard of, which means nothing after a restart."""
        return [self.states, self.idle_cause, self.future_rows, self.newest_future]

    @classmethod
    def load(cls, saved: list[Any], now: int) -> "OriginMemory":
        """Return what was saved, last heard of now."""
        memory = cls(now)
        states, memory.idle_cause, memory.future_rows, memory.newest_future = saved
        memory.states = dict(states)
        return memory

    def _count_future(self, rows: int, newest: int) -> None:
        self.future_rows += rows
        self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)
