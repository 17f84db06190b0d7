"""The state of a coalescer: its inputs, its keys, and the last watermark of each input on each key.

Each input has a slot, a small number. The watermarks of a key are arrays indexed by slot, with a tournament tree above
them for the minimum.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_number, check_watermark
from floodmark._util.names import Name, check_new_name
from floodmark.errors import BatchInvalid, InputFinished, InvalidOption, UnknownInput, UnknownKey
from floodmark.progress.columns import Int64Array
from floodmark.progress.signals import Watermark, check_key

UNKNOWN_SINCE = INT64_MIN
"""Stands for "since when is not known"."""


ABSENT = INT64_MAX
"""Above every watermark: the value of a leaf that takes no part in the minimum."""


Revived = Literal["hold", "exclude"]
"""What to do with an input that was idle, becomes active, and lags behind the output."""

ACTIVE: Final = 0
IDLE_STATE: Final = 1
FINISHED: Final = 2
STATE_NAMES: Final = ("active", "idle", "finished")


class Inputs:
    """Maps input names to slots. A slot stays with its input until the input is removed."""

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
        try:
            return self._slots[name]
        except (KeyError, TypeError):
            # A TypeError is a value that cannot be a name, such as a list.
            raise UnknownInput(
                f"There is no input {name!r}.",
                rule="An input must be added before it is used.",
                remedy=f"Call add({name!r}) first, or use one of: {', '.join(map(str, self._slots)) or 'none yet'}.",
                input=name,
            ) from None

    def live_slot(self, name: Name) -> int:
        """Return the slot of an input, or raise an error if it has finished."""
        try:
            slot = self._slots[name]
        except (KeyError, TypeError):
            slot = self.slot(name)
        if self.state[slot] == FINISHED:
            raise InputFinished(
                f"The input {name!r} has finished and was used again.",
                rule="A finished input sends nothing more.",
                remedy="Call finish() later, call revive() first, or add an input under a new name.",
                input=name,
            )
        return slot

    def live_slots(self, names: Sequence[Name]) -> Int64Array:
        """Return the slots of many inputs; no name may occur twice."""
        try:
            slots = np.fromiter((self._slots[name] for name in names), dtype=np.int64, count=len(names))
        except (KeyError, TypeError):
            slots = np.array([self.slot(name) for name in names])
        for row in np.flatnonzero(self.states()[slots] == FINISHED)[:1]:
            self.live_slot(names[row])
        if np.bincount(slots, minlength=1).max() > 1:
            raise BatchInvalid(
                "An input is named twice in one batch.",
                rule="A batch has one watermark for each input and key.",
                remedy="Send only the highest watermark of the input, or two batches.",
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
        """Return whether a revived input that lags may hold back the output."""
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
        self._set_state(slot, ACTIVE, now)
        self.live += 1
        self.active += 1
        return slot

    def remove(self, name: Name) -> None:
        """Remove an input."""
        slot = self._slots.pop(name)
        self._free.append(slot)
        self._overrides.pop(slot, None)
        self.live -= self.state[slot] != FINISHED
        self.active -= self.state[slot] == ACTIVE

    def become_active(self, slot: int, now: int | None) -> None:
        """Make an idle or finished input active."""
        self.live += self.state[slot] == FINISHED
        self._set_state(slot, ACTIVE, now)
        self.active += 1

    def become_idle(self, slot: int, now: int | None) -> None:
        """Make an active input idle."""
        self._set_state(slot, IDLE_STATE, now)
        self.active -= 1

    def become_finished(self, slot: int, now: int | None) -> None:
        """Finish an input."""
        self.active -= self.state[slot] == ACTIVE
        self.live -= 1
        self._set_state(slot, FINISHED, now)

    def save(self) -> list[list[Any]]:
        """Return name, state, own policy and since, for each input."""
        return [
            [name, STATE_NAMES[self.state[slot]], self._overrides.get(slot), since_or_none(self.since[slot])]
            for name, slot in self._slots.items()
        ]

    def load(self, saved: list[list[Any]]) -> None:
        """Add saved inputs."""
        for name, state, revived, since in saved:
            slot = self.add(name, revived, None if since is None else check_int64(since, "since"))
            if state == "idle":
                self.become_idle(slot, since)
            elif state == "finished":
                self.become_finished(slot, since)
            elif state != "active":
                raise ValueError(f"unknown state {state!r}")

    def _set_state(self, slot: int, state: int, now: int | None) -> None:
        self.state[slot] = state
        self.since[slot] = UNKNOWN_SINCE if now is None else now


def since_or_none(since: int) -> int | None:
    """Return a stored "since", or None if it is not known."""
    return None if since == UNKNOWN_SINCE else since


def check_revived(revived: object) -> Revived:
    """Return the policy, or raise an error if it is not valid."""
    if revived == "hold":
        return "hold"
    if revived == "exclude":
        return "exclude"
    raise InvalidOption(
        f"revived is {revived!r}.",
        rule="revived must be 'hold' or 'exclude'.",
        remedy="Use 'hold' to wait for an input that comes back behind, 'exclude' to go on until it has caught up.",
        revived=revived,
    )


class KeyState:
    """One key over all inputs, addressed by slot.

    An input takes part in the minimum if it is active and not left out. An input that takes part without a watermark
    blocks the key. Each output watermark is above the one before it.
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
        """Set a higher watermark of an active input."""
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
        """Set higher watermarks of many active inputs, each at most once."""
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
        counts = left_out[slots] == 0
        self.tree.set_many(slots[counts], times[counts])
        highest = int(times.max())
        if self.top is None or highest > self.top:
            self.top = highest

    def rising(self, slots: Int64Array, times: Int64Array) -> NDArray[np.bool_]:
        """Return which times are above the last watermark of their input."""
        seen = np.frombuffer(self.seen, dtype=np.uint8)[slots] == 1
        rises: NDArray[np.bool_] = ~seen | (times > np.frombuffer(self.values, dtype=np.int64)[slots])
        return rises

    def join(self, slot: int, *, hold: bool) -> None:
        """Make an input take part again; one that lags and may not `hold` is left out."""
        lags = self.emitted is not None and (not self.seen[slot] or self.values[slot] < self.emitted)
        if lags and not hold:
            self.left_out[slot] = 1
        elif self.seen[slot]:
            self.tree.set(slot, self.values[slot])
        else:
            self.blocking += 1

    def leave(self, slot: int) -> None:
        """Make an active input take no part."""
        if not self.seen[slot] and not self.left_out[slot]:
            self.blocking -= 1
        self.left_out[slot] = 0
        self.tree.set(slot, ABSENT)

    def forget(self, slot: int) -> None:
        """Clear the slot of an input that takes no part."""
        self.seen[slot] = 0
        self.since[slot] = UNKNOWN_SINCE

    def advance(self) -> tuple[Watermark, ...]:
        """Return the minimum as output, if no input blocks and it has risen."""
        if self.blocking:
            return ()
        minimum = self.tree.minimum
        if minimum == ABSENT or (self.emitted is not None and minimum <= self.emitted):
            return ()
        self.emitted = minimum
        return (Watermark(self.key, minimum),)

    def flush(self) -> tuple[Watermark, ...]:
        """Return the highest watermark of any input as output, if it has risen; called when all inputs are idle."""
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
        """Return the slots that hold the minimum: those without a watermark, else those with the lowest."""
        taking_part = [slot for slot in active if not self.left_out[slot]]
        without_watermark = [slot for slot in taking_part if not self.seen[slot]]
        return without_watermark or [slot for slot in taking_part if self.values[slot] == self.tree.minimum]

    def save(self, slots: Iterable[int]) -> dict[str, Any]:
        """Return the output, and [index, watermark, since, left out] of each input with a watermark or left out."""
        return {
            "emitted": self.emitted,
            "top": self.top,
            "inputs": [
                [index, self.last_of(slot), self.since[slot], bool(self.left_out[slot])]
                for index, slot in enumerate(slots)
                if self.seen[slot] or self.left_out[slot]
            ],
        }

    def load(self, saved: dict[str, Any], slots: Sequence[int], active: Sequence[int]) -> None:
        """Load a saved state; `slots` are the slots of all inputs in the order they were saved."""
        self.emitted = None if saved["emitted"] is None else check_watermark(saved["emitted"])
        self.top = None if saved["top"] is None else check_watermark(saved["top"])
        loaded: set[int] = set()
        active_slots = set(active)
        for index, time, since, left_out in saved["inputs"]:
            slot = slots[check_number("index of an input", index)]
            if slot in loaded:
                raise ValueError(f"the input {index} is there twice")
            loaded.add(slot)
            self.since[slot] = check_int64(since, "since")
            if time is not None:
                self.values[slot] = check_watermark(time)
                self.seen[slot] = 1
            lags = self.emitted is not None and (time is None or time < self.emitted)
            if left_out and not (lags and slot in active_slots):
                raise ValueError(f"the input {index} is left out, but does not lag")
            self.left_out[slot] = bool(left_out)
        taking_part = [slot for slot in active if not self.left_out[slot]]
        self.blocking = sum(not self.seen[slot] for slot in taking_part)
        for slot in taking_part:
            if self.seen[slot]:
                self.tree.set(slot, self.values[slot])


class Keys:
    """The state of each key. Without declared keys, keys are added as they arrive; else other keys are refused."""

    __slots__ = ("_inputs", "dropped", "is_closed", "states")

    def __init__(self, inputs: Inputs, declared: Iterable[str] | None) -> None:
        self._inputs = inputs
        self.states: dict[str, KeyState] = {}
        self.dropped: set[str] = set()
        self.is_closed = declared is not None
        for key in declared or ():
            self.create(check_key(key))

    def get(self, key: str) -> KeyState:
        """Return the state of a key, or raise an error if there is none."""
        state = self.states.get(key)
        if state is None:
            raise unknown_key(key, self.states)
        return state

    def check(self, key: str) -> None:
        """Raise an error if a key is not allowed."""
        if key not in self.states and key not in self.dropped:
            check_key(key)
            if self.is_closed:
                raise unknown_key(key, self.states)

    def get_or_create(self, key: str) -> KeyState | None:
        """Return the state of a key, created if it is new; None if the key was dropped."""
        state = self.states.get(key)
        if state is None and key not in self.dropped:
            self.check(key)
            return self.create(key)
        return state

    def drop(self, key: str) -> None:
        """Remove a key and ignore it from now on."""
        self.dropped.add(check_key(key))
        self.states.pop(key, None)

    def create(self, key: str) -> KeyState:
        """Create the state of a key, which waits for every active input."""
        state = self.states[key] = KeyState(key, self._inputs.capacity)
        state.blocking = self._inputs.active
        return state


def unknown_key(key: object, keys: Iterable[str]) -> UnknownKey:
    """Return the error for an unknown key."""
    names = ", ".join(keys) or "none yet"
    return UnknownKey(
        f"There is no key {key!r}.",
        rule=f"The keys are: {names}.",
        remedy="Use one of these keys, or declare the key when the coalescer is created.",
        key=key,
    )


class MinTree:
    """A tournament tree over int64 leaves 0, 1, 2, ... that keeps their minimum.

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
        """Set one leaf."""
        nodes = self._nodes
        node = leaf + self._leaves
        nodes[node] = value
        while node > 1:
            sibling = nodes[node ^ 1]
            if sibling < value:
                value = sibling
            node >>= 1
            if nodes[node] == value:
                return
            nodes[node] = value

    def set_many(self, leaves: Int64Array, values: Int64Array | int) -> None:
        """Set many leaves at once.

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
        """Return a tree with the same values and room for `size` leaves."""
        grown = MinTree(size)
        values = np.frombuffer(self._nodes, dtype=np.int64)[self._leaves :]
        grown.set_many(np.arange(min(self._leaves, grown._leaves)), values[: grown._leaves])
        return grown
