"""The inputs of a coalescer: their names, their slots, and whether each is active, idle or finished."""

from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from floodmark._util.ints import Int64Array, check_int64
from floodmark._util.names import Name, check_new_name
from floodmark.errors import BatchInvalid, InputFinished, InvalidOption, UnknownInput
from floodmark.progress._key_state import UNKNOWN_SINCE

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
            [name, STATE_NAMES[self.state[slot]], self._overrides.get(slot), known_since(self.since[slot])]
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


def known_since(since: int) -> int | None:
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
