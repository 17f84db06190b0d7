"""The state of a coalescer: its inputs, its keys, and what each input has said on each key.

An input has a slot, a small number; the values of a key are arrays by slot, with a tournament tree above them
that gives their minimum.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_watermark
from floodmark._util.names import Name, check_new_name
from floodmark.errors import BatchInvalid, InputFinished, InvalidOption, UnknownInput, UnknownKey
from floodmark.progress.columns import Int64Array
from floodmark.progress.signals import Watermark, check_key

UNKNOWN_SINCE = INT64_MIN
"""Nobody said what time it was."""


ABSENT = INT64_MAX
"""Loses every match: the value of a leaf that does not take part."""


Revived = Literal["hold", "exclude"]
"""What happens to an input that comes back from idleness and lags behind the output."""

ACTIVE: Final = 0
IDLE_STATE: Final = 1
FINISHED: Final = 2
STATE_NAMES: Final = ("active", "idle", "finished")


class Inputs:
    """Names on slots. A slot is a small number that stays with an input until it is removed."""

    __slots__ = ("_free", "_overrides", "_slots", "active", "capacity", "live", "revived", "since", "state")

    def __init__(self, revived: Revived) -> None:
        self.revived = check_revived(revived)
        self.capacity = 2
        self.state = bytearray(self.capacity)
        self.since = array("q", [UNKNOWN_SINCE]) * self.capacity
        self.live = 0
        self.active = 0
        self._slots: dict[Name, int] = {}
        self._free = list(range(self.capacity))
        self._overrides: dict[int, Revived] = {}

    def slot(self, name: Name) -> int:
        """Return the slot of an input, finished or not."""
        slot = self._slots.get(name)
        if slot is None:
            raise UnknownInput(
                f"The input {name!r} is not known.",
                rule="An input is added before it is used.",
                remedy="Add it, or correct the name.",
                input=name,
            )
        return slot

    def live_slot(self, name: Name) -> int:
        """Return the slot of an input that has not finished."""
        slot = self._slots.get(name)
        if slot is None or self.state[slot] == FINISHED:
            slot = self.slot(name)
            raise InputFinished(
                f"The input {name!r} has finished and was used again.",
                rule="Nothing comes from an input after it has finished.",
                remedy="Finish it later, or add an input under a new name.",
                input=name,
            )
        return slot

    def live_slots(self, names: Sequence[Name]) -> Int64Array:
        """Return the slots of many inputs, none of which may be named twice."""
        try:
            slots = np.fromiter((self._slots[name] for name in names), dtype=np.int64, count=len(names))
        except KeyError:
            slots = np.array([self.slot(name) for name in names])
        for place in np.flatnonzero(self.states()[slots] == FINISHED)[:1]:
            self.live_slot(names[place])
        if np.bincount(slots, minlength=1).max() > 1:
            raise BatchInvalid(
                "An input is named twice in one batch.",
                rule="A batch holds one watermark for each input and key.",
                remedy="Keep the highest, or send two batches.",
                column="input",
            )
        return slots

    def states(self) -> NDArray[np.uint8]:
        """Return the state of every slot as an array."""
        return np.frombuffer(self.state, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._slots)

    def names(self) -> tuple[Name, ...]:
        """Return all names, in the order they were added."""
        return tuple(self._slots)

    def slots(self) -> dict[Name, int]:
        """Return the slot of each name, in the order they were added."""
        return self._slots

    def active_slots(self) -> list[int]:
        """Return the slots of the active inputs."""
        return [slot for slot in self._slots.values() if self.state[slot] == ACTIVE]

    def all_idle(self) -> bool:
        """Return whether there are inputs that have not finished, and all of those are idle."""
        return self.live > 0 and self.active == 0

    def holds(self, slot: int) -> bool:
        """Return whether the input may hold the output when it comes back and lags."""
        return self._overrides.get(slot, self.revived) == "hold"

    def add(self, name: Name, revived: Revived | None, now: int | None) -> int:
        """Add an active input and return its slot; the capacity may grow."""
        check_new_name(name, "input", self._slots)
        if revived is not None:
            check_revived(revived)
        if not self._free:
            self._free = list(range(2 * self.capacity - 1, self.capacity - 1, -1))
            self.state = self.state + bytes(self.capacity)
            self.since = self.since + array("q", [UNKNOWN_SINCE]) * self.capacity
            self.capacity *= 2
        slot = self._slots[name] = self._free.pop()
        if revived is not None:
            self._overrides[slot] = revived
        self._enter(slot, ACTIVE, now)
        self.live += 1
        self.active += 1
        return slot

    def remove(self, name: Name) -> None:
        """Forget an input."""
        slot = self._slots.pop(name)
        self._free.append(slot)
        self._overrides.pop(slot, None)
        self.live -= self.state[slot] != FINISHED
        self.active -= self.state[slot] == ACTIVE

    def become_active(self, slot: int, now: int | None) -> None:
        """Take an idle input back."""
        self._enter(slot, ACTIVE, now)
        self.active += 1

    def become_idle(self, slot: int, now: int | None) -> None:
        """Leave an active input out for a while."""
        self._enter(slot, IDLE_STATE, now)
        self.active -= 1

    def become_finished(self, slot: int, now: int | None) -> None:
        """Leave an input out for ever."""
        self.active -= self.state[slot] == ACTIVE
        self.live -= 1
        self._enter(slot, FINISHED, now)

    def save(self) -> list[list[Any]]:
        """Return name, state, own policy and since when, of each input."""
        return [
            [name, STATE_NAMES[self.state[slot]], self._overrides.get(slot), since_or_none(self.since[slot])]
            for name, slot in self._slots.items()
        ]

    def load(self, saved: list[list[Any]]) -> None:
        """Add the inputs that were saved."""
        for name, state, revived, since in saved:
            slot = self.add(name, revived, None if since is None else check_int64(since, "since"))
            if state == "idle":
                self.become_idle(slot, since)
            elif state == "finished":
                self.become_finished(slot, since)
            elif state != "active":
                raise ValueError(f"unknown state {state!r}")

    def _enter(self, slot: int, state: int, now: int | None) -> None:
        self.state[slot] = state
        self.since[slot] = UNKNOWN_SINCE if now is None else now


def since_or_none(since: int) -> int | None:
    """Return a kept "since", or None if nobody said what time it was."""
    return None if since == UNKNOWN_SINCE else since


def check_revived(revived: object) -> Revived:
    """Return the policy, or refuse it."""
    if revived == "hold":
        return "hold"
    if revived == "exclude":
        return "exclude"
    raise InvalidOption(
        f"revived is {revived!r}.",
        rule="It must be 'hold' or 'exclude'.",
        remedy="Use 'hold' to wait for a laggard that comes back, 'exclude' to go on without it until it caught up.",
        revived=revived,
    )


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


class Keys:
    """The state of each key. Without a declaration keys appear as they come; with one, any other is refused."""

    __slots__ = ("_inputs", "dropped", "is_closed", "states")

    def __init__(self, inputs: Inputs, declared: Iterable[str] | None) -> None:
        self._inputs = inputs
        self.states: dict[str, KeyState] = {}
        self.dropped: set[str] = set()
        self.is_closed = declared is not None
        for key in declared or ():
            self.create(check_key(key))

    def get(self, key: str) -> KeyState:
        """Return the state of a key that is merged already."""
        state = self.states.get(key)
        if state is None:
            raise unknown_key(key, self.states)
        return state

    def check(self, key: str) -> None:
        """Refuse a key that may not come."""
        if key not in self.states and key not in self.dropped:
            check_key(key)
            if self.is_closed:
                raise unknown_key(key, self.states)

    def take(self, key: str) -> KeyState | None:
        """Return the state of a key that may be new; None if it was dropped."""
        state = self.states.get(key)
        if state is None and key not in self.dropped:
            self.check(key)
            return self.create(key)
        return state

    def drop(self, key: str) -> None:
        """Forget a key and take no more of it."""
        self.dropped.add(check_key(key))
        self.states.pop(key, None)

    def create(self, key: str) -> KeyState:
        """Return the state of a new key, for which every active input is waited."""
        state = self.states[key] = KeyState(key, self._inputs.capacity)
        state.blocking = self._inputs.active
        return state


def unknown_key(key: object, known: Iterable[str]) -> UnknownKey:
    """Return the error for a key that is not known."""
    return UnknownKey(
        f"The key {key!r} is not known.",
        rule=f"The keys are: {', '.join(known) or 'none yet'}.",
        remedy="Correct the name, or declare the key.",
        key=key,
    )


class MinTree:
    """Leaves 0, 1, 2, ... of int64, and their minimum.

    >>> tree = MinTree(3)
    >>> tree.set(0, 7)
    >>> tree.set(2, 5)
    >>> tree.minimum
    5
    >>> tree.set(2, ABSENT)
    >>> tree.minimum
    7
    """

    __slots__ = ("_leaves", "_nodes")

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(1, size - 1).bit_length()
        self._nodes = array("q", [ABSENT]) * (2 * self._leaves)

    @property
    def minimum(self) -> int:
        """The lowest leaf, or `ABSENT`."""
        return self._nodes[1]

    def set(self, leaf: int, value: int) -> None:
        """Change one leaf."""
        nodes = self._nodes
        place = leaf + self._leaves
        nodes[place] = value
        while place > 1:
            sibling = nodes[place ^ 1]
            if sibling < value:
                value = sibling
            place >>= 1
            if nodes[place] == value:
                return
            nodes[place] = value

    def set_many(self, leaves: Int64Array, values: Int64Array | int) -> None:
        """Change many leaves at once.

        >>> tree = MinTree(4)
        >>> tree.set_many(np.array([0, 3]), np.array([9, 8]))
        >>> tree.minimum
        8
        """
        nodes = np.frombuffer(self._nodes, dtype=np.int64)
        nodes[leaves + self._leaves] = values
        level = self._leaves >> 1
        while level:
            below = nodes[2 * level : 4 * level]
            np.minimum(below[::2], below[1::2], out=nodes[level : 2 * level])
            level >>= 1

    def grown_to(self, size: int) -> "MinTree":
        """Return a tree with room for `size` leaves and the same values."""
        grown = MinTree(size)
        values = np.frombuffer(self._nodes, dtype=np.int64)[self._leaves :]
        grown.set_many(np.arange(min(self._leaves, grown._leaves)), values[: grown._leaves])
        return grown
