"""What the inputs have said on one key, and their minimum."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floodmark._util.ints import INT64_MIN, Int64Array, check_int64, check_watermark
from floodmark.progress._min_tree import ABSENT, MinTree
from floodmark.progress._signals import Watermark

UNKNOWN_SINCE = INT64_MIN
"""Nobody said what time it was."""


class KeyState:
    """One key over all inputs, which are known here by their slot.

    An input takes part in the minimum if it is active and not left out. One that takes part and has no value yet
    blocks the key. Watermarks come out only strictly above the last one that did.
    """

    __slots__ = ("blocking", "emitted", "key", "left_out", "seen", "since", "top", "tree", "values")

    def __init__(self, key: str, capacity: int) -> None:
        self.key = key
        self.values = array("q", bytes(8 * capacity))
        self.since = array("q", [UNKNOWN_SINCE]) * capacity
        self.seen = bytearray(capacity)
        self.left_out = bytearray(capacity)
        self.tree = MinTree(capacity)
        self.blocking = 0
        self.emitted: int | None = None
        self.top: int | None = None

    def last_of(self, slot: int) -> int | None:
        """Return the last watermark of an input."""
        return self.values[slot] if self.seen[slot] else None

    def set(self, slot: int, time: int, now: int | None) -> None:
        """Take a higher watermark from an active input."""
        if self.left_out[slot]:
            if self.emitted is not None and time >= self.emitted:
                self.left_out[slot] = 0
        elif not self.seen[slot]:
            self.blocking -= 1
        self.seen[slot] = 1
        self.values[slot] = time
        if now is not None:
            self.since[slot] = now
        if not self.left_out[slot]:
            self.tree.set(slot, time)
        if self.top is None or time > self.top:
            self.top = time

    def set_many(self, slots: Int64Array, times: Int64Array, now: int | None) -> None:
        """Take higher watermarks from many active inputs, each named once."""
        if not len(slots):
            return
        seen = np.frombuffer(self.seen, dtype=np.uint8)
        left_out = np.frombuffer(self.left_out, dtype=np.uint8)
        self.blocking -= int(np.count_nonzero((seen[slots] == 0) & (left_out[slots] == 0)))
        if self.emitted is not None:
            left_out[slots[times >= self.emitted]] = 0
        seen[slots] = 1
        np.frombuffer(self.values, dtype=np.int64)[slots] = times
        if now is not None:
            np.frombuffer(self.since, dtype=np.int64)[slots] = now
        part = left_out[slots] == 0
        self.tree.set_many(slots[part], times[part])
        highest = int(times.max())
        if self.top is None or highest > self.top:
            self.top = highest

    def rising(self, slots: Int64Array, times: Int64Array) -> NDArray[np.bool_]:
        """Return which times are above the last watermark of their input."""
        seen = np.frombuffer(self.seen, dtype=np.uint8)[slots] == 1
        rises: NDArray[np.bool_] = ~seen | (times > np.frombuffer(self.values, dtype=np.int64)[slots])
        return rises

    def join(self, slot: int, *, hold: bool) -> None:
        """Let an input take part (again); a laggard that may not `hold` waits outside."""
        lags = self.emitted is not None and (not self.seen[slot] or self.values[slot] < self.emitted)
        if lags and not hold:
            self.left_out[slot] = 1
        elif self.seen[slot]:
            self.tree.set(slot, self.values[slot])
        else:
            self.blocking += 1

    def leave(self, slot: int) -> None:
        """Let an active input take part no more."""
        if not self.seen[slot] and not self.left_out[slot]:
            self.blocking -= 1
        self.left_out[slot] = 0
        self.tree.set(slot, ABSENT)

    def forget(self, slot: int) -> None:
        """Make the slot of an input that takes no part free for another."""
        self.seen[slot] = 0
        self.since[slot] = UNKNOWN_SINCE

    def advance(self) -> tuple[Watermark, ...]:
        """Return the minimum, if everybody has spoken and it is news."""
        if self.blocking:
            return ()
        minimum = self.tree.minimum
        if minimum == ABSENT or (self.emitted is not None and minimum <= self.emitted):
            return ()
        self.emitted = minimum
        return (Watermark(self.key, minimum),)

    def flush(self) -> tuple[Watermark, ...]:
        """Return the highest watermark that any input ever sent, if it is news: all inputs are idle."""
        if self.top is None or (self.emitted is not None and self.top <= self.emitted):
            return ()
        self.emitted = self.top
        return (Watermark(self.key, self.top),)

    def grow(self, capacity: int) -> None:
        """Make room for more inputs."""
        more = capacity - len(self.seen)
        self.values = self.values + array("q", bytes(8 * more))
        self.since = self.since + array("q", [UNKNOWN_SINCE]) * more
        self.seen = self.seen + bytes(more)
        self.left_out = self.left_out + bytes(more)
        self.tree = self.tree.grown_to(capacity)

    def holders(self, active: Iterable[int]) -> list[int]:
        """Return the slots that hold the minimum: those without a value, else those with the lowest."""
        taking_part = [slot for slot in active if not self.left_out[slot]]
        silent = [slot for slot in taking_part if not self.seen[slot]]
        return silent or [slot for slot in taking_part if self.values[slot] == self.tree.minimum]

    def save(self, slots: Iterable[int]) -> dict[str, Any]:
        """Return what left, and the value, since and left-out flag of each input that has spoken or is left out."""
        return {
            "emitted": self.emitted,
            "top": self.top,
            "inputs": [
                [place, self.last_of(slot), self.since[slot], bool(self.left_out[slot])]
                for place, slot in enumerate(slots)
                if self.seen[slot] or self.left_out[slot]
            ],
        }

    def load(self, saved: dict[str, Any], slots: Sequence[int], active: Sequence[int]) -> None:
        """Take over what was saved; `slots` are those of all inputs in the order of saving."""
        for place, time, since, left_out in saved["inputs"]:
            slot = slots[place]
            self.since[slot] = check_int64(since, "since")
            self.left_out[slot] = bool(left_out)
            if time is not None:
                self.values[slot] = check_watermark(time)
                self.seen[slot] = 1
        taking_part = [slot for slot in active if not self.left_out[slot]]
        self.blocking = sum(not self.seen[slot] for slot in taking_part)
        for slot in taking_part:
            if self.seen[slot]:
                self.tree.set(slot, self.values[slot])
        self.emitted = None if saved["emitted"] is None else check_watermark(saved["emitted"])
        self.top = None if saved["top"] is None else check_watermark(saved["top"])
