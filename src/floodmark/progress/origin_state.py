"""The state of one origin: what its generators remember, when it was last active, and why it is idle."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from floodmark._util.ints import check_int64, check_number
from floodmark.progress.columns import Int64Array
from floodmark.progress.generators import GeneratorState

IdleCause = Literal["declared", "timeout"]
"""Why an origin is idle: it was declared so, or it was silent for the timeout and had nothing unread."""


@dataclass(frozen=True, slots=True)
class OriginActivity:
    """One origin: when it was last active, why it is idle, and its rows that are ignored.

    Ignored are rows too far in the future, and rows after its end (`newest_after_finish` is the newest time of those).
    """

    state: str
    last_heard: int
    idle_cause: IdleCause | None
    future_rows: int
    newest_future: int | None
    newest_after_finish: int | None = None


class OriginState:
    """The generator state of each key of an origin, and its activity."""

    __slots__ = ("future_rows", "idle_cause", "last_heard", "newest_after_finish", "newest_future", "states")

    def __init__(self, last_heard: int) -> None:
        self.states: dict[str, GeneratorState] = {}
        self.last_heard = last_heard
        self.idle_cause: IdleCause | None = None
        self.future_rows = 0
        self.newest_future: int | None = None
        self.newest_after_finish: int | None = None

    def heard(self, now: int) -> "OriginState":
        """Return a copy that was active now; rows are observed on it, and it counts when none of them was refused."""
        active = OriginState(max(self.last_heard, now))
        active.states = dict(self.states)
        active.future_rows, active.newest_future = self.future_rows, self.newest_future
        return active

    def is_future(self, latest: int, limit: int | None) -> bool:
        """Return whether a time lies beyond the limit; if so, count the row."""
        if limit is None or latest <= limit:
            return False
        self._count_future(1, latest)
        return True

    def without_future(self, column: Int64Array, limit: int | None) -> Int64Array:
        """Return the times within the limit, and count the others."""
        if limit is None or not len(column) or (newest := int(column.max())) <= limit:
            return column
        ahead = column > limit
        self._count_future(int(np.count_nonzero(ahead)), newest)
        return column[~ahead]

    def activity(self, state: str) -> OriginActivity:
        """Return the activity of the origin, which is in this state."""
        return OriginActivity(
            state, self.last_heard, self.idle_cause, self.future_rows, self.newest_future, self.newest_after_finish
        )

    def save(self) -> list[Any]:
        """Return everything except `last_heard`, which has no meaning after a restart."""
        return [dict(self.states), self.idle_cause, self.future_rows, self.newest_future, self.newest_after_finish]

    @classmethod
    def load(cls, saved: list[Any], now: int) -> "OriginState":
        """Return a saved state, with `now` as `last_heard`."""
        origin = cls(now)
        # Earlier releases did not save the newest row after the end.
        states, idle_cause, future_rows, newest_future, after_finish = saved if len(saved) > 4 else (*saved, None)
        if idle_cause not in (None, "declared", "timeout"):
            raise ValueError(f"unknown cause of idleness {idle_cause!r}")
        origin.states = dict(states)
        origin.idle_cause = idle_cause
        origin.future_rows = check_number("future_rows", future_rows)
        origin.newest_future = None if newest_future is None else check_int64(newest_future, "newest_future")
        origin.newest_after_finish = None if after_finish is None else check_int64(after_finish, "newest_after_finish")
        return origin

    def _count_future(self, rows: int, newest: int) -> None:
        self.future_rows += rows
        self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)
